"""Automatic mixed precision on the device.

Everything here is ``torch.amp`` for this device; ``torch.autocast("openreg")`` and
``torch.amp.GradScaler("openreg")`` do the same.
"""

from collections.abc import Callable
from typing import Any

import torch

from torch_openreg.openreg._utils import DEVICE_TYPE
from torch_openreg.openreg.devices import is_bf16_supported, is_tf32_supported

__all__ = [
    "GradScaler",
    "autocast",
    "custom_bwd",
    "custom_fwd",
    "get_amp_supported_dtype",
    "is_bf16_supported",
    "is_tf32_supported",
]


class autocast(torch.amp.autocast):
    """``torch.autocast`` for openreg: a context manager and a decorator.

    Args:
        enabled: Whether the region casts; False disables autocast inside an outer region.
        dtype: The lower-precision dtype, one of :func:`get_amp_supported_dtype`. The default is
            what ``torch.set_autocast_dtype`` has set, or else the first of them.
        cache_enabled: Whether casts of leaves that require gradients are cached in the region.
    """

    def __init__(
        self,
        enabled: bool = True,
        dtype: torch.dtype | None = None,
        cache_enabled: bool | None = None,
    ) -> None:
        """Prepares the region."""
        super().__init__(DEVICE_TYPE, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)


class GradScaler(torch.amp.GradScaler):
    """``torch.amp.GradScaler`` for openreg: scales losses, so that gradients do not underflow.

    Args:
        init_scale: The first scale.
        growth_factor: The factor after ``growth_interval`` steps without an infinity or NaN in the
            gradients.
        backoff_factor: The factor after a step with an infinity or NaN; that step is skipped.
        growth_interval: The number of steps, see ``growth_factor``.
        enabled: Whether it does anything.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        """Starts with the scale ``init_scale``."""
        super().__init__(
            DEVICE_TYPE,
            init_scale=init_scale,
            growth_factor=growth_factor,
            backoff_factor=backoff_factor,
            growth_interval=growth_interval,
            enabled=enabled,
        )


def custom_fwd(
    forward: Callable[..., Any] | None = None, *, cast_inputs: torch.dtype | None = None
) -> Callable[..., Any]:
    """``torch.amp.custom_fwd`` for openreg: decorates the forward of an autograd function.

    Args:
        forward: The static method. Without it the result is a decorator.
        cast_inputs: The dtype that floating-point arguments are cast to; the function then runs
            without autocast. None: it runs with the autocast state of its caller.
    """
    decorated: Callable[..., Any] = torch.amp.custom_fwd(
        forward, device_type=DEVICE_TYPE, cast_inputs=cast_inputs
    )
    return decorated


def custom_bwd(backward: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.amp.custom_bwd`` for openreg: backward runs with the autocast state of forward.

    Args:
        backward: The static method of an autograd function.
    """
    decorated: Callable[..., Any] = torch.amp.custom_bwd(backward, device_type=DEVICE_TYPE)
    return decorated


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Returns the dtypes that ``torch.autocast("openreg")`` can compute in."""
    return [torch.float16, torch.bfloat16]
