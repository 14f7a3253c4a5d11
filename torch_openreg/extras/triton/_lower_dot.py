"""Products of matrices."""

from torch_openreg.extras.triton._kernel import Kernel, lowers
from torch_openreg.extras.triton._lower_arithmetic import rounded
from torch_openreg.extras.triton._ttir import Operation, Type
from torch_openreg.extras.triton._values import (
    Array,
    Elementwise,
    Expression,
    Index,
    Nest,
    Tensor,
    is_narrow,
    register_type,
    uses_of,
)

__all__: list[str] = []


@lowers("tt.dot")
def _dot(kernel: Kernel, operation: Operation) -> None:
    left, right, addend = kernel.operands(operation)
    _multiply(kernel, operation, left, right, addend)


def _multiply(
    kernel: Kernel, operation: Operation, left: Tensor, right: Tensor, addend: Tensor
) -> None:
    (result,) = operation.results
    # Sums of narrow numbers are floats, rounded at the end.
    cpp_type = register_type(result.type)
    factors = [kernel.dense(_converted(one, result.type, cpp_type)) for one in (left, right)]
    target = _target(kernel, operation, addend, factors)
    sums = target or kernel.array(result.type)
    if sums is not addend:
        kernel.fill(sums, addend)
    *batch, rows, columns = result.type.shape
    depth = left.type.shape[-1]
    count = batch[0] if batch else 1
    arguments = ", ".join(
        f"{array.name} + i * {size}"
        for array, size in (
            (factors[0], rows * depth),
            (factors[1], depth * columns),
            (sums, rows * columns),
        )
    )
    kernel.lines.add(
        f"for (long i = 0; i < {count}; ++i) {{",
        f"multiply<{cpp_type}, {rows}, {columns}, {depth}>({arguments});",
        "}",
    )
    if is_narrow(result.type):
        kernel.fill(sums, Elementwise(result.type, lambda a: rounded(result.type, a), [sums], 4))
    kernel.values[result] = sums


def _target(
    kernel: Kernel, operation: Operation, addend: Tensor, factors: list[Array]
) -> Array | None:
    """Returns the array that the sums may be computed in: the one that a loop passes them on to.

    That is so if nothing else needs what the array has before.
    """
    (result,) = operation.results
    targets = kernel.targets.get(result, ())
    if len(targets) != 1:
        return None
    argument, target = targets[0]
    ends = {kernel.facts.block_of(user) for user in kernel.facts.users(result)}
    if ends != {kernel.facts.block_of(operation)} or not isinstance(target, Array):
        return None
    is_free = kernel.facts.sinks(argument) <= {operation}
    uses = uses_of(addend)
    is_in_place = not uses.get(target.name, False)
    is_factor = any(factor.name == target.name for factor in factors)
    return target if is_free and is_in_place and not is_factor else None


# Triton's ScaleDotElemType: four bits, two to a byte. All others have types of their own.
_E2M1 = 4


class _Scaled(Tensor):
    """A factor of a scaled product, as floats.

    Args:
        base: The numbers; those of four bits in pairs, the first in the low bits.
        packed: The dimension along which they are in pairs, or None.
        scale: For each row, or column if it is the right factor, and group of numbers along the
            other dimension, the factor of these; None for 1.
        depth: The dimension along which numbers are grouped.
    """

    def __init__(self, base: Tensor, packed: int | None, scale: Tensor | None, depth: int) -> None:
        shape = list(base.type.shape)
        if packed is not None:
            shape[packed] *= 2
        super().__init__(Type("f32").with_shape(tuple(shape)))
        self.base = base
        self.packed = packed
        self.scale = scale
        self.depth = depth
        self.cost = 10

    @property
    def sources(self) -> tuple[Tensor, ...]:
        return (self.base,) if self.scale is None else (self.base, self.scale)

    def element(self, nest: Nest, index: Index) -> Expression:
        place = list(index)
        if self.packed is not None:
            one = index[self.packed]
            place[self.packed] = Expression(f"({one.text} / 2)", one.depth)
        value = nest.element(self.base, tuple(place))
        text = f"float({value.text})"
        if self.packed is not None:
            text = f"decode_e2m1({value.text} >> (({index[self.packed].text} & 1) * 4))"
        deepest = max(one.depth for one in index)
        if self.scale is not None:
            text = f"{text} * {self._factor(nest, index)}"
        return nest.temporary("float", text, max(deepest, value.depth))

    def _factor(self, nest: Nest, index: Index) -> str:
        assert self.scale is not None
        group = self.type.shape[self.depth] // self.scale.type.shape[-1]
        along = index[self.depth]
        last = Expression(f"({along.text} / {group})", along.depth)
        # Scales have the extent of the product first, also those of the right factor.
        other = index[2 * len(index) - 3 - self.depth]
        factor = nest.element(self.scale, (*index[:-2], other, last)).text
        return f"decode_e8m0({factor})" if self.scale.type.element == "i8" else factor


@lowers("tt.dot_scaled")
def _dot_scaled(kernel: Kernel, operation: Operation) -> None:
    attributes = operation.attributes
    left, right, addend, *scales = kernel.operands(operation)
    has_left, has_right = attributes["operandSegmentSizes"][3:]
    left_scale = scales[0] if has_left else None
    right_scale = scales[-1] if has_right else None
    rank = len(left.type.shape)
    # By default pairs of four bits lie along the dimension that is summed up.
    of_left = rank - 1 if attributes.get("lhs_k_pack", True) else rank - 2
    of_right = rank - 2 if attributes.get("rhs_k_pack", True) else rank - 1
    _multiply(
        kernel,
        operation,
        _Scaled(
            left, of_left if attributes["a_elem_type"] == _E2M1 else None, left_scale, rank - 1
        ),
        _Scaled(
            right, of_right if attributes["b_elem_type"] == _E2M1 else None, right_scale, rank - 2
        ),
        addend,
    )


def _converted(tensor: Tensor, result: Type, cpp_type: str) -> Tensor:
    """Returns a tensor whose elements are of the type of the sums."""
    if register_type(tensor.type) == cpp_type:
        return tensor
    value_type = result.with_shape(tensor.type.shape)
    return Elementwise(value_type, f"{cpp_type}({{}})".format, [tensor], 1)
