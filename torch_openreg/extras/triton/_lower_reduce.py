"""Reductions, scans, and what else combines elements of a tensor with one another."""

from collections.abc import Sequence

from torch_openreg.extras.triton._kernel import Kernel, lowers
from torch_openreg.extras.triton._ttir import Operation, Region
from torch_openreg.extras.triton._values import (
    Array,
    Expression,
    Index,
    Nest,
    Tensor,
    Uniform,
    reads_rows,
    register_type,
)

__all__: list[str] = []

ZERO = Expression("0", 0)
# How many elements of a row are combined with as many others at once.
_LANES = 32


def _combine(kernel: Kernel, nest: Nest, region: Region, arguments: Sequence[str]) -> list[str]:
    """Adds the lines of a region to the innermost loop; returns what it yields."""
    (block,) = region.blocks
    for argument, text in zip(block.arguments, arguments, strict=True):
        kernel.values[argument] = Uniform(argument.type, text)
    with kernel.nested() as inner:
        kernel.block(block, keeps_end=True)
    nest.add(*inner.lines)
    return [kernel.text(one) for one in block.operations[-1].operands]


def _at(index: Index, dimension: int, one: Expression) -> Index:
    return (*index[:dimension], one, *index[dimension + 1 :])


def _elements(nest: Nest, operands: Sequence[Tensor], index: Index) -> list[str]:
    return [nest.element(operand, index).text for operand in operands]


def _innermost(operand: Tensor) -> int:
    """Returns the dimension along which elements lie one after another."""
    wide = [dimension for dimension in operand.order if operand.type.shape[dimension] != 1]
    return wide[-1] if wide else len(operand.type.shape) - 1


@lowers("tt.reduce")
def _reduce(kernel: Kernel, operation: Operation) -> None:
    operands = kernel.operands(operation)
    axis = operation.attributes["axis"]
    slots: list[Tensor] = []
    for result in operation.results:
        slots.append(
            kernel.array(result.type)
            if result.type.is_tensor
            else Uniform(result.type, kernel.variable(result.type))
        )
    if operands[0].type.shape[axis] == 2 and not any(map(reads_rows, operands)):
        _reduce_pairs(kernel, operation.regions[0], operands, axis, slots)
    elif operands[0].type.shape[axis] == 1 or _innermost(operands[0]) == axis:
        _reduce_rows(kernel, operation.regions[0], operands, axis, slots)
    else:
        _reduce_columns(kernel, operation.regions[0], operands, axis, slots)
    kernel.values.update(zip(operation.results, slots, strict=True))


def _slot_text(slot: Tensor, index: Index, axis: int) -> str:
    """Returns the place of a result for an index of the operands."""
    if isinstance(slot, Array):
        return slot.place((*index[:axis], *index[axis + 1 :])).text
    assert isinstance(slot, Uniform)
    return slot.text


def _reduce_pairs(
    kernel: Kernel, region: Region, operands: Sequence[Tensor], axis: int, slots: Sequence[Tensor]
) -> None:
    """Combines one element with another one."""
    shape = operands[0].type.shape
    with kernel.nest() as nest:
        others = [dimension for dimension in operands[0].order if dimension != axis]
        index = nest.loops(shape, others, is_parallel=True, merges=True)
        pair = [_at(index, axis, Expression(str(place), 0)) for place in range(2)]
        values = [text for one in pair for text in _elements(nest, operands, one)]
        results = _combine(kernel, nest, region, values)
        _store_all(nest, [_slot_text(slot, index, axis) for slot in slots], results)


