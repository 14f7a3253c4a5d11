"""Finds work on several streams that nothing orders: what CUDA punishes, mostly in silence.

While it is on, each kernel's reads and writes are compared with those before it. A finding has both
accesses with their Python lines, the allocation of the memory, and the missing call. It does not
depend on timing: what one run of a program finds, each run finds.

Example:
    >>> torch.openreg.sanitizer.enable()
    >>> side = torch.openreg.Stream()
    >>> with side:
    ...     x = torch.ones(4, device="openreg")
    >>> y = x + 1  # warns: nothing orders it after the write
"""

import atexit
import fnmatch
import functools
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import ContextDecorator, contextmanager
from contextlib import suppress as suppress_errors
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, Self

from torch_openreg import _C, _settings
from torch_openreg._backward_calls import follow_backward, leave_backward
from torch_openreg.openreg._utils import DEVICE_TYPE, _boolean, _text

if TYPE_CHECKING:
    from torch_openreg.extras.sanitizer._findings import Access, Finding, Frame
    from torch_openreg.extras.sanitizer._report_file import ReportFile

__all__ = [
    "Access",
    "Finding",
    "Frame",
    "SanitizerError",
    "SanitizerWarning",
    "check",
    "clear",
    "disable",
    "enable",
    "findings",
    "is_enabled",
    "summary",
    "suppress",
]

Action = Literal["warn", "raise", "collect"]
_ACTIONS: tuple[Action, ...] = ("warn", "raise", "collect")
_KINDS = ("race", "lifetime", "host", "graph-input", "capture", "uninitialized")
_EXIT_STATUS = 77

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        # Loaded when they are needed: most programs that import torch never turn the sanitizer on.
        if name in ("Access", "Finding", "Frame"):
            from torch_openreg.extras.sanitizer import _findings

            return getattr(_findings, name)
        raise AttributeError(f"module 'torch.{DEVICE_TYPE}.sanitizer' has no attribute {name!r}")


class SanitizerWarning(UserWarning):
    """A finding, with the action "warn"."""


class SanitizerError(RuntimeError):
    """A finding, with the action "raise". Its attribute ``finding`` has the finding itself."""

    def __init__(self, finding: "Finding") -> None:
        """Takes the finding, whose text is the error's."""
        super().__init__(str(finding))
        self.finding = finding


# --- State. Python's lock guards it.


class _State:
    def __init__(self) -> None:
        self.action: Action = "warn"
        self.options: dict[str, Any] = {}
        self.found: dict[tuple[object, ...], Finding] = {}
        self.filters: list[_Filter] = []
        self.suppressed_count = 0
        self.is_in_check = 0
        self.has_unhandled = False
        self.is_exit_registered = False
        self.report: ReportFile | None = None


_state = _State()


class _Filter(NamedTuple):
    """Findings that are not reported: patterns of shells; None means all."""

    kinds: tuple[str, ...]
    operator: str | None
    file: str | None

    def matches(self, finding: "Finding") -> bool:
        def is_any(pattern: str | None, texts: Iterator[str]) -> bool:
            return pattern is None or any(fnmatch.fnmatch(text, pattern) for text in texts)

        return (
            (not self.kinds or finding.kind in self.kinds)
            and is_any(self.operator, (access.operator for access in finding.accesses))
            and is_any(self.file, (access.filename for access in finding.accesses))
        )


# --- The interface


