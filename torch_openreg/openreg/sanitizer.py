"""Finds work on several streams that nothing orders: what CUDA punishes, mostly in silence.

While it is on, each kernel's reads and writes are compared with those before it. A finding names
both accesses with their lines of Python, where the memory came from, and what is missing. It does
not depend on timing: what one run of a program finds, each run finds.

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
import importlib.util
import json
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ContextDecorator, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import torch

from torch_openreg import _C
from torch_openreg.openreg._utils import DEVICE_TYPE

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

# Frames of these are not the user's. Much of what NumPy does to an array is Python.
_numpy = importlib.util.find_spec("numpy")
_OWN_FOLDERS = tuple(
    os.path.dirname(os.path.abspath(str(file))) + os.sep
    for file in (torch.__file__, os.path.dirname(__file__), _numpy.origin if _numpy else None)
    if file is not None
)


class SanitizerWarning(UserWarning):
    """A finding, with the action "warn"."""


class SanitizerError(RuntimeError):
    """A finding, with the action "raise". Its attribute ``finding`` has the finding itself."""

    def __init__(self, finding: "Finding") -> None:
        """Takes the finding, whose text is the error's."""
        super().__init__(str(finding))
        self.finding = finding


class Frame(NamedTuple):
    """A line of Python on a stack."""

    filename: str
    lineno: int
    name: str

    def __str__(self) -> str:
        """Returns the line as reports show it."""
        return f"{_short(self.filename)}:{self.lineno} in {self.name}"


Stack = tuple[Frame, ...]


@dataclass(frozen=True)
class Access:
    """What one operator does with a tensor.

    Attributes:
        operator: The operator, such as ``aten::add.out``.
        argument: The name of the argument; "result" for what the operator returns.
        is_write: Whether it is written; it may be read as well then.
        stream: The id of the stream.
        device: The device.
        offset: Where the tensor's first byte lies in its allocation.
        nbytes: How many bytes it has.
        sizes: The tensor's sizes.
        dtype: The tensor's dtype, such as "Float".
        stack: Where the program called the operator, innermost frame first. In a backward pass, the
            caller of ``backward()``.
        captured: Of a graph's kernel: where it was captured. ``stack`` is the replay's then.
        is_allocation: Whether it stands for the allocation, and the use is the other access.
        is_host: Whether the host did it, and not the stream. If no operator did it, ``operator`` is
            "host code", and ``offset`` and ``nbytes`` are of the first byte.
        thread: The native id of the thread, if no operator did it; else 0.
    """

    operator: str
    argument: str
    is_write: bool
    stream: int
    device: torch.device
    offset: int
    nbytes: int
    sizes: tuple[int, ...]
    dtype: str
    stack: Stack
    captured: Stack = ()
    is_allocation: bool = False
    is_host: bool = False
    thread: int = 0

    @property
    def frame(self) -> Frame | None:
        """The innermost frame of the user's; None if there is none."""
        return _user_frame(self.stack)

    @property
    def filename(self) -> str:
        """The file of that frame, or an empty string."""
        return self.frame.filename if self.frame else ""

    @property
    def lineno(self) -> int:
        """The line of that frame, or 0."""
        return self.frame.lineno if self.frame else 0


@dataclass(eq=False)
class Finding:
    """Two accesses that nothing orders.

    Attributes:
        kind: "race", "lifetime", "host", "graph-input", "capture" or "uninitialized".
        title: What happened, in one line.
        accesses: The later access, by which it was found, and the earlier one. Of the kind
            "capture": the call, or the last launch on a branch that was not joined, and where the
            capture began.
        allocation: Where the memory of the earlier access was allocated.
        freed: Where that was freed, if it has been.
        reused: Where the memory of the later access was allocated, if the other had been freed.
        waited: Where the later access's stream last waited for the earlier one's.
        fix: What to do, with a line of code.
        count: How often it was found, at the same lines.
    """

    kind: str
    title: str
    accesses: tuple[Access, Access]
    allocation: Stack
    freed: Stack
    reused: Stack
    waited: Stack
    fix: str
    where: str
    count: int = 1
    _is_reported: bool = field(default=False, repr=False)

    def stacks(self) -> list[Stack]:
        """Returns the stacks of the later and the earlier access, then those of the memory.

        Each is a sequence of frames with ``filename``, ``lineno`` and ``name``, innermost first.
        """
        later, earlier = self.accesses
        every = [later.stack, earlier.stack, later.captured, earlier.captured]
        every += [self.allocation, self.freed, self.reused]
        return [stack for stack in every if stack]

    def as_dict(self) -> dict[str, Any]:
        """Returns what ``OPENREG_SANITIZER_REPORT`` has of it: all that JSON can hold."""
        return {
            "kind": self.kind,
            "title": self.title,
            "count": self.count,
            "accesses": [_access_as_dict(one) for one in self.accesses],
            "allocation": _stack_as_list(self.allocation),
            "freed": _stack_as_list(self.freed),
            "fix": self.fix,
            "text": str(self),
        }

    def __str__(self) -> str:
        """Returns the report."""
        return _text_of(self)

    @property
    def _key(self) -> tuple[object, ...]:
        later, earlier = self.accesses
        lines = (later.frame or later.operator, earlier.frame or earlier.operator)
        return (self.kind, *lines, _user_frame(self.freed))


