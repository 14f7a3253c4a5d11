"""Memory that CUDA's kernels take from the allocator, in dry runs for a GPU.

The expected bytes follow from the sources of PyTorch that TemporaryMemory.cpp names, and are
counted here in another way: as tensors.
"""

import unittest

from common import (
    OpenRegTestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_program,
    run_tests,
)

from torch_openreg._torch_release import HAS_CUBLAS_WORKSPACES

SETTINGS = {
    "OPENREG_DEVICE_TYPE": "cuda",
    "OPENREG_DRY_RUN": "1",
    "OPENREG_CUDA_NOTICE": "0",
    "OPENREG_DRY_RUN_SUMMARY": "0",
}

BEGIN = """
import torch

aten = torch.ops.aten

def rounded(*tensors):
    return sum(-(-one.nbytes // 512) * 512 for one in tensors)

def meta(*sizes, dtype=torch.float32):
    return torch.empty(sizes, dtype=dtype, device="meta")

def temporary(call):
    torch.cuda.reset_peak_memory_stats()
    results = call()
    requested = torch.cuda.memory_stats()
    return requested["requested_bytes.all.peak"] - requested["requested_bytes.all.current"]

def bytes_of(*tensors):
    return sum(one.nbytes for one in tensors)
"""


def run_dry(code, gpu="a100-40gb"):
    return run_program(BEGIN + code, {**SETTINGS, "OPENREG_DRY_RUN_GPU": gpu}).stdout.split()


@unittest.skipIf(not HAS_CUBLAS_WORKSPACES, "this torch leaves them to cuBLAS")
class TestProducts(OpenRegTestCase):
    # The size for the A100 and the segment that holds it are those of a snapshot in
    # https://discuss.pytorch.org/t/178671.
    @parametrize("gpu, size, segment", [("a100-40gb", 8519680, 20 * 2**20), ("h100", 2**25, 2**25)])
    @parametrize(
        "call",
        ["a @ a", "torch.nn.functional.linear(a, a, a[0])", "a @ a[0]", "a[0] @ a[0]", "b @ b"],
    )
    def test_first_product_takes_a_workspace(self, gpu, size, segment, call):
        code = f"""
a = torch.ones(64, 64, device="cuda")
b = torch.ones(2, 64, 64, device="cuda")
before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
result = {call}
print(torch.cuda.memory_allocated() - before[0] - rounded(result))
print(torch.cuda.memory_reserved() - before[1])
"""
        self.assertEqual(run_dry(code, gpu), [str(size), str(segment)])

    def test_each_stream_and_thread_has_one(self):
        code = """
import threading

a = torch.ones(64, 64, device="cuda")

def product():
    before = torch.cuda.memory_allocated()
    result = a @ a
    print((torch.cuda.memory_allocated() - before - rounded(result)) // 8519680)

product()
product()
with torch.cuda.stream(torch.cuda.Stream()):
    product()
for _ in range(2):  # the second thread has the handle of the first
    thread = threading.Thread(target=product)
    thread.start()
    thread.join()
torch._C._cuda_clearCublasWorkspaces()
print(torch.cuda.memory_allocated() - rounded(a))
product()
"""
        self.assertEqual(run_dry(code), ["1", "0", "1", "1", "0", "0", "1"])

    def test_report_has_them(self):
        code = """
a = torch.ones(64, 64, device="cuda")
a @ a
print(torch.openreg.dry_run.report().devices[0].categories["workspaces"])
"""
        self.assertEqual(run_dry(code), ["8519680"])

    def test_without_a_gpu_there_is_none(self):
        code = """
a = torch.ones(64, 64, device="cuda")
print(torch.cuda.memory_allocated() - rounded(a), temporary(lambda: a @ a))
"""
        self.assertEqual(run_dry(code, "none"), ["0", "0"])


