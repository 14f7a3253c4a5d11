"""Shapes: ranges, broadcasts, transpositions, and what joins and divides tensors."""

from collections.abc import Callable, Sequence

from torch_openreg.extras.triton._kernel import Kernel, lowers
from torch_openreg.extras.triton._ttir import Operation, Type
from torch_openreg.extras.triton._values import (
    Array,
    Expression,
    Index,
    Range,
    Tensor,
    Uniform,
    View,
    dense_strides,
)

__all__ = ["reshaped"]

ZERO = Expression("0", 0)
_EXPENSIVE = 6  # an element that broadcasting would compute many times


@lowers("tt.make_range")
def _make_range(kernel: Kernel, operation: Operation) -> None:
    (result,) = operation.results
    start = operation.attributes["start"]
    if result.type.size == 1:
        kernel.values[result] = Uniform(result.type, str(start), start)
    else:
        kernel.values[result] = Range(result.type, start)


@lowers("tt.get_program_id", "tt.get_num_programs")
def _program(kernel: Kernel, operation: Operation) -> None:
    axis = operation.attributes["axis"]
    is_id = operation.name == "tt.get_program_id"
    source = f"program.id[{axis}]" if is_id else f"program.state->launch->grid[{axis}]"
    kernel.define_scalar(operation.results[0], f"int32_t({source})")


@lowers("tt.splat", "tt.unsplat")
def _splat(kernel: Kernel, operation: Operation) -> None:
    (source,) = kernel.operands(operation)
    (result,) = operation.results
    if isinstance(source, Uniform):
        kernel.values[result] = Uniform(result.type, source.text, source.constant)
        return
    with kernel.nest() as nest:  # of a tensor of one element
        element = nest.element(source, (ZERO,) * len(source.type.shape))
        variable = kernel.variable(result.type)
        nest.add(f"{variable} = {element.text};")
    kernel.values[result] = Uniform(result.type, variable)


@lowers("tt.expand_dims")
def _expand(kernel: Kernel, operation: Operation) -> None:
    (source,) = kernel.operands(operation)
    axis = operation.attributes["axis"]
    dimensions: list[int | None] = list(range(len(source.type.shape)))
    dimensions.insert(axis, None)
    _view(kernel, operation, source, lambda index: index[:axis] + index[axis + 1 :], dimensions)


@lowers("tt.broadcast")
def _broadcast(kernel: Kernel, operation: Operation) -> None:
    (source,) = kernel.operands(operation)
    (result,) = operation.results
    shape = source.type.shape
    if source.cost >= _EXPENSIVE and not isinstance(source, Uniform):
        source = kernel.materialize(source)
    kept = [extent == new for extent, new in zip(shape, result.type.shape, strict=True)]

    def translate(index: Index) -> Index:
        return tuple(one if keep else ZERO for one, keep in zip(index, kept, strict=True))

    dimensions = [place if keep else None for place, keep in enumerate(kept)]
    _view(kernel, operation, source, translate, dimensions)


@lowers("tt.trans")
def _transpose(kernel: Kernel, operation: Operation) -> None:
    (source,) = kernel.operands(operation)
    order = operation.attributes["order"]

    def translate(index: Index) -> Index:
        moved = [ZERO] * len(order)
        for place, dimension in enumerate(order):
            moved[dimension] = index[place]
        return tuple(moved)

    if isinstance(source, Array):
        (result,) = operation.results
        steps = tuple(source.steps[dimension] for dimension in order)
        where = {dimension: place for place, dimension in enumerate(order)}
        lying = tuple(where[dimension] for dimension in source.order)
        kernel.values[result] = _renamed(source, result.type, steps, lying)
        return
    _view(kernel, operation, source, translate, order)


def _view(
    kernel: Kernel,
    operation: Operation,
    source: Tensor,
    translate: Callable[[Index], Index],
    dimensions: Sequence[int | None],
) -> None:
    (result,) = operation.results
    if isinstance(source, Uniform):
        kernel.values[result] = Uniform(result.type, source.text, source.constant)
    else:
        kernel.define(operation, View(source, result.type, translate, dimensions))


def _renamed(
    array: Array, value_type: Type, steps: tuple[int, ...], order: tuple[int, ...]
) -> Array:
    """Returns an array with the memory of another one."""
    renamed = Array(value_type, array.name, steps, order)
    renamed.owner = array
    return renamed


def reshaped(kernel: Kernel, tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Returns the elements in the order of their indices, with indices of another shape."""
    value_type = tensor.type.with_shape(shape)
    if isinstance(tensor, Uniform):
        return Uniform(value_type, tensor.text, tensor.constant)
    wide = [place for place, extent in enumerate(tensor.type.shape) if extent != 1]
    new_wide = [place for place, extent in enumerate(shape) if extent != 1]
    if [tensor.type.shape[one] for one in wide] == [shape[one] for one in new_wide]:
        # Only dimensions of one element come and go.
        dimensions: list[int | None] = [None] * len(shape)
        for place, source in zip(new_wide, wide, strict=True):
            dimensions[place] = source

        def translate(index: Index) -> Index:
            moved = [ZERO] * len(tensor.type.shape)
            for place, source in zip(new_wide, wide, strict=True):
                moved[source] = index[place]
            return tuple(moved)

        return View(tensor, value_type, translate, dimensions)
    array = kernel.dense(tensor)
    order = tuple(range(len(shape)))
    return _renamed(array, value_type, dense_strides(shape), order)


@lowers("tt.reshape")
def _reshape(kernel: Kernel, operation: Operation) -> None:
    (source,) = kernel.operands(operation)
    (result,) = operation.results
    kernel.values[result] = reshaped(kernel, source, result.type.shape)


@lowers("tt.join")
def _join(kernel: Kernel, operation: Operation) -> None:
    (result,) = operation.results
    array = kernel.array(result.type)
    with kernel.nest() as nest:
        shape = result.type.shape[:-1]
        index = nest.loops(shape, range(len(shape)), is_parallel=True)
        for position, operand in enumerate(kernel.operands(operation)):
            element = nest.element(operand, index)
            place = array.place((*index, Expression(str(position), 0)))
            nest.add(f"{place.text} = {element.text};")
    kernel.values[result] = array


@lowers("tt.split")
def _split(kernel: Kernel, operation: Operation) -> None:
    (source,) = kernel.operands(operation)
    if not isinstance(source, Uniform):
        source = kernel.materialize(source)
    dimensions = range(len(source.type.shape) - 1)
    for position, result in enumerate(operation.results):
        if isinstance(source, Uniform):
            kernel.values[result] = Uniform(result.type, source.text, source.constant)
            continue
        kernel.values[result] = View(source, result.type, _with_last(position), dimensions)


def _with_last(position: int) -> Callable[[Index], Index]:
    last = Expression(str(position), 0)
    return lambda index: (*index, last)


@lowers("tt.cat")
def _concatenate(kernel: Kernel, operation: Operation) -> None:
    (result,) = operation.results
    array = kernel.array(result.type)
    begin = 0
    for operand in kernel.operands(operation):
        shape = operand.type.shape
        with kernel.nest() as nest:
            index = nest.loops(shape, range(len(shape)), is_parallel=True)
            element = nest.element(operand, index)
            first = Expression(f"({index[0].text} + {begin})", index[0].depth)
            nest.add(f"{array.place((first, *index[1:])).text} = {element.text};")
        begin += shape[0]
    kernel.values[result] = array
