"""Attention as on CUDA: which algorithm runs, what is refused, and what its operators return."""

import itertools
import re
import warnings
from typing import NamedTuple

import torch
import torch.nn.functional as F
from common import (
    OpenRegTestCase,
    StreamGate,
    instantiate_parametrized_tests,
    parametrize,
    run_child,
    run_tests,
    subtest,
)
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.backends.cuda import (
    SDPAParams,
    can_use_cudnn_attention,
    can_use_efficient_attention,
    can_use_flash_attention,
)
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from torch_openreg._torch_release import HAS_SHARED_HEADS_IN_ATTENTION

aten = torch.ops.aten
attention = F.scaled_dot_product_attention

FLASH, EFFICIENT = SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION
CUDNN, MATH = SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH
HALF = (torch.float16, torch.bfloat16)


class Case(NamedTuple):
    """A call: all that the choice depends on."""

    dtype: torch.dtype = torch.float16
    size: int = 8
    value_size: int | None = None
    keys: int = 6
    heads_of_keys: int = 2
    has_mask: bool = False
    needs_gradient: bool = False
    dropout: float = 0.0
    is_causal: bool = False

    def tensors(self, device="cuda"):
        def make(heads, length, size):
            x = torch.randn(2, heads, length, size, device=device).to(self.dtype)
            return x.requires_grad_(self.needs_gradient)

        heads = self.heads_of_keys
        query, key = make(2, 6, self.size), make(heads, self.keys, self.size)
        value = make(heads, self.keys, self.value_size or self.size)
        mask = torch.randn(6, self.keys, device=device).to(self.dtype) if self.has_mask else None
        return query, key, value, mask

    def arguments(self):
        return *self.tensors(), self.dropout, self.is_causal

    @property
    def options(self):
        return {"enable_gqa": self.heads_of_keys != 2}

    def refused_by_flash(self):
        if self.has_mask:
            return "Flash Attention does not support non-null attn_mask"
        if self.value_size is not None or self.size > 256:
            return "the same last dimension and to be less than or equal to 256"
        if self.is_causal and self.keys != 6:
            return "does not support the is_causal flag when seqlen_q != seqlen_k"
        if self.dtype not in HALF:
            return r"dtype: \{Half, BFloat16\}"
        return None

    def refused_by_efficient(self):
        alignment = 8 if self.dtype in HALF else 4
        if self.size % alignment or (self.value_size or 0) % alignment:
            return f"last dimension of inputs to be divisible by {alignment}"
        if self.heads_of_keys != 2 and not HAS_SHARED_HEADS_IN_ATTENTION:
            return "query, key and value to have the same num_heads"
        if self.dtype not in (*HALF, torch.float32):
            return r"dtype: \{Half, Float, BFloat16\}"
        return None

    def refused_by_cudnn(self):
        if self.dtype not in HALF:
            return r"dtype: \{Half, BFloat16\}"
        if self.dropout % 0.0625:
            return "cuDNN dropout probability resolution is limited to 1/16"
        if max(self.size, self.value_size or 0) > 128:
            return "head_dim should be no more than 128"
        if self.size % 8 or (self.value_size or 0) % 8:
            return "head_dim should be a multiple of 8"
        return None

    def refused(self, backend):
        return {
            FLASH: self.refused_by_flash,
            EFFICIENT: self.refused_by_efficient,
            CUDNN: self.refused_by_cudnn,
        }[backend]()

    def expected(self):
        fused = (FLASH, EFFICIENT)
        return next((one for one in fused if self.refused(one) is None), MATH)


CASES = [
    Case(dtype, size, dropout=dropout, has_mask=mask, needs_gradient=gradient)
    for dtype, size, dropout, mask, gradient in itertools.product(
        (*HALF, torch.float32, torch.float64),
        (4, 8, 12, 128, 136, 256, 264),
        (0.0, 0.3, 0.5),
        (False, True),
        (False, True),
    )
] + [
    Case(dtype, **options)
    for dtype in (*HALF, torch.float32, torch.float64)
    for options in (
        {"is_causal": True},
        {"is_causal": True, "keys": 5},
        {"value_size": 16},
        {"value_size": 12},
        {"heads_of_keys": 1},
    )
]


def texts_of(caught):
    return [str(one.message).partition(" (Triggered internally")[0] for one in caught]


def messages_of(function):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = function()
    return result, texts_of(caught)


