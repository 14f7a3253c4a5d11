"""Kernels of Triton in programs that torch.compile compiles: what Inductor compiles them for.

Importing this module has Inductor compile for our devices, also in its processes for compilations,
where it makes the target and the driver from the name of the device type alone.
"""

from typing import Any

from torch._inductor.runtime import triton_heuristics

from torch_openreg.openreg._utils import DEVICE_TYPE, _setting
from triton_openreg import runs_here


def _choose() -> None:
    from triton.runtime import driver

    heuristics: Any = triton_heuristics
    # Inductor's own function would choose NVIDIA's driver, wherever torch.cuda.is_available().
    heuristics.triton_helpers.set_driver_to_gpu = driver.reset_active
    before = heuristics.GPUTarget
    ours = type(driver.active.get_current_target())

    def target(backend: str, arch: Any, warp_size: int) -> Any:
        return (ours if backend == DEVICE_TYPE else before)(backend, arch, warp_size)

    heuristics.GPUTarget = target
    if _setting("OPENREG_TRITON_AUTOTUNE") == "first":
        every = heuristics.unique_configs

        def first(configs: list[Any]) -> list[Any]:
            return list(every(configs)[:1])

        heuristics.unique_configs = first


if runs_here():
    _choose()
