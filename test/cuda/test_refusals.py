"""What CUDA refuses and the CPU computes is refused, and what CUDA serves is served.

The yardsticks are torch's own: OpInfos for dtypes, declarations for operators without a kernel, and
the docstring of torch.use_deterministic_algorithms.
"""

import inspect
import itertools
import re
import sys
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from common import (
    OpenRegTestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_child,
    run_program,
    run_tests,
    subtest,
)
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves

from torch_openreg._version import release_of

pytestmark = pytest.mark.sample(0.1)

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "tools"), str(_ROOT / "csrc/aten/structured/codegen")]
import cuda_dtypes  # noqa: E402
from facts import DTYPES, load_facts  # noqa: E402

RELEASE = release_of(str(torch.__version__))
DTYPE_FACTS = load_facts()["cuda_dtypes"].values_for(RELEASE)
ALERTS = load_facts()["not_deterministic"].values_for(RELEASE)
_SAMPLES = 12
_FLOAT8 = "torch._scaled_mm"

# Pairs that CUDA's kernels have and torch's OpInfos leave out.
_SERVED = {"norm": {torch.complex32}, "norm_inf": {torch.complex32}}


def _names_in_texts(dtype):
    """The dtype as C++ calls it."""
    return DTYPES[str(dtype).removeprefix("torch.")]


def _refused_dtypes(info):
    found = set(info.supported_dtypes("cpu")) - set(info.supported_dtypes("cuda"))
    return sorted(found - _SERVED.get(info.formatted_name, set()), key=str)


def _pairs(dtypes_of):
    return [
        subtest((info, dtype), name=f"{info.formatted_name}_{str(dtype).removeprefix('torch.')}")
        for info in op_db
        if not info.name.startswith(_FLOAT8)
        for dtype in dtypes_of(info)
    ]


_REFUSED = _pairs(_refused_dtypes)
_SERVED_PAIRS = _pairs(
    lambda info: (
        sorted(set(info.supported_dtypes("cpu")) & set(info.supported_dtypes("cuda")), key=str)
        if _refused_dtypes(info)
        else []
    )
)


def _samples(info, dtype):
    torch.manual_seed(0)
    return list(itertools.islice(info.sample_inputs("cuda", dtype), _SAMPLES))


def _call(info, sample):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return info.op(sample.input, *sample.args, **sample.kwargs)


def _has_no_elements(sample):
    leaves = tree_leaves((sample.input, sample.args, sample.kwargs))
    return any(isinstance(leaf, torch.Tensor) and leaf.numel() == 0 for leaf in leaves)


def _is_cudas(error, dtype):
    """Whether an error of an operator has CUDA's class and text."""
    line = str(error).splitlines()[0]
    name = _names_in_texts(dtype)
    own_words = (f"getCudnnDataTypeFromScalarType() not supported for {name}",)
    if (dtype == torch.float16 and line == "HalfTensor is not supported") or line in own_words:
        return type(error) is RuntimeError
    if line.startswith("Could not run 'aten::"):
        return type(error) is NotImplementedError and "from the 'CUDA' backend." in line
    return type(error) is NotImplementedError and bool(
        re.fullmatch(rf"\"\w+\" not implemented for '{name}'", line)
    )


