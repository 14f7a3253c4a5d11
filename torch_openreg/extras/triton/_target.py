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

    from triton_openreg.compiler import OpenRegTarget

    heuristics: Any = triton_heuristics
    # Inductor's own function would choose NVIDIA's driver, wherever torch.cuda.is_available().
    heuristics.triton_helpers.set_driver_to_gpu = driver.reset_active
    before = heuristics.GPUTarget

    def target(backend: str, arch: Any, warp_size: int) -> Any:
        return (OpenRegTarget if backend == DEVICE_TYPE else before)(backend, arch, warp_size)

    heuristics.GPUTarget = target
    every = heuristics.unique_configs

    def unique_configs(configs: list[Any]) -> list[Any]:
        # Read now: the first reading of a setting ends the time to set others, and this module is
        # imported with Inductor.
        is_first_enough = _setting("OPENREG_TRITON_AUTOTUNE") == "first"
        return list(every(configs)[:1]) if is_first_enough else list(every(configs))

    heuristics.unique_configs = unique_configs


if runs_here():
    _choose()
