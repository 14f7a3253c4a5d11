# Step 7: operators without a kernel, and the program that they make possible.
import io
import warnings

import torch
from common import MODULE, NAME
from torch.testing._internal.common_utils import TestCase, run_tests

# Views of 96 numbers.
LAYOUTS = (
    lambda x: x.view(8, 12),
    lambda x: x.view(12, 8).t(),
    lambda x: x.view(8, 12)[:, ::2],
    lambda x: x.view(8, 12)[2:5, 3:7].t(),
    lambda x: x.view(2, 4, 3, 4).permute(0, 3, 1, 2),
    lambda x: x.view(2, 3, 4, 4).contiguous(memory_format=torch.channels_last),
    lambda x: x.view(4, 2, 12).transpose(0, 2)[1:],
)


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

    def test_counts_are_the_calls_and_the_bytes_copied_to_the_host_and_back(self):
        x, y = torch.ones(3, 5, device=NAME), torch.ones(5, device=NAME)
        name = "aten::maximum.out"  # of which torch composes the other two
        calls, copied = (
            lambda: MODULE.fallback_stats().get(name, 0),
            lambda: MODULE.fallback_copied_bytes().get(name, 0),
        )
        before = calls(), copied()
        torch.maximum(x, y)
        torch.maximum(x, y, out=x)
        # Each call: both arguments and the memory of the result there, and the result back.
        self.assertEqual(calls() - before[0], 2)
        self.assertEqual(copied() - before[1], 2 * (60 + 20 + 60 + 60))
        self.assertEqual({*MODULE.fallback_stats()}, {*MODULE.fallback_copied_bytes()})

    def compare(self, call):
        """Calls it with the same views of the same numbers on the CPU and on the device."""
        for layout in LAYOUTS:
            bases, results = [], []
            for device in ("cpu", NAME):
                base = torch.arange(96.0).to(device)
                x = layout(base)
                results.append(call(x))
                bases.append(base.cpu())
                self.assertEqual(results[-1].device, x.device)
            expected, actual = results
            self.assertEqual(actual.cpu(), expected)
            self.assertEqual(actual.stride(), expected.stride())
            self.assertEqual(bases[1], bases[0])

    def test_results_have_the_cpus_strides(self):
        for call in (
            torch.sigmoid,
            torch.clone,
            torch.zeros_like,
            lambda x: x * x,
            lambda x: x * x.contiguous(),
            lambda x: x.sum(1, keepdim=True),
            lambda x: x.softmax(-1),
            lambda x: torch.cat([x, x], 1),
            lambda x: torch.where(x > 3, x, 0.5),
            lambda x: x.sort(1)[0],
            lambda x: x.cumsum(0),
            lambda x: x[[0, 1]],
            lambda x: torch.add(x, x, alpha=2),
        ):
            self.compare(call)

    def test_views_keep_their_strides_when_they_are_written(self):
        for call in (
            torch.Tensor.sigmoid_,
            lambda x: x.mul_(2),
            lambda x: x.add_(x, alpha=2),
            lambda x: x.fill_(3),
            lambda x: x.index_fill_(0, torch.tensor([1], device=x.device), 5),
            lambda x: torch.exp(torch.ones_like(x), out=x),
            lambda x: (torch._foreach_add_([x], 1), x)[1],
        ):
            self.compare(call)

    def test_result_argument_of_another_size_has_the_cpus_strides(self):
        for call in (
            lambda x: torch.mul(x, 2, out=x.new_empty(0)),
            lambda x: torch.cat([x, x], out=x.new_empty(0)),
            lambda x: torch.sum(x, 0, out=x.new_empty(0)),
        ):
            self.compare(call)

    def test_result_that_leaves_out_elements_of_its_memory_has_the_cpus_strides(self):
        a, b = torch.randn(4, 3), torch.randn(4, 3)
        expected = torch.linalg.lstsq(a, b, driver="gels").solution
        solution = torch.linalg.lstsq(a.to(NAME), b.to(NAME), driver="gels").solution
        self.assertEqual(solution.cpu(), expected)
        self.assertEqual(solution.stride(), expected.stride())

    def test_views_of_views_share_memory(self):
        for view in (
            lambda x: x.t() if x.dim() == 2 else x.transpose(1, 2),
            lambda x: x[1:],
            lambda x: x.unsqueeze(1),
            lambda x: x.diagonal(),
            lambda x: x.unfold(0, 2, 1),
            lambda x: x.detach(),
            lambda x: x.movedim(0, 1),
            lambda x: x.view(torch.int32),
            lambda x: x.chunk(2)[1],
        ):
            for layout in LAYOUTS:
                expected, x = view(layout(torch.arange(96.0))), layout(torch.arange(96.0).to(NAME))
                actual = view(x)
                self.assertEqual(actual.cpu(), expected)
                self.assertEqual(actual.stride(), expected.stride())
                self.assertEqual(actual.storage_offset(), expected.storage_offset())
                self.assertEqual(
                    actual.untyped_storage().data_ptr(), x.untyped_storage().data_ptr()
                )

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

    def test_losses_do_not_warn_of_results_that_torch_made_too_large(self):
        x, y = torch.randn(4, 3), torch.randn(4, 3)
        functional = torch.nn.functional
        for loss in (functional.mse_loss, functional.smooth_l1_loss, functional.huber_loss):
            for reduction in ("mean", "sum", "none"):
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    actual = loss(x.to(NAME), y.to(NAME), reduction=reduction)
                self.assertEqual(actual.cpu(), loss(x, y, reduction=reduction))

    def test_running_statistics_are_written(self):
        x = torch.randn(8, 3) * 2 + 1
        for is_training in (True, False):
            here = torch.nn.BatchNorm1d(3, affine=False).train(is_training)
            there = torch.nn.BatchNorm1d(3, affine=False).train(is_training).to(NAME)
            for _ in range(2):
                self.assertEqual(there(x.to(NAME)).cpu(), here(x))
            self.assertEqual(there.running_mean.cpu(), here.running_mean)
            self.assertEqual(there.running_var.cpu(), here.running_var)
        statistics = {}
        for device in ("cpu", NAME):
            mean, var = torch.zeros(3, device=device), torch.ones(3, device=device)
            torch.batch_norm_update_stats(x.to(device), mean, var, 0.5)
            statistics[device] = [mean.cpu(), var.cpu()]
        self.assertEqual(statistics[NAME], statistics["cpu"])
        without = torch.nn.BatchNorm1d(3, track_running_stats=False).to(NAME)
        self.assertEqual(without(x.to(NAME)).mean().item(), 0)

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
