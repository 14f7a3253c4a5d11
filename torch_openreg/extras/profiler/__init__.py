"""``torch.profiler`` on the device, ranges, and torch's GPU trace."""

from types import ModuleType

from torch._C._profiler import ProfilerActivity

from torch_openreg._device_name import DEVICE_NAME
from torch_openreg.extras import add_module
from torch_openreg.extras.profiler import _gpu_trace, profiler
from torch_openreg.openreg._utils import DEVICE_TYPE

__all__ = ["register"]


def register(module: ModuleType) -> None:
    """Adds ``torch.openreg.profiler``, the activity ``OPENREG``, and torch's GPU trace.

    Args:
        module: The module ``torch.openreg``.
    """
    add_module(module, profiler, is_public=True)
    add_module(module, _gpu_trace)
    _gpu_trace.follow_activation()
    if DEVICE_TYPE == DEVICE_NAME:
        # As ProfilerActivity.CUDA; torch's own name for it is PrivateUse1.
        setattr(ProfilerActivity, DEVICE_NAME.upper(), ProfilerActivity.PrivateUse1)
