"""Arithmetic: the dialect arith, and casts and pointer arithmetic of Triton."""

from collections.abc import Callable, Sequence

from torch_openreg.extras.triton._kernel import Kernel, lowers
from torch_openreg.extras.triton._ttir import Float, Operation, Type
from torch_openreg.extras.triton._values import (
    Elementwise,
    Tensor,
    Uniform,
    format_of,
    is_narrow,
    register_type,
    size_of,
)

__all__ = ["constant_text", "rounded"]

Strides = Sequence[int | None]

_INTEGERS = {
    "arith.addi": "{a} + {b}",
    "arith.subi": "{a} - {b}",
    "arith.muli": "{a} * {b}",
    "arith.andi": "{a} & {b}",
    "arith.ori": "{a} | {b}",
    "arith.xori": "{a} ^ {b}",
    "arith.divsi": "divide<{T}>({a}, {b})",
    "arith.divui": "divide_unsigned<{T}>({a}, {b})",
    "arith.remsi": "remainder<{T}>({a}, {b})",
    "arith.remui": "remainder_unsigned<{T}>({a}, {b})",
    "arith.floordivsi": "divide_floor<{T}>({a}, {b})",
    "arith.ceildivsi": "divide_ceil<{T}>({a}, {b})",
    "arith.shli": "shift_left<{T}>({a}, {b})",
    "arith.shrsi": "shift_right<{T}>({a}, {b})",
    "arith.shrui": "shift_right_unsigned<{T}>({a}, {b})",
    "arith.minsi": "({a} < {b} ? {a} : {b})",
    "arith.maxsi": "({a} > {b} ? {a} : {b})",
    "arith.minui": "(Unsigned<{T}>({a}) < Unsigned<{T}>({b}) ? {a} : {b})",
    "arith.maxui": "(Unsigned<{T}>({a}) > Unsigned<{T}>({b}) ? {a} : {b})",
    "tt.mulhiui": "multiply_high_unsigned<{T}>({a}, {b})",
}
# Of one bit.
_BOOLEANS = {
    "arith.addi": "{a} != {b}",
    "arith.subi": "{a} != {b}",
    "arith.muli": "{a} & {b}",
    "arith.minsi": "{a} | {b}",
    "arith.maxsi": "{a} & {b}",
    "arith.minui": "{a} & {b}",
    "arith.maxui": "{a} | {b}",
}
# Their divisors are mostly constants, which need no guards.
_DIVISIONS = {"arith.divsi": "/", "arith.remsi": "%"}
_UNSIGNED_DIVISIONS = {"arith.divui": "/", "arith.remui": "%"}
_FLOATS = {
    "arith.addf": ("{a} + {b}", 1),
    "arith.subf": ("{a} - {b}", 1),
    "arith.mulf": ("{a} * {b}", 1),
    "arith.divf": ("{a} / {b}", 4),
    "tt.approx_divf": ("{a} / {b}", 4),
    "tt.precise_divf": ("{a} / {b}", 4),
    "arith.remf": ("__builtin_fmod{s}({a}, {b})", 20),
    "arith.maximumf": ("maximum({a}, {b})", 2),
    "arith.minimumf": ("minimum({a}, {b})", 2),
    "arith.maxnumf": ("maximum_number({a}, {b})", 2),
    "arith.minnumf": ("minimum_number({a}, {b})", 2),
}
_INTEGER_PREDICATES = ("==", "!=", "<", "<=", ">", ">=", "<", "<=", ">", ">=")
_FIRST_UNSIGNED = 6
_FLOAT_PREDICATES = (
    *("false", "{a} == {b}", "{a} > {b}", "{a} >= {b}", "{a} < {b}", "{a} <= {b}"),
    *("({a} < {b}) | ({a} > {b})", "({a} == {a}) & ({b} == {b})"),
    *("!(({a} < {b}) | ({a} > {b}))", "!({a} <= {b})", "!({a} < {b})", "!({a} >= {b})"),
    *("!({a} > {b})", "{a} != {b}", "({a} != {a}) | ({b} != {b})", "true"),
)


