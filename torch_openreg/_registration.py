"""Registration: loads the native library, names the device, attaches the module."""

import functools
import os
import sys
from typing import Any

import torch
from torch.utils.backend_registration import (
    generate_methods_for_privateuse1_backend,
    rename_privateuse1_backend,
)

from torch_openreg._device_name import DEVICE_NAME
from torch_openreg._version import (
    VersionError,
    __version__,
    check_torch_of_build,
    library_folder,
    release_of,
)

_PACKAGE = os.path.dirname(os.path.abspath(__file__))
_DEVICE_TYPE_VARIABLE = "OPENREG_DEVICE_TYPE"
_OWN = "openreg"  # its value for the device of this package, whatever the name

# torch's name for the PrivateUse1 device before a backend renames it.
_UNCLAIMED_NAME = "privateuseone"


class RegistrationError(Exception):
    """Why the device cannot be registered, as one line for the user."""


# docs: register
def register() -> None:
    """Registers the device with torch. Does nothing if that has been done in this process.

    Raises:
        RegistrationError: torch has another version, another backend has taken torch's only place
            for one, or the native library cannot be loaded.
    """
    _choose_libraries()
    if _asks_for_cuda():
        _register_cuda()
        return
    _check_backend_place()
    _load_native_library(serves_cuda=False)
    from torch_openreg import _extras

    rename_privateuse1_backend(DEVICE_NAME)
    if hasattr(torch, DEVICE_NAME):
        return
    _attach_module()
    _explain_late_choice()
    if _extras.has("profiler"):
        _name_profiler_activity()
    generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True
    )


# docs: end


_is_set_up = False


def set_up(may_warnings_raise: bool) -> None:
    """Registers the device, warns about invalid settings, and applies those that act at import.

    Does nothing if that has been done in this process.

    Args:
        may_warnings_raise: whether a filter may turn a warning into an exception.

    Raises:
        RegistrationError: as for ``register``.
    """
    global _is_set_up
    if _is_set_up or asks_for_no_device():
        return
    register()
    from torch_openreg import _settings
    from torch_openreg.openreg import sanitizer

    _settings.warn(may_warnings_raise)
    sanitizer._enable_from_environment(may_warnings_raise)
    _is_set_up = True


def asks_for_no_device() -> bool:
    """Whether to register no device: the conformance kit tests another one."""
    return os.environ.get(_DEVICE_TYPE_VARIABLE) == "none"


def _asks_for_cuda() -> bool:
    """Whether the device type is to be CUDA; see Note [Device type] in core/DeviceKeys.h."""
    text = os.environ.get(_DEVICE_TYPE_VARIABLE, _OWN)
    if text not in (_OWN, "cuda"):
        raise RegistrationError(
            f"{_DEVICE_TYPE_VARIABLE} is '{text}'; allowed: {_OWN}, cuda or none. Set it before "
            "the process imports torch."
        )
    return text == "cuda"


def check_machine_for_cuda() -> None:
    """Raises RegistrationError if torch itself serves the device type CUDA on this machine."""
    from torch_openreg import _cuda_build

    if torch.version.hip is not None:
        raise RegistrationError(
            "Device type cuda needs a build of torch for CUDA or for the CPU, but torch "
            f"{torch.__version__} is one for ROCm. Use the device {DEVICE_NAME!r} beside it, or "
            f"install torch's CPU build: pip install --force-reinstall --no-deps "
            f"'torch=={release_of(str(torch.__version__))}.*' "
            "--index-url https://download.pytorch.org/whl/cpu"
        )
    if not _cuda_build.has_cuda() or _cuda_build.is_asked_to_hide_gpus():
        return
    if count := _cuda_build.usable_gpus():
        raise RegistrationError(
            f"{_DEVICE_TYPE_VARIABLE}=cuda takes the place of GPUs, but this machine has {count} "
            f"that torch {torch.__version__} can use. OPENREG_CUDA_OVER_GPU=1 hides them from this "
            "process"
        )