class TestDtypes(OpenRegTestCase):
    @parametrize("info,dtype", _REFUSED)
    def test_pair_that_cuda_lacks_is_refused_at_the_call(self, info, dtype):
        has_refused = False
        for sample in _samples(info, dtype):
            try:
                _call(info, sample)
            except (RuntimeError, NotImplementedError) as error:
                self.assertTrue(_is_cudas(error, dtype), f"{type(error)} {error}")
                has_refused = True
        self.assertTrue(has_refused)

    @parametrize("info,dtype", _SERVED_PAIRS)
    def test_pair_that_cuda_has_is_served(self, info, dtype):
        for sample in _samples(info, dtype):
            _call(info, sample)
        torch.cuda.synchronize()

    @parametrize(
        "info",
        [subtest(one, name=one.formatted_name) for one in op_db if one.formatted_name in _SERVED],
    )
    def test_pair_that_op_infos_leave_out_is_served(self, info):
        for sample in _samples(info, torch.complex32):
            _call(info, sample)

    def test_gradient_that_cuda_lacks_is_refused(self):
        index = torch.tensor([[0, 1]], device="cuda")
        for mode in ("sum", "mean", "max"):
            weight = torch.rand(4, 3, device="cuda", dtype=torch.bfloat16, requires_grad=True)
            total = F.embedding_bag(index, weight, mode=mode).sum()
            if mode == "max":
                with self.assertRaisesRegex(
                    NotImplementedError,
                    "^\"embedding_bag_backward_cuda_max\" not implemented for 'BFloat16'$",
                ):
                    total.backward()
            else:
                total.backward()

    @parametrize(
        "call",
        [
            subtest(lambda x: torch.mm(x, x, out=torch.empty_like(x)), name="out"),
            subtest(lambda x: x.clone().addmm_(x, x), name="in_place"),
            subtest(lambda x: torch.einsum("ij,jk->ik", x, x), name="composite"),
            subtest(lambda x: F.linear(x, x), name="module"),
        ],
    )
    def test_form_of_a_product_of_integers_is_refused(self, call):
        with self.assertRaisesRegex(
            NotImplementedError, "^\"(badd|add)(b?)mm_cuda\" not implemented for 'Int'$"
        ):
            call(torch.ones(2, 2, dtype=torch.int32, device="cuda"))

    def test_shapes_and_the_dtype_of_out_are_checked_first(self):
        x = torch.ones(2, 2, dtype=torch.int64, device="cuda")
        with self.assertRaisesRegex(RuntimeError, "shapes cannot be multiplied"):
            x @ x[:1]
        with self.assertRaisesRegex(RuntimeError, "Expected out tensor to have dtype long int"):
            torch.mm(x, x, out=x.float())

    def test_products_without_elements_are_served(self):
        x = torch.ones(2, 0, dtype=torch.int64, device="cuda")
        self.assertEqual((x @ x.t()).tolist(), [[0, 0], [0, 0]])
        self.assertEqual((x.t() @ x).shape, (0, 0))

    def test_dtype_is_that_to_which_the_numbers_are_promoted(self):
        number, half = torch.tensor(2.0, device="cuda"), torch.ones(2, device="cuda").half()
        for first, second in ((number, half), (half, number)):
            with self.assertRaisesRegex(NotImplementedError, "\"igamma_cuda\" .* 'Half'"):
                torch.igamma(first, second)
        self.assertEqual(torch.igamma(number.half(), half.float()).dtype, torch.float32)

    @parametrize(
        "arguments,name",
        [
            ({"groups": 2}, '"conv_depthwise2d_forward_cuda" not implemented for'),
            ({}, "getCudnnDataTypeFromScalarType() not supported for"),
        ],
        name_fn=lambda arguments, name: "depthwise" if arguments else "usual",
    )
    def test_text_of_a_convolution_is_that_of_the_library(self, arguments, name):
        x = torch.ones(1, 2, 4, 4, dtype=torch.int64, device="cuda")
        weight = torch.ones(2, 2 // arguments.get("groups", 1), 2, 2, dtype=torch.int64).cuda()
        with self.assertRaises(RuntimeError) as caught:
            F.conv2d(x, weight, **arguments)
        self.assertTrue(str(caught.exception).startswith(name), str(caught.exception))

    @parametrize("dtype", [torch.bool, torch.complex64, torch.complex128])
    def test_scatter_that_multiplies_is_refused(self, dtype):
        x, index = _numbers(3, dtype=dtype), _indices(2)
        name = _names_in_texts(dtype)
        for source, kernel in (
            (x.clone(), "cuda_scatter_gather_base_kernel_func"),
            (2, "cuda_scatter_fill_base_kernel_reduce_multiply"),
        ):
            text = f"^\"{kernel}\" not implemented for '{name}'$"
            for call in (x.scatter, x.scatter_):
                with self.assertRaisesRegex(NotImplementedError, text):
                    call(0, index, source, reduce="multiply")
            x.scatter_(0, _indices(0), source, reduce="multiply")
            x.scatter_(0, index, source, reduce="add")
            x.scatter_(0, index, source)

    def test_compiled_products_of_integers_are_refused(self):
        x = torch.ones(2, 2, dtype=torch.int64, device="cuda")
        with self.assertRaisesRegex(Exception, "\"addmm_cuda\" not implemented for 'Long'"):
            torch.compile(lambda y: torch.mm(y, y) + 1)(x)

    @parametrize("capability", ["8.0", "9.0"])
    def test_scaled_products_need_capability_8_9(self, capability):
        run_child(
            """
            import torch

            def product(first, second):
                x = torch.ones(16, 16, device="cuda")
                one = torch.ones((), device="cuda")
                return torch._scaled_mm(
                    x.to(first), x.to(second).t(), one, one, out_dtype=torch.bfloat16
                )

            def error_of(*dtypes):
                try:
                    product(*dtypes)
                except (RuntimeError, ValueError) as error:
                    return type(error), str(error).splitlines()[0]

            e4m3, e5m2, other = torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz
            if torch.cuda.get_device_capability() < (8, 9):
                assert error_of(e4m3, e4m3)[1].startswith("torch._scaled_mm is only supported on")
            else:
                assert product(e4m3, e5m2)[0, 0] == product(e4m3, e4m3)[0, 0] == 16
                text = "Multiplication of two Float8_e5m2 matrices is not supported"
                assert error_of(e5m2, e5m2) == (ValueError, text)
                text = "Cannot convert ScalarType Float8_e4m3fnuz to cudaDataType."
                assert error_of(e4m3, other) == (RuntimeError, text)
            """,
            {"OPENREG_CUDA_CAPABILITY": capability},
        )

    def test_openreg_computes_what_the_cpu_does(self):
        run_program(
            """
            import torch

            device = torch.accelerator.current_accelerator()
            x = torch.ones(2, 2, dtype=torch.int64, device=device)
            assert (x @ x).tolist() == [[2, 2], [2, 2]]
            assert torch.histogram(x.float(), 2).hist.tolist() == [0, 4]
            torch.use_deterministic_algorithms(True)
            assert x.float().histc(2).tolist() == [0, 4]
            """,
            {"OPENREG_DEVICE_TYPE": "openreg"},
        )


# Entries that no OpInfo reaches in a forward pass, with their reason.
_OTHERS = {
    "_addmm_activation": "torch.compile calls it",
    "_embedding_bag_backward": "of a gradient",
    "_embedding_bag_dense_backward": "of a gradient",
    "_upsample_bicubic2d_aa": "an option of interpolate",
    "conv_tbc": "has no OpInfo",
    "scatter": "samples do not multiply numbers that CUDA refuses",
}


class TestTexts(OpenRegTestCase):
    """What the CPU's kernels refuse, too, but in other words than CUDA's."""

    @parametrize(
        "call,error,text",
        [
            subtest((call, error, text), name=name)
            for name, call, error, text in (
                (
                    "mm",
                    lambda x: x @ x.half(),
                    RuntimeError,
                    "expected mat1 and mat2 to have the same dtype, but got: float != c10::Half",
                ),
                (
                    "mm_of_integers",
                    lambda x: F.linear(x.long(), x),
                    RuntimeError,
                    "expected mat1 and mat2 to have the same dtype, but got: long int != float",
                ),
                (
                    "dot_of_integers",
                    lambda x: x[0].long() @ x[0],
                    RuntimeError,
                    "dot : expected both vectors to have same dtype, but found Long and Float",
                ),
                (
                    "kernel",
                    lambda x: F.silu(x.long()),
                    NotImplementedError,
                    "\"silu_cuda\" not implemented for 'Long'",
                ),
                (
                    "kernel_with_another_name",
                    lambda x: x.long().softmax(0),
                    NotImplementedError,
                    "\"host_softmax\" not implemented for 'Long'",
                ),
                (
                    "class_of_a_target",
                    lambda x: F.cross_entropy(x[..., None], _indices(2, 1).int()),
                    RuntimeError,
                    "expected scalar type Long but found Int",
                ),
                (
                    "indices_of_a_bag",
                    lambda x: F.embedding_bag(x, x),
                    RuntimeError,
                    "Expected tensor for argument #1 'indices' to have one of the following scalar "
                    "types: Long, Int; but got torch.cuda.FloatTensor instead (while checking "
                    "arguments for embedding_bag_cuda)",
                ),
                (
                    "mask_of_a_fill",
                    lambda x: x.masked_fill(x.byte(), 1),
                    RuntimeError,
                    "masked_fill only supports boolean masks, but got dtype Byte",
                ),
                (
                    "mask_of_a_scatter",
                    lambda x: x.masked_scatter(x.byte(), x),
                    RuntimeError,
                    "masked_scatter_ only supports boolean masks, but got mask with dtype "
                    "unsigned char",
                ),
                (
                    "source_of_a_scatter",
                    lambda x: x.masked_scatter(x > 0, x.half()),
                    RuntimeError,
                    "masked_scatter_: expected self and source to have same dtypes but got Float "
                    "and Half",
                ),
                (
                    "indices_of_an_unpooling",
                    lambda x: F.max_unpool1d(x, _indices(2, 1), 2),
                    RuntimeError,
                    "Expected shape of indices to be: [2, 2, 1] but got: [2, 1, 1]",
                ),
                ("trace", lambda x: x[0].trace(), RuntimeError, "expected a matrix"),
            )
        ],
    )
    def test_first_line_is_that_of_cuda(self, call, error, text):
        with self.assertRaises(error) as caught:
            call(_numbers(2, 2))
        self.assertEqual(str(caught.exception).splitlines()[0], text)

    def test_text_of_openreg_is_that_of_the_cpu(self):
        run_program(
            """
            import torch

            def error_of(device):
                try:
                    torch.nn.functional.silu(torch.ones(2, dtype=torch.int64, device=device))
                except NotImplementedError as error:
                    return str(error).splitlines()[0]

            device = torch.accelerator.current_accelerator()
            assert error_of(device) == error_of("cpu")
            assert "silu_cpu" in error_of("cpu")
            """,
            {"OPENREG_DEVICE_TYPE": "openreg"},
        )


_RARE = ("uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu")
_UNSIGNED = _RARE[:3]


# Family -> a call, CUDA's kernel, and dtypes that it lacks and OpInfos do not list.
_OF_NO_TABLE = {
    "abs": (torch.abs, "abs_cuda", _RARE),
    "addcmul": (lambda x: torch.addcmul(x, x, x), "addcmul_cuda", ("complex32", *_RARE)),
    "any": (torch.any, "or_cuda", ("complex32", *_RARE)),
    "all": (lambda x: x.all(0), "and_cuda", ("complex32", *_RARE)),
    "bitwise_and": (lambda x: x & x, "bitwise_and_cuda", _UNSIGNED),
    "bitwise_or": (lambda x: x | x, "bitwise_or_cuda", _UNSIGNED),
    "bitwise_xor": (lambda x: x ^ x, "bitwise_xor_cuda", _UNSIGNED),
    "index": (lambda x: x[_indices(2)], "index_cuda", _UNSIGNED),
    "index_reduce": (lambda x: x.index_reduce(0, _indices(2), x, "prod"), "index_reduce", _RARE),
    "mul": (lambda x: x * x, "mul_cuda", _RARE),
    "nonzero_static": (lambda x: torch.nonzero_static(x, size=1), "nonzero_cuda", _RARE),
    "roll": (lambda x: x.roll(1), "roll_cuda", _RARE),
    "sort": (torch.sort, "sortKeyValueInplace", _UNSIGNED),
    "embedding_renorm": (
        lambda x: torch.embedding_renorm_(x, _indices(1), 1.0, 2.0),
        "embedding_renorm_cuda_",
        ("int64", "complex64", *_RARE),
    ),
}
# The same of kernels that the CPU lacks as well, by another name.
_REFUSED_BY_BOTH = (
    (lambda x: x + x, "ufunc_add_CUDA", _RARE),
    (lambda x: x / x, "div_true_cuda", _RARE[3:]),
    (lambda x: torch.arange(4, dtype=x.dtype, device="cuda"), "arange_cuda", _RARE),
    (lambda x: x.normal_(), "normal_kernel_cuda", ("int64", *_RARE)),
    (lambda x: x.exponential_(), "exponential_cuda", _RARE[3:]),
    (lambda x: x.bernoulli_(0.5), "bernoulli_scalar_cuda_", _RARE),
    (torch.bernoulli, "bernoulli_tensor_cuda_self_", _RARE[3:]),
    (torch.std, "std_cuda", _RARE[3:]),
    (torch.tril, "triu_tril_cuda_template", _RARE),
    (lambda x: x.topk(1), "topk_out_cuda", _RARE),
    (torch.sigmoid, "sigmoid_cuda", _RARE[3:]),
)


class TestDtypesOfNoTable(OpenRegTestCase):
    """Dtypes that OpInfos of neither device type list. The names are those of CUDA's builds."""

    @parametrize(
        "call,kernel,dtypes",
        [subtest(row, name=row[1]) for row in (*_OF_NO_TABLE.values(), *_REFUSED_BY_BOTH)],
    )
    def test_kernel_that_cuda_lacks_is_refused(self, call, kernel, dtypes):
        for dtype in (getattr(torch, name) for name in dtypes):
            x = torch.zeros(2, 2, dtype=torch.uint8).to(dtype).cuda()
            for _ in range(2):
                with self.assertRaises(NotImplementedError) as caught:
                    call(x)
                self.assertEqual(
                    str(caught.exception).splitlines()[0],
                    f"\"{kernel}\" not implemented for '{_names_in_texts(dtype)}'",
                )

    def test_bits_have_no_product(self):
        bits = torch.zeros(2, dtype=torch.uint8, device="cuda").view(torch.bits8)
        with self.assertRaisesRegex(
            NotImplementedError, "^\"abs_cuda\" not implemented for 'Bits8'"
        ):
            bits.abs()


class TestRules(OpenRegTestCase):
    """What CUDA's kernels refuse and no table of torch shows."""

    @parametrize("dtype", [torch.float16, torch.bfloat16])
    @parametrize("name", ["layer_norm", "group_norm"])
    def test_parameters_of_a_norm_have_the_dtype_of_the_input(self, name, dtype):
        norm = getattr(F, name)
        x, first = _numbers(2, 2, dtype=dtype), (2,) if name == "layer_norm" else 1
        wide, narrow = _numbers(2), _numbers(2, dtype=dtype)
        text = f"^expected scalar type {_names_in_texts(dtype)} but found Float"
        for weight, bias in ((wide, wide), (narrow, wide), (None, wide)):
            with self.assertRaisesRegex(RuntimeError, text):
                norm(x, first, weight, bias)
        self.assertEqual(norm(x, first, narrow, narrow).dtype, dtype)
        self.assertEqual(norm(x, first).dtype, dtype)
        with torch.autocast("cuda", dtype):
            norm(x, first, wide, wide)

    def test_mask_of_a_dropout_is_boolean(self):
        gradient = torch.ones(4, device="cuda")
        for dtype in (torch.uint8, torch.float32):
            text = f"^Mask should be Bool Scalar Type{_names_in_texts(dtype)}$"
            with self.assertRaisesRegex(RuntimeError, text):
                torch.ops.aten.native_dropout_backward(gradient, gradient.to(dtype), 2.0)
        torch.ops.aten.native_dropout_backward(gradient, gradient.bool(), 2.0)

    def test_index_of_a_selection_is_an_integer(self):
        for dtype in (torch.float32, torch.int16):
            text = (
                f"^\"index_select_out_cuda_impl\" not implemented for '{_names_in_texts(dtype)}'$"
            )
            with self.assertRaisesRegex(NotImplementedError, text):
                _numbers(2, 2).index_select(0, _indices(1).to(dtype))
        for dtype in (torch.int32, torch.int64):
            _numbers(2, 2).index_select(0, _indices(1).to(dtype))

    def test_dimension_of_a_narrow_copy_is_checked_first(self):
        with self.assertRaisesRegex(IndexError, r"^Dimension out of range \(expected"):
            torch.narrow_copy(_numbers(2, 2), 5, 0, 1)
        torch.narrow_copy(_numbers(2, 2), -1, 0, 1)

    def test_probabilities_are_floating_point_numbers(self):
        text = "^expected probabilities tensor to have floating type, got Int$"
        for call in (
            lambda: torch.bernoulli(_numbers(2).int()),
            lambda: _numbers(2).bernoulli_(_numbers(2).int()),
        ):
            with self.assertRaisesRegex(RuntimeError, text) as caught:
                call()
            self.assertIs(type(caught.exception), RuntimeError)

    def test_value_of_a_masked_fill_is_a_number_before_it_is_on_the_device(self):
        with self.assertRaisesRegex(RuntimeError, "^masked_fill_ only supports a 0-dimensional"):
            _numbers(2).masked_fill(_numbers(2) > 0, torch.ones(2))

    @parametrize(
        "name,sizes,expected",
        [
            ("fft", (4, 6), [6]),
            ("rfft", (4, 6), [6]),
            ("irfft", (4, 6), [10]),
            ("fft2", (6, 4), [6, 4]),
            ("rfftn", (2, 3, 5), [5]),
            ("irfftn", (2, 3, 5), [2, 3]),
            ("fftn", (2, 2, 3, 5, 7), [3, 5, 7]),
            ("fftn", (2, 4, 8), None),
            ("rfft", (6, 4), None),
            ("irfft", (4, 5), None),
        ],
        name_fn=lambda name, sizes, expected: f"{name}_{'_'.join(map(str, sizes))}",
    )
    def test_transforms_of_half_precision_need_powers_of_two(self, name, sizes, expected):
        transform, x = getattr(torch.fft, name), torch.rand(sizes, device="cuda")
        transform(x)
        if expected is None:
            self.assertEqual(transform(x.half()).shape, transform(x).shape)
            return
        text = f"powers of two when computing in half precision, but got a signal size of{expected}"
        with self.assertRaisesRegex(RuntimeError, re.escape(text)):
            transform(x.half())

    def test_size_of_a_transform_is_the_one_asked_for(self):
        x = torch.rand(6, device="cuda").half()
        self.assertEqual(torch.fft.fft(x, n=8).shape, (8,))
        with self.assertRaisesRegex(RuntimeError, r"signal size of\[12\]"):
            torch.fft.fft(x, n=12)
        with self.assertRaisesRegex(RuntimeError, r"signal size of\[12\]"):
            torch.stft(_numbers(32).half(), 12, return_complex=True)

    @parametrize(
        "name,arguments",
        [
            ("fftn", {"s": (4, 4, 4, 4), "dim": (0,)}),
            ("fftn", {"s": (4, 4, 4, 4)}),
            ("fftn", {"dim": ()}),
            ("irfftn", {"dim": ()}),
            ("rfftn", {"dim": ()}),
            ("fft", {"n": 0}),
            ("fft", {"dim": 5}),
        ],
        name_fn=lambda name, arguments: re.sub(r"\W+", "_", f"{name}_{arguments}").strip("_"),
    )
    def test_arguments_of_a_transform_that_torch_refuses_have_its_errors(self, name, arguments):
        transform, x = getattr(torch.fft, name), torch.rand(4, 4, device="cuda")

        def outcome(x):
            try:
                return transform(x, **arguments).shape
            except (RuntimeError, IndexError) as error:
                return type(error), str(error).splitlines()[0]

        self.assertEqual(outcome(x.half()), outcome(x))


class TestTable(OpenRegTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        derived = cuda_dtypes.derive(op_db)
        served = set().union(*_SERVED.values())
        cls.derived = {
            name: {str(dtype).removeprefix("torch.") for dtype in dtypes}
            for name, dtypes in derived.items()
            if not (dtypes <= served and name in ("norm", "linalg_vector_norm"))
        }

    @pytest.mark.slow
    def test_entries_are_those_that_op_infos_show(self):
        without_kernel = {name for name in self.derived if "histogram" in name}
        expected = set(self.derived) - without_kernel | {*_OTHERS, *_OF_NO_TABLE, "_scaled_mm_v2"}
        self.assertEqual(expected, set(DTYPE_FACTS))

    @pytest.mark.slow
    def test_dtypes_are_those_that_op_infos_show(self):
        for name, dtypes in self.derived.items():
            if name in DTYPE_FACTS:
                self.assertFalse(dtypes & set(DTYPE_FACTS[name]["dtypes"]), name)


def _numbers(*sizes, dtype=torch.float32):
    return torch.ones(*sizes, dtype=dtype, device="cuda")


def _indices(*sizes):
    return torch.zeros(*sizes, dtype=torch.int64, device="cuda")


def _planes(dimensions, size):
    return _numbers(1, 1, *[size] * dimensions)


def _padding(dimensions):
    return _planes(dimensions, 6), _planes(dimensions, 4), [1, 1] * dimensions


def _upsampling(dimensions, *flags):
    return _planes(dimensions, 8), [8] * dimensions, [1, 1, *[4] * dimensions], *flags


# Arguments of each operator in the table, without those of `out=`.
ARGUMENTS = {
    "_adaptive_avg_pool2d_backward": lambda: (_planes(2, 2), _planes(2, 4)),
    "_adaptive_avg_pool3d_backward": lambda: (_planes(3, 2), _planes(3, 4)),
    "_ctc_loss_backward": lambda: (
        _numbers(2),
        _numbers(5, 2, 4),
        _indices(2, 3) + 1,
        [5, 5],
        [3, 3],
        _numbers(2),
        _numbers(2, 5, 7),
        0,
    ),
    "_ctc_loss_backward.Tensor": lambda: (
        _numbers(2),
        _numbers(5, 2, 4),
        _indices(2, 3) + 1,
        torch.tensor([5, 5]),
        torch.tensor([3, 3]),
        _numbers(2),
        _numbers(2, 5, 7),
        0,
    ),
    "_embedding_bag_backward": lambda: (
        _numbers(1, 2),
        _indices(2),
        *(_indices(n) for n in (1, 2, 1)),
        _indices(1, 2),
        4,
        False,
        2,
        False,
        None,
    ),
    "_embedding_bag_dense_backward": lambda: (
        _numbers(2, 2),
        *(_indices(2) for _ in range(3)),
        _indices(2, 2),
        2,
        False,
        2,
        None,
    ),
    "_upsample_bicubic2d_aa_backward": lambda: _upsampling(2, False),
    "_upsample_bilinear2d_aa_backward": lambda: _upsampling(2, False),
    "adaptive_avg_pool3d_backward": lambda: (_planes(3, 2), _planes(3, 4)),
    "adaptive_max_pool2d_backward": lambda: (_planes(2, 2), _planes(2, 4), _indices(1, 1, 2, 2)),
    "avg_pool3d_backward": lambda: (
        _planes(3, 2),
        _planes(3, 4),
        *([n] * 3 for n in (2, 2, 0)),
        False,
        True,
        None,
    ),
    "bincount": lambda: (_indices(2), _numbers(2)),
    "fractional_max_pool2d_backward": lambda: (
        _planes(2, 2),
        _planes(2, 4),
        [2] * 2,
        [2] * 2,
        _indices(1, 1, 2, 2),
    ),
    "fractional_max_pool3d_backward": lambda: (
        _planes(3, 2),
        _planes(3, 4),
        [2] * 3,
        [2] * 3,
        _indices(1, 1, 2, 2, 2),
    ),
    **{
        f"grid_sampler_{n}d_backward": lambda n=n: (
            _planes(n, 4),
            _planes(n, 4),
            _numbers(1, *[4] * n, n),
            0,
            0,
            False,
            [True, True],
        )
        for n in (2, 3)
    },
    "histc": lambda: (_numbers(2),),
    "index_reduce": lambda: (_numbers(2), 0, _indices(2), _numbers(2), "mean"),
    "max_pool3d_with_indices_backward": lambda: (
        _planes(3, 2),
        _planes(3, 4),
        *([n] * 3 for n in (2, 2, 0, 1)),
        False,
        _indices(1, 1, 2, 2, 2),
    ),
    "median": lambda: (_numbers(2), 0),
    "nanmedian": lambda: (_numbers(2), 0),
    "nll_loss2d_forward": lambda: (_numbers(1, 2, 4, 4), _indices(1, 4, 4), None, 1, -100),
    **{
        f"{kind}_pad{n}d_backward": lambda n=n: _padding(n)
        for kind, n in itertools.product(("reflection", "replication"), (1, 2, 3))
    },
    "put": lambda: (_numbers(2), _indices(2), _numbers(2), True),
    "scatter": lambda: (_numbers(2), 0, _indices(2), _numbers(2)),
    "scatter_reduce": lambda: (_numbers(2), 0, _indices(2), _numbers(2), "prod"),
    "upsample_bicubic2d_backward": lambda: _upsampling(2, False),
    "upsample_bilinear2d_backward": lambda: _upsampling(2, False),
    "upsample_linear1d_backward": lambda: _upsampling(1, False),
    "upsample_trilinear3d_backward": lambda: _upsampling(3, False),
}


def _call_entry(name):
    """A call of an overload with arguments of its operator."""
    root, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, root), overload or "default")
    find = ARGUMENTS.get(name) or ARGUMENTS[root.removesuffix("_") if root != "_" else root]
    schema = operator._schema
    outs = {
        one.name: torch.empty(
            0, device="cuda", dtype=torch.int64 if one.name == "indices" else None
        )
        for one in schema.arguments
        if one.is_out
    }
    reduce = {"reduce": "multiply"} if root.rstrip("_") == "scatter" else {}
    return operator(*find(), **reduce, **outs)