def rounded(value_type: Type, text: str) -> str:
    """Returns an expression that is rounded to the type if registers are wider."""
    return f"round_to<{format_of(value_type)}>({text})" if is_narrow(value_type) else text


def constant_text(value: int | Float | bool, value_type: Type) -> str:
    """Returns a constant as C++."""
    scalar = value_type.scalar
    if isinstance(value, Float):
        return _float_text(value, scalar)
    if scalar.element == "i1":
        return "true" if value else "false"
    cpp_type = register_type(scalar)
    if scalar.element == "i64":
        return f"int64_t({value & (2**64 - 1):#x}u)" if abs(value) >= 2**31 else f"int64_t({value})"
    bits = 8 * size_of(scalar)
    signed = (value + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)
    return f"{cpp_type}({signed:d})" if signed != -(2**31) else "int32_t(0x80000000u)"


def _float_text(value: Float, scalar: Type) -> str:
    cpp_type = register_type(scalar)
    suffix = "f" if cpp_type == "float" else ""
    if not value.text.startswith("0x"):
        return f"{float(value.text).hex()}{suffix}"
    if is_narrow(scalar):
        return f"{format_of(scalar)}::decode({value.text})"
    return f"bits_of<{cpp_type}>({value.text}{'u' if suffix else 'ull'})"


@lowers("arith.constant")
def _constant(kernel: Kernel, operation: Operation) -> None:
    (result,) = operation.results
    value = operation.attributes["value"]
    if isinstance(value, list):
        kernel.refuse(operation, "expected one value for all elements of a constant")
    constant = value if isinstance(value, int) and not isinstance(value, bool) else None
    text = constant_text(value, result.type)
    kernel.values[result] = Uniform(result.type, text, constant)


def _constant_of(tensor: Tensor) -> int | None:
    return tensor.constant if isinstance(tensor, Uniform) else None


def _combined(
    left: Tensor, right: Tensor, combine: Callable[[int, int], int]
) -> tuple[int | None, ...]:
    return tuple(
        None if a is None or b is None else combine(a, b)
        for a, b in zip(left.strides, right.strides, strict=True)
    )


def _integer_strides(operation: Operation, left: Tensor, right: Tensor) -> Strides | None:
    if operation.name == "arith.addi":
        return _combined(left, right, lambda a, b: a + b)
    if operation.name == "arith.subi":
        return _combined(left, right, lambda a, b: a - b)
    if operation.name == "arith.muli":
        for one, other in ((left, right), (right, left)):
            factor = _constant_of(one)
            if factor is not None:
                return [None if stride is None else stride * factor for stride in other.strides]
    return None


@lowers(*_INTEGERS)
def _integer(kernel: Kernel, operation: Operation) -> None:
    name = operation.name
    left, right = kernel.operands(operation)
    scalar = left.type.scalar
    cpp_type = register_type(scalar)
    pattern = _INTEGERS[name]
    if scalar.element == "i1":
        pattern = _BOOLEANS.get(name, pattern)
    divisor = _constant_of(right)
    if divisor is not None and divisor > 0 and name in _DIVISIONS:
        pattern = f"{{a}} {_DIVISIONS[name]} {{b}}"
    elif divisor is not None and divisor > 0 and name in _UNSIGNED_DIVISIONS:
        pattern = f"Unsigned<{{T}}>({{a}}) {_UNSIGNED_DIVISIONS[name]} Unsigned<{{T}}>({{b}})"
    strides = (
        None
        if isinstance(right, Uniform) and isinstance(left, Uniform)
        else _integer_strides(operation, left, right)
    )
    kernel.elementwise(
        operation,
        lambda a, b: f"{cpp_type}({pattern.format(a=a, b=b, T=cpp_type)})",
        1,
        strides,
    )


@lowers(*_FLOATS)
def _float(kernel: Kernel, operation: Operation) -> None:
    pattern, cost = _FLOATS[operation.name]
    value_type = operation.results[0].type
    suffix = "" if value_type.element == "f64" else "f"
    kernel.elementwise(
        operation,
        lambda a, b: rounded(value_type, f"({pattern.format(a=a, b=b, s=suffix)})"),
        cost + 4 * is_narrow(value_type),
    )


