"""Values of a kernel as C++: scalars, lazy tensors, arrays; and the loops that compute elements.

Note [Lazy tensors]
A tensor is mostly a function from indices to an expression, and becomes an array where its elements
are needed at several places, or before memory changes. So an elementwise kernel is one loop. What a
lazy tensor refers to never changes while the tensor is in use: arrays are written once per run of
the operation that makes them, and variables of loops change between iterations only.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from torch_openreg.extras.triton._ttir import Type

__all__ = [
    "Array",
    "Elementwise",
    "Expression",
    "Index",
    "Lines",
    "Nest",
    "Range",
    "Shifted",
    "Tensor",
    "Uniform",
    "UnsupportedTypeError",
    "View",
    "dense_strides",
    "flat",
    "format_of",
    "is_float",
    "is_narrow",
    "reads_rows",
    "register_type",
    "size_of",
    "uses_of",
    "variable_name",
]

_INTEGERS = {"i1": "bool", "i8": "int8_t", "i16": "int16_t", "i32": "int32_t", "i64": "int64_t"}
_FLOATS = {"f32": "float", "f64": "double"}
_NARROW = {
    "f16": "f16",
    "bf16": "bf16",
    "f8E4M3FN": "f8E4M3FN",
    "f8E4M3FNUZ": "f8E4M3FNUZ",
    "f8E5M2": "f8E5M2",
    "f8E5M2FNUZ": "f8E5M2FNUZ",
}
_SIZES = {"i1": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "ptr": 8}
_SIZES |= {"f16": 2, "bf16": 2, "f32": 4, "f64": 8} | dict.fromkeys(list(_NARROW)[2:], 1)


# From so many on, loops over dimensions, such as those of two elements of which a sort is made, are
# one loop: as a compiler unrolls the innermost ones, nests of them take it minutes.
_MANY_DIMENSIONS = 4


class UnsupportedTypeError(TypeError):
    """A type has no elements in C++."""


def register_type(value_type: Type) -> str:
    """Returns the C++ type of an element in registers and arrays.

    Raises:
        UnsupportedTypeError: The type has none.
    """
    element = value_type.element
    if element == "ptr":
        return "uint64_t"
    if element in _NARROW:
        return "float"
    found = _INTEGERS.get(element) or _FLOATS.get(element)
    if found is None:
        raise UnsupportedTypeError(f"values of type {value_type} are not supported")
    return found


def is_narrow(value_type: Type) -> bool:
    """Whether elements are floats in registers, rounded to a narrower format."""
    return value_type.element in _NARROW


def is_float(value_type: Type) -> bool:
    """Whether elements are floating-point numbers."""
    return value_type.element in _NARROW or value_type.element in _FLOATS


def format_of(value_type: Type) -> str:
    """Returns the C++ type that describes an element in memory; see numbers.h."""
    return _NARROW.get(value_type.element) or f"Plain<{register_type(value_type)}>"


def size_of(value_type: Type) -> int:
    """Returns the size of an element in memory."""
    register_type(value_type)
    return _SIZES[value_type.element]


class Part(NamedTuple):
    """Some bits of a loop's index: the index of one of the dimensions that the loop runs over."""

    loop: str  # the loop's index, in C++
    first: int
    width: int
    is_last: bool  # whether the index has no bits above these

    @property
    def text(self) -> str:
        """The value, in C++."""
        shifted = f"({self.loop} >> {self.first})" if self.first else self.loop
        return shifted if self.is_last else f"({shifted} & {2**self.width - 1})"


class Expression(NamedTuple):
    """A C++ expression without side effects, and the loop in which it has to be evaluated.

    ``part`` is what it is of the index of a loop over several dimensions.
    """

    text: str
    depth: int
    part: Part | None = None


Index = tuple[Expression, ...]
ZERO = Expression("0", 0)


@dataclass
class Lines:
    """C++ lines, and names for what they define."""

    numbers: "count[int]" = field(default_factory=count)
    lines: list[str] = field(default_factory=list)

    def name(self, prefix: str) -> str:
        """Returns a new name."""
        return f"{prefix}{next(self.numbers)}"

    def add(self, *lines: str) -> None:
        """Adds lines."""
        self.lines += lines


@dataclass
class _Level:
    header: str
    lines: list[str] = field(default_factory=list)