_TEXT = (
    " does not have a deterministic implementation, but you set "
    "'torch.use_deterministic_algorithms(True)'. "
)


class _DeterministicTestCase(OpenRegTestCase):
    def setUp(self):
        super().setUp()
        self.addCleanup(torch.use_deterministic_algorithms, False)
        warnings.simplefilter("ignore")
        self.addCleanup(warnings.resetwarnings)

    def alert_of(self, call):
        """The name in the error of a call, or None if it returns."""
        torch.use_deterministic_algorithms(True)
        try:
            call()
        except RuntimeError as error:
            name, text, _ = str(error).partition(_TEXT)
            self.assertTrue(text, str(error))
            self.assertIs(type(error), RuntimeError)
            return name
        finally:
            torch.use_deterministic_algorithms(False)
        torch.cuda.synchronize()
        return None


class TestAlerts(_DeterministicTestCase):
    @parametrize("name", [subtest(name, name=name.replace(".", "_")) for name in ALERTS])
    def test_entry_raises_at_the_call(self, name):
        self.assertEqual(self.alert_of(lambda: _call_entry(name)), ALERTS[name]["name"])

    @parametrize(
        "call",
        [
            subtest(lambda: torch.bincount(_indices(2)), name="bincount_without_weights"),
            subtest(lambda: _indices(2).histc(), name="histc_of_integers"),
            subtest(lambda: _numbers(4).median(), name="median_without_indices"),
            subtest(lambda: _numbers(4).cumsum(0), name="cumsum"),
            subtest(
                lambda: F.nll_loss(_numbers(1, 2, 4, 4), _indices(1, 4, 4), reduction="none"),
                name="nll_loss_without_reduction",
            ),
            subtest(lambda: F.nll_loss(_numbers(4, 2), _indices(4)), name="nll_loss_of_rows"),
            subtest(
                lambda: _numbers(2).scatter_reduce(0, _indices(2), _numbers(2), "amax"),
                name="scatter_reduce_amax",
            ),
            subtest(
                lambda: _numbers(2).scatter_reduce(0, _indices(0), _numbers(2), "prod"),
                name="scatter_reduce_without_indices",
            ),
            subtest(
                lambda: _numbers(2).scatter(0, _indices(2), _numbers(2), reduce="add"),
                name="scatter_add_of_floats",
            ),
        ],
    )
    def test_condition_that_does_not_hold(self, call):
        self.assertIsNone(self.alert_of(call))

    def test_scatter_that_adds_integers_raises(self):
        x = _indices(2)
        self.assertEqual(
            self.alert_of(lambda: x.scatter(0, x, x, reduce="add")), "scatter_reduce_cuda_kernel"
        )


