"""Runs PyTorch's own device-generic tests, unmodified, on this backend.

``python tools/upstream_device.py [--device cuda|openreg] FOLDER [FILE ...]``

The folder is ``test`` of a checkout of PyTorch, of the release that is installed. It may also be
``test/xpu`` of a checkout of intel/torch-xpu-ops: its files ``*_xpu.py`` are copies for the device
type ``xpu``, and are read as if they named the type of this device. FILE names test files in it, by
default those whose tests run on any device. The tests are PyTorch's and no part of this repository.
Those of this device run: what ``instantiate_device_type_tests`` makes for its type, and others with
the type in their name. Each file runs in a separate process; a test that crashes or exceeds the
time limit is one failure, and the following tests still run.

``upstream_device.toml`` lists the tests that fail for a known reason. The names there and in the
output are without the type: ``test_nn.py::TestNN::test_x_float32`` is
``test_nn_xpu.py::TestNNCUDA::test_x_cuda_float32``. The exit code is 1 if a test fails that is not
listed, if a listed test passes or does not exist, or if nothing ran. The part of the list that is
about files which ran counts.

This file is also the pytest plug-in in the processes of the tests.
"""

import importlib.util
import os
import re
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest
from upstream_suites import Suite, run_suite

__all__ = ["SUITE", "generic_name"]

_FILES = (
    "test_autocast.py",
    "test_custom_ops.py",
    "test_decomp.py",
    "test_expanded_weights.py",
    "test_flop_counter.py",
    "test_legacy_vmap.py",
    "test_matmul_cuda.py",
    "test_meta.py",
    "test_nestedtensor.py",
    "test_nn.py",
    "test_sparse.py",
    "test_sparse_csr.py",
    "test_tensor_creation_ops.py",
    "test_testing.py",
    "test_torch.py",
    "test_transformers.py",
    "test_unary_ufuncs.py",
    "test_utils.py",
    "nn/test_dropout.py",
    "functorch/test_aotdispatch.py",
    "functorch/test_control_flow.py",
    "functorch/test_eager_transforms.py",
    "functorch/test_ops.py",
    "functorch/test_vmap.py",
)

# The end of the name of a copy for another device type.
_COPY = "_xpu"

# What a copy calls its device, and what the same is called here. Decorators that skip a test there
# keep their names, and do not skip it here.
_WORDS = {
    "cuda": {
        "xpu": "cuda",
        "is_xpu": "is_cuda",
        "XPU": "CUDA",
        "TEST_XPU": "TEST_CUDA",
        "onlyXPU": "onlyCUDA",
    },
    "openreg": {
        "xpu": "openreg",
        "is_xpu": "is_openreg",
        "XPU": "PrivateUse1",
        "TEST_XPU": "TEST_PRIVATEUSE1",
        "onlyXPU": "onlyPRIVATEUSE1",
    },
}


def generic_name(test: str) -> str:
    """Returns the name of a test, or of a file, without the device type."""
    file, separator, name = test.partition("::")
    classes, last, function = name.rpartition("::")
    classes = re.sub(r"(CUDA|OPENREG|PRIVATEUSE1)$", "", classes)
    function = re.sub(r"(.*)_(cuda|openreg|privateuse1)(?=_|$)", r"\1", function)
    return file.replace(f"{_COPY}.py", ".py") + separator + classes + last + function


SUITE = Suite(
    Path(__file__),
    __doc__,
    "test, of a checkout of PyTorch",
    files=[name.replace(".py", end) for name in _FILES for end in (".py", f"{_COPY}.py")],
    devices={
        "cuda": {
            "OPENREG_DEVICE_TYPE": "cuda",
            "OPENREG_CUDA_NOTICE": "0",
            "OPENREG_CUDA_VERSION": "12.8",
            "PYTORCH_TESTING_DEVICE_ONLY_FOR": "cuda",
        },
        "openreg": {
            "OPENREG_DEVICE_TYPE": "openreg",
            "PYTORCH_TESTING_DEVICE_ONLY_FOR": "openreg",
        },
    },
    plugin="upstream_device",
    name_of=generic_name,
)


# --- The plug-in, in the process of the tests


class _Loader(SourceFileLoader):
    """Loads a copy for another device type as one for this; its bytecode is not kept."""

    def get_code(self, fullname: str) -> CodeType:
        words = _WORDS[_device()]
        source = importlib.util.decode_source(self.get_data(self.path))
        return self.source_to_code(
            re.sub(r"\w+", lambda word: words.get(word[0], word[0]), source), self.path
        )


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.endswith(_COPY):
            return None
        found = PathFinder.find_spec(fullname, path, target)
        if found is None or found.origin is None:
            return None
        loader = _Loader(fullname, found.origin)
        return importlib.util.spec_from_file_location(fullname, found.origin, loader=loader)


def _device() -> str:
    return os.environ["OPENREG_DEVICE_TYPE"]


def pytest_configure() -> None:
    """Reads copies for another device type as files for this."""
    import torch
    from torch.testing._internal import common_device_type, common_utils

    if not hasattr(torch.version, _device()):  # that of the device's library, in copies
        setattr(torch.version, _device(), None)
    sys.meta_path.insert(0, _Finder())
    # Copies import it from both.
    name = _WORDS[_device()]["TEST_XPU"]
    setattr(common_device_type, name, getattr(common_utils, name))
    # Of @dtypes, @dtypesIfCUDA and those of the copy's device, some tests have two and some three.
    base: Any = common_device_type.DeviceTypeTestBase
    base._get_dtypes = classmethod(_dtypes_of)


def _dtypes_of(cls: Any, test: Any) -> Any:
    given = getattr(test, "dtypes", {})
    return given.get(cls.device_type, given.get("xpu", given.get("all")))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Selects the tests of the device."""
    types = ("cuda",) if _device() == "cuda" else ("openreg", "privateuse1")
    items[:] = [
        item
        for item in items
        if any(name in item.nodeid.partition("::")[2].lower() for name in types)
    ]


if __name__ == "__main__":
    sys.exit(run_suite(SUITE))
