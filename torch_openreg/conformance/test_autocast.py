"""Autocast: which operators run in the lower precision, and which in float32."""

import torch

from torch_openreg.conformance.cases import ConformanceTestCase, needs, parametrize
from torch_openreg.conformance.cases import instantiate_parametrized_tests as instantiate
from torch_openreg.conformance.target import target

DEVICE = target().device


@needs("autocast")
class TestAutocast(ConformanceTestCase):
    @parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_products_run_in_the_lower_precision(self, dtype: torch.dtype) -> None:
        x, w = torch.randn(4, 8, device=DEVICE), torch.randn(8, 8, device=DEVICE)
        with torch.autocast(DEVICE.type, dtype=dtype):
            self.assertEqual((x @ w).dtype, dtype)
            self.assertEqual(torch.nn.functional.linear(x, w).dtype, dtype)

    def test_what_needs_range_runs_in_float32(self) -> None:
        x = torch.randn(4, 8, device=DEVICE).bfloat16()
        with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
            self.assertEqual(torch.nn.functional.softmax(x, -1).dtype, torch.float32)
            self.assertEqual(x.exp().dtype, torch.float32)

    def test_arguments_of_two_precisions_get_the_wider_one(self) -> None:
        x, y = torch.randn(4, device=DEVICE), torch.randn(4, device=DEVICE).bfloat16()
        with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
            self.assertEqual(torch.cat([x, y]).dtype, torch.float32)

    def test_block_that_is_switched_off_leaves_dtypes_alone(self) -> None:
        x = torch.randn(4, 4, device=DEVICE)
        with torch.autocast(DEVICE.type), torch.autocast(DEVICE.type, enabled=False):
            self.assertEqual((x @ x).dtype, torch.float32)
        self.assertEqual((x @ x).dtype, torch.float32)

    def test_gradients_have_the_parameters_dtype(self) -> None:
        w = torch.randn(4, 4, device=DEVICE, requires_grad=True)
        with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
            loss = (torch.ones(2, 4, device=DEVICE) @ w).float().sum()
        loss.backward()
        assert w.grad is not None
        self.assertEqual(w.grad.dtype, torch.float32)
        self.assert_bit_equal(w.grad, torch.full((4, 4), 2.0))

    def test_scaler_skips_a_step_with_infinite_gradients(self) -> None:
        w = torch.nn.Parameter(torch.ones(3, device=DEVICE))
        optimizer = torch.optim.SGD([w], lr=1.0)
        scaler = torch.amp.GradScaler(DEVICE.type, init_scale=4.0)
        for factor, expected in ((float("inf"), 1.0), (1.0, 0.0)):
            optimizer.zero_grad()
            scaler.scale((w * factor).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            self.assert_bit_equal(w.detach(), torch.full((3,), expected))


instantiate(TestAutocast)
