"""Lowers a kernel from Triton's intermediate representation to C++."""

# Each registers the operations of a family.
from torch_openreg.extras.triton import (  # noqa: F401
    _lower_arithmetic,
    _lower_debug,
    _lower_dot,
    _lower_math,
    _lower_memory,
    _lower_reduce,
    _lower_shape,
)
from torch_openreg.extras.triton._analysis import inline_calls
from torch_openreg.extras.triton._kernel import Kernel
from torch_openreg.extras.triton._lower_control import lower_blocks
from torch_openreg.extras.triton._lowered import Argument, Lowered, Options
from torch_openreg.extras.triton._ttir import Operation, Value, parse
from torch_openreg.extras.triton._values import Uniform, is_float, register_type

__all__ = ["lower"]


def lower(text: str, options: Options | None = None) -> Lowered:
    """Lowers a kernel.

    Args:
        text: A module in generic form, after Triton's passes that inline functions and rewrite
            block pointers and descriptors to pointers.
        options: What to compile it to.

    Raises:
        TtirError: The text is not in generic form.
        LoweringError: The kernel contains what cannot be compiled for a CPU.
    """
    options = options or Options()
    module = parse(text)
    function = inline_calls(module)
    kernel = Kernel(module, function, options)
    region = function.regions[0]
    parameters = region.blocks[0].arguments
    loads = _load_arguments(kernel, function, parameters)
    lower_blocks(kernel, region)
    arguments = tuple(_argument(kernel, index, one) for index, one in enumerate(parameters))
    return Lowered(
        name=function.attributes["sym_name"],
        source=_source(kernel, loads),
        arguments=arguments,
        locations=tuple(kernel.locations),
        may_wait=kernel.may_wait,
        fuses=options.fuses,
    )


def _load_arguments(kernel: Kernel, function: Operation, parameters: list[Value]) -> list[str]:
    """Gives each parameter a variable; returns the lines that read them from their slots."""
    lines = []
    slot = 0
    for index, parameter in enumerate(parameters):
        name = f"arg{index}"
        try:
            cpp_type = register_type(parameter.type)
        except TypeError as error:
            kernel.refuse(function, str(error))
        if parameter.type.element == "ptr":
            kernel.ranges[index] = len(kernel.ranges)
            text = f"slots[{slot}]"
        elif is_float(parameter.type):
            text = f"{cpp_type}(bits_of<double>(slots[{slot}]))"
        else:
            text = f"{cpp_type}(slots[{slot}])"
        slot += 3 if parameter.type.element == "ptr" else 1
        lines.append(f"const {cpp_type} {name} = {text};")
        kernel.values[parameter] = Uniform(parameter.type, name)
    return lines


def _argument(kernel: Kernel, index: int, parameter: Value) -> Argument:
    name = parameter.name.removeprefix("%")
    pointee = parameter.type.pointee
    if pointee is None:
        kind = "number" if is_float(parameter.type) else "integer"
        return Argument(name, kind, parameter.type.element)
    return Argument(name, "pointer", pointee.element, index in kernel.reads, index in kernel.writes)


_TEMPLATE = """\
#define OPENREG_TRITON_CHECKS {checks:d}
#define OPENREG_TRITON_OBSERVED {observed:d}
#include <torch_openreg/triton/runtime.h>

using namespace openreg_triton;

static void run(const Program& program, const uint64_t* slots, char* arena) {{
{body}
}}

extern "C" __attribute__((visibility("default"))) OpenRegTritonStatus OPENREG_TRITON_ENTRY(
    const OpenRegTritonLaunch* launch, const uint64_t* slots, OpenRegTritonError* error) {{
{ranges}
  return run_grid(launch, slots, error, ranges, arguments, {count}, {size}, run);
}}
"""


def _source(kernel: Kernel, loads: list[str]) -> str:
    slots = []
    slot = 0
    for index in range(len(loads)):
        if index in kernel.ranges:
            slots.append((index, slot))
            slot += 3
        else:
            slot += 1
    ranges = ", ".join(f"{{slots[{place + 1}], slots[{place + 2}]}}" for _, place in slots)
    arguments = ", ".join(str(index) for index, _ in slots)
    return _TEMPLATE.format(
        checks=kernel.options.checks,
        observed=kernel.options.observed,
        body="\n".join([*loads, *kernel.declarations, *kernel.lines.lines]),
        ranges=f"  const Range ranges[] = {{{ranges or '{0, 0}'}}};\n"
        f"  const int32_t arguments[] = {{{arguments or '0'}}};",
        count=len(slots),
        size=max(kernel.arena.size, 64),
    )
