"""Functions and modules whose forward and backward replay graphs."""

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.utils import _pytree as pytree

from torch_openreg.extras.graph.graphs import Graph, PoolId, graph, graph_pool_handle
from torch_openreg.openreg._utils import DEVICE_TYPE, _integer, _named, _pool_id
from torch_openreg.openreg.devices import synchronize
from torch_openreg.openreg.streams import Stream, stream

__all__ = ["make_graphed_callables"]

_OPERATION = _named("torch.openreg.make_graphed_callables")

_OptionalTensors = tuple[torch.Tensor | None, ...]


class _GraphedCall:
    """A callable, captured: its two graphs and the tensors they read and write."""

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], allows_unused: bool
    ) -> None:
        self.function = function
        self.args = args
        self.allows_unused = allows_unused
        self.arguments: tuple[torch.Tensor, ...] = tuple(pytree.arg_tree_leaves(*args))
        self.parameters = (
            tuple(function.parameters()) if isinstance(function, torch.nn.Module) else ()
        )
        self.outputs: tuple[torch.Tensor, ...] = ()
        self.output_grads: _OptionalTensors = ()
        self.input_grads: _OptionalTensors = ()
        self.output_structure: pytree.TreeSpec | None = None
        self.forward_graph = Graph()
        self.backward_graph: Graph | None = None

    @property
    def inputs(self) -> tuple[torch.Tensor, ...]:
        return self.arguments + self.parameters

    def warm_up(self) -> None:
        """Runs the callable as it will be captured."""
        outputs = tuple(pytree.tree_leaves(self.function(*self.args)))
        self.differentiate(outputs, self.make_output_grads(outputs))

    def capture_forward(self, pool: PoolId) -> None:
        with graph(self.forward_graph, pool=pool):
            result = self.function(*self.args)
        outputs, self.output_structure = pytree.tree_flatten(result)
        self.outputs = tuple(outputs)
        self.output_grads = self.make_output_grads(self.outputs)

    def capture_backward(self, pool: PoolId) -> None:
        if any(grad is not None for grad in self.output_grads):
            self.backward_graph = Graph()
            with graph(self.backward_graph, pool=pool):
                self.input_grads = self.differentiate(self.outputs, self.output_grads)
        else:
            self.input_grads = (None,) * len(self.inputs)

    @staticmethod
    def make_output_grads(outputs: tuple[torch.Tensor, ...]) -> _OptionalTensors:
        return tuple(torch.zeros_like(one) if one.requires_grad else None for one in outputs)

    def differentiate(
        self, outputs: tuple[torch.Tensor, ...], output_grads: _OptionalTensors
    ) -> _OptionalTensors:
        """Returns a gradient, or None, for each input."""
        inputs = [one for one in self.inputs if one.requires_grad]
        differentiable = [one for one in outputs if one.requires_grad]
        if not inputs or not differentiable:
            return (None,) * len(self.inputs)
        grads = iter(
            torch.autograd.grad(
                differentiable,
                inputs,
                [grad for grad in output_grads if grad is not None],
                only_inputs=True,
                allow_unused=self.allows_unused,
            )
        )
        return tuple(next(grads) if one.requires_grad else None for one in self.inputs)

    def replay_forward(self, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        for captured, given in zip(self.arguments, arguments, strict=True):
            _update(captured, given)
        self.forward_graph.replay()
        return tuple(one.detach() for one in self.outputs)

    def replay_backward(self, grads: tuple[torch.Tensor, ...]) -> _OptionalTensors:
        for captured, given in zip(self.output_grads, grads, strict=True):
            if captured is not None:
                _update(captured, given)
        if self.backward_graph is not None:
            self.backward_graph.replay()
        return tuple(None if one is None else one.detach() for one in self.input_grads)

    def __call__(self, *args: Any) -> Any:
        arguments = pytree.arg_tree_leaves(*args)
        if len(arguments) != len(self.arguments):
            raise RuntimeError(
                f"{_OPERATION}: expected {len(self.arguments)} tensors as in sample_args, got "
                f"{len(arguments)}"
            )
        assert self.output_structure is not None
        outputs = _Replay.apply(self, *arguments, *self.parameters)  # type: ignore[no-untyped-call]
        return pytree.tree_unflatten(outputs, self.output_structure)


class _Replay(torch.autograd.Function):
    """One call: replays the forward graph now, and the backward graph when gradients arrive."""

    @staticmethod
    def forward(ctx: Any, call: _GraphedCall, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.call = call
        return call.replay_forward(inputs[: len(call.arguments)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        return None, *ctx.call.replay_backward(grads)


def _update(captured: torch.Tensor, given: torch.Tensor) -> None:
    if captured.data_ptr() != given.data_ptr():
        captured.copy_(given)


def _check(function: Any, args: Any) -> None:
    if not all(isinstance(one, torch.Tensor) for one in pytree.arg_tree_leaves(*args)):
        raise TypeError(f"{_OPERATION}: expected sample_args of tensors only")
    if not isinstance(function, torch.nn.Module):
        return
    if function._forward_hooks or function._forward_pre_hooks or function._backward_hooks:
        raise RuntimeError(
            f"{_OPERATION}: expected a module without hooks, got {type(function).__name__} with "
            "hooks; register them afterwards"
        )
    if any(buffer.requires_grad for buffer in function.buffers()):
        raise RuntimeError(
            f"{_OPERATION}: expected buffers that do not require gradients, got a module "
            f"{type(function).__name__} with buffers that do"
        )


def _wrap(function: Callable[..., Any], call: _GraphedCall) -> Callable[..., Any]:
    """Returns the result for the user: a function, or the module with another forward."""
    if not isinstance(function, torch.nn.Module):
        return call
    captured_training = function.training
    original = function.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        replays = function.training == captured_training
        return call(*args, **kwargs) if replays else original(*args, **kwargs)

    function.forward = forward
    return function


def make_graphed_callables(
    callables: Any,
    sample_args: tuple[Any, ...],
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: PoolId | None = None,
) -> Any:
    """Returns versions of functions or modules whose forward and backward replay graphs.

    The rest of the program runs as before: arguments are copied into the captured ones, autograd
    records one node per call, and parameters receive gradients. Call the results in the order
    given, with tensors of the same shapes. Outputs and gradients are overwritten by the next call.
    A module is changed in place, and falls back to its own forward when its training mode is not
    the one of the capture.

    Args:
        callables: A function or module, or a tuple of them. They share a memory pool.
        sample_args: The arguments to capture with, tensors only; a tuple of such for a tuple of
            callables. They must require gradients where later ones do.
        num_warmup_iters: How often to run each callable before the capture. At least 1, since
            some operators of the fallback need a first call.
        allow_unused_input: Whether inputs may be without influence on the outputs.
        pool: The memory pool to share with other graphs; None for a new one.

    Raises:
        RuntimeError: Autocast caches weights, a module has hooks or buffers that require gradients,
            or a callable cannot be captured.
        TypeError: An argument of a callable is not a tensor, ``callables`` contains an object that
            is not callable, or ``sample_args`` is not a tuple.
        ValueError: The numbers of callables and of arguments differ.
    """
    if torch.is_autocast_enabled(DEVICE_TYPE) and torch.is_autocast_cache_enabled():
        raise RuntimeError(
            f"{_OPERATION}: expected autocast without a cache, which would keep memory of a graph; "
            "use cache_enabled=False"
        )
    is_one = not isinstance(callables, tuple)
    functions = (callables,) if is_one else callables
    all_args = (sample_args,) if is_one else sample_args
    if not isinstance(all_args, (tuple, list)) or not all(
        isinstance(one, (tuple, list)) for one in all_args
    ):
        raise TypeError(
            f"{_OPERATION}: expected a tuple of tensors as sample_args, or one such tuple for each "
            f"of several callables, got {sample_args!r}"
        )
    if not all(callable(function) for function in functions):
        raise TypeError(f"{_OPERATION}: expected functions or modules, got {callables!r}")
    if len(functions) != len(all_args):
        raise ValueError(
            f"{_OPERATION}: expected sample_args for {len(functions)} callables, got "
            f"{len(all_args)}"
        )
    for function, args in zip(functions, all_args, strict=True):
        _check(function, args)
    if pool is not None:
        _pool_id(_OPERATION, "pool", pool)
    _integer(_OPERATION, "num_warmup_iters", num_warmup_iters, 0)
    calls = [
        _GraphedCall(function, args, allow_unused_input)
        for function, args in zip(functions, all_args, strict=True)
    ]
    synchronize()
    try:
        with stream(Stream()):
            for call in calls:
                for _ in range(num_warmup_iters):
                    call.warm_up()
    finally:
        # Also if one raises: the arguments may be freed then.
        synchronize()
    shared_pool = graph_pool_handle() if pool is None else pool
    # In the order in which they will run, as they reuse each other's memory in that order.
    for call in calls:
        call.capture_forward(shared_pool)
    for call in reversed(calls):
        call.capture_backward(shared_pool)
    graphed = tuple(_wrap(call.function, call) for call in calls)
    return graphed[0] if is_one else graphed