class Nest:
    """Loops, one within the other, at the end of some lines.

    What does not depend on the index of a loop is computed before it. The same element is computed
    once.
    """

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._levels = [_Level("")]
        self._elements: dict[tuple[int, Index], Expression] = {}
        self._kept: list[Tensor] = []  # as identities are keys

    @property
    def depth(self) -> int:
        """How many loops are open."""
        return len(self._levels) - 1

    def name(self, prefix: str) -> str:
        """Returns a new name."""
        return self._lines.name(prefix)

    def loop(self, extent: int, is_parallel: bool = False, begin: int = 0) -> Expression:
        """Opens a loop; returns its index.

        Args:
            extent: The end of the index.
            is_parallel: Whether iterations are independent, though they use memory.
            begin: The first index.
        """
        if extent - begin == 1:
            return Expression(str(begin), 0)
        index = self.name("i")
        pragma = "#pragma GCC ivdep\n" if is_parallel else ""
        self._levels.append(
            _Level(f"{pragma}for (long {index} = {begin}; {index} < {extent}; ++{index}) {{")
        )
        return Expression(index, self.depth)

    def loops(
        self, shape: Sequence[int], order: Sequence[int], is_parallel: bool, merges: bool = False
    ) -> Index:
        """Opens loops over dimensions, the last one innermost; returns the index.

        Args:
            shape: The extents of all dimensions, which are powers of two.
            order: The dimensions to run over.
            is_parallel: As of :meth:`loop`, for the innermost.
            merges: Whether to open a single loop if there are many dimensions.
        """
        index = [ZERO] * len(shape)
        wide = [dimension for dimension in order if shape[dimension] != 1]
        if not merges or len(wide) < _MANY_DIMENSIONS:
            for dimension in wide:
                index[dimension] = self.loop(
                    shape[dimension], is_parallel and dimension == wide[-1]
                )
            return tuple(index)
        one = self.loop(math.prod(shape[dimension] for dimension in wide), is_parallel)
        first = 0
        for dimension in reversed(wide):
            width = shape[dimension].bit_length() - 1
            part = Part(one.text, first, width, dimension == wide[0])
            index[dimension] = Expression(part.text, one.depth, part)
            first += width
        return tuple(index)

    def descending(self, extent: int) -> Expression:
        """Opens a loop whose index runs from the end to 0; returns the index."""
        index = self.name("i")
        self._levels.append(
            _Level(f"for (long {index} = {extent} - 1; {index} >= 0; --{index}) {{")
        )
        return Expression(index, self.depth)

    def add(self, *lines: str, depth: int | None = None) -> None:
        """Adds lines to the innermost loop, or to the one at a depth."""
        self._levels[self.depth if depth is None else depth].lines += lines

    def temporary(self, cpp_type: str, text: str, depth: int) -> Expression:
        """Defines a constant in the outermost loop in which it can be evaluated."""
        name = self.name("t")
        self.add(f"const {cpp_type} {name} = {text};", depth=depth)
        return Expression(name, depth)

    def element(self, tensor: "Tensor", index: Index) -> Expression:
        """Returns an element of a tensor, computed at most once."""
        key = (id(tensor), index)
        self._kept.append(tensor)
        return self.once(key, lambda: tensor.element(self, index))

    def once(self, key: tuple[int, Index], make: Callable[[], Expression]) -> Expression:
        """Returns what belongs to a key, such as an object's identity and indices, made once."""
        found = self._elements.get(key)
        if found is None:
            found = self._elements[key] = make()
        return found

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Forgets afterwards what was computed: the lines are within braces."""
        elements = dict(self._elements)
        yield
        self._elements = elements

    @contextmanager
    def at(self, depth: int) -> Iterator[None]:
        """Adds lines and loops to the loop at a depth, before those within it."""
        inner = self._levels[depth + 1 :]
        hidden = {key: found for key, found in self._elements.items() if found.depth > depth}
        del self._levels[depth + 1 :]
        self._elements = {
            key: found for key, found in self._elements.items() if found.depth <= depth
        }
        yield
        self._levels += inner
        self._elements |= hidden

    def close(self, depth: int = 0) -> None:
        """Closes all loops that are deeper; with depth 0, writes all lines."""
        while self.depth > depth:
            level = self._levels.pop()
            self.add(level.header, *level.lines, "}")
        self._elements = {
            key: found for key, found in self._elements.items() if found.depth <= depth
        }
        if depth == 0:
            self._lines.add(*self._levels[0].lines)
            self._levels[0].lines.clear()


def flat(index: Index, strides: Sequence[int]) -> Expression:
    """Returns the sum of indices times strides."""
    terms: list[tuple[str, int]] = []
    parts: list[tuple[Part, int]] = []
    depth = 0
    for one, stride in zip(index, strides, strict=True):
        if one.text != "0" and stride != 0:
            if one.part is None:
                terms.append((one.text, stride))
            else:
                parts.append((one.part, stride))
            depth = max(depth, one.depth)
    terms += [(part.text, stride) for part, stride in _joined(parts)]
    texts = [text if stride == 1 else f"{text} * {stride}" for text, stride in terms]
    return Expression(" + ".join(texts) or "0", depth)


def _joined(parts: list[tuple[Part, int]]) -> list[tuple[Part, int]]:
    """Joins bits of a loop's index that lie side by side, in the index and in memory."""
    joined: list[tuple[Part, int]] = []
    for part, stride in sorted(parts):
        if joined:
            before, step = joined[-1]
            is_next = part.loop == before.loop and part.first == before.first + before.width
            if is_next and stride == step << before.width:
                width = before.width + part.width
                joined[-1] = before._replace(width=width, is_last=part.is_last), step
                continue
        joined.append((part, stride))
    return joined


