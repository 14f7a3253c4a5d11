"""Reads Triton's intermediate representation (TTIR) in MLIR's generic form.

The generic form has one grammar for all operations, so this reader knows none of them. A module is
printed so if it does not verify; :func:`print_generic` makes a module so.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

__all__ = [
    "Block",
    "Float",
    "Frame",
    "Module",
    "Operation",
    "Region",
    "Symbol",
    "TtirError",
    "Type",
    "Value",
    "parse",
    "print_generic",
]


class TtirError(ValueError):
    """The text is not TTIR in generic form."""


@dataclass(frozen=True)
class Type:
    """The type of a value: a scalar, a pointer, or a tensor of either.

    Attributes:
        element: ``i32``, ``bf16``, ...; ``ptr`` for pointers; the text of any other type.
        shape: The extents of a tensor; empty for a scalar, None for none.
        pointee: Of a pointer, the type that it points at.
        is_tensor: Whether it is a tensor. One without dimensions occurs.
    """

    element: str
    shape: tuple[int, ...] = ()
    pointee: "Type | None" = None
    is_tensor: bool = False

    @property
    def scalar(self) -> "Type":
        """The type of the elements."""
        return Type(self.element, pointee=self.pointee)

    @property
    def size(self) -> int:
        """The number of elements."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    def with_shape(self, shape: tuple[int, ...]) -> "Type":
        """Returns the type of a tensor of such elements."""
        return Type(self.element, shape, self.pointee, True)

    def __str__(self) -> str:
        element = f"!tt.ptr<{self.pointee}>" if self.element == "ptr" else self.element
        if not self.is_tensor:
            return element
        return f"tensor<{''.join(f'{extent}x' for extent in self.shape)}{element}>"


