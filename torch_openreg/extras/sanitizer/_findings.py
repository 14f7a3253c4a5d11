"""Findings of the sanitizer: accesses with their stacks, and the texts of reports.

The module :mod:`torch.openreg.sanitizer` loads this when it is turned on, and not before: most
programs that import torch never need it.
"""

import functools
import importlib.util
import os
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
import typing_extensions

import torch_openreg
from torch_openreg.openreg._utils import DEVICE_TYPE

__all__ = ["Access", "Finding", "Frame", "finding_of", "line_of"]

# Frames of these are not the user's. Much of what NumPy does to an array is Python, Triton launches
# kernels by it, and functions that torch has deprecated are called by a wrapper of
# typing_extensions.
_others = [importlib.util.find_spec(name) for name in ("numpy", "triton")]
_folders = (torch.__file__, torch_openreg.__file__, *(one.origin for one in _others if one))
_OWN_PATHS = (
    *(os.path.dirname(os.path.abspath(str(file))) + os.sep for file in _folders if file),
    os.path.abspath(str(typing_extensions.__file__)),
    "<frozen",
)


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
        argument: The name of the argument; "result" for the operator's results.
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
        is_allocation: Whether it is the allocation; the other access is the use.
        is_host: Whether the host did it, and not the stream. If no operator did it, ``operator`` is
            "host code", and ``offset`` and ``nbytes`` are of the first byte.
        thread: The native id of the thread, if no operator did it; else 0.
        program: The program of a kernel's grid that did it, if that is known. ``stack`` then begins
            with the kernel's own lines.
        is_atomic: Whether the program did it by an atomic operation.
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
    program: tuple[int, int, int] | None = None
    is_atomic: bool = False

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
        waited: Where the later access's stream, or the host, last waited for the earlier one's, in
            vain: for what was submitted before the earlier access.
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
    _why_in_vain: str = field(default="", repr=False)
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


def finding_of(raw: dict[str, Any]) -> Finding:
    """Returns the finding for raw data of the library, which has no texts."""
    later, earlier = _access_of(raw["later"]), _access_of(raw["earlier"])
    allocation, reused = raw["allocation"], raw["reused"]
    parts = {
        "kind": raw["kind"],
        "accesses": (later, earlier),
        "allocation": _stack_of(allocation["allocated"]),
        "freed": _stack_of(allocation["freed"] or []),
        "reused": _stack_of(reused["allocated"]),
        "waited": _stack_of(raw["waited"]["stack"]) if raw["waited"] else (),
        "_why_in_vain": _explain_wait(raw["waited"], later, earlier) if raw["waited"] else "",
        "where": _describe_memory(
            earlier if allocation["freed"] or later.thread else later, allocation
        ),
    }
    if raw["kind"] == "capture":
        name, _, reason = later.operator.partition(",")
        later = replace(later, operator=name)
        parts["accesses"] = (later, earlier)
        title, fix = _explain_refused(later, earlier, _ERRORS.get(raw["error"], ""), reason)
        parts["where"] = f"a capture that began on {_stream_of(earlier)}"
    elif raw["kind"] == "race" and _are_of_one_launch(later, earlier):
        title, fix = _explain_programs(later, earlier)
    elif raw["kind"] == "uninitialized":
        title, fix = _explain_unwritten(later, earlier)
        parts["where"] += f"; the first uninitialized byte: offset {raw['unwritten']}"
    else:
        title, fix = _explain(
            raw["kind"],
            later,
            earlier,
            is_freed=allocation["freed"] is not None,
            free_line=_line(_user_frame(parts["freed"])),
        )
    if raw["is_in_capture"]:
        parts["where"] += ", in one graph"
    return Finding(title=title, fix=fix, **parts)


def _stack_of(frames: Sequence[dict[str, Any]]) -> Stack:
    if frames and "dump" in frames[0]:
        return _parse_dump(frames[0]["dump"])
    return tuple(Frame(one["filename"], one["line"], one["name"]) for one in frames)


def _kernel_stack_of(place: str, kernel: str) -> Stack:
    """Returns the frames of a kernel's own source: files and lines, the innermost first."""
    lines = [one.rpartition(":") for one in place.split(", called at ") if one]
    return tuple(Frame(file, int(line), kernel) for file, _, line in lines)


