"""Arithmetic, casts and functions of Triton kernels, against torch and numpy on the CPU."""

import unittest

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from launcher import launch
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)
from triton.language.extra import libdevice
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from torch_openreg.extras.triton._lowered import Options

pytestmark = pytest.mark.sample(0.4)

SIZE = 200
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
)
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def floats(dtype, low=-4.0, high=4.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(SIZE, generator=generator, dtype=torch.float64) * (high - low) + low
    return values.to(dtype)


def integers(dtype, seed=0):
    info = torch.iinfo(dtype)
    state = np.random.RandomState(seed)
    kind = str(dtype).removeprefix("torch.")
    values = np.frombuffer(state.bytes(SIZE * info.bits // 8), dtype=kind).copy()
    return torch.from_numpy(values)


@triton.jit
def binary_floats(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    x = tl.load(x_ptr + i, mask=mask)
    y = tl.load(y_ptr + i, mask=mask)
    tl.store(out_ptr + i, x + y, mask=mask)
    tl.store(out_ptr + n + i, x - y, mask=mask)
    tl.store(out_ptr + 2 * n + i, x * y, mask=mask)
    tl.store(out_ptr + 3 * n + i, x / y, mask=mask)
    tl.store(out_ptr + 4 * n + i, tl.maximum(x, y), mask=mask)
    tl.store(out_ptr + 5 * n + i, tl.minimum(x, y), mask=mask)
    tl.store(out_ptr + 6 * n + i, tl.where(x < y, x, -y), mask=mask)
    tl.store(out_ptr + 7 * n + i, x * y + x, mask=mask)
    tl.store(out_ptr + 8 * n + i, tl.abs(x), mask=mask)
    tl.store(out_ptr + 9 * n + i, x % y, mask=mask)
    equal = (x == y).to(x.dtype) + (x <= y).to(x.dtype) * 2 + (x >= y).to(x.dtype) * 4
    tl.store(out_ptr + 10 * n + i, equal + (x != y).to(x.dtype) * 8, mask=mask)
    tl.store(out_ptr + 11 * n + i, tl.clamp(x, -1.0, 1.0).to(x.dtype), mask=mask)


def expected_binary_floats(x, y):
    truncated = torch.fmod(x.double(), y.double()).to(x.dtype)
    equal = (x == y).to(x.dtype) + (x <= y) * 2 + (x >= y) * 4 + (x != y) * 8
    return {
        "x + y": x + y,
        "x - y": x - y,
        "x * y": x * y,
        "x / y": x / y,
        "maximum": torch.maximum(x, y),
        "minimum": torch.minimum(x, y),
        "where": torch.where(x < y, x, -y),
        "x * y + x": x * y + x,
        "abs": x.abs(),
        "x % y": truncated,
        "comparisons": equal.to(x.dtype),
        "clamp": x.clamp(-1, 1),
    }


@triton.jit
def binary_integers(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    x = tl.load(x_ptr + i, mask=mask)
    y = tl.load(y_ptr + i, mask=mask)
    bits: tl.constexpr = x.dtype.primitive_bitwidth
    shift = y & (bits - 1)
    tl.store(out_ptr + i, x + y, mask=mask)
    tl.store(out_ptr + n + i, x - y, mask=mask)
    tl.store(out_ptr + 2 * n + i, x * y, mask=mask)
    tl.store(out_ptr + 3 * n + i, x // y, mask=mask)
    tl.store(out_ptr + 4 * n + i, x % y, mask=mask)
    tl.store(out_ptr + 5 * n + i, x & y, mask=mask)
    tl.store(out_ptr + 6 * n + i, x | y, mask=mask)
    tl.store(out_ptr + 7 * n + i, x ^ y, mask=mask)
    tl.store(out_ptr + 8 * n + i, x << shift, mask=mask)
    tl.store(out_ptr + 9 * n + i, x >> shift, mask=mask)
    tl.store(out_ptr + 10 * n + i, tl.maximum(x, y), mask=mask)
    tl.store(out_ptr + 11 * n + i, tl.minimum(x, y), mask=mask)
    tl.store(out_ptr + 12 * n + i, tl.where(x < y, x, y), mask=mask)
    less = (x < y).to(x.dtype) + (x <= y).to(x.dtype) * 2 + (x > y).to(x.dtype) * 4
    tl.store(out_ptr + 13 * n + i, less + (x == y).to(x.dtype) * 8, mask=mask)
    tl.store(out_ptr + 14 * n + i, ~x, mask=mask)
    tl.store(out_ptr + 15 * n + i, x // 7, mask=mask)
    tl.store(out_ptr + 16 * n + i, x % 7, mask=mask)


def expected_binary_integers(x, y):
    x, y = x.numpy(), y.numpy()
    shift = y & (8 * y.itemsize - 1)
    seven = x.dtype.type(7)

    def quotient(a, b):
        floor = a // b
        rest = a - floor * b
        return np.where((rest != 0) & ((a < 0) != (b < 0)), floor + 1, floor).astype(a.dtype)

    less = (x < y) * 1 + (x <= y) * 2 + (x > y) * 4 + (x == y) * 8
    return {
        "x + y": x + y,
        "x - y": x - y,
        "x * y": x * y,
        "x // y": quotient(x, y),
        "x % y": np.fmod(x, y),
        "x & y": x & y,
        "x | y": x | y,
        "x ^ y": x ^ y,
        "x << y": x << shift,
        "x >> y": x >> shift,
        "maximum": np.maximum(x, y),
        "minimum": np.minimum(x, y),
        "where": np.where(x < y, x, y),
        "comparisons": less.astype(x.dtype),
        "~x": ~x,
        "x // 7": quotient(x, seven),
        "x % 7": np.fmod(x, seven),
    }


@triton.jit
def unary_floats(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    x = tl.load(x_ptr + i, mask=mask, other=1.0)
    p = tl.abs(x) + 0.125
    tl.store(out_ptr + i, tl.exp(x), mask=mask)
    tl.store(out_ptr + n + i, tl.exp2(x), mask=mask)
    tl.store(out_ptr + 2 * n + i, tl.log(p), mask=mask)
    tl.store(out_ptr + 3 * n + i, tl.log2(p), mask=mask)
    tl.store(out_ptr + 4 * n + i, tl.sin(x), mask=mask)
    tl.store(out_ptr + 5 * n + i, tl.cos(x), mask=mask)
    tl.store(out_ptr + 6 * n + i, tl.sqrt(p), mask=mask)
    tl.store(out_ptr + 7 * n + i, tl.rsqrt(p), mask=mask)
    tl.store(out_ptr + 8 * n + i, tl.erf(x), mask=mask)
    tl.store(out_ptr + 9 * n + i, tl.floor(x), mask=mask)
    tl.store(out_ptr + 10 * n + i, tl.ceil(x), mask=mask)
    tl.store(out_ptr + 11 * n + i, tl.fma(x, p, x), mask=mask)
    tl.store(out_ptr + 12 * n + i, tl.sigmoid(x), mask=mask)
    tl.store(out_ptr + 13 * n + i, libdevice.tanh(x), mask=mask)
    tl.store(out_ptr + 14 * n + i, libdevice.pow(p, x), mask=mask)
    tl.store(out_ptr + 15 * n + i, libdevice.log1p(p), mask=mask)
    tl.store(out_ptr + 16 * n + i, libdevice.expm1(x), mask=mask)
    tl.store(out_ptr + 17 * n + i, libdevice.rint(x), mask=mask)
    tl.store(out_ptr + 18 * n + i, libdevice.trunc(x), mask=mask)
    tl.store(out_ptr + 19 * n + i, libdevice.atan2(x, p), mask=mask)
    tl.store(out_ptr + 20 * n + i, libdevice.erfinv(x * 0.24), mask=mask)
    tl.store(out_ptr + 21 * n + i, libdevice.cyl_bessel_i0(x), mask=mask)
    tl.store(out_ptr + 22 * n + i, libdevice.cyl_bessel_i1(x), mask=mask)
    tl.store(out_ptr + 23 * n + i, libdevice.erfcx(x), mask=mask)
    tl.store(out_ptr + 24 * n + i, libdevice.lgamma(p), mask=mask)
    tl.store(out_ptr + 25 * n + i, libdevice.div_rn(x, p), mask=mask)
    tl.store(out_ptr + 26 * n + i, libdevice.sqrt_rn(p), mask=mask)


def expected_unary_floats(x):
    x = x.double()
    p = x.abs() + 0.125
    special = torch.special
    return {
        "exp": x.exp(),
        "exp2": x.exp2(),
        "log": p.log(),
        "log2": p.log2(),
        "sin": x.sin(),
        "cos": x.cos(),
        "sqrt": p.sqrt(),
        "rsqrt": p.rsqrt(),
        "erf": x.erf(),
        "floor": x.floor(),
        "ceil": x.ceil(),
        "fma": x * p + x,
        "sigmoid": x.sigmoid(),
        "tanh": x.tanh(),
        "pow": p.pow(x),
        "log1p": p.log1p(),
        "expm1": x.expm1(),
        "rint": x.round(),
        "trunc": x.trunc(),
        "atan2": torch.atan2(x, p),
        "erfinv": special.erfinv(x * 0.24),
        "i0": special.i0(x),
        "i1": special.i1(x),
        "erfcx": special.erfcx(x),
        "lgamma": torch.lgamma(p),
        "div_rn": x / p,
        "sqrt_rn": p.sqrt(),
    }


@triton.jit
def powers(x_ptr, out_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    tl.store(out_ptr + i, tl.exp(x))
    tl.store(out_ptr + BLOCK + i, tl.exp2(x))


@triton.jit
def quotients(x_ptr, y_ptr, out_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.fdiv(tl.load(x_ptr + i), tl.load(y_ptr + i), approx=True))


@triton.jit
def ordered_copy(x_ptr, out_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    gdc_wait()
    # As releases before 3.9 have it.
    tl.inline_asm_elementwise("griddepcontrol.wait; // dummy $0", "=r", [], tl.int32, False, 1)
    tl.store(out_ptr + i, tl.load(x_ptr + i))
    gdc_launch_dependents()


@triton.jit
def cast(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(out_ptr + i, x.to(out_ptr.dtype.element_ty), mask=i < n)


@triton.jit
def cast_to_numbers(x_ptr, n, a, b, c, d, e, f, g, h, i, j, k, m, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    x = tl.load(x_ptr + at, mask=mask)
    tl.store(a + at, x.to(a.dtype.element_ty), mask=mask)
    tl.store(b + at, x.to(b.dtype.element_ty), mask=mask)
    tl.store(c + at, x.to(c.dtype.element_ty), mask=mask)
    tl.store(d + at, x.to(d.dtype.element_ty), mask=mask)
    tl.store(e + at, x.to(e.dtype.element_ty), mask=mask)
    tl.store(f + at, x.to(f.dtype.element_ty), mask=mask)
    tl.store(g + at, x.to(g.dtype.element_ty), mask=mask)
    tl.store(h + at, x.to(h.dtype.element_ty), mask=mask)
    tl.store(i + at, x.to(i.dtype.element_ty), mask=mask)
    tl.store(j + at, x.to(j.dtype.element_ty), mask=mask)
    tl.store(k + at, x.to(k.dtype.element_ty), mask=mask)
    tl.store(m + at, x.to(m.dtype.element_ty), mask=mask)


@triton.jit
def bit_cast(x_ptr, out_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    tl.store(out_ptr + i, x.to(out_ptr.dtype.element_ty, bitcast=True))


@triton.jit
def wide_products(x_ptr, y_ptr, out_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.umulhi(tl.load(x_ptr + i), tl.load(y_ptr + i)))


@triton.jit
def bits(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0)
    tl.store(out_ptr + i, libdevice.clz(x), mask=i < n)
    tl.store(out_ptr + n + i, libdevice.popc(x), mask=i < n)
    tl.store(out_ptr + 2 * n + i, libdevice.brev(x), mask=i < n)
    tl.store(out_ptr + 3 * n + i, libdevice.ffs(x), mask=i < n)
    tl.store(out_ptr + 4 * n + i, libdevice.byte_perm(x, ~x, 0x5410), mask=i < n)


@triton.jit
def by_zero(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0)
    y = tl.load(y_ptr + i, mask=i < n, other=0)
    tl.store(out_ptr + i, x // y, mask=i < n)
    tl.store(out_ptr + n + i, x % y, mask=i < n)


@triton.jit
def maxima_of_nan(x_ptr, y_ptr, out_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    y = tl.load(y_ptr + i)
    all_nan: tl.constexpr = tl.PropagateNan.ALL
    tl.store(out_ptr + i, tl.maximum(x, y))
    tl.store(out_ptr + BLOCK + i, tl.maximum(x, y, propagate_nan=all_nan))
    tl.store(out_ptr + 2 * BLOCK + i, tl.minimum(x, y))
    tl.store(out_ptr + 3 * BLOCK + i, tl.minimum(x, y, propagate_nan=all_nan))


class TestElementwise(TestCase):
    def check_rows(self, result, expected, **tolerance):
        for row, (name, value) in zip(result, expected.items(), strict=True):
            value = torch.as_tensor(value).to(row.dtype)
            self.assertEqual(row, value, msg=lambda text, name=name: f"{name}: {text}", **tolerance)

    @parametrize("dtype", FLOATS)
    def test_floats_have_the_bits_of_torch(self, dtype):
        x, y = floats(dtype), floats(dtype, seed=1)
        expected = expected_binary_floats(x, y)
        result = torch.empty(len(expected), SIZE, dtype=dtype)
        launch(binary_floats, (2,), x, y, result, SIZE, BLOCK=128, options=Options(fuses=False))
        self.check_rows(result, expected, rtol=0, atol=0)

    @parametrize("dtype", INTEGERS)
    def test_integers_have_the_bits_of_numpy(self, dtype):
        x, y = integers(dtype), integers(dtype, seed=1)
        y.numpy()[y.numpy() == 0] = 1
        with np.errstate(all="ignore"):
            expected = expected_binary_integers(x, y)
        result = torch.empty(len(expected), SIZE, dtype=dtype)
        launch(binary_integers, (2,), x, y, result, SIZE, BLOCK=128)
        self.check_rows(result, expected, rtol=0, atol=0)

    @parametrize("dtype", (torch.float32, torch.float64))
    def test_functions_are_close_to_torch(self, dtype):
        x = floats(dtype)
        expected = expected_unary_floats(x)
        result = torch.empty(len(expected), SIZE, dtype=dtype)
        launch(unary_floats, (2,), x, result, SIZE, BLOCK=128)
        tolerance = 2e-6 if dtype == torch.float32 else 1e-12
        self.check_rows(result, expected, rtol=tolerance, atol=tolerance)

    @parametrize("source", (*FLOATS, *INTEGERS))
    def test_casts_between_numbers(self, source):
        x = floats(source, 0, 100) if source.is_floating_point else integers(source)
        results = [torch.empty(SIZE, dtype=target) for target in (*FLOATS, *INTEGERS)]
        launch(cast_to_numbers, (2,), x, SIZE, *results, BLOCK=128)
        for result in results:
            expected = x.to(result.dtype)
            text = f"{source} to {result.dtype}"
            self.assertEqual(result, expected, rtol=0, atol=0, msg=text)

    @parametrize("narrow", FP8)
    def test_casts_of_eight_bits(self, narrow):
        x = floats(torch.float32, -200, 200)
        for wide in FLOATS:
            result = torch.empty(SIZE, dtype=narrow)
            launch(cast, (2,), x.to(wide), result, SIZE, BLOCK=128)
            self.assertEqual(result.float(), x.to(wide).to(narrow).float(), rtol=0, atol=0)
            back = torch.empty(SIZE, dtype=wide)
            launch(cast, (2,), result, back, SIZE, BLOCK=128)
            self.assertEqual(back, result.to(wide), rtol=0, atol=0)

    def test_each_narrow_number_is_read_and_written_as_torch_does(self):
        for dtype, bits in (
            (torch.float16, torch.int16),
            (torch.bfloat16, torch.int16),
            (torch.float8_e4m3fn, torch.uint8),
            (torch.float8_e5m2, torch.uint8),
            (torch.float8_e4m3fnuz, torch.uint8),
            (torch.float8_e5m2fnuz, torch.uint8),
        ):
            count = 2**16 if bits == torch.int16 else 256
            x = torch.arange(count).to(bits).view(dtype)
            wide = torch.empty(count)
            launch(cast, (count // 256,), x, wide, count, BLOCK=256)
            self.assertEqual(wide, x.float(), rtol=0, atol=0, msg=str(dtype))
            back = torch.empty(count, dtype=dtype)
            launch(cast, (count // 256,), wide, back, count, BLOCK=256)
            finite = wide.isfinite()
            self.assertEqual(back.view(bits)[finite], x.view(bits)[finite], msg=str(dtype))

    @parametrize("dtype", (torch.float16, torch.bfloat16, *FP8))
    def test_rounding_is_to_the_nearest_even(self, dtype):
        x = torch.randn(4096, generator=torch.Generator().manual_seed(0))
        x = x * 2.0 ** torch.arange(-30, 6).repeat(114)[:4096]
        halves = torch.arange(128).float() + 0.5
        x = torch.cat([x, halves, -halves, 2.0**-10 * halves])
        result = torch.empty(len(x), dtype=dtype)
        launch(cast, (-(-len(x) // 256),), x, result, len(x), BLOCK=256)
        self.assertEqual(result.float(), x.to(dtype).float(), rtol=0, atol=0)

    def test_numbers_out_of_an_integers_range_saturate(self):
        x = torch.tensor([1e20, -1e20, float("nan"), 3.9, -3.9, 2147483648.0, 5e9, -1.0])
        result = torch.empty(8, dtype=torch.int32)
        launch(cast, (1,), x, result, 8, BLOCK=8)
        top = 2**31 - 1
        self.assertEqual(result.tolist(), [top, -top - 1, 0, 3, -3, top, top, -1])
        wide = torch.empty(8, dtype=torch.int64)
        launch(cast, (1,), x, wide, 8, BLOCK=8)
        self.assertEqual(wide.tolist()[:3], [2**63 - 1, -(2**63), 0])

    def test_bits_become_numbers(self):
        x = floats(torch.float32)[:128]
        for dtype in (torch.int32, torch.uint32):
            result = torch.empty(128, dtype=dtype)
            launch(bit_cast, (1,), x, result, BLOCK=128)
            self.assertEqual(result, x.view(dtype))
        half = x.half()
        result = torch.empty(128, dtype=torch.bfloat16)
        launch(bit_cast, (1,), half, result, BLOCK=128)
        self.assertEqual(result, half.view(torch.bfloat16))

    @parametrize("dtype", (torch.uint32, torch.uint64, torch.int32))
    def test_high_halves_of_products(self, dtype):
        x, y = integers(dtype)[:128], integers(dtype, 1)[:128]
        result = torch.empty(128, dtype=dtype)
        launch(wide_products, (1,), x, y, result, BLOCK=128)
        width = torch.iinfo(dtype).bits
        mask = 2**width - 1
        expected = [
            ((a & mask) * (b & mask)) >> width for a, b in zip(x.tolist(), y.tolist(), strict=True)
        ]
        self.assertEqual([one & mask for one in result.tolist()], expected)

    def test_bits_are_counted(self):
        x = integers(torch.int32)[:128]
        x[0] = 0
        result = torch.empty(5, 128, dtype=torch.int32)
        launch(bits, (1,), x, result, 128, BLOCK=128)
        unsigned = [one & 0xFFFFFFFF for one in x.tolist()]
        leading, ones, reverse, first, permuted = result.tolist()
        self.assertEqual(leading, [32 - one.bit_length() for one in unsigned])
        self.assertEqual(ones, [one.bit_count() for one in unsigned])
        self.assertEqual(
            [one & 0xFFFFFFFF for one in reverse], [int(f"{one:032b}"[::-1], 2) for one in unsigned]
        )
        self.assertEqual(first, [(one & -one).bit_length() for one in unsigned])
        low = [one & 0xFFFF | ((~one & 0xFFFF) << 16) for one in unsigned]
        self.assertEqual([one & 0xFFFFFFFF for one in permuted], low)

    @parametrize("dtype", (torch.int8, torch.int32, torch.int64))
    def test_a_division_by_zero_ends_no_process(self, dtype):
        least = torch.iinfo(dtype).min
        x = torch.tensor([1, least, least, 7], dtype=dtype)
        y = torch.tensor([0, -1, 0, -2], dtype=dtype)
        result = torch.empty(2, 4, dtype=dtype)
        launch(by_zero, (1,), x, y, result, 4, BLOCK=8)
        self.assertEqual(result[0, 1].item(), least)
        self.assertEqual(result[1, 1].item(), 0)
        self.assertEqual(result[:, 3].tolist(), [-3, 1])

    def test_powers_at_the_ends_of_their_range(self):
        infinity, nan = float("inf"), float("nan")
        edges = [infinity, -infinity, nan, 0.0, -0.0, 3e38, -3e38, 1e-40, 88.72, 88.7228, 88.7229]
        edges += [89.0, 127.99999, 128.0, -126.0, -126.5, -149.0, -151.0, -87.3, -87.4, -95.0]
        edges += [-103.9, -104.5, *(float(one) for one in range(-10, 11))]
        x = torch.tensor(edges + [1.0] * (64 - len(edges)))
        out = torch.zeros(2, 64)
        launch(powers, (1,), x, out, BLOCK=64)
        # Two units in the last place, and one of the least number.
        for row, expected in zip(out, (x.double().exp(), x.double().exp2()), strict=True):
            torch.testing.assert_close(
                row, expected.float(), rtol=2**-22, atol=2**-149, equal_nan=True
            )
        whole = x == x.round()
        self.assertEqual(out[1][whole], x[whole].double().exp2().float(), rtol=0, atol=0)

    @unittest.skipIf(triton.__version__ < "3.9", "this release of Triton divides in one way")
    def test_approximate_quotients_are_exact(self):
        x, y = floats(torch.float32)[:128], floats(torch.float32, 1.0, 9.0, seed=1)[:128]
        out = torch.zeros(128)
        launch(quotients, (1,), x, y, out, BLOCK=128)
        self.assertEqual(out, x / y, rtol=0, atol=0)

    def test_waits_for_other_launches_are_nothing(self):
        x, out = floats(torch.float32)[:128], torch.zeros(128)
        launch(ordered_copy, (1,), x, out, BLOCK=128)
        self.assertEqual(out, x)

    def test_maxima_ignore_nan_or_return_it(self):
        nan = float("nan")
        x = torch.tensor([nan, 1.0, nan, 2.0])
        y = torch.tensor([1.0, nan, nan, 3.0])
        result = torch.empty(4, 4)
        launch(maxima_of_nan, (1,), x, y, result, BLOCK=4)
        self.assertEqual(result[0], torch.fmax(x, y))
        self.assertEqual(result[1], torch.maximum(x, y))
        self.assertEqual(result[2], torch.fmin(x, y))
        self.assertEqual(result[3], torch.minimum(x, y))


instantiate_parametrized_tests(TestElementwise)

if __name__ == "__main__":
    run_tests()
