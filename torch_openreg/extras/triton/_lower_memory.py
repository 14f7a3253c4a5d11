"""Memory: loads, stores and atomic operations.

Note [Rows]
An access goes row by row. If the addresses of a row are consecutive, all of it may be accessed, and
no mask is false, the loop uses memory itself; one comparison has checked it. Else it uses a buffer,
and functions of runtime.h access each element whose mask is true. So no loop has instructions with
masks for memory, which take several times as long on some processors. Addresses that are not known
to be consecutive are computed into a buffer first, and looked at there.
"""

from dataclasses import dataclass

from torch_openreg.extras.triton._kernel import Kernel, lowers
from torch_openreg.extras.triton._ttir import Operation, Type, Value
from torch_openreg.extras.triton._values import (
    Array,
    Expression,
    Index,
    Nest,
    Tensor,
    Uniform,
    format_of,
    register_type,
    size_of,
)

__all__: list[str] = []

ZERO = Expression("0", 0)
_ROW = Expression("row", 0)

_UNSIGNED = {1: "uint8_t", 2: "uint16_t", 4: "uint32_t", 8: "uint64_t"}
_ATOMICS = {
    1: "AtomicAnd",
    2: "AtomicOr",
    3: "AtomicXor",
    4: "AtomicAdd",
    5: "AtomicAdd",
    6: "AtomicMaximum",
    7: "AtomicMinimum",
    8: "AtomicMaximumUnsigned",
    9: "AtomicMinimumUnsigned",
    10: "AtomicExchange",
}


@dataclass
class _Access:
    """One operation on memory.

    Attributes:
        pointer: Its addresses.
        mask: Which elements it concerns; None for all.
        format: How elements lie in memory, a type of C++.
        size: Their size.
        known: The index of the range that addresses have to lie in, or -1.
        location: The index of the operation's place.
    """

    pointer: Tensor
    mask: Tensor | None
    format: str
    size: int
    known: int
    location: int

    @property
    def place(self) -> str:
        """The first arguments of checks, in C++."""
        return f"program, {self.known}, {self.location}"

    @property
    def bits(self) -> str:
        """The type of the bits of an element, in C++."""
        return f"{self.format}::Bits"

    def row_check(self, first: str, extent: int) -> str:
        """Returns the condition under which a row may be accessed as a whole."""
        return f"is_row_legal(program, {self.known}, {first}, {extent * self.size})"


def _pointee(pointer: Value) -> Type:
    pointee = pointer.type.pointee
    assert pointee is not None
    return pointee


def _access(
    kernel: Kernel, operation: Operation, mask: Tensor | None, reads: bool, writes: bool
) -> _Access:
    pointer = operation.operands[0]
    pointee = _pointee(pointer)
    if pointee.is_tensor:
        kernel.refuse(operation, "expected block pointers to be rewritten by Triton's passes")
    root = kernel.facts.roots.get(pointer)
    roots = kernel.ranges if root is None else (root,)
    if reads:
        kernel.reads.update(roots)
    if writes:
        kernel.writes.update(roots)
    known = -1 if root is None else kernel.ranges[root]
    if isinstance(mask, Uniform) and mask.text == "true":
        mask = None
    return _Access(
        kernel.get(pointer),
        mask,
        format_of(pointee),
        size_of(pointee),
        known,
        kernel.location(operation),
    )


def _segments(operation: Operation) -> list[list[Value]]:
    """Returns the operands by parameter, as some are optional."""
    sizes = operation.attributes["operandSegmentSizes"]
    segments, begin = [], 0
    for size in sizes:
        segments.append(operation.operands[begin : begin + size])
        begin += size
    return segments


def _inner_dimension(access: _Access) -> int | None:
    """Returns a dimension along which addresses are consecutive, the last if it is one."""
    shape = access.pointer.type.shape
    for dimension in reversed(range(len(shape))):
        if shape[dimension] != 1 and access.pointer.strides[dimension] == access.size:
            return dimension
    return None


def _order(access: _Access) -> tuple[tuple[int, ...], bool]:
    """Returns the dimensions with that of rows last, and whether rows are consecutive."""
    shape = access.pointer.type.shape
    inner = _inner_dimension(access)
    is_consecutive = inner is not None
    if inner is None:
        wide = [dimension for dimension, extent in enumerate(shape) if extent != 1]
        inner = wide[-1] if wide else len(shape) - 1
    order = (*(one for one in range(len(shape)) if one != inner), inner)
    return order, is_consecutive


