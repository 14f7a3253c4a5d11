"""Reads inline assembly of NVIDIA's GPUs that computes with floats, as C++.

That is a sequence of instructions without branches: moves, arithmetic of one precision,
approximations, and comparisons into predicates, on which other instructions may depend.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["expression_of"]

# An approximation is exact here.
_FUNCTIONS = {
    "mov": "{0}",
    "neg": "-{0}",
    "abs": "__builtin_fabsf({0})",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "fma": "__builtin_fmaf({0}, {1}, {2})",
    "min": "minimum_number({0}, {1})",
    "max": "maximum_number({0}, {1})",
    "tanh": "__builtin_tanhf({0})",
    "ex2": "exp2({0})",
    "lg2": "__builtin_log2f({0})",
    "rcp": "1.0f / {0}",
    "sqrt": "__builtin_sqrtf({0})",
    "rsqrt": "1.0f / __builtin_sqrtf({0})",
    "sin": "__builtin_sinf({0})",
    "cos": "__builtin_cosf({0})",
}
# All are false of NaN.
_COMPARISONS = {
    **{"lt": "{0} < {1}", "le": "{0} <= {1}", "gt": "{0} > {1}", "ge": "{0} >= {1}"},
    **{"eq": "{0} == {1}", "ne": "{0} < {1} || {0} > {1}"},
}

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_DECLARATION = re.compile(r"\.reg\s+\.(?P<type>pred|f32)\s+(?P<names>\w+(?:\s*,\s*\w+)*)")
_INSTRUCTION = re.compile(
    r"(?:@(?P<negated>!?)(?P<guard>\w+)\s+)?"
    r"(?P<name>[a-z]\w*)(?:\.(?P<comparison>[a-z]+))??(?:\.(?:approx|rn|full|ftz))*\.f32\s+"
    r"(?P<operands>[^,]+(?:,[^,]+)*)"
)
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_HEXADECIMAL = re.compile(r"0[fF]([0-9A-Fa-f]{8})")


def expression_of(text: str, inputs: int) -> str | None:
    """Returns a C++ expression for assembly, with ``{0}`` and so on for its inputs.

    Args:
        text: The assembly. Its result is ``$0``, and its inputs follow; all are floats.
        inputs: How many inputs it has.

    Returns:
        The expression, or None if the assembly is something else.
    """
    try:
        return _Reader(text, inputs).expression
    except _UnknownError:
        return None


class _UnknownError(Exception):
    """The assembly is something else."""


class _Reader:
    """The statements of one piece of assembly."""

    def __init__(self, text: str, inputs: int) -> None:
        self._registers: dict[str, str] = {}  # by name in the assembly, that in C++
        self._predicates: dict[str, str] = {}
        self._assigned: set[str] = set()
        self._inputs = {f"${index + 1}": f"asm_{index}" for index in range(inputs)}
        statements = []
        body = _COMMENT.sub("", text).strip()
        if body.startswith("{") and body.endswith("}"):
            body = body[1:-1]
        for instruction in filter(None, map(str.strip, body.split(";"))):
            declaration = _DECLARATION.fullmatch(instruction)
            if declaration is None:
                statements.append(self._statement(instruction))
                continue
            kind = self._predicates if declaration["type"] == "pred" else self._registers
            for name in re.split(r"\s*,\s*", declaration["names"]):
                kind[name] = f"asm_{name}"
        if "asm_result" not in self._assigned:
            raise _UnknownError
        variables = ["float asm_result = 0;"]
        variables += [f"float asm_{index} = {{{index}}};" for index in range(inputs)]
        variables += [f"float {name} = 0;" for name in self._registers.values()]
        variables += [f"bool {name} = false;" for name in self._predicates.values()]
        # The braces of a format string.
        self.expression = f"({{{{ {' '.join(variables + statements)} asm_result; }}}})"

    def _statement(self, instruction: str) -> str:
        match = _INSTRUCTION.fullmatch(instruction)
        if match is None:
            raise _UnknownError
        target, *sources = (one.strip() for one in match["operands"].split(","))
        if match["name"] == "setp" and match["comparison"] in _COMPARISONS and len(sources) == 2:
            variable = self._of(self._predicates, target)
            left, right = map(self._source, sources)
            value = _COMPARISONS[match["comparison"]].format(left, right)
        elif match["name"] == "selp" and not match["comparison"] and len(sources) == 3:
            variable = self._target(target)
            condition = self._of(self._predicates, sources.pop())
            left, right = map(self._source, sources)
            value = f"{condition} ? {left} : {right}"
        else:
            pattern = _FUNCTIONS.get(match["name"], "")
            count = len(set(re.findall(r"\{\d\}", pattern)))
            if not pattern or match["comparison"] or len(sources) != count:
                raise _UnknownError
            value = pattern.format(*map(self._source, sources))
            variable = self._target(target)
        if match["guard"]:
            guard = self._of(self._predicates, match["guard"])
            value = f"{match['negated']}{guard} ? ({value}) : {variable}"
        return f"{variable} = {value};"

    def _target(self, name: str) -> str:
        if name != "$0":
            return self._of(self._registers, name)
        self._assigned.add("asm_result")
        return "asm_result"

    def _source(self, name: str) -> str:
        if name == "$0":
            return "asm_result"
        if name in self._inputs:
            return self._inputs[name]
        bits = _HEXADECIMAL.fullmatch(name)
        if bits is not None:
            return f"bits_of<float>(0x{bits[1]}u)"
        if _NUMBER.fullmatch(name):
            return f"{float(name)!r}f"
        return self._of(self._registers, name)

    @staticmethod
    def _of(known: Mapping[str, str], name: str) -> str:
        if name not in known:
            raise _UnknownError
        return known[name]
