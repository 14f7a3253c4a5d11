"""An accelerator called ``openreg`` for PyTorch, on a machine that has none.

Importing this package registers the device: ``torch.device("openreg")``, the module
``torch.openreg``, ``Tensor.openreg()`` and so on. ``import torch`` imports it through the entry
point group ``torch.backends``, unless ``TORCH_DEVICE_BACKEND_AUTOLOAD=0`` is set.

Note [Three ways in]
    1. ``import torch`` calls the entry point, in ``torch_openreg_autoload.py``. That imports this
       package while torch is still initializing, then calls ``_autoload``. Nothing may raise, or
       ``import torch`` would fail.
       ``_autoload`` turns a failure into a warning and removes the package from ``sys.modules``, so
       that an explicit import tries again and raises.
    2. ``import torch_openreg`` after torch: registers, or raises ImportError.
    3. ``import torch_openreg`` before torch: the ``import torch`` below calls the entry point,
       which finds this module half loaded. So ``_autoload`` is defined first, and does nothing
       while the outer import is still running.
"""

import sys
import warnings

from torch_openreg._version import __version__

__all__ = ["__version__"]

# Why the device could not be registered; None if it was, or if nobody has tried yet.
_failure: str | None = None
_is_registered = False


# docs: autoload
def _autoload() -> None:
    """What the entry point calls; see Note [Three ways in]. Never raises."""
    if _is_registered or _failure is None:
        return
    for name in [name for name in sys.modules if name.split(".")[0] == __name__]:
        del sys.modules[name]
    warnings.warn(f"The device 'openreg' is not available: {_failure}", stacklevel=2)


def _is_torch_initializing() -> bool:
    """Whether this import is part of ``import torch``; see Note [Three ways in]."""
    spec = getattr(sys.modules.get("torch"), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


# docs: end


_is_imported_by_torch = _is_torch_initializing()

import torch  # noqa: E402  (after _autoload, which this import may call)

from torch_openreg import _registration  # noqa: E402

try:
    if not _registration.asks_for_no_device():
        _registration.register()
        from torch_openreg import openreg

        openreg.sanitizer._enable_from_environment()
    _is_registered = True
except _registration.RegistrationError as error:
    if not _is_imported_by_torch:
        raise ImportError(str(error), name=__name__) from error.__cause__
    _failure = str(error)

del torch, _is_imported_by_torch