@lowers("arith.negf")
def _negate(kernel: Kernel, operation: Operation) -> None:
    kernel.elementwise(operation, lambda a: f"(-{a})")


@lowers("arith.cmpi")
def _compare_integers(kernel: Kernel, operation: Operation) -> None:
    predicate = operation.attributes["predicate"]
    sign = _INTEGER_PREDICATES[predicate]
    scalar = operation.operands[0].type.scalar
    cpp_type = register_type(scalar)

    def formula(a: str, b: str) -> str:
        if predicate >= _FIRST_UNSIGNED and scalar.element not in ("ptr", "i1"):
            a, b = f"Unsigned<{cpp_type}>({a})", f"Unsigned<{cpp_type}>({b})"
        elif 1 < predicate < _FIRST_UNSIGNED and scalar.element == "i1":
            a, b = b, a  # true is -1
        return f"({a} {sign} {b})"

    kernel.elementwise(operation, formula)


@lowers("arith.cmpf")
def _compare_floats(kernel: Kernel, operation: Operation) -> None:
    pattern = _FLOAT_PREDICATES[operation.attributes["predicate"]]
    kernel.elementwise(operation, lambda a, b: f"({pattern.format(a=a, b=b)})")


@lowers("arith.select")
def _select(kernel: Kernel, operation: Operation) -> None:
    condition, *values = kernel.operands(operation)
    (result,) = operation.results
    if result.type.is_tensor and not condition.type.is_tensor:
        # The condition holds for all elements.
        assert isinstance(condition, Uniform)
        spread = Uniform(Type("i1").with_shape(result.type.shape), condition.text)
        if not all(isinstance(one, Uniform) for one in values):
            formula = "({} ? {} : {})".format
            kernel.define(operation, Elementwise(result.type, formula, (spread, *values), 1))
            return
    kernel.elementwise(operation, lambda c, a, b: f"({c} ? {a} : {b})")


@lowers("arith.extsi", "arith.extui", "arith.trunci", "arith.index_cast", "arith.index_castui")
def _resize(kernel: Kernel, operation: Operation) -> None:
    (source,) = kernel.operands(operation)
    cpp_type = register_type(operation.results[0].type)
    of_source = register_type(source.type)
    is_unsigned = operation.name in ("arith.extui", "arith.index_castui")
    is_bit = source.type.element == "i1"

    def formula(a: str) -> str:
        if is_bit:
            return f"{cpp_type}({a})" if is_unsigned else f"{cpp_type}(-{cpp_type}({a}))"
        if cpp_type == "bool":
            return f"(({a} & 1) != 0)"
        return f"{cpp_type}(Unsigned<{of_source}>({a}))" if is_unsigned else f"{cpp_type}({a})"

    is_linear = not is_bit and cpp_type != "bool"
    kernel.elementwise(operation, formula, 1, source.strides if is_linear else None)


@lowers("arith.sitofp", "arith.uitofp")
def _integer_to_float(kernel: Kernel, operation: Operation) -> None:
    result_type = operation.results[0].type
    source_type = operation.operands[0].type
    cpp_type = register_type(result_type)
    of_source = register_type(source_type)

    def formula(a: str) -> str:
        if source_type.element == "i1":
            value = f"{cpp_type}({a})" if operation.name == "arith.uitofp" else f"-{cpp_type}({a})"
        elif operation.name == "arith.uitofp":
            value = f"{cpp_type}(Unsigned<{of_source}>({a}))"
        else:
            value = f"{cpp_type}({a})"
        return rounded(result_type, value)

    kernel.elementwise(operation, formula)


@lowers("arith.fptosi", "arith.fptoui")
def _float_to_integer(kernel: Kernel, operation: Operation) -> None:
    cpp_type = register_type(operation.results[0].type)
    function = "to_signed" if operation.name == "arith.fptosi" else "to_unsigned"
    if cpp_type == "bool":
        kernel.elementwise(operation, lambda a: f"({a} != 0)")
        return
    kernel.elementwise(operation, lambda a: f"{function}<{cpp_type}>({a})", 3)


