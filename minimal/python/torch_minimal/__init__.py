"""Step 1 of docs/bring_up.md: torch finds the device. In full: torch_openreg/__init__.py.

``import torch`` imports this package, by the entry point of ``setup.py``, and calls ``_autoload``.
"""

import torch

from . import _C

__all__: list[str] = []


# docs: minimal-autoload
def _register() -> None:
    """Names the device, ``torch.device(NAME)``, and its module, ``torch.NAME``."""
    torch.utils.rename_privateuse1_backend(_C.NAME)
    from . import device

    torch._register_device_module(_C.NAME, device)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)


def _autoload() -> None:
    """What the entry point calls. The import has done it all."""


_register()
# docs: end
