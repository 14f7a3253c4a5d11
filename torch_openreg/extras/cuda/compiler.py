"""``torch.compile``: Inductor's own kernels in Triton are not chosen.

Triton itself runs kernels of programs, by ``triton_openreg``. torch is told that it cannot be used,
so that this package's wrapper and pass for CUDA are chosen, unless OPENREG_INDUCTOR=triton asks for
torch's own kernels in Triton.
"""

import functools
import sys
from typing import Any

from torch_openreg._imports import after_import
from torch_openreg.extras import has
from torch_openreg.openreg._utils import _setting

__all__ = ["install"]


def install() -> None:
    """Has torch find no use for Triton, unless Inductor is to make kernels in it."""
    after_import("torch.utils._triton", _replace_has_triton)


def _replace_has_triton() -> None:
    triton: Any = sys.modules["torch.utils._triton"]
    replaced = triton.has_triton

    @functools.cache
    def has_triton(*, include_cpu: bool = False) -> bool:
        """Whether Triton has kernels for a device other than ours: since torch 2.15, for the CPU.

        Reads the setting when torch asks, since the first reading ends the time to set others.
        """
        if has("triton") and _setting("OPENREG_INDUCTOR") == "triton":
            return bool(replaced(include_cpu=True) if include_cpu else replaced())
        return include_cpu and bool(triton.has_triton_cpu_backend())

    triton.has_triton = has_triton
    # Modules that were imported before this one have the function by its name.
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get("has_triton") is replaced:
            module.has_triton = has_triton  # type: ignore[attr-defined]
