"""The fallback: operators without a kernel of their own run synchronously, and are counted."""

from torch_openreg import _C

__all__ = ["fallback_stats", "get_fallback_mode", "reset_fallback_stats", "set_fallback_mode"]


def fallback_stats() -> dict[str, int]:
    """Returns how often each operator fell back in this process, such as {"aten::foo": 3}."""
    return _C._fallback_stats()


def reset_fallback_stats() -> None:
    """Sets all counts of :func:`fallback_stats` to zero."""
    _C._reset_fallback_stats()


def get_fallback_mode() -> str:
    """Returns what happens when an operator falls back; see :func:`set_fallback_mode`."""
    return _C._fallback_mode()


def set_fallback_mode(mode: str) -> None:
    """Sets what happens when an operator falls back, in all threads of the process.

    Args:
        mode: ``"silent"``: it is counted; ``"warn"``: also a warning, once per operator;
            ``"error"``: it raises NotImplementedError.

    Raises:
        ValueError: The mode is none of these.
    """
    _C._set_fallback_mode(mode)