def _access_as_dict(access: Access) -> dict[str, Any]:
    return {
        "operator": access.operator,
        "argument": access.argument,
        "is_write": access.is_write,
        "stream": access.stream,
        "device": str(access.device),
        "offset": access.offset,
        "nbytes": access.nbytes,
        "filename": access.filename,
        "lineno": access.lineno,
        "stack": _stack_as_list(access.stack),
    }


def _stack_as_list(stack: Stack) -> list[dict[str, Any]]:
    return [frame._asdict() for frame in stack]


# --- State. Python's lock guards it.


@dataclass
class _State:
    action: Action = "warn"
    options: dict[str, Any] = field(default_factory=dict)
    found: dict[tuple[object, ...], Finding] = field(default_factory=dict)
    filters: list["_Filter"] = field(default_factory=list)
    suppressed_count: int = 0
    is_in_check: int = 0
    has_unhandled: bool = False
    is_exit_registered: bool = False
    from_environment: bool = False


_state = _State()


class _Filter(NamedTuple):
    """Findings that are not reported: patterns of shells; None stands for all."""

    kinds: tuple[str, ...]
    operator: str | None
    file: str | None

    def matches(self, finding: Finding) -> bool:
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
    """Turns the sanitizer on, or changes what it does. What happened before is taken as ordered.

    Args:
        action: What a finding does. "warn": a SanitizerWarning, once for each pair of lines.
            "raise": a SanitizerError at the second access, whose kernel is then not launched. An
            access of the host cannot be refused: the error comes with the next call into the
            backend, or at the end of :class:`check`.
            "collect": nothing; :func:`findings` has it.
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
        uninitialized: Whether to find reads of memory, allocated from now on, that nobody wrote.
            What a graph computes is looked after in any case, before its first replay.

    Raises:
        ValueError: The action, ``lifetime`` or ``host`` is another one.
    """
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
    _state.action = action
    _state.options = {
        "race": race,
        "lifetime": lifetime,
        "host": host,
        "capture": capture,
        "uninitialized": uninitialized,
    }
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
    _follow_backward(True)
    if not _state.is_exit_registered:
        _state.is_exit_registered = True
        atexit.register(_end)
        os.register_at_fork(after_in_child=_begin_child)


def disable() -> None:
    """Turns the sanitizer off. Findings stay."""
    _report_touches()
    _C._sanitizer_disable()
    _follow_backward(False)


def is_enabled() -> bool:
    """Returns whether the sanitizer is on."""
    return _C._sanitizer_is_enabled()