def _outer_loops(nest: Nest, access: _Access, order: tuple[int, ...]) -> Index:
    index = [ZERO] * len(order)
    for dimension in order[:-1]:
        index[dimension] = nest.loop(access.pointer.type.shape[dimension])
    return tuple(index)


def _row_buffer(kernel: Kernel, extent: int, cpp_type: str) -> Array:
    """Returns an array for the elements of one row. The type of C++ is that of bits."""
    return kernel.array(Type("i64").with_shape((extent,)), cpp_type=cpp_type)


def _with(index: Index, dimension: int, one: Expression) -> Index:
    return (*index[:dimension], one, *index[dimension + 1 :])


class _Loaded(Tensor):
    """Elements in memory; see Note [Rows]."""

    has_rows = True

    def __init__(
        self, kernel: Kernel, access: _Access, other: Tensor | None, value_type: Type
    ) -> None:
        super().__init__(value_type)
        self.kernel = kernel
        self.access = access
        self.other = other
        self.order, self.is_consecutive = _order(access)
        extent = value_type.shape[self.order[-1]]
        self.buffers: list[Array] = []  # as rows at several indices may be in use at once
        self.masks = None if access.mask is None else _row_buffer(kernel, extent, "bool")
        self.addresses = None if self.is_consecutive else _row_buffer(kernel, extent, "uint64_t")
        self.cost = 3

    @property
    def sources(self) -> tuple[Tensor, ...]:
        return tuple(
            one for one in (self.access.pointer, self.access.mask, self.other) if one is not None
        )

    def element(self, nest: Nest, index: Index) -> Expression:
        inner = self.order[-1]
        outer = _with(index, inner, ZERO)
        # Not by its own identity, which is the key of the element at these indices.
        row = nest.once((id(self.buffers), outer), lambda: self._row(nest, outer))
        return nest.temporary(
            register_type(self.type),
            f"{self.access.format}::decode({row.text}[{index[inner].text}])",
            max(row.depth, index[inner].depth),
        )

    def _row(self, nest: Nest, outer: Index) -> Expression:
        """Makes a row readable; returns a pointer to its elements."""
        depth = max(one.depth for one in outer)
        row = nest.name("p")
        extent = self.type.shape[self.order[-1]]
        self.buffers.append(_row_buffer(self.kernel, extent, _UNSIGNED[self.access.size]))
        buffer = f"reinterpret_cast<{self.access.bits}*>({self.buffers[-1].name})"
        with nest.at(depth):
            nest.add(f"const {self.access.bits}* {row};")
            make_ready = self._consecutive if self.is_consecutive else self._gathered
            make_ready(nest, outer, row, buffer)
        return Expression(row, depth)

    def _consecutive(self, nest: Nest, outer: Index, row: str, buffer: str) -> None:
        access, extent = self.access, self.type.shape[self.order[-1]]
        first = nest.element(access.pointer, outer).text
        condition = access.row_check(first, extent) + _and_full(nest, access, outer, self.order[-1])
        if self.kernel.stored_row is not None:
            stored, size = self.kernel.stored_row
            condition += f" && is_apart<{access.size}, {size}, {extent}>({first}, {stored})"
        nest.add(
            f"if (is_likely({condition})) {{",
            f"{row} = at<const {access.bits}>(program, {first});",
            "} else {",
        )
        self._load_into_buffer(nest, outer, first, buffer)
        nest.add(f"{row} = {buffer};", "}")

    def _gathered(self, nest: Nest, outer: Index, row: str, buffer: str) -> None:
        access, inner = self.access, self.order[-1]
        extent = self.type.shape[inner]
        assert self.addresses is not None
        name = self.addresses.name
        _fill_addresses(nest, access, self.addresses, None, outer, inner)
        row_check = access.row_check(f"{name}[0]", extent) + _and_full(nest, access, outer, inner)
        nest.add(
            f"if (are_consecutive<{access.size}, {extent}>({name}) && {row_check}) {{",
            f"{row} = at<const {access.bits}>(program, {name}[0]);",
            "} else {",
        )
        self._load_into_buffer(nest, outer, name, buffer)
        nest.add(f"{row} = {buffer};", "}")

    def _load_into_buffer(self, nest: Nest, outer: Index, addresses: str, buffer: str) -> None:
        """Loads the elements of a row whose masks are true; gives the others their values."""
        access, inner = self.access, self.order[-1]
        masks = _fill_masks(nest, access, self.masks, outer, inner)
        nest.add(
            f"if (!load_row<{access.bits}>({access.place}, {addresses}, {self.type.shape[inner]}, "
            f"{masks}, {buffer})) {{ return; }}",
        )
        if self.masks is None or self.other is None:
            return  # runtime.h has stored zeros
        with nest.scope():
            depth = nest.depth
            one = nest.loop(self.type.shape[inner], True)
            other = nest.element(self.other, _with(outer, inner, one))
            encoded = f"{access.format}::encode({other.text})"
            element = f"{buffer}[{one.text}]"
            nest.add(f"{element} = {self.masks.name}[{one.text}] ? {element} : {encoded};")
            nest.close(depth)


