"""The file that ``OPENREG_SANITIZER_REPORT`` names.

Note [A report of several processes]
    A launcher, its ranks and the processes of a data loader inherit the setting, and all of them
    report. If the name contains ``%p``, which is replaced by the process id, each process has its
    own file. Without it they share one. The first process empties it and sets an environment
    variable, so that its child processes append to the file. After that, a process replaces only
    its own entries, under a lock of the file.

    Findings are written at once, since a launcher kills the other ranks when one of them ends. It
    is appended to the file; the count of each finding is written when the process ends.
"""

import contextlib
import fcntl
import json
import os
import socket
import stat
import textwrap
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import IO, Any

__all__ = ["ReportFile"]

_VARIABLE = "OPENREG_SANITIZER_REPORT"
# Names the file that this process, or one that has started it, has emptied. No name of a setting.
_BEGUN = "_OPENREG_SANITIZER_REPORT_BEGUN"
_PROCESS = "%p"


class ReportFile:
    """The sanitizer's findings as JSON, for one process or several.

    Attributes:
        problem: Why the last attempt to write the file failed; None if it did not.
    """

    def __init__(self, name: str) -> None:
        """Takes the file's name; a relative one is of the folder that is current now."""
        self.problem: str | None = None
        self._name = os.path.abspath(name)
        self._given = name
        self._process = _describe_process()
        self._has_written = False

    @property
    def path(self) -> str:
        """The file of this process."""
        return self._name.replace(_PROCESS, str(os.getpid()))

    def begin(self) -> str | None:
        """Empties the file, unless the process that started this one has.

        Returns:
            Why it cannot be written, as a text about the setting; None if it can.
        """
        path = self.path
        is_ours = _PROCESS not in self._name and os.environ.get(_BEGUN) == path
        try:
            with _locked(path) as file:
                if not is_ours and _is_regular(file):
                    _replace(file, [])
        except OSError as error:
            self.problem = (
                f"{_VARIABLE} is '{self._given}'; allowed: the name of a file that can be written "
                f"({error.strerror})"
            )
            return self.problem
        if _PROCESS not in self._name:
            os.environ[_BEGUN] = path
        return None

    def begin_child(self) -> None:
        """In a forked process: the parent's entries are not changed."""
        self._process = _describe_process()
        self._has_written = False

    def add(self, finding: dict[str, Any]) -> None:
        """Appends a finding of this process, if it is a regular file; never raises."""
        entry = {"process": self._process, **finding}
        try:
            with _locked(self.path) as file:
                if _is_regular(file):
                    if not _append(file, entry):
                        _replace(file, [*_read(file), entry])
                    self._has_written = True
        except (OSError, ValueError) as error:
            self.problem = f"{_VARIABLE}: {self.path}: {error}"

    def end(self, findings: Sequence[dict[str, Any]]) -> None:
        """Writes this process's findings and keeps those of others; never raises.

        Args:
            findings: All findings of this process.
        """
        if not findings and not self._has_written and self.problem is None:
            return
        entries = [{"process": self._process, **one} for one in findings]
        self.problem = None
        try:
            with _locked(self.path) as file:
                if _is_regular(file):
                    others = [one for one in _read(file) if one.get("process") != self._process]
                    _replace(file, [*others, *entries])
                    self._has_written = True
                else:
                    file.write(_text_of(entries))
        except (OSError, ValueError) as error:
            self.problem = f"{_VARIABLE}: {self.path}: {error}"


def _describe_process() -> dict[str, Any]:
    rank = os.environ.get("RANK", "")
    return {
        "id": os.getpid(),
        "host": socket.gethostname(),
        "rank": int(rank) if rank.isdigit() else None,
        "started": datetime.now().isoformat(),
    }


@contextlib.contextmanager
def _locked(path: str) -> Iterator[IO[str]]:
    """Opens a file for reading and writing; waits while another process has it open."""
    number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY, 0o666)
    is_regular = stat.S_ISREG(os.fstat(number).st_mode)
    # A terminal or a pipe has no position, which "r+" needs.
    with os.fdopen(number, "r+" if is_regular else "w", encoding="utf-8") as file:
        if is_regular:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def _is_regular(file: IO[str]) -> bool:
    return stat.S_ISREG(os.fstat(file.fileno()).st_mode)


def _read(file: IO[str]) -> list[dict[str, Any]]:
    """Returns what processes of this run have written; nothing if a crash has cut it."""
    file.seek(0)
    try:
        found = json.loads(file.read() or "[]")
    except ValueError:
        return []
    return found if isinstance(found, list) else []


def _append(file: IO[str], entry: dict[str, Any]) -> bool:
    """Adds an entry to those in the file; returns False if the file does not end as expected."""
    size = os.fstat(file.fileno()).st_size
    last, end = "}", "\n]\n"
    tail = os.pread(file.fileno(), len(last + end), max(0, size - len(last + end)))
    if tail != (last + end).encode():
        return False
    file.seek(size - len(end))
    file.write(",\n" + textwrap.indent(json.dumps(entry, indent=1), " ") + end)
    file.flush()
    return True


def _replace(file: IO[str], entries: Sequence[dict[str, Any]]) -> None:
    file.seek(0)
    file.write(_text_of(entries))
    file.truncate()
    file.flush()


def _text_of(entries: Sequence[dict[str, Any]]) -> str:
    return json.dumps(entries, indent=1) + "\n"