def _parse_dump(text: str) -> Stack:
    """Returns the frames of faulthandler's output, which escapes characters outside ASCII."""

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
        stack=_kernel_stack_of(raw["place"], operator) + _stack_of(raw["stack"]),
        captured=_stack_of(raw["captured"]),
        is_allocation=raw["is_allocation"],
        is_host=raw["is_host"],
        thread=raw["thread"],
        program=raw["program"],
        is_atomic=raw["is_atomic"],
    )


@functools.cache
def _tensor_arguments(operator: str) -> list[torch._C.Argument]:
    base, _, overload = operator.partition(".")
    if "::" not in base:
        return []
    for schema in torch._C._jit_get_schemas_for_operator(base):
        if schema.overload_name == overload:
            return [one for one in schema.arguments if "Tensor" in str(one.type)]
    return []


def _argument_name(operator: str, index: int, is_write: bool) -> str:
    """The name of the `index`-th tensor that an operator reads, or of that which it writes."""
    arguments = [
        one
        for one in _tensor_arguments(operator)
        if bool(one.alias_info and one.alias_info.is_write) == is_write
    ]
    if index < len(arguments):
        return arguments[index].name
    if arguments and str(arguments[-1].type).startswith("List["):
        return arguments[-1].name
    return "result" if is_write else "input"


# --- Texts


def _short(filename: str) -> str:
    """The path as the shell would name it, if that is shorter."""
    relative = os.path.relpath(filename) if os.path.isabs(filename) else filename
    return min(relative, filename, key=len)


def _user_frame(stack: Stack) -> Frame | None:
    """The innermost frame that is not of _OWN_PATHS; else the innermost."""
    own = (frame for frame in stack if not frame.filename.startswith(_OWN_PATHS))
    return next(own, stack[0] if stack else None)


def _line(frame: Frame | None) -> str:
    return f"{_short(frame.filename)}:{frame.lineno}" if frame else "an unknown line"


def line_of(access: Access) -> str:
    """Returns the line of an access, with what was done there, in a few words."""
    what = "allocation" if access.is_allocation else access.operator
    return f"{_line(access.frame)} ({what})"


def _stream_of(access: Access) -> str:
    return _name_of(access.stream, access.device)


def _name_of(stream: int, device: torch.device) -> str:
    """The name of a stream, whose number is one of its device's."""
    return f"stream {stream}{' (default)' if stream == 0 else ''} of {device}"


def _describe_memory(access: Access, allocation: dict[str, Any]) -> str:
    owner = allocation["stream"]
    what = f"{access.nbytes} bytes, offset {access.offset} of an allocation"
    if access.dtype:
        what = f"tensor {list(access.sizes)} {access.dtype}, {what}"
    if allocation["is_host_memory"]:
        return f"{what} of pinned memory"
    if owner is None:
        return f"{what} from before the sanitizer was on"
    return f"{what} of {_name_of(owner[1], torch.device(DEVICE_TYPE, owner[0]))}"


def _verb(access: Access) -> str:
    return "updates" if access.is_atomic else "writes" if access.is_write else "reads"


def _actor(access: Access) -> str:
    """Who makes an access: an operator, or a program of its grid."""
    if access.program is None:
        return access.operator
    return f"program {access.program} of {access.operator}"


def _are_of_one_launch(later: Access, earlier: Access) -> bool:
    """Whether programs of one launch made both accesses. Launches on one stream are ordered."""
    both = (later, earlier)
    return None not in (one.program for one in both) and later.stream == earlier.stream


def _explain_programs(later: Access, earlier: Access) -> tuple[str, str]:
    """Returns the title and the fix for two programs of one launch."""
    title = (
        f"{_actor(later)} {_verb(later)} what program {earlier.program} {_verb(earlier)}, and "
        "nothing orders them"
    )
    if later.is_atomic or earlier.is_atomic:
        return title, "Make both accesses atomic, or do one of them in a launch of its own."
    if later.is_write and earlier.is_write:
        return title, (
            "Let each program write elements of its own, such as with a mask, or add to them with\n"
            "    tl.atomic_add(pointer, value)"
        )
    return title, (
        "Do what has to come first in a launch of its own, or update the element with\n"
        "    tl.atomic_add(pointer, value)"
    )


