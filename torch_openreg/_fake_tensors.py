"""The results of this device's operators, for tensors without contents.

Tracers run programs on fake tensors, and compiled code relies on the sizes, strides and dtypes that
these had. They come from torch's functions for meta tensors, which are correct for the CPU's
operators and so for this device's, except for three kinds of operators. Attention is left to
backends, and torch's functions for it describe another backend's results. Others depend on the
device type: for convolutions on unknown types, torch assumes a library that keeps no memory format,
and for CUDA it describes the results of cuFFT and cuSOLVER. For operators on a list of tensors and
one number, such as ``_foreach_mul``, torch ignores the device of the number.
"""

import functools
from typing import Any

import torch
import torch._meta_registrations
import torch._prims_common as utils
from torch._subclasses.fake_impls import (
    foreach_run_and_map_input_device,
    op_implementations_dict,
    register_op_impl,
)
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager
from torch.fx.operator_schemas import normalize_function
from torch.utils._pytree import tree_map_only

from torch_openreg import _C
from torch_openreg.openreg._utils import DEVICE_TYPE

aten = torch.ops.aten

__all__ = ["register"]

_ATTENTION = aten._scaled_dot_product_fused_attention_overrideable.default
_ATTENTION_BACKWARD = aten._scaled_dot_product_fused_attention_overrideable_backward.default


def _bind(operator: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Returns the arguments of a call by name."""
    bound = normalize_function(operator, args, kwargs, normalize_to_only_use_kwargs=True)
    assert bound is not None
    return bound.kwargs


def _attention(mode: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
    """As fusedAttention in csrc/aten/attention/Attention.cpp."""
    call = _bind(func, args, kwargs)
    query, key = call["query"], call["key"]
    with mode:
        # torch's function has the output, which is right, and sums in another order of dimensions.
        output = torch._meta_registrations.alloc_with_matching_layout(
            query, (*query.shape[:-1], call["value"].shape[-1])
        )
        batch, heads, length, _ = query.shape
        sums = query.new_empty(
            batch, length, heads, dtype=utils.get_computation_dtype(query.dtype)
        ).transpose(1, 2)
        none, cum_k, debug_mask = (query.new_empty(0, dtype=torch.int64) for _ in range(3))
        seed, offset = (query.new_empty((), dtype=torch.int64) for _ in range(2))
    return output, sums, none, cum_k, length, key.shape[2], seed, offset, debug_mask


def _attention_backward(mode: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
    """As fusedAttentionBackward in csrc/aten/attention/Attention.cpp."""
    call = _bind(func, args, kwargs)
    bias = call["attn_bias"]
    with mode:
        gradients = [
            torch.empty_permuted(one.shape, (0, 2, 1, 3), dtype=one.dtype, device=one.device)
            for one in (call["query"], call["key"], call["value"])
        ]
        has_bias_gradient = bias is not None and call["grad_input_mask"][3]
        return *gradients, torch.empty_like(bias) if has_bias_gradient else None


def on_device(fake: FakeTensor, device: torch.device) -> FakeTensor:
    """Returns a fake tensor on the same storage with another device."""
    with in_kernel_invocation_manager(fake.fake_mode):
        meta = aten.alias.default(fake)
    return FakeTensor(fake.fake_mode, meta, device)


def _as_on_the_cpu(implementation: Any, mode: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls torch's function with CPU tensors if the call's tensors are on this device.

    The implementation is the mode's for the operator; None if that is the meta function.
    """
    own: list[torch.device] = []

    def to_host(fake: FakeTensor) -> FakeTensor:
        if fake.fake_device.type != DEVICE_TYPE:
            return fake
        own.append(fake.fake_device)
        return on_device(fake, torch.device("cpu"))

    host_args, host_kwargs = tree_map_only(FakeTensor, to_host, (args, kwargs))
    if not own:
        return implementation(mode, func, *args, **kwargs) if implementation else NotImplemented
    if implementation:
        result = implementation(mode, func, *host_args, **host_kwargs)
    else:
        with mode:
            result = func(*host_args, **host_kwargs)
    return tree_map_only(FakeTensor, lambda fake: on_device(fake, own[0]), result)


def _list_and_number(implementation: Any, mode: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls torch's function, and places its results as the operator on single tensors does."""
    call = _bind(func, args, kwargs)
    tensors, number = call["input"], call["other"]
    devices = [FakeTensor._find_common_device(func, [one, number])[0] for one in tensors]
    if func._schema.is_mutable:
        for written, device in zip(call.get("out", tensors), devices, strict=True):
            torch._check(
                written.device == device,
                lambda: f"{func}: expected tensors on {device}, got one on {written.device}",  # noqa: B023
            )
    results = implementation(mode, func, *args, **kwargs)
    if not results:
        return results
    return [
        one if one.device == device else on_device(one, device)
        for one, device in zip(results, devices, strict=True)
    ]


def _operators_of_lists_and_numbers() -> list[Any]:
    """Returns the operators on a list of tensors and one tensor without dimensions."""
    operators = []
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("aten::_foreach_") and ".Tensor" in name:
            packet, _, overload = name.removeprefix("aten::").partition(".")
            operator = getattr(getattr(aten, packet), overload)
            if any(argument.name == "other" for argument in operator._schema.arguments):
                operators.append(operator)
    return operators


def register() -> None:
    """Registers them with the mode of fake tensors."""
    for operator in _operators_of_lists_and_numbers():
        op_implementations_dict[operator] = functools.partial(
            _list_and_number, foreach_run_and_map_input_device
        )
    for name in _C._operators_faked_as_on_cpu():
        packet, _, overload = name.partition(".")
        operator = getattr(getattr(aten, packet), overload or "default")
        implementation = op_implementations_dict.get(operator)
        op_implementations_dict[operator] = functools.partial(_as_on_the_cpu, implementation)
    register_op_impl(_ATTENTION)(_attention)
    register_op_impl(_ATTENTION_BACKWARD)(_attention_backward)