def _gradient(function, *sizes, **options):
    x = torch.rand(*sizes, device="cuda", requires_grad=True)
    result = function(x, **options)
    (result[0] if isinstance(result, tuple) else result).sum().backward()


def _interpolate(mode, dimensions):
    _gradient(F.interpolate, 1, 1, *[4] * dimensions, scale_factor=2, mode=mode)


def _pad(mode, dimensions):
    _gradient(F.pad, 1, 1, *[4] * dimensions, pad=[1, 1] * dimensions, mode=mode)


def _pool(name, dimensions, *args, **options):
    _gradient(lambda x: getattr(F, name)(x, *args, **options), 1, 1, *[4] * dimensions)


def _unpool(dimensions):
    x = _planes(dimensions, 2)
    getattr(F, f"max_unpool{dimensions}d")(x, torch.zeros_like(x, dtype=torch.int64), 2)


def _grid_sample(dimensions):
    grid = torch.rand(1, *[4] * dimensions, dimensions, device="cuda")
    _gradient(F.grid_sample, 1, 1, *[4] * dimensions, grid=grid, align_corners=False)


def _ctc_loss():
    lengths = torch.tensor([5, 5]), torch.tensor([3, 3])
    _gradient(lambda x: F.ctc_loss(x.log_softmax(2), _indices(2, 3) + 1, *lengths), 5, 2, 4)