def _register_cuda() -> None:
    if hasattr(torch, DEVICE_NAME):
        return
    check_machine_for_cuda()
    from torch_openreg import _native_overrides

    _native_overrides.keep_out()
    _load_native_library(serves_cuda=True)
    from torch_openreg import _extras

    for extra in ("cuda", "distributed", "graph", "ipc", "profiler", "sanitizer"):
        if not _extras.has(extra):
            raise RegistrationError(_extras.explain(f"{_DEVICE_TYPE_VARIABLE}=cuda", extra))
    from torch_openreg import _C, _comm, _cuda, _fake_tensors, _imports, openreg

    if not _C._has_cuda_hooks():
        raise RegistrationError(
            f"torch {torch.__version__} does not use the CUDA hooks that torch_openreg registered. "
            f"Unset {_DEVICE_TYPE_VARIABLE} to use the device {DEVICE_NAME!r}."
        )
    _comm.provide()
    _fake_tensors.register()
    _imports.follow_dynamo()
    _cuda.install()
    openreg._gpu_trace._follow_activation()


def _choose_libraries() -> None:
    """Makes the libraries for the installed torch the ones that are loaded.

    Raises:
        RegistrationError: There are none for it.
    """
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
    name = torch._C._get_privateuse1_backend_name()
    if name not in (_UNCLAIMED_NAME, DEVICE_NAME):
        raise RegistrationError(
            f"torch has one PrivateUse1 backend per process, and '{name}' is already registered. "
            f"To use '{name}', set {_DEVICE_TYPE_VARIABLE}=none, or uninstall torch_openreg. To "
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
            f"{_DEVICE_TYPE_VARIABLE} changed from {before!r} to {now!r} after torch_openreg was "
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


def _name_profiler_activity() -> None:
    from torch._C._profiler import ProfilerActivity

    # As ProfilerActivity.CUDA; torch's own name for it is PrivateUse1.
    setattr(ProfilerActivity, DEVICE_NAME.upper(), ProfilerActivity.PrivateUse1)


def _explain_late_choice() -> None:
    """Makes device cuda report that the variable was set too late.

    torch's error text in a build without CUDA, or without a GPU, does not mention the variable.
    """
    initialize: Any = torch.cuda._lazy_init
    reason = "" if torch.cuda._is_compiled() else "Torch not compiled with CUDA enabled, and "

    @functools.wraps(initialize)
    def initialize_or_explain() -> None:
        if os.environ.get(_DEVICE_TYPE_VARIABLE) == "cuda":
            raise AssertionError(
                f"{reason}{_DEVICE_TYPE_VARIABLE} was not 'cuda' when torch was imported; set it "
                "before the process imports torch"
            )
        initialize()

    cuda: Any = torch.cuda
    cuda._lazy_init = initialize_or_explain


def _refuse_group(*_arguments: object) -> None:
    from torch_openreg import _extras

    _extras.require("torch.distributed", "distributed")


def _attach_module() -> None:
    from torch_openreg import _comm, _extras, _fake_tensors, _imports, backends, openreg
    from torch_openreg.openreg import ipc

    _comm.provide()
    _fake_tensors.register()
    ipc.register_reducers()
    torch._register_device_module(DEVICE_NAME, openreg)
    setattr(torch.backends, DEVICE_NAME, backends)
    sys.modules[f"torch.backends.{DEVICE_NAME}"] = backends
    if _extras.has("distributed"):
        from torch_openreg import distributed

        distributed.register()
    else:
        torch.distributed.Backend.register_backend("occl", _refuse_group, devices=[DEVICE_NAME])
    _imports.follow_dynamo()
    openreg._gpu_trace._follow_activation()
    # 'import torch.openreg.streams' must find the module that is already loaded: a second copy
    # would have different classes.
    prefix = f"{openreg.__name__}."
    for name in [name for name in sys.modules if name.startswith(prefix)]:
        sys.modules[f"torch.{DEVICE_NAME}.{name[len(prefix) :]}"] = sys.modules[name]