def enable(
    action: Action = "warn",
    *,
    race: bool = True,
    lifetime: bool | Literal["exact"] = True,
    host: bool | Literal["operators"] = True,
    capture: bool = True,
    uninitialized: bool = False,
) -> None:
    """Turns the sanitizer on, or changes its settings. What happened before is taken as ordered.

    It keeps, for each stream, what that stream knows of each other one: memory in proportion to the
    square of the streams that were used while it was on, about 900 MiB for 5,000.

    Args:
        action: The effect of a finding. "warn": a SanitizerWarning, once for each pair of lines.
            "raise": a SanitizerError at the second access, whose kernel is then not launched. An
            access of the host cannot be prevented: the error is raised by the next call into the
            backend, or at the end of :class:`check`. "collect": no effect; :func:`findings` returns
            it.
        race: Whether to find two streams that use the same bytes, one of which writes, in no order.
        lifetime: Whether to find memory that is freed while another stream uses it, and memory that
            is first used on a stream that is not ordered after its owner. "exact": the former only
            if the allocator does hand the same bytes out again.
        host: Whether to find what touches pinned memory on the host while a copy uses it:
            operators of the CPU, and all else, such as NumPy, ``tolist()`` and C code, by the
            protection of pages. "operators": operators only, and no page is protected. Memory that
            was pinned before has no protection.
        capture: Whether to note calls that no graph can repeat. They raise the runtime's error in
            any case, so the action "raise" adds nothing.
        uninitialized: Whether to find reads of uninitialized memory, of allocations from now on.
            Results of graphs are always checked before the first replay.

    Raises:
        TypeError: ``race``, ``capture`` or ``uninitialized`` is not a bool.
        ValueError: The action, ``lifetime`` or ``host`` is another one, or the file that
            ``OPENREG_SANITIZER_REPORT`` names cannot be written.
    """
    for name, value in (("race", race), ("capture", capture), ("uninitialized", uninitialized)):
        _boolean("sanitizer.enable", name, value)
    if action not in _ACTIONS:
        raise ValueError(
            f"sanitizer.enable: expected action to be one of {', '.join(_ACTIONS)}, got {action!r}"
        )
    if lifetime not in (True, False, "exact"):
        raise ValueError(
            f"sanitizer.enable: expected lifetime to be a bool or 'exact', got {lifetime!r}"
        )
    if host not in (True, False, "operators"):
        raise ValueError(
            f"sanitizer.enable: expected host to be a bool or 'operators', got {host!r}"
        )
    if (problem := _begin_report()) is not None:
        _state.report = None
        raise ValueError(f"sanitizer.enable: {problem}")
    _state.action = action
    _state.options = {
        "race": race,
        "lifetime": lifetime,
        "host": host,
        "capture": capture,
        "uninitialized": uninitialized,
    }
    # Not when a thread finds something, in the middle of a call.
    from torch_openreg.extras.sanitizer import _findings  # noqa: F401

    if host is True:
        _follow_host()
    _C._sanitizer_enable(
        _take,
        race,
        bool(lifetime),
        lifetime == "exact",
        bool(host),
        host is True,
        capture,
        uninitialized,
    )
    follow_backward("sanitizer")
    if not _state.is_exit_registered:
        _state.is_exit_registered = True
        atexit.register(_end)
        os.register_at_fork(after_in_child=_begin_child)


def disable() -> None:
    """Turns the sanitizer off. Findings stay."""
    _report_touches()
    _C._sanitizer_disable()
    leave_backward("sanitizer")


def is_enabled() -> bool:
    """Returns whether the sanitizer is on."""
    return _C._sanitizer_is_enabled()


def findings() -> "list[Finding]":
    """Returns what was found and not cleared, oldest first; each pair of lines once."""
    _report_touches()
    return list(_state.found.values())


def clear() -> None:
    """Forgets the findings, which counts as having dealt with them."""
    _report_touches()
    _state.found.clear()
    _state.suppressed_count = 0
    _state.has_unhandled = False


def summary() -> str:
    """Returns what was found, by pairs of lines, and what was not seen."""
    from torch_openreg.extras.sanitizer._findings import line_of

    def counted(count: int, one: str, several: str) -> str:
        return f"{count} {one if count == 1 else several}"

    found = findings()
    counts = _C._sanitizer_counts()
    lines = [
        f"{DEVICE_TYPE} sanitizer: {counted(len(found), 'finding', 'findings')}, "
        f"{counted(counts['launches'], 'launch', 'launches')} checked"
    ]
    for finding in sorted(found, key=lambda one: -one.count):
        later, earlier = finding.accesses
        lines.append(
            f"  {finding.count:5} x {finding.kind}: {line_of(later)} after {line_of(earlier)}"
        )
    notes = [
        (_state.suppressed_count, "finding", "findings", "suppressed"),
        (counts["not_seen"], "launch", "launches", "whose kernel did not name its tensors"),
        (counts["undecided"], "access", "accesses", "with too many runs of bytes to follow each"),
        (counts["forgotten"], "time", "times", "that old accesses were forgotten for want of room"),
        (
            counts["copies_not_watched"],
            "copy",
            "copies",
            "of pinned memory of which only accesses of operators were seen, as the memory was "
            "pinned before the sanitizer was on",
        ),
        (
            counts["pages_opened"],
            "page",
            "pages",
            "not watched until the next call, as the host used bytes there that no copy uses",
        ),
    ]
    lines += [
        f"  {counted(count, one, several)} {what}" for count, one, several, what in notes if count
    ]
    lines += [f"    {count} x {name}" for name, count in sorted(counts["kernels_not_seen"].items())]
    return "\n".join(lines)


