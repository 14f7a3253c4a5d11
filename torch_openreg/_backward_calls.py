"""Backward passes: their lines for stacks, and functions to call when one begins.

See Note [Stacks of a backward pass] in csrc/core/Stack.h.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_openreg import _C

__all__ = ["follow_backward", "leave_backward"]

_engine: Callable[..., Any] = torch.autograd.graph._engine_run_backward

_followers: dict[str, Callable[[], None] | None] = {}


def follow_backward(name: str, begin: Callable[[], None] | None = None) -> None:
    """Has the stacks of a backward pass's work go on with those of its caller.

    Args:
        name: That of the follower; to follow twice is the same as once.
        begin: Called before each backward pass, on its thread.
    """
    _followers[name] = begin
    _install(_run_backward)


def leave_backward(name: str) -> None:
    """Ends what :func:`follow_backward` began. torch's own function is back after the last one."""
    _followers.pop(name, None)
    if not _followers:
        _install(_engine)


def _run_backward(*args: Any, **kwargs: Any) -> Any:
    _C._begin_backward()
    try:
        for begin in list(_followers.values()):
            if begin is not None:
                begin()
        return _engine(*args, **kwargs)
    finally:
        _C._end_backward()


def _install(function: Callable[..., Any]) -> None:
    for module in (torch.autograd, torch.autograd.graph):
        setattr(module, _engine.__name__, function)