class TestChoice(OpenRegTestCase):
    def test_is_that_of_cuda_for_each_call(self):
        for case in CASES:
            choice = torch._fused_sdp_choice(*case.arguments(), **case.options)
            self.assertEqual(SDPBackend(choice), case.expected(), msg=str(case))

    @parametrize("backend", [subtest(one, name=one.name) for one in (FLASH, EFFICIENT, CUDNN)])
    def test_one_algorithm_alone_runs_or_gives_cuda_s_reasons(self, backend):
        for case in CASES:
            reason = case.refused(backend)
            arguments = case.arguments()
            with sdpa_kernel(backend), warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                if reason is None:
                    choice = torch._fused_sdp_choice(*arguments, **case.options)
                    self.assertEqual(SDPBackend(choice), backend, msg=str(case))
                    continue
                with self.assertRaisesRegex(
                    RuntimeError, r"^No available kernel\. Aborting execution\."
                ):
                    attention(*arguments, **case.options)
            messages = texts_of(caught)
            for title in ("Memory efficient", "Flash attention", "cuDNN attention"):
                self.assertIn(f"{title} kernel not used because:", messages)
            self.assertTrue(any(re.search(reason, one) for one in messages), f"{case} {messages}")
            self.assertTrue(all(issubclass(one.category, UserWarning) for one in caught))

    @parametrize(
        "function, backend",
        [
            subtest((can_use_flash_attention, FLASH), name="flash"),
            subtest((can_use_efficient_attention, EFFICIENT), name="efficient"),
            subtest((can_use_cudnn_attention, CUDNN), name="cudnn"),
        ],
    )
    def test_torch_backends_cuda_answers_with_reasons(self, function, backend):
        for case in CASES:
            params = SDPAParams(*case.arguments(), case.options["enable_gqa"])
            reason = case.refused(backend)
            answer, messages = messages_of(lambda params=params: function(params, True))
            self.assertEqual(answer, reason is None, msg=str(case))
            if reason is None:
                self.assertEqual(messages, [])
            else:
                self.assertRegex(messages[-1], reason)
            self.assertEqual(messages_of(lambda params=params: function(params)), (answer, []))

    def test_tensors_of_the_cpu_are_named(self):
        host = Case().tensors(device="cpu")
        for function in (can_use_flash_attention, can_use_efficient_attention):
            answer, messages = messages_of(
                lambda function=function: function(SDPAParams(*host, 0.0, False, False), True)
            )
            self.assertFalse(answer)
            self.assertRegex(messages[0], "All tensors need to be on cuda device. Got query on")

    def test_switches_and_the_order_are_torch_s(self):
        arguments = Case().arguments()
        with sdpa_kernel([MATH, EFFICIENT]):
            self.assertEqual(torch._fused_sdp_choice(*arguments), EFFICIENT.value)
        with sdpa_kernel([MATH, EFFICIENT, FLASH], set_priority=True):
            self.assertEqual(torch._fused_sdp_choice(*arguments), MATH.value)
        with sdpa_kernel([CUDNN, FLASH], set_priority=True):
            self.assertEqual(torch._fused_sdp_choice(*arguments), CUDNN.value)
        with (
            sdpa_kernel([SDPBackend.OVERRIDEABLE]),
            self.assertRaisesRegex(RuntimeError, "No viable backend for scaled_dot_product_att"),
        ):
            attention(*arguments)

    def test_cudnn_is_not_deterministic(self):
        params = SDPAParams(*Case().arguments(), False)
        self.assertTrue(can_use_cudnn_attention(params))
        torch.use_deterministic_algorithms(True)
        try:
            answer, messages = messages_of(lambda: can_use_cudnn_attention(params, True))
        finally:
            torch.use_deterministic_algorithms(False)
        self.assertFalse(answer)
        self.assertEqual(messages, ["cuDNN SDPA is not deterministic."])

    def test_depends_on_the_capability(self):
        program = """
            import torch
            def choice(dtype, size=8, gradient=False, dropout=0.0):
                x = torch.ones(1, 1, 4, size, dtype=dtype, device="cuda", requires_grad=gradient)
                return torch._fused_sdp_choice(x, x, x, None, dropout)
            print(choice(torch.half), choice(torch.bfloat16), choice(torch.float),
                  choice(torch.half, 4), choice(torch.half, 200, True),
                  choice(torch.half, 256, True), choice(torch.half, 256, True, 0.5))
            x = torch.ones(1, 1, 4, 8, dtype=torch.half, device="cuda")
            torch.nn.functional.scaled_dot_product_attention(x, x, x)
        """
        for capability, expected in {
            "7.0": "2 0 2 0 2 2 2",
            "8.0": "1 1 2 1 1 1 1",
            "8.6": "1 1 2 1 2 1 2",
            "9.0": "3 3 2 1 1 1 1",
            "12.0": "1 1 2 1 2 1 2",
        }.items():
            output = run_child(program, {"OPENREG_CUDA_CAPABILITY": capability})
            self.assertEqual(output.split("\n")[-2], expected, msg=capability)


