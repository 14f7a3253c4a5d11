"""Lines that generated wrappers have about streams and devices."""

from torch_openreg.inductor._devices import DEVICE_TYPE
from torch_openreg.inductor._internals import DeviceOpOverrides

__all__ = ["OpenRegDeviceOpOverrides"]


class OpenRegDeviceOpOverrides(DeviceOpOverrides):
    """Those of our device type."""

    def import_get_raw_stream_as(self, name: str) -> str:
        """Returns the import of what gives the number of a device's current stream."""
        return (
            "from torch_openreg.dynamo._interface import OpenRegInterface\n"
            f"{name} = OpenRegInterface.get_raw_stream"
        )

    def set_device(self, device_idx: int) -> str:
        """Returns a statement."""
        return f"torch.{DEVICE_TYPE}.set_device({device_idx})"

    def synchronize(self) -> str:
        """Returns a statement."""
        return f"torch.{DEVICE_TYPE}.synchronize()"

    def device_guard(self, device_idx: int) -> str:
        """Returns a context."""
        return f"torch.{DEVICE_TYPE}.device({device_idx})"

    def current_stream(self) -> str:
        """Returns an expression."""
        return f"torch.{DEVICE_TYPE}.current_stream()"

    def cpp_kernel_type(self) -> str:
        """Returns the type of a compiled program's kernel handle, as for the CPU."""
        return "void*"
