"""The interface of the device for Dynamo and Inductor.

Importing this module registers the device type. Names with an index are added when Inductor
compiles a graph: to count the devices here would fix the settings when Dynamo is imported.
"""

from typing import Any

from torch._dynamo.device_interface import (
    CudaInterface,
    DeviceInterface,
    caching_worker_current_devices,
    get_registered_device_interfaces,
    register_interface_for_device,
)

from torch_openreg import openreg
from torch_openreg._version import __version__
from torch_openreg.openreg._utils import DEVICE_TYPE
from torch_openreg.openreg.devices import _exchange_device, _maybe_exchange_device
from torch_openreg.openreg.streams import _set_stream_by_id

__all__ = [
    "EmulatedCudaInterface",
    "OpenRegInterface",
    "TritonCudaInterface",
    "get_raw_stream",
    "register_indices",
]


class OpenRegInterface(DeviceInterface):
    """The functions of ``torch.openreg`` under the names of Dynamo."""

    device: Any = openreg.device
    Event: Any = openreg.Event
    Stream: Any = openreg.Stream

    class Worker:
        """Queries of compile processes, which have no device."""

        @staticmethod
        def set_device(device: int) -> None:
            """Keeps the current device of a process that compiles."""
            caching_worker_current_devices[DEVICE_TYPE] = device

        @staticmethod
        def current_device() -> int:
            """Returns the current device."""
            if DEVICE_TYPE in caching_worker_current_devices:
                return int(caching_worker_current_devices[DEVICE_TYPE])
            return openreg.current_device()

        @staticmethod
        def get_device_properties(device: Any = None) -> Any:
            """Returns the properties of a device."""
            return openreg.get_device_properties(device)

    current_device = staticmethod(openreg.current_device)
    set_device: Any = staticmethod(openreg.set_device)
    device_count = staticmethod(openreg.device_count)
    is_available = staticmethod(openreg.is_available)
    stream: Any = staticmethod(openreg.stream)
    current_stream = staticmethod(openreg.current_stream)
    set_stream: Any = staticmethod(openreg.set_stream)
    synchronize = staticmethod(openreg.synchronize)
    memory_allocated: Any = staticmethod(openreg.memory_allocated)
    exchange_device = staticmethod(_exchange_device)
    maybe_exchange_device = staticmethod(_maybe_exchange_device)

    @staticmethod
    def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
        _set_stream_by_id(stream_id, device_index, device_type)

    @staticmethod
    def get_raw_stream(device_idx: int) -> int:
        """Returns the number of the current stream of a device, as CUDA has it: 0, or a handle."""
        return get_raw_stream(device_idx)

    @staticmethod
    def get_compute_capability(device: Any = None) -> str:
        """Returns what decides whether compiled code fits: the version of the package."""
        return __version__

    @staticmethod
    def is_bf16_supported(including_emulation: bool = False) -> bool:
        """Whether kernels compute with bfloat16."""
        return openreg.is_bf16_supported()


class EmulatedCudaInterface(CudaInterface):
    """torch's own interface of ``torch.cuda`` with device type cuda: without Triton."""

    get_raw_stream: Any = staticmethod(OpenRegInterface.get_raw_stream)

    @staticmethod
    def is_triton_capable(device: Any = None) -> bool:
        """Whether kernels of Triton run."""
        return False

    @staticmethod
    def raise_if_triton_unavailable(device: Any = None) -> None:
        """Raises RuntimeError."""
        raise RuntimeError("torch.compile: expected real CUDA for Triton, got emulated CUDA")


class TritonCudaInterface(EmulatedCudaInterface):
    """The same, where Inductor makes kernels in Triton."""

    @staticmethod
    def is_triton_capable(device: Any = None) -> bool:
        """Whether kernels of Triton run."""
        return True

    @staticmethod
    def raise_if_triton_unavailable(device: Any = None) -> None:
        """Does nothing: Triton was found when the device type was registered."""


def get_raw_stream(device_idx: int) -> int:
    """Returns the number of the current stream of a device, as CUDA has it: 0, or a handle."""
    stream = openreg.current_stream(device_idx)
    return int(stream.native_handle) if stream.stream_id else 0  # type: ignore[attr-defined]


def register_indices(compiles_triton: bool = False) -> None:
    """Registers the interface for the device type, and for each device by its name."""
    # Dynamo registers its own interfaces at the first query, and would overwrite this one.
    get_registered_device_interfaces()
    interface: type[DeviceInterface] = OpenRegInterface
    if DEVICE_TYPE == "cuda":
        interface = TritonCudaInterface if compiles_triton else EmulatedCudaInterface
    for name in (DEVICE_TYPE, *(f"{DEVICE_TYPE}:{i}" for i in range(openreg.device_count()))):
        register_interface_for_device(name, interface)


# With device type cuda, Dynamo has its own interface until Inductor compiles a graph.
if DEVICE_TYPE != "cuda":
    register_interface_for_device(DEVICE_TYPE, OpenRegInterface)