def findings() -> list[Finding]:
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
    found = findings()
    counts = _C._sanitizer_counts()
    lines = [
        f"{DEVICE_TYPE} sanitizer: {len(found)} findings, {counts['launches']} launches checked"
    ]
    for finding in sorted(found, key=lambda one: -one.count):
        later, earlier = finding.accesses
        lines.append(
            f"  {finding.count:5} x {finding.kind}: {_line_of(later)} after {_line_of(earlier)}"
        )
    notes = [
        (_state.suppressed_count, "findings suppressed"),
        (counts["not_seen"], "kernels launched that did not tell their tensors"),
        (counts["undecided"], "accesses not followed exactly, as they have too many runs of bytes"),
        (counts["forgotten"], "times that old accesses were forgotten for want of room"),
        (
            counts["copies_not_watched"],
            "copies of pinned memory of which only accesses of operators were seen, as the memory "
            "was pinned before the sanitizer was on",
        ),
        (
            counts["pages_opened"],
            "pages not watched until the next call, as the host used other bytes of them than a "
            "copy",
        ),
    ]
    lines += [f"  {count} {text}" for count, text in notes if count > 0]
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
        """Leaves it as it was before. Raises what the block ended too early to raise."""
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
        kinds: Kinds of findings; none stands for all.
        operator: A pattern that the operator of one of the accesses matches, such as "aten::add*".
        file: A pattern that the file of one of the accesses matches, such as "*/legacy/*".
    """
    one = _Filter(kinds, operator, file)
    _state.filters.append(one)
    try:
        yield
    finally:
        _state.filters.remove(one)


# --- From the environment


def _enable_from_environment() -> None:
    """Does what OPENREG_SANITIZER says. Called when the package has been loaded."""
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


def _begin_child() -> None:
    """In a forked child it is off, and the findings are the parent's."""
    _state.found.clear()
    _state.has_unhandled = False


def _end() -> None:
    """Ends the process with the report, and its status if there are findings."""
    disable()
    if (path := _given("OPENREG_SANITIZER_REPORT")) is not None:
        Path(path).write_text(json.dumps([one.as_dict() for one in findings()], indent=1) + "\n")
    if not _state.has_unhandled:
        return
    print(summary(), file=sys.stderr)
    error = getattr(sys, "last_value", None)
    if _given("OPENREG_SANITIZER_EXIT") == "0" or not isinstance(
        error, (type(None), SanitizerError)
    ):
        return
    # What was registered before comes after this, and then nothing.
    atexit.unregister(_end)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(_EXIT_STATUS)


# --- Taking findings


@functools.cache
def _follow_host() -> None:
    """Lets the library have frames of Python dumped: Note [Frames of a host that faults]."""
    import faulthandler  # not for those who only import torch

    for number in range(signal.SIGRTMAX, signal.SIGRTMIN - 1, -1):
        if signal.getsignal(number) is signal.SIG_DFL:
            file = os.memfd_create("openreg-frames")
            os.fchmod(file, 0o600)  # as all files of the runtime
            faulthandler.register(number, file, all_threads=False, chain=False)
            _C._sanitizer_set_frame_dumper(number, file)
            return


def _report_touches() -> None:
    """Takes what the host has touched since the last call, without raising it."""
    try:
        _C._sanitizer_report_touches()
    except SanitizerError:
        _state.has_unhandled = True


def _take(raw: dict[str, Any]) -> None:
    """Takes a finding from the library, in the thread that made the second access."""
    finding = _finding_of(raw)
    if any(one.matches(finding) for one in _state.filters):
        _state.suppressed_count += 1
        return
    known = _state.found.get(finding._key)
    if known is not None:
        known.count += 1
        finding = known
    else:
        _state.found[finding._key] = finding
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


def _finding_of(raw: dict[str, Any]) -> Finding:
    later, earlier = _access_of(raw["later"]), _access_of(raw["earlier"])
    allocation, reused = raw["allocation"], raw["reused"]
    parts = {
        "kind": raw["kind"],
        "accesses": (later, earlier),
        "allocation": _stack_of(allocation["allocated"]),
        "freed": _stack_of(allocation["freed"] or []),
        "reused": _stack_of(reused["allocated"]),
        "waited": _stack_of(raw["waited"] or []),
        "where": _describe_memory(
            earlier if allocation["freed"] or later.thread else later, allocation
        ),
    }
    if raw["kind"] == "capture":
        name, _, reason = later.operator.partition(",")
        later = replace(later, operator=name)
        parts["accesses"] = (later, earlier)
        title, fix = _explain_refused(later, earlier, _ERRORS.get(raw["error"], ""), reason)
        parts["where"] = f"a capture that began on {_name_of(earlier.stream)} of {earlier.device}"
    elif raw["kind"] == "uninitialized":
        title, fix = _explain_unwritten(later, earlier)
        parts["where"] += f"; the first byte that nobody wrote: offset {raw['unwritten']}"
    else:
        title, fix = _explain(
            raw["kind"], later, earlier, is_freed=allocation["freed"] is not None, **_lines(parts)
        )
    if raw["is_in_capture"]:
        parts["where"] += ", in one graph"
    return Finding(title=title, fix=fix, **parts)