# The first of the calls of each entry of the docstring that throw, and the name in the text.
THROWS = {
    "AvgPool3d": lambda: _pool("avg_pool3d", 3, 2),
    "AdaptiveAvgPool2d": lambda: _pool("adaptive_avg_pool2d", 2, 2),
    "AdaptiveAvgPool3d": lambda: _pool("adaptive_avg_pool3d", 3, 2),
    "AdaptiveMaxPool2d": lambda: _pool("adaptive_max_pool2d", 2, 2),
    "FractionalMaxPool2d": lambda: _pool("fractional_max_pool2d", 2, 2, output_size=2),
    "FractionalMaxPool3d": lambda: _pool("fractional_max_pool3d", 3, 2, output_size=2),
    "MaxUnpool1d": lambda: _unpool(1),
    "MaxUnpool2d": lambda: _unpool(2),
    "MaxUnpool3d": lambda: _unpool(3),
    "linear": lambda: _interpolate("linear", 1),
    "bilinear": None,
    "bicubic": (lambda: _interpolate("bicubic", 2)) if RELEASE in ("2.13", "2.14") else None,
    "trilinear": None,
    "ReflectionPad1d": lambda: _pad("reflect", 1),
    "ReflectionPad2d": None,
    "ReflectionPad3d": lambda: _pad("reflect", 3),
    "NLLLoss": lambda: F.nll_loss(_numbers(1, 2, 4, 4), _indices(1, 4, 4)),
    "CTCLoss": _ctc_loss,
    "EmbeddingBag": lambda: _gradient(
        lambda x: F.embedding_bag(_indices(1, 2), x, mode="max"), 4, 3
    ),
    "put_": lambda: _numbers(4).put_(_indices(2), _numbers(2)),
    "put_ accumulate": lambda: _numbers(4).put_(_indices(2), _numbers(2), accumulate=True),
    "histc": lambda: _numbers(4).histc(),
    "bincount": lambda: torch.bincount(_indices(2), _numbers(2)),
    "median": lambda: _numbers(4).median(0),
    "grid_sample": lambda: _grid_sample(2),
    "cumsum": None,
    "scatter_reduce": lambda: _numbers(2).scatter_reduce(0, _indices(2), _numbers(2), "prod"),
    "resize_": lambda: torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8).resize_(2),
}
# Without a call: torch's Python code decomposes it in this mode, or CUDA's kernel is deterministic
# in all releases that are supported, and the docstring is older.
WITHOUT_CALL = {
    "bilinear": lambda: _interpolate("bilinear", 2),
    "bicubic": lambda: _interpolate("bicubic", 2),
    "trilinear": lambda: _interpolate("trilinear", 3),
    "ReflectionPad2d": lambda: _pad("reflect", 2),
    "cumsum": lambda: _numbers(4).cumsum(0),
}

