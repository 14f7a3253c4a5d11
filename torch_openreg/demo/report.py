"""The demo's output and its failed checks."""

import statistics
from collections.abc import Sequence
from typing import TextIO

__all__ = ["Progress", "Report", "are_steady", "describe_spread"]

# If the quartiles of times of the same work differ by more, other programs use the processors.
_BUSY_FACTOR = 2.0
_BAR_WIDTH = 20
_LINES_WITHOUT_TERMINAL = 10


class Progress:
    """A bar on one line of a terminal; elsewhere plain lines, ten at most."""

    def __init__(self, stream: TextIO, total: int) -> None:
        """Prints nothing yet; ``total`` is the number of steps to come."""
        self._stream = stream
        self._total = total
        self._step = 0
        self._is_terminal = stream.isatty()

    def advance(self, text: str) -> None:
        """Counts one step and shows ``text`` beside it."""
        self._step += 1
        counter = f"{self._step:{len(str(self._total))}}/{self._total}"
        if self._is_terminal:
            filled = "#" * (_BAR_WIDTH * self._step // self._total)
            end = "\n" if self._step == self._total else ""
            self._stream.write(f"\r\x1b[K[{filled:{_BAR_WIDTH}}] {counter}  {text}{end}")
        elif self._is_due():
            self._stream.write(f"{counter}  {text}\n")
        self._stream.flush()

    def _is_due(self) -> bool:
        lines = _LINES_WITHOUT_TERMINAL
        return self._step * lines // self._total > (self._step - 1) * lines // self._total


class Report:
    """Writes sections, lines and checks to a text stream and remembers the failed checks."""

    def __init__(self, stream: TextIO) -> None:
        """Starts without failures."""
        self._stream = stream
        self.failures: list[str] = []

    def section(self, title: str) -> None:
        """Starts a section."""
        self._write(f"\n{title}\n{'-' * len(title)}\n")

    def line(self, text: str) -> None:
        """Prints one line."""
        self._write(f"{text}\n")

    def check(self, passed: bool, claim: str, detail: str = "") -> None:
        """Prints a claim with its outcome; a claim that does not hold is kept as a failure.

        Args:
            passed: whether the claim holds.
            claim: what was checked, worded as true.
            detail: printed and kept only if the claim does not hold: what was found instead.
        """
        if passed:
            self.line(f"[ok]     {claim}")
            return
        failure = f"{claim}: {detail}" if detail else claim
        self.line(f"[FAILED] {failure}")
        self.failures.append(failure)

    def progress(self, total: int) -> Progress:
        """Starts a progress display of ``total`` steps."""
        return Progress(self._stream, total)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def are_steady(times: Sequence[float]) -> bool:
    """Returns whether times of the same work are alike but for single ones.

    Of fewer than four, that cannot be said, and they count as steady.
    """
    if len(times) < 4:
        return True
    lower, _, upper = statistics.quantiles(times, n=4, method="inclusive")
    return upper <= _BUSY_FACTOR * lower


def describe_spread(values: Sequence[float]) -> str:
    """Returns ``median (min to max)`` of at least one value, with two decimals."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"
