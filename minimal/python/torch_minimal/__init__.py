"""Step 1 of docs/bring_up.md: torch finds the device. In full: torch_openreg/__init__.py.

``import torch`` imports this package, by the entry point of ``setup.py``, and calls ``_autoload``.
"""

import torch
from torch.utils import backend_registration

from . import _C

# docs: minimal-autoload
backend_registration.rename_privateuse1_backend(_C.NAME)  # torch.device(NAME)
from . import device  # noqa: E402  (after the device has its name)

torch._register_device_module(_C.NAME, device)  # torch.NAME
backend_registration.generate_methods_for_privateuse1_backend(for_storage=True)  # x.NAME()


def _autoload() -> None:
    """What the entry point calls. The import has done it all."""


# docs: end