# Those that act deterministically.
ACTS = {
    **{
        f"{name}{n}d": lambda name=name, n=n: _gradient(
            lambda x: getattr(F, name.lower().replace("convt", "conv_t") + f"{n}d")(
                x, torch.rand(1, 1, *[2] * n, device="cuda")
            ),
            *(1, 1, *[4] * n),
        )
        for name in ("Conv", "ConvTranspose")
        for n in (1, 2, 3)
    },
    **{f"ReplicationPad{n}d": lambda n=n: _pad("replicate", n) for n in (1, 2, 3)},
    "bmm": lambda: torch.bmm(torch.rand(2, 3, 3).to_sparse().cuda(), _numbers(2, 3, 3)),
    "__getitem__": lambda: _gradient(lambda x: x[[0, 0, 1]], 4, 3),
    "index_put": lambda: _numbers(4).index_put((_indices(2),), _numbers(2)),
    "index_put accumulate": lambda: _numbers(4).index_put((_indices(2),), _numbers(2), True),
    "put_": None,  # a CPU tensor
    "scatter_add_": lambda: _numbers(4).scatter_add_(0, _indices(2), _numbers(2)),
    "gather": lambda: _gradient(lambda x: x.gather(0, _indices(2)), 4),
    "index_add": lambda: _numbers(4).index_add(0, _indices(2), _numbers(2)),
    "index_select": lambda: _gradient(lambda x: x.index_select(0, _indices(2)), 4),
    "repeat_interleave": lambda: _gradient(lambda x: x.repeat_interleave(2), 4),
    "index_copy": lambda: _numbers(4).index_copy(0, _indices(2), _numbers(2)),
    "scatter": lambda: _numbers(4).scatter(0, _indices(2), _numbers(2)),
    "scatter_reduce": lambda: _numbers(4).scatter_reduce(0, _indices(2), _numbers(2), "mean"),
    "MaxPool3d": None,  # CUDA's kernel throws, as the table has it
}
if RELEASE != "2.13":
    ACTS["cumsum"] = WITHOUT_CALL["cumsum"]
    ACTS["Embedding"] = lambda: _gradient(lambda x: F.embedding(_indices(2), x), 4, 3)
    del THROWS["cumsum"]


