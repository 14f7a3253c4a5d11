"""Functions: the dialect math, and those of libdevice."""

import re

from torch_openreg.extras.triton._assembly import expression_of
from torch_openreg.extras.triton._kernel import Kernel, lowers
from torch_openreg.extras.triton._libdevice import Function, find_function
from torch_openreg.extras.triton._lower_arithmetic import rounded
from torch_openreg.extras.triton._ttir import Operation
from torch_openreg.extras.triton._values import is_float, register_type

__all__: list[str] = []

_CHEAP = 2
_DEAR = 20

# Functions of floating-point numbers: those of the compiler, with a suffix for floats, ...
_BUILTINS = {
    "math.absf": ("fabs", 1),
    "math.acos": ("acos", _DEAR),
    "math.acosh": ("acosh", _DEAR),
    "math.asin": ("asin", _DEAR),
    "math.asinh": ("asinh", _DEAR),
    "math.atan": ("atan", _DEAR),
    "math.atan2": ("atan2", _DEAR),
    "math.atanh": ("atanh", _DEAR),
    "math.cbrt": ("cbrt", _DEAR),
    "math.ceil": ("ceil", 1),
    "math.copysign": ("copysign", _CHEAP),
    "math.cos": ("cos", _DEAR),
    "math.cosh": ("cosh", _DEAR),
    "math.erf": ("erf", _DEAR),
    "math.erfc": ("erfc", _DEAR),
    "math.expm1": ("expm1", _DEAR),
    "math.floor": ("floor", 1),
    "math.fma": ("fma", 1),
    "math.log": ("log", _DEAR),
    "math.log10": ("log10", _DEAR),
    "math.log1p": ("log1p", _DEAR),
    "math.log2": ("log2", _DEAR),
    "math.powf": ("pow", _DEAR),
    "math.round": ("round", _CHEAP),
    "math.roundeven": ("rint", 1),
    "math.sin": ("sin", _DEAR),
    "math.sinh": ("sinh", _DEAR),
    "math.sqrt": ("sqrt", 4),
    "tt.precise_sqrt": ("sqrt", 4),
    "math.tan": ("tan", _DEAR),
    "math.tanh": ("tanh", _DEAR),
    "math.trunc": ("trunc", 1),
}
# ... and expressions.
_EXPRESSIONS = {
    "math.exp": ("exp({0})", 12),
    "math.exp2": ("exp2({0})", 12),
    "math.rsqrt": ("({T}(1) / __builtin_sqrt{s}({0}))", 8),
    "math.isnan": ("({0} != {0})", 1),
    "math.isinf": ("(__builtin_fabs{s}({0}) == __builtin_inf{s}())", 1),
    "math.isfinite": ("(__builtin_fabs{s}({0}) < __builtin_inf{s}())", 1),
    "math.absi": ("{T}({0} < 0 ? -{0} : {0})", 1),
    "math.ctlz": ("count_leading<{T}>({0})", 4),
    "math.cttz": ("count_trailing<{T}>({0})", 4),
    "math.ctpop": ("count_ones<{T}>({0})", 4),
    "math.fpowi": ("__builtin_powi{s}({0}, {1})", _DEAR),
}


def _functions() -> dict[str, tuple[str, int]]:
    builtins = {
        name: (f"__builtin_{function}{{s}}({{arguments}})", cost)
        for name, (function, cost) in _BUILTINS.items()
    }
    return builtins | _EXPRESSIONS


_FUNCTIONS = _functions()


@lowers(*_FUNCTIONS)
def _math(kernel: Kernel, operation: Operation) -> None:
    pattern, cost = _FUNCTIONS[operation.name]
    _define(kernel, operation, pattern, cost)


@lowers("tt.clampf")
def _clamp(kernel: Kernel, operation: Operation) -> None:
    # Triton's PropagateNan: NONE is 0, ALL is 65535.
    propagates = operation.attributes.get("propagateNan", 0) != 0
    low = "maximum" if propagates else "maximum_number"
    high = "minimum" if propagates else "minimum_number"
    kernel.elementwise(operation, lambda x, a, b: f"{high}({low}({x}, {a}), {b})", 3)


@lowers("tt.extern_elementwise")
def _extern(kernel: Kernel, operation: Operation) -> None:
    symbol = operation.attributes["symbol"]
    function: Function | None = find_function(symbol)
    if function is None:
        kernel.refuse(operation, f"the function {symbol} is not one that this compiler knows")
    _define(kernel, operation, function.pattern, function.cost)


# What orders launches: those of a stream here begin when the ones before have ended.
_ORDER = re.compile(r"\s*griddepcontrol\.(wait|launch_dependents);\s*(//.*)?")


@lowers("tt.elementwise_inline_asm")
def _assembly(kernel: Kernel, operation: Operation) -> None:
    text = operation.attributes["asm_string"]
    inputs = len(operation.operands)
    expression = expression_of(text, inputs) if _computes_floats(operation) else None
    if expression is not None:
        _define(kernel, operation, expression, _DEAR)
        return
    if _ORDER.fullmatch(text) is not None:
        kernel.define_scalar(operation.results[0], "0")
        return
    first = text.strip().splitlines()[0] if text.strip() else "nothing"
    kernel.refuse(
        operation,
        f"assembly of a GPU cannot run on a CPU ({first}); use functions of triton.language, or "
        "choose another branch where the device is not a GPU",
    )


def _computes_floats(operation: Operation) -> bool:
    values = [*operation.operands, *operation.results]
    return (
        operation.attributes["packed_element"] == 1
        and len(operation.results) == 1
        and all(value.type.scalar.element == "f32" for value in values)
    )


def _define(kernel: Kernel, operation: Operation, pattern: str, cost: int) -> None:
    result_type = operation.results[0].type
    operand_type = operation.operands[0].type if operation.operands else result_type
    cpp_type = register_type(operand_type)
    suffix = "f" if cpp_type == "float" else ""

    def formula(*operands: str) -> str:
        text = pattern.format(*operands, arguments=", ".join(operands), s=suffix, T=cpp_type)
        return rounded(result_type, text) if is_float(result_type) else text

    kernel.elementwise(operation, formula, cost)
