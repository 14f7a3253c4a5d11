"""Extras: what the native libraries can be built without. See OPENREG_EXTRAS in setup.py.

A name of ``torch_openreg._C`` that belongs to a missing extra raises AttributeError and says so.
This module is for what would otherwise fail later, or without a word.
"""

from torch_openreg import _C

__all__ = ["ExtraError", "explain", "has", "require"]

_MISSING = frozenset(name for name in _C._missing_extras().split(", ") if name)


class ExtraError(NotImplementedError):
    """The extra was left out when torch_openreg was built."""


def has(extra: str) -> bool:
    """Returns whether an extra was built."""
    return extra not in _MISSING


def explain(what: str, extra: str) -> str:
    """Returns the text of the error for what needs a missing extra."""
    return (
        f"{what}: needs the extra '{extra}', without which torch_openreg was built; install it "
        "again with OPENREG_EXTRAS=all"
    )


def require(what: str, extra: str) -> None:
    """Raises if an extra is missing.

    Args:
        what: The function or class that needs it.
        extra: Its name.

    Raises:
        ExtraError: It is missing.
    """
    if not has(extra):
        raise ExtraError(explain(what, extra))
