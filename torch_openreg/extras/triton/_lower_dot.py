"""Products of matrices."""

from torch_openreg.extras.triton._kernel import Kernel, lowers
from torch_openreg.extras.triton._lower_arithmetic import rounded
from torch_openreg.extras.triton._ttir import Operation, Type
from torch_openreg.extras.triton._values import (
    Elementwise,
    Tensor,
    is_narrow,
    register_type,
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
    sums = kernel.array(result.type)
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


def _converted(tensor: Tensor, result: Type, cpp_type: str) -> Tensor:
    """Returns a tensor whose elements are of the type of the sums."""
    if register_type(tensor.type) == cpp_type:
        return tensor
    value_type = result.with_shape(tensor.type.shape)
    return Elementwise(value_type, f"{cpp_type}({{}})".format, [tensor], 1)
