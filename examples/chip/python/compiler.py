"""Step 11 of docs/bring_up.md: torch.compile. In full: torch_openreg/dynamo/_interface.py.

With this, the backends "eager" and "aot_eager" work, which call the device's operators. Inductor
needs kernels: torch_openreg/extras/inductor/.
"""

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

from . import _C
from . import device as module

_DYNAMO = "torch._dynamo.device_interface"


# docs: chip-compiler
def _register(dynamo: Any) -> None:
    class Interface(dynamo.DeviceInterface):  # type: ignore[misc]
        """What Dynamo asks of the device."""

        device = module.device
        Event = torch.Event
        Stream = torch.Stream
        device_count = staticmethod(torch.accelerator.device_count)
        current_device = staticmethod(torch.accelerator.current_device_index)
        set_device = staticmethod(torch.accelerator.set_device_index)
        exchange_device = staticmethod(torch._C._accelerator_exchangeDevice)
        is_available = staticmethod(module.is_available)
        current_stream = staticmethod(torch.accelerator.current_stream)
        set_stream = staticmethod(torch.accelerator.set_stream)
        synchronize = staticmethod(torch.accelerator.synchronize)

        @staticmethod
        def is_bf16_supported(including_emulation: bool = False) -> bool:
            return True

    dynamo.register_interface_for_device(_C.NAME, Interface)


class _Finder(MetaPathFinder):
    """Registers the interface when a program imports Dynamo, which takes seconds."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _DYNAMO:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.loader is not None
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            _register(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if _DYNAMO in sys.modules:
    _register(sys.modules[_DYNAMO])
else:
    sys.meta_path.insert(0, _Finder())
# docs: end
