"""``torch.cuda``, where the library serves the device type CUDA on a machine without a GPU.

Note [torch.cuda from below]
    ``torch.cuda`` is Python code over functions and classes of ``torch._C`` that builds without
    CUDA lack. :func:`install` adds the missing names to ``torch._C``, and reloads the modules whose
    classes derive from those of ``torch._C``. All else stays torch's own Python: lazy
    initialization, queued seeds, argument checks, messages, documentation.

    Each ``torch._C._cuda_*`` that the installed torch uses is provided (``bindings.py``), or raises
    an error or is left out with a reason (``absent.py``). A test compares the tables with torch's
    sources.

Other decisions of torch by the device's name are handled in ``storages.py``, ``profiling.py``,
``legacy_types.py``, ``compiler.py``, ``nccl.py``, ``monitoring.py``, ``refusals.py`` and
``device_asserts.py``.
"""

import importlib
import sys
from typing import Any

import torch

from torch_openreg import _C, openreg
from torch_openreg._device_name import DEVICE_NAME
from torch_openreg.extras import sanitizer
from torch_openreg.extras.cuda import (
    absent,
    attention,
    bases,
    bindings,
    build,
    compiler,
    device_asserts,
    legacy_types,
    monitoring,
    nccl,
    profiling,
    properties,
    refusals,
    storages,
    tunable,
)

__all__ = ["install"]


def install() -> None:
    """Makes ``torch.cuda`` work. Called once, when torch has been imported."""
    if build.has_cuda():
        build.remove_names()
    else:
        setattr(torch.version, "cuda", properties.version_of_cuda())  # noqa: B010
    torch._C._has_cuda = True
    for name, value in _names_of_bindings().items():
        setattr(torch._C, name, value)
    cuda: Any = torch.cuda
    _load_classes(cuda)
    cuda._is_in_bad_fork = _C._is_in_bad_fork
    cuda._exchange_device = bindings.exchange_device
    cuda._maybe_exchange_device = bindings.maybe_exchange_device
    cuda._cudart = profiling.RUNTIME_LIBRARY
    cuda._CudaDeviceProperties = properties.CudaDeviceProperties
    # torch would query a driver, if the machine has one. A negative number means none.
    cuda._device_count_nvml = cuda._device_count_amdsmi = lambda: -1
    cuda.is_emulated = True
    # Reading the state of a generator waits for kernels; torch's function would with the GIL.
    for module in (cuda, cuda.random):
        module.get_rng_state = openreg.get_rng_state
    storages.install()
    legacy_types.install()
    profiling.install()
    nccl.install()
    refusals.install()
    compiler.install()
    monitoring.install()
    device_asserts.install()
    # For what has no counterpart in torch.cuda.
    setattr(torch, DEVICE_NAME, openreg)
    cuda.sanitizer = sys.modules["torch.cuda.sanitizer"] = sanitizer.sanitizer


def _names_of_bindings() -> dict[str, Any]:
    return {
        **absent.REFUSALS,
        **attention.SUPPLIED,
        **bases.SUPPLIED,
        **bindings.SUPPLIED,
        **tunable.SUPPLIED,
    }


def _load_classes(cuda: Any) -> None:
    """Reloads the modules whose classes derive from these, and replaces the old classes."""
    for name in ("streams", "graphs", "memory", "nvtx"):
        module = importlib.reload(sys.modules[f"torch.cuda.{name}"])
        for exported in getattr(module, "__all__", ["Stream", "ExternalStream", "Event"]):
            if name != "nvtx":
                setattr(cuda, exported, getattr(module, exported))
    cuda._use_uvm = cuda.memory._use_uvm
