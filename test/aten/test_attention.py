"""Scaled dot product attention: under transforms, and the gradient of its bias."""

import torch
import torch.nn.functional as F
from common import (
    DEVICE_TYPE,
    OpenRegTestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.attention import SDPBackend, sdpa_kernel

attention = F.scaled_dot_product_attention


def energy(x):
    return attention(x, x.cos(), x.sin()).square().sum()


def masked_energy(x):
    mask = torch.ones(6, 6, device=x.device).tril().log()
    return attention(x, x.cos(), x.sin(), attn_mask=mask).square().sum()


TRANSFORMS = {
    "grad": lambda f, x: torch.func.grad(f)(x),
    "vjp": lambda f, x: torch.func.vjp(f, x)[1](torch.ones((), device=x.device))[0],
    "jacrev": lambda f, x: torch.func.jacrev(f)(x),
    "vmap": lambda f, x: torch.func.vmap(f)(x),
    "vmap_of_grad": lambda f, x: torch.func.vmap(torch.func.grad(f))(x),
}


class TestAttention(OpenRegTestCase):
    @parametrize("transform", [subtest(one, name=name) for name, one in TRANSFORMS.items()])
    @parametrize("function", [energy, masked_energy], name_fn=lambda one: one.__name__)
    def test_transforms_give_the_cpu_s_bits(self, transform, function):
        torch.manual_seed(0)
        x = torch.randn(3, 2, 4, 6, 8)
        expected = transform(function, x)
        for _ in range(2):
            self.assert_bit_equal(transform(function, x.to(DEVICE_TYPE)), expected)

    @parametrize("bias_shape", [(2, 4, 6, 5), (1, 1, 6, 5), (6, 5), (2, 1, 1, 5)])
    @parametrize("is_causal", [False, True])
    @parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
    def test_gradient_of_the_bias_is_that_of_the_composition(self, bias_shape, is_causal, dtype):
        torch.manual_seed(0)
        size = 5 if is_causal else 6
        query = torch.randn(2, 4, size, 8, dtype=dtype)
        key, value = torch.randn(2, 2, 4, 5, 8, dtype=dtype)
        bias = torch.randn(bias_shape, dtype=dtype)[..., :size, :]
        grad_out = torch.randn(2, 4, size, 8, dtype=dtype)

        wide = [one.double().requires_grad_() for one in (query, key, value, bias)]
        mask = wide[3]
        if is_causal:
            mask = mask + torch.ones(size, 5, dtype=torch.double).tril().log()
        scores = wide[0] @ wide[1].mT / 8**0.5 + mask
        expected = torch.autograd.grad(scores.softmax(-1) @ wide[2], wide, grad_out.double())

        ours = [one.to(DEVICE_TYPE).requires_grad_() for one in (query, key, value, bias)]
        out, *_ = torch.ops.aten._scaled_dot_product_fused_attention_overrideable(
            *ours, is_causal=is_causal
        )
        actual = torch.autograd.grad(out, ours, grad_out.to(DEVICE_TYPE))
        tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.1}[dtype]
        for one, other in zip(actual, expected, strict=True):
            self.assertEqual(one.dtype, dtype)
            self.assertEqual(one.cpu().double(), other, atol=tolerance, rtol=tolerance)

    def test_rows_that_the_bias_masks_wholly_have_no_gradient(self):
        bias = torch.zeros(3, 3)
        bias[1] = -float("inf")
        ours = [torch.randn(1, 1, 3, 4).to(DEVICE_TYPE).requires_grad_() for _ in range(3)]
        ours.append(bias.to(DEVICE_TYPE).requires_grad_())
        out, *_ = torch.ops.aten._scaled_dot_product_fused_attention_overrideable(*ours)
        gradient = torch.autograd.grad(out.nan_to_num().sum(), ours[3])[0]
        self.assertEqual(gradient[1].cpu(), torch.zeros(3))

    @parametrize("has_mask", [False, True])
    @parametrize("backend", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION])
    def test_sizes_that_change_compile_once_more_and_then_no_more(self, has_mask, backend):
        torch._dynamo.reset()
        counter = CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(attention, backend=counter)
        for size in (3, 4, 5, 6):
            query, key, value = torch.randn(3, 1, 2, size, 8)
            mask = torch.randn(size, size) if has_mask else None
            given = [
                None if one is None else one.to(DEVICE_TYPE) for one in (query, key, value, mask)
            ]
            with sdpa_kernel(backend):
                expected = F.scaled_dot_product_attention(query, key, value, mask)
                self.assertEqual(compiled(*given).cpu(), expected)
        self.assertEqual(counter.frame_count, 2)


instantiate_parametrized_tests(TestAttention)

if __name__ == "__main__":
    run_tests()
