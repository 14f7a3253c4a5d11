"""What kernels say: prints and assertions; and operations that do nothing here."""

from torch_openreg.extras.triton._kernel import Kernel, lowers
from torch_openreg.extras.triton._ttir import Operation, Type
from torch_openreg.extras.triton._values import Nest, is_float

__all__: list[str] = []


@lowers("tt.assert")
def _assert(kernel: Kernel, operation: Operation) -> None:
    (condition,) = kernel.operands(operation)
    location = kernel.location(operation, operation.attributes.get("message", ""))
    with kernel.nest() as nest:
        shape = condition.type.shape
        index = nest.loops(shape, range(len(shape)), is_parallel=False)
        element = nest.element(condition, index).text
        nest.add(
            f"if (!is_likely({element})) {{ fail(program, OPENREG_TRITON_ASSERT, "
            f"{location}, -1, 0, 0); return; }}"
        )


@lowers("tt.print")
def _print(kernel: Kernel, operation: Operation) -> None:
    """Prints as CUDA does: a line per element, with the program and the index."""
    operands = kernel.operands(operation)
    prefix = operation.attributes["prefix"]
    hexadecimal = operation.attributes["hex"]
    signs = operation.attributes.get("isSigned", [1] * len(operands))
    text = kernel.lines.name("text")
    kernel.lines.add("{", f"Text {text}(program);")
    if not operands:
        _add_line(kernel, text, "", prefix, [])
    for position, (operand, is_signed) in enumerate(zip(operands, signs, strict=True)):
        number = f"(operand {position}) " if len(operands) > 1 else ""
        with kernel.nest() as nest:
            shape = operand.type.shape
            index = nest.loops(shape, range(len(shape)), is_parallel=False)
            value = nest.element(operand, index).text
            widths = [len(str(extent - 1)) for extent in shape]
            places = ", ".join(f"%{width}d" for width in widths)
            conversion, argument = _conversion(operand.type, value, hexadecimal, bool(is_signed))
            arguments = [f"int({one.text})" for one in index]
            _add_line(
                nest, text, f"idx ({places})", f"{prefix}{number}", arguments, conversion, argument
            )
    kernel.lines.add("}")


def _add_line(
    target: Kernel | Nest,
    text: str,
    places: str,
    prefix: str,
    arguments: list[str],
    conversion: str = "",
    value: str = "",
) -> None:
    """Adds the statement that prints one line. What is not a format is printed as it is."""
    parts = [
        f'"pid (%u, %u, %u) {places}%s{conversion}\\n"',
        *(f"program.id[{axis}]" for axis in range(3)),
        *arguments,
        quoted(prefix),
        *([value] if value else []),
    ]
    statement = f"{text}.add({', '.join(parts)});"
    if isinstance(target, Nest):
        target.add(statement)
    else:
        target.lines.add(statement)


def _conversion(
    value_type: Type, value: str, is_hexadecimal: bool, is_signed: bool
) -> tuple[str, str]:
    """Returns a conversion of printf and its argument."""
    if value_type.element == "ptr":
        return "%p", f"reinterpret_cast<void*>({value})"
    if is_float(value_type):
        return "%f", f"double({value})"
    is_wide = value_type.element == "i64"
    if is_hexadecimal:
        digits = {"i8": 2, "i16": 4, "i64": 16}.get(value_type.element, 8)
        mask = {"i8": " & 0xff", "i16": " & 0xffff"}.get(value_type.element, "")
        return f"0x%0{digits}{'llx' if is_wide else 'x'}", (
            f"static_cast<unsigned long long>({value})" if is_wide else f"unsigned({value}){mask}"
        )
    if is_wide:
        return (
            ("%lli", f"(long long)({value})")
            if is_signed
            else (
                "%llu",
                f"(unsigned long long)({value})",
            )
        )
    return ("%i", f"int({value})") if is_signed else ("%u", f"unsigned({value})")


def quoted(text: str) -> str:
    """Returns a string of C++."""
    characters = []
    for byte in text.encode():
        character = chr(byte)
        is_plain = 32 <= byte < 127 and character not in '"\\?'
        characters.append(character if is_plain else f"\\{byte:03o}")
    return f'"{"".join(characters)}"'


@lowers(
    *("gpu.barrier", "ttg.barrier", "ttg.local_barrier", "llvm.intr.assume", "ttg.warp_sync"),
    *("tt.grid_dependency_wait", "tt.grid_dependency_launch_dependents"),
)
def _nothing(kernel: Kernel, operation: Operation) -> None:
    """A program is one thread, whose accesses are in order; a launch begins when others ended."""