def _lines(parts: dict[str, Any]) -> dict[str, str]:
    return {"free_line": _line(_user_frame(parts["freed"]))}


def _stack_of(frames: Sequence[dict[str, Any]]) -> Stack:
    if frames and "dump" in frames[0]:
        return _parse_dump(frames[0]["dump"])
    return tuple(Frame(one["filename"], one["line"], one["name"]) for one in frames)


def _parse_dump(text: str) -> Stack:
    """Returns the frames that faulthandler has written, which escapes what is not ASCII."""

    def unescape(text: str) -> str:
        escape = r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))"
        return re.sub(escape, lambda match: chr(int(match[match.lastindex or 0], 16)), text)

    lines = re.findall(r'^  File "(.*)", line (\d+) in (.*)$', text, re.MULTILINE)
    return tuple(Frame(unescape(file), int(line), unescape(name)) for file, line, name in lines)


def _access_of(raw: dict[str, Any]) -> Access:
    operator = raw["kernel"].removeprefix("openreg_kernel<").removesuffix(">")
    argument = raw["argument"] or _argument_name(operator, raw["operand"], raw["is_write"])
    if raw["thread"] != 0:
        operator, argument = "host code", "by address"
    index, stream = raw["stream"]
    return Access(
        operator=operator,
        argument=argument,
        is_write=raw["is_write"],
        stream=stream,
        device=torch.device(DEVICE_TYPE, index),
        offset=raw["offset"],
        nbytes=raw["nbytes"],
        sizes=tuple(raw["sizes"]),
        dtype=raw["dtype"],
        stack=_stack_of(raw["stack"]),
        captured=_stack_of(raw["captured"]),
        is_allocation=raw["is_allocation"],
        is_host=raw["is_host"],
        thread=raw["thread"],
    )


@functools.cache
def _argument_names(operator: str) -> tuple[list[str], list[str]]:
    """The arguments with tensors that an operator reads, and those that it writes."""
    base, _, overload = operator.partition(".")
    if "::" not in base:
        return [], []
    for schema in torch._C._jit_get_schemas_for_operator(base):
        if schema.overload_name == overload:
            tensors = [one for one in schema.arguments if "Tensor" in str(one.type)]
            written = [one.name for one in tensors if one.alias_info and one.alias_info.is_write]
            return [one.name for one in tensors if one.name not in written], written
    return [], []


def _argument_name(operator: str, index: int, is_write: bool) -> str:
    names = _argument_names(operator)[is_write]
    if index < len(names):
        return names[index]
    return "result" if is_write else "input"


# --- Texts


def _short(filename: str) -> str:
    """The path as the shell would name it, if that is shorter."""
    relative = os.path.relpath(filename) if os.path.isabs(filename) else filename
    return min(relative, filename, key=len)


def _user_frame(stack: Stack) -> Frame | None:
    """The innermost frame that is neither torch's, NumPy's nor ours; else the innermost."""
    own = (frame for frame in stack if not frame.filename.startswith((*_OWN_FOLDERS, "<frozen")))
    return next(own, stack[0] if stack else None)


def _line(frame: Frame | None) -> str:
    return f"{_short(frame.filename)}:{frame.lineno}" if frame else "an unknown line"


def _line_of(access: Access) -> str:
    what = "allocation" if access.is_allocation else access.operator
    return f"{_line(access.frame)} ({what})"


def _name_of(stream: int) -> str:
    return "stream 0 (default)" if stream == 0 else f"stream {stream}"


def _describe_memory(access: Access, allocation: dict[str, Any]) -> str:
    owner = allocation["stream"]
    what = f"{access.nbytes} bytes, offset {access.offset} of an allocation"
    if access.dtype:
        what = f"tensor {list(access.sizes)} {access.dtype}, {what}"
    if allocation["is_host_memory"]:
        return f"{what} of pinned memory"
    if owner is None:
        return f"{what} from before the sanitizer was on"
    return f"{what} of {_name_of(owner[1])} on {DEVICE_TYPE}:{owner[0]}"


def _verb(access: Access) -> str:
    return "writes" if access.is_write else "reads"


