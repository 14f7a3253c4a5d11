"""The fallback, which runs operators without a kernel: its mode and its statistics."""

from torch_openreg import _C
from torch_openreg.openreg._utils import _boolean, _text

__all__ = [
    "fallback_copied_bytes",
    "fallback_stats",
    "get_fallback_mode",
    "reset_fallback_stats",
    "set_fallback_mode",
]

_MODES = ("silent", "warn", "error")


def fallback_stats(*, synchronous_only: bool = False) -> dict[str, int]:
    """Returns how often each operator fell back in this process, such as {"aten::foo": 3}.

    Calls run on the stream, unless the metadata of their results depends on data; a first call
    with arguments of given sizes and dtypes makes the host wait if they cannot be predicted.

    Args:
        synchronous_only: Whether to count only the calls that made the host wait.

    Raises:
        TypeError: ``synchronous_only`` is not a bool.
    """
    return _C._fallback_stats(
        _boolean("torch.openreg.fallback_stats", "synchronous_only", synchronous_only)
    )


def fallback_copied_bytes() -> dict[str, int]:
    """Returns the bytes that were copied for each operator of :func:`fallback_stats`.

    Arguments are not copied, since the CPU's kernels read device memory. Results are, if the kernel
    did not compute them there; calls on the stream count when they have run.
    """
    return _C._fallback_copied_bytes()


def reset_fallback_stats() -> None:
    """Sets the counts of :func:`fallback_stats` and :func:`fallback_copied_bytes` to zero."""
    _C._reset_fallback_stats()


def get_fallback_mode() -> str:
    """Returns what happens when the fallback makes the host wait; see :func:`set_fallback_mode`."""
    return _C._fallback_mode()


def set_fallback_mode(mode: str) -> None:
    """Sets what happens when the fallback makes the host wait, in all threads of the process.

    Calls that run on the stream are not affected.

    Args:
        mode: ``"silent"``: the call is counted; ``"warn"``: it also warns, once per operator;
            ``"error"``: it raises NotImplementedError.

    Raises:
        TypeError: The mode is not a string.
        ValueError: The mode is not one of these.
    """
    operation = "torch.openreg.set_fallback_mode"
    if _text(operation, "mode", mode) not in _MODES:
        raise ValueError(f'{operation}: expected "silent", "warn" or "error", got "{mode}"')
    _C._set_fallback_mode(mode)
