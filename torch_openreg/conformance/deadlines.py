"""Deadlines: a test that does not end fails, and the run ends in any case.

Note [Tests that do not end]
    On a device whose work never completes, waits do not return. How a wait is ended depends on
    where it is:

    1. In Python, such as a loop that polls an event or the join of a thread: at the deadline a
       signal handler raises :class:`DeadlineError`. The test fails, and the next one begins.
    2. In C++, where Python handlers do not run before the call returns: after a grace period, a
       thread calls a callback that reports the test as failed, and ends the process.
    3. In C++ with the GIL held, so that this thread cannot run either: after two more grace
       periods, a C thread writes the stacks to stderr and ends the process with status 1.
"""

import faulthandler
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

__all__ = ["PATIENCE_S", "DeadlineError", "Deadlines", "wait_until"]

_PACKAGE = Path(__file__).resolve().parent
# Time limit for work that takes milliseconds on a device that supports it.
PATIENCE_S = 30.0


class DeadlineError(BaseException):
    """A test has not ended in time. Not an Exception, since sweeps catch those as results."""


def wait_until(condition: Callable[[], bool], what: str, seconds: float = PATIENCE_S) -> None:
    """Polls a condition until it holds.

    Args:
        condition: The condition.
        what: What did not happen, for the error.
        seconds: The time limit; far more than a busy machine needs.

    Raises:
        AssertionError: The condition does not hold within the time limit.
    """
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"timed out after {seconds:g} s: {what}")


class Deadlines:
    """Ends tests; see Note [Tests that do not end].

    Attributes:
        is_missed: Whether a test has not ended in time. Its threads may be there still.
    """

    def __init__(
        self, seconds: float, error_file: int, give_up: Callable[[str, str], None]
    ) -> None:
        """Takes what holds for all tests.

        Args:
            seconds: The time that a test has; 0 for any.
            error_file: The number of a file to which stacks are written.
            give_up: Is called in another thread, with the test and the reason, if the test cannot
                be ended. Ends the process.
        """
        self.is_missed = False
        self._seconds = seconds
        self._error_file = error_file
        self._give_up = give_up

    @property
    def _grace_s(self) -> float:
        return max(self._seconds / 10, 5.0)

    @contextmanager
    def hold(self, test: str) -> Iterator[None]:
        """Watches over a block, which is the test with its fixtures."""
        if not self._seconds or threading.current_thread() is not threading.main_thread():
            yield
            return
        main = threading.get_ident()

        def give_up() -> None:
            faulthandler.cancel_dump_traceback_later()  # the GIL is to be had
            frame = sys._current_frames().get(main)
            self._give_up(test, f"{self._reason(frame)}, which no signal interrupts")

        watcher = threading.Timer(self._seconds + self._grace_s, give_up)
        watcher.daemon = True
        before = signal.signal(signal.SIGALRM, self._raise)
        try:
            # Repeated after an interval: handlers of the exception may wait again.
            signal.setitimer(signal.ITIMER_REAL, self._seconds, self._grace_s / 2)
            faulthandler.dump_traceback_later(
                self._seconds + 3 * self._grace_s, exit=True, file=self._error_file
            )
            watcher.start()
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            faulthandler.cancel_dump_traceback_later()
            watcher.cancel()

    def _raise(self, number: int, frame: FrameType | None) -> None:
        self.is_missed = True
        raise DeadlineError(self._reason(frame))

    def _reason(self, frame: FrameType | None) -> str:
        """Returns the position of the test: the line in the kit, and the innermost line."""
        stack = traceback.extract_stack(frame) if frame is not None else []
        kit = [one for one in stack if Path(one.filename).resolve().parent == _PACKAGE]
        places = [f"{one.filename}:{one.lineno}" for one in [*kit[-1:], *stack[-1:]]]
        where = " in ".join(dict.fromkeys(reversed(places))) or "an unknown line"
        return f"the test did not end within {self._seconds:g} seconds; it was at {where}"