def _entries(start, end):
    """The names of the functions in a list of the docstring, in its order, without those of MPS."""
    text = inspect.getdoc(torch.use_deterministic_algorithms).split(start)[1].split(end)[0]
    for entry in re.findall(r"^\s*\* (.*(?:\n(?!\s*[*-] ).+)*)", text, re.MULTILINE):
        if "MPS" in entry and "CUDA" not in entry:
            continue
        name = re.match(r":\w+:`[\w.]*?(\w+)`", entry)[1]
        is_second = "accumulate=True" in entry and name in ("put_", "index_put")
        modes = re.findall(r"^\s*- ``(\w+)``", text, re.MULTILINE) if name == "interpolate" else []
        yield from modes or [f"{name} accumulate" if is_second else name]


class TestSparse(OpenRegTestCase):
    """Tensors of coordinates, whose kernels on CUDA no OpInfo has."""

    @parametrize(
        "dtype",
        [torch.float16, torch.bfloat16, torch.int32, torch.uint8, torch.bool, torch.complex32],
    )
    def test_products_with_dense_matrices_have_the_dtypes_of_cuda(self, dtype):
        dense = torch.ones(3, 3, dtype=torch.float32).to(dtype).cuda()
        sparse = torch.eye(3).to(dtype).to_sparse().cuda()
        calls = {
            "addmm": [
                lambda: torch.sparse.mm(sparse, dense),
                lambda: torch.sparse.addmm(dense, sparse, dense),
                lambda: torch.mv(sparse, dense[0]),
                lambda: torch.hspmm(sparse, dense),
            ],
            "bmm": [lambda: torch.bmm(sparse.unsqueeze(0), dense.unsqueeze(0))],
        }
        for name, ones in calls.items():
            text = f"^.{name}_sparse_cuda. not implemented for .{_names_in_texts(dtype)}"
            for call in ones:
                with self.assertRaisesRegex(NotImplementedError, text):
                    call()

    def test_products_of_complex_numbers_are_of_matrices(self):
        sparse, dense = torch.eye(3, dtype=torch.complex64).to_sparse().cuda(), _numbers(1, 3, 3)
        self.assertEqual(torch.sparse.mm(sparse, dense[0].cfloat()), dense[0].cfloat())
        with self.assertRaisesRegex(RuntimeError, "^Tensor types must be either float32 or"):
            torch.bmm(sparse.unsqueeze(0), dense.cfloat())

    @parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_products_that_cuda_has_are_served(self, dtype):
        x = torch.eye(3, dtype=dtype)
        vector = torch.arange(3).to(dtype)
        self.assertEqual(torch.sparse.mm(x.to_sparse().cuda(), x.to_sparse().cuda()).to_dense(), x)
        self.assertEqual(torch.mv(x.to_sparse_csr().cuda(), vector.cuda()), vector)

    def test_sums_on_two_devices_have_the_texts_of_cuda(self):
        dense, sparse = torch.ones(3, 3), torch.eye(3).to_sparse()
        calls = {
            "add: expected 'self' to be a CUDA tensor, but got a CPU tensor": (
                dense,
                sparse.cuda(),
            ),
            "add: expected 'other' to be a CUDA tensor, but got a CPU": (dense.cuda(), sparse),
            "add: expected 'self' to be CUDA, but got CPU": (sparse, sparse.cuda()),
            "add: expected 'other' to be CUDA, but got CPU": (sparse.cuda(), sparse),
            r"add\(sparse, dense\) is not supported": (sparse.cuda(), dense),
        }
        for text, (one, other) in calls.items():
            for function in (torch.add, torch.sub):
                with self.assertRaisesRegex(RuntimeError, f"^{text}"):
                    function(one, other)

    def test_operators_without_a_kernel_name_cudas_backend(self):
        text = r"^Could not run 'aten::exp.*' with arguments from the 'SparseCUDA' backend\."
        with self.assertRaisesRegex(NotImplementedError, text):
            torch.eye(3).to_sparse().cuda().exp()