def dense_strides(shape: Sequence[int], order: Sequence[int] | None = None) -> tuple[int, ...]:
    """Returns the strides of a dense array whose dimensions lie in an order, the last innermost."""
    strides = [0] * len(shape)
    size = 1
    for dimension in reversed(order if order is not None else range(len(shape))):
        strides[dimension] = size
        size *= shape[dimension]
    return tuple(strides)


class Tensor:
    """A value. Scalars are tensors without dimensions.

    Attributes:
        type: Its type.
        cost: About how many instructions an element takes.
        strides: For each dimension by how much an element differs from that before it, in units of
            the value, if that is the same everywhere; else None.
        order: The dimensions as they lie in memory, the last innermost.
        has_rows: Whether a row is made ready before its elements are used.
    """

    type: Type
    has_rows: bool = False
    cost: int = 0
    strides: tuple[int | None, ...] = ()
    order: tuple[int, ...] = ()

    def __init__(self, value_type: Type) -> None:
        self.type = value_type
        self.strides = (None,) * len(value_type.shape)
        self.order = tuple(range(len(value_type.shape)))

    @property
    def sources(self) -> tuple["Tensor", ...]:
        """The tensors whose elements it uses."""
        return ()

    def element(self, nest: Nest, index: Index) -> Expression:
        """Returns the expression of an element. Callers use :meth:`Nest.element`."""
        raise NotImplementedError


class Uniform(Tensor):
    """A scalar, or a tensor whose elements are equal.

    Attributes:
        text: An expression that needs no parentheses.
        constant: The value, if it is an integer known now.
    """

    def __init__(self, value_type: Type, text: str, constant: int | None = None) -> None:
        super().__init__(value_type)
        self.text = text
        self.constant = constant
        self.strides = (0,) * len(value_type.shape)

    def element(self, nest: Nest, index: Index) -> Expression:
        return Expression(self.text, 0)


class Array(Tensor):
    """Elements in memory of the kernel's own, as they are in registers."""

    def __init__(
        self, value_type: Type, name: str, steps: tuple[int, ...], order: tuple[int, ...]
    ) -> None:
        super().__init__(value_type)
        self.name = name
        self.owner: object = None  # what keeps the memory
        self.steps = steps  # from element to element in memory, by dimension
        self.order = order
        self.cost = 1

    @property
    def is_dense(self) -> bool:
        """Whether the elements lie in the order of their indices, without gaps."""
        expected = dense_strides(self.type.shape)
        return all(
            extent == 1 or step == other
            for extent, step, other in zip(self.type.shape, self.steps, expected, strict=True)
        )

    def place(self, index: Index) -> Expression:
        """Returns an element as what can be assigned to."""
        offset = flat(index, self.steps)
        return Expression(f"{self.name}[{offset.text}]", offset.depth)

    def element(self, nest: Nest, index: Index) -> Expression:
        place = self.place(index)
        return nest.temporary(register_type(self.type), place.text, place.depth)