@dataclass(frozen=True)
class Frame:
    """One place of a source: a file and a line."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Float:
    """A floating-point constant: a decimal number, or the bits of its type in hexadecimal."""

    text: str
    type: Type


@dataclass(frozen=True)
class Symbol:
    """The name of a function."""

    name: str


@dataclass(eq=False)
class Value:
    """A value of the program: the result of an operation, or the argument of a block."""

    name: str
    type: Type
    location: str = "unknown"


@dataclass(eq=False)
class Operation:
    """One operation.

    Attributes:
        name: With its dialect, such as ``arith.addi``.
        location: The text of its location; see :meth:`Module.frames`.
        successors: The names of the blocks that it may go on to, each with arguments among the
            operands: see the operations of the dialect ``cf``.
    """

    name: str
    operands: list[Value]
    results: list[Value]
    attributes: dict[str, Any]
    regions: list["Region"]
    successors: list[str]
    location: str

    def walk(self) -> Iterator["Operation"]:
        """Yields the operation, and those of its regions."""
        yield self
        for region in self.regions:
            for block in region.blocks:
                for operation in block.operations:
                    yield from operation.walk()


@dataclass(eq=False)
class Block:
    """Operations in a row, the last of which ends the block."""

    name: str
    arguments: list[Value]
    operations: list[Operation] = field(default_factory=list)


@dataclass(eq=False)
class Region:
    """The blocks of an operation, the first of which is its entry."""

    blocks: list[Block]


@dataclass
class Module:
    """A module: its functions by name, and what the aliases of locations stand for."""

    functions: dict[str, Operation]
    location_aliases: dict[str, str]

    def frames(self, location: str) -> tuple[Frame, ...]:
        """Returns the places of a location, the innermost first: a function, then its callers."""
        return _Locations(self.location_aliases).frames(location)

    @cached_property
    def kernel(self) -> Operation:
        """The function that is launched."""
        public = [
            function
            for function in self.functions.values()
            if function.attributes.get("sym_visibility") == "public"
        ]
        if len(public) != 1:
            raise TtirError(f"expected one public function, got {len(public)}")
        return public[0]


def print_generic(module: Any, true_attribute: Any) -> str:
    """Returns the generic form of a module. The module cannot be used afterwards.

    Args:
        module: A ``triton._C.libtriton.ir.module``.
        true_attribute: A Boolean attribute of its context, of ``ir.builder.get_bool_attr``.

    Raises:
        TtirError: MLIR has printed something else.
    """
    # An attribute without the prefix of a dialect is invalid on a module.
    module.set_attr("generic", true_attribute)
    text = str(module)
    if '"builtin.module"()' not in text:
        raise TtirError("this version of Triton does not print modules in generic form")
    return text


def parse(text: str) -> Module:
    """Returns the module that a text describes.

    Raises:
        TtirError: The text is something else. The message has the rest of its line.
    """
    return _Parser(text).module()


_SPACE = re.compile(r"(?:\s+|//[^\n]*)*")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_VALUE = re.compile(r"%[\w$.-]+(?:#\d+)?")
_LABEL = re.compile(r"\^[\w$.-]+")
_WORD = re.compile(r"[A-Za-z_][\w.$]*")
_NUMBER = re.compile(r"-?(?:0x[0-9A-Fa-f]+|\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)")
_EXTENT = re.compile(r"(\d+)x")
_COUNT = re.compile(r":(\d+)")
_ALIAS = re.compile(r"^#(loc\d*) = loc\((.*)\)$", re.MULTILINE)
_ESCAPE = re.compile(r"\\([0-9A-Fa-f]{2}|.)")
_OPENING = {"<": ">", "(": ")", "[": "]", "{": "}"}


def _unescaped(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        code = match[1]
        if len(code) == 2:
            return chr(int(code, 16))
        return {"n": "\n", "t": "\t"}.get(code, code)

    escaped = _ESCAPE.sub(character, text)
    # Escapes are the bytes of UTF-8.
    try:
        return escaped.encode("latin-1").decode()
    except UnicodeError:
        return escaped


class _Parser:
    """A position in a text, and methods that read one thing each and move on."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        # The scope of a name is its region; names are unique in a function.
        self.values: dict[str, Value] = {}

    def module(self) -> Module:
        aliases = {match[1]: match[2] for match in _ALIAS.finditer(self.text)}
        self.position = self.text.find('"builtin.module"')
        if self.position < 0:
            raise TtirError("expected a module in generic form")
        module = self.operation()
        functions = {}
        for operation in module.regions[0].blocks[0].operations:
            if operation.name == "tt.func":
                functions[operation.attributes["sym_name"]] = operation
        return Module(functions, aliases)

    # Characters

    def skip(self) -> None:
        match = _SPACE.match(self.text, self.position)
        assert match is not None  # it matches the empty text
        self.position = match.end()

    def error(self, expected: str) -> TtirError:
        end = self.text.find("\n", self.position)
        return TtirError(f"expected {expected}, got {self.text[self.position : end][:80]!r}")

    def peek(self, text: str) -> bool:
        self.skip()
        return self.text.startswith(text, self.position)

    def accept(self, text: str) -> bool:
        if not self.peek(text):
            return False
        self.position += len(text)
        return True

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise self.error(repr(text))

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        self.skip()
        match = pattern.match(self.text, self.position)
        if match is not None:
            self.position = match.end()
        return match

    def required(self, pattern: re.Pattern[str], expected: str) -> str:
        match = self.match(pattern)
        if match is None:
            raise self.error(expected)
        return match[0]

    def listed(self, begin: str, end: str, item: Callable[[], Any]) -> list[Any]:
        """Reads items between two brackets, with commas."""
        self.expect(begin)
        items: list[Any] = []
        while not self.accept(end):
            items.append(item())
            self.accept(",")
        return items

    def balanced(self) -> str:
        """Reads a bracket with all that it contains."""
        start = self.position
        closing = [_OPENING[self.text[start]]]
        self.position += 1
        while closing:
            character = self.text[self.position]
            if character == '"':
                self.required(_STRING, "a string")
                continue
            arrow = self.text.startswith("->", self.position)
            if character in _OPENING:
                closing.append(_OPENING[character])
            elif character == closing[-1]:
                closing.pop()
            self.position += 2 if arrow else 1
        return self.text[start : self.position]

    # Operations

    def operation(self) -> Operation:
        names = self.result_names()
        match = self.match(_STRING)
        if match is None:
            raise self.error("the name of an operation")
        operands = self.listed("(", ")", lambda: self.required(_VALUE, "a value"))
        successors = []
        if self.peek("["):
            successors = self.listed("[", "]", lambda: self.required(_LABEL, "a block"))
        attributes: dict[str, Any] = {}
        if self.accept("<"):
            attributes.update(self.dictionary())
            self.expect(">")
        regions = self.listed("(", ")", self.region) if self.peek("({") else []
        if self.peek("{"):
            attributes.update(self.dictionary())
        self.expect(":")
        self.types()
        self.expect("->")
        types = self.types() if self.peek("(") else [self.type()]
        location = self.location()
        results = [
            self.define(name, result_type, location)
            for name, result_type in zip(names, types, strict=True)
        ]
        return Operation(
            match[1],
            [self.value(name) for name in operands],
            results,
            attributes,
            regions,
            successors,
            location,
        )

    def result_names(self) -> list[str]:
        if not self.peek("%"):
            return []
        name = self.required(_VALUE, "a value")
        count = self.match(_COUNT)
        names = [f"{name}#{index}" for index in range(int(count[1]))] if count else [name]
        self.expect("=")
        return names

    def define(self, name: str, value_type: Type, location: str) -> Value:
        value = Value(name, value_type, location)
        self.values[name] = value
        return value

    def value(self, name: str) -> Value:
        # Blocks may come before those that dominate them, but MLIR prints them in order.
        try:
            return self.values[name]
        except KeyError:
            raise TtirError(f"{name} is used before its definition") from None

    def region(self) -> Region:
        self.expect("{")
        blocks: list[Block] = []
        while not self.accept("}"):
            if self.peek("^"):
                name = self.required(_LABEL, "a block")
                arguments = self.listed("(", ")", self.argument) if self.peek("(") else []
                self.expect(":")
                blocks.append(Block(name, arguments))
            else:
                if not blocks:
                    blocks.append(Block("^entry", []))
                blocks[-1].operations.append(self.operation())
        return Region(blocks)

    def argument(self) -> Value:
        name = self.required(_VALUE, "a value")
        self.expect(":")
        value_type = self.type()
        location = self.location() if self.peek("loc(") else "unknown"
        return self.define(name, value_type, location)

    def location(self) -> str:
        self.expect("loc")
        return self.balanced()[1:-1]

    # Types and attributes

    def types(self) -> list[Type]:
        return self.listed("(", ")", self.type)

    def type(self) -> Type:
        if self.accept("!tt.ptr<"):
            pointee = self.type()
            if self.accept(","):
                self.required(_NUMBER, "an address space")
            self.expect(">")
            return Type("ptr", pointee=pointee)
        if self.accept("tensor<"):
            shape = []
            while (extent := self.match(_EXTENT)) is not None:
                shape.append(int(extent[1]))
            element = self.type()
            if self.accept(","):  # an encoding
                self.skip()
                self.attribute()
            self.expect(">")
            return element.with_shape(tuple(shape))
        start = self.position
        if self.peek("("):
            self.balanced()
            self.expect("->")
            return Type("function", pointee=self.type_of_results())
        self.skip()
        start = self.position
        self.accept("!")
        self.required(_WORD, "a type")
        if self.text.startswith("<", self.position):
            self.balanced()
        return Type(self.text[start : self.position])

    def type_of_results(self) -> Type | None:
        if self.peek("("):
            self.balanced()
            return None
        return self.type()

    def dictionary(self) -> dict[str, Any]:
        return dict(self.listed("{", "}", self.entry))

    def entry(self) -> tuple[str, Any]:
        quoted = self.match(_STRING)
        name = quoted[1] if quoted else self.required(_WORD, "the name of an attribute")
        return name, self.attribute() if self.accept("=") else True

    def attribute(self) -> Any:
        self.skip()
        quoted = self.match(_STRING)
        if quoted:
            value: Any = _unescaped(quoted[1])
            if self.accept(":"):
                self.type()
            return value
        if self.peek("["):
            return self.listed("[", "]", self.attribute)
        if self.peek("{"):
            return self.dictionary()
        for word, constant in (("true", True), ("false", False)):
            if self.accept(word):
                return constant
        if self.accept("@"):
            quoted = self.match(_STRING)
            return Symbol(quoted[1] if quoted else self.required(_WORD, "a symbol"))
        if self.accept("dense<"):
            return self.dense()
        if self.accept("array<"):
            return self.array()
        if self.peek("#"):
            return self.dialect_attribute()
        number = self.match(_NUMBER)
        if number:
            return self.number(number[0])
        return self.type()

    def number(self, text: str) -> int | Float:
        value_type = self.type() if self.accept(":") else Type("i64")
        if value_type.element.startswith(("f", "bf")):
            return Float(text, value_type)
        return int(text, 0)

    def dense(self) -> int | Float | bool | list[Any]:
        if self.peek("["):  # a hint, for each dimension
            values = self.attribute()
            self.expect(">")
            self.expect(":")
            self.type()
            return list(values)
        if self.peek("true") or self.peek("false"):
            text = self.required(_WORD, "a constant")
        else:
            text = self.required(_NUMBER, "one value for all elements")
        self.expect(">")
        self.expect(":")
        value_type = self.type().scalar
        if text in ("true", "false"):
            return text == "true"
        return Float(text, value_type) if value_type.element[0] in "fb" else int(text, 0)

    def array(self) -> list[Any]:
        self.type()
        items: list[Any] = []
        if self.accept(":"):
            while not self.peek(">"):
                items.append(self.attribute())
                self.accept(",")
        self.expect(">")
        return items

    def dialect_attribute(self) -> str:
        start = self.position
        self.expect("#")
        self.required(_WORD, "an attribute")
        if self.text.startswith("<", self.position):
            self.balanced()
        return self.text[start : self.position]


class _Locations:
    """Reads the texts of locations."""

    def __init__(self, aliases: dict[str, str]) -> None:
        self.aliases = aliases

    def frames(self, text: str) -> tuple[Frame, ...]:
        return self.location(_Parser(text))

    def location(self, parser: _Parser) -> tuple[Frame, ...]:
        if parser.accept("#"):
            return self.frames(self.aliases[parser.required(_WORD, "a location")])
        if parser.accept("callsite("):
            inner = self.location(parser)
            parser.expect("at")
            outer = self.location(parser)
            parser.expect(")")
            return inner + outer
        if parser.accept("fused"):
            if parser.peek("<"):
                parser.balanced()
            parts = parser.listed("[", "]", lambda: self.location(parser))
            return next((part for part in parts if part), ())
        quoted = parser.match(_STRING)
        if quoted is None:
            parser.required(_WORD, "a location")  # unknown
            return ()
        if parser.accept("("):
            named = self.location(parser)
            parser.expect(")")
            return named
        if not parser.accept(":"):
            return ()
        line = int(parser.required(_NUMBER, "a line"))
        while parser.accept(":") or parser.accept("to"):
            parser.match(_NUMBER)
        return (Frame(_unescaped(quoted[1]), line),)
