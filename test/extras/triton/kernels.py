"""Kernels as programs have them, and a test case that runs some with Triton."""

import atexit
import functools
import importlib.util
import shutil
import tempfile
import unittest

import torch
from common import OpenRegTestCase

from torch_openreg import extras

HAS_TRITON = importlib.util.find_spec("triton") is not None

if HAS_TRITON:
    import triton
    import triton.language as tl

    # docs: triton-add
    @triton.jit
    def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        mask = offsets < n
        x = tl.load(x_ptr + offsets, mask=mask)
        y = tl.load(y_ptr + offsets, mask=mask)
        tl.store(out_ptr + offsets, x + y, mask=mask)

    # docs: end

    @triton.jit
    def row_softmax(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
        row = tl.program_id(0)
        offsets = tl.arange(0, BLOCK)
        mask = offsets < columns
        x = tl.load(x_ptr + row * columns + offsets, mask=mask, other=-float("inf"))
        x = tl.exp(x - tl.max(x, axis=0))
        tl.store(out_ptr + row * columns + offsets, x / tl.sum(x, axis=0), mask=mask)

    @triton.jit
    def row_norm(x_ptr, w_ptr, b_ptr, out_ptr, columns, eps, BLOCK: tl.constexpr):
        row = tl.program_id(0)
        offsets = tl.arange(0, BLOCK)
        mask = offsets < columns
        x = tl.load(x_ptr + row * columns + offsets, mask=mask, other=0.0).to(tl.float32)
        mean = tl.sum(x, axis=0) / columns
        centered = tl.where(mask, x - mean, 0.0)
        scale = 1 / tl.sqrt(tl.sum(centered * centered, axis=0) / columns + eps)
        w = tl.load(w_ptr + offsets, mask=mask)
        b = tl.load(b_ptr + offsets, mask=mask)
        tl.store(out_ptr + row * columns + offsets, centered * scale * w + b, mask=mask)

    @triton.jit
    def attention_kernel(
        q_ptr, k_ptr, v_ptr, out_ptr, n, scale,
        M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr,
    ):  # fmt: skip
        d = tl.arange(0, D)
        i = tl.program_id(1) * n + tl.program_id(0) * M + tl.arange(0, M)
        q = tl.load(q_ptr + i[:, None] * D + d[None, :])
        highest = tl.full([M], float("-inf"), tl.float32)
        weight = tl.zeros([M], tl.float32)
        total = tl.zeros([M, D], tl.float32)
        for start in range(0, n, N):
            j = tl.program_id(1) * n + start + tl.arange(0, N)
            k = tl.load(k_ptr + j[None, :] * D + d[:, None])
            v = tl.load(v_ptr + j[:, None] * D + d[None, :])
            score = tl.dot(q, k, input_precision="ieee") * scale
            if CAUSAL:
                score = tl.where(i[:, None] >= j[None, :], score, float("-inf"))
            higher = tl.maximum(highest, tl.max(score, 1))
            p = tl.exp(score - higher[:, None])
            correction = tl.exp(highest - higher)
            weight = weight * correction + tl.sum(p, 1)
            total = tl.dot(p.to(v.dtype), v, total * correction[:, None], input_precision="ieee")
            highest = higher
        tl.store(out_ptr + i[:, None] * D + d[None, :], total / weight[:, None])

    @triton.jit
    def matmul_kernel(
        a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
    ):
        rows = tl.program_id(0) * BM + tl.arange(0, BM)
        columns = tl.program_id(1) * BN + tl.arange(0, BN)
        total = tl.zeros((BM, BN), dtype=tl.float32)
        for start in range(0, K, BK):
            inner = start + tl.arange(0, BK)
            a_mask = (rows[:, None] < M) & (inner[None, :] < K)
            b_mask = (inner[:, None] < K) & (columns[None, :] < N)
            a = tl.load(a_ptr + rows[:, None] * K + inner[None, :], mask=a_mask, other=0.0)
            b = tl.load(b_ptr + inner[:, None] * N + columns[None, :], mask=b_mask, other=0.0)
            total = tl.dot(a, b, total)
        mask = (rows[:, None] < M) & (columns[None, :] < N)
        tl.store(c_ptr + rows[:, None] * N + columns[None, :], total, mask=mask)

    @triton.jit
    def checked_kernel(x_ptr, n):
        i = tl.program_id(0)
        tl.device_assert(i < n, "too many programs")
        tl.store(x_ptr + i, i)

    # docs: triton-launch
    def add(x, y, out=None):
        """Returns x + y, and the compiled kernel. Does not wait for it."""
        out = torch.empty_like(x) if out is None else out
        grid = (triton.cdiv(x.numel(), 256),)
        return out, add_kernel[grid](x, y, out, x.numel(), BLOCK=256)

    # docs: end


def needs_triton(case):
    """Skips where Triton is not installed, or where the build has none of it."""
    reason = "Triton is not installed" if not HAS_TRITON else "the build has no Triton"
    return unittest.skipUnless(HAS_TRITON and extras.has("triton"), reason)(case)


@functools.cache
def cache_folder():
    """A folder for compiled kernels, of this process alone."""
    folder = tempfile.mkdtemp(prefix="openreg-triton-test-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


class TritonTestCase(OpenRegTestCase):
    """Compiles kernels into a cache of the test's own."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if HAS_TRITON:
            cls.scope = triton.knobs.cache.scope()
            cls.scope.__enter__()
            triton.knobs.cache.dir = cache_folder()

    @classmethod
    def tearDownClass(cls):
        if HAS_TRITON:
            cls.scope.__exit__(None, None, None)
        super().tearDownClass()
