"""Runs PyTorch's own tests of CUDA, unmodified, on this backend with the device type ``cuda``.

``python tools/upstream_cuda.py FOLDER [FILE ...]``

The folder is ``test`` of a checkout of PyTorch, of the release that is installed; FILE names test
files in it, by default those that are about CUDA's devices, streams, memory and graphs. The tests
are PyTorch's and no part of this repository. Each file runs in a process of its own, or each test
where the file says so; a test that crashes or exceeds the time limit is one failure, and the tests
after it run.

``upstream_cuda.toml`` lists the tests that fail for a known reason. The exit code is 1 if a test
fails that is not listed, if a listed test passes or does not exist, or if nothing ran. The part of
the list that is about files which ran counts.
"""

import sys
from pathlib import Path

from upstream_suites import Suite, run_suite

__all__ = ["SUITE"]

# These tests ask what happens before the first use of a device.
_ALONE = ("test_cuda_nvml_based_avail.py", "test_cuda_primary_ctx.py", "test_cuda_trace.py")

SUITE = Suite(
    Path(__file__),
    __doc__,
    "test, of a checkout of PyTorch",
    files=(
        "test_cuda.py",
        "test_cuda_multigpu.py",
        "test_cuda_sanitizer.py",
        "dynamo/test_cudagraphs.py",
        *_ALONE,
    ),
    alone=_ALONE,
    environment={
        "OPENREG_DEVICE_TYPE": "cuda",
        "OPENREG_CUDA_NOTICE": "0",
        # Without a version, the tests of graphs skip themselves.
        "OPENREG_CUDA_VERSION": "12.8",
    },
)

if __name__ == "__main__":
    sys.exit(run_suite(SUITE))
