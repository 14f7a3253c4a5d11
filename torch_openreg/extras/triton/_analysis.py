"""Facts about a kernel that its lowering needs in advance: inlining, roots of pointers, uses."""

from collections import defaultdict
from collections.abc import Iterable

from torch_openreg.extras.triton._lowered import LoweringError
from torch_openreg.extras.triton._ttir import Block, Module, Operation, Region, Value

__all__ = ["INLINED", "Facts", "inline_calls", "is_lazy"]

# A call, as an operation with the body of its function: operands are that body's arguments.
INLINED = "inlined"

_LAZY_DIALECTS = ("arith.", "math.")
_LAZY = {
    "tt.addptr",
    "tt.approx_divf",
    "tt.bitcast",
    "tt.broadcast",
    "tt.clampf",
    "tt.expand_dims",
    "tt.extern_elementwise",
    "tt.fp_to_fp",
    "tt.int_to_ptr",
    "tt.mulhiui",
    "tt.precise_divf",
    "tt.precise_sqrt",
    "tt.ptr_to_int",
    "tt.splat",
    "tt.trans",
}
_LOOPS = {"scf.for", "scf.while"}


def is_lazy(operation: Operation) -> bool:
    """Whether the operation's result is a function of its operands' elements."""
    return operation.name.startswith(_LAZY_DIALECTS) or operation.name in _LAZY


def inline_calls(module: Module) -> Operation:
    """Returns the kernel with the bodies of its functions in the places of their calls."""
    return _Inliner(module).operation(module.kernel, {}, ())


class _Inliner:
    def __init__(self, module: Module) -> None:
        self.module = module

    def operation(
        self, operation: Operation, names: dict[Value, Value], active: tuple[str, ...]
    ) -> Operation:
        operands = [names[one] for one in operation.operands]
        regions = operation.regions
        name = operation.name
        if name == "tt.call":
            callee = operation.attributes["callee"].name
            if callee in active or callee not in self.module.functions:
                raise LoweringError(
                    name,
                    f"{callee} calls itself" if callee in active else f"{callee} is not defined",
                    self.module.frames(operation.location),
                )
            name, active = INLINED, (*active, callee)
            regions = self.module.functions[callee].regions
        copies = [self.region(region, names, active) for region in regions]
        results = [self.value(one, names) for one in operation.results]
        return Operation(
            name,
            operands,
            results,
            operation.attributes,
            copies,
            operation.successors,
            operation.location,
        )

    def region(self, region: Region, names: dict[Value, Value], active: tuple[str, ...]) -> Region:
        blocks = []
        for block in region.blocks:
            blocks.append(Block(block.name, [self.value(one, names) for one in block.arguments]))
        for block, copy in zip(region.blocks, blocks, strict=True):
            copy.operations += [self.operation(one, names, active) for one in block.operations]
        return Region(blocks)

    @staticmethod
    def value(value: Value, names: dict[Value, Value]) -> Value:
        copy = Value(value.name, value.type, value.location)
        names[value] = copy
        return copy


class Facts:
    """What is known about the values of a kernel.

    Attributes:
        definitions: The operation of each result.
        roots: The index of the kernel argument from which a pointer is computed, or None if there
            are several or none. Only of pointers.
    """

    def __init__(self, kernel: Operation) -> None:
        self.definitions: dict[Value, Operation] = {}
        self._users: dict[Value, list[Operation]] = defaultdict(list)
        self._depths: dict[Operation, int] = {}
        self._blocks: dict[Operation, Block] = {}
        self._sinks: dict[Value, frozenset[Operation]] = {}
        self._visit(kernel, 0)
        self.roots = _Roots(kernel).roots

    def _visit(self, operation: Operation, depth: int) -> None:
        self._depths[operation] = depth
        for operand in operation.operands:
            self._users[operand].append(operation)
        for result in operation.results:
            self.definitions[result] = operation
        inner = depth + (operation.name in _LOOPS)
        for region in operation.regions:
            for block in region.blocks:
                for one in block.operations:
                    self._blocks[one] = block
                    self._visit(one, inner)

    def users(self, value: Value) -> list[Operation]:
        """Returns the operations that have the value as an operand, once per operand."""
        return self._users[value]

    def depth(self, operation: Operation) -> int:
        """Returns how many loops an operation is in."""
        return self._depths[operation]

    def sinks(self, value: Value) -> frozenset[Operation]:
        """Returns the operations that compute the value's elements if it is lazy."""
        found = self._sinks.get(value)
        if found is None:
            result: set[Operation] = set()
            for user in self._users[value]:
                if is_lazy(user):
                    result |= self.sinks(user.results[0])
                else:
                    result.add(user)
            found = self._sinks[value] = frozenset(result)
        return found

    def block_of(self, operation: Operation) -> Block:
        """Returns the block that an operation is in."""
        return self._blocks[operation]

    def is_needed_deeper(self, value: Value) -> bool:
        """Whether a loop within that of the value computes its elements again and again."""
        depth = self._depths[self.definitions[value]]
        return any(self._depths[sink] > depth for sink in self.sinks(value))

    def is_uniform(self, value: Value) -> bool:
        """Whether all elements of a value are equal, for certain."""
        if not value.type.is_tensor:
            return True
        operation = self.definitions.get(value)
        if operation is None:
            return False
        if operation.name in ("tt.splat", "arith.constant"):
            return True
        return is_lazy(operation) and all(self.is_uniform(one) for one in operation.operands)

    def increments(self, value: Value, start: Value) -> list[Value] | None:
        """Returns what is added to one value to get another, if all of it is uniform; else None."""
        added = []
        while value is not start:
            operation = self.definitions.get(value)
            if operation is None or operation.name not in ("tt.addptr", "arith.addi"):
                return None
            left, right = operation.operands
            if self.is_uniform(right):
                value, one = left, right
            elif operation.name == "arith.addi" and self.is_uniform(left):
                value, one = right, left
            else:
                return None
            added.append(one)
        return added


