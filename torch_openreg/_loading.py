"""The import of the package: from the entry point to the registered device.

Note [Three ways in]
    1. ``import torch`` calls the entry point, in ``torch_openreg_autoload.py``. That imports the
       package while torch is still initializing, then calls :func:`autoload`. Nothing may raise, or
       ``import torch`` would fail.
       ``autoload`` turns a failure into a warning and removes the package from ``sys.modules``, so
       that an explicit import tries again and raises.
    2. ``import torch_openreg`` after torch: registers, or raises ImportError.
    3. ``import torch_openreg`` before torch: the ``import torch`` in :func:`load` calls the entry
       point, which finds the package half loaded. So the package has ``_autoload`` first. It
       registers the device, and the outer import does the rest: its warnings may raise.

Note [Imports by several threads]
    A thread that imports torch calls the entry point with torch's import lock held. Another one
    that imports the package may hold the package's lock at that time, and wait for torch's at the
    ``import torch`` in :func:`load`. importlib detects the deadlock and returns the package
    partially loaded to the first thread; see ``torch_openreg_autoload``. The first thread then
    registers the device: the other one cannot leave its ``import torch`` before, and finds the
    device registered.

    In all three ways the device is registered before torch's import lock is released: a thread that
    has waited for it finds the device.

The order of the functions is that of the steps. None may import torch with this module, as it is
loaded before.
"""

import importlib
import os
import sys
import threading
from types import ModuleType
from typing import Any

from torch_openreg._device_name import DEVICE_NAME
from torch_openreg._version import (
    VersionError,
    __version__,
    check_torch_of_build,
    library_folder,
    release_of,
)

__all__ = ["DEVICE_TYPE_VARIABLE", "RegistrationError", "autoload", "load", "register"]

_PACKAGE = os.path.dirname(os.path.abspath(__file__))
DEVICE_TYPE_VARIABLE = "OPENREG_DEVICE_TYPE"
_OWN = "openreg"  # its value for the device of this package, whatever the name

# torch's name for the PrivateUse1 device before a backend renames it.
_UNCLAIMED_NAME = "privateuseone"

# Why the device could not be registered; None if registration succeeded or was not tried yet.
_failure: str | None = None
_is_loaded = False
_is_set_up = False
# What went wrong when this thread registered the device within ``import torch`` in `load`.
_early_error: Exception | None = None
_loading_thread = threading.get_ident()


class RegistrationError(Exception):
    """Why the device cannot be registered, as one line for the user."""


# --- The ways in


# docs: autoload
def autoload() -> None:
    """The function of the entry point; see Note [Three ways in]. Never raises."""
    if _is_loaded:
        return
    if _failure is not None:
        _give_up(_failure)
    else:
        _register_early()


def load() -> None:
    """Loads the package, as its last step; see Note [Three ways in].

    Raises:
        ImportError: The device cannot be registered, and this is not a part of ``import torch``.
    """
    global _early_error, _failure, _is_loaded, _loading_thread
    _early_error, _failure, _is_loaded = None, None, False  # of an earlier import that has failed
    _loading_thread = threading.get_ident()
    import torch  # noqa: F401  (which may call `autoload`)

    # Only now: another thread's import of torch has ended, and one that has called us has not.
    is_imported_by_torch = _is_torch_initializing()
    try:
        if _early_error is not None:
            raise _early_error
        _set_up(may_warnings_raise=not is_imported_by_torch)
        if not _asks_for_no_device():
            # An attribute after a second import, too.
            package: Any = sys.modules["torch_openreg"]
            package.openreg = importlib.import_module("torch_openreg.openreg")
        _is_loaded = True
    except RegistrationError as error:
        if not is_imported_by_torch:
            raise ImportError(str(error), name="torch_openreg") from error.__cause__
        _failure = str(error)


def _is_torch_initializing() -> bool:
    """Whether this import is part of ``import torch``; see Note [Three ways in]."""
    spec = getattr(sys.modules.get("torch"), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


# docs: end


def _register_early() -> None:
    """Registers the device on behalf of the thread that loads the package.

    That thread raises its own error, and retries after an error of another thread, which importlib
    may have raised to avoid a deadlock. See Note [Imports by several threads].
    """
    global _early_error
    is_own = threading.get_ident() == _loading_thread
    try:
        if not is_own:
            _set_up(may_warnings_raise=False)
        elif not _asks_for_no_device():
            register()
    except Exception as error:
        if is_own:
            _early_error = error


def _give_up(failure: str) -> None:
    from torch_openreg import _settings

    for name in [name for name in sys.modules if name.split(".")[0] == "torch_openreg"]:
        del sys.modules[name]
    _settings.warn_of(f"The device {DEVICE_NAME!r} is not available: {failure}", UserWarning, False)


def _set_up(may_warnings_raise: bool) -> None:
    """Registers the device, warns about invalid settings, and applies those that act at import.

    Does nothing if that has been done in this process.

    Args:
        may_warnings_raise: whether a filter may turn a warning into an exception.

    Raises:
        RegistrationError: as for :func:`register`.
    """
    global _is_set_up
    if _is_set_up or _asks_for_no_device():
        return
    register()
    from torch_openreg import _settings, extras

    _settings.warn(may_warnings_raise)
    extras.start(may_warnings_raise)
    _is_set_up = True


# --- The registration


# docs: register
def register() -> None:
    """Registers the device with torch. Does nothing if that has been done in this process.

    Raises:
        RegistrationError: torch has another version, another backend has taken torch's only place
            for one, or the native library cannot be loaded.
    """
    import torch
    from torch.utils import backend_registration

    _choose_libraries()
    if _asks_for_cuda():
        _register_cuda()
        return
    _check_backend_place()
    _load_native_library(serves_cuda=False)
    backend_registration.rename_privateuse1_backend(DEVICE_NAME)
    if hasattr(torch, DEVICE_NAME):
        return
    from torch_openreg import _C, backends, openreg

    _C._announce_type_name()

    _register_parts(openreg)
    torch._register_device_module(DEVICE_NAME, openreg)
    setattr(torch.backends, DEVICE_NAME, backends)
    sys.modules[f"torch.backends.{DEVICE_NAME}"] = backends
    backend_registration.generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True
    )