def _explain(
    kind: str, later: Access, earlier: Access, *, is_freed: bool, free_line: str
) -> tuple[str, str]:
    """Returns the title of a finding, and its fix."""
    later_stream, earlier_stream = _name_of(later.stream), _name_of(earlier.stream)
    if later.device != earlier.device:
        later_stream += f" of {later.device}"
        earlier_stream += f" of {earlier.device}"
    wait = f"    torch.{DEVICE_TYPE}.current_stream().wait_stream(stream)"
    if kind == "graph-input":
        return (
            f"a replay runs {later.operator}, which {_verb(later)} memory that was freed after the "
            "capture",
            "Keep the tensor for as long as the graph is replayed, and copy new values into it:\n"
            "    static_input.copy_(batch)",
        )
    if kind == "host":
        noun = "write" if later.is_write else "read"
        return (
            f"{later.operator} {_verb(later)} pinned memory on the host, which {earlier.operator} "
            f"may still {'write' if earlier.is_write else 'read'}",
            f"Wait on the host for {earlier_stream} before the {noun}:\n"
            f"    event = stream.record_event()    # after {_line(earlier.frame)}\n"
            f"    event.synchronize()              # before {_line(later.frame)}",
        )
    if is_freed:
        return (
            f"memory is freed while {earlier.operator} may still use it on another stream, and its "
            f"owner {later_stream} goes on to use what it may get for it",
            f"Tell the allocator of {earlier_stream} before the memory is freed:\n"
            f"    tensor.record_stream(stream)     # before {free_line}\n"
            f"or let {later_stream} wait for {earlier_stream} between the free and the next "
            f"allocation:\n{wait}",
        )
    if kind == "lifetime":
        return (
            f"{later.operator} {_verb(later)} new memory of another stream, which may still be in "
            "use there",
            f"On {later_stream}, wait for {earlier_stream}, whose memory it is, before its first "
            f"use:\n{wait}     # before {_line(later.frame)}\n"
            f"or allocate the memory on {later_stream}.",
        )
    noun = "write" if later.is_write else "read"
    return (
        f"{later.operator} {_verb(later)} what {earlier.operator} {_verb(earlier)} on another "
        "stream, and nothing orders them",
        f"On {later_stream}, wait for {earlier_stream} before the {noun}:\n"
        f"{wait}     # before {_line(later.frame)}",
    )


# The runtime's codes for calls that a capture refuses.
_ERRORS = {902: "merge", 903: "unmatched", 904: "unjoined", 905: "isolation", 907: "captured event"}


def _explain_refused(call: Access, beginning: Access, error: str, reason: str) -> tuple[str, str]:
    """Returns the title and the fix for a call that no graph can repeat."""
    name = call.operator
    begin, here = _line(beginning.frame), _line(call.frame)
    module = f"torch.{DEVICE_TYPE}"
    if error == "unjoined":
        return (
            f"{name} was captured on {_name_of(call.stream)}, which the capture's first stream, "
            f"{_name_of(beginning.stream)}, does not wait for before the end",
            f"Join the branch before the capture ends:\n"
            f"    {module}.current_stream().wait_stream(stream)    # after {here}",
        )
    if error == "isolation":
        return (
            f"{name} waits, in a capture, for work from before it",
            f"Wait before the capture begins, or record the event on a stream of the capture:\n"
            f"    {module}.current_stream().wait_event(event)    # before {begin}",
        )
    if error == "captured event":
        return (
            f"{name} is about an event that was recorded in a capture, which never happens",
            f"Record it after a replay:\n"
            f"    graph.replay()\n"
            f"    event = {module}.current_stream().record_event()",
        )
    if error == "merge":
        return (
            f"{name} makes one capture wait for another",
            "Capture both as one graph, or replay the graphs one after the other:\n"
            "    first.replay()\n"
            "    second.replay()",
        )
    if error == "unmatched":
        return (
            f"{name} ends a capture on another stream than it began on",
            f"End it where it began:\n"
            f"    with {module}.stream(stream):    # the current one at {begin}\n"
            f"        graph.capture_end()",
        )
    title = f"{name} cannot be part of a graph{_REASONS.get(name, '')}"
    if "first call" in reason:
        return (
            f"{name} cannot be captured in its first call with such arguments",
            f"Call it once before the capture:\n    warm_up()    # before {begin}",
        )
    if "host to device" in name:
        return (
            f"{title}: it is asynchronous from pinned memory only",
            f"Copy before each replay, or from pinned memory:\n"
            f"    static_input.copy_(batch)    # before graph.replay(), not at {here}",
        )
    if name.startswith("aten::") and name not in _REASONS and "device to host" not in name:
        return (
            f"{title}: it runs on the host",
            f"Use an operator whose result has sizes that do not depend on data, such as "
            f"torch.where, or\ncall it after the replay:\n"
            f"    graph.replay()\n"
            f"    ...    # what is at {here}",
        )
    return (
        title,
        f"Do it after the replay:\n    graph.replay()\n    ...    # what is at {here}",
    )


