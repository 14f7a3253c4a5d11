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

    @parametrize("sizes", [(2**20,), (4096,), (4, 2**16)])
    def test_sort(self, sizes):
        code = f"""
x = torch.empty{sizes}.cuda()
indices = meta(x.numel(), dtype=torch.long)
expected = bytes_of(indices, meta(x.numel(), 3)) if x.numel() == 2**20 else 0
print(temporary(lambda: x.sort()), expected)
"""
        found, expected = run_dry(code)
        self.assertEqual(found, expected)


instantiate_parametrized_tests(TestProducts)
instantiate_parametrized_tests(TestTemporaryMemory)

if __name__ == "__main__":
    run_tests()
