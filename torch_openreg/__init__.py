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
       which finds this module half loaded. So ``_autoload`` is defined first. It registers the
       device, and the outer import does the rest: its warnings may raise.

Note [Imports by several threads]
    A thread that imports torch calls the entry point with torch's import lock held. Another one
    that imports this package may hold this package's lock at that time, and wait for torch's at the
    ``import torch`` below. importlib detects the deadlock and returns this module partially loaded
    to the first thread; see ``torch_openreg_autoload``. The first thread then registers the device:
    the other one cannot leave its ``import torch`` before, and finds the device registered.

    In all three ways the device is registered before torch's import lock is released: a thread that
    has waited for it finds the device.
"""

import sys
import threading

from torch_openreg._device_name import DEVICE_NAME
from torch_openreg._version import __version__

__all__ = ["SettingWarning", "__version__"]

# Why the device could not be registered; None if registration succeeded or was not tried yet.
_failure: str | None = None
_is_registered = False
# What went wrong when this thread registered the device within ``import torch`` below.
_early_error: Exception | None = None
_loading_thread = threading.get_ident()


# docs: autoload
def _autoload() -> None:
    """The function of the entry point; see Note [Three ways in]. Never raises."""
    if _is_registered:
        return
    if _failure is not None:
        _give_up(_failure)
    else:
        _register_early()


def _is_torch_initializing() -> bool:
    """Whether this import is part of ``import torch``; see Note [Three ways in]."""
    spec = getattr(sys.modules.get("torch"), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


# docs: end


def _register_early() -> None:
    """Registers the device on behalf of the thread that loads this module.

    That thread raises its own error, and retries after an error of another thread, which importlib
    may have raised to avoid a deadlock. See Note [Imports by several threads].
    """
    global _early_error
    is_own = threading.get_ident() == _loading_thread
    try:
        from torch_openreg import _registration

        if not is_own:
            _registration.set_up(may_warnings_raise=False)
        elif not _registration.asks_for_no_device():
            _registration.register()
    except Exception as error:
        if is_own:
            _early_error = error


def _give_up(failure: str) -> None:
    from torch_openreg import _settings

    for name in [name for name in sys.modules if name.split(".")[0] == __name__]:
        del sys.modules[name]
    _settings.warn_of(f"The device {DEVICE_NAME!r} is not available: {failure}", UserWarning, False)


import torch  # noqa: E402  (after _autoload, which this import may call)

# Only now: another thread's import of torch has ended, and one that has called us has not.
_is_imported_by_torch = _is_torch_initializing()

from torch_openreg import _registration  # noqa: E402
from torch_openreg._settings import SettingWarning  # noqa: E402

try:
    if _early_error is not None:
        raise _early_error
    _registration.set_up(may_warnings_raise=not _is_imported_by_torch)
    if not _registration.asks_for_no_device():
        from torch_openreg import openreg  # noqa: F401  (an attribute after a second import, too)
    _is_registered = True
except _registration.RegistrationError as error:
    if not _is_imported_by_torch:
        raise ImportError(str(error), name=__name__) from error.__cause__
    _failure = str(error)

del torch, _is_imported_by_torch
