"""Modules that move between devices: parameters stay the objects that they are."""

import copy
import operator

import torch
from common import (
    DEVICE_COUNT,
    DEVICE_TYPE,
    OpenRegTestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)

WAYS = parametrize(
    "move",
    [
        subtest(lambda module: module.to(DEVICE_TYPE), name="to"),
        subtest(operator.methodcaller(DEVICE_TYPE), name="method"),
        subtest(lambda module: module.to(DEVICE_TYPE, torch.float64), name="to_with_dtype"),
        subtest(lambda module: module.to(DEVICE_TYPE).cpu().to(DEVICE_TYPE), name="to_and_back"),
        subtest(
            lambda module: module.to(f"{DEVICE_TYPE}:0").to(f"{DEVICE_TYPE}:{DEVICE_COUNT - 1}"),
            name="to_another_device",
        ),
    ],
)


class Tied(torch.nn.Module):
    """Two layers with one weight."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(3, 3)
        self.second = torch.nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.register_buffer("offset", torch.ones(3))

    def forward(self, x):
        return self.second(self.first(x)) + self.offset


class TestModule(OpenRegTestCase):
    @WAYS
    def test_parameters_stay_the_same_objects(self, move):
        module = Tied()
        before = dict(module.named_parameters())
        values = {name: value.detach().clone() for name, value in before.items()}
        self.assertIs(move(module), module)
        after = dict(module.named_parameters())
        self.assertEqual(after.keys(), before.keys())
        for name, value in after.items():
            self.assertIs(value, before[name])
            self.assertEqual(value.device.type, DEVICE_TYPE)
            self.assertTrue(value.requires_grad and value.is_leaf)
            self.assert_bit_equal(value.detach().to(torch.float32), values[name])
        self.assertEqual(module.offset.device.type, DEVICE_TYPE)

    @WAYS
    def test_weight_that_two_layers_share_stays_shared(self, move):
        module = move(Tied())
        self.assertIs(module.first.weight, module.second.weight)

    def test_gradient_moves_with_its_parameter(self):
        module = Tied()
        module(torch.ones(2, 3)).sum().backward()
        expected = module.first.weight.grad.clone()
        operator.methodcaller(DEVICE_TYPE)(module)
        self.assertEqual(module.first.weight.grad.device.type, DEVICE_TYPE)
        self.assert_bit_equal(module.first.weight.grad, expected)
        module(torch.ones(2, 3, device=DEVICE_TYPE)).sum().backward()  # adds to it
        self.assert_bit_equal(module.first.weight.grad, expected * 2)

    def test_optimizer_made_before_the_move_trains_the_module(self):
        module = Tied()
        reference = copy.deepcopy(module)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        module.to(DEVICE_TYPE)
        module(torch.ones(2, 3, device=DEVICE_TYPE)).sum().backward()
        optimizer.step()
        expected = torch.optim.SGD(reference.parameters(), lr=0.1)
        reference(torch.ones(2, 3)).sum().backward()
        expected.step()
        for one, other in zip(module.parameters(), reference.parameters(), strict=True):
            self.assert_bit_equal(one, other)

    def test_data_can_be_set_across_devices(self):
        x = torch.zeros(2, requires_grad=True)
        x.data = torch.ones(3, device=DEVICE_TYPE)
        self.assertEqual(x.device, torch.device(f"{DEVICE_TYPE}:0"))
        self.assertEqual((x * 2).tolist(), [2.0] * 3)
        x.data = torch.zeros(1)
        self.assertEqual(x.device.type, "cpu")
        self.assertEqual(x.tolist(), [0.0])

    def test_data_of_another_layout_cannot_be_set(self):
        x = torch.zeros(2, device=DEVICE_TYPE)
        with self.assertRaisesRegex(RuntimeError, "incompatible tensor type"):
            x.data = torch.zeros(2).to_sparse()
        with self.assertRaisesRegex(RuntimeError, "incompatible tensor type"):
            x.data = torch.zeros(2, device="meta")

    def test_module_on_meta_gets_memory_on_the_device(self):
        module = Tied().to("meta").to_empty(device=DEVICE_TYPE)
        self.assertEqual({one.device.type for one in module.parameters()}, {DEVICE_TYPE})


instantiate_parametrized_tests(TestModule)

if __name__ == "__main__":
    run_tests()