@lowers("arith.extf", "arith.truncf", "tt.fp_to_fp")
def _resize_float(kernel: Kernel, operation: Operation) -> None:
    source_type, result_type = operation.operands[0].type, operation.results[0].type
    cpp_type = register_type(result_type)
    toward_zero = operation.attributes.get("rounding") == 0

    def formula(a: str) -> str:
        value = f"{cpp_type}({a})"
        if operation.name == "arith.extf" or not is_narrow(result_type):
            return value
        if toward_zero:
            return f"truncate_to<{format_of(result_type)}>({value})"
        return rounded(result_type, value)

    register_type(source_type)
    kernel.elementwise(operation, formula, 1 + 4 * is_narrow(result_type))


@lowers("arith.bitcast", "tt.bitcast", "tt.int_to_ptr", "tt.ptr_to_int")
def _bitcast(kernel: Kernel, operation: Operation) -> None:
    (source,) = kernel.operands(operation)
    source_type, result_type = source.type.scalar, operation.results[0].type.scalar
    kernel.elementwise(
        operation,
        lambda a: _with_bits(result_type, _bits(source_type, a)),
        1,
        source.strides if result_type.element == source_type.element == "ptr" else None,
    )


def _bits(scalar: Type, text: str) -> str:
    if is_narrow(scalar):
        return f"{format_of(scalar)}::encode({text})"
    return text


def _with_bits(scalar: Type, text: str) -> str:
    """Returns a value of a type that has some bits. Integers have those of their size."""
    if is_narrow(scalar):
        bits = f"{format_of(scalar)}::Bits"
        return f"{format_of(scalar)}::decode(bits_of<{bits}>({text}))"
    return f"bits_of<{register_type(scalar)}>({text})"


@lowers("tt.addptr")
def _advance(kernel: Kernel, operation: Operation) -> None:
    pointer, offset = kernel.operands(operation)
    pointee = pointer.type.pointee
    assert pointee is not None
    size = size_of(pointee)
    strides = [
        None if a is None or b is None else a + size * b
        for a, b in zip(pointer.strides, offset.strides, strict=True)
    ]
    # Offsets are signed. Their product is computed as that of addresses is.
    kernel.elementwise(
        operation, lambda p, i: f"({p} + uint64_t(int64_t({i})) * {size}u)", 1, strides
    )


@lowers("arith.mulsi_extended", "arith.mului_extended")
def _multiply_wide(kernel: Kernel, operation: Operation) -> None:
    cpp_type = register_type(operation.results[0].type)
    high = "multiply_high" if operation.name == "arith.mulsi_extended" else "multiply_high_unsigned"
    formulas = (
        lambda a, b: f"{cpp_type}({a} * {b})",
        lambda a, b: f"{high}<{cpp_type}>({a}, {b})",
    )
    _define_each(kernel, operation, formulas)


@lowers("arith.addui_extended")
def _add_with_carry(kernel: Kernel, operation: Operation) -> None:
    cpp_type = register_type(operation.results[0].type)
    formulas = (
        lambda a, b: f"{cpp_type}({a} + {b})",
        lambda a, b: f"(Unsigned<{cpp_type}>({a} + {b}) < Unsigned<{cpp_type}>({a}))",
    )
    _define_each(kernel, operation, formulas)


def _define_each(
    kernel: Kernel, operation: Operation, formulas: Sequence[Callable[[str, str], str]]
) -> None:
    """Defines the results of an operation that has several."""
    operands = kernel.operands(operation)
    for result, formula in zip(operation.results, formulas, strict=True):
        if all(isinstance(one, Uniform) for one in operands):
            kernel.define_scalar(
                result, formula(*(one.text for one in operands if isinstance(one, Uniform)))
            )
        else:
            kernel.values[result] = Elementwise(result.type, formula, operands, 1)
