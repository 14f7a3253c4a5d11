"""What a program meets without an extra: errors that name it."""

from types import ModuleType
from typing import Any, NoReturn

import torch

from torch_openreg import extras
from torch_openreg._device_name import DEVICE_NAME
from torch_openreg.dynamo import _inductor

__all__ = ["NAMES", "extra_of_setting", "register"]

# The names of torch.openreg by the extra that they are of. With the extra, it adds them; a lookup
# of one without it raises an error, which is an AttributeError, too.
NAMES: dict[str, tuple[str, ...]] = {
    "autocast": ("amp",),
    "custom": ("meta",),
    "distributed": ("nccl",),
    "dry_run": ("dry_run",),
    "graph": ("CUDAGraph", "Graph", "graph", "graph_pool_handle", "make_graphed_callables"),
    "ipc": ("ipc_collect",),
    "profiler": ("profiler",),
    "sanitizer": ("SanitizerError", "SanitizerWarning", "sanitizer"),
}

# The first words of settings, by the extra that reads them.
_SETTINGS = {
    "OPENREG_CUDA_CAPABILITY": "cuda",
    "OPENREG_CUDA_NOTICE": "cuda",
    "OPENREG_CUDA_OVER_GPU": "cuda",
    "OPENREG_CUDA_STICKY_ERRORS": "cuda",
    "OPENREG_CUDA_VERSION": "cuda",
    "OPENREG_DRY_RUN": "dry_run",
    "OPENREG_INDUCTOR": "triton",
    "OPENREG_MEMORY_POISON": "poison",
    "OPENREG_MEMORY_QUARANTINE": "poison",
    "OPENREG_SANITIZER": "sanitizer",
    "OPENREG_TRITON": "triton",
}


def register(extra: str, module: ModuleType) -> None:
    """Makes the first use of a missing extra raise an error that names it.

    Args:
        extra: The name of the extra.
        module: The module ``torch.openreg``.
    """
    lookups: dict[str, Any] = module.__dict__["_LOOKUPS"]
    for name in NAMES.get(extra, ()):
        lookups[name] = _refusal(f"torch.{DEVICE_NAME}.{name}", extra)
    if extra == "autocast":
        # torch asks whether there is one.
        setattr(module, "get_amp_supported_dtype", _refusal("torch.autocast", extra))  # noqa: B010
    elif extra == "distributed":
        backend: Any = torch.distributed.Backend
        refusal = _refusal("torch.distributed", extra)
        backend.register_backend("occl", refusal, devices=[DEVICE_NAME])
    elif extra == "poison":
        module.memory.check = _refusal(f"torch.{DEVICE_NAME}.memory.check", extra)
    elif extra == "inductor":
        _inductor.before_first_compilation(module, _refuse_graphs)


def extra_of_setting(variable: str) -> str | None:
    """Returns the missing extra that would read a setting, None if there is none."""
    for prefix, extra in _SETTINGS.items():
        if variable.startswith(prefix) and not extras.has(extra):
            return extra
    return None


def _refusal(what: str, extra: str) -> Any:
    def refuse(*_arguments: object, **_keywords: object) -> NoReturn:
        raise extras.ExtraError(extras.explain(what, extra))

    return refuse


def _refuse_graphs() -> None:
    from torch_openreg.dynamo import _refusal

    what = f"a graph with tensors on {DEVICE_NAME}"
    _refusal.refuse(extras.explain(what, "inductor"))