def _reduce_rows(
    kernel: Kernel, region: Region, operands: Sequence[Tensor], axis: int, slots: Sequence[Tensor]
) -> None:
    """Combines lanes of each row in parallel, and the lanes in a tree."""
    shape = operands[0].type.shape
    extent = shape[axis]
    lanes = min(_LANES, extent)
    with kernel.nest() as nest:
        others = [dimension for dimension in operands[0].order if dimension != axis]
        index = nest.loops(shape, others, is_parallel=False)
        depth = nest.depth
        sums = [nest.name("s") for _ in operands]
        for name, operand in zip(sums, operands, strict=True):
            nest.add(f"alignas(64) {register_type(operand.type)} {name}[{lanes}];")
        lane = nest.loop(lanes, True)
        for name, text in zip(sums, _elements(nest, operands, _at(index, axis, lane)), strict=True):
            nest.add(f"{name}[{lane.text}] = {text};")
        nest.close(depth)
        if extent > lanes:
            part = nest.loop(extent // lanes, begin=1)
            lane = nest.loop(lanes, True)
            place = Expression(f"({part.text} * {lanes} + {lane.text})", nest.depth)
            values = _elements(nest, operands, _at(index, axis, place))
            _combine_lanes(kernel, nest, region, sums, lane.text, values)
            nest.close(depth)
        half = lanes // 2
        while half:
            lane = nest.loop(half, True)
            values = [f"{name}[{lane.text} + {half}]" for name in sums]
            _combine_lanes(kernel, nest, region, sums, lane.text, values)
            nest.close(depth)
            half //= 2
        for slot, name in zip(slots, sums, strict=True):
            nest.add(f"{_slot_text(slot, index, axis)} = {name}[0];")


def _combine_lanes(
    kernel: Kernel,
    nest: Nest,
    region: Region,
    sums: Sequence[str],
    lane: str,
    values: Sequence[str],
) -> None:
    results = _combine(kernel, nest, region, [*(f"{name}[{lane}]" for name in sums), *values])
    _store_all(nest, [f"{name}[{lane}]" for name in sums], results)


def _store_all(nest: Nest, places: Sequence[str], texts: Sequence[str]) -> None:
    """Stores values, which may be the old ones of other places."""
    if len(places) > 1:
        names = [nest.name("t") for _ in texts]
        for name, text in zip(names, texts, strict=True):
            nest.add(f"const auto {name} = {text};")
        texts = names
    for place, text in zip(places, texts, strict=True):
        nest.add(f"{place} = {text};")


def _reduce_columns(
    kernel: Kernel, region: Region, operands: Sequence[Tensor], axis: int, slots: Sequence[Tensor]
) -> None:
    """Combines rows with one another."""
    shape = operands[0].type.shape
    inner = _innermost(operands[0])
    with kernel.nest() as nest:
        others = [one for one in operands[0].order if one not in (axis, inner)]
        index = nest.loops(shape, others, is_parallel=False)
        depth = nest.depth
        one = nest.loop(shape[inner], True)
        first = _at(_at(index, inner, one), axis, ZERO)
        for slot, text in zip(slots, _elements(nest, operands, first), strict=True):
            nest.add(f"{_slot_text(slot, first, axis)} = {text};")
        nest.close(depth)
        row = nest.loop(shape[axis], begin=1)
        one = nest.loop(shape[inner], True)
        at = _at(_at(index, inner, one), axis, row)
        places = [_slot_text(slot, at, axis) for slot in slots]
        values = _elements(nest, operands, at)
        _store_all(nest, places, _combine(kernel, nest, region, [*places, *values]))


@lowers("tt.scan")
def _scan(kernel: Kernel, operation: Operation) -> None:
    operands = kernel.operands(operation)
    axis = operation.attributes["axis"]
    is_reverse = operation.attributes["reverse"]
    shape = operands[0].type.shape
    extent = shape[axis]
    region = operation.regions[0]
    arrays = [kernel.array(result.type) for result in operation.results]
    inner = len(shape) - 1
    with kernel.nest() as nest:
        outer = [one for one in range(len(shape)) if one != axis and (one != inner)]
        index = nest.loops(shape, outer, is_parallel=False)
        depth = nest.depth

        def place(step: Expression) -> Expression:
            return Expression(f"({extent - 1} - {step.text})", step.depth) if is_reverse else step

        def row(at: Index, step: Expression) -> Index:
            if inner != axis:
                at = _at(at, inner, nest.loop(shape[inner], True))
            return _at(at, axis, place(step))

        first = row(index, ZERO)
        for array, text in zip(arrays, _elements(nest, operands, first), strict=True):
            nest.add(f"{array.place(first).text} = {text};")
        nest.close(depth)
        if extent > 1:
            step = nest.loop(extent, begin=1)
            at = row(index, step)
            before = _at(at, axis, place(Expression(f"({step.text} - 1)", step.depth)))
            previous = [array.place(before).text for array in arrays]
            values = _elements(nest, operands, at)
            places = [array.place(at).text for array in arrays]
            _store_all(nest, places, _combine(kernel, nest, region, [*previous, *values]))
    kernel.values.update(zip(operation.results, arrays, strict=True))


@lowers("tt.map_elementwise")
def _map(kernel: Kernel, operation: Operation) -> None:
    operands = kernel.operands(operation)
    pack = operation.attributes.get("pack", 1)
    shape = operands[0].type.shape
    arrays = [kernel.array(result.type) for result in operation.results]
    with kernel.nest() as nest:
        last = len(shape) - 1
        index = nest.loops(shape, range(last), is_parallel=False)
        step = nest.loop(shape[last] // pack)
        packed = [
            _at(index, last, Expression(f"({step.text} * {pack} + {one})", nest.depth))
            for one in range(pack)
        ]
        arguments = [
            text for one in operands for at in packed for text in _elements(nest, [one], at)
        ]
        results = _combine(kernel, nest, operation.regions[0], arguments)
        places = [array.place(at).text for array in arrays for at in packed]
        _store_all(nest, places, results)
    kernel.values.update(zip(operation.results, arrays, strict=True))


@lowers("tt.histogram")
def _histogram(kernel: Kernel, operation: Operation) -> None:
    (result,) = operation.results
    source, *masks = kernel.operands(operation)
    array = kernel.array(result.type)
    kernel.fill(array, Uniform(result.type, "0"))
    with kernel.nest() as nest:
        index = nest.loops(source.type.shape, (0,), is_parallel=False)
        bin_index = nest.element(source, index).text
        condition = f"uint64_t({bin_index}) < {result.type.size}u"
        if masks:
            condition = f"{nest.element(masks[0], index).text} && {condition}"
        nest.add(f"if ({condition}) {{ ++{array.name}[{bin_index}]; }}")
    kernel.values[result] = array


@lowers("tt.gather")
def _gather(kernel: Kernel, operation: Operation) -> None:
    (result,) = operation.results
    source, indices = kernel.operands(operation)
    source = kernel.materialize(source)
    axis = operation.attributes["axis"]
    extent = source.type.shape[axis]
    array = kernel.array(result.type)
    location = kernel.location(operation)
    with kernel.nest() as nest:
        shape = result.type.shape
        index = nest.loops(shape, range(len(shape)), is_parallel=False)
        one = nest.element(indices, index)
        nest.add(
            f"if (uint64_t({one.text}) >= {extent}u) {{ fail(program, OPENREG_TRITON_INDEX, "
            f"{location}, -1, uint64_t({one.text}), {extent}u); return; }}"
        )
        at = _at(index, axis, one)
        nest.add(f"{array.place(index).text} = {source.place(at).text};")
    kernel.values[result] = array