class TestTemporaryMemory(OpenRegTestCase):
    @parametrize(
        "heads, width, expected",
        [
            (8, 64, "meta(2, 8, 1024), meta(2, 1024, 8, 64)"),
            (8, 160, "meta(2, 8, 1024), meta(2, 1024, 8, 192)"),
            (
                2,
                64,
                "meta(2, 8, 1024), meta(2, 1024, 8, 64), *[meta(2, 900, 8, 64, dtype=half)] * 2",
            ),
        ],
        name_fn=lambda heads, width, expected: f"{heads}_heads_of_{width}",
    )
    def test_flash_attention(self, heads, width, expected):
        code = f"""
half = torch.bfloat16
query = torch.empty(2, 900, 8, {width}, dtype=half, device="cuda")
key = torch.empty(2, 900, {heads}, {width}, dtype=half, device="cuda")
options = (None, None, 900, 900, 0.0, False)
out, logsumexp, seed, offset, _ = aten._flash_attention_forward(
    query, key, key, *options, False
)
print(temporary(lambda: aten._flash_attention_backward(
    out, query, key, key, out, logsumexp, *options, seed, offset
)), bytes_of({expected}))
"""
        found, expected = run_dry(code)
        self.assertEqual(found, expected)

    @parametrize("count, words", [(5000, 50000), (50000, 5000), (3072, 50000)])
    @parametrize("dtype", ["float32", "bfloat16"])
    def test_embedding(self, count, words, dtype):
        code = f"""
grad = torch.empty({count}, 512, dtype=torch.{dtype}, device="cuda")
indices = torch.zeros({count}, dtype=torch.long, device="cuda")
found = temporary(lambda: aten.embedding_dense_backward(grad, indices, {words}, -1, False))
long = torch.long
segments = min({count}, {words})
parts = {count} // 10 + segments
expected = bytes_of(
    *[meta({count}, dtype=long)] * 2, *[meta(segments, dtype=long)] * 3,
    meta(parts, dtype=long), meta(parts, 512),
) if {count} > 3072 else 0
print(found, expected)
"""
        found, expected = run_dry(code)
        self.assertEqual(found, expected)

    @parametrize("accumulates", [True, False])
    @parametrize(
        "layout, copies",
        [("x", ""), ("x.t().contiguous().t()", "meta(3000, 64)")],
        name_fn=lambda layout, copies: "transposed" if copies else "contiguous",
    )
    def test_index_put(self, accumulates, layout, copies):
        code = f"""
x = torch.zeros(3000, 64, device="cuda")
x = {layout}
rows = torch.zeros(50, 1, dtype=torch.long, device="cuda")
columns = torch.arange(64, device="cuda")[None].expand(400, 1, 64)
values = torch.ones(400, 50, 64, device="cuda")
found = temporary(lambda: x.index_put_((rows, columns), values, accumulate={accumulates}))
count = 400 * 50 * 64
long = torch.long
expected = bytes_of(
    *[meta(count, dtype=long)] * 4, meta(2 * count, dtype=long), {copies}
) if {accumulates} else 0
print(found, expected)
"""
        found, expected = run_dry(code)
        self.assertEqual(found, expected)

    # Rows, the elements of each, and what is taken: indices of a row and CUB's buffers; for few
    # rows pairs of numbers, sorted as one; for many rows, indices of all.
    @parametrize(
        "rows, row, expected",
        [
            (1, 2**20, "meta(n, dtype=long), meta(n, 3)"),
            (1, 4096, ""),
            (4, 2**16, "*[meta(4 * n, dtype=long)] * 2, meta(4 * n), meta(4 * n, 3)"),
            (127, 5000, "*[meta(127 * n, dtype=long)] * 2, meta(127 * n), meta(127 * n, 3)"),
            (128, 5000, "meta(128 * n, dtype=long), meta(128 * n, 3)"),
            (200, 4096, ""),
            (3, 10**6, "meta(n, dtype=long), meta(n, 3)"),
        ],
        name_fn=lambda rows, row, expected: f"{rows}_of_{row}",
    )
    def test_sort(self, rows, row, expected):
        code = f"""
long = torch.long
n = {row}
x = torch.empty({rows}, n, device="cuda").squeeze(0)
print(temporary(lambda: x.sort()), bytes_of({expected}))
"""
        found, expected = run_dry(code)
        self.assertEqual(found, expected)

    # Of an H100, with 132 multiprocessors of 65,536 registers, a thread of mbtopk takes 40 of them.
    # Then the number of elements of a thread, and of blocks of 256 threads for a row, follow.
    @parametrize(
        "rows, row, items",
        [
            (1, 2**20, 6),
            (20, 20000, 4),
            (20, 19999, 0),
            (21, 10000, 4),
            (8, 2**24, 64),
            (4001, 400, 8),
            (4001, 399, 0),
        ],
        name_fn=lambda rows, row, items: f"{rows}_of_{row}",
    )
    @parametrize("dtype, radix", [("float32", "int32"), ("bfloat16", "int32"), ("int64", "int64")])
    def test_topk(self, rows, row, items, dtype, radix):
        code = f"""
rows, items = {rows}, {items}
x = torch.empty(rows, {row}, dtype=torch.{dtype}, device="cuda")
blocks = rows * -(-{row} // (256 * items)) if items else 0
number = torch.int32
expected = bytes_of(
    meta(rows, dtype=x.dtype), meta(2, rows, dtype=number), meta(2, rows, dtype=torch.{radix}),
    meta(blocks, 256, dtype=torch.int16), meta(rows, 256, dtype=number),
    *[meta(blocks, dtype=number)] * 2,
) if items else 0
print(temporary(lambda: x.topk(7)), expected)
"""
        found, expected = run_dry(code, "h100")
        self.assertEqual(found, expected)

    def test_topk_of_columns_copies_and_of_many_sorts(self):
        code = """
x = torch.empty(2**20, 20, device="cuda")
plain = temporary(lambda: x.topk(7, dim=0))
copied = temporary(lambda: x.t().topk(7))
print(copied - plain == bytes_of(x))
n = 2**19
y = torch.empty(n * 2, device="cuda")
long = torch.long
sort = bytes_of(meta(n, dtype=long), meta(n, 3), meta(n, dtype=long), meta(n))
print(temporary(lambda: y.topk(n)) - sort)
"""
        self.assertEqual(run_dry(code), ["True", "0"])

    # An A100 has 108 multiprocessors: up to 53 blocks of 32 columns.
    @parametrize(
        "rows, columns, blocks",
        [
            (65537, 64, 2049),
            (65536, 64, 0),
            (2**20, 64, 2**14),
            (2**17, 1727, 606),
            (2**17, 1728, 0),
        ],
        name_fn=lambda rows, columns, blocks: f"{rows}_of_{columns}",
    )
    @parametrize("has_bias", [True, False])
    def test_layer_norm(self, rows, columns, blocks, has_bias):
        code = f"""
x = torch.empty({rows}, {columns}, dtype=torch.half, device="cuda")
weight = torch.empty({columns}, dtype=torch.half, device="cuda")
grad, bias = torch.empty_like(x), torch.empty_like(weight)
means, scales = torch.empty(2, {rows}, 1, device="cuda")
found = temporary(lambda: aten.native_layer_norm_backward(
    grad, x, [{columns}], means, scales, weight, bias, [True, True, {has_bias}]
))
print(found, bytes_of(*[meta({blocks}, {columns}, dtype=torch.half)] * {1 + has_bias}))
"""
        found, expected = run_dry(code)
        self.assertEqual(found, expected)

    @parametrize("rows, blocks", [(2**17, 4096), (2**16, 0)])
    def test_root_mean_square_norm(self, rows, blocks):
        code = f"""
x = torch.empty({rows}, 64, dtype=torch.half, device="cuda")
weight, grad = torch.empty(64, dtype=torch.half, device="cuda"), torch.empty_like(x)
scales = torch.empty({rows}, 1, device="cuda")
found = temporary(lambda: aten._fused_rms_norm_backward(
    grad, x, [64], scales, weight, [True, True]
))
print(found, bytes_of(meta({blocks}, 64, dtype=torch.half)))
"""
        found, expected = run_dry(code)
        self.assertEqual(found, expected)

    # Tiles of rows and columns, each with four numbers for its lock, for 2 x 8 heads.
    @parametrize(
        "dtype, width, expected",
        [
            ("bfloat16", 64, "meta(16, 8 * 1, 4 + 64 * 64)"),
            ("bfloat16", 96, "meta(16, 4 * 2, 4 + 128 * 64)"),
            ("bfloat16", 128, "meta(16, 4 * 1, 4 + 128 * 128)"),
            # 500 keys are 8 tiles, of which each of the 16 heads takes its gradients apart.
            ("half", 160, "meta(16, 4 * 3, 4 + 128 * 64), meta(16, 8, 64, 256 + 256)"),
            ("float32", 64, "meta(16, 8 * 1, 4 + 64 * 64)"),
        ],
        name_fn=lambda dtype, width, expected: f"{dtype}_{width}",
    )
    @parametrize("is_copied", [True, False])
    def test_efficient_attention(self, dtype, width, expected, is_copied):
        code = f"""
shape = (2, 8, 500, {width})
query = torch.empty(shape, dtype=torch.{dtype}, device="cuda")
grad = query if {is_copied} else query.transpose(1, 2).contiguous().transpose(1, 2)
out, logsumexp, seed, offset = aten._scaled_dot_product_efficient_attention(
    query, query, query, None, True
)
found = temporary(lambda: aten._scaled_dot_product_efficient_attention_backward(
    grad, query, query, query, None, out, logsumexp, seed, offset, 0.0, [True, True, True, False]
))
print(found, bytes_of(meta(2, 8, 500), {expected}, *[grad] * {is_copied}))
"""
        found, expected = run_dry(code)
        self.assertEqual(found, expected)

    def test_attention_of_cudnn_is_an_interval(self):
        code = """
from torch.nn.attention import SDPBackend, sdpa_kernel
query = torch.empty(2, 8, 512, 64, dtype=torch.half, device="cuda")
with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
    torch.nn.functional.scaled_dot_product_attention(query, query, query)
print(*[use.name for use in torch.openreg.dry_run.report().outside])
"""
        self.assertEqual(run_dry(code, "h100"), ["context", "cuDNN"])


instantiate_parametrized_tests(TestProducts)
instantiate_parametrized_tests(TestTemporaryMemory)

if __name__ == "__main__":
    run_tests()
