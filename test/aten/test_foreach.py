"""Operators on a list of tensors and a number that is a tensor.

A number without dimensions, and without gradient, would be a Python number to ``_foreach_add``: the
argument alpha keeps it a tensor.
"""

import torch
from common import (
    DEVICE_TYPE,
    OpenRegTestCase,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_tests,
    subtest,
)

OPERATORS = {"add": {"alpha": 1}, "mul": {}, "div": {}}
# How CUDA's kernels for whole lists refuse a number on another device, in a call and in place.
TEXTS = {"": "scalar tensor expected to be on", "_": "scalar tensor is expected to be on"}


def call(name, suffix, tensor, number):
    function = getattr(torch, f"_foreach_{name}{suffix}")
    return function([tensor], number, **OPERATORS[name])


class TestForeach(OpenRegTestCase):
    @parametrize("name", OPERATORS)
    def test_number_on_the_device_is_used_there(self, name):
        x, number = torch.arange(1.0, 4), torch.tensor(0.5)
        (result,) = call(name, "", x.to(DEVICE_TYPE), number.to(DEVICE_TYPE))
        self.assert_bit_equal(result, call(name, "", x, number)[0])

    @parametrize("name", OPERATORS)
    @parametrize("suffix", [subtest("", name="new"), subtest("_", name="in_place")])
    def test_list_of_cpu_numbers(self, name, suffix):
        x, number = torch.tensor(3.0), torch.tensor(0.5, device=DEVICE_TYPE)
        if DEVICE_TYPE == "cuda":
            with self.assertRaisesRegex(RuntimeError, f"^{TEXTS[suffix]} cpu but is on cuda:0"):
                call(name, suffix, x, number)
        elif suffix:
            with self.assertRaisesRegex(RuntimeError, "on the same device"):
                call(name, suffix, x, number)
        else:
            (result,) = call(name, suffix, x, number)
            self.assertEqual(result.device.type, DEVICE_TYPE)
            self.assert_bit_equal(result, call(name, suffix, x, number.cpu())[0])

    @parametrize("name", OPERATORS)
    @parametrize("suffix", [subtest("", name="new"), subtest("_", name="in_place")])
    def test_number_on_the_cpu(self, name, suffix):
        x, number = torch.ones(3, device=DEVICE_TYPE), torch.tensor(2.0)
        if DEVICE_TYPE == "cuda" and name == "add":
            with self.assertRaisesRegex(RuntimeError, f"^{TEXTS[suffix]} cuda:0 but is on cpu"):
                call(name, suffix, x, number)
            # Another dtype leaves the kernel for whole lists.
            number = number.double()
        expected = getattr(torch, name)(torch.ones(3), number)
        result = call(name, suffix, x, number)
        self.assert_bit_equal(x if suffix else result[0], expected)

    @requires_two_devices
    @parametrize("name", OPERATORS)
    def test_number_on_another_device_is_refused(self, name):
        x, number = torch.ones(3, device=DEVICE_TYPE), torch.tensor(2.0, device=f"{DEVICE_TYPE}:1")
        text = TEXTS[""] if DEVICE_TYPE == "cuda" else "on the same device"
        with self.assertRaisesRegex(RuntimeError, text):
            call(name, "", x, number)


instantiate_parametrized_tests(TestForeach)

if __name__ == "__main__":
    run_tests()
