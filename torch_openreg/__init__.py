"""An accelerator called ``openreg`` for PyTorch, on a machine that has none.

Importing this package registers the device: ``torch.device("openreg")``, the module
``torch.openreg``, ``Tensor.openreg()`` and so on. ``import torch`` imports it through the entry
point group ``torch.backends``, unless ``TORCH_DEVICE_BACKEND_AUTOLOAD=0`` is set. ``_loading.py``
has the steps.
"""

from torch_openreg import _loading
from torch_openreg._settings import SettingWarning
from torch_openreg._version import __version__

__all__ = ["SettingWarning", "__version__"]

# First: `load` imports torch, whose entry point calls it.
_autoload = _loading.autoload

_loading.load()
