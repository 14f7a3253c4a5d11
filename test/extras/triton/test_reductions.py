"""Reductions, scans, sorts, and what moves elements within tensors, against torch on the CPU."""

import re

import pytest
import torch
import triton
import triton.language as tl
from launcher import KernelError, launch, lowered
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

pytestmark = pytest.mark.sample(0.3)

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64)


@triton.jit
def reductions(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr):
    i, j = tl.arange(0, M), tl.arange(0, N)
    x = tl.load(x_ptr + i[:, None] * N + j[None, :])
    kept: tl.constexpr = N if AXIS == 0 else M
    k = tl.arange(0, kept)
    tl.store(out_ptr + k, tl.sum(x, AXIS))
    tl.store(out_ptr + kept + k, tl.max(x, AXIS))
    tl.store(out_ptr + 2 * kept + k, tl.min(x, AXIS))
    tl.store(out_ptr + 3 * kept + k, tl.argmax(x, AXIS))
    tl.store(out_ptr + 4 * kept + k, tl.argmin(x, AXIS))
    tl.store(out_ptr + 5 * kept + k, tl.sum(tl.trans(x * x), 1 - AXIS))


@triton.jit
def whole(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    tl.store(out_ptr, tl.sum(x))
    tl.store(out_ptr + 1, tl.max(x))
    tl.store(out_ptr + 2, tl.sum(tl.sum(x, 0, keep_dims=True)))


@triton.jit
def of_one_column(x_ptr, out_ptr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N)[:, None])
    tl.store(out_ptr + tl.arange(0, 1), tl.sum(x, 0))


@triton.jit
def of_three_dimensions(x_ptr, out_ptr, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr):
    a, b, c = tl.arange(0, A), tl.arange(0, B), tl.arange(0, C)
    x = tl.load(x_ptr + a[:, None, None] * B * C + b[None, :, None] * C + c[None, None, :])
    tl.store(out_ptr + b[:, None] * C + c[None, :], tl.sum(x, 0))
    out_ptr += B * C
    tl.store(out_ptr + a[:, None] * C + c[None, :], tl.sum(x, 1))
    out_ptr += A * C
    tl.store(out_ptr + a[:, None] * B + b[None, :], tl.sum(x, 2))


@triton.jit
def of_weighted_rows(
    x_ptr,
    weights_ptr,
    out_ptr,
    A: tl.constexpr,
    B: tl.constexpr,
    C: tl.constexpr,
    STEP: tl.constexpr,
):
    a, b, c = tl.arange(0, A), tl.arange(0, B), tl.arange(0, C)
    x = tl.load(x_ptr + a[:, None, None] * B * C + b[None, :, None] * C + c[None, None, :])
    # Its rows lie along b, and are read through a buffer: some elements are missing.
    at = a[:, None] * B * STEP + b[None, :] * STEP
    weights = tl.load(weights_ptr + at, mask=b[None, :] < B - 1, other=2.0)
    tl.store(out_ptr + b[:, None] * C + c[None, :], tl.sum(x * weights[:, :, None], 0))


@triton.jit
def with_transposed(x_ptr, out_ptr, sums_ptr, N: tl.constexpr, STEP: tl.constexpr, count):
    i = tl.arange(0, N)
    at = i[:, None] * N + i[None, :]
    pointers = x_ptr + at * STEP
    x = tl.load(pointers)
    tl.store(sums_ptr + i, tl.sum(x - 2 * tl.trans(x), 0))
    kept = tl.zeros((N, N), tl.float32)
    for _ in range(count):
        x = tl.load(pointers)
        kept = x - 2 * tl.trans(x)
    tl.store(out_ptr + at, kept)


@triton.jit
def of_many_dimensions(x_ptr, y_ptr, out_ptr):
    i = tl.arange(0, 128)
    x = tl.reshape(tl.load(x_ptr + i) * 2, [2, 2, 4, 2, 4])
    k = tl.arange(0, 64)
    tl.store(out_ptr + k, tl.reshape(tl.sum(x, 0), [64]))
    tl.store(out_ptr + 64 + k, tl.reshape(tl.max(x, 1), [64]))
    tl.store(out_ptr + 128 + k, tl.reshape(tl.sum(x, 3), [64]))
    out_ptr += 192
    tl.store(out_ptr + i, tl.reshape(tl.permute(x, [3, 1, 4, 0, 2]), [128]))
    centered = x - tl.sum(x, 3, keep_dims=True) / 2
    tl.store(out_ptr + 128 + i, tl.reshape(centered * centered, [128]))
    y = tl.load(y_ptr + tl.reshape(i, [2, 2, 4, 2, 4]))
    tl.store(out_ptr + 256 + k, tl.reshape(tl.sum(y, 3), [64]))
    tl.store(out_ptr + 320 + k, tl.reshape(tl.sum(y, 0), [64]))