class check(ContextDecorator):
    """Turns the sanitizer on for a block, or for the calls of a function.

    Args:
        action: As for :func:`enable`.
        options: As for :func:`enable`.

    Example:
        >>> with torch.openreg.sanitizer.check(action="raise"):
        ...     train_step()
    """

    def __init__(self, action: Action = "raise", **options: Any) -> None:
        """Stores the arguments; entering uses them."""
        self._action = action
        self._options = options
        self._before: list[tuple[bool, Action, dict[str, Any]]] = []

    def __enter__(self) -> Self:
        """Turns the sanitizer on."""
        before = (is_enabled(), _state.action, _state.options)
        enable(self._action, **self._options)
        self._before.append(before)
        _state.is_in_check += 1
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Leaves it as it was before. Raises the findings that the block has not raised yet."""
        was_enabled, action, options = self._before.pop()
        try:
            if exc_info[0] is None:
                _C._sanitizer_report_touches()
            else:
                _report_touches()
        finally:
            _state.is_in_check -= 1
            if was_enabled:
                enable(action, **options)
            else:
                disable()


@contextmanager
def suppress(*kinds: str, operator: str | None = None, file: str | None = None) -> Iterator[None]:
    """While it is entered, findings that match are counted and not reported, in all threads.

    Args:
        kinds: Kinds of findings; none means all.
        operator: A pattern that the operator of one of the accesses matches, such as "aten::add*".
        file: A pattern that the file of one of the accesses matches, such as "*/legacy/*".

    Raises:
        TypeError: An argument is not a string.
    """
    for kind in kinds:
        _text("sanitizer.suppress", "a kind", kind)
    for name, value in (("operator", operator), ("file", file)):
        if value is not None:
            _text("sanitizer.suppress", name, value)
    one = _Filter(kinds, operator, file)
    _state.filters.append(one)
    try:
        yield
    finally:
        _state.filters.remove(one)


# --- From the environment

_C._declare_setting(
    "OPENREG_SANITIZER",
    "0",
    "0 1 raise collect",
    "1: finds work that streams do not order, and warns. raise, collect: does that.",
)
_C._declare_setting(
    "OPENREG_SANITIZER_EXIT",
    "1",
    "0 1",
    "1: with findings that were not cleared, the process ends with status 77.",
)
_C._declare_setting(
    "OPENREG_SANITIZER_HOST",
    "1",
    "0 1 operators",
    "1: finds all accesses of the host. operators: those of operators. 0: none.",
)
_C._declare_setting(
    "OPENREG_SANITIZER_REPORT",
    "none",
    "<text>",
    "Where the sanitizer writes its findings when the process ends, as JSON.",
    allowed="the name of a file",
)
_C._declare_setting(
    "OPENREG_SANITIZER_SUPPRESSIONS",
    "none",
    "<text>",
    "Findings not to report: a line for each, kind:file:operator.",
    allowed="the name of a file",
)
_C._declare_setting(
    "OPENREG_SANITIZER_UNINITIALIZED",
    "0",
    "0 1",
    "1: the sanitizer also finds kernels that read uninitialized memory.",
)


def enable_from_environment(may_raise: bool) -> None:
    """Applies OPENREG_SANITIZER. Called when the package has been loaded.

    Args:
        may_raise: Whether a filter may turn a warning of a setting into an exception.
    """
    # The table of settings is read once, when it is first needed, which this import is not.
    if os.environ.get("OPENREG_SANITIZER", "0") == "0":
        return
    text = _given("OPENREG_SANITIZER")
    if (path := _given("OPENREG_SANITIZER_SUPPRESSIONS")) is not None:
        try:
            _state.filters += _read_suppressions(Path(path))
        except (OSError, ValueError) as error:
            # This is part of ``import torch``, which must not fail.
            warnings.warn(f"OPENREG_SANITIZER_SUPPRESSIONS: {error}", SanitizerWarning, 2)
    action: dict[str | None, Action] = {"1": "warn", "raise": "raise", "collect": "collect"}
    host: dict[str | None, bool | Literal["operators"]] = {"0": False, "operators": "operators"}
    if text in action:
        if (problem := _begin_report()) is not None:
            # The findings then go to stderr when the process ends.
            _settings.warn_of(problem, _settings.SettingWarning, may_raise)
        enable(
            action[text],
            host=host.get(_given("OPENREG_SANITIZER_HOST"), True),
            uninitialized=_given("OPENREG_SANITIZER_UNINITIALIZED") == "1",
        )


def _given(name: str) -> str | None:
    """Returns the value of a setting; None if the environment gives none."""
    return {row[0]: row[4] for row in _C._settings()}[name]


def _read_suppressions(path: Path) -> list[_Filter]:
    filters = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        text = line.split("#")[0].strip()
        if not text:
            continue
        kind, _, rest = text.partition(":")
        if kind not in (*_KINDS, "*"):
            raise ValueError(
                f"expected kind:file:operator, with a kind of "
                f"{', '.join(_KINDS)} or *, got {line!r} in {path}:{number}"
            )
        file, _, operator = rest.partition(":")
        filters.append(_Filter(() if kind == "*" else (kind,), operator or None, file or None))
    return filters


def _begin_report() -> str | None:
    """Begins the file that OPENREG_SANITIZER_REPORT names, once; returns why it cannot."""
    if _state.report is not None or (path := _given("OPENREG_SANITIZER_REPORT")) is None:
        return None
    from torch_openreg.extras.sanitizer._report_file import ReportFile

    _state.report = ReportFile(path)
    return _state.report.begin()


def _begin_child() -> None:
    """In a forked child it is off, and the findings are the parent's."""
    _state.found.clear()
    _state.has_unhandled = False
    if _state.report is not None:
        _state.report.begin_child()


