"""Makes Inductor lower graphs on openreg as if they were on the CPU.

See Note [Proxy devices]. :class:`LowerAsCpu` is the device's custom pass, which Inductor runs on
the graph after its own. It renames devices in arguments and in the fake tensors that describe
values, and inserts nodes for CPU tensors that are combined with openreg tensors, and a first node,
:func:`adopt_graph`. Inductor lowers that node first. Its lowering then changes what the pass cannot
access: the inputs of the graph and the constants of the module.
"""

import functools
from pathlib import Path
from typing import Any

import torch
import torch.fx
from torch.utils._pytree import tree_map_only

from torch_openreg import _C, _fake_tensors
from torch_openreg._fake_tensors import on_device
from torch_openreg._version import __version__
from torch_openreg.extras.inductor import _internals
from torch_openreg.extras.inductor._devices import (
    DEVICE_TYPE,
    HOST,
    is_ours,
    is_proxy,
    original,
    proxy_of,
)
from torch_openreg.extras.inductor._internals import FakeTensor, GraphLowering, V, ir
from torch_openreg.extras.inductor._kernels import HEADERS

__all__ = ["LowerAsCpu", "adopt_graph", "copy_from_host", "read_host_scalar"]

aten = torch.ops.aten
prims = torch.ops.prims

_COPIES = {
    aten._to_copy.default,
    aten.copy.default,
    aten.copy_.default,
    prims.device_put.default,
}
# Operators that make tensors of numbers.
_FILLS = {aten.full.default, aten.scalar_tensor.default}
# Operators that take indices on the CPU for a tensor on a device.
_INDEXING = {
    f"aten::{name}" for name, arguments in _C._cpu_tensors().items() if "indices" in arguments
}


# docs: pass
class LowerAsCpu(_internals.CustomGraphModulePass):
    """The custom pass of our device type."""

    def __call__(self, gm: torch.fx.GraphModule) -> None:
        """Retypes a graph and the graphs inside it."""
        if _internals.is_post_grad_pass_of_subgraph():
            return
        fakes = _RetypedFakes()
        devices: dict[torch.device, None] = {}
        for module in gm.modules():
            if isinstance(module, torch.fx.GraphModule):
                _retype_graph(module.graph, fakes, devices)
                module.recompile()
        first = next(iter(gm.graph.nodes))
        with gm.graph.inserting_before(first):
            node = gm.graph.call_function(adopt_graph, tuple(map(str, devices)))
            node.meta["val"] = None
        gm.recompile()

    # docs: end

    def uuid(self) -> Any:
        """Returns the dependencies of a compiled graph that Inductor's own keys do not contain.

        Inductor leaves out the vector instructions and the number of threads for graphs without CPU
        tensors, and the current device, which a device without an index is.
        """
        processor = str(_internals.pick_vec_isa()), torch.get_num_threads()
        return _source_hash(), __version__, *processor, _C._get_device()


@functools.cache
def _source_hash() -> bytes:
    files = [
        *Path(__file__).parent.glob("*.py"),
        *HEADERS,
        Path(_fake_tensors.__file__),
    ]
    return bytes(_internals.get_hash_for_files(tuple(sorted(map(str, files)))))


class _RetypedFakes:
    """Fake tensors on the proxy devices for those of a graph, which may be shared."""

    def __init__(self) -> None:
        # With the originals, so that their identities stay theirs.
        self._known: dict[int, tuple[FakeTensor, FakeTensor]] = {}

    def get(self, fake: FakeTensor) -> FakeTensor:
        device = proxy_of(fake.fake_device)
        if device == fake.fake_device:
            return fake
        known = self._known.get(id(fake))
        if known is None:
            # On the same storage, as passes compare these.
            known = self._known[id(fake)] = (fake, on_device(fake, device))
        return known[1]


