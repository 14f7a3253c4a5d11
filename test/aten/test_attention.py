"""Scaled dot product attention: under transforms, and the gradient of its bias."""

import torch
import torch.nn.functional as F
from common import (
    DEVICE_TYPE,
    OpenRegTestCase,
    StreamGate,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.attention import SDPBackend, sdpa_kernel

attention = F.scaled_dot_product_attention

# A fused algorithm that has float32 and masks.
FUSED = SDPBackend.EFFICIENT_ATTENTION if DEVICE_TYPE == "cuda" else SDPBackend.FLASH_ATTENTION

# Those that have no name of an algorithm in their refusals.
OPERATORS = ["_scaled_dot_product_fused_attention_overrideable"]
if DEVICE_TYPE == "cuda":
    OPERATORS.append("_scaled_dot_product_cudnn_attention")


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
        # Under vmap, torch batches CUDA's operators, and composes the CPU's.
        batching = [TRANSFORMS[name] for name in ("vmap", "jacrev", "vmap_of_grad")]
        for _ in range(2):
            actual = transform(function, x.to(DEVICE_TYPE))
            if DEVICE_TYPE == "cuda" and transform in batching:
                self.assertEqual(actual.cpu(), expected)
            else:
                self.assert_bit_equal(actual, expected)

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

    @parametrize("name", OPERATORS)
    def test_narrow_types_are_refused_at_the_call(self, name):
        query = torch.zeros(1, 2, 4, 8).to(torch.float8_e5m2).to(DEVICE_TYPE)
        options = (None, False) if "cudnn" in name else ()
        with self.assertRaisesRegex(RuntimeError, "of 16 bits or more, got Float8_e5m2"):
            getattr(torch.ops.aten, name)(query, query, query, *options)
        torch.accelerator.synchronize()

    @parametrize("has_mask", [False, True])
    @parametrize("backend", [SDPBackend.MATH, FUSED])
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
                actual = compiled(*given)
            self.assertEqual(actual.cpu(), attention(query, key, value, mask))
        self.assertEqual(counter.frame_count, 2)

    @parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_flash_attention_has_dropout(self, dtype):
        given = [torch.randn(2, 3, 5, 8, dtype=dtype, device=DEVICE_TYPE) for _ in range(3)]
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            self.check_dropout(*given)

    @parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
    @parametrize("mask", [None, "causal", "constant", "learned"])
    def test_efficient_attention_has_dropout(self, dtype, mask):
        given = [torch.randn(2, 3, 5, 8, dtype=dtype, device=DEVICE_TYPE) for _ in range(3)]
        bias = None
        if mask in ("constant", "learned"):
            bias = torch.randn(5, 5, dtype=dtype, device=DEVICE_TYPE)
            bias.requires_grad_(mask == "learned")
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            self.check_dropout(*given, bias=bias, is_causal=mask == "causal")

    def check_dropout(self, query, key, value, bias=None, is_causal=False):
        """Compares with the formula; the values of a unit matrix show what was kept."""
        options = {"attn_mask": bias, "dropout_p": 0.25, "is_causal": is_causal}
        torch.manual_seed(3)
        unit = torch.eye(query.size(2), query.size(3), dtype=query.dtype, device=DEVICE_TYPE)
        unit = unit.expand(*query.shape[:2], -1, -1).contiguous()
        kept = (attention(query, key, unit, **options)[..., : key.size(2)] != 0).cpu()
        torch.manual_seed(3)
        leaves = [one.requires_grad_() for one in (query, key, value)]
        leaves += [bias] if bias is not None and bias.requires_grad else []
        output = attention(query, key, value, **options)
        direction = torch.randn(output.shape, dtype=output.dtype)
        actual = torch.autograd.grad(output, leaves, direction.to(DEVICE_TYPE))

        wide = [one.detach().cpu().double().requires_grad_() for one in leaves]
        scores = wide[0] @ wide[1].mT / 8**0.5
        if bias is not None:
            scores = scores + (wide[3] if len(wide) > 3 else bias.cpu().double())
        if is_causal:
            scores = scores + torch.ones(5, 5, dtype=torch.double).tril().log()
            kept = kept | torch.ones(5, 5, dtype=torch.bool).triu(1)
        self.assertTrue(0 < kept.sum() < kept.numel())
        expected = (scores.softmax(-1) * kept / 0.75) @ wide[2]
        gradients = torch.autograd.grad(expected, wide, direction.double())
        tolerance = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 0.1}[query.dtype]
        for one, other in zip([output, *actual], [expected, *gradients], strict=True):
            self.assertEqual(
                one.detach().cpu().double(), other.detach(), atol=tolerance, rtol=tolerance
            )

    @parametrize("shape", [(5, 7), (1, 1, 5, 7), (2, 1, 5, 7), (2, 3, 5, 7)])
    @parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
    def test_efficient_attention_has_the_gradient_of_a_mask(self, shape, dtype):
        host = [torch.randn(2, 3, n, 8, dtype=dtype) for n in (5, 7, 7)]
        host = [one.requires_grad_() for one in (*host, torch.randn(shape, dtype=dtype))]
        ours = [one.detach().to(DEVICE_TYPE).requires_grad_() for one in host]
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            output = attention(*ours)
        direction = torch.randn(output.shape, dtype=dtype)
        expected = attention(*host)  # the CPU composes it
        tolerance = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 0.1}[dtype]
        self.assert_bit_equal(output.detach(), expected.detach())
        for one, other in zip(
            torch.autograd.grad(output, ours, direction.to(DEVICE_TYPE)),
            torch.autograd.grad(expected, host, direction),
            strict=True,
        ):
            self.assertEqual(one.cpu(), other, atol=tolerance, rtol=tolerance)

    def test_dropout_is_drawn_in_stream_order_without_waiting(self):
        given = [torch.randn(2, 3, 5, 8, device=DEVICE_TYPE).half() for _ in range(3)]
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            attention(*given, dropout_p=0.5)  # the kernels' first calls
            torch.manual_seed(1)
            torch.rand(4, device=DEVICE_TYPE)
            expected = attention(*given, dropout_p=0.5)
            torch.manual_seed(1)
            with StreamGate():
                torch.rand(4, device=DEVICE_TYPE)
                leaf = given[0].detach().requires_grad_()
                actual = attention(leaf, *given[1:], dropout_p=0.5)
                actual.sum().backward()
        self.assert_bit_equal(actual.detach(), expected)
        self.assertNotEqual(attention(*given).cpu(), expected.cpu())

    def test_backward_uses_the_noise_of_its_forward(self):
        given = [torch.randn(1, 1, 4, 8, device=DEVICE_TYPE).half() for _ in range(3)]
        leaf = given[2].requires_grad_()
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            first = attention(*given, dropout_p=0.5)
            attention(*given, dropout_p=0.5)
        # The output is linear in the values.
        (gradient,) = torch.autograd.grad(first.sum(), leaf)
        self.assertEqual((gradient * leaf).sum().float(), first.sum().float(), atol=0.02, rtol=0.02)


instantiate_parametrized_tests(TestAttention)

if __name__ == "__main__":
    run_tests()
