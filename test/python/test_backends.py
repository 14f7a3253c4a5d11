"""``torch.backends.openreg``, and the small modules beside it that programs use by name."""

import importlib
import unittest

import torch
from common import DEVICE_TYPE, OpenRegTestCase, run_child, run_program, run_tests
from torch.nn.attention import SDPBackend, sdpa_kernel

from torch_openreg import backends

requires_own_name = unittest.skipIf(
    DEVICE_TYPE == "cuda", "as CUDA, torch.backends.cuda is the module of the device"
)


class TestBackendsModule(OpenRegTestCase):
    @requires_own_name
    def test_module_is_found_by_attribute_and_by_import(self):
        module = importlib.import_module("torch.backends.openreg")
        self.assertIs(module, torch.backends.openreg)
        self.assertIs(module, backends)
        output = run_program(
            "import torch.backends.openreg\nprint(torch.backends.openreg.is_built())"
        )
        self.assertEqual(output.stdout.strip(), "True")

    def test_device_is_built_and_available(self):
        module = getattr(torch.backends, DEVICE_TYPE)
        self.assertTrue(module.is_built())
        if DEVICE_TYPE != "cuda":
            self.assertTrue(module.is_available())

    @requires_own_name
    def test_without_a_device_it_is_built_and_not_available(self):
        output = run_child(
            """
            import torch
            print(torch.backends.openreg.is_built(), torch.backends.openreg.is_available())
            """,
            {"OPENREG_DEVICE_COUNT": "0"},
        )
        self.assertEqual(output.split(), ["True", "False"])

    @requires_own_name
    def test_question_initializes_nothing(self):
        output = run_child(
            """
            import torch
            torch.backends.openreg.is_built(), torch.backends.openreg.is_available()
            print(torch.openreg.is_initialized())
            """
        )
        self.assertEqual(output.strip(), "False")

    def test_switches_of_attention_are_those_of_the_device(self):
        module = backends
        switches = {
            SDPBackend.FLASH_ATTENTION: (module.flash_sdp_enabled, module.enable_flash_sdp),
            SDPBackend.EFFICIENT_ATTENTION: (
                module.mem_efficient_sdp_enabled,
                module.enable_mem_efficient_sdp,
            ),
            SDPBackend.CUDNN_ATTENTION: (module.cudnn_sdp_enabled, module.enable_cudnn_sdp),
            SDPBackend.MATH: (module.math_sdp_enabled, module.enable_math_sdp),
        }
        for backend, (is_enabled, _) in switches.items():
            with sdpa_kernel(backend):
                self.assertEqual(
                    [question() for question, _ in switches.values()],
                    [one is backend for one in switches],
                )
                self.assertTrue(is_enabled())
        x = torch.randn(1, 2, 4, 8, device=DEVICE_TYPE)
        attention = torch.nn.functional.scaled_dot_product_attention
        with sdpa_kernel(list(switches)):
            for is_enabled, enable in switches.values():
                enable(False)
                self.assertFalse(is_enabled())
            with self.assertRaisesRegex(RuntimeError, "No viable backend"):
                attention(x, x, x)
            module.enable_math_sdp(True)
            attention(x, x, x)

    def test_reductions_of_attention_follow_their_switch(self):
        module = backends
        before = module.fp16_bf16_reduction_math_sdp_allowed()
        try:
            module.allow_fp16_bf16_reduction_math_sdp(not before)
            self.assertEqual(module.fp16_bf16_reduction_math_sdp_allowed(), not before)
        finally:
            module.allow_fp16_bf16_reduction_math_sdp(before)


class TestSmallModules(OpenRegTestCase):
    def test_version_of_nccl_is_one_that_programs_compare(self):
        self.assertGreaterEqual(torch.openreg.nccl.version(), (2, 10))
        self.assertEqual(len(torch.openreg.nccl.version()), 3)
        if DEVICE_TYPE == "cuda":
            self.assertEqual(torch.cuda.nccl.version(), torch.openreg.nccl.version())

    def test_result_without_data_has_shape_dtype_and_strides(self):
        for x in (
            torch.ones(2, 3, device=DEVICE_TYPE).t(),
            torch.ones(0, dtype=torch.complex64),
            torch.ones(4, dtype=torch.int8, device="meta"),
        ):
            expected = torch.ops.openreg.custom_abs(x)
            actual = torch.openreg.meta.custom_abs(x)
            self.assertEqual(actual.device.type, "meta")
            self.assertEqual(
                (actual.shape, actual.dtype, actual.stride()),
                (expected.shape, expected.dtype, expected.stride()),
            )
        with self.assertRaisesRegex(TypeError, "custom_abs: expected a tensor, got 1"):
            torch.openreg.meta.custom_abs(1)


if __name__ == "__main__":
    run_tests()