_REASONS = {
    "aten::_local_scalar_dense": ": the host needs the value (item(), bool(), float() and such)",
    "aten::equal": ": the host needs the answer",
}


def _explain_unwritten(reader: Access, writer: Access) -> tuple[str, str]:
    """Returns the title and the fix for a read of what nobody wrote."""
    if not writer.is_allocation:
        return (
            f"{reader.operator} reads what {writer.operator} of a graph is to compute, before the "
            "first replay",
            f"A capture computes nothing. Replay the graph first:\n"
            f"    graph.replay()    # before {_line(reader.frame)}",
        )
    return (
        f"{reader.operator} reads memory that nobody has written since it was allocated",
        f"Fill it, as with torch.zeros in place of torch.empty:\n"
        f"    tensor.zero_()    # after {_line(writer.frame)}",
    )


def _describe_access(access: Access) -> list[str]:
    stream = _name_of(access.stream)
    if access.is_allocation:
        return [f"allocated on {stream}", *_describe_stack(access.stack)]
    done = "written" if access.is_write else "read"
    place = "the host" if access.is_host else stream
    if access.thread not in (0, threading.main_thread().native_id):
        place += f", thread {access.thread}"
    lines = [f"{done} by {access.operator} ({access.argument}), on {place}"]
    if access.captured:
        lines[0] += ", in a replay"
    lines += _describe_stack(access.stack)
    if access.captured:
        lines += ["captured", *_describe_stack(access.captured)]
    return lines


def _describe_stack(stack: Stack) -> list[str]:
    frame = _user_frame(stack)
    if frame is None:
        return ["  (no frame of Python)"]
    import linecache

    source = linecache.getline(frame.filename, frame.lineno).strip()
    return [f"  {frame!s:34} {source}".rstrip()]


def _text_of(finding: Finding) -> str:
    later, earlier = finding.accesses
    if finding.kind == "capture":
        lines = [f"called, on {_name_of(later.stream)}", *_describe_stack(later.stack)]
        lines += ["the capture began", *_describe_stack(earlier.stack)]
    else:
        is_read = finding.kind == "uninitialized"
        lines = [
            *_describe_access(replace(later, is_write=later.is_write and not is_read)),
            *_describe_access(earlier),
        ]
    if finding.allocation and not earlier.is_allocation:
        lines += ["allocated", *_describe_stack(finding.allocation)]
    if finding.freed:
        lines += ["freed", *_describe_stack(finding.freed)]
        lines += ["what the owner uses then was allocated", *_describe_stack(finding.reused)]
    text = [f"{DEVICE_TYPE} sanitizer: {finding.kind}: {finding.title}", f"  {finding.where}", ""]
    text += [f"  {line}" for line in lines]
    text += ["", *(f"  {line}" for line in finding.fix.splitlines())]
    if finding.waited:
        text.append(
            f"  {_name_of(later.stream)} last waited for {_name_of(earlier.stream)} at "
            f"{_line(_user_frame(finding.waited))}, which is too early."
        )
    return "\n".join(text)


# --- The lines of backward passes; see Note [Stacks of a backward pass] in csrc/sanitizer/Stack.h

_Engine = Callable[..., Any]
_engine: _Engine = torch.autograd.graph._engine_run_backward


def _run_backward(*args: Any, **kwargs: Any) -> Any:
    _C._sanitizer_begin_backward()
    try:
        return _engine(*args, **kwargs)
    finally:
        _C._sanitizer_end_backward()


def _follow_backward(is_followed: bool) -> None:
    function = _run_backward if is_followed else _engine
    for module in (torch.autograd, torch.autograd.graph):
        setattr(module, _engine.__name__, function)