class Range(Tensor):
    """Consecutive numbers, of one dimension."""

    def __init__(self, value_type: Type, start: int) -> None:
        super().__init__(value_type)
        self.start = start
        self.strides = (1,)

    def element(self, nest: Nest, index: Index) -> Expression:
        (one,) = index
        start = f" + {self.start}" if self.start else ""
        return Expression(f"(int32_t({one.text}){start})", one.depth)


class Elementwise(Tensor):
    """A function of the elements with the same index."""

    def __init__(
        self,
        value_type: Type,
        formula: Callable[..., str],
        operands: Sequence[Tensor],
        own_cost: int,
        strides: Sequence[int | None] | None = None,
    ) -> None:
        super().__init__(value_type)
        self.strides = tuple(
            [
                0 if not any(of_all) and None not in of_all else None
                for of_all in zip(*(one.strides for one in operands), strict=True)
            ]
            if strides is None
            else strides
        )
        self.formula = formula
        self.operands = tuple(operands)
        self.cost = own_cost + sum(operand.cost for operand in operands)
        natural = self.order
        self.order = next((one.order for one in operands if one.order != natural), natural)

    @property
    def sources(self) -> tuple[Tensor, ...]:
        return self.operands

    def element(self, nest: Nest, index: Index) -> Expression:
        elements = [nest.element(operand, index) for operand in self.operands]
        depth = max(one.depth for one in elements)
        text = self.formula(*(one.text for one in elements))
        return nest.temporary(register_type(self.type), text, depth)


class Shifted(Tensor):
    """A tensor plus a variable, which a loop increases: pointers and offsets that advance."""

    def __init__(self, base: Tensor, variable: str) -> None:
        super().__init__(base.type)
        self.base = base
        self.variable = variable
        self.strides = base.strides
        self.order = base.order
        self.cost = base.cost + 1

    @property
    def sources(self) -> tuple[Tensor, ...]:
        return (self.base,)

    def element(self, nest: Nest, index: Index) -> Expression:
        base = nest.element(self.base, index)
        return nest.temporary(
            register_type(self.type), f"{base.text} + {self.variable}", base.depth
        )


class View(Tensor):
    """The elements of a tensor at other indices.

    Args:
        base: The tensor.
        value_type: The type of the view.
        translate: Makes an index of the base from one of the view.
        dimensions: For each dimension of the view the one of the base, or None for a new one.
    """

    def __init__(
        self,
        base: Tensor,
        value_type: Type,
        translate: Callable[[Index], Index],
        dimensions: Sequence[int | None],
    ) -> None:
        super().__init__(value_type)
        self.base = base
        self.translate = translate
        self.cost = base.cost
        self.strides = tuple(0 if one is None else base.strides[one] for one in dimensions)
        where = {one: place for place, one in enumerate(dimensions) if one is not None}
        known = [where[one] for one in base.order if one in where]
        new = [place for place, one in enumerate(dimensions) if one is None]
        if known != sorted(known):
            self.order = (*new, *known)

    @property
    def sources(self) -> tuple[Tensor, ...]:
        return (self.base,)

    def element(self, nest: Nest, index: Index) -> Expression:
        return nest.element(self.base, self.translate(index))


def reads_rows(tensor: Tensor) -> bool:
    """Whether a tensor is computed from rows that are made ready; see Tensor.has_rows."""
    return tensor.has_rows or any(map(reads_rows, tensor.sources))


def variable_name(tensor: Tensor) -> str:
    """Returns the name of the variable or the array that a tensor is."""
    assert isinstance(tensor, (Array, Uniform))
    return tensor.name if isinstance(tensor, Array) else tensor.text


def uses_of(tensor: Tensor, is_moved: bool = False) -> dict[str, bool]:
    """Returns the variables that a tensor is computed from.

    With each whether some of its elements are used at other indices than their own.
    """
    if isinstance(tensor, (Array, Uniform)):
        # The owner of another array's memory has other indices for the same elements.
        is_renamed = isinstance(tensor, Array) and isinstance(tensor.owner, Array)
        return {variable_name(tensor): is_moved or is_renamed}
    uses: dict[str, bool] = {}
    if isinstance(tensor, Shifted):
        uses[tensor.variable] = is_moved
    for source in tensor.sources:
        for name, moves in uses_of(source, is_moved or isinstance(tensor, View)).items():
            uses[name] = uses.get(name, False) or moves
    return uses
