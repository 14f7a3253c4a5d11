"""The state of a lowering, and what the families of operations share."""

import bisect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from torch_openreg.extras.triton._analysis import Facts
from torch_openreg.extras.triton._lowered import Location, LoweringError, Options
from torch_openreg.extras.triton._ttir import Block, Module, Operation, Type, Value
from torch_openreg.extras.triton._values import (
    Array,
    Elementwise,
    Lines,
    Nest,
    Tensor,
    Uniform,
    UnsupportedTypeError,
    dense_strides,
    reads_rows,
    register_type,
)

__all__ = ["HANDLERS", "Kernel", "lowers"]

Handler = Callable[["Kernel", Operation], None]
HANDLERS: dict[str, Handler] = {}

# Above this cost, an element is computed once and kept.
_KEPT_COST = 6
_ALIGNMENT = 64  # of arrays: a vector


def lowers(*names: str) -> Callable[[Handler], Handler]:
    """Makes a function the one that lowers operations with these names."""

    def register(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(names, handler))
        return handler

    return register


class Arena:
    """Memory of one program: where arrays lie, while Python refers to their places."""

    def __init__(self) -> None:
        self.size = 0
        self._free: list[tuple[int, int]] = []  # begin and size, sorted

    def allocate(self, size: int) -> "Place":
        """Returns a place for some bytes, which is free again when the object is gone."""
        size = -(-size // _ALIGNMENT) * _ALIGNMENT
        for index, (begin, room) in enumerate(self._free):
            if room >= size:
                self._free[index : index + 1] = [(begin + size, room - size)] if room > size else []
                return Place(self, begin, size)
        begin, self.size = self.size, self.size + size
        return Place(self, begin, size)

    def free(self, begin: int, size: int) -> None:
        """Makes bytes free again."""
        index = bisect.bisect(self._free, (begin, size))
        if index < len(self._free) and self._free[index][0] == begin + size:
            size += self._free.pop(index)[1]
        if index > 0 and sum(self._free[index - 1]) == begin:
            index -= 1
            begin, before = self._free.pop(index)
            size += before
        self._free.insert(index, (begin, size))


class Place:
    """Bytes of an arena."""

    def __init__(self, arena: Arena, begin: int, size: int) -> None:
        self.begin = begin
        self._arena = arena
        self._size = size

    def __del__(self) -> None:
        self._arena.free(self.begin, self._size)


class Kernel:
    """One kernel while it is lowered.

    Attributes:
        lines: The lines of the block that is being lowered.
        declarations: Lines at the top of the function, before all labels.
        reads: The indices of arguments that are read; writes: those that are written.
        may_wait: Whether some loop may wait for memory to change.
    """

    def __init__(self, module: Module, function: Operation, options: Options) -> None:
        self.module = module
        self.options = options
        self.facts = Facts(function)
        self.lines = Lines()
        self.declarations: list[str] = []
        self.locations: list[Location] = []
        self.arena = Arena()
        self.values: dict[Value, Tensor] = {}
        self.reads: set[int] = set()
        self.writes: set[int] = set()
        self.ranges: dict[int, int] = {}  # by the index of the argument
        self.may_wait = False
        # The variables of loops that values are passed on to, by these values.
        self.targets: dict[Value, list[tuple[Value, Tensor]]] = {}
        # While a row is stored: its first address and the size of an element, in C++.
        self.stored_row: tuple[str, int] | None = None
        # What tt.return does here, and the labels of the blocks around.
        self.on_return: Callable[[Operation], None] = lambda operation: self.lines.add("return;")
        self.labels: dict[str, tuple[str, list[Tensor]]] = {}

    # Errors and places

    def refuse(self, operation: Operation, reason: str) -> NoReturn:
        """Raises the error for what cannot be lowered."""
        raise LoweringError(operation.name, reason, self.module.frames(operation.location))

    def location(self, operation: Operation, message: str = "") -> int:
        """Returns the index of an operation's place in the table of locations."""
        location = Location(self.module.frames(operation.location), message)
        if location not in self.locations:
            self.locations.append(location)
        return self.locations.index(location)

    # Values

    def get(self, value: Value) -> Tensor:
        """Returns what a value has been lowered to."""
        return self.values[value]

    def operands(self, operation: Operation) -> list[Tensor]:
        """Returns what the operands have been lowered to."""
        return [self.values[one] for one in operation.operands]

    def text(self, value: Value) -> str:
        """Returns the expression of a scalar."""
        tensor = self.values[value]
        assert isinstance(tensor, Uniform)
        return tensor.text

    def define(self, operation: Operation, tensor: Tensor) -> None:
        """Sets the only result of an operation; see Note [Lazy tensors]."""
        (result,) = operation.results
        if tensor.cost >= _KEPT_COST and not isinstance(tensor, Array):
            is_shared = len(self.facts.sinks(result)) > 1 or self.facts.is_needed_deeper(result)
            if is_shared:
                tensor = self.materialize(tensor)
        self.values[result] = tensor

    def define_scalar(self, value: Value, text: str) -> Uniform:
        """Sets a value whose elements are all equal, by a variable."""
        uniform = Uniform(value.type, self.variable(value.type))
        self.lines.add(f"{uniform.text} = {text};")
        self.values[value] = uniform
        return uniform

    def variable(self, value_type: Type) -> str:
        """Declares a variable for a scalar, for the whole function; returns its name."""
        name = self.lines.name("v")
        self.declarations.append(f"{register_type(value_type)} {name};")
        return name

    def array(
        self, value_type: Type, order: Sequence[int] | None = None, cpp_type: str | None = None
    ) -> Array:
        """Declares an array for a tensor.

        Args:
            value_type: The type of the tensor.
            order: How its dimensions lie, the innermost last.
            cpp_type: The type of the elements, if not that of registers.
        """
        cpp_type = cpp_type or register_type(value_type)
        sizes = {"bool": 1, "float": 4, "double": 8}
        bits = "".join(character for character in cpp_type if character.isdigit())
        size = sizes.get(cpp_type) or int(bits) // 8
        order = tuple(range(len(value_type.shape)) if order is None else order)
        name = self.lines.name("a")
        array = Array(value_type, name, dense_strides(value_type.shape, order), order)
        place = self.arena.allocate(size * value_type.size)
        array.owner = place
        begin = place.begin
        self.declarations.append(
            f"{cpp_type}* const {name} = reinterpret_cast<{cpp_type}*>(arena + {begin});"
        )
        return array

    # Loops over elements

    @contextmanager
    def nest(self) -> Iterator[Nest]:
        """Gives loops, and closes them."""
        nest = Nest(self.lines)
        yield nest
        nest.close()

    def materialize(self, tensor: Tensor) -> Array:
        """Computes all elements, unless they are in an array already."""
        if isinstance(tensor, Array):
            return tensor
        array = self.array(tensor.type, tensor.order)
        self.fill(array, tensor)
        return array

    def dense(self, tensor: Tensor) -> Array:
        """Returns an array whose elements lie in the order of their indices."""
        if isinstance(tensor, Array) and tensor.is_dense:
            return tensor
        array = self.array(tensor.type)
        self.fill(array, tensor)
        return array

    def fill(self, array: Array, tensor: Tensor) -> None:
        """Stores all elements in an array, in the array's order."""
        with self.nest() as nest:
            merges = not reads_rows(tensor)
            index = nest.loops(tensor.type.shape, array.order, is_parallel=True, merges=merges)
            element = nest.element(tensor, index)
            nest.add(f"{array.place(index).text} = {element.text};")

    def elementwise(
        self,
        operation: Operation,
        formula: Callable[..., str],
        cost: int = 1,
        strides: Sequence[int | None] | None = None,
    ) -> Tensor:
        """Defines the result as a function of the operands' elements.

        Args:
            operation: The operation.
            formula: Makes an expression that needs no parentheses, from such.
            cost: About how many instructions the function takes.
            strides: See Tensor; those of uniform operands if it is None.
        """
        operands = self.operands(operation)
        (result,) = operation.results
        if all(isinstance(one, Uniform) for one in operands):
            texts = [one.text for one in operands if isinstance(one, Uniform)]
            return self.define_scalar(result, formula(*texts))
        self.define(operation, Elementwise(result.type, formula, operands, cost, strides))
        return self.values[result]

    # Blocks

    def block(self, block: Block, is_only: bool = True, keeps_end: bool = False) -> None:
        """Lowers the operations of a block.

        Args:
            block: The block.
            is_only: Whether no other block uses its values.
            keeps_end: Whether the caller lowers the last operation.
        """
        remaining = _last_uses(block) if is_only else {}
        for operation in block.operations[: len(block.operations) - keeps_end]:
            self.operation(operation)
            # Arrays that are needed no more give their places to others.
            for value in remaining.get(operation, ()):
                if not isinstance(self.values.get(value), Uniform):
                    self.values.pop(value, None)

    def operation(self, operation: Operation) -> None:
        """Lowers one operation."""
        handler = HANDLERS.get(operation.name)
        if handler is None:
            self.refuse(operation, "this operation is not supported")
        try:
            handler(self, operation)
        except UnsupportedTypeError as error:
            self.refuse(operation, str(error))

    @contextmanager
    def nested(self) -> Iterator[Lines]:
        """Collects lines apart, and gives them."""
        outer = self.lines
        self.lines = Lines(outer.numbers)
        try:
            yield self.lines
        finally:
            self.lines = outer


def _last_uses(block: Block) -> dict[Operation, list[Value]]:
    """Returns the values of a block that no operation after the one uses, in this block."""
    own = {value for operation in block.operations for value in operation.results}
    last: dict[Value, Operation] = {}
    for operation in block.operations:
        for inner in operation.walk():
            for operand in inner.operands:
                last[operand] = operation
    uses: dict[Operation, list[Value]] = {}
    for value, operation in last.items():
        # A terminator may hand values to other blocks, which use them by other names, too.
        if value in own and operation is not block.operations[-1]:
            uses.setdefault(operation, []).append(value)
    return uses
