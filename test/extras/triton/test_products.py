"""Products of matrices in Triton kernels, against torch on the CPU."""

import torch
import triton
import triton.language as tl
from common import TestCase, instantiate_parametrized_tests, parametrize, run_tests
from extras.triton.kernels import attention_kernel
from launcher import launch


@triton.jit
def product(
    a_ptr, b_ptr, c_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, KIND: tl.constexpr
):
    i, j, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(a_ptr + i[:, None] * K + k[None, :])
    b = tl.load(b_ptr + k[:, None] * N + j[None, :])
    c = tl.load(c_ptr + i[:, None] * N + j[None, :])
    result = tl.dot(a, b, c, input_precision="ieee", out_dtype=KIND)
    tl.store(c_ptr + i[:, None] * N + j[None, :], result)


@triton.jit
def product_of_transposed(a_ptr, b_ptr, c_ptr, N: tl.constexpr, K: tl.constexpr):
    i, k = tl.arange(0, N), tl.arange(0, K)
    a = tl.load(a_ptr + i[:, None] + k[None, :] * N)
    b = tl.load(b_ptr + i[:, None] * K + k[None, :])
    tl.store(c_ptr + i[:, None] * N + i[None, :], tl.dot(a, tl.trans(b), input_precision="ieee"))


@triton.jit
def batch(a_ptr, b_ptr, c_ptr, B: tl.constexpr, N: tl.constexpr):
    b, i = tl.arange(0, B), tl.arange(0, N)
    at = b[:, None, None] * N * N + i[None, :, None] * N + i[None, None, :]
    c = tl.dot(tl.load(a_ptr + at), tl.load(b_ptr + at), input_precision="ieee")
    tl.store(c_ptr + at, c)