class _Roots:
    """Finds from which argument each pointer is computed, by iteration until nothing changes."""

    def __init__(self, kernel: Operation) -> None:
        self.roots: dict[Value, int | None] = {}
        entry = kernel.regions[0].blocks[0]
        for index, argument in enumerate(entry.arguments):
            self.roots[argument] = index if argument.type.element == "ptr" else None
        self.is_changed = True
        while self.is_changed:
            self.is_changed = False
            self.blocks(kernel.regions[0].blocks)

    def meet(self, value: Value, sources: Iterable[Value]) -> None:
        """Lowers what is known about a value to what holds for all that it may be."""
        if value.type.element != "ptr":
            return
        for source in sources:
            if source not in self.roots:
                continue  # not reached yet
            root = self.roots[source]
            if value not in self.roots:
                self.roots[value] = root
                self.is_changed = True
            elif self.roots[value] != root and self.roots[value] is not None:
                self.roots[value] = None
                self.is_changed = True

    def unknown(self, value: Value) -> None:
        if value.type.element == "ptr" and self.roots.get(value, 0) is not None:
            self.roots[value] = None
            self.is_changed = True

    def blocks(self, blocks: list[Block]) -> None:
        by_name = {block.name: block for block in blocks}
        for block in blocks:
            for operation in block.operations:
                self.operation(operation)
                self.branches(operation, by_name)

    def branches(self, operation: Operation, by_name: dict[str, Block]) -> None:
        operands = operation.operands[1 if operation.name == "cf.cond_br" else 0 :]
        for successor in operation.successors:
            arguments = by_name[successor].arguments
            for argument, source in zip(arguments, operands, strict=False):
                self.meet(argument, [source])
            operands = operands[len(arguments) :]

    def operation(self, operation: Operation) -> None:
        if operation.regions:
            self.region_operation(operation)
            return
        pointers = [one for one in operation.operands if one.type.element == "ptr"]
        for result in operation.results:
            is_derived = operation.name not in ("tt.load", "tt.int_to_ptr", "tt.atomic_rmw")
            if pointers and is_derived and operation.name != "tt.atomic_cas":
                self.meet(result, pointers)
            else:
                self.unknown(result)

    def region_operation(self, operation: Operation) -> None:
        # Loops pass operands, after their bounds, and what they yield to the next iteration.
        passed = operation.operands[3 if operation.name == "scf.for" else 0 :]
        carried = operation.name in ("scf.for", "scf.while", INLINED)
        ends = [block.operations[-1] for region in operation.regions for block in region.blocks]
        for position, region in enumerate(operation.regions):
            if not region.blocks:
                continue  # no else
            arguments = region.blocks[0].arguments
            if operation.name == "scf.for":
                arguments = arguments[1:]
            if not carried:
                for argument in arguments:
                    self.unknown(argument)
                continue
            sources = passed if position == 0 else ends[0].operands[1:]
            for argument, source in zip(arguments, sources, strict=True):
                self.meet(argument, [source])
            if operation.name in ("scf.for", "scf.while"):
                for argument, source in zip(
                    operation.regions[0].blocks[0].arguments[operation.name == "scf.for" :],
                    ends[-1].operands,
                    strict=True,
                ):
                    self.meet(argument, [source])
        for region in operation.regions:
            self.blocks(region.blocks)
        for end in ends:
            if end.name in ("cf.br", "cf.cond_br"):
                continue
            values = end.operands[1:] if end.name == "scf.condition" else end.operands
            if operation.name == "scf.while" and end.name == "scf.yield":
                continue
            for result, source in zip(operation.results, values, strict=False):
                self.meet(result, [source])
