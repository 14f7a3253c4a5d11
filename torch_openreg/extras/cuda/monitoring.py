"""The NVML functions of ``torch.cuda``: utilization, memory in use, processes.

torch uses the module ``pynvml`` of ``nvidia-ml-py``, which needs NVIDIA's driver. Here it uses the
module in ``torch_openreg/extras/cuda/tools``, even if another one is installed.
"""

import importlib
import sys
from typing import Any

import torch

from torch_openreg import _C
from torch_openreg.openreg._utils import _index_or_current

__all__ = ["install"]


def _nvml() -> Any:
    """Returns the package's module; the one that the program imports, if it is the package's."""
    ours: Any = importlib.import_module("torch_openreg.extras.cuda.tools.pynvml")
    imported = sys.modules.get("pynvml")
    is_ours = getattr(imported, "__file__", None) == ours.__file__
    return imported if is_ours else ours


def _number_of(device: Any) -> int:
    """Returns NVML's index of a device."""
    index = _index_or_current("torch.cuda", device)
    return _C._device_properties(index).physical_index


def _handle_of(device: Any = None) -> Any:
    nvml = torch.cuda.pynvml  # type: ignore[attr-defined]
    nvml.nvmlInit()
    return nvml.nvmlDeviceGetHandleByIndex(_number_of(device))


def _list_processes(device: Any = None) -> str:
    """Returns a text with the processes that use a device, and how much memory they use."""
    nvml = torch.cuda.pynvml  # type: ignore[attr-defined]
    lines = [f"GPU:{_number_of(device)}"]
    for process in nvml.nvmlDeviceGetComputeRunningProcesses(_handle_of(device)):
        size_mb = process.usedGpuMemory / (1 << 20)
        lines.append(f"process {process.pid:>10d} uses {size_mb:>12.3f} MB GPU memory")
    return "\n".join(lines if len(lines) > 1 else [*lines, "no processes are running"])


class _LazyNvml:
    """A proxy of the module, which is imported on the first access to one of its names."""

    def __getattr__(self, name: str) -> Any:
        module = torch.cuda.pynvml = _nvml()  # type: ignore[attr-defined]
        return getattr(module, name)


def install() -> None:
    """Makes ``torch.cuda`` use the package's module."""
    cuda: Any = torch.cuda
    cuda._HAS_PYNVML, cuda._PYNVML_ERR = True, None
    cuda.pynvml = _LazyNvml()
    cuda._get_pynvml_handler = _handle_of
    cuda._get_nvml_device_index = cuda.memory._get_nvml_device_index = _number_of
    cuda.list_gpu_processes = cuda.memory.list_gpu_processes = _list_processes
