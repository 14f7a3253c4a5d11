"""The device type ``cuda``, where this package serves it: see ``installation.py``."""

import functools
import os
from types import ModuleType
from typing import Any

import torch

from torch_openreg import extras
from torch_openreg._loading import DEVICE_TYPE_VARIABLE, RegistrationError

__all__ = ["check_parts", "prepare", "register"]

# What torch.cuda has functions for.
_NEEDED = ("cuda", "distributed", "graph", "ipc", "profiler", "sanitizer")


def prepare() -> None:
    """Prepares for the device type CUDA. Called before the native library is loaded.

    Raises:
        RegistrationError: torch itself serves the device type on this machine.
    """
    from torch_openreg.extras.cuda import build, native_overrides

    build.check_machine()
    native_overrides.keep_out()


def check_parts() -> None:
    """Checks that the library has what the device type CUDA needs.

    Raises:
        RegistrationError: An extra is missing, or torch does not use our hooks.
    """
    from torch_openreg import _C

    for extra in _NEEDED:
        if not extras.has(extra):
            raise RegistrationError(extras.explain(f"{DEVICE_TYPE_VARIABLE}=cuda", extra))
    if not _C._has_cuda_hooks():
        raise RegistrationError(
            f"torch {torch.__version__} does not use the CUDA hooks that torch_openreg registered. "
            f"Unset {DEVICE_TYPE_VARIABLE} to use the device {_C._device_name()!r}."
        )


def register(module: ModuleType) -> None:
    """Makes ``torch.cuda`` work if the library serves the device type CUDA.

    Args:
        module: The module ``torch.openreg``, to which nothing is added.
    """
    from torch_openreg import _C

    del module
    if _C._serves_cuda():
        from torch_openreg.extras.cuda import installation

        installation.install()
    else:
        _explain_late_choice()


def _explain_late_choice() -> None:
    """Makes device cuda report that the variable was set too late.

    torch's error text in a build without CUDA, or without a GPU, does not mention the variable.
    """
    initialize: Any = torch.cuda._lazy_init
    reason = "" if torch.cuda._is_compiled() else "Torch not compiled with CUDA enabled, and "

    @functools.wraps(initialize)
    def initialize_or_explain() -> None:
        if os.environ.get(DEVICE_TYPE_VARIABLE) == "cuda":
            raise AssertionError(
                f"{reason}{DEVICE_TYPE_VARIABLE} was not 'cuda' when torch was imported; set it "
                "before the process imports torch"
            )
        initialize()

    cuda: Any = torch.cuda
    cuda._lazy_init = initialize_or_explain