def _retype_graph(
    graph: torch.fx.Graph, fakes: _RetypedFakes, devices: dict[torch.device, None]
) -> None:
    def retype_device(argument: Any, output: torch.device | None) -> Any:
        if not isinstance(argument, torch.device):
            return argument
        if is_ours(argument):
            # Without an index it was the current device when the graph was traced.
            known = argument if argument.index is not None or output is None else output
            devices.setdefault(original(proxy_of(known)))
            return proxy_of(known)
        return proxy_of(argument)

    def retype_fake(fake: FakeTensor) -> FakeTensor:
        if is_ours(fake.fake_device):
            devices.setdefault(fake.fake_device)
        return fakes.get(fake)

    for node in list(graph.nodes):
        value = node.meta.get("val")
        output = value.fake_device if isinstance(value, FakeTensor) else None
        retype = functools.partial(
            retype_device, output=output if output is not None and is_ours(output) else None
        )
        node.args = _internals.map_aggregate(node.args, retype)
        node.kwargs = _internals.map_aggregate(node.kwargs, retype)
        for key in ("val", "eager_input_vals"):
            if node.meta.get(key) is not None:
                node.meta[key] = tree_map_only(FakeTensor, retype_fake, node.meta[key])
    scalars = _compute_host_scalars(graph)
    for node in list(graph.nodes):
        device = _device_that_reads(node)
        if device is not None:
            _bring_host_tensors(graph, node, device, scalars)
    for node in dict.fromkeys(node for node, _ in reversed(scalars)):
        if not node.users:
            graph.erase_node(node)


def _device_of(value: Any) -> torch.device | None:
    """The device of a value's first tensor."""
    if isinstance(value, FakeTensor):
        return value.fake_device
    if isinstance(value, (list, tuple)):
        return next((device for device in map(_device_of, value) if device is not None), None)
    return None


def _device_that_reads(node: torch.fx.Node) -> torch.device | None:
    """The proxy of the device on which a node's operator runs."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return None
    device = _device_of(node.meta.get("val"))
    if node.target is aten.copy_.default or node.target is aten.index_put_.default:
        device = _device_of(node.args[0].meta["val"])  # type: ignore[union-attr]
    return device if device is not None and is_proxy(device) else None


def _reads_numbers(node: torch.fx.Node) -> bool:
    """Whether CPU tensors without dimensions are numbers to a node's operator."""
    return (
        isinstance(node.target, torch._ops.OpOverload)
        and node.target.namespace in ("aten", "prims")
        and node.target not in _COPIES
    )


# The nodes that compute the same numbers on a device.
_Scalars = dict[tuple[torch.fx.Node, torch.device], torch.fx.Node]


def _compute_host_scalars(graph: torch.fx.Graph) -> _Scalars:
    """Computes on our devices what operators there read of CPU scalars.

    A Python float is a CPU scalar, and so are the results of computations with it. The CPU's
    kernels include these computations; the kernels here have to be the same.
    """
    readers: dict[torch.fx.Node, dict[torch.device, None]] = {}
    for node in reversed(graph.nodes):
        if not _computes_host_scalar(node):
            continue
        devices: dict[torch.device, None] = {}
        for user in node.users:
            device = _device_that_reads(user)
            if user in readers:
                devices.update(readers[user])
            elif device is not None and _reads_numbers(user):
                devices[device] = None
        if devices:
            readers[node] = devices
    computed: _Scalars = {}
    for node in reversed(readers):
        for device in readers[node]:
            with graph.inserting_before(node):
                computed[node, device] = _computed_on(device, graph, node, computed)
    return computed


