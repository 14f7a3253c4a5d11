"""The name of the device type. A backend that is made of this one has its own name here."""

__all__ = ["DEVICE_NAME"]

# torch.device("openreg"), and the module torch.openreg.
DEVICE_NAME = "openreg"
