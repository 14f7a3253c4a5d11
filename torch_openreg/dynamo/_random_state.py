"""Random operators in regions that a compiled backward pass computes again.

The backward pass has to draw the numbers of the forward pass. The forward pass saves the state of
the device's generator before it draws, and the backward pass draws from this state: the numbers are
those of eager mode. torch has two operators for this, which have a list of device types. (For CUDA,
it gives each such operator a state of its own. Inductor supports this for CUDA and XPU alone.)
"""

from collections.abc import Callable
from typing import Any

import torch
from torch._C import DispatchKey
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode
from torch.utils._pytree import tree_leaves

from torch_openreg import openreg
from torch_openreg.openreg._utils import DEVICE_TYPE

__all__ = ["install", "serve_proxies"]


def _drawing_device(args: Any, kwargs: dict[str, Any]) -> torch.device:
    """Returns the device on which an operator draws: as named, or that of the first tensor."""
    named = kwargs.get("device")
    if named is not None:
        return torch.device(named)
    for value in tree_leaves(args):
        if isinstance(value, torch.device):  # of Inductor's seeds
            return value
        if isinstance(value, torch.Tensor):
            return value.device
    return torch.device("cpu")


def _run_and_save(operator: Any, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, Any]:
    state = openreg.get_rng_state(_drawing_device(args, kwargs))
    return state, operator(*args, **kwargs)


def _run_with(state: torch.Tensor, operator: Any, *args: Any, **kwargs: Any) -> Any:
    device = _drawing_device(args, kwargs)
    current = openreg.get_rng_state(device)
    openreg.set_rng_state(state, device)
    try:
        return operator(*args, **kwargs)
    finally:
        openreg.set_rng_state(current, device)


def _add_to_list(operator: Any, implementation: Any, drawing_device: Any) -> None:
    """Adds our device type to the list in the function that chooses an implementation.

    The operator and what traces it refer to this function.
    """
    choose = operator.py_kernels[DispatchKey.BackendSelect]

    def choose_ours(*args: Any, **kwargs: Any) -> Any:
        is_ours = drawing_device(*args, **kwargs).type == DEVICE_TYPE
        return (implementation if is_ours else choose)(*args, **kwargs)

    operator.py_kernels[DispatchKey.BackendSelect] = choose_ours
    for cell in operator.python_key_table[ProxyTorchDispatchMode].__closure__ or ():
        if cell.cell_contents is choose:
            cell.cell_contents = choose_ours


def install() -> None:
    """Serves the device type."""
    if DEVICE_TYPE == "cuda":
        return  # by torch itself
    run_and_save: Any = run_and_save_rng_state
    run_with: Any = run_with_rng_state
    run_and_save.py_impl(DispatchKey.PrivateUse1)(_run_and_save)
    run_with.py_impl(DispatchKey.PrivateUse1)(_run_with)
    _add_to_list(run_and_save, _run_and_save, lambda _, *args, **kw: _drawing_device(args, kw))
    _add_to_list(run_with, _run_with, lambda _, __, *args, **kw: _drawing_device(args, kw))


def serve_proxies(original: Callable[[torch.device], torch.device]) -> None:
    """Serves graphs in which other devices stand for ours: their states have our size.

    Args:
        original: Returns the device for which a device stands, or the device itself.
    """

    def drawing_device(args: Any, kwargs: dict[str, Any]) -> torch.device:
        return original(_drawing_device(args, kwargs))

    def run_and_save(operator: Any, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, Any]:
        return openreg.get_rng_state(drawing_device(args, kwargs)), operator(*args, **kwargs)

    _add_to_list(
        run_and_save_rng_state, run_and_save, lambda _, *args, **kw: drawing_device(args, kw)
    )


install()
