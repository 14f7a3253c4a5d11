"""A small model of the sanitizer's rules: it returns the pairs of operations that are mistakes.

Slow and plain on purpose: sets of pieces of work where the sanitizer has clocks, and sets of bytes
where it has runs. It implements the rules of docs/sanitizer.md independently of the code.

A program calls it for each operation, in order. Operations have numbers, which the program picks.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Finding", "Memory", "Model", "Operand"]

Stream = Hashable  # (device, anything)


class Finding(NamedTuple):
    """A mistake: the operations of the later and the earlier access, and of the free, if any."""

    kind: str
    later: int
    earlier: int
    freed: int = 0


@dataclass(eq=False)
class Work:
    """A launch."""

    operation: int
    stream: Stream


@dataclass(eq=False)
class Access:
    """An access of a launch to some bytes of a memory."""

    work: Work | None  # of an allocation: the owner's last launch before it, if there is one
    operation: int
    where: frozenset[int]
    is_write: bool
    is_allocation: bool = False


@dataclass(eq=False)
class Memory:
    """An allocation, of a device or of pinned memory of the host."""

    owner: Stream | None  # None: it is the host's
    birth: int
    announced: set[Stream] = field(default_factory=set)  # by record_stream
    accesses: list[Access] = field(default_factory=list)


class Operand(NamedTuple):
    """The next accesses of a launch, or of the host."""

    memory: Memory
    where: frozenset[int]
    is_write: bool


@dataclass(eq=False)
class Hazard:
    """A use of memory that went while it was perhaps not over."""

    access: Access
    owner: Stream
    time: int
    operation: int  # that freed it


class Model:
    """Follows one program, and collects its mistakes in ``findings``."""

    def __init__(self) -> None:
        self.findings: set[Finding] = set()
        # The launches on a stream, in order.
        self._launched: dict[Stream, list[Work]] = {}
        # The work that is ordered before the next work of a stream.
        self._known: dict[Stream, set[Work]] = {}
        self._known_to_host: set[Work] = set()
        self._hazards: list[Hazard] = []
        self._time = 0  # of allocations and frees

    # --- Order

    def knows(self, stream: Stream) -> set[Work]:
        """Returns the work before the next work of a stream. An event is a copy of it."""
        return self._known.setdefault(stream, set())

    def record(self, stream: Stream) -> frozenset[Work]:
        """Returns the event."""
        return frozenset(self.knows(stream))

    def wait(self, stream: Stream, event: Iterable[Work] | None) -> None:
        """Makes a stream wait; for nothing, if the event was never recorded."""
        self.knows(stream).update(event or ())

    def host_waits(self, event: Iterable[Work] | None) -> None:
        """Makes the host wait, or records that no wait is needed."""
        self._known_to_host.update(event or ())

    def host_waits_for_device(self, device: Hashable) -> None:
        """Makes the host wait for all streams of a device."""
        for stream in list(self._known):
            if stream[0] == device:
                self.host_waits(self.knows(stream))

    # --- Memory

    def allocate(self, operation: int, owner: Stream | None, size: int) -> Memory:
        """New memory may still be in use by what its owner has done with it before."""
        self._time += 1
        memory = Memory(owner, self._time)
        if owner is not None:
            last = self._launched.get(owner, [None])[-1]
            everything = frozenset(range(size))
            memory.accesses.append(Access(last, operation, everything, True, True))
        return memory

    def free(self, operation: int, memory: Memory) -> None:
        """What other streams may still do to it, unannounced, becomes hazards of the owner."""
        self._time += 1
        if memory.owner is None:
            return
        for access in memory.accesses:
            if (
                not access.is_allocation
                and access.work.stream not in memory.announced
                and not self._is_ordered(access, memory.owner)
            ):
                self._hazards.append(Hazard(access, memory.owner, self._time, operation))

    # --- Accesses

    def launch(self, operation: int, stream: Stream, operands: list[Operand]) -> None:
        """A kernel. A reported mistake counts as corrected from here on."""
        put_right: list[Access] = []
        harmful: list[Hazard] = []
        for operand in operands:
            conflicts = [
                access
                for access in operand.memory.accesses
                if _is_conflict(access, operand) and not self._is_ordered(access, stream)
            ]
            # Of the uses by one stream, the last one determines the required wait.
            latest = {access.work.stream: access for access in conflicts}
            for access in latest.values():
                kind = "lifetime" if access.is_allocation else "race"
                self.findings.add(Finding(kind, operation, access.operation))
            put_right += conflicts
            harmful += self._hazards_of(operand.memory, stream)
        last_uses = {(one.operation, one.access.work.stream): one for one in harmful}
        for hazard in last_uses.values():
            self.findings.add(
                Finding("lifetime", operation, hazard.access.operation, hazard.operation)
            )
        self._hazards = [one for one in self._hazards if one not in harmful]
        for access in put_right:
            self.knows(stream).update(self._until(access.work))

        work = Work(operation, stream)
        self.knows(stream).update(self._known_to_host)
        self.knows(stream).add(work)
        self._launched.setdefault(stream, []).append(work)
        for operand in operands:
            new = Access(work, operation, operand.where, operand.is_write)
            operand.memory.accesses = [
                old
                for old in operand.memory.accesses
                if not (_makes_needless(new, old) and self._is_ordered(old, stream))
            ]
            operand.memory.accesses.append(new)

    def host_touches(self, operation: int, operand: Operand) -> None:
        """The host itself reads or writes pinned memory."""
        conflicts = [
            access
            for access in operand.memory.accesses
            if _is_conflict(access, operand) and access.work not in self._known_to_host
        ]
        if conflicts:
            self.findings.add(Finding("host", operation, conflicts[-1].operation))
            self.host_waits(self._until(conflicts[-1].work))

    # ---

    def _is_ordered(self, access: Access, stream: Stream) -> bool:
        work = access.work
        return (
            work is None
            or work.stream == stream
            or work in self.knows(stream)
            or work in self._known_to_host
        )

    def _until(self, work: Work) -> list[Work]:
        """The work, and what its stream did before."""
        launched = self._launched[work.stream]
        return launched[: launched.index(work) + 1]

    def _hazards_of(self, memory: Memory, stream: Stream) -> list[Hazard]:
        """Those that work of the stream on this memory is the first to suffer from."""
        # The owner is ordered after the use, so the memory may be reused.
        self._hazards = [
            one for one in self._hazards if not self._is_ordered(one.access, one.owner)
        ]
        return [
            one
            for one in self._hazards
            if one.owner == memory.owner
            and memory.birth > one.time
            and not self._is_ordered(one.access, stream)
        ]


def _is_conflict(earlier: Access, later: Operand) -> bool:
    return (earlier.is_write or later.is_write) and not earlier.where.isdisjoint(later.where)


def _makes_needless(new: Access, old: Access) -> bool:
    """Whether what conflicts with the old one, later, conflicts with the new one as well."""
    is_read_again = (
        not old.is_write and not old.is_allocation and old.work.stream == new.work.stream
    )
    return (new.is_write or is_read_again) and old.where <= new.where
