"""Control flow: loops, conditions, calls and branches."""

from collections.abc import Sequence

from torch_openreg.extras.triton._analysis import INLINED
from torch_openreg.extras.triton._kernel import Kernel, lowers
from torch_openreg.extras.triton._ttir import Block, Operation, Region, Value
from torch_openreg.extras.triton._values import (
    Array,
    Shifted,
    Tensor,
    Uniform,
    register_type,
    size_of,
    uses_of,
    variable_name,
)

__all__ = ["lower_blocks"]

_MEMORY = ("tt.load", "tt.atomic_rmw", "tt.atomic_cas")


def _slot(kernel: Kernel, value: Value) -> Tensor:
    """Returns a variable or an array that a value of this type can be stored in."""
    if value.type.is_tensor:
        return kernel.array(value.type)
    return Uniform(value.type, kernel.variable(value.type))


def _assign(kernel: Kernel, slots: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Stores values. None of them sees what another one's slot becomes."""
    pairs = [(slot, value) for slot, value in zip(slots, values, strict=True) if slot is not value]
    names = [variable_name(slot) for slot, _ in pairs]
    computed = []
    for (slot, value), own in zip(pairs, names, strict=True):
        used = uses_of(value)
        if any(name in used and (name != own or used[name]) for name in names):
            value = _copied(kernel, value)
        computed.append((slot, value))
    for slot, value in computed:
        _store(kernel, slot, value)


def _copied(kernel: Kernel, value: Tensor) -> Tensor:
    """Computes a value now; the result does not change with the value's own memory."""
    if isinstance(value, Uniform) and not value.type.is_tensor:
        copy = Uniform(value.type, kernel.variable(value.type))
        kernel.lines.add(f"{copy.text} = {value.text};")
        return copy
    array = kernel.array(value.type)
    kernel.fill(array, value)
    return array


def _store(kernel: Kernel, slot: Tensor, value: Tensor) -> None:
    if isinstance(slot, Array):
        kernel.fill(slot, value)
    else:
        assert isinstance(slot, Uniform)
        assert isinstance(value, Uniform)
        kernel.lines.add(f"{slot.text} = {value.text};")


class _Carried:
    """A value that a loop passes from one iteration to the next.

    Pointers and offsets that only advance stay what they were before the loop, plus a variable.
    """

    def __init__(self, kernel: Kernel, argument: Value, start: Value, passed: Value) -> None:
        self.kernel = kernel
        self.argument = argument
        self.passed = passed
        self.increments = None
        self.value: Tensor
        if argument.type.is_tensor and argument.type.element in ("ptr", "i32", "i64"):
            self.increments = kernel.facts.increments(passed, argument)
        if self.increments is None:
            self.value = _slot(kernel, argument)
            return
        self.variable = kernel.variable(argument.type)
        kernel.lines.add(f"{self.variable} = 0;")
        base = kernel.get(start)
        if base.cost > 3:
            base = kernel.materialize(base)
        self.value = Shifted(base, self.variable)

    def advance(self) -> None:
        """Adds the increments, once the values of the next iteration are known."""
        for increment in self.increments or ():
            uniform = self.kernel.get(increment)
            assert isinstance(uniform, Uniform)
            added = uniform.text
            if self.argument.type.element == "ptr":
                pointee = self.argument.type.pointee
                assert pointee is not None
                added = f"uint64_t(int64_t({added})) * {size_of(pointee)}u"
            self.kernel.lines.add(f"{self.variable} += {added};")


def _carried(
    kernel: Kernel, arguments: Sequence[Value], starts: Sequence[Value], end: Operation
) -> list[_Carried]:
    """Prepares the values that a loop passes on, and stores those of the first iteration."""
    carried = [
        _Carried(kernel, argument, start, passed)
        for argument, start, passed in zip(arguments, starts, end.operands, strict=True)
    ]
    for one, start in zip(carried, starts, strict=True):
        if one.increments is None:
            _store(kernel, one.value, kernel.get(start))
        kernel.values[one.argument] = one.value
        kernel.targets.setdefault(one.passed, []).append((one.argument, one.value))
    return carried


def _pass_on(kernel: Kernel, carried: Sequence[_Carried]) -> None:
    slots = [one for one in carried if one.increments is None]
    _assign(kernel, [one.value for one in slots], [kernel.get(one.passed) for one in slots])
    for one in carried:
        one.advance()


@lowers("scf.for")
def _for(kernel: Kernel, operation: Operation) -> None:
    lower, upper, step = operation.operands[:3]
    (block,) = operation.regions[0].blocks
    induction, *arguments = block.arguments
    end = block.operations[-1]
    carried = _carried(kernel, arguments, operation.operands[3:], end)
    index = kernel.variable(induction.type)
    cpp_type = register_type(induction.type)
    kernel.values[induction] = Uniform(induction.type, index)
    sign = f"Unsigned<{cpp_type}>" if operation.attributes.get("unsignedCmp") else cpp_type
    low, high, by = (kernel.text(one) for one in (lower, upper, step))
    kernel.lines.add(f"for ({index} = {low}; {sign}({index}) < {sign}({high}); {index} += {by}) {{")
    _run_block(kernel, block)
    _pass_on(kernel, carried)
    kernel.lines.add("}")
    for result, one in zip(operation.results, carried, strict=True):
        kernel.values[result] = one.value


def _run_block(kernel: Kernel, block: Block) -> None:
    """Lowers the operations of a block but its end."""
    kernel.block(block, keeps_end=True)


@lowers("scf.if")
def _if(kernel: Kernel, operation: Operation) -> None:
    slots = [_slot(kernel, result) for result in operation.results]
    kernel.lines.add(f"if ({kernel.text(operation.operands[0])}) {{")
    for position, region in enumerate(operation.regions):
        if position == 1:
            kernel.lines.add("} else {")
        for block in region.blocks:
            _run_block(kernel, block)
            values = [kernel.get(one) for one in block.operations[-1].operands]
            _assign(kernel, slots, values)
    kernel.lines.add("}")
    for result, slot in zip(operation.results, slots, strict=True):
        kernel.values[result] = slot


@lowers("scf.while")
def _while(kernel: Kernel, operation: Operation) -> None:
    before, after = (region.blocks[0] for region in operation.regions)
    condition = before.operations[-1]
    carried = [_slot(kernel, argument) for argument in before.arguments]
    _assign(kernel, carried, [kernel.get(one) for one in operation.operands])
    kernel.values.update(zip(before.arguments, carried, strict=True))
    results = [_slot(kernel, result) for result in operation.results]
    waits = any(inner.name in _MEMORY for inner in operation.walk())
    turns, began = kernel.lines.name("turns"), kernel.lines.name("began")
    if waits:
        kernel.may_wait = True
        kernel.declarations.append(f"uint64_t {turns}, {began};")
        kernel.lines.add(f"{turns} = 0;", f"{began} = 0;")
    kernel.lines.add("for (;;) {")
    if waits:
        location = kernel.location(operation)
        kernel.lines.add(f"if (!may_wait_on(program, {location}, {turns}, {began})) {{ return; }}")
    _run_block(kernel, before)
    _assign(kernel, results, [kernel.get(one) for one in condition.operands[1:]])
    kernel.lines.add(f"if (!{kernel.text(condition.operands[0])}) {{ break; }}")
    kernel.values.update(zip(after.arguments, results, strict=True))
    _run_block(kernel, after)
    _assign(kernel, carried, [kernel.get(one) for one in after.operations[-1].operands])
    kernel.lines.add("}")
    kernel.values.update(zip(operation.results, results, strict=True))


@lowers("tt.return")
def _return(kernel: Kernel, operation: Operation) -> None:
    kernel.on_return(operation)


@lowers(INLINED)
def _call(kernel: Kernel, operation: Operation) -> None:
    region = operation.regions[0]
    slots = [_slot(kernel, result) for result in operation.results]
    for argument, operand in zip(region.blocks[0].arguments, operation.operands, strict=True):
        kernel.values[argument] = kernel.get(operand)
    label = kernel.lines.name("returned")
    outer = kernel.on_return
    has_branches = len(region.blocks) > 1

    def on_return(end: Operation) -> None:
        _assign(kernel, slots, [kernel.get(one) for one in end.operands])
        if has_branches:
            kernel.lines.add(f"goto {label};")

    kernel.on_return = on_return
    lower_blocks(kernel, region)
    kernel.on_return = outer
    if has_branches:
        kernel.lines.add(f"{label}:;")
    kernel.values.update(zip(operation.results, slots, strict=True))


def lower_blocks(kernel: Kernel, region: Region) -> None:
    """Lowers the blocks of a function, which branch to one another by labels."""
    outer = kernel.labels
    kernel.labels = {}
    for block in region.blocks[1:]:
        slots = [_slot(kernel, argument) for argument in block.arguments]
        kernel.labels[block.name] = (kernel.lines.name("block"), slots)
        kernel.values.update(zip(block.arguments, slots, strict=True))
    for block in region.blocks:
        if block.name in kernel.labels:
            kernel.lines.add(f"{kernel.labels[block.name][0]}:;")
        # A jump must not pass a definition.
        kernel.lines.add("{")
        kernel.block(block, is_only=len(region.blocks) == 1)
        kernel.lines.add("}")
    kernel.labels = outer


def _jump(kernel: Kernel, name: str, values: Sequence[Value]) -> None:
    label, slots = kernel.labels[name]
    _assign(kernel, slots, [kernel.get(one) for one in values])
    kernel.lines.add(f"goto {label};")


@lowers("cf.br")
def _branch(kernel: Kernel, operation: Operation) -> None:
    _jump(kernel, operation.successors[0], operation.operands)


@lowers("cf.cond_br")
def _branch_if(kernel: Kernel, operation: Operation) -> None:
    condition, *values = operation.operands
    first, second = operation.successors
    count = len(kernel.labels[first][1])
    kernel.lines.add(f"if ({kernel.text(condition)}) {{")
    _jump(kernel, first, values[:count])
    kernel.lines.add("}")
    _jump(kernel, second, values[count:])


@lowers("ub.poison")
def _poison(kernel: Kernel, operation: Operation) -> None:
    (result,) = operation.results
    kernel.values[result] = Uniform(result.type, f"{register_type(result.type)}()")