class TestDocstring(_DeterministicTestCase):
    def test_each_entry_that_throws_throws(self):
        entries = list(_entries(":class:`RuntimeError` when ``mode=True``:", "In addition"))
        self.assertEqual(set(entries), set(THROWS))
        for name in entries:
            if THROWS[name] is None:
                self.assertIsNone(self.alert_of(WITHOUT_CALL[name]), name)
            else:
                self.assertIsNotNone(self.alert_of(THROWS[name]), name)

    def test_each_entry_that_throws_warns_once_with_warn_only(self):
        for name, call in THROWS.items():
            if call is None:
                continue
            call()
            torch.use_deterministic_algorithms(True, warn_only=True)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                call()
                torch.cuda.synchronize()
            torch.use_deterministic_algorithms(False)
            texts = [str(one.message) for one in caught]
            found = [text for text in texts if "does not have a deterministic" in text]
            self.assertEqual(len(found), 1, f"{name} {texts}")

    def test_each_entry_that_acts_deterministically_is_served(self):
        entries = list(_entries("deterministically when ``mode=True``:", "The following normally"))
        names = {name.removesuffix(" accumulate") for name in entries}
        self.assertEqual(names, {name.removesuffix(" accumulate") for name in ACTS})
        for name, call in ACTS.items():
            if call is not None:
                self.assertIsNone(self.alert_of(call), name)


instantiate_parametrized_tests(TestDtypes)
instantiate_parametrized_tests(TestTexts)
instantiate_parametrized_tests(TestDtypesOfNoTable)
instantiate_parametrized_tests(TestRules)
instantiate_parametrized_tests(TestAlerts)
instantiate_parametrized_tests(TestSparse)

if __name__ == "__main__":
    run_tests()