def _computes_host_scalar(node: torch.fx.Node) -> bool:
    """Whether a node computes a CPU scalar of others, in a way that can be part of a kernel."""
    if not _reads_numbers(node):
        return False
    operator: Any = node.target
    if node.target not in _FILLS and torch.Tag.pointwise not in operator.tags:
        return False
    if operator._schema.is_mutable or torch.Tag.nondeterministic_seeded in operator.tags:
        return False
    if operator not in _internals.lowerings or operator in _internals.fallbacks:
        return False
    if _internals.fallback_node_due_to_unsupported_type(node):
        return False
    values = [one.meta.get("val") for one in (node, *node.all_input_nodes)]
    return all(
        value.fake_device == HOST and value.dim() == 0
        for value in values
        if isinstance(value, FakeTensor)
    )


def _computed_on(
    device: torch.device, graph: torch.fx.Graph, node: torch.fx.Node, computed: _Scalars
) -> torch.fx.Node:
    def bring(argument: Any) -> Any:
        if argument == HOST:
            return device
        if not isinstance(argument, torch.fx.Node) or argument.meta.get("val") is None:
            return argument
        if (argument, device) in computed:
            return computed[argument, device]
        return _brought(graph, read_host_scalar, argument, device)

    args = _internals.map_aggregate(node.args, bring)
    kwargs = _internals.map_aggregate(node.kwargs, bring)
    copy = graph.call_function(node.target, args, kwargs)  # type: ignore[arg-type]
    copy.meta = {**node.meta, "val": on_device(node.meta["val"], device)}
    return copy


def _brought(
    graph: torch.fx.Graph, function: Any, argument: torch.fx.Node, device: torch.device
) -> torch.fx.Node:
    """A node that brings a CPU tensor to a device."""
    node = graph.call_function(function, (argument, device))
    node.meta["val"] = on_device(argument.meta["val"], device)
    return node


def _bring_host_tensors(
    graph: torch.fx.Graph, node: torch.fx.Node, device: torch.device, scalars: _Scalars
) -> None:
    """Puts a node before each CPU tensor that an operator on our device reads."""
    operator: Any = node.target
    is_copy = operator in _COPIES
    is_indexing = operator._schema.name in _INDEXING
    brought: dict[torch.fx.Node, torch.fx.Node] = {}

    def bring(argument: Any) -> Any:
        if not isinstance(argument, torch.fx.Node):
            return argument
        value = argument.meta.get("val")
        if not isinstance(value, FakeTensor) or value.fake_device != HOST:
            return argument
        if is_copy or (is_indexing and value.dim() > 0):
            target = copy_from_host
        elif value.dim() == 0 and _reads_numbers(node):
            if (argument, device) in scalars:
                return scalars[argument, device]
            target = read_host_scalar
        else:
            return argument
        if argument not in brought:
            with graph.inserting_before(node):
                brought[argument] = _brought(graph, target, argument, device)
        return brought[argument]

    node.args = _internals.map_aggregate(node.args, bring)
    node.kwargs = _internals.map_aggregate(node.kwargs, bring)


def original_in_lowering(device: torch.device) -> torch.device:
    """Returns the original of a proxy while a graph that has it is lowered, or the device."""
    graph = V.graph
    if isinstance(graph, GraphLowering) and DEVICE_TYPE in graph.device_types:
        return original(device)
    return device


@_internals.has_side_effect
@_internals.lowers_itself
def adopt_graph(*devices: str) -> None:
    """The first node of a graph; see the top of this file."""
    graph = V.graph
    if not isinstance(graph, GraphLowering):
        return  # a pass traces the graph anew
    _adopt(graph, [torch.device(device) for device in devices])
    graph.args_iter = map(_retype_input, graph.args_iter)


