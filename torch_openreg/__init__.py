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

Note [Imports by several threads]
    A thread that imports torch calls the entry point with torch's import lock held. Another one
    that imports this package may hold this package's lock at that time, and wait for torch's at the
    ``import torch`` below. importlib refuses to let the first wait for the second, so that it gets
    this module half loaded; see ``torch_openreg_autoload``. The first thread then registers the
    device itself: the other one does not get past its ``import torch`` before, and finds it done.
"""

import sys
import threading

from torch_openreg._version import __version__

__all__ = ["SettingWarning", "__version__"]

# Why the device could not be registered; None if it was, or if nobody has tried yet.
_failure: str | None = None
_is_registered = False
_loading_thread = threading.get_ident()


# docs: autoload
def _autoload() -> None:
    """What the entry point calls; see Note [Three ways in]. Never raises."""
    if _is_registered:
        return
    if _failure is not None:
        _give_up(_failure)
    elif threading.get_ident() != _loading_thread:
        _register_for_another_thread()


def _is_torch_initializing() -> bool:
    """Whether this import is part of ``import torch``; see Note [Three ways in]."""
    spec = getattr(sys.modules.get("torch"), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


# docs: end


def _register_for_another_thread() -> None:
    """Does what the thread that loads this module will find done.

    It tells of a failure, too: its own attempt has the same one, and may raise.
    See Note [Imports by several threads].
    """
    try:
        from torch_openreg import _registration

        _registration.set_up(may_warnings_raise=False)
    except Exception:
        pass


def _give_up(failure: str) -> None:
    from torch_openreg import _settings

    for name in [name for name in sys.modules if name.split(".")[0] == __name__]:
        del sys.modules[name]
    _settings.warn_of(f"The device 'openreg' is not available: {failure}", UserWarning, False)


import torch  # noqa: E402  (after _autoload, which this import may call)

# Only now: another thread's import of torch has ended, and one that has called us has not.
_is_imported_by_torch = _is_torch_initializing()

from torch_openreg import _registration  # noqa: E402
from torch_openreg._settings import SettingWarning  # noqa: E402

try:
    _registration.set_up(may_warnings_raise=not _is_imported_by_torch)
    if not _registration.asks_for_no_device():
        from torch_openreg import openreg  # noqa: F401  (an attribute after a second import, too)
    _is_registered = True
except _registration.RegistrationError as error:
    if not _is_imported_by_torch:
        raise ImportError(str(error), name=__name__) from error.__cause__
    _failure = str(error)

del torch, _is_imported_by_torch
