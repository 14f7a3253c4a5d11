"""Automatic mixed precision: which type each kind of operator runs in."""

import torch
from common import OpenRegTestCase, instantiate_parametrized_tests, parametrize, run_tests

LOWER_TYPES = [torch.bfloat16, torch.float16]


class TestAutocast(OpenRegTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.x = torch.randn(4, 4, device="openreg")

    @parametrize("dtype", LOWER_TYPES)
    def test_matmul_runs_in_the_lower_precision_with_the_bits_of_the_cpu(self, dtype):
        with torch.autocast("openreg", dtype=dtype):
            actual = self.x @ self.x
        lower = self.x.cpu().to(dtype)
        self.assertEqual(actual.dtype, dtype)
        self.assert_bit_equal(actual, lower @ lower)

    @parametrize("dtype", LOWER_TYPES)
    def test_softmax_runs_in_float32(self, dtype):
        with torch.autocast("openreg", dtype=dtype):
            self.assertEqual(self.x.to(dtype).softmax(0).dtype, torch.float32)

    def test_mixed_inputs_are_promoted_to_the_widest(self):
        with torch.autocast("openreg", dtype=torch.bfloat16):
            result = torch.cat([self.x, self.x.bfloat16()])
        self.assertEqual(result.dtype, torch.float32)

    def test_other_operators_keep_their_type(self):
        with torch.autocast("openreg", dtype=torch.bfloat16):
            self.assertEqual((self.x + 1).dtype, torch.float32)

    def test_disabled_region_keeps_the_type(self):
        with (
            torch.autocast("openreg", dtype=torch.bfloat16),
            torch.autocast("openreg", enabled=False),
        ):
            self.assertEqual((self.x @ self.x).dtype, torch.float32)

    def test_binary_cross_entropy_is_refused(self):
        p = self.x.sigmoid()
        with (
            torch.autocast("openreg", dtype=torch.bfloat16),
            self.assertRaisesRegex(RuntimeError, "unsafe to autocast"),
        ):
            torch.nn.functional.binary_cross_entropy(p, p.round())


instantiate_parametrized_tests(TestAutocast)

if __name__ == "__main__":
    run_tests()