class Names(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if "attention" in str(function):
            self.names.append(str(function))
        return function(*args, **(kwargs or {}))


OPERATORS = {
    FLASH: "_scaled_dot_product_flash_attention",
    EFFICIENT: "_scaled_dot_product_efficient_attention",
    CUDNN: "_scaled_dot_product_cudnn_attention",
}
FLASH_STATE = [(torch.uint64, (2,)), (torch.uint64, ())]
OTHER_STATE = [(torch.int64, ()), (torch.int64, ())]
FUSED = [subtest(one, name=one.name) for one in OPERATORS]


def inputs(dtype=torch.float16, **options):
    torch.manual_seed(0)
    return [torch.randn(2, 2, 6, 8, dtype=dtype, device="cuda", **options) for _ in range(3)]


class TestOperators(OpenRegTestCase):
    @parametrize("backend", FUSED)
    @parametrize("is_causal", [False, True])
    def test_results_have_the_cpu_s_bits(self, backend, is_causal):
        ours = inputs(requires_grad=True)
        host = [one.detach().cpu().requires_grad_() for one in ours]
        with sdpa_kernel(backend):
            actual = attention(*ours, is_causal=is_causal)
        expected = attention(*host, is_causal=is_causal)
        self.assert_bit_equal(actual.detach(), expected.detach())
        direction = torch.randn_like(expected)
        for one, other in zip(
            torch.autograd.grad(actual, ours, direction.cuda()),
            torch.autograd.grad(expected, host, direction),
            strict=True,
        ):
            self.assert_bit_equal(one, other)

    def test_composition_has_the_cpu_s_bits(self):
        ours = inputs()
        with sdpa_kernel(MATH):
            expected = attention(*[one.cpu() for one in ours])
            self.assert_bit_equal(attention(*ours), expected)

    @parametrize("backend", FUSED)
    def test_dispatch_modes_see_cuda_s_names(self, backend):
        with sdpa_kernel(backend), Names() as mode:
            attention(*inputs(requires_grad=True)).sum().backward()
        name = f"aten.{OPERATORS[backend]}"
        self.assertEqual(mode.names, [f"{name}.default", f"{name}_backward.default"])

    def test_profiles_have_cuda_s_names(self):
        with torch.profiler.profile() as profile:
            attention(*inputs(requires_grad=True)).sum().backward()
        names = {event.key for event in profile.key_averages()}
        name = "aten::_scaled_dot_product_flash_attention"
        self.assertLessEqual({name, f"{name}_backward"}, names)

    def test_selective_checkpoints_keep_it_by_its_name(self):
        from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

        saved = [aten._scaled_dot_product_flash_attention.default]

        def run(*leaves):
            return attention(*(one.cos() for one in leaves), dropout_p=0.5)

        ours = inputs(requires_grad=True)
        with Names() as mode:
            output = checkpoint(
                run,
                *ours,
                use_reentrant=False,
                context_fn=lambda: create_selective_checkpoint_contexts(saved),
            )
            actual = torch.autograd.grad(output.sum(), ours)
        self.assertEqual(len(mode.names), 2)  # forward and backward; it was not computed again
        torch.manual_seed(0)
        [torch.randn(2, 2, 6, 8, device="cuda") for _ in range(3)]  # as inputs() draws
        expected = torch.autograd.grad(run(*ours).sum(), ours)
        for one, other in zip(actual, expected, strict=True):
            self.assert_bit_equal(one, other)

    @parametrize("dropout", [0.0, 0.5])
    @parametrize("layout", ["heads_first", "length_first", "expanded"])
    @parametrize("backend", FUSED)
    def test_results_have_the_metadata_of_torch_s_functions(self, backend, layout, dropout):
        def tensors():
            shape = {"heads_first": (2, 3, 9, 16), "length_first": (2, 9, 3, 16)}
            x = [torch.randn(shape.get(layout, (1, 3, 9, 16)), device="cuda") for _ in range(3)]
            x = [one.half() for one in x]
            if layout == "length_first":
                return [one.transpose(1, 2) for one in x]
            return [one.expand(2, -1, -1, -1) for one in x]

        def run():
            given = tensors()
            bias = torch.zeros(2, 3, 9, 16, device="cuda").half()[..., :9]
            if backend is FLASH:
                results = aten._scaled_dot_product_flash_attention(*given, dropout)
                output, sums, cum_q, cum_k, max_q, max_k, seed, offset, _ = results
                lengths = (cum_q, cum_k, max_q, max_k)
                gradients = aten._scaled_dot_product_flash_attention_backward(
                    output, *given, output, sums, *lengths, dropout, False, seed, offset
                )
            elif backend is EFFICIENT:
                results = aten._scaled_dot_product_efficient_attention(*given, bias, True, dropout)
                gradients = aten._scaled_dot_product_efficient_attention_backward(
                    results[0], *given, bias, *results, dropout, [True] * 4
                )
            else:
                results = aten._scaled_dot_product_cudnn_attention(*given, bias, True, dropout)
                output, sums, cum_q, cum_k, max_q, max_k, seed, offset, _ = results
                lengths = (cum_q, cum_k, max_q, max_k)
                gradients = aten._scaled_dot_product_cudnn_attention_backward(
                    output, *given, output, sums, seed, offset, bias, *lengths, dropout, False
                )
            return results, gradients

        def described(one):
            return tuple(one.shape), one.stride(), one.dtype, one.device.type

        actual = tree_map_only(torch.Tensor, described, run())
        with FakeTensorMode():
            expected = tree_map_only(torch.Tensor, described, run())
        self.assertEqual(actual, expected)

    def test_random_state_has_cuda_s_form(self):
        results = aten._scaled_dot_product_flash_attention(*inputs(), 0.5)
        self.assertEqual([(one.dtype, one.shape) for one in results[6:8]], FLASH_STATE)
        results = aten._scaled_dot_product_efficient_attention(*inputs(), None, True, 0.5)
        self.assertEqual([(one.dtype, one.shape) for one in results[2:]], OTHER_STATE)

    def test_log_sum_exps_are_padded_with_infinity(self):
        query, key, value = inputs(torch.float32)
        sums = aten._scaled_dot_product_efficient_attention(query, key, value, None, True)[1]
        self.assertEqual(sums.shape, (2, 2, 32))
        expected = (query @ key.mT / 8**0.5).logsumexp(-1)
        self.assertEqual(sums[..., :6], expected)
        self.assertTrue(sums[..., 6:].isposinf().all())
        none = aten._scaled_dot_product_efficient_attention(query, key, value, None, False)[1]
        self.assertEqual(none.shape, (2, 2, 0))

    @parametrize("backend", FUSED)
    def test_replays_of_a_graph_draw_anew_and_backward_follows(self, backend):
        query, key, value = inputs()
        graph = torch.cuda.CUDAGraph()
        with sdpa_kernel(backend):
            attention(query, key, value, dropout_p=0.5)  # the kernels' first calls
            value.requires_grad_()
            with torch.cuda.graph(graph):
                output = attention(query, key, value, dropout_p=0.5)
                (gradient,) = torch.autograd.grad(output.sum(), value)
        seen = []
        for _ in range(3):
            graph.replay()
            seen.append(output.detach().clone())
            total = output.float().sum()  # linear in the values
            self.assertEqual((gradient.float() * value).sum(), total, atol=0.05, rtol=0.05)
        self.assertFalse(torch.equal(seen[0], seen[1]) or torch.equal(seen[1], seen[2]))

    @parametrize("backend", FUSED)
    def test_no_call_waits(self, backend):
        with sdpa_kernel(backend):
            for dropout in (0.0, 0.5):
                leaves = inputs(requires_grad=True)
                with StreamGate():
                    attention(*leaves, dropout_p=dropout).sum().backward()

    def test_values_of_another_size(self):
        query, key, _ = inputs(torch.float32)
        value = torch.randn(2, 2, 6, 12, device="cuda")
        host = [one.cpu().requires_grad_() for one in (query, key, value)]
        ours = [one.detach().cuda().requires_grad_() for one in host]
        actual, expected = attention(*ours), attention(*host)
        self.assertIn("Efficient", type(actual.grad_fn).__name__)
        self.assert_bit_equal(actual.detach(), expected.detach())
        for one, other in zip(
            torch.autograd.grad(actual.sum(), ours),
            torch.autograd.grad(expected.sum(), host),
            strict=True,
        ):
            self.assertEqual(one.cpu(), other)

    @parametrize("mode", ["default", "reduce-overhead"])
    @parametrize("backend", FUSED)
    def test_compiled_attention_is_eager_attention(self, backend, mode):
        torch._dynamo.reset()

        def run(*leaves):
            return attention(*leaves).sin()

        ours = inputs(requires_grad=True)
        with sdpa_kernel(backend):
            expected = run(*ours)
            expected_gradients = torch.autograd.grad(expected.sum(), ours)
            actual = torch.compile(run, mode=mode)(*ours)
            gradients = torch.autograd.grad(actual.sum(), ours)
        self.assertEqual(actual, expected)
        self.assertEqual(gradients, expected_gradients)


class TestRefusals(OpenRegTestCase):
    def test_flash_attention_has_16_bits_and_up_to_256_numbers(self):
        def call(*shape, dtype=torch.float16):
            x = torch.ones(shape, dtype=dtype, device="cuda")
            aten._scaled_dot_product_flash_attention(x, x, x)

        for dtype in (torch.float32, torch.float64):
            with self.assertRaisesRegex(
                RuntimeError, "^FlashAttention only support fp16 and bf16 data type"
            ):
                call(1, 1, 4, 8, dtype=dtype)
        with self.assertRaisesRegex(RuntimeError, "^head_size must be a multiple of 8"):
            call(1, 1, 4, 12)
        with self.assertRaisesRegex(RuntimeError, "only supports head dimension at most 256"):
            call(1, 1, 4, 264)

    def test_packed_attention_has_16_bits(self):
        from torch.nn.attention.varlen import varlen_attn

        x = torch.ones(4, 2, 8, device="cuda")
        ends = torch.tensor([0, 4], device="cuda", dtype=torch.int32)
        with self.assertRaisesRegex(RuntimeError, "only support fp16 and bf16"):
            varlen_attn(x, x, x, ends, ends, 4, 4)
        self.assertEqual(varlen_attn(*[x.half()] * 3, ends, ends, 4, 4), x.half())

    def test_efficient_attention_refuses_a_mask_that_is_not_aligned(self):
        query, key, value = inputs()
        mask = torch.zeros(2, 2, 6, 6, device="cuda").half()
        with self.assertRaisesRegex(
            RuntimeError,
            r"^attn_bias is not correctly aligned \(strideH\)\. attn_bias\.stride\(1\) = 36, "
            r"and should be a multiple of 8\.",
        ):
            aten._scaled_dot_product_efficient_attention(query, key, value, mask, False)
        # The composite operator aligns it.
        with sdpa_kernel(EFFICIENT):
            expected = attention(query, key, value)
            self.assertEqual(attention(query, key, value, mask), expected)
        for wrong, text in (
            (mask.float(), "invalid dtype for bias - should match query's dtype"),
            (mask.mT[..., :6], "last dimension must be contiguous"),
        ):
            with self.assertRaisesRegex(RuntimeError, re.escape(text)):
                aten._scaled_dot_product_efficient_attention(query, key, value, wrong, False)
        with self.assertRaisesRegex(RuntimeError, "^Only fp32, half & bf16 supported"):
            aten._scaled_dot_product_efficient_attention(
                *[one.double() for one in (query, key, value)], None, False
            )

    def test_large_batches_have_no_dropout_in_efficient_attention(self):
        x = torch.zeros(2**16, 1, 1, 8, device="cuda").half()
        with self.assertRaisesRegex(RuntimeError, r"the batch size exceeds \(65535\)\."):
            aten._scaled_dot_product_efficient_attention(x, x, x, None, True, 0.1)

    @parametrize(
        "backend, name",
        [
            subtest((FLASH, "Flash Attention"), name="flash"),
            subtest((EFFICIENT, "Memory Efficient attention"), name="efficient"),
        ],
    )
    def test_wanted_determinism_warns_in_backward(self, backend, name):
        with sdpa_kernel(backend):
            output = attention(*inputs(requires_grad=True))
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            _, messages = messages_of(output.sum().backward)
        finally:
            torch.use_deterministic_algorithms(False)
        self.assertIn(f"{name} defaults to a non-deterministic algorithm.", "\n".join(messages))


class TestPackedSequences(OpenRegTestCase):
    def packed(self, dtype=torch.float32):
        torch.manual_seed(0)
        host = [torch.randn(1, 8, 2, 8).to(dtype).requires_grad_() for _ in range(3)]
        ours = [one.detach().cuda().requires_grad_() for one in host]
        ends = torch.tensor([0, 3, 8], dtype=torch.int32, device="cuda")
        return host, ours, ends

    @parametrize("mask_type", [0, 1, 2])
    def test_efficient_attention_of_sequences(self, mask_type):
        host, ours, ends = self.packed()
        output, sums, _, _, max_q, max_k = aten._efficient_attention_forward(
            *ours, None, ends, ends, 5, 5, 0.0, mask_type, True
        )
        self.assertEqual((sums.shape, max_q, max_k), ((2, 2, 32), 5, 5))
        parts = [
            attention(
                *(one[:, part].transpose(1, 2) for one in host), is_causal=mask_type > 0
            ).transpose(1, 2)
            for part in (slice(0, 3), slice(3, 8))
        ]
        expected = torch.cat(parts, 1)
        self.assertEqual(output.cpu(), expected)
        direction = torch.randn(1, 8, 2, 8)
        for one, other in zip(
            torch.autograd.grad(output, ours, direction.cuda()),
            torch.autograd.grad(expected, host, direction),
            strict=True,
        ):
            self.assertEqual(one.cpu(), other)

    def test_causal_masks_align_the_first_or_the_last(self):
        torch.manual_seed(0)
        q, k, v = torch.randn(1, 3, 2, 8), torch.randn(1, 5, 2, 8), torch.randn(1, 5, 2, 8)
        for mask_type, shift in ((1, 0), (2, 2)):
            seen = torch.ones(3, 5, dtype=torch.bool).tril(shift)
            expected = attention(*(one.transpose(1, 2) for one in (q, k, v)), attn_mask=seen)
            actual = aten._efficient_attention_forward(
                *(one.cuda() for one in (q, k, v)), None, None, None, None, None, 0.0, mask_type
            )[0]
            self.assertEqual(actual.cpu(), expected.transpose(1, 2))

    def test_gradients_in_one_storage(self):
        _, ours, _ = self.packed()
        output, sums, seed, offset, max_q, max_k = aten._efficient_attention_forward(
            *ours, None, None, None, None, None, 0.0, 0, True
        )
        ours = [one.detach() for one in ours]
        arguments = (
            *(torch.ones_like(output), *ours, None, output, None, None, max_q, max_k, sums),
            *(0.0, seed, offset, 0, False),
        )
        apart = aten._efficient_attention_backward(*arguments)
        together = aten._efficient_attention_backward(*arguments, shared_storage_dqdkdv=True)
        self.assertEqual(together[:3], apart[:3])
        self.assertEqual(len({one.untyped_storage().data_ptr() for one in together[:3]}), 1)

    @parametrize("dtype", [torch.float16, torch.float32])
    @parametrize("dropout", [0.0, 0.5])
    def test_nested_tensors_use_them(self, dtype, dropout):
        host = [torch.randn(n, 2, 8).to(dtype) for n in (3, 5)]
        nested = torch.nested.nested_tensor(host, layout=torch.jagged, device="cuda")
        nested.requires_grad_()
        x = nested.transpose(1, 2)
        with Names() as mode:
            output = attention(x, x, x, dropout_p=dropout).transpose(1, 2)
            output.values().sum().backward()
        name = "flash" if dtype == torch.float16 else "efficient"
        self.assertEqual(
            mode.names,
            [f"aten._{name}_attention_forward.default", f"aten._{name}_attention_backward.default"],
        )
        if dropout == 0:
            for one, other in zip(output.unbind(), host, strict=True):
                one_head = other.transpose(0, 1)[None]
                expected = attention(one_head, one_head, one_head)[0].transpose(0, 1)
                self.assert_bit_equal(one.detach(), expected)


instantiate_parametrized_tests(TestChoice)
instantiate_parametrized_tests(TestOperators)
instantiate_parametrized_tests(TestRefusals)
instantiate_parametrized_tests(TestPackedSequences)

if __name__ == "__main__":
    run_tests()
