"""Device-generic testing: torch's own machinery makes tests for the device out of generic ones."""

import unittest

import torch
from common import DEVICE_COUNT, DEVICE_TYPE, TestCase, run_tests

# isort: split
from torch.testing._internal.common_device_type import (
    deviceCountAtLeast,
    dtypes,
    instantiate_device_type_tests,
    onlyCPU,
    onlyCUDA,
    onlyOn,
    ops,
    skipCUDAIf,
    skipPRIVATEUSE1,
)
from torch.testing._internal.common_methods_invocations import op_db

from torch_openreg import testing

SOME_OPERATORS = [info for info in op_db if info.name in ("add", "mul", "matmul", "sum", "where")]


skip_on_the_device = {
    "openreg": skipPRIVATEUSE1,
    "cuda": skipCUDAIf(True, "for other devices"),
}[DEVICE_TYPE]


class TestGeneric(TestCase):
    def test_device_argument_is_the_device(self, device):
        self.assertEqual(torch.ones(2, device=device).device, torch.device(device))

    @dtypes(torch.float32, torch.float64, torch.int64, torch.bool)
    def test_dtype_argument_is_one_of_those_listed(self, device, dtype):
        x = torch.ones(3, dtype=dtype, device=device)
        self.assertEqual(x, torch.ones(3, dtype=dtype))

    @deviceCountAtLeast(2)
    def test_devices_argument_lists_all_devices(self, devices):
        if torch.device(devices[0]).type == DEVICE_TYPE:
            self.assertEqual(len(devices), DEVICE_COUNT)
        for device in devices:
            torch.ones(2, device=device)

    @onlyOn(DEVICE_TYPE)
    def test_only_on_selects_the_device(self, device):
        self.assertEqual(torch.device(device).type, DEVICE_TYPE)

    @onlyCUDA
    def test_only_cuda_is_not_for_openreg(self, device):
        self.assertEqual((torch.device(device).type, DEVICE_TYPE), ("cuda", "cuda"))

    @onlyCPU
    def test_only_cpu_leaves_the_device_out(self, device):
        self.assertEqual(device, "cpu")

    @skip_on_the_device
    def test_skip_leaves_the_device_out(self, device):
        self.assertNotEqual(torch.device(device).type, DEVICE_TYPE)

    @ops(SOME_OPERATORS, allowed_dtypes=[torch.float32])
    def test_operators_give_the_cpus_results(self, device, dtype, op):
        for sample in op.sample_inputs(device, dtype):
            actual = op(sample.input, *sample.args, **sample.kwargs)
            on_cpu = sample.transform(lambda x: x.cpu() if isinstance(x, torch.Tensor) else x)
            expected = op(on_cpu.input, *on_cpu.args, **on_cpu.kwargs)
            self.assertEqual(actual.cpu(), expected, rtol=0, atol=0)


instantiate_device_type_tests(TestGeneric, globals())


class TestInstantiation(TestCase):
    def test_a_class_for_the_device_was_made_and_has_its_tests(self):
        names = {
            "openreg": ("TestGenericPRIVATEUSE1", "TestGenericOPENREG"),
            "cuda": ("TestGenericCUDA",),
        }[DEVICE_TYPE]
        (made,) = [globals()[name] for name in names if name in globals()]
        self.assertEqual(made.device_type, DEVICE_TYPE)
        self.assertTrue(hasattr(made, f"test_device_argument_is_the_device_{DEVICE_TYPE}"))


class TestLargeTensorTest(TestCase):
    device = DEVICE_TYPE

    def outcome(self, size, device=None):
        @testing.largeTensorTest(size, device)
        def test(case):
            return "ran"

        try:
            return test(self)
        except unittest.SkipTest as skip:
            return str(skip)

    def test_test_runs_if_the_device_has_the_memory(self):
        self.assertEqual(self.outcome(1 << 20), "ran")
        self.assertEqual(self.outcome(lambda case: 1 << 20), "ran")

    def test_test_is_skipped_if_the_device_has_not(self):
        self.assertRegex(self.outcome("9999999GB"), "^Insufficient .* memory$")

    def test_other_devices_are_left_to_torch_s_decorator(self):
        # torch needs psutil for this check.
        self.assertRegex(self.outcome("9999999GB", "cpu"), "Insufficient cpu memory|psutil")

    def test_bad_size_is_refused(self):
        with self.assertRaisesRegex(ValueError, "expected a size such as '4GB', got '4 MB'"):
            testing.largeTensorTest("4 MB")


if __name__ == "__main__":
    run_tests()
