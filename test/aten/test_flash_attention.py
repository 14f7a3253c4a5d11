"""``_flash_attention_forward`` and its backward, as torch.nn.attention.varlen calls them."""

import itertools
import math

import torch
from common import (
    DEVICE_TYPE,
    OpenRegTestCase,
    StreamGate,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)

FORWARD = torch.ops.aten._flash_attention_forward
ON_CPU = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
BACKWARD_ON_CPU = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
# CUDA's flash attention has 16 bits.
DTYPES = (torch.float16, torch.bfloat16)
if DEVICE_TYPE == "openreg":
    DTYPES = (torch.float32, *DTYPES)
WINDOWS = [
    subtest((False, None, None), name="all"),
    subtest((True, -1, -1), name="causal"),
    subtest((False, 2, 1), name="window"),
    subtest((True, 2, None), name="causal_window"),
    subtest((False, 0, -1), name="from_its_own_key"),
]


def drawn(*shape, dtype=DTYPES[0]):
    return torch.randn(*shape).to(dtype)


def moved(*tensors):
    return [one if one is None else one.to(DEVICE_TYPE) for one in tensors]


def bounds(*lengths):
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)


def mask_of(queries, keys, is_causal, before, behind):
    """The keys that a query attends to; the last query and the last key are aligned."""
    distance = torch.arange(keys)[None] - torch.arange(queries)[:, None] - (keys - queries)
    seen = torch.ones(queries, keys, dtype=torch.bool)
    if before is not None and before >= 0:
        seen &= distance >= -before
    if is_causal:
        seen &= distance <= 0
    elif behind is not None and behind >= 0:
        seen &= distance <= behind
    return seen


def reference(q, k, v, window):
    """By its definition, in float64; of [batch, length, heads, numbers]."""
    seen = mask_of(q.size(1), k.size(1), *window)
    groups = q.size(2) // k.size(2)
    q, k, v = (one.double().transpose(1, 2) for one in (q, k, v))
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = q @ k.mT / math.sqrt(q.size(-1))
    scores = scores.masked_fill(~seen, -math.inf)
    weights = scores.softmax(-1).masked_fill(~seen.any(1)[:, None], 0)
    return (weights @ v).transpose(1, 2)


