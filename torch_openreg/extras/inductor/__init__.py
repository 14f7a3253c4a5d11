"""``torch.compile`` with Inductor: its fused C++ kernels, on our streams.

:func:`register` has Inductor register what is here before it compiles its first graph; see Note
[How Inductor finds the package] in ``torch_openreg/dynamo/_inductor.py``. ``torch_openreg.dynamo``
registers the backend's name and the device's interface earlier.

Internals of Inductor that this package uses may be missing in another version of torch. This must
not affect programs that compile for the CPU: a pass then raises an error for graphs with openreg
tensors only.
"""

import importlib
from types import ModuleType

import torch

from torch_openreg.dynamo import _inductor
from torch_openreg.extras import has
from torch_openreg.openreg._utils import DEVICE_TYPE, _setting

__all__ = ["register"]


def register(module: ModuleType) -> None:
    """Has Inductor compile for the device type.

    Args:
        module: The module ``torch.openreg``.
    """
    _inductor.before_first_compilation(module, _register_with_inductor)


def _register_with_inductor() -> None:
    from torch_openreg.dynamo import _refusal

    try:
        name = "_triton_backend" if _makes_triton() else "_backend"
        backend = importlib.import_module(f"{__name__}.{name}")
    except (ImportError, AttributeError) as error:
        _refusal.refuse(
            f"Inductor of torch {torch.__version__} does not support {DEVICE_TYPE}: {error}"
        )
    except ValueError as error:
        _refusal.refuse(str(error))
    else:
        backend.register()


def _makes_triton() -> bool:
    """Whether Inductor makes kernels in Triton: OPENREG_INDUCTOR=triton.

    Raises:
        ValueError: It is set where that is not possible.
    """
    # Without the extra there is no such setting.
    if not has("triton") or _setting("OPENREG_INDUCTOR") != "triton":
        return False
    if DEVICE_TYPE != "cuda":
        raise ValueError(
            "OPENREG_INDUCTOR=triton: expected the device type cuda, for which Inductor has such "
            f"code, got {DEVICE_TYPE}; set OPENREG_DEVICE_TYPE=cuda, too"
        )
    from triton_openreg import runs_here

    if not runs_here():
        raise ValueError(
            "OPENREG_INDUCTOR=triton: expected Triton to be installed, and to use torch_openreg"
        )
    return True