def _and_full(nest: Nest, access: _Access, outer: Index, inner: int) -> str:
    """Returns the rest of a condition: no mask of a row is false."""
    masks = access.mask
    if masks is None:
        return ""

    def look() -> Expression:
        name = nest.name("missing")
        depth = nest.depth
        nest.add(f"uint32_t {name} = 0;")
        one = nest.loop(masks.type.shape[inner], True)
        mask = nest.element(masks, _with(outer, inner, one))
        nest.add(f"{name} |= {mask.text} ? 0u : 1u;")
        nest.close(depth)
        return Expression(name, depth)

    # With one index too many for an element.
    missing = nest.once((id(masks), (*outer, _ROW)), look)
    return f" && {missing.text} == 0"


def _fill_masks(nest: Nest, access: _Access, masks: Array | None, outer: Index, inner: int) -> str:
    """Stores the masks of a row in their buffer; returns the argument for the functions of rows."""
    if masks is None or access.mask is None:
        return "nullptr"
    with nest.scope():
        depth = nest.depth
        one = nest.loop(access.pointer.type.shape[inner], True)
        mask = nest.element(access.mask, _with(outer, inner, one))
        nest.add(f"{masks.name}[{one.text}] = {mask.text};")
        nest.close(depth)
    return masks.name


def _fill_addresses(
    nest: Nest,
    access: _Access,
    addresses: Array,
    masks: Array | None,
    outer: Index,
    inner: int,
) -> str:
    """Stores the addresses and masks of a row in their buffers; returns the masks' argument."""
    depth = nest.depth
    one = nest.loop(access.pointer.type.shape[inner], True)
    index = _with(outer, inner, one)
    nest.add(f"{addresses.name}[{one.text}] = {nest.element(access.pointer, index).text};")
    if masks is not None and access.mask is not None:
        nest.add(f"{masks.name}[{one.text}] = {nest.element(access.mask, index).text};")
    nest.close(depth)
    return masks.name if masks is not None else "nullptr"


# What may lie between a load and the operation that uses it, if that reads memory in its place:
# operations without regions that change no memory.
_CHANGES = (
    *("tt.store", "tt.atomic_rmw", "tt.atomic_cas", "tt.atomic_load", "tt.atomic_store"),
    *("tt.atomic_poll", "tt.print", "tt.assert"),
)


def _is_safe_to_delay(kernel: Kernel, operation: Operation, loaded: _Loaded) -> bool:
    """Whether a load may happen where its only user is, as memory is still the same there.

    A user that stores compares its row with that of the load; see :func:`is_apart` in runtime.h.
    """
    if loaded.order != tuple(range(len(loaded.order))) or operation.attributes["isVolatile"]:
        return False
    sinks = kernel.facts.sinks(operation.results[0])
    if len(sinks) != 1:
        return False
    (sink,) = sinks
    block = kernel.facts.block_of(operation)
    if kernel.facts.block_of(sink) is not block:
        return False
    if sink.name == "tt.store":
        is_row = sum(extent != 1 for extent in loaded.type.shape) == 1
        if not is_row or not loaded.is_consecutive:
            return False
        # All rows, and no other tensors.
        if sink.operands[0].type.shape != loaded.type.shape:
            return False
    elif sink.name not in ("tt.reduce", "scf.yield"):
        return False
    begin, end = block.operations.index(operation), block.operations.index(sink)
    between = block.operations[begin + 1 : end]
    return not any(one.name in _CHANGES or one.regions for one in between if one is not sink)


