"""Random programs on streams: each is a text, and the same calls of the model (model.py).

A program is a list of steps. An invalid step, such as one with a tensor that was freed, is left
out; so any part of a program is a program, and a failing one can be cut down.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from extras.sanitizer.model import Memory, Model, Operand, Work

__all__ = ["Program", "Step", "random_steps", "shrink"]

SIZE = 64
STREAMS = ("main", "one", "two", "other")  # the last one is of the second device
NAMES = ("a", "b", "c", "d")
PINNED_NAMES = ("p", "q")
EVENTS = ("e", "f")


class View(NamedTuple):
    """Some elements of a tensor."""

    start: int
    stop: int
    step: int = 1

    @property
    def where(self) -> frozenset[int]:
        return frozenset(range(self.start, self.stop, self.step))

    def __str__(self) -> str:
        return f"[{self.start}:{self.stop}" + (f":{self.step}]" if self.step > 1 else "]")


class Step(NamedTuple):
    """One operation: its method of Program, and the arguments."""

    name: str
    arguments: tuple[object, ...]


@dataclass(eq=False)
class Variable:
    """The object of a name in the program."""

    memory: Memory
    device: int | None  # None: pinned memory


class Program:
    """The text of a program, and the model's findings in it."""

    def __init__(self, steps: list[Step], model: Model | None = None) -> None:
        """Follows the steps that make sense."""
        self.lines: list[str] = []
        self.steps_taken: Counter[str] = Counter()  # those that make sense, by their names
        self.model = model or Model()
        self.has_second_device = any("other" in step.arguments for step in steps)
        self._variables: dict[str, Variable] = {}
        self._events: dict[str, frozenset[Work] | None] = dict.fromkeys(EVENTS)
        for step in steps:
            line = self._line
            getattr(self, step.name)(*step.arguments)
            self.steps_taken[step.name] += self._line > line

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

    # --- Helpers of the steps

    @property
    def _line(self) -> int:
        """The number of the line that is added next."""
        return len(self.lines) + 1

    def _add(self, text: str, stream: str | None = None) -> None:
        self.lines.append(text if stream in (None, "main") else f"with stream({stream}): {text}")

    def _at(self, stream: str) -> tuple[int, str]:
        return (int(stream == "other"), stream)

    def _get(self, name: str, stream: str) -> Variable | None:
        """A tensor that work of the stream can use."""
        variable = self._variables.get(name)
        return variable if variable and variable.device == self._at(stream)[0] else None

    def _pinned(self, name: str) -> Variable | None:
        variable = self._variables.get(name)
        return variable if variable and variable.device is None else None

    def _name(self, name: str, variable: Variable) -> None:
        """Gives a name to a tensor, and frees what only that name stood for."""
        old = self._variables.get(name)
        self._variables[name] = variable
        self._free_unless_named(old)

    def _free_unless_named(self, old: Variable | None) -> None:
        if old and all(one.memory is not old.memory for one in self._variables.values()):
            self.model.free(self._line, old.memory)

    def _new(self, stream: str, size: int = SIZE) -> Memory:
        return self.model.allocate(self._line, self._at(stream), size)

    def _result(self, name: str, stream: str, memory: Memory) -> None:
        """A result is named after it was computed. Without one, it is freed at once."""
        if name:
            self._name(name, Variable(memory, self._at(stream)[0]))
        else:
            self.model.free(self._line, memory)

    # --- Steps on a device

    def empty(self, name: str, stream: str) -> None:
        self._result(name, stream, self._new(stream))
        self._add(f"{name} = torch.empty({SIZE}, device=current().device)", stream)

    def fill(self, name: str, view: View, stream: str) -> None:
        if x := self._get(name, stream):
            self.model.launch(
                self._line, self._at(stream), [Operand(x.memory, view.where, is_write=True)]
            )
            self._add(f"{name}{view}.fill_(1)", stream)

    def add(self, name: str, view: View, other: str, other_view: View, stream: str) -> None:
        x, y = self._get(name, stream), self._get(other, stream)
        if not x or not y or (x.memory is y.memory and view != other_view):
            return
        operands = [
            Operand(x.memory, view.where, is_write=True),
            Operand(y.memory, other_view.where, is_write=False),
        ]
        self.model.launch(self._line, self._at(stream), operands)
        self._add(f"{name}{view}.add_({other}{other_view})", stream)

    def copy(self, name: str, view: View, other: str, other_view: View, stream: str) -> None:
        x, y = self._get(name, stream), self._get(other, stream)
        if not x or not y or x.memory is y.memory:
            return
        operands = [
            Operand(x.memory, view.where, is_write=True),
            Operand(y.memory, other_view.where, is_write=False),
        ]
        self.model.launch(self._line, self._at(stream), operands)
        self._add(f"{name}{view}.copy_({other}{other_view})", stream)

    def out(self, name: str, view: View, other: str, other_view: View, stream: str) -> None:
        x, y = self._get(name, stream), self._get(other, stream)
        if not x or not y or x.memory is y.memory:
            return
        operands = [
            Operand(y.memory, other_view.where, is_write=False),
            Operand(x.memory, view.where, is_write=True),
        ]
        self.model.launch(self._line, self._at(stream), operands)
        self._add(f"torch.mul({other}{other_view}, 2, out={name}{view})", stream)

    def both(self, name: str, view: View, other: str, other_view: View, stream: str) -> None:
        x, y = self._get(name, stream), self._get(other, stream)
        if not x or not y or x.memory is y.memory:
            return
        operands = [
            Operand(x.memory, view.where, is_write=True),
            Operand(y.memory, other_view.where, is_write=True),
        ]
        self.model.launch(self._line, self._at(stream), operands)
        self._add(f"torch._foreach_add_([{name}{view}, {other}{other_view}], 1)", stream)

    def read(self, result: str, name: str, view: View, stream: str) -> None:
        self._read(f"{name}{view}.mul(2)", result, name, view, stream)

    def read_with_fallback(self, result: str, name: str, view: View, stream: str) -> None:
        self._read(f"torch.cummax({name}{view}, 0).values", result, name, view, stream, 1)

    def _read(
        self, text: str, result: str, name: str, view: View, stream: str, unnamed: int = 0
    ) -> None:
        x = self._get(name, stream)
        # A tensor of another size would make all later views of the name wrong.
        if not x or (result and len(view.where) != SIZE):
            return
        size = len(view.where)
        new = [self._new(stream, size) for _ in range(1 + unnamed)]
        whole = frozenset(range(size))
        operands = [Operand(x.memory, view.where, is_write=False)]
        operands += [Operand(memory, whole, is_write=True) for memory in new]
        self.model.launch(self._line, self._at(stream), operands)
        for memory in new[1:]:
            self.model.free(self._line, memory)
        self._result(result, stream, new[0])
        self._add(f"{result} = {text}" if result else text, stream)

    def item(self, name: str, index: int, stream: str) -> None:
        if x := self._get(name, stream):
            self.model.launch(
                self._line,
                self._at(stream),
                [Operand(x.memory, frozenset((index,)), is_write=False)],
            )
            self.model.host_waits(self.model.knows(self._at(stream)))
            self._add(f"{name}[{index}].item()", stream)

    def to_pageable(self, name: str, view: View, stream: str) -> None:
        if x := self._get(name, stream):
            self.model.launch(
                self._line, self._at(stream), [Operand(x.memory, view.where, is_write=False)]
            )
            self.model.host_waits(self.model.knows(self._at(stream)))
            self._add(f"{name}{view}.cpu()", stream)

    def across(self, name: str, view: View, other: str, other_view: View, stream: str) -> None:
        """A copy between devices: on the source's current stream, between two waits."""
        there = "other" if stream != "other" else "main"
        x, y = self._get(name, there), self._get(other, stream)
        if not x or not y:
            return
        self.model.wait(self._at(stream), self.model.knows(self._at(there)))
        operands = [
            Operand(x.memory, view.where, is_write=True),
            Operand(y.memory, other_view.where, is_write=False),
        ]
        self.model.launch(self._line, self._at(stream), operands)
        self.model.wait(self._at(there), self.model.knows(self._at(stream)))
        # Each device has a current stream.
        first = "main" if stream == "other" else stream
        self._add(f"with stream({first}), stream(other): {name}{view}.copy_({other}{other_view})")

    # --- Steps with pinned memory

    def pin(self, name: str) -> None:
        memory = self.model.allocate(self._line, None, SIZE)
        self._name(name, Variable(memory, None))
        self._add(f"{name} = torch.empty({SIZE}, pin_memory=True)")

    def upload(
        self, name: str, view: View, other: str, other_view: View, stream: str, waits: bool
    ) -> None:
        x, y = self._get(name, stream), self._pinned(other)
        if x and y:
            self._copy(name, x, view, other, y, other_view, stream, waits)

    def download(
        self, name: str, view: View, other: str, other_view: View, stream: str, waits: bool
    ) -> None:
        x, y = self._pinned(name), self._get(other, stream)
        if x and y:
            self._copy(name, x, view, other, y, other_view, stream, waits)

    def _copy(
        self,
        name: str,
        x: Variable,
        view: View,
        other: str,
        y: Variable,
        other_view: View,
        stream: str,
        waits: bool,
    ) -> None:
        operands = [
            Operand(x.memory, view.where, is_write=True),
            Operand(y.memory, other_view.where, is_write=False),
        ]
        self.model.launch(self._line, self._at(stream), operands)
        if waits:
            self.model.host_waits(self.model.knows(self._at(stream)))
        self._add(f"{name}{view}.copy_({other}{other_view}, non_blocking={not waits})", stream)

    def host_writes(self, name: str, view: View) -> None:
        if x := self._pinned(name):
            self.model.host_touches(self._line, Operand(x.memory, view.where, is_write=True))
            self._add(f"{name}{view}.fill_(1)")

    def host_reads(self, name: str, view: View) -> None:
        if x := self._pinned(name):
            self.model.host_touches(self._line, Operand(x.memory, view.where, is_write=False))
            self._add(f"{name}{view}.sum()")

    # --- Steps of memory

    def alias(self, name: str, other: str) -> None:
        if y := self._variables.get(other):
            self._name(name, y)
            self._add(f"{name} = {other}[:]")

    def delete(self, name: str) -> None:
        if name in self._variables:
            self._free_unless_named(self._variables.pop(name))
            self._add(f"del {name}")

    def record_stream(self, name: str, stream: str) -> None:
        if x := self._get(name, stream):
            x.memory.announced.add(self._at(stream))
            self._add(f"{name}.record_stream({stream})")

    # --- Steps of order

    def wait_stream(self, waiting: str, stream: str) -> None:
        self.model.wait(self._at(waiting), self.model.record(self._at(stream)))
        self._add(f"{waiting}.wait_stream({stream})")

    def record(self, event: str, stream: str) -> None:
        if self.has_second_device and (event == "f") != (stream == "other"):
            return  # an event is one device's
        self._events[event] = self.model.record(self._at(stream))
        self._add(f"{event}.record({stream})")

    def wait_event(self, stream: str, event: str) -> None:
        self.model.wait(self._at(stream), self._events[event])
        self._add(f"{stream}.wait_event({event})")

    def synchronize_event(self, event: str) -> None:
        self.model.host_waits(self._events[event])
        self._add(f"{event}.synchronize()")

    def ask_event(self, event: str) -> None:
        self.model.host_waits(self._events[event])
        self._add(f"while not {event}.query(): pass")

    def synchronize_stream(self, stream: str) -> None:
        self.model.host_waits(self.model.knows(self._at(stream)))
        self._add(f"{stream}.synchronize()")

    def ask_stream(self, stream: str) -> None:
        self.model.host_waits(self.model.knows(self._at(stream)))
        self._add(f"while not {stream}.query(): pass")

    def synchronize_device(self, device: int) -> None:
        self.model.host_waits_for_device(device)
        self._add(f"synchronize({device})")