def _retype_input(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or proxy_of(value.device) == value.device:
        return value
    if not isinstance(value, FakeTensor):
        value = V.fake_mode.from_tensor(value)
    return _RetypedFakes().get(value)


def _adopt(graph: GraphLowering, devices: list[torch.device]) -> None:
    """Makes the lowering of a graph, and of graphs inside it, use the proxy devices."""
    for device in devices:
        graph.add_device_info(device)  # so that this package's wrapper is used
    get_attr = graph.get_attr
    add_tensor_constant = graph.add_tensor_constant
    constant_name = graph.constant_name
    make_subgraph = graph.make_subgraph
    moved: dict[tuple[str, torch.device], str] = {}

    def get_retyped_attr(target: Any, args: Any, kwargs: Any) -> Any:
        return _retype_constant(get_attr(target, args, kwargs))

    def add_retyped_constant(data: torch.Tensor, name: str | None = None) -> Any:
        return _retype_constant(add_tensor_constant(data, name))

    def name_moved_constant(name: str, device: torch.device | None) -> str:
        if device is None or not is_proxy(device):
            return str(constant_name(name, device))
        if (name, device) not in moved:
            moved[name, device] = str(constant_name(name, original(device)))
        return moved[name, device]

    def make_adopted_subgraph(*args: Any, **kwargs: Any) -> GraphLowering:
        subgraph = make_subgraph(*args, **kwargs)
        _adopt(subgraph, devices)
        return subgraph

    changed: Any = graph
    changed.get_attr = get_retyped_attr
    changed.add_tensor_constant = add_retyped_constant
    changed.constant_name = name_moved_constant
    changed.make_subgraph = make_adopted_subgraph


def _retype_constant(value: Any, device: torch.device | None = None) -> Any:
    """The same constant on the proxy of its device, or on the given device."""
    if not isinstance(value, (ir.TensorBox, ir.StorageBox, ir.Constant, ir.ConstantBuffer)):
        return value
    own = value.get_device()
    if own is None or (device is None and not is_ours(own)):
        return value
    target = device or proxy_of(own)
    inner: Any = value
    while isinstance(inner, (ir.TensorBox, ir.StorageBox)):
        inner = inner.data
    if isinstance(inner, ir.Constant):
        return ir.Constant(value=inner.value, dtype=inner.dtype, device=target)
    if isinstance(inner, ir.ConstantBuffer):
        layout = inner.get_layout()
        return ir.TensorBox.create(
            ir.ConstantBuffer(
                name=inner.get_name(),
                layout=ir.FixedLayout(
                    target, layout.dtype, layout.size, layout.stride, layout.offset
                ),
            )
        )
    assert isinstance(inner, ir.Pointwise), type(inner)
    return ir.Pointwise.create(
        device=target, dtype=inner.dtype, inner_fn=inner.inner_fn, ranges=inner.ranges
    )


@_internals.lowers_itself
def copy_from_host(tensor: Any, device: torch.device) -> Any:
    """A CPU tensor, copied to the device. A constant is copied when it is compiled."""
    if isinstance(tensor, torch.Tensor):
        return tensor  # a pass traces the graph anew
    copied = ir.TensorBox.create(ir.DeviceCopy.create(tensor, device, False))
    if copied.get_device() != device:
        return _retype_constant(copied, device)
    return copied


@_internals.lowers_itself
def read_host_scalar(tensor: Any, device: torch.device) -> Any:
    """A CPU tensor without dimensions, whose value is passed to a kernel on the device."""
    if isinstance(tensor, torch.Tensor):
        return tensor  # a pass traces the graph anew
    inner = tensor
    while isinstance(inner, (ir.TensorBox, ir.StorageBox)):
        inner = inner.data
    if isinstance(inner, ir.Constant):
        return ir.Pointwise.create(
            device=device, dtype=inner.dtype, inner_fn=inner.make_loader(), ranges=[]
        )
    if isinstance(inner, ir.Pointwise) and not tensor.get_read_names():
        return _retype_constant(tensor, device)
    if not isinstance(inner, ir.Buffer):
        tensor = _internals.clone(tensor)
        tensor.realize()
    # The wrapper passes CPU tensors to the launch as such, by the device of the first buffer of
    # this name.
    return ir.TensorBox.create(
        ir.InputBuffer(
            name=tensor.get_name(), layout=ir.FixedLayout(device, tensor.get_dtype(), [], [])
        )
    )
