"""``torch.compile`` with Inductor: its fused C++ kernels, on our streams.

:func:`register` has Inductor register what is here before it compiles its first graph; see Note
[How Inductor finds the package] in ``torch_openreg/dynamo/_inductor.py``. ``torch_openreg.dynamo``
registers the backend's name and the device's interface earlier.

Internals of Inductor that this package uses may be missing in another version of torch. This must
not affect programs that compile for the CPU: a pass then raises an error for graphs with openreg
tensors only.
"""

from types import ModuleType

import torch

from torch_openreg.dynamo import _inductor
from torch_openreg.openreg._utils import DEVICE_TYPE

__all__ = ["register"]


def register(module: ModuleType) -> None:
    """Has Inductor compile for the device type.

    Args:
        module: The module ``torch.openreg``.
    """
    _inductor.before_first_compilation(module, _register_with_inductor)


def _register_with_inductor() -> None:
    try:
        from torch_openreg.extras.inductor import _backend
    except (ImportError, AttributeError) as error:
        from torch_openreg.dynamo import _refusal

        _refusal.refuse(
            f"Inductor of torch {torch.__version__} does not support {DEVICE_TYPE}: {error}"
        )
    else:
        _backend.register()
