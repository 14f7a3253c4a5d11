"""CUDA's libdevice: what its functions are in C++."""

import re
from dataclasses import dataclass
from functools import cache

__all__ = ["Function", "find_function"]

_DEAR = 20


@dataclass(frozen=True)
class Function:
    """A function: an expression with ``{0}``, ``{1}`` for its operands, and what it costs."""

    pattern: str
    cost: int


# Functions with the names that they have in C, of floats with the suffix f.
_OF_C = (
    *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "copysign"),
    *("cos", "cosh", "erf", "erfc", "exp10", "expm1", "fabs", "fdim", "floor", "fma", "fmax"),
    *("fmin", "fmod", "hypot", "j0", "j1", "ldexp", "lgamma", "log", "log10", "log1p", "log2"),
    *("logb", "nearbyint", "nextafter", "pow", "remainder", "rint", "round", "sin", "sinh"),
    *("sqrt", "tan", "tanh", "tgamma", "trunc", "y0", "y1", "ilogb"),
)
# Others of both types, by their names without the suffix.
_OTHERS = {
    "exp": "exp({0})",
    "exp2": "exp2({0})",
    "powi": "__builtin_powi{s}({0}, {1})",
    "rsqrt": "({T}(1) / __builtin_sqrt{s}({0}))",
    "rcbrt": "({T}(1) / __builtin_cbrt{s}({0}))",
    "rhypot": "({T}(1) / __builtin_hypot{s}({0}, {1}))",
    "norm3d": "__builtin_sqrt{s}({0} * {0} + {1} * {1} + {2} * {2})",
    "rnorm3d": "({T}(1) / __builtin_sqrt{s}({0} * {0} + {1} * {1} + {2} * {2}))",
    "norm4d": "__builtin_sqrt{s}({0} * {0} + {1} * {1} + {2} * {2} + {3} * {3})",
    "rnorm4d": "({T}(1) / __builtin_sqrt{s}({0} * {0} + {1} * {1} + {2} * {2} + {3} * {3}))",
    "sinpi": "__builtin_sin{s}({0} * {T}(3.14159265358979323846))",
    "cospi": "__builtin_cos{s}({0} * {T}(3.14159265358979323846))",
    "normcdf": "({T}(0.5) * __builtin_erfc{s}(-{0} * {T}(0.70710678118654752440)))",
    "erfcx": "scaled_erfc({0})",
    "erfinv": "inverse_erf({0})",
    "erfcinv": "inverse_erfc({0})",
    "normcdfinv": "({T}(-1.41421356237309504880) * inverse_erfc({T}(2) * {0}))",
    "cyl_bessel_i0": "bessel_i0({0})",
    "cyl_bessel_i1": "bessel_i1({0})",
    "jn": "__builtin_jn{s}({0}, {1})",
    "yn": "__builtin_yn{s}({0}, {1})",
    "scalbn": "__builtin_scalbn{s}({0}, {1})",
    "saturate": "maximum_number(minimum_number({0}, {T}(1)), {T}(0))",
}
# Approximations of floats, named fast_... in CUDA's headers.
_FAST = {
    "fast_cosf": "__builtin_cosf({0})",
    "fast_exp10f": "exp2({0} * 3.32192809488736f)",
    "fast_expf": "exp({0})",
    "fast_fdividef": "({0} / {1})",
    "fast_log10f": "__builtin_log10f({0})",
    "fast_log2f": "__builtin_log2f({0})",
    "fast_logf": "__builtin_logf({0})",
    "fast_powf": "__builtin_powf({0}, {1})",
    "fast_sinf": "__builtin_sinf({0})",
    "fast_tanf": "__builtin_tanf({0})",
    "fast_tanhf": "__builtin_tanhf({0})",
}
_EXACT = {
    "abs": "int32_t({0} < 0 ? -{0} : {0})",
    "llabs": "int64_t({0} < 0 ? -{0} : {0})",
    "brev": "reverse_bits<int32_t>({0})",
    "brevll": "reverse_bits<int64_t>({0})",
    "byte_perm": "permute_bytes({0}, {1}, {2})",
    "clz": "count_leading<int32_t>({0})",
    "clzll": "int32_t(count_leading<int64_t>({0}))",
    "ffs": "int32_t(__builtin_ffs({0}))",
    "ffsll": "int32_t(__builtin_ffsll({0}))",
    "popc": "count_ones<int32_t>({0})",
    "popcll": "int32_t(count_ones<int64_t>({0}))",
    "hadd": "int32_t((int64_t({0}) + {1}) >> 1)",
    "rhadd": "int32_t((int64_t({0}) + {1} + 1) >> 1)",
    "uhadd": "int32_t((uint64_t(uint32_t({0})) + uint32_t({1})) >> 1)",
    "urhadd": "int32_t((uint64_t(uint32_t({0})) + uint32_t({1}) + 1) >> 1)",
    "mul24": "int32_t(({0} << 8 >> 8) * ({1} << 8 >> 8))",
    "umul24": "int32_t(({0} & 0xffffff) * ({1} & 0xffffff))",
    "mulhi": "multiply_high<int32_t>({0}, {1})",
    "umulhi": "multiply_high_unsigned<int32_t>({0}, {1})",
    "mul64hi": "multiply_high<int64_t>({0}, {1})",
    "umul64hi": "multiply_high_unsigned<int64_t>({0}, {1})",
    "sad": "int32_t(({0} > {1} ? {0} - {1} : {1} - {0}) + {2})",
    "usad": "int32_t((uint32_t({0}) > uint32_t({1}) ? {0} - {1} : {1} - {0}) + {2})",
    "isinff": "int32_t(__builtin_fabsf({0}) == __builtin_inff())",
    "isinfd": "int32_t(__builtin_fabs({0}) == __builtin_inf())",
    "isnanf": "int32_t({0} != {0})",
    "isnand": "int32_t({0} != {0})",
    "finitef": "int32_t(__builtin_fabsf({0}) < __builtin_inff())",
    "isfinited": "int32_t(__builtin_fabs({0}) < __builtin_inf())",
    "signbitf": "int32_t(__builtin_signbitf({0}) != 0)",
    "signbitd": "int32_t(__builtin_signbit({0}) != 0)",
    "llrint": "int64_t(__builtin_llrint({0}))",
    "llrintf": "int64_t(__builtin_llrintf({0}))",
    "llround": "int64_t(__builtin_llround({0}))",
    "llroundf": "int64_t(__builtin_llroundf({0}))",
}
_BITS = re.compile(
    r"(?:int|uint|float|double|longlong|ll|ull)_as_(?:int|uint|float|double|longlong)"
)
_AS = {"int": "int32_t", "uint": "int32_t", "float": "float", "double": "double"}
_AS["longlong"] = "int64_t"
# Arithmetic and conversions with a rounding mode: nearest, toward zero, up and down. Only the
# nearest is exact; conversions to integers have all.
_ARITHMETIC = re.compile(r"(?P<type>[df])(?P<name>add|sub|mul|div|sqrt|rcp|ma)_(?P<mode>r[nzud])")
_ARITHMETIC_PATTERNS = {
    "add": "({0} + {1})",
    "sub": "({0} - {1})",
    "mul": "({0} * {1})",
    "div": "({0} / {1})",
    "sqrt": "__builtin_sqrt{s}({0})",
    "rcp": "({T}(1) / {0})",
    "ma": "__builtin_fma{s}({0}, {1}, {2})",
}
_CONVERSION = re.compile(
    r"(?P<source>double|float|int|uint|ll|ull)2(?P<target>double|float|int|uint|ll|ull)"
    r"(?:_(?P<mode>r[nzud]))?"
)
_ROUNDINGS = {"rn": "rint", "rz": "trunc", "ru": "ceil", "rd": "floor"}
_INTEGERS = {"int": "int32_t", "uint": "int32_t", "ll": "int64_t", "ull": "int64_t"}