def _end() -> None:
    """Ends the process with the report, and its status if there are findings."""
    try:
        disable()
        _tell()
    finally:
        if _state.has_unhandled and _given("OPENREG_SANITIZER_EXIT") != "0":
            _leave()


def _tell() -> None:
    """Writes the report, and the summary to stderr, with findings that are in no file."""
    texts = [summary()] if _state.has_unhandled else []
    if _state.report is not None:
        _state.report.end([one.as_dict() for one in findings()])
        if (problem := _state.report.problem) is not None:
            texts = [problem, *map(str, findings()), *texts]
    if texts and sys.stderr is not None:
        print("\n\n".join(texts), file=sys.stderr)


def _leave() -> NoReturn:
    """Ends the process with the status of findings, as Python would end it."""
    try:
        # What was registered before comes after this, and then nothing.
        atexit.unregister(_end)
        atexit._run_exitfuncs()
    finally:
        for stream in (sys.stdout, sys.stderr):
            # It may be None, or closed at the other end.
            with suppress_errors(AttributeError, OSError, ValueError):
                stream.flush()
        os._exit(_EXIT_STATUS)


# --- Taking findings


@functools.cache
def _follow_host() -> None:
    """Lets the library have frames of Python dumped: Note [Frames of a host that faults]."""
    import faulthandler  # not for programs that only import torch

    for number in range(signal.SIGRTMAX, signal.SIGRTMIN - 1, -1):
        if signal.getsignal(number) is signal.SIG_DFL:
            file = os.memfd_create("openreg-frames")
            os.fchmod(file, 0o600)  # as all files of the runtime
            faulthandler.register(number, file, all_threads=False, chain=False)
            _C._sanitizer_set_frame_dumper(number, file)
            return


def _report_touches() -> None:
    """Collects the host's accesses since the last call, without raising findings."""
    try:
        _C._sanitizer_report_touches()
    except SanitizerError:
        _state.has_unhandled = True


def _take(raw: dict[str, Any]) -> None:
    """Takes a finding from the library, in the thread that made the second access."""
    from torch_openreg.extras.sanitizer._findings import finding_of

    finding = finding_of(raw)
    if any(one.matches(finding) for one in _state.filters):
        _state.suppressed_count += 1
        return
    known = _state.found.get(finding._key)
    if known is not None:
        known.count += 1
        finding = known
    else:
        _state.found[finding._key] = finding
        if _state.report is not None:
            # This process may be killed; see Note [A report of several processes].
            _state.report.add(finding.as_dict())
    is_raised = _state.action == "raise" and finding.kind != "capture"
    _state.has_unhandled = _state.has_unhandled or not (is_raised and _state.is_in_check > 0)
    if is_raised:
        raise SanitizerError(finding)
    if _state.action == "warn" and not finding._is_reported:
        finding._is_reported = True
        access = finding.accesses[0]
        warnings.warn_explicit(
            f"\n{finding}", SanitizerWarning, access.filename or "<unknown>", access.lineno
        )
