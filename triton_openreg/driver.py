"""Triton's driver for devices of torch_openreg."""

import sys
from collections.abc import Callable
from typing import Any

from triton.backends.driver import DriverBase

__all__ = ["OpenRegDriver"]


class OpenRegDriver(DriverBase):  # type: ignore[misc]
    """Devices, streams and launches."""

    @staticmethod
    def is_active() -> bool:
        """Returns whether kernels run on torch_openreg's devices.

        They do with the device type cuda, and on a machine without a GPU for torch.
        """
        try:
            return _is_active()
        except Exception:
            # The drivers of other devices are asked by the same loop.
            return False

    def __init__(self) -> None:
        """Makes Triton use these devices.

        Raises:
            ExtraError: torch_openreg was built without Triton.
        """
        super().__init__()
        from torch_openreg import extras

        extras.require("A kernel of Triton", "triton")
        from torch_openreg.extras.triton import _driver

        _driver.make_cuda_decline()
        _driver.explain_missing_code()
        _driver.offer_cublas()
        self._driver = _driver
        self.utils = _driver.Utilities()
        self.launcher_cls: Callable[..., Any] = _driver.bind_launcher
        self.get_current_device: Callable[[], int] = _driver.current_device
        self.set_current_device: Callable[[int], None] = _driver.set_device
        self.get_current_stream: Callable[[int], int] = _driver.current_stream()
        self.get_device_capability = _driver.capability

    def get_current_target(self) -> Any:
        """Returns the current device as a target of compilations."""
        return self._driver.target()

    def get_active_torch_device(self) -> Any:
        """Returns the current device, as torch names it."""
        return self._driver.torch_device()

    def get_device_interface(self) -> Any:
        """Returns the module with torch's functions for the device."""
        return self._driver.device_module()

    def map_python_to_cpp_type(self, ty: str) -> str:
        """Returns the C++ type of an argument."""
        return str(self._driver.type_in_cpp(ty))

    def get_benchmarker(self) -> Callable[..., Any]:
        """Returns the function that measures kernels for autotuning."""
        benchmarker: Callable[..., Any] = self._driver.benchmarker()
        return benchmarker

    def get_empty_cache_for_benchmark(self) -> Any:
        """Returns what :meth:`clear_cache` fills between two measured calls."""
        return self._driver.cache_filler()

    def clear_cache(self, cache: Any) -> None:
        """Replaces what the processor's caches hold."""
        cache.zero_()


# As in compiler.py.
OpenRegDriver.__abstractmethods__ = frozenset()


def _is_active() -> bool:
    import torch

    ours: Any = sys.modules.get("torch_openreg.openreg")
    if ours is None or getattr(torch, "openreg", None) is not ours:
        return False
    return bool(sys.modules["torch_openreg._C"]._serves_cuda()) or not any(
        getattr(torch, name).is_available() for name in ("cuda", "xpu") if hasattr(torch, name)
    )
