"""The report of a dry run: whether the program fits, where its peak is, and what fills it."""

from __future__ import annotations

import json
import linecache
import os
import sysconfig
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from torch_openreg.extras.dry_run._profiles import Profile

__all__ = [
    "CATEGORIES",
    "DeviceReport",
    "Failure",
    "Guess",
    "LargeBlock",
    "Place",
    "Report",
    "Use",
    "category_of",
    "device_report",
    "place_of",
]

CATEGORIES = (
    "parameters",
    "gradients",
    "optimizer",
    "activations",
    "collectives",
    "workspaces",
    "temporary",
)

_OF_USE = {
    "parameter": "parameters",
    "gradient": "gradients",
    "optimizer state": "optimizer",
    "workspace": "workspaces",
}

_GIB = 2**30
_MIB = 2**20

# How many of the largest blocks a report shows.
_LARGEST = 5

_SEPARATOR = os.sep
_TORCH = os.path.dirname(torch.__file__) + _SEPARATOR
_OURS = os.path.dirname(os.path.dirname(os.path.dirname(__file__))) + _SEPARATOR
_LIBRARIES = tuple(
    sysconfig.get_path(name) + _SEPARATOR for name in ("purelib", "platlib", "stdlib")
)
# Parts of torch.distributed that allocate buffers of collectives.
_COLLECTIVES = tuple(
    os.path.join(_TORCH, "distributed", *parts)
    for parts in (
        ("fsdp",),
        ("_composable",),
        ("_functional_collectives",),
        ("distributed_c10d",),
        ("tensor", "_redistribute"),
        ("tensor", "_collective_utils"),
        ("tensor", "placement_types"),
    )
)

# The files of programs that are given to Python as text.
_UNNAMED = ("<string>", "<stdin>")

Frame = Mapping[str, Any]


@dataclass(frozen=True)
class Place:
    """A line of the program.

    Attributes:
        file: The path of the file; empty if no Python code is known.
        line: Its number.
        function: The name of the function.
    """

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        """Returns file and line, the file without its folder."""
        return f"{os.path.basename(self.file)}:{self.line}" if self.file else "an unknown line"

    @property
    def text(self) -> str:
        """The source of the line; empty if the file cannot be read."""
        return linecache.getline(self.file, self.line).strip()


@dataclass(frozen=True)
class LargeBlock:
    """Blocks of one line and category that are alive at the peak.

    Attributes:
        nbytes: Of all of them together.
        count: Their number.
        category: One of ``CATEGORIES``.
        place: Where they were allocated.
    """

    nbytes: int
    count: int
    category: str
    place: Place


@dataclass(frozen=True)
class DeviceReport:
    """The peak of a device. Sizes are in bytes.

    Attributes:
        index: Of the device.
        allocated: The peak of allocated memory, as ``max_memory_allocated`` counts.
        reserved: The most memory that the allocator has reserved.
        used: The most memory of the device in use, with what CUDA itself takes.
        step: The number of steps of optimizers before the peak.
        phase: ``forward``, ``backward`` or ``optimizer``.
        place: The allocation that made the peak.
        categories: Bytes by category, whose sum is ``allocated``.
        largest: The lines that allocated most of it.
    """

    index: int
    allocated: int
    reserved: int
    used: int
    step: int
    phase: str
    place: Place
    categories: dict[str, int]
    largest: list[LargeBlock]


@dataclass(frozen=True)
class Use:
    """Memory outside of the allocator, as an interval in bytes.

    Attributes:
        name: What takes it.
        low: The least it takes.
        high: The most it takes.
        reason: Why it is counted.
        is_reserved: Whether the devices of the dry run have ``low`` in use already.
    """

    name: str
    low: int
    high: int
    reason: str
    is_reserved: bool = False


@dataclass(frozen=True)
class Failure:
    """The first allocation that found no room.

    Attributes:
        device: Its index.
        requested: Bytes.
        allocated: Bytes that were allocated then.
        step: The number of steps of optimizers before it.
        phase: As of a peak.
        place: The line.
    """

    device: int
    requested: int
    allocated: int
    step: int
    phase: str
    place: Place


@dataclass(frozen=True)
class Guess:
    """A line at which the host has read made-up values, or at which a size was guessed.

    Attributes:
        operation: The operator.
        place: File and line.
        count: How often.
    """

    operation: str
    place: str
    count: int