@cache
def find_function(symbol: str) -> Function | None:
    """Returns a function of libdevice, or None if this module has it not.

    Args:
        symbol: Its name there, such as ``__nv_expf``.
    """
    name = symbol.removeprefix("__nv_")
    if name == symbol:
        return None
    pattern = _EXACT.get(name) or _FAST.get(name) or _of_both_types(name)
    pattern = pattern or _of_bits(name) or _with_rounding(name) or _conversion(name)
    return None if pattern is None else Function(pattern, _DEAR)


def _of_both_types(name: str) -> str | None:
    for base in (name, name.removesuffix("f")):
        # Operands are of the type that the name says.
        if base in _OF_C:
            return f"__builtin_{base}{{s}}({{arguments}})"
        if base in _OTHERS:
            return _OTHERS[base]
    return None


def _of_bits(name: str) -> str | None:
    if not _BITS.fullmatch(name):
        return None
    return f"bits_of<{_AS[name.rsplit('_', 1)[1]]}>({{0}})"


def _with_rounding(name: str) -> str | None:
    match = _ARITHMETIC.fullmatch(name)
    if match is None or match["mode"] != "rn":
        return None
    return _ARITHMETIC_PATTERNS[match["name"]]


def _conversion(name: str) -> str | None:
    match = _CONVERSION.fullmatch(name)
    if match is None:
        return None
    source, target, mode = match["source"], match["target"], match["mode"]
    if target in _INTEGERS:
        if source in _INTEGERS:
            return None
        function = "to_unsigned" if target.startswith("u") else "to_signed"
        rounding = _ROUNDINGS[mode or "rz"]
        return f"{function}<{_INTEGERS[target]}>(__builtin_{rounding}{{s}}({{0}}))"
    if mode not in (None, "rn"):
        return None
    unsigned = f"Unsigned<{_INTEGERS[source]}>({{0}})" if source.startswith("u") else "{0}"
    return f"{target}({unsigned})"