@triton.jit
def matmul(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    j = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    a = a_ptr + (i % M)[:, None] * K + k[None, :]
    b = b_ptr + k[:, None] * N + (j % N)[None, :]
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        x = tl.load(a, mask=k[None, :] < K - start, other=0.0)
        y = tl.load(b, mask=k[:, None] < K - start, other=0.0)
        total = tl.dot(x, y, total, input_precision="ieee")
        a += BK
        b += BK * N
    mask = (i[:, None] < M) & (j[None, :] < N)
    tl.store(c_ptr + i[:, None] * N + j[None, :], total.to(c_ptr.dtype.element_ty), mask=mask)


@triton.jit
def uses_the_sum_twice(a_ptr, c_ptr, turns, N: tl.constexpr):
    i = tl.arange(0, N)
    at = i[:, None] * N + i[None, :]
    a = tl.load(a_ptr + at)
    total = tl.zeros((N, N), tl.float32)
    for _ in range(turns):
        before = total
        total = tl.dot(a, a, total, input_precision="ieee")
        total = total + before * 0.5
    tl.store(c_ptr + at, total)


@triton.jit
def squares(a_ptr, c_ptr, turns, N: tl.constexpr):
    i = tl.arange(0, N)
    at = i[:, None] * N + i[None, :]
    total = tl.load(a_ptr + at)
    for _ in range(turns):
        total = tl.dot(total, total, total, input_precision="ieee")
    tl.store(c_ptr + at, total)


@triton.jit
def scaled(
    a_ptr, a_scale_ptr, b_ptr, b_scale_ptr, c_ptr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
):  # fmt: skip
    i, j = tl.arange(0, M), tl.arange(0, N)
    left: tl.constexpr = K // 2 if LEFT == "e2m1" else K
    right: tl.constexpr = K // 2 if RIGHT == "e2m1" else K
    ka, kb, ks = tl.arange(0, left), tl.arange(0, right), tl.arange(0, K // 32)
    a = tl.load(a_ptr + i[:, None] * left + ka[None, :])
    b = tl.load(b_ptr + kb[:, None] * N + j[None, :])
    a_scale = tl.load(a_scale_ptr + i[:, None] * (K // 32) + ks[None, :])
    b_scale = tl.load(b_scale_ptr + j[:, None] * (K // 32) + ks[None, :])
    c = tl.dot_scaled(a, a_scale, LEFT, b, b_scale, RIGHT)
    tl.store(c_ptr + i[:, None] * N + j[None, :], c)


@triton.jit
def through_descriptors(a_ptr, out_ptr, M, N, BM: tl.constexpr, BN: tl.constexpr):
    source = tl.make_tensor_descriptor(a_ptr, [M, N], [N, 1], [BM, BN])
    target = tl.make_tensor_descriptor(out_ptr, [M, N], [N, 1], [BM, BN])
    i, j = tl.program_id(0) * BM, tl.program_id(1) * BN
    target.store([i, j], source.load([i, j]) * 2)


@triton.jit
def gather_rows(a_ptr, rows_ptr, out_ptr, M, N, column, R: tl.constexpr, C: tl.constexpr):
    source = tl.make_tensor_descriptor(a_ptr, [M, N], [N, 1], [1, C])
    i, j = tl.arange(0, R), tl.arange(0, C)
    rows = source.gather(tl.load(rows_ptr + i), column)
    tl.store(out_ptr + i[:, None] * C + j[None, :], rows)


@triton.jit
def scatter_rows(a_ptr, rows_ptr, out_ptr, M, N, column, R: tl.constexpr, C: tl.constexpr):
    target = tl.make_tensor_descriptor(out_ptr, [M, N], [N, 1], [1, C])
    i, j = tl.arange(0, R), tl.arange(0, C)
    rows = tl.load(a_ptr + i[:, None] * C + j[None, :])
    target.scatter(rows, tl.load(rows_ptr + i), column)


@triton.jit
def reduce_into(a_ptr, out_ptr, M, N, KIND: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    target = tl.make_tensor_descriptor(out_ptr, [M, N], [N, 1], [BM, BN])
    i, j = tl.arange(0, BM), tl.arange(0, BN)
    a = tl.load(a_ptr + i[:, None] * BN + j[None, :])
    if KIND == "add":
        target.atomic_add([0, 8], a)
    elif KIND == "min":
        target.atomic_min([0, 8], a)
    elif KIND == "max":
        target.atomic_max([0, 8], a)
    elif KIND == "and":
        target.atomic_and([0, 8], a)
    elif KIND == "or":
        target.atomic_or([0, 8], a)
    else:
        target.atomic_xor([0, 8], a)


@triton.jit
def through_block_pointers(a_ptr, out_ptr, M, N, BM: tl.constexpr, BN: tl.constexpr):
    source = tl.make_block_ptr(a_ptr, (M, N), (N, 1), (0, 0), (BM, BN), (1, 0))
    target = tl.make_block_ptr(
        out_ptr, (M, N), (N, 1), (0, tl.program_id(0) * BN), (BM, BN), (1, 0)
    )
    source = tl.advance(source, (0, tl.program_id(0) * BN))
    for _ in range(0, M, BM):
        x = tl.load(source, boundary_check=(0, 1), padding_option="zero")
        tl.store(target, x + 1, boundary_check=(0, 1))
        source = tl.advance(source, (BM, 0))
        target = tl.advance(target, (BM, 0))


KINDS = {
    "f32": (torch.float32, torch.float32, tl.float32, 1e-5),
    "f64": (torch.float64, torch.float64, tl.float64, 1e-12),
    "f16": (torch.float16, torch.float32, tl.float32, 1e-5),
    "f16_f16": (torch.float16, torch.float16, tl.float16, 1e-2),
    "bf16": (torch.bfloat16, torch.float32, tl.float32, 1e-5),
    "f8e4m3": (torch.float8_e4m3fn, torch.float32, tl.float32, 1e-5),
    "f8e5m2": (torch.float8_e5m2, torch.float32, tl.float32, 1e-5),
    "i8": (torch.int8, torch.int32, tl.int32, 0),
}
SHAPES = ((16, 16, 16), (32, 64, 16), (16, 64, 32), (64, 32, 64))
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def numbers(dtype, *shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.int8:
        return torch.randint(-128, 128, shape, generator=generator).to(dtype)
    return torch.randn(shape, generator=generator).to(dtype)


class TestProducts(TestCase):
    @parametrize("kind", KINDS)
    def test_of_each_type(self, kind):
        dtype, sums, out, tolerance = KINDS[kind]
        for m, n, k in SHAPES if kind == "f32" else SHAPES[2:]:
            a, b = numbers(dtype, m, k), numbers(dtype, k, n, seed=1)
            c = numbers(torch.float32, m, n, seed=2).to(sums)
            wide = torch.float64 if sums.is_floating_point else torch.int64
            expected = (c.to(wide) + a.to(wide) @ b.to(wide)).to(sums)
            launch(product, (1,), a, b, c, m, n, k, out)
            self.assertEqual(c, expected, rtol=tolerance, atol=10 * tolerance)

    def test_of_transposed_matrices(self):
        a, b, c = (
            numbers(torch.float32, 32, 16),
            numbers(torch.float32, 16, 32),
            torch.empty(16, 16),
        )
        launch(product_of_transposed, (1,), a, b, c, N=16, K=32)
        self.assertEqual(c, a.t() @ b.t())

    def test_of_batches(self):
        a, b = numbers(torch.float32, 4, 16, 16), numbers(torch.float32, 4, 16, 16, seed=1)
        c = torch.empty(4, 16, 16)
        launch(batch, (1,), a, b, c, B=4, N=16)
        self.assertEqual(c, a @ b)

    @parametrize("dtype", (torch.float32, torch.float16, torch.bfloat16))
    def test_of_matrices_that_tiles_do_not_divide(self, dtype):
        a, b = numbers(dtype, 70, 50), numbers(dtype, 50, 90, seed=1)
        c = torch.empty(70, 90, dtype=dtype)
        launch(matmul, (3, 3), a, b, c, 70, 90, 50, BM=32, BN=32, BK=16)
        tolerance = 1e-4 if dtype == torch.float32 else 2e-2
        self.assertEqual(c.float(), a.float() @ b.float(), rtol=tolerance, atol=tolerance)

    def test_a_sum_with_other_uses_keeps_its_value(self):
        a, c = numbers(torch.float32, 16, 16) / 8, torch.empty(16, 16)
        launch(uses_the_sum_twice, (1,), a, c, 3, N=16)
        total = torch.zeros(16, 16)
        for _ in range(3):
            total = a @ a + total + total * 0.5
        self.assertEqual(c, total)
        launch(squares, (1,), a, c, 2, N=16)
        total = a
        for _ in range(2):
            total = total @ total + total
        self.assertEqual(c, total)

    @parametrize("dtype", (torch.float32, torch.float16))
    @parametrize("causal", (False, True))
    def test_attention(self, dtype, causal):
        q, k, v = (numbers(dtype, 3, 64, 32, seed=seed) for seed in range(3))
        out = torch.empty(3, 64, 32)
        tiles = {"M": 32, "N": 16, "D": 32, "CAUSAL": causal}
        launch(attention_kernel, (2, 3), q, k, v, out, 64, 32**-0.5, **tiles)
        expected = torch.nn.functional.scaled_dot_product_attention(
            q.float(), k.float(), v.float(), is_causal=causal
        )
        tolerance = 1e-5 if dtype == torch.float32 else 2e-3
        self.assertEqual(out, expected, rtol=tolerance, atol=tolerance)

    @parametrize("left", ("e2m1", "e4m3", "e5m2", "bf16"))
    @parametrize("right", ("e2m1", "e4m3"))
    def test_of_scaled_numbers(self, left, right):
        m, n, k = 32, 16, 64
        a, a_wide = scaled_factor(left, m, k, 0)
        b, b_wide = scaled_factor(right, n, k, 1)
        scales = [torch.randint(120, 134, (size, k // 32), dtype=torch.uint8) for size in (m, n)]
        if left == "bf16":
            scales[0].fill_(127)
        c = torch.empty(m, n)
        transposed = b.view(torch.uint8).t().contiguous().view(b.dtype)
        launch(
            scaled, (1,), a, scales[0], transposed, scales[1], c, m, n, k, LEFT=left, RIGHT=right
        )  # fmt: skip
        wide = [
            one * 2.0 ** (scale.double() - 127).repeat_interleave(32, 1)
            for one, scale in zip((a_wide, b_wide), scales, strict=True)
        ]
        self.assertEqual(c, (wide[0] @ wide[1].t()).float(), rtol=1e-5, atol=1e-3)


def scaled_factor(kind, rows, depth, seed):
    """Numbers of a format as a kernel reads them, and as doubles."""
    if kind != "e2m1":
        dtype = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "bf16": torch.bfloat16}
        values = numbers(torch.float32, rows, depth, seed=seed).to(dtype[kind])
        return values, values.double()
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 16, (rows, depth), dtype=torch.uint8, generator=generator)
    magnitudes = E2M1[(codes & 7).long()].double()
    packed = codes[:, ::2] | (codes[:, 1::2] << 4)
    return packed, torch.where(codes >= 8, -magnitudes, magnitudes)


class TestBlocks(TestCase):
    def test_descriptors(self):
        a = torch.randn(20, 24)
        whole = torch.full((40, 24), 7.0)
        launch(through_descriptors, (2, 2), a, whole, 20, 24, BM=16, BN=16)
        self.assertEqual(whole[:20], a * 2)
        self.assertEqual(whole[20:], torch.full((20, 24), 7.0))

    def test_descriptors_gather_rows_and_leave_out_those_outside(self):
        a = torch.arange(20.0 * 24).reshape(20, 24)
        rows = torch.tensor([3, 19, 0, 3, 20, 7, 40, 1], dtype=torch.int32)
        out = torch.full((8, 16), -1.0)
        launch(gather_rows, (1,), a, rows, out, 20, 24, 16, R=8, C=16)
        expected = torch.zeros(8, 16)
        inside = rows < 20
        expected[inside, :8] = a[rows[inside].long(), 16:]
        self.assertEqual(out, expected)

    def test_descriptors_scatter_rows_and_leave_out_those_outside(self):
        a = torch.arange(8.0 * 16).reshape(8, 16)
        rows = torch.tensor([3, 19, 0, 25, 20, 7, 11, 1], dtype=torch.int32)
        out = torch.full((30, 24), -1.0)
        launch(scatter_rows, (1,), a, rows, out, 20, 24, 16, R=8, C=16)
        expected = torch.full((30, 24), -1.0)
        inside = rows < 20
        expected[rows[inside].long(), 16:] = a[inside, :8]
        self.assertEqual(out, expected)

    # Those that Triton has for all targets.
    @parametrize(
        "kind,dtype",
        [
            *((kind, torch.int32) for kind in ("add", "min", "max", "and", "or", "xor")),
            *((kind, torch.int64) for kind in ("min", "max", "and", "or", "xor")),
            *(("add", dtype) for dtype in (torch.float16, torch.bfloat16, torch.float32)),
        ],
    )
    def test_descriptors_reduce(self, kind, dtype):
        a = torch.randint(-50, 50, (4, 16), generator=torch.Generator().manual_seed(1)).to(dtype)
        before = torch.randint(-50, 50, (6, 20)).to(dtype)
        out = before.clone()
        launch(reduce_into, (1,), a, out, 3, 20, KIND=kind, BM=4, BN=16)
        combine = {
            "add": torch.add,
            "min": torch.minimum,
            "max": torch.maximum,
            "and": torch.bitwise_and,
            "or": torch.bitwise_or,
            "xor": torch.bitwise_xor,
        }
        expected = before.clone()
        expected[:3, 8:] = combine[kind](before[:3, 8:], a[:3, :12])
        self.assertEqual(out, expected)

    def test_block_pointers(self):
        if not hasattr(tl, "make_block_ptr") or triton.__version__ >= "3.9":
            return
        a = torch.randn(20, 24)
        out = torch.zeros(20, 24)
        launch(through_block_pointers, (2,), a, out, 20, 24, BM=8, BN=16)
        self.assertEqual(out, a + 1)


instantiate_parametrized_tests(TestProducts)
instantiate_parametrized_tests(TestBlocks)

if __name__ == "__main__":
    run_tests()