@dataclass(frozen=True)
class Report:
    """What a dry run has found.

    Attributes:
        profile: The GPU; None if none was chosen.
        torch: The release of torch, on which sizes of saved tensors depend.
        seconds: How long the process has run.
        total_memory: Bytes of each device.
        rank: The rank of this process.
        world_size: The number of ranks of the program, of which most are absent; 1 without ranks.
        devices: The devices that were used.
        outside: Memory outside of the allocator, on each device.
        failure: The first allocation that failed, or with ``--beyond`` would have failed.
        made_up: Lines that read made-up values.
        guessed_sizes: Lines with operators whose results' sizes depend on data.
    """

    profile: Profile | None
    torch: str
    seconds: float
    total_memory: int
    rank: int
    world_size: int
    devices: list[DeviceReport]
    outside: list[Use]
    failure: Failure | None
    made_up: list[Guess]
    guessed_sizes: list[Guess]

    @property
    def low(self) -> int:
        """Bytes of a device that the program needs at least."""
        used = max((one.used for one in self.devices), default=0)
        return used + sum(one.low for one in self.outside if not one.is_reserved)

    @property
    def high(self) -> int:
        """Bytes of a device that it may need."""
        return self.low + sum(one.high - one.low for one in self.outside)

    @property
    def verdict(self) -> str:
        """``fits``, ``does not fit``, ``unsure``, or ``nothing ran`` if no device was used."""
        if self.failure is not None or self.low > self.total_memory:
            return "does not fit"
        if not self.devices:
            return "nothing ran"
        return "fits" if self.high <= self.total_memory else "unsure"

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as what JSON can hold."""
        result = asdict(self)
        result["verdict"] = self.verdict
        result["low"], result["high"] = self.low, self.high
        return result

    def to_json(self) -> str:
        """Returns the report as JSON."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    def __str__(self) -> str:
        """Returns the report as lines of text."""
        lines = [self._title(), *_row("verdict", [self._verdict_text()])]
        for device in self.devices:
            lines += _row(f"device {device.index}", _device_lines(device))
        if self.devices:
            lines += _row("process", [self._process_text()])
        if unsure := self._unsure_lines():
            lines += _row("unsure", unsure)
        return "\n".join(lines)

    def _title(self) -> str:
        name = "devices" if self.profile is None else self.profile.device
        rank = f", rank {self.rank} of {self.world_size}" if self.world_size > 1 else ""
        return f"dry run on {len(self.devices)} x {name}, {_size(self.total_memory)} each{rank}"

    def _verdict_text(self) -> str:
        total = _size(self.total_memory)
        if self.failure is not None:
            return (
                f"DOES NOT FIT: device {self.failure.device} has no room for "
                f"{_size(self.failure.requested)} at {_where(self.failure)}"
            )
        between = _size(self.low)
        if self.high != self.low:
            between = f"{between} to {_size(self.high)}"
        return f"{self.verdict}: {between} of {total}" if self.devices else self.verdict

    def _process_text(self) -> str:
        if not self.outside:
            return "nothing outside of the allocator is counted"
        return "; ".join(
            f"{one.name} {_size(one.low)} to {_size(one.high)} ({one.reason})"
            for one in self.outside
        )

    def _unsure_lines(self) -> list[str]:
        kinds = (
            (self.made_up, "read made-up values"),
            (self.guessed_sizes, "have sizes that depend on data and were guessed"),
        )
        return [_guesses_text(guesses, what) for guesses, what in kinds if guesses]


def _size(nbytes: int) -> str:
    """As torch's texts have sizes."""
    if nbytes >= _GIB:
        return f"{nbytes / _GIB:.2f} GiB"
    if nbytes >= _MIB:
        return f"{nbytes / _MIB:.2f} MiB"
    return f"{nbytes / 1024:.2f} KiB" if nbytes >= 1024 else f"{nbytes} bytes"


def _guesses_text(guesses: Sequence[Guess], what: str) -> str:
    places = ", ".join(f"{os.path.basename(one.place)} x{one.count}" for one in guesses[:_LARGEST])
    more = len(guesses) - _LARGEST
    lines = "1 line" if len(guesses) == 1 else f"{len(guesses)} lines"
    return f"{lines} {what}: {places}" + (f", and {more} more" if more > 0 else "")