def random_steps(rng: random.Random) -> list[Step]:
    """Returns the steps of a seed's program."""
    streams = STREAMS if rng.random() < 0.3 else STREAMS[:-1]
    is_strided = rng.random() < 0.5

    has_pinned = rng.random() < 0.4

    def name() -> str:
        return rng.choice(NAMES)

    def pinned() -> str:
        return rng.choice(PINNED_NAMES)

    def stream() -> str:
        return rng.choice(streams)

    def view(length: int | None = None) -> View:
        if length is None:
            length = rng.choice((SIZE, SIZE, SIZE // 2, rng.randint(2, SIZE)))
        if length == SIZE // 2 and is_strided and rng.random() < 0.6:
            start = rng.randrange(2)
            return View(start, SIZE, 2)
        start = rng.randint(0, SIZE - length)
        return View(start, start + length)

    def two(
        written: Callable[[], str] = name, read: Callable[[], str] = name
    ) -> tuple[str, View, str, View]:
        first = view()
        return written(), first, read(), view(len(first.where))

    makers: dict[str, tuple[int, Callable[[], tuple[object, ...]]]] = {
        "empty": (10, lambda: (name(), stream())),
        "fill": (12, lambda: (name(), view(), stream())),
        "add": (8, lambda: (*two(), stream())),
        "copy": (3, lambda: (*two(), stream())),
        "out": (4, lambda: (*two(), stream())),
        "both": (3, lambda: (*two(), stream())),
        "read": (10, lambda: (rng.choice(("", name())), name(), view(), stream())),
        "read_with_fallback": (2, lambda: (rng.choice(("", name())), name(), view(), stream())),
        "item": (1, lambda: (name(), rng.randrange(SIZE), stream())),
        "to_pageable": (1, lambda: (name(), view(), stream())),
        "across": (12 if "other" in streams else 0, lambda: (*two(), stream())),
        "pin": (4 * has_pinned, lambda: (pinned(),)),
        "upload": (8 * has_pinned, lambda: (*two(name, pinned), stream(), rng.random() < 0.2)),
        "download": (8 * has_pinned, lambda: (*two(pinned, name), stream(), rng.random() < 0.2)),
        "host_writes": (6 * has_pinned, lambda: (pinned(), view())),
        "host_reads": (6 * has_pinned, lambda: (pinned(), view())),
        "alias": (3, lambda: (name(), name())),
        "delete": (8, lambda: (rng.choice((name(), pinned())),)),
        "record_stream": (4, lambda: (name(), stream())),
        "wait_stream": (8, lambda: tuple(rng.sample(streams, 2))),
        "record": (5, lambda: (rng.choice(EVENTS), stream())),
        "wait_event": (5, lambda: (stream(), rng.choice(EVENTS))),
        "synchronize_event": (1, lambda: (rng.choice(EVENTS),)),
        "ask_event": (1, lambda: (rng.choice(EVENTS),)),
        "synchronize_stream": (1, lambda: (stream(),)),
        "ask_stream": (1, lambda: (stream(),)),
        "synchronize_device": (1, lambda: (int(stream() == "other"),)),
    }
    weights = [weight for weight, _ in makers.values()]
    names = rng.choices(list(makers), weights, k=rng.randint(10, 60))
    start = [Step("empty", (one, rng.choice(streams))) for one in NAMES[:2]]
    if "other" in streams:
        start.append(Step("empty", (NAMES[-1], "other")))
    if has_pinned:
        start.append(Step("pin", (PINNED_NAMES[0],)))
    return [*start, *(Step(one, makers[one][1]()) for one in names)]


def shrink(steps: list[Step], is_wrong: Callable[[list[Step]], bool]) -> list[Step]:
    """Leaves steps out for as long as the program stays wrong."""
    index = 0
    while index < len(steps):
        shorter = steps[:index] + steps[index + 1 :]
        if is_wrong(shorter):
            steps = shorter
        else:
            index += 1
    return steps