@lowers("tt.load")
def _load(kernel: Kernel, operation: Operation) -> None:
    _, masks, others = _segments(operation)
    (result,) = operation.results
    mask = kernel.get(masks[0]) if masks else None
    other = kernel.get(others[0]) if others else None
    access = _access(kernel, operation, mask, reads=True, writes=False)
    if not result.type.is_tensor:
        _load_scalar(kernel, operation, access, other)
        return
    loaded = _Loaded(kernel, access, other, result.type)
    if result.type.size > 1 and _is_safe_to_delay(kernel, operation, loaded):
        kernel.values[result] = loaded
    else:
        kernel.values[result] = kernel.materialize(loaded)


def _load_scalar(
    kernel: Kernel, operation: Operation, access: _Access, other: Tensor | None
) -> None:
    (result,) = operation.results
    variable = kernel.variable(result.type)
    pointer = kernel.text(operation.operands[0])
    kind = "VOLATILE_READ" if operation.attributes["isVolatile"] else "READ"
    # Another program may write it while this one looks at it again and again.
    value = f"{access.format}::decode(*at<const volatile {access.bits}>(program, {pointer}))"
    lines = [
        f"if (!check({access.place}, OPENREG_TRITON_{kind}, {pointer}, {access.size})) "
        "{ return; }",
        f"{variable} = {value};",
    ]
    if access.mask is not None:
        assert isinstance(access.mask, Uniform)
        missing = other.text if isinstance(other, Uniform) else "0"
        lines = [f"if ({access.mask.text}) {{", *lines, "} else {", f"{variable} = {missing};", "}"]
    kernel.lines.add(*lines)
    kernel.values[result] = Uniform(result.type, variable)


@lowers("tt.store")
def _store(kernel: Kernel, operation: Operation) -> None:
    masks = operation.operands[2:]
    mask = kernel.get(masks[0]) if masks else None
    access = _access(kernel, operation, mask, reads=False, writes=True)
    value = kernel.get(operation.operands[1])
    if not value.type.is_tensor:
        _store_scalar(kernel, operation, access)
        return
    order, is_consecutive = _order(access)
    extent = value.type.shape[order[-1]] if order else 1
    row_masks = None if access.mask is None else _row_buffer(kernel, extent, "bool")
    buffer = _row_buffer(kernel, extent, _UNSIGNED[access.size])
    with kernel.nest() as nest:
        outer = _outer_loops(nest, access, order)
        store = _store_consecutive if is_consecutive else _scatter
        store(kernel, nest, access, value, outer, order[-1], row_masks, buffer)


def _store_consecutive(
    kernel: Kernel,
    nest: Nest,
    access: _Access,
    value: Tensor,
    outer: Index,
    inner: int,
    row_masks: Array | None,
    buffer: Array,
) -> None:
    extent = value.type.shape[inner]
    first = nest.element(access.pointer, outer).text
    direct, row = nest.name("is_direct"), nest.name("p")
    of_buffer = f"reinterpret_cast<{access.bits}*>({buffer.name})"
    condition = access.row_check(first, extent) + _and_full(nest, access, outer, inner)
    nest.add(
        f"const bool {direct} = {condition};",
        f"{access.bits}* const {row} = {direct} ? at<{access.bits}>(program, {first}) "
        f": {of_buffer};",
    )
    depth = nest.depth
    kernel.stored_row = (first, access.size)
    one = nest.loop(extent, True)
    index = _with(outer, inner, one)
    encoded = f"{access.format}::encode({nest.element(value, index).text})"
    kernel.stored_row = None
    nest.add(f"{row}[{one.text}] = {encoded};")
    nest.close(depth)
    nest.add(f"if (!is_likely({direct})) {{")
    masks = _fill_masks(nest, access, row_masks, outer, inner)
    nest.add(
        f"if (!store_row<{access.bits}>({access.place}, {first}, {extent}, {masks}, {row})) "
        "{ return; }",
        "}",
    )


def _scatter(
    kernel: Kernel,
    nest: Nest,
    access: _Access,
    value: Tensor,
    outer: Index,
    inner: int,
    row_masks: Array | None,
    buffer: Array,
) -> None:
    extent = value.type.shape[inner]
    addresses = _row_buffer(kernel, extent, "uint64_t")
    depth = nest.depth
    of_buffer = f"reinterpret_cast<{access.bits}*>({buffer.name})"
    one = nest.loop(extent, True)
    element = nest.element(value, _with(outer, inner, one)).text
    nest.add(f"{of_buffer}[{one.text}] = {access.format}::encode({element});")
    nest.close(depth)
    masks = _fill_addresses(nest, access, addresses, row_masks, outer, inner)
    nest.add(
        f"if (!store_row<{access.bits}>({access.place}, {addresses.name}, {extent}, {masks}, "
        f"{of_buffer})) {{ return; }}"
    )


