"""A model that is split over two devices."""

import copy

import torch
from common import (
    DEVICE_TYPE,
    OpenRegTestCase,
    StreamGate,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_tests,
    subtest,
)


class Halves(torch.nn.Module):
    """A model of two parts, each on a device; activations and gradients cross between them."""

    def __init__(self, devices):
        super().__init__()
        self.devices = devices
        self.first = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.GELU()).to(devices[0])
        self.second = torch.nn.Sequential(torch.nn.LayerNorm(16), torch.nn.Linear(16, 3))
        self.second.to(devices[1])

    def forward(self, x):
        hidden = self.first(x.to(self.devices[0]))
        return self.second(hidden.to(self.devices[1], non_blocking=True))


@requires_two_devices
class TestModelParallelism(OpenRegTestCase):
    DEVICES = (f"{DEVICE_TYPE}:0", f"{DEVICE_TYPE}:1")

    def train(self, devices, make_optimizer, parts=1):
        torch.manual_seed(0)
        model = Halves(devices)
        optimizer = make_optimizer(model.parameters())
        losses = []
        for _ in range(4):
            x, y = torch.randn(8, 6), torch.randint(0, 3, (8,))
            optimizer.zero_grad()
            for piece, classes in zip(x.chunk(parts), y.chunk(parts), strict=True):
                scores = model(piece)
                loss = torch.nn.functional.cross_entropy(scores, classes.to(scores.device))
                (loss / parts).backward()
                losses.append(loss.detach())
            optimizer.step()
        return torch.stack(losses), model.state_dict()

    @parametrize(
        "make_optimizer",
        [
            subtest(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), name="sgd"),
            subtest(lambda p: torch.optim.AdamW(p, foreach=True), name="adamw_foreach"),
            subtest(lambda p: torch.optim.AdamW(p, foreach=False), name="adamw_loop"),
        ],
    )
    @parametrize("parts", [1, 4])
    def test_training_over_two_devices_gives_the_cpu_s_bits(self, make_optimizer, parts):
        losses, state = self.train(self.DEVICES, make_optimizer, parts)
        expected_losses, expected_state = self.train(("cpu", "cpu"), make_optimizer, parts)
        self.assert_bit_equal(losses, expected_losses)
        for name, value in state.items():
            self.assert_bit_equal(value, expected_state[name])
        self.assertEqual(
            {name.split(".")[0]: str(value.device) for name, value in state.items()},
            {"first": f"{DEVICE_TYPE}:0", "second": f"{DEVICE_TYPE}:1"},
        )

    def test_forward_is_submitted_to_both_devices_before_any_of_it_ran(self):
        model = Halves(self.DEVICES)
        x = torch.randn(8, 6)
        expected = copy.deepcopy(model).cpu()
        expected.devices = ("cpu", "cpu")
        on_device = x.to(f"{DEVICE_TYPE}:0")
        with torch.no_grad():
            model(on_device)  # an operator may wait the first time it is called
            torch.accelerator.synchronize(0)
            torch.accelerator.synchronize(1)
            with StreamGate(torch.openreg.current_stream(0)) as gate:
                scores = model(on_device)
                self.assertFalse(torch.openreg.current_stream(1).query())
                gate.open()
            self.assert_bit_equal(scores, expected(x))

    def test_one_part_works_while_the_other_is_held(self):
        model = Halves(self.DEVICES)
        hidden = torch.randn(8, 16, device=f"{DEVICE_TYPE}:1")
        with torch.no_grad():
            expected = model.second(hidden).cpu()
            with StreamGate(torch.openreg.current_stream(0)) as gate:
                gate.wait_until_reached()
                self.assert_bit_equal(model.second(hidden), expected)
                self.assertFalse(gate.is_open())

    def test_mixing_the_devices_is_refused(self):
        model = Halves(self.DEVICES)
        with self.assertRaisesRegex(RuntimeError, "same device"):
            model.second(model.first(torch.randn(2, 6, device=f"{DEVICE_TYPE}:0")))


instantiate_parametrized_tests(TestModelParallelism)

if __name__ == "__main__":
    run_tests()
