"""What the lowering of a kernel makes: its C++ source, and what a caller has to know about it."""

from dataclasses import dataclass

from torch_openreg.extras.triton._ttir import Frame

__all__ = ["Argument", "Location", "Lowered", "LoweringError", "Options"]


class LoweringError(NotImplementedError):
    """A kernel contains what cannot be compiled for a CPU.

    Attributes:
        operation: The operation of TTIR, such as ``tt.elementwise_inline_asm``.
        frames: Its places in the user's sources, the innermost first; maybe none.
    """

    def __init__(self, operation: str, reason: str, frames: tuple[Frame, ...]) -> None:
        place = f"{frames[-1]}: " if frames else ""
        super().__init__(f"{place}{operation}: {reason}")
        self.operation = operation
        self.frames = frames


@dataclass(frozen=True)
class Options:
    """What the same kernel can be compiled to.

    Attributes:
        checks: Whether accesses are checked against the storage of their arguments.
        observed: Whether the caller can observe each access; see OpenRegTritonLaunch.
        fuses: Whether a product and a sum may be rounded once, as with ``enable_fp_fusion``.
    """

    checks: bool = True
    observed: bool = False
    fuses: bool = True


@dataclass(frozen=True)
class Argument:
    """One parameter of a kernel.

    Attributes:
        name: The parameter's name in the user's source.
        kind: ``pointer``, ``integer`` or ``number``: how many slots it has, and their meaning; see
            OpenRegTritonEntry.
        element: The type of the value, or of what the pointer points at: ``f32``, ``i1``, ...
        is_read: Whether the kernel may read the storage of a pointer. False is certain.
        is_written: Whether the kernel may write it. Atomic operations do both.
    """

    name: str
    kind: str
    element: str
    is_read: bool = False
    is_written: bool = False


@dataclass(frozen=True)
class Location:
    """A place that an error record refers to.

    Attributes:
        frames: The user's function and its callers, the innermost first.
        message: Of an assertion, its message; else empty.
    """

    frames: tuple[Frame, ...]
    message: str = ""


@dataclass(frozen=True)
class Lowered:
    """A kernel in C++.

    Attributes:
        name: The kernel's name.
        source: A complete source file, which includes the headers of ``torch_openreg/triton``.
        arguments: The kernel's parameters, in the order of their slots.
        locations: What the indices of error records mean.
        may_wait: Whether a loop may wait for other programs to change memory.
        fuses: As in :class:`Options`: an option of the compiler, too.
    """

    name: str
    source: str
    arguments: tuple[Argument, ...]
    locations: tuple[Location, ...]
    may_wait: bool = False
    fuses: bool = True
