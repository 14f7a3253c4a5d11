"""Extras: parts of the package that a build can leave out. What is left is the core."""

from pathlib import PurePath

__all__ = ["EXTRAS", "extra_of", "missing_extras"]

# Each is a folder in some of _PLACES.
EXTRAS = (
    "autocast",
    "cuda",
    "custom",
    "distributed",
    "dry_run",
    "graph",
    "inductor",
    "ipc",
    "poison",
    "profiler",
    "sanitizer",
    "triton",
)

# Where extras have their folders: sources with bindings, public headers, and Python.
_PLACES = (("csrc", "extras"), ("include", "torch_openreg"), ("torch_openreg", "extras"))


def extra_of(path: str) -> str | None:
    """Returns the extra to which a file or folder of the repository belongs; None for the core.

    Args:
        path: The path from the root of the repository.
    """
    parts = PurePath(path).parts
    if parts[:2] in _PLACES and len(parts) > 2 and parts[2] in EXTRAS:
        return parts[2]
    return None


def missing_extras(text: str) -> list[str]:
    """Returns the extras that a build leaves out.

    Args:
        text: What OPENREG_EXTRAS says: ``all``, ``none``, a list of the extras to build, such as
            ``graph,profiler``, or of those to leave out, such as ``-distributed,-inductor``.

    Raises:
        ValueError: The text is none of these.
    """
    if text in ("all", "none"):
        return [] if text == "all" else list(EXTRAS)
    names = text.split(",")
    chosen = {name.removeprefix("-") for name in names}
    are_left_out = {name.startswith("-") for name in names}
    if not chosen <= set(EXTRAS) or len(are_left_out) != 1:
        raise ValueError(
            "OPENREG_EXTRAS: expected all, none, a list of extras to build, or a list of extras to "
            f"leave out, each with a leading '-', of {', '.join(EXTRAS)}; got {text!r}"
        )
    return sorted(chosen if are_left_out == {True} else set(EXTRAS) - chosen)
