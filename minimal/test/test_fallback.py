# Step 7: operators without a kernel, and the program that they make possible.
import io

import torch
from common import NAME
from torch.testing._internal.common_utils import TestCase, run_tests


class TestFallback(TestCase):
    def test_results_are_the_cpus(self):
        x = torch.randn(5, 5)
        for call in (
            torch.exp,
            lambda x: x @ x,
            lambda x: torch.sort(x)[1],
            lambda x: torch.cat([x, x.to("cpu").to(x.device)]),
            lambda x: x.clone().mul_(3),
            lambda x: x.clone()[:, 1].add_(1),
            lambda x: torch._foreach_add([x, x], 2)[1],
            lambda x: x[torch.tensor([1, 3])],
            lambda x: torch.empty(0, device=x.device).resize_(5, 5).copy_(x),
            lambda x: torch.linspace(0, 1, 5, device=x.device),
            lambda x: torch.mul(x, 2, out=torch.empty(5, 5, device=x.device)),
        ):
            self.assertEqual(call(x.to(NAME)).cpu(), call(x))

    def test_tensors_of_two_devices_are_refused(self):
        x = torch.ones(3, device=NAME)
        for other in (torch.ones(3), torch.ones(3, device=f"{NAME}:1")):
            with self.assertRaisesRegex(RuntimeError, "same device"):
                x + other
            with self.assertRaisesRegex(RuntimeError, "same device"):
                torch.cat([x, other])

    def test_result_is_on_the_device_of_the_arguments(self):
        x = torch.ones(3, device=f"{NAME}:1")
        self.assertEqual(x.exp().device, x.device)
        self.assertEqual(torch.accelerator.current_device_index(), 0)

    def test_network_trains_and_its_checkpoint_moves(self):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1)
        ).to(NAME)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        x = torch.randn(32, 4, device=NAME)
        losses = []
        for _ in range(30):
            loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        self.assertLess(losses[-1], losses[0] / 2)
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        for place in ("cpu", f"{NAME}:0", f"{NAME}:1"):
            file.seek(0)
            state = torch.load(file, map_location=place)
            self.assertEqual({one.device for one in state.values()}, {torch.device(place)})
            self.assertEqual(state["0.weight"].cpu(), model[0].weight.detach().cpu())


if __name__ == "__main__":
    run_tests()