@triton.jit
def first_maximum(a, i, b, j):
    is_first = (a > b) | ((a == b) & (i < j))
    return tl.where(is_first, a, b), tl.where(is_first, i, j)


@triton.jit
def branching(a, b):
    if a > b:
        return a
    else:
        return b


@triton.jit
def of_functions(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    value, place = tl.reduce((x, i), 0, first_maximum)
    tl.store(out_ptr, value)
    tl.store(out_ptr + 1, place)
    tl.store(out_ptr + 2, tl.reduce(x, 0, branching))
    tl.store(out_ptr + 3, tl.xor_sum(i, 0))


@triton.jit
def recurrence(a, b, c, d):
    return a * c, b * c + d


@triton.jit
def scans(x_ptr, y_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + at)
    y = tl.load(y_ptr + at)
    size: tl.constexpr = M * N
    tl.store(out_ptr + at, tl.cumsum(x, AXIS))
    tl.store(out_ptr + size + at, tl.cumprod(x, AXIS))
    tl.store(out_ptr + 2 * size + at, tl.cumsum(x, AXIS, reverse=True))
    decay, state = tl.associative_scan((x, y), AXIS, recurrence)
    tl.store(out_ptr + 3 * size + at, decay)
    tl.store(out_ptr + 4 * size + at, state)


@triton.jit
def sorted_rows(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + at)
    size: tl.constexpr = M * N
    tl.store(out_ptr + at, tl.sort(x))
    tl.store(out_ptr + size + at, tl.sort(x, descending=True))
    tl.store(out_ptr + 2 * size + at, tl.flip(x, 1))


@triton.jit
def largest(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    i = tl.arange(0, M)[:, None]
    x = tl.load(x_ptr + i * N + tl.arange(0, N)[None, :])
    tl.store(out_ptr + i * K + tl.arange(0, K)[None, :], tl.topk(x, K))


@triton.jit
def moved(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    pairs = tl.join(x, x * 10)
    both = tl.arange(0, 2 * N)
    tl.store(out_ptr + both, tl.reshape(pairs, [2 * N]))
    a, b = tl.split(pairs * 2)
    tl.store(out_ptr + 2 * N + i, a)
    tl.store(out_ptr + 3 * N + i, b)
    tl.store(out_ptr + 4 * N + both, tl.interleave(a, b))
    tl.store(out_ptr + 6 * N + both, tl.cat(x, a, can_reorder=True))
    square = tl.reshape(x, [4, N // 4])
    at = tl.arange(0, 4)[:, None] + tl.arange(0, N // 4)[None, :] * 4
    tl.store(out_ptr + 8 * N + at, square)
    cube = tl.permute(tl.reshape(x, [2, 2, N // 4]), [2, 0, 1])
    tl.store(out_ptr + 9 * N + i, tl.reshape(cube, [N]))
    tl.store(out_ptr + 10 * N + i, tl.reshape(tl.broadcast_to(x[None, :], [1, N]), [N]))
    tl.store(out_ptr + 11 * N + i, tl.ravel(tl.trans(square)))


@triton.jit
def counted(x_ptr, out_ptr, N: tl.constexpr, BINS: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    k = tl.arange(0, BINS)
    tl.store(out_ptr + k, tl.histogram(x, BINS))
    tl.store(out_ptr + BINS + k, tl.histogram(x, BINS, mask=i % 2 == 0))


@triton.jit
def gathered(x_ptr, at_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + at)
    tl.store(out_ptr + at, tl.gather(x, tl.load(at_ptr + at), AXIS))


@triton.jit
def random_numbers(out_ptr, bits_ptr, seed, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.rand(seed, i))
    tl.store(out_ptr + N + i, tl.randn(seed, i))
    a, _, _, d = tl.randint4x(seed, i)
    tl.store(bits_ptr + i, a)
    tl.store(bits_ptr + N + i, d)


@triton.jit
def difference_and_sum(a, b):
    return a - b, a + b


@triton.jit
def mapped(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.map_elementwise(difference_and_sum, tl.load(x_ptr + i), tl.load(y_ptr + i))
    tl.store(out_ptr + i, a)
    tl.store(out_ptr + N + i, b)


def philox(seed, counter):
    """The four words of Philox 4x32 with ten rounds."""
    mask = 2**32 - 1
    words, keys = [counter, 0, 0, 0], [seed & mask, seed >> 32]
    for _ in range(10):
        first, second = 0xD2511F53 * words[0], 0xCD9E8D57 * words[2]
        words = [
            (second >> 32) ^ words[1] ^ keys[0],
            second & mask,
            (first >> 32) ^ words[3] ^ keys[1],
            first & mask,
        ]
        keys = [(keys[0] + 0x9E3779B9) & mask, (keys[1] + 0xBB67AE85) & mask]
    return words


def values(dtype, *shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-20, 20, shape, generator=generator).to(dtype)


class TestReductions(TestCase):
    @parametrize("dtype", DTYPES)
    @parametrize("axis", (0, 1))
    def test_along_each_axis(self, dtype, axis):
        for shape in ((8, 64), (64, 8), (1, 16), (16, 1)):
            x = values(dtype, *shape)
            out = torch.empty(6, shape[1 - axis], dtype=dtype)
            launch(reductions, (1,), x, out, *shape, AXIS=axis)
            wide = x.double()
            expected = torch.stack(
                [
                    wide.sum(axis),
                    wide.amax(axis),
                    wide.amin(axis),
                    first_index(wide, wide.amax(axis, keepdim=True), axis),
                    first_index(wide, wide.amin(axis, keepdim=True), axis),
                    (wide * wide).sum(axis),
                ]
            )
            tolerance = 2e-2 if dtype in (torch.bfloat16, torch.float16) else 0
            self.assertEqual(out.double(), expected, rtol=tolerance, atol=0)

    def test_of_all_elements(self):
        x = values(torch.float32, 8, 16)
        out = torch.empty(3)
        launch(whole, (1,), x, out, 8, 16)
        self.assertEqual(out.tolist(), [x.sum().item(), x.max().item(), x.sum().item()])

    def test_of_one_column(self):
        x, out = torch.arange(8.0), torch.zeros(1)
        launch(of_one_column, (1,), x, out, N=8)
        self.assertEqual(out.item(), 28)

    def test_of_three_dimensions(self):
        x = values(torch.float32, 2, 4, 32)
        out = torch.empty(4 * 32 + 2 * 32 + 2 * 4)
        launch(of_three_dimensions, (1,), x, out, 2, 4, 32)
        self.assertEqual(out, torch.cat([x.sum(axis).flatten() for axis in range(3)]))

    @parametrize("size", (2, 4))
    @parametrize("step", (1, 3))
    def test_of_rows_that_are_read_at_several_indices(self, size, step):
        x, weights = values(torch.float32, size, 8, 16), values(torch.float32, size, 8, step)
        out = torch.empty(8, 16)
        launch(of_weighted_rows, (1,), x, weights, out, size, 8, 16, step)
        weights = weights[:, :, 0].clone()
        weights[:, -1] = 2
        self.assertEqual(out, (x * weights[:, :, None]).sum(0))

    @parametrize("step", (1, 3))
    def test_rows_and_columns_of_one_load(self, step):
        x = values(torch.float32, 8, 8, step)
        out, sums = torch.empty(8, 8), torch.empty(8)
        launch(with_transposed, (1,), x, out, sums, 8, step, 2)
        expected = x[:, :, 0] - 2 * x[:, :, 0].T
        self.assertEqual(out, expected)
        self.assertEqual(sums, expected.sum(0))

    def test_of_many_dimensions(self):
        x, y = values(torch.float32, 128), torch.randn(128)
        out = torch.empty(576)
        launch(of_many_dimensions, (1,), x, y, out)
        x, y = 2 * x.reshape(2, 2, 4, 2, 4), y.reshape(2, 2, 4, 2, 4)
        centered = x - x.sum(3, keepdim=True) / 2
        expected = [
            *(x.sum(0), x.amax(1), x.sum(3), x.permute(3, 1, 4, 0, 2), centered * centered),
            *(y.sum(3), y.sum(0)),
        ]
        self.assertEqual(out, torch.cat([one.flatten() for one in expected]))

    def test_loops_over_many_short_dimensions_are_one(self):
        # The compiler takes minutes for nests of loops with two turns each.
        x = torch.empty(1, 512, dtype=torch.bfloat16)
        source = lowered(sorted_rows, x, torch.empty(3, 1, 512, dtype=x.dtype), 1, 512).source
        self.assertLess(depth_of_loops(source), 3)

    def test_of_functions(self):
        x = values(torch.float32, 128)
        out = torch.empty(4)
        launch(of_functions, (1,), x, out, N=128)
        self.assertEqual(out.tolist(), [x.max().item(), x.argmax().item(), x.max().item(), 0])

    @parametrize("axis", (0, 1))
    def test_scans(self, axis):
        for shape in ((4, 16), (16, 4), (1, 8)):
            x, y = torch.rand(shape) + 0.5, torch.randn(shape)
            out = torch.empty(5, *shape)
            launch(scans, (1,), x, y, out, *shape, AXIS=axis)
            state, states = torch.zeros_like(y.select(axis, 0)), []
            for step in range(shape[axis]):
                state = state * x.select(axis, step) + y.select(axis, step)
                states.append(state)
            product = x.cumprod(axis)
            reverse = x.flip(axis).cumsum(axis).flip(axis)
            expected = [x.cumsum(axis), product, reverse, product, torch.stack(states, axis)]
            self.assertEqual(out, torch.stack(expected))

    @parametrize("dtype", (torch.int32, torch.float32, torch.float16, torch.bfloat16))
    def test_sorts(self, dtype):
        x = values(dtype, 4, 32)
        out = torch.empty(3, 4, 32, dtype=dtype)
        launch(sorted_rows, (1,), x, out, 4, 32)
        expected = [x.sort(1).values, x.sort(1, descending=True).values, x.flip(1)]
        self.assertEqual(out, torch.stack(expected))
        top = torch.empty(4, 8, dtype=dtype)
        launch(largest, (1,), x, top, 4, 32, K=8)
        self.assertEqual(top, x.topk(8, 1).values)


class TestMovedElements(TestCase):
    def test_shapes(self):
        size = 16
        x = torch.randn(size)
        out = torch.empty(12, size)
        launch(moved, (1,), x, out, N=size)
        pairs = torch.stack([x, 10 * x], 1)
        square = x.reshape(4, 4)
        expected = [
            *(pairs.reshape(2, size), 2 * x, 20 * x, (2 * pairs).reshape(2, size)),
            *(torch.stack([x, 2 * x]), square.t().contiguous().reshape(size)),
            *(x.reshape(2, 2, 4).permute(2, 0, 1).reshape(size), x, square.t().reshape(size)),
        ]
        self.assertEqual(out, torch.cat([one.reshape(-1, size) for one in expected]))

    def test_histograms(self):
        x = torch.randint(0, 8, (128,), dtype=torch.int32)
        out = torch.empty(2, 8, dtype=torch.int32)
        launch(counted, (1,), x, out, N=128, BINS=8)
        expected = [torch.bincount(x, minlength=8), torch.bincount(x[::2], minlength=8)]
        self.assertEqual(out, torch.stack(expected).int())

    @parametrize("axis", (0, 1))
    def test_gathers_and_the_check_of_their_indices(self, axis):
        x = torch.randn(8, 16)
        at = torch.randint(0, x.shape[axis], (8, 16))
        out = torch.empty(8, 16)
        launch(gathered, (1,), x, at, out, 8, 16, AXIS=axis)
        self.assertEqual(out, x.gather(axis, at))
        at[3, 5] = 99
        with self.assertRaises(KernelError) as caught:
            launch(gathered, (1,), x, at, out, 8, 16, AXIS=axis)
        error = caught.exception
        self.assertEqual((error.status, error.address, error.size), ("index", 99, x.shape[axis]))

    def test_random_numbers_are_those_of_philox(self):
        out, bits = torch.empty(2, 256), torch.empty(2, 256, dtype=torch.int32)
        launch(random_numbers, (1,), out, bits, 1234, N=256)
        words = [philox(1234, counter) for counter in range(256)]
        unsigned = [[word & (2**32 - 1) for word in row] for row in bits.tolist()]
        self.assertEqual(unsigned, [[one[0] for one in words], [one[3] for one in words]])
        first = bits[0]
        uniform = torch.where(first < 0, -first - 1, first).float() * 4.6566127342e-10
        self.assertEqual(out[0], uniform)
        self.assertLess(out[1].mean().abs().item(), 0.2)
        self.assertLess((out[1].std() - 1).abs().item(), 0.2)

    def test_functions_of_elements(self):
        x, y = torch.randn(32), torch.randn(32)
        out = torch.empty(2, 32)
        launch(mapped, (1,), x, y, out, N=32)
        self.assertEqual(out, torch.stack([x - y, x + y]))

    def test_arrays_share_memory_when_their_lives_do_not_meet(self):
        source = lowered(sorted_rows, torch.empty(4, 64), torch.empty(3, 4, 64), 4, 64).source
        arrays = source.count("reinterpret_cast<float*>(arena + ")
        size = int(source.rsplit(", run);", 1)[0].rsplit(",", 1)[1])
        self.assertGreater(arrays, 20)
        self.assertLess(size, 20 * 4 * 64 * 4)


def depth_of_loops(source):
    """The number of loops that are within one another."""
    depth, deepest, is_loop = 0, 0, []
    for line in source.splitlines():
        for brace in re.findall(r"[{}]", line):
            if brace == "{":
                is_loop.append(line.startswith("for "))
                depth += is_loop[-1]
            else:
                depth -= is_loop.pop()
        deepest = max(deepest, depth)
    return deepest


def first_index(x, value, axis):
    """The first index along the axis at which the elements have a value."""
    return (x == value).to(torch.uint8).argmax(axis).double()


instantiate_parametrized_tests(TestReductions)
instantiate_parametrized_tests(TestMovedElements)

if __name__ == "__main__":
    run_tests()
