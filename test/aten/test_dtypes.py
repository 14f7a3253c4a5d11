"""Dtypes that CUDA has for an operator and the CPU lacks: computed in a wider type, rounded once.

The reference is the CPU under ``Widened``, which implements the device's method in Python: if the
CPU rejects an operator's dtypes, it calls the operator with wider ones and narrows the results. So
values and gradients are compared bit for bit, and the dtypes that the CPU rejected are compared
with the device's table.
"""

import contextlib
import re

import pytest
import torch
from common import (
    DEVICE_TYPE,
    OpenRegTestCase,
    StreamGate,
    comparable_error,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)
from torch.testing._internal.common_methods_invocations import (
    foreach_binary_op_db,
    foreach_other_op_db,
    foreach_pointwise_op_db,
    foreach_reduce_op_db,
    foreach_unary_op_db,
    op_db,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from torch_openreg import _C

pytestmark = pytest.mark.sample(0.067)

_FLOAT8 = (
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
)
_WIDER = {
    **dict.fromkeys(_FLOAT8, torch.float32),
    torch.bool: torch.uint8,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.complex32: torch.complex64,
}
_NARROWER = {
    **{dtype: {torch.float32: dtype} for dtype in _FLOAT8},
    torch.bool: {torch.uint8: torch.bool},
    torch.float16: {torch.float32: torch.float16, torch.complex64: torch.complex32},
    torch.bfloat16: {torch.float32: torch.bfloat16},
    torch.complex32: {torch.float32: torch.float16, torch.complex64: torch.complex32},
}
# As the table calls them.
_NAMES = {
    **{dtype: str(dtype).removeprefix("torch.").capitalize() for dtype in _FLOAT8},
    torch.bool: "Bool",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.complex32: "ComplexHalf",
}
_LAYOUTS = {torch.sparse_coo: "Sparse", torch.sparse_csr: "SparseCsr"}

# OpInfos that have no kernel for the CPU in any dtype.
_WITHOUT_A_KERNEL = {
    "torch.ops.aten._efficient_attention_forward",
    "torch.ops.aten._flash_attention_forward",
}


def _converted(dtypes):
    """A function that converts tensors and dtypes, and leaves all else as it is."""

    def convert(value):
        if isinstance(value, torch.dtype):
            return dtypes.get(value, value)
        if isinstance(value, torch.Tensor) and value.dtype in dtypes:
            return value.to(dtypes[value.dtype])
        return value

    return convert


def _tensors(value):
    found = []
    tree_map(lambda leaf: found.append(leaf) if isinstance(leaf, torch.Tensor) else None, value)
    return found


def _layout_of(tensors):
    return next((_LAYOUTS[one.layout] for one in tensors if one.layout in _LAYOUTS), "Dense")


def _call(function, args, kwargs):
    """Calls an operator of the CPU; nansum also of complex numbers."""
    x = args[0] if args else None
    if function is torch.ops.aten.nansum.default and x.dtype in (torch.complex64, torch.complex128):
        return torch.ops.aten.sum.dim_IntList(
            x.masked_fill(x.isnan(), 0), *(args[1:] or (None,)), **kwargs
        )
    return function(*args, **kwargs)


class Widened(TorchDispatchMode):
    """Computes calls that the CPU rejects in the wider type. Collects the rejected dtypes."""

    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype
        self.refused = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        state = torch.get_rng_state()
        tensors = _tensors((args, kwargs))
        try:
            return _call(function, args, kwargs)
        except RuntimeError:
            if self.dtype not in {one.dtype for one in tensors}:
                raise
        torch.set_rng_state(state)
        wider = _converted(
            _WIDER
            if self.dtype == torch.bool
            else {one: other for one, other in _WIDER.items() if one != torch.bool}
        )
        wider_args = tree_map(wider, args)
        result = _call(function, wider_args, tree_map(wider, kwargs))
        schema = function._schema
        for argument, one, other in zip(schema.arguments, args, wider_args, strict=False):
            if argument.is_write and one is not other:
                one.copy_(other)
        name, layout = schema.name.removeprefix("aten::").removesuffix("_"), _layout_of(tensors)
        # mv of compressed tensors is composed of addmv.
        name = "addmv" if (name, layout) == ("mv", "SparseCsr") else name
        self.refused.add((name, layout, _NAMES[self.dtype]))
        return tree_map(_converted(_NARROWER[self.dtype]), result)


class _Nothing(TorchDispatchMode):
    """Changes nothing; but torch has other formulas for some gradients while a mode is active."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def _is_transform(info):
    return info.name.startswith("fft.")


def _cuda_only(info):
    forward = set(info.dtypesIfCUDA) - set(info.dtypes)
    found = forward | set(info.backward_dtypesIfCUDA) - set(info.backward_dtypes)
    if _is_transform(info) or info.name == "stft":
        # Since 2.14, CUDA has those of bfloat16, with results of the new dtype bcomplex32. Here,
        # they raise the CPU's NotImplementedError.
        found.discard(torch.bfloat16)
    return sorted(found, key=str)


_INFOS = [
    *op_db,
    *foreach_binary_op_db,
    *foreach_other_op_db,
    *foreach_pointwise_op_db,
    *foreach_reduce_op_db,
    *foreach_unary_op_db,
]
_CASES = [
    subtest((info, dtype), name=f"{info.formatted_name}_{str(dtype).removeprefix('torch.')}")
    for info in _INFOS
    for dtype in _cuda_only(info)
    if info.name not in _WITHOUT_A_KERNEL
]
_SAMPLES = 12


def _samples(info, dtype):
    has_gradient = (
        info.supports_autograd
        and (dtype.is_floating_point or dtype.is_complex)
        and dtype in info.backward_dtypesIfCUDA
    )
    torch.manual_seed(3)
    samples = list(info.sample_inputs("cpu", dtype, requires_grad=has_gradient))
    step = max(1, len(samples) // _SAMPLES)
    return samples[::step]


def _run(function, sample, move):
    """Results and gradients of one sample whose tensors `move` makes."""
    inputs = {}

    def moved(value):
        if isinstance(value, torch.Tensor):
            if id(value) not in inputs:
                one = move(value.detach())
                if value.requires_grad:
                    one.requires_grad_()
                inputs[id(value)] = one
            return inputs[id(value)]
        return value

    arguments = [tree_map(moved, value) for value in (sample.input, sample.args, sample.kwargs)]
    torch.manual_seed(5)
    results = _tensors(function(arguments[0], *arguments[1], **arguments[2]))
    outputs = [result for result in results if result.requires_grad]
    if outputs:
        torch.autograd.backward(outputs, [result.detach().clone() for result in outputs])
    gradients = [one.grad for one in inputs.values() if one.grad is not None]
    return [result.detach() for result in results], gradients


def _reference(info, sample, dtype):
    """The same on the CPU, and the rejected dtypes."""
    if _is_transform(info):
        # Composite: rounded once, and not after each of the operators that it is made of.
        def transform(*args, **kwargs):
            result = info.op(*tree_map(_converted(_WIDER), args), **kwargs)
            return _converted(_NARROWER[dtype])(result)

        return *_run(transform, sample, torch.clone), set()
    with Widened(dtype) as mode:
        results, gradients = _run(info.op, sample, torch.clone)
    return results, gradients, mode.refused


class TestDtypesOfCuda(OpenRegTestCase):
    """What OpInfos say that CUDA has."""

    def assert_same(self, actual, expected):
        self.assertEqual(len(actual), len(expected))
        for one, other in zip(actual, expected, strict=True):
            self.assertEqual(one.dtype, other.dtype)
            self.assertEqual(one.layout, other.layout)
            if one.layout == torch.strided:
                self.assertEqual(one.stride(), other.stride())
            self.assert_bit_equal(one.to_dense(), other.to_dense())

    @parametrize("info,dtype", _CASES)
    def test_results_and_gradients_are_those_of_the_wider_type(self, info, dtype):
        for sample in _samples(info, dtype):
            is_strided = _layout_of([sample.input]) == "Dense"
            for one in (sample, sample.noncontiguous()) if is_strided else (sample,):
                if info.name == "histc":  # has its own kernel, see test_operators.py
                    _run(info.op, one, lambda tensor: tensor.to(DEVICE_TYPE))
                    continue
                results, gradients, _ = _reference(info, one, dtype)
                for _ in range(2):  # the second call repeats a plan
                    with contextlib.nullcontext() if _is_transform(info) else _Nothing():
                        actual, actual_gradients = _run(
                            info.op, one, lambda tensor: tensor.to(DEVICE_TYPE, copy=True)
                        )
                    self.assert_same(actual, results)
                    self.assert_same(actual_gradients, gradients)


# Calls of entries that no OpInfo reaches, as functions of a device.
_OTHER_CALLS = {
    "_fft_c2c": lambda d: torch.ops.aten._fft_c2c(_square(d, torch.complex32), [0, 1], 1, True),
    "_fft_c2r": lambda d: torch.ops.aten._fft_c2r(_numbers(d, torch.complex32), [1], 1, 8),
    "_fft_r2c": lambda d: torch.ops.aten._fft_r2c(_square(d, torch.float16), [0, 1], 1, True),
    "sparse_add": lambda d: _sparse(d) + _sparse(d),
    "sparse_add_": lambda d: _sparse(d).add_(_sparse(d), alpha=3),
    "sparse_sub": lambda d: _sparse(d) - _sparse(d) * 2,
    "sparse_add_complex32": lambda d: _sparse(d, torch.complex32) + _sparse(d, torch.complex32),
    "sparse_coalesce_complex32": lambda d: torch.sparse_coo_tensor(
        torch.tensor([[1, 0, 1, 1]], device=d), _numbers(d, torch.complex32)[:, 0], (2,)
    ).coalesce(),
    "sparse_product_half": lambda d: torch.sparse.mm(_sparse(d), _sparse(d).t()),
    "sparse_product_bfloat16": lambda d: torch.sparse.mm(
        _sparse(d).bfloat16(), _sparse(d).t().bfloat16()
    ),
    "csr_mv_half": lambda d: torch.mv(_csr(d), _square(d)[0]),
    "csr_mv_bfloat16": lambda d: torch.mv(_csr(d, torch.bfloat16), _square(d, torch.bfloat16)[0]),
    "csr_addmv_half": lambda d: torch.addmv(_square(d)[1], _csr(d), _square(d)[0]),
    "csr_addmv_bfloat16": lambda d: torch.addmv(
        _square(d, torch.bfloat16)[1], _csr(d, torch.bfloat16), _square(d, torch.bfloat16)[0]
    ),
    "csr_addmm_half": lambda d: torch.addmm(_square(d), _csr(d), _square(d), beta=0.5),
    "csr_addmm_bfloat16": lambda d: torch.addmm(
        _square(d, torch.bfloat16), _csr(d, torch.bfloat16), _square(d, torch.bfloat16)
    ),
    "csr_mm_half": lambda d: _csr(d) @ _square(d),
    "csr_mm_bfloat16": lambda d: _csr(d, torch.bfloat16) @ _square(d, torch.bfloat16),
}
_OTHERS = [subtest(call, name=name) for name, call in _OTHER_CALLS.items()]


def _numbers(device, dtype):
    torch.manual_seed(7)
    return torch.randn(4, 5, dtype=torch.complex64 if dtype.is_complex else torch.float32).to(
        device, dtype
    )


def _square(device, dtype=torch.float16):
    return _numbers(device, dtype)[:, :4].contiguous()


def _sparse(device, dtype=torch.float16):
    return _numbers("cpu", torch.float32).relu().to(dtype).to_sparse().to(device)


def _csr(device, dtype=torch.float16):
    return _square("cpu", dtype).relu().to_sparse_csr().to(device)


class TestTable(OpenRegTestCase):
    def test_the_table_is_what_the_cpu_refuses(self):
        refused = set()
        for case in _CASES:
            info, dtype = case.arg_values
            if _is_transform(info):
                refused.add((info.name.replace(".", "_"), "Dense", _NAMES[dtype]))
            elif info.name != "histc":
                for sample in _samples(info, dtype):
                    refused |= _reference(info, sample, dtype)[2]
        for name, call in _OTHER_CALLS.items():
            dtypes = (torch.bfloat16,) if "bfloat16" in name else (torch.float16, torch.complex32)
            for dtype in dtypes:
                try:
                    with Widened(dtype) as mode:
                        call("cpu")
                except RuntimeError:
                    continue
                refused |= mode.refused
        entries = set(_C._dtypes_to_widen())
        self.assertEqual(len(entries), len(_C._dtypes_to_widen()))
        missing, needless = sorted(refused - entries), sorted(entries - refused)
        self.assertFalse(missing or needless, f"missing {missing}, no longer needed {needless}")

    @parametrize("info,dtype", [case for case in _CASES if _is_transform(case.arg_values[0])])
    def test_the_cpu_refuses_transforms(self, info, dtype):
        for sample in _samples(info, dtype):
            if sample.input.numel() == 0:  # since 2.15, there is nothing to compute
                continue
            with self.assertRaises(RuntimeError):
                info.op(sample.input, *sample.args, **sample.kwargs)

    @parametrize("call", _OTHERS)
    def test_entries_that_no_op_info_reaches(self, call):
        actual = call(DEVICE_TYPE)
        with self.assertRaises(RuntimeError):
            call("cpu")
        for dtype in _NAMES:
            try:
                with Widened(dtype):
                    expected = call("cpu")
            except RuntimeError:
                continue
            self.assertEqual(actual.dtype, expected.dtype)
            self.assertEqual(actual.layout, expected.layout)
            self.assert_bit_equal(actual.to_dense(), expected.to_dense())
            self.assert_bit_equal(call(DEVICE_TYPE).to_dense(), expected.to_dense())
            return
        self.fail("expected the CPU to compute the call in a wider type")


def _c32(device=DEVICE_TYPE):
    return _numbers(device, torch.complex32)


class TestCalls(OpenRegTestCase):
    def setUp(self):
        super().setUp()
        self.expected = _c32("cpu").to(torch.complex64).sin().to(torch.complex32)

    def test_out_is_written_and_resized(self):
        for _ in range(2):
            out = torch.empty(0, dtype=torch.complex32, device=DEVICE_TYPE)
            self.assertIs(torch.sin(_c32(), out=out), out)
            self.assert_bit_equal(out, self.expected)

    def test_out_keeps_its_strides_and_storage(self):
        out = torch.empty(5, 4, dtype=torch.complex32, device=DEVICE_TYPE).t()
        address = out.data_ptr()
        torch.sin(_c32(), out=out)
        self.assertEqual((out.stride(), out.data_ptr()), ((1, 4), address))
        self.assert_bit_equal(out, self.expected)

    def test_out_of_a_wider_type_is_not_rounded(self):
        out = torch.empty(0, dtype=torch.complex64, device=DEVICE_TYPE)
        torch.sin(_c32(), out=out)
        self.assert_bit_equal(out, _c32("cpu").to(torch.complex64).sin())

    def test_const_out_of_a_transform_is_returned(self):
        x = _c32()
        out = torch.empty(0, dtype=torch.float16, device=DEVICE_TYPE)
        self.assertIs(torch.fft.hfft2(x, out=out), out)
        self.assert_bit_equal(out, torch.fft.hfft2(x.cpu().to(torch.complex64)).half())

    def test_in_place_writes_the_tensor(self):
        x = _c32().t()
        self.assertIs(x.sin_(), x)
        self.assertEqual(x.dtype, torch.complex32)
        self.assert_bit_equal(x, self.expected.t())

    def test_in_place_with_itself(self):
        x = _c32()
        x.div_(x)
        wider = _c32("cpu").to(torch.complex64)
        self.assert_bit_equal(x, wider.div_(wider).to(torch.complex32))

    def test_float8_is_not_promoted(self):
        zeros, index = torch.zeros(2, 2), torch.zeros(1, 2, dtype=torch.int64)
        for dtypes in ((torch.float8_e5m2, torch.float32), (torch.float32, torch.float8_e5m2)):
            x, source = (zeros.to(dtype).to(DEVICE_TYPE) for dtype in dtypes)
            with self.assertRaises(RuntimeError) as expected:
                x.cpu().scatter(0, index, source.cpu())
            with self.assertRaisesRegex(RuntimeError, re.escape(str(expected.exception))):
                x.scatter(0, index.to(DEVICE_TYPE), source)

    def test_overlap_is_refused(self):
        x = torch.ones(8, dtype=torch.complex32, device=DEVICE_TYPE)
        with self.assertRaisesRegex(RuntimeError, "unsupported operation"):
            torch.sin(x[:-1], out=x[1:])
        with self.assertRaisesRegex(RuntimeError, "unsupported operation"):
            x[:1].expand(4).sin_()

    def test_strides_are_those_of_the_wider_result(self):
        x = torch.randn(2, 3, 4, 4, 4).half().to(memory_format=torch.channels_last_3d)
        actual = torch.nn.functional.avg_pool3d(x.to(DEVICE_TYPE), 2)
        expected = torch.nn.functional.avg_pool3d(x.float(), 2)
        self.assertEqual(actual.stride(), expected.stride())
        self.assert_bit_equal(actual, expected.half())

    def test_promotion_to_a_type_that_the_cpu_has(self):
        x, y = _c32(), torch.rand(4, 5, device=DEVICE_TYPE)
        self.assertEqual((x / y).dtype, torch.complex64)
        self.assert_bit_equal(x / y, x.cpu() / y.cpu())
        number = torch.tensor(2.5, device=DEVICE_TYPE)
        self.assertEqual((x / number).dtype, torch.complex32)

    def test_promotion_to_a_type_that_the_cpu_lacks(self):
        x = _numbers(DEVICE_TYPE, torch.float16)
        actual = x / (1 + 2j)
        self.assertEqual(actual.dtype, torch.complex32)
        self.assert_bit_equal(actual, (x.cpu().float() / (1 + 2j)).to(torch.complex32))

    def test_dtype_argument_says_what_is_asked_for(self):
        x, wider = _c32(), _c32("cpu").to(torch.complex64)
        self.assert_bit_equal(x.sum(dtype=torch.complex64), wider.sum())
        self.assert_bit_equal(x.sum(1, dtype=torch.complex32), wider.sum(1).to(torch.complex32))
        real = torch.rand(6, device=DEVICE_TYPE)
        self.assert_bit_equal(real.sum(dtype=torch.complex32), real.cpu().sum().to(torch.complex32))

    def test_what_cuda_lacks_too_is_the_error_of_the_cpu(self):
        x = _c32()
        for call in (
            lambda one: one @ one.t(),
            lambda one: one.erf(),
            lambda one: one.log2(),
            lambda one: torch.fft.fft(one.real.bfloat16()),
        ):
            messages = []
            for device in ("cpu", DEVICE_TYPE):
                with self.assertRaises(RuntimeError) as caught:
                    call(x.to(device))
                text = comparable_error(str(caught.exception).split("\n")[0])
                messages.append((type(caught.exception), text))
            self.assertEqual(messages[0], messages[1])

    def test_repeated_calls_do_not_wait(self):
        target = torch.tensor([1, 0, 3, 2], device=DEVICE_TYPE)
        x, complex_numbers = _numbers(DEVICE_TYPE, torch.float16), _c32()

        def run():
            loss = torch.nn.functional.multi_margin_loss(x, target)
            return complex_numbers.sin(), complex_numbers.sum(), torch.fft.fft(x, dim=0), loss

        expected = run()
        with StreamGate():
            actual = run()
        for one, other in zip(actual, expected, strict=True):
            self.assert_bit_equal(one, other)

    def test_a_graph_replays_the_wider_call(self):
        x = _c32()
        x.tanh()
        graph = torch.accelerator.Graph()
        with torch.Stream(), graph:
            result = x.tanh()
        x.mul_(0.5)
        graph.replay()
        self.assert_bit_equal(result, x.cpu().to(torch.complex64).tanh().to(torch.complex32))

    def test_inference_mode_and_vmap_take_transforms(self):
        x = _square(DEVICE_TYPE)
        expected = torch.fft.rfft(x.cpu().float()).to(torch.complex32)
        with torch.inference_mode():
            self.assert_bit_equal(torch.fft.rfft(x.clone()), expected)
        y = _square(DEVICE_TYPE, torch.complex32)
        expected = torch.fft.fft(y.cpu().to(torch.complex64)).to(torch.complex32)
        self.assert_bit_equal(torch.vmap(torch.fft.fft)(y), expected)

    def test_rrelu_draws_what_the_wider_type_draws(self):
        x = _numbers("cpu", torch.float16)
        torch.manual_seed(11)
        actual = torch.nn.functional.rrelu(x.to(DEVICE_TYPE), training=True)
        torch.manual_seed(11)
        expected = torch.nn.functional.rrelu(x.float(), training=True).half()
        self.assert_bit_equal(actual, expected)

    def test_nansum_of_complex_numbers_skips_those_with_a_part_that_is_none(self):
        nan = float("nan")
        parts = torch.tensor([[1, 2], [nan, 3], [4, nan], [5, 6]])
        for dtype in (torch.complex32, torch.complex64, torch.complex128):
            x = torch.view_as_complex(parts.double()).to(dtype).to(DEVICE_TYPE)
            self.assertEqual(x.nansum().cpu(), torch.tensor(6 + 8j, dtype=dtype))
            out = torch.empty(0, dtype=dtype, device=DEVICE_TYPE)
            self.assertIs(torch.nansum(x, 0, keepdim=True, out=out), out)
            self.assertEqual(out.cpu(), torch.tensor([6 + 8j], dtype=dtype))

    def test_half_complex_view_that_is_conjugated_and_negated_is_copied(self):
        x = torch.randn(4, 3, dtype=torch.complex64).to(torch.complex32)
        view = torch._neg_view(x.to(DEVICE_TYPE)).conj()
        expected = torch.complex(-x.real.float(), x.imag.float()).to(torch.complex32)
        for copy in (view.clone(), view.cpu(), torch.empty_like(view).copy_(view)):
            self.assert_bit_equal(
                torch.view_as_real(copy.resolve_conj().resolve_neg()), torch.view_as_real(expected)
            )

    @parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_sparse_gradients_of_an_embedding_are_accumulated(self, dtype):
        torch.manual_seed(0)
        on_cpu = torch.nn.Embedding(5, 3, sparse=True, dtype=torch.float32)
        on_cpu.weight.data = on_cpu.weight.data.to(dtype).float()
        module = torch.nn.Embedding(5, 3, sparse=True, device=DEVICE_TYPE, dtype=dtype)
        module.weight.data.copy_(on_cpu.weight.data)
        for indices in ([1, 2, 1], [2, 4, 0]):
            for one in (on_cpu, module):
                one(torch.tensor(indices, device=one.weight.device)).sum().backward()
        self.assert_bit_equal(
            module.weight.grad.to_dense(), on_cpu.weight.grad.to_dense().to(dtype)
        )

    def test_dense_and_sparse_numbers_are_added_as_on_the_cpu(self):
        dense = _numbers("cpu", torch.float16)
        self.assert_bit_equal(dense.to(DEVICE_TYPE) + _sparse(DEVICE_TYPE), dense + _sparse("cpu"))

    @parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_batch_norm_in_evaluation_has_gradients(self, dtype):
        x = torch.randn(4, 3, 5).to(dtype)
        gradients = []
        for device in ("cpu", DEVICE_TYPE):
            norm = torch.nn.BatchNorm1d(3, device=device, dtype=dtype).eval()
            one = x.to(device, copy=True).requires_grad_()
            norm(one).sum().backward()
            gradients.append((one.grad, norm.weight.grad))
        for actual, expected in zip(gradients[1], gradients[0], strict=True):
            self.assert_bit_equal(actual, expected)


instantiate_parametrized_tests(TestCalls)
instantiate_parametrized_tests(TestTable)
instantiate_parametrized_tests(TestDtypesOfCuda)

if __name__ == "__main__":
    run_tests()
