"""Programs with one mistake each, and the same programs without it.

Each is a function of one argument: whether it is right. The lines of the two accesses (of a freed
block: the use on the other stream and the free) end in a comment with ``<1>`` and ``<2>``.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

__all__ = ["MISTAKES", "Mistake", "device", "mistake", "same_stream"]

device = torch.accelerator.current_accelerator()
_module = getattr(torch, device.type)
Stream, Event, stream, current = (
    _module.Stream,
    _module.Event,
    _module.stream,
    _module.current_stream,
)

SIZE = 64


@contextlib.contextmanager
def same_stream() -> Iterator[None]:
    """Makes the current stream current again: torch.cuda.graph does not if its capture fails."""
    before = current()
    try:
        yield
    finally:
        _module.set_stream(before)


class Mistake(NamedTuple):
    """A program and the expected contents of its report."""

    kind: str
    run: Callable[[bool], None]
    lines: tuple[int, ...]
    filename: str

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.run.__name__


MISTAKES: list[Mistake] = []


def mistake(kind: str) -> Callable[[Callable[[bool], None]], Callable[[bool], None]]:
    """Registers a program whose finding is of this kind."""

    def register(run: Callable[[bool], None]) -> Callable[[bool], None]:
        text, first = inspect.getsourcelines(run)
        lines = tuple(
            first + number
            for number, line in enumerate(text)
            if line.rstrip().endswith(("# <1>", "# <2>"))
        )
        MISTAKES.append(Mistake(kind, run, lines, inspect.getsourcefile(run) or ""))
        return run

    return register


def _ready(*sizes: int, where: torch.device = device) -> torch.Tensor:
    """A tensor whose values are there, whatever stream reads them."""
    tensor = torch.zeros(sizes or (SIZE,), device=where)
    _module.synchronize(tensor.device)
    return tensor


def _after(waiting: torch.Stream, other: torch.Stream, is_right: bool) -> None:
    if is_right:
        waiting.wait_stream(other)