# docs: end


def _asks_for_no_device() -> bool:
    """Whether to register no device: the conformance kit tests another one."""
    return os.environ.get(DEVICE_TYPE_VARIABLE) == "none"


def _asks_for_cuda() -> bool:
    """Whether the device type is to be CUDA; see Note [Device type] in core/DeviceKeys.h."""
    text = os.environ.get(DEVICE_TYPE_VARIABLE, _OWN)
    if text not in (_OWN, "cuda"):
        raise RegistrationError(
            f"{DEVICE_TYPE_VARIABLE} is '{text}'; allowed: {_OWN}, cuda or none. Set it before "
            "the process imports torch."
        )
    return text == "cuda"


def _register_cuda() -> None:
    import torch

    if hasattr(torch, DEVICE_NAME):
        return
    from torch_openreg import extras

    try:
        cuda = importlib.import_module("torch_openreg.extras.cuda")
    except ModuleNotFoundError as error:
        if error.name != "torch_openreg.extras.cuda":
            raise
        text = extras.explain(f"{DEVICE_TYPE_VARIABLE}=cuda", "cuda")
        raise RegistrationError(text) from None
    cuda.prepare()
    _load_native_library(serves_cuda=True)
    cuda.check_parts()
    from torch_openreg import openreg

    _register_parts(openreg)


def _register_parts(openreg: ModuleType) -> None:
    """Registers what has torch find the rest, and lets programs import ``torch.openreg``'s modules.

    'import torch.openreg.streams' must find the module that is already loaded: a second copy would
    have different classes.
    """
    from torch_openreg import _comm, _fake_tensors, dynamo, extras

    _comm.provide()
    _fake_tensors.register()
    dynamo.register()
    extras.register(openreg)
    own, public = openreg.__name__, f"torch.{DEVICE_NAME}"
    for name in [name for name in sys.modules if name == own or name.startswith(f"{own}.")]:
        sys.modules[public + name.removeprefix(own)] = sys.modules[name]


def _choose_libraries() -> None:
    """Makes the libraries for the installed torch the ones that are loaded.

    Raises:
        RegistrationError: There are none for it.
    """
    import torch

    installed = str(torch.__version__)
    try:
        folder = library_folder(_PACKAGE, installed)
    except FileNotFoundError:
        return  # the library is missing, too, which is reported when it is loaded
    except VersionError as error:
        raise RegistrationError(str(error)) from None
    path = sys.modules["torch_openreg"].__path__
    if folder != os.path.join(_PACKAGE, "lib") and folder not in path:
        path.append(folder)  # where the bindings are found
    try:
        with open(os.path.join(folder, "TORCH_VERSION")) as file:
            built_for = file.read().strip()
    except FileNotFoundError:
        return
    if release_of(built_for) == release_of(installed):
        return
    try:
        check_torch_of_build(installed, built_for, _installation_source())
    except VersionError as error:
        raise RegistrationError(str(error)) from None


def _installation_source() -> str:
    """Returns the arguments by which pip installs this package again."""
    import shlex
    from importlib import metadata

    root = os.path.dirname(_PACKAGE)
    if os.path.exists(os.path.join(root, "setup.py")):
        return f"-e {shlex.quote(root)}"

    try:
        origin = metadata.distribution("torch_openreg").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        origin = None
    if origin is not None:
        import json

        url = str(json.loads(origin)["url"])
        if not url.endswith(".whl"):
            return shlex.quote(url)
    return f"torch_openreg=={__version__}"


def _check_backend_place() -> None:
    import torch

    name = torch._C._get_privateuse1_backend_name()
    if name not in (_UNCLAIMED_NAME, DEVICE_NAME):
        raise RegistrationError(
            f"torch has one PrivateUse1 backend per process, and '{name}' is already registered. "
            f"To use '{name}', set {DEVICE_TYPE_VARIABLE}=none, or uninstall torch_openreg. To "
            f"use '{DEVICE_NAME}', uninstall the package of '{name}', or import torch_openreg with "
            "TORCH_DEVICE_BACKEND_AUTOLOAD=0"
        )


def _load_native_library(serves_cuda: bool) -> None:
    try:
        import torch_openreg._C as _C
    except ModuleNotFoundError as error:
        if error.name != "torch_openreg._C":
            raise RegistrationError(f"its native library cannot be loaded: {error}") from error
        raise RegistrationError(_explain_missing_library()) from error
    except Exception as error:
        # The loader reports a missing or foreign library as ImportError; a library that fails
        # while it initializes may raise anything.
        raise RegistrationError(f"its native library cannot be loaded: {error}") from error
    if _C._serves_cuda() != serves_cuda:
        before, now = (_OWN, "cuda") if serves_cuda else ("cuda", _OWN)
        raise RegistrationError(
            f"{DEVICE_TYPE_VARIABLE} changed from {before!r} to {now!r} after torch_openreg was "
            "loaded. Set it before the process imports torch."
        )


def _explain_missing_library() -> str:
    text = f"its native library torch_openreg._C is missing from {_PACKAGE}."
    if os.path.exists(os.path.join(os.path.dirname(_PACKAGE), "setup.py")):
        return (
            f"{text} This is the source tree and not the installed package: start Python in "
            "another directory, or install with 'pip install -e .'."
        )
    return f"{text} Install torch_openreg again."