class TestFlashAttention(OpenRegTestCase):
    @parametrize("dtype", DTYPES)
    @parametrize("is_causal", [False, True])
    def test_result_is_that_of_the_cpu_s_flash_attention(self, dtype, is_causal):
        q, k, v = (drawn(2, 7, 3, 16, dtype=dtype) for _ in range(3))
        sizes = (7, 7, 0.0, is_causal, False)
        output, sums, *_ = FORWARD(*moved(q, k, v), None, None, *sizes, scale=0.3)
        expected, expected_sums = ON_CPU(
            *(one.transpose(1, 2) for one in (q, k, v)), 0.0, is_causal, scale=0.3
        )
        self.assert_bit_equal(output, expected.transpose(1, 2))
        self.assert_bit_equal(sums, expected_sums)
        self.assertEqual((output.dtype, sums.dtype), (dtype, torch.float32))

    @parametrize("dtype", DTYPES)
    def test_gradients_are_those_of_the_cpu_s_flash_attention(self, dtype):
        q, k, v, direction = (drawn(2, 7, 3, 16, dtype=dtype) for _ in range(4))
        inputs = [one.requires_grad_() for one in moved(q, k, v)]
        output = FORWARD(*inputs, None, None, 7, 7, 0.0, True, False)[0]
        actual = torch.autograd.grad(output, inputs, direction.to(DEVICE_TYPE))
        q, k, v, direction = (one.transpose(1, 2) for one in (q, k, v, direction))
        out, sums = ON_CPU(q, k, v, 0.0, True)
        expected = BACKWARD_ON_CPU(direction, q, k, v, out, sums, 0.0, True)
        for one, other in zip(actual, expected, strict=True):
            self.assert_bit_equal(one, other.transpose(1, 2))

    @parametrize("window", WINDOWS)
    @parametrize("keys", [9, 5, 3])
    @parametrize("key_heads", [4, 2])
    def test_windows_and_groups_of_heads(self, window, keys, key_heads):
        q, k, v = drawn(2, 5, 4, 8), drawn(2, keys, key_heads, 8), drawn(2, keys, key_heads, 8)
        is_causal, before, behind = window
        results = []
        for device in ("cpu", DEVICE_TYPE):
            inputs = [one.to(device).requires_grad_() for one in (q, k, v)]
            if device == "cpu":
                output = reference(*inputs, window).to(q.dtype)
            else:
                output = FORWARD(
                    *inputs,
                    *(None, None, 5, keys, 0.0, is_causal, False),
                    window_size_left=before,
                    window_size_right=behind,
                )[0]
            direction = torch.cos(torch.arange(output.numel())).view(output.shape).to(output)
            gradients = torch.autograd.grad(output, inputs, direction)
            results.append([one.detach().cpu() for one in (output, *gradients)])
        tolerance = 1e-5 if q.dtype == torch.float32 else 1e-2
        self.assertEqual(*results, atol=tolerance, rtol=tolerance)

    def test_query_that_sees_no_key_gives_zeros(self):
        q, k, v = drawn(1, 4, 1, 8), drawn(1, 2, 1, 8), drawn(1, 2, 1, 8)
        output, sums, *_ = FORWARD(*moved(q, k, v), None, None, 4, 2, 0.0, True, False)
        self.assertEqual(output[0, :2].cpu(), torch.zeros(2, 1, 8, dtype=output.dtype))
        self.assertEqual(sums[0, 0].cpu().isinf().tolist(), [True, True, False, False])

    @parametrize("is_causal", [False, True])
    def test_sequences_of_different_lengths_are_independent(self, is_causal):
        of_queries, of_keys = (3, 0, 5, 2), (3, 4, 5, 0)
        q, k, v = drawn(10, 4, 8), drawn(12, 2, 8), drawn(12, 2, 8)
        ends = bounds(*of_queries), bounds(*of_keys)
        inputs = [one.requires_grad_() for one in moved(q, k, v)]
        output, sums, *_ = FORWARD(*inputs, *moved(*ends), 5, 5, 0.0, is_causal, False)
        self.assertEqual(sums.shape, (4, 10))
        direction = drawn(10, 4, 8).to(DEVICE_TYPE)
        gradients = torch.autograd.grad(output, inputs, direction)
        for i in range(4):
            a, b = slice(*ends[0][i : i + 2].tolist()), slice(*ends[1][i : i + 2].tolist())
            parts = [inputs[0][a], inputs[1][b], inputs[2][b]]
            parts = [one.detach()[None].requires_grad_() for one in parts]
            sizes = (of_queries[i], of_keys[i], 0.0, is_causal, False)
            part, part_sums, *_ = FORWARD(*parts, None, None, *sizes)
            self.assert_bit_equal(output[a].detach(), part[0].detach())
            self.assert_bit_equal(sums[:, a], part_sums[0])
            expected = torch.autograd.grad(part, parts, direction[a][None])
            for one, other, place in zip(gradients, expected, (a, b, b), strict=True):
                self.assert_bit_equal(one[place], other[0])

    def test_varlen_attn_runs(self):
        from torch.nn.attention.varlen import varlen_attn

        q, k, v = (drawn(8, 2, 16) for _ in range(3))
        ends = bounds(3, 5)
        inputs = [one.requires_grad_() for one in moved(q, k, v)]
        output = varlen_attn(*inputs, *moved(ends, ends), 5, 5, window_size=(-1, 0))
        output.sum().backward()
        expected = torch.cat(
            [
                ON_CPU(*(one[None, part].transpose(1, 2) for one in (q, k, v)), 0.0, True)[0]
                .transpose(1, 2)
                .squeeze(0)
                for part in (slice(0, 3), slice(3, 8))
            ]
        )
        self.assert_bit_equal(output.detach(), expected)
        self.assertTrue(all(one.grad is not None for one in inputs))

    def test_form_that_writes_its_result(self):
        q, k, v = moved(*(drawn(1, 4, 2, 8) for _ in range(3)))
        out = torch.empty_like(q)
        sizes = (None, None, 4, 4, 0.0, False, False)
        sums = torch.ops.aten._flash_attention_forward_no_dropout_inplace(out, q, k, v, *sizes)
        expected = FORWARD(q, k, v, *sizes)
        self.assert_bit_equal(out, expected[0])
        self.assert_bit_equal(sums, expected[1])

    def test_first_call_does_not_wait_and_reads_lengths_late(self):
        q, k, v = moved(*(drawn(6, 2, 8) for _ in range(3)))
        ends = moved(bounds(2, 1))[0]
        with StreamGate():
            ends[2] += 3
            output = FORWARD(q, k, v, ends, ends, 4, 4, 0.0, False, False)[0]
        expected = FORWARD(q, k, v, *moved(bounds(2, 4), bounds(2, 4)), 4, 4, 0.0, False, False)[0]
        self.assert_bit_equal(output, expected)

    def test_lengths_beyond_the_tensor_are_an_error_of_the_stream(self):
        q, k, v = moved(*(drawn(6, 2, 8) for _ in range(3)))
        ends = moved(bounds(2, 7))[0]
        FORWARD(q, k, v, ends, ends, 7, 7, 0.0, False, False)
        with self.assertRaisesRegex(RuntimeError, "ascend from 0 to 6, got 9"):
            torch.accelerator.synchronize()

    def test_what_the_cpu_has_not_is_refused(self):
        q, k, v = moved(*(drawn(1, 4, 2, 8) for _ in range(3)))
        number = torch.zeros(2, device=DEVICE_TYPE)
        for options in (
            {"alibi_slopes": number},
            {"seqused_k": number.int()},
            {"block_table": number.int()},
        ):
            with self.assertRaisesRegex(NotImplementedError, "_flash_attention_forward: expected"):
                FORWARD(q, k, v, None, None, 4, 4, 0.0, False, False, **options)

    def test_probabilities_are_given_with_dropout_only(self):
        q, k, v = moved(*(drawn(1, 4, 2, 8) for _ in range(3)))
        with self.assertRaisesRegex(RuntimeError, "only supported when p_dropout > 0.0"):
            FORWARD(q, k, v, None, None, 4, 4, 0.0, False, True)

    @parametrize("has_lengths", [False, True])
    def test_dropout_drops_what_the_mask_says(self, has_lengths):
        q, k, v = drawn(8, 2, 16), drawn(8, 2, 16), drawn(8, 2, 16)
        direction = drawn(8, 2, 16)
        lengths = (3, 5) if has_lengths else (8,)
        inputs = [one.requires_grad_() for one in moved(q, k, v)]
        given = inputs if has_lengths else [one[None] for one in inputs]
        ends = moved(bounds(*lengths)) * 2 if has_lengths else (None, None)
        output, *_, mask = FORWARD(*given, *ends, 8, 8, 0.25, False, True)
        actual = torch.autograd.grad(output.reshape(8, 2, 16), inputs, direction.to(DEVICE_TYPE))

        self.assertEqual(mask.shape, (len(lengths), 2, 128, 128))
        leaves = [one.double().requires_grad_() for one in (q, k, v)]
        parts, start = [], 0
        for i, length in enumerate(lengths):
            one_q, one_k, one_v = (x[start : start + length].transpose(0, 1) for x in leaves)
            weights = (one_q @ one_k.mT / 4).softmax(-1)
            kept = mask[i, :, :length, :length].cpu() >= 0
            self.assertTrue(0 < kept.sum() < kept.numel())
            parts.append(((weights * kept / 0.75) @ one_v).transpose(0, 1))
            start += length
        expected = torch.cat(parts)
        gradients = torch.autograd.grad(expected, leaves, direction.double())
        given = [output.reshape(8, 2, 16).detach(), *actual]
        for one, other in zip(given, [expected.detach(), *gradients], strict=True):
            self.assertEqual(one.cpu().double(), other, atol=1e-2, rtol=1e-2)

    def test_wrong_arguments_are_errors_of_the_call(self):
        q, k, v = moved(*(drawn(1, 4, 2, 8) for _ in range(3)))
        ends = moved(bounds(4))[0]
        for arguments in (
            (q[0], k[0], v[0], None, None),
            (q, k.double(), v, None, None),
            (q, k[:, :3], v, None, None),
            (q, k.repeat(1, 1, 2, 1), v.repeat(1, 1, 2, 1), None, None),
            (q[0], k[0], v[0], ends, None),
            (q[0], k[0], v[0], ends.long(), ends.long()),
            (q, k.cpu(), v, None, None),
        ):
            with self.assertRaisesRegex(RuntimeError, "expected|Expected"):
                FORWARD(*arguments, 4, 4, 0.0, False, False)


instantiate_parametrized_tests(TestFlashAttention)

if __name__ == "__main__":
    run_tests()