def _explain(
    kind: str, later: Access, earlier: Access, *, is_freed: bool, free_line: str
) -> tuple[str, str]:
    """Returns the title of a finding, and its fix."""
    later_stream, earlier_stream = _stream_of(later), _stream_of(earlier)
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
            f"owner {later_stream} may reuse it at once",
            f"Record {earlier_stream} with the allocator before the memory is freed:\n"
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
    title = (
        f"{_actor(later)} {_verb(later)} what {_actor(earlier)} {_verb(earlier)} on another "
        "stream, and nothing orders them"
    )
    if earlier.operator.startswith("occl::"):
        fix = f"On {later_stream}, wait for the collective before the {noun}:\n    work.wait()"
    else:
        fix = f"On {later_stream}, wait for {earlier_stream} before the {noun}:\n{wait}"
    return title, f"{fix}     # before {_line(later.frame)}"


def _explain_wait(wait: dict[str, Any], later: Access, earlier: Access) -> str:
    """Returns why a wait for the stream of the earlier access does not order the later one."""
    waiting = "The host" if wait["is_of_host"] else _stream_of(later)
    if earlier.is_allocation:
        done = f"allocation at {_line(earlier.frame)}"
    else:
        done = f"{'write' if earlier.is_write else 'read'} at {_line(earlier.frame)}"
    reason = (
        f"it is for work from before the {done}, as an event recorded before it"
        if wait["is_after_the_other"]
        else f"it comes before the {done}"
    )
    line = _line(_user_frame(_stack_of(wait["stack"])))
    return (
        f"{waiting} last waited for {_stream_of(earlier)} at {line}, which is too early: {reason}."
    )


# The runtime's codes for calls that cannot be captured.
_ERRORS = {902: "merge", 903: "unmatched", 904: "unjoined", 905: "isolation", 907: "captured event"}


def _explain_refused(call: Access, beginning: Access, error: str, reason: str) -> tuple[str, str]:
    """Returns the title and the fix for a call that no graph can repeat."""
    name = call.operator
    begin, here = _line(beginning.frame), _line(call.frame)
    module = f"torch.{DEVICE_TYPE}"
    if error == "unjoined":
        return (
            f"{name} was captured on {_stream_of(call)}, which the capture's first stream, "
            f"{_stream_of(beginning)}, does not wait for before the end",
            f"Join the branch before the capture ends:\n"
            f"    {module}.current_stream().wait_stream(stream)    # after {here}",
        )
    if error == "isolation":
        return (
            f"{name} waits, in a capture, for work submitted before the capture",
            f"Wait before the capture begins, or record the event on a stream of the capture:\n"
            f"    {module}.current_stream().wait_event(event)    # before {begin}",
        )
    if error == "captured event":
        return (
            f"{name} uses an event that was recorded in a capture, which never completes",
            f"Record an event after a replay:\n"
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
    """Returns the title and the fix for a read of uninitialized memory."""
    if not writer.is_allocation:
        return (
            f"{reader.operator} reads a result of {writer.operator} in a graph before the first "
            "replay",
            f"A capture records kernels and does not run them. Replay the graph first:\n"
            f"    graph.replay()    # before {_line(reader.frame)}",
        )
    return (
        f"{_actor(reader)} reads memory that was not written since it was allocated",
        f"Fill it, as with torch.zeros in place of torch.empty:\n"
        f"    tensor.zero_()    # after {_line(writer.frame)}",
    )


def _describe_access(access: Access) -> list[str]:
    stream = _stream_of(access)
    if access.is_allocation:
        return [f"allocated on {stream}", *_describe_stack(access.stack)]
    done = "updated" if access.is_atomic else "written" if access.is_write else "read"
    place = "the host" if access.is_host else stream
    if access.thread not in (0, threading.main_thread().native_id):
        place += f", thread {access.thread}"
    lines = [f"{done} by {_actor(access)} ({access.argument}), on {place}"]
    if access.captured:
        lines[0] += ", in a replay"
    lines += _describe_stack(access.stack)
    if access.program is not None:
        launched = tuple(one for one in access.stack if one.name != access.operator)
        lines += ["  launched at", *_describe_stack(launched)] if launched else []
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
        lines = [f"called, on {_stream_of(later)}", *_describe_stack(later.stack)]
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
    if finding.reused:
        lines += ["what the owner uses then was allocated", *_describe_stack(finding.reused)]
    text = [f"{DEVICE_TYPE} sanitizer: {finding.kind}: {finding.title}", f"  {finding.where}", ""]
    text += [f"  {line}" for line in lines]
    text += ["", *(f"  {line}" for line in finding.fix.splitlines())]
    if finding._why_in_vain:
        text.append(f"  {finding._why_in_vain}")
    return "\n".join(text)