def _store_scalar(kernel: Kernel, operation: Operation, access: _Access) -> None:
    pointer, value = (kernel.text(one) for one in operation.operands[:2])
    lines = [
        f"if (!check({access.place}, OPENREG_TRITON_WRITE, {pointer}, {access.size})) "
        "{ return; }",
        f"*at<volatile {access.bits}>(program, {pointer}) = {access.format}::encode({value});",
    ]
    if access.mask is not None:
        lines = [f"if ({kernel.text(operation.operands[2])}) {{", *lines, "}"]
    kernel.lines.add(*lines)


@lowers("tt.atomic_rmw")
def _atomic_rmw(kernel: Kernel, operation: Operation) -> None:
    kind = _ATOMICS[operation.attributes["atomic_rmw_op"]]
    masks = operation.operands[2:]
    mask = kernel.get(masks[0]) if masks else None
    access = _access(kernel, operation, mask, reads=True, writes=True)
    function = f"atomic_update<{access.format}, {kind}>"
    _atomic(kernel, operation, access, function, [kernel.get(operation.operands[1])])


@lowers("tt.atomic_cas")
def _atomic_cas(kernel: Kernel, operation: Operation) -> None:
    access = _access(kernel, operation, None, reads=True, writes=True)
    operands = [kernel.get(one) for one in operation.operands[1:3]]
    function = f"atomic_compare_exchange<{access.format}>"
    _atomic(kernel, operation, access, function, operands)


@lowers("tt.atomic_load")
def _atomic_load(kernel: Kernel, operation: Operation) -> None:
    masks = operation.operands[1:]
    mask = kernel.get(masks[0]) if masks else None
    access = _access(kernel, operation, mask, reads=True, writes=False)
    _atomic(kernel, operation, access, f"atomic_load<{access.format}>", [])


@lowers("tt.atomic_poll")
def _atomic_poll(kernel: Kernel, operation: Operation) -> None:
    kernel.may_wait = True
    access = _access(kernel, operation, None, reads=True, writes=False)
    operands = [kernel.get(one) for one in operation.operands[1:]]
    if len(operands) == 1:
        operands.append(Uniform(Type("i64"), "UINT64_MAX"))
    _atomic(kernel, operation, access, f"atomic_poll<{access.format}>", operands)


@lowers("tt.atomic_store")
def _atomic_store(kernel: Kernel, operation: Operation) -> None:
    masks = operation.operands[2:]
    mask = kernel.get(masks[0]) if masks else None
    access = _access(kernel, operation, mask, reads=False, writes=True)
    shape = access.pointer.type.shape
    with kernel.nest() as nest:
        index = nest.loops(shape, range(len(shape)), is_parallel=False)
        value = nest.element(kernel.get(operation.operands[1]), index).text
        _atomic_call(nest, access, f"atomic_store<{access.format}>", index, [value])


def _atomic_call(
    nest: Nest, access: _Access, function: str, index: Index, arguments: list[str]
) -> None:
    """Adds the lines of an atomic operation on one element, which may end the program."""
    pointer = nest.element(access.pointer, index).text
    condition = "true" if access.mask is None else nest.element(access.mask, index).text
    call = f"{function}({', '.join([access.place, pointer, *arguments])})"
    nest.add(f"if ({condition} && !{call}) {{ return; }}")


def _atomic(
    kernel: Kernel, operation: Operation, access: _Access, function: str, operands: list[Tensor]
) -> None:
    """Lowers an atomic operation: one element after another."""
    (result,) = operation.results
    cpp_type = register_type(result.type)
    target: Tensor
    if result.type.is_tensor:
        target = kernel.array(result.type)
    else:
        target = Uniform(result.type, kernel.variable(result.type))
    shape = result.type.shape
    with kernel.nest() as nest:
        index = nest.loops(shape, range(len(shape)), is_parallel=False)
        place = target.place(index).text if isinstance(target, Array) else target.text
        old = nest.name("old")
        nest.add(f"{cpp_type} {old} = {cpp_type}();")
        arguments = [nest.element(one, index).text for one in operands]
        _atomic_call(nest, access, function, index, [*arguments, old])
        nest.add(f"{place} = {old};")
    kernel.values[result] = target
