"""Dry runs: a program runs, and its kernels do not, so that its memory shows without a GPU."""

import os
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import torch

from torch_openreg import _C
from torch_openreg.extras import add_module
from torch_openreg.extras.dry_run import dry_run

__all__ = ["register", "start"]

_C._declare_setting(
    "OPENREG_DRY_RUN",
    "0",
    "0 1",
    "1: work on more than 64 KiB is skipped, and takes device memory's addresses alone. Read by "
    "import torch.",
)
_C._declare_setting(
    "OPENREG_DRY_RUN_TIMING",
    "early",
    "early late",
    "In a dry run, when other streams' uses of memory end: at once, or when the host has waited.",
)
_C._declare_setting(
    "OPENREG_DRY_RUN_SIZES",
    "worst",
    "worst none error",
    "In a dry run, sizes that depend on data, as of nonzero: the largest, the smallest, or an "
    "error.",
)

_C._declare_setting(
    "OPENREG_DRY_RUN_VALUE",
    "0",
    "0 1",
    "In a dry run, the number that the small results of skipped work have.",
)

# What has no meaning without kernels, by the values that turn it off.
_REFUSED = {
    "OPENREG_SANITIZER": "it follows kernels",
    "OPENREG_MEMORY_POISON": "it writes all memory",
    "OPENREG_FALLBACK_VERIFY": "it compares results",
}


def register(module: ModuleType) -> None:
    """Adds ``torch.openreg.dry_run``.

    Args:
        module: The module ``torch.openreg``.
    """
    add_module(module, dry_run, is_public=True)


def start(_may_warnings_raise: bool) -> None:
    """Starts a dry run if OPENREG_DRY_RUN asks for one.

    Args:
        _may_warnings_raise: Whether a filter may turn a warning of a setting into an exception.
    """
    # The table of settings is read once, when it is first needed, which this import is not.
    if os.environ.get("OPENREG_DRY_RUN", "0") == "0":
        return
    dry_run.take_profile()
    given = {row[0]: row[4] for row in _C._settings()}
    if given["OPENREG_DRY_RUN"] != "1" or _C._dry_run_is_on():
        return
    # Of the standard library, of torch and of this package.
    foreign = (os.__file__, torch.__file__, str(Path(__file__).parents[1]))
    _C._dry_run_start(
        given["OPENREG_DRY_RUN_TIMING"] == "late",
        given["OPENREG_DRY_RUN_SIZES"] or "worst",
        _refusal(given),
        tuple(f"{Path(file).parent}{os.sep}" for file in foreign),
        makes_up_ones=given["OPENREG_DRY_RUN_VALUE"] == "1",
    )
    dry_run.start()
    # The functions of other extras find them here.
    setattr(_C, "_share_storage", _refuse_sharing)  # noqa: B010
    setattr(_C, "_Gate", _RefusedGate)  # noqa: B010
    setattr(torch._C._aoti, "AOTIModelPackageLoader", _refuse_compiled_program)  # noqa: B010


def _refuse_sharing(_storage: torch.UntypedStorage) -> NoReturn:
    raise RuntimeError(
        "OPENREG_DRY_RUN=1: tensors cannot be sent to other processes, since they have no contents"
    )


def _refuse_compiled_program(*_arguments: object, **_options: object) -> NoReturn:
    raise RuntimeError(
        "OPENREG_DRY_RUN=1: expected no program compiled by AOTInductor, which writes its weights "
        "to device memory itself; run the model that it was made from"
    )


class _RefusedGate(_C._Gate):
    def __init__(self) -> None:
        raise RuntimeError(
            "OPENREG_DRY_RUN=1: expected no StreamGate, since a dry run waits where a program asks "
            "whether work is done"
        )


def _refusal(given: dict[str, str | None]) -> str:
    """Returns the text of the error of all kernels; empty if the settings have a meaning."""
    for variable, reason in _REFUSED.items():
        if (value := given.get(variable)) not in (None, "0"):
            return (
                f"OPENREG_DRY_RUN=1: expected no {variable}, since {reason} and in a dry run there "
                f"are none; got {value!r}"
            )
    return ""