def _where(moment: DeviceReport | Failure) -> str:
    phase = "the optimizer" if moment.phase == "optimizer" else moment.phase
    return f"{moment.place} in {phase}, step {moment.step + 1}"


def _row(name: str, lines: Iterable[str]) -> list[str]:
    return [f"{name if i == 0 else '':<10}{line}" for i, line in enumerate(lines)]


def _device_lines(device: DeviceReport) -> list[str]:
    unused = _size(device.reserved - device.allocated)
    lines = [
        f"peak allocated {_size(device.allocated)}, reserved {_size(device.reserved)} "
        f"({unused} more), at {_where(device)}",
        ", ".join(f"{name} {_size(size)}" for name, size in device.categories.items() if size),
    ]
    if device.largest:
        lines.append("largest at the peak:")
    for one in device.largest:
        number = f" in {one.count} blocks" if one.count > 1 else ""
        text = one.place.text
        shown = f"  {text[:60]}{'...' if len(text) > 60 else ''}" if text else ""
        lines.append(f"  {_size(one.nbytes)}{number}, {one.category}, {one.place}{shown}")
    return lines


def place_of(frames: Sequence[Frame]) -> Place:
    """Returns the innermost line of the program: outside of installed packages, else of torch.

    Args:
        frames: Innermost first, each with ``filename``, ``line`` and ``name``.
    """
    for excluded in ((_TORCH, _OURS, *_LIBRARIES), (_TORCH, _OURS), ()):
        for frame in frames:
            name = frame.get("filename", "<")
            is_program = name in _UNNAMED or not name.startswith("<")
            if is_program and not name.startswith(excluded):
                return Place(name, frame["line"], frame["name"])
    return Place("", 0, "")


def category_of(
    block: Mapping[str, Any], frames: Sequence[Frame], is_before_backward: bool = False
) -> str:
    """Returns one of ``CATEGORIES`` for a block of the record.

    Args:
        block: As ``_C._memory_record_peak`` describes it.
        frames: Those of its allocation.
        is_before_backward: Whether the backward pass that would show what is kept for it has not
            begun, as after an allocation that failed.
    """
    if (known := _OF_USE.get(block["use"])) is not None:
        return known
    if _is_of_collective(frames):
        return "collectives"
    is_recomputed = block["phase"] == "backward"
    is_kept = block["outlived_forward"] or is_recomputed or is_before_backward
    if block["records_gradients"] and is_kept:
        return "activations"
    return "temporary"


def _is_of_collective(frames: Sequence[Frame]) -> bool:
    """Whether the innermost frames, up to the first outside of torch.distributed, are of one."""
    distributed = os.path.join(_TORCH, "distributed") + _SEPARATOR
    for frame in frames:
        name = frame.get("filename", "")
        if name.startswith(_COLLECTIVES):
            return True
        if name.startswith(_TORCH) and not name.startswith(distributed):
            # Calls of operators and of contexts pass through these.
            if name.startswith((_TORCH + "_ops", _TORCH + "utils", _TORCH + "_tensor")):
                continue
            return False
        if not name.startswith(_TORCH):
            return False
    return False


def device_report(index: int, peak: Mapping[str, Any], context: int) -> DeviceReport:
    """Makes the report of a device.

    Args:
        index: The device.
        peak: What ``_C._memory_record_peak`` returns.
        context: Bytes that CUDA itself takes, which are in use from the start.
    """
    categories = Counter(dict.fromkeys(CATEGORIES, 0))
    lines: dict[tuple[str, Place], list[int]] = {}
    stacks = [(frames, place_of(frames)) for frames in peak["stacks"]]
    for block in peak["blocks"]:
        frames, place = stacks[block["stack"]]
        category = category_of(block, frames, peak["is_before_backward"])
        categories[category] += block["size"]
        lines.setdefault((category, place), []).append(block["size"])
    largest = sorted(lines.items(), key=lambda item: -sum(item[1]))[:_LARGEST]
    return DeviceReport(
        index=index,
        allocated=peak["allocated"],
        reserved=peak["most_used"] - context,
        used=peak["most_used"],
        step=peak["step"],
        phase=peak["phase"],
        place=place_of(peak["stack"]),
        categories=dict(categories),
        largest=[
            LargeBlock(sum(sizes), len(sizes), category, place)
            for (category, place), sizes in largest
        ],
    )
