"""What the tests share: the names of the device and its module, and work that holds a stream.

No name of a device occurs in the tests: the backend is the one that torch has found, and has to be
that of the folder ``python/``.
"""

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import torch

NAME: str = torch._C._get_privateuse1_backend_name()


def _require(name: str) -> None:
    """Refuses the tests of a device that torch has not found: another one may pass them.

    Raises:
        RuntimeError: torch has found another one, or none.
    """
    if name != NAME:
        found = "no device" if NAME == "privateuseone" else NAME
        raise RuntimeError(
            f"the tests found {found}, not {name}: install it, or set OPENREG_DEVICE_TYPE=none"
        )


(_package,) = (
    path.parent
    for path in (Path(__file__).resolve().parents[1] / "python").glob("torch_*/__init__.py")
)
_require(_package.name.removeprefix("torch_"))
MODULE = torch.get_device_module(NAME)
_C = import_module(f"torch_{NAME}._C")
_driver = ctypes.CDLL(_C.__file__)
_HostFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_kept: list[object] = []  # until the process ends: streams call them


def enqueue(function: Callable[[], None], stream: torch.Stream | None = None) -> None:
    """Lets the stream call a Python function, by the driver's ``orLaunchHostFunc``."""
    stream = stream or torch.accelerator.current_stream()
    called = _HostFunction(lambda _: function())
    _kept.append(called)
    assert _driver.orLaunchHostFunc(ctypes.c_void_p(stream.native_handle), called, None) == 0


@contextmanager
def held(stream: torch.Stream | None = None) -> Iterator[threading.Event]:
    """Holds a stream until the block ends or the gate is set."""
    gate = threading.Event()
    enqueue(lambda: gate.wait(60) and None, stream)
    try:
        yield gate
    finally:
        gate.set()


def fail(text: str, stream: torch.Stream | None = None) -> None:
    """Enqueues work that fails, as a kernel does that returns an error."""
    enqueue(lambda: _driver.orSetKernelError(text.encode(), 0), stream)


def call_later(function: Callable[[], object]) -> threading.Thread:
    """Calls a function on another thread."""
    thread = threading.Thread(target=function)
    thread.start()
    return thread
