"""The module ``torch.openreg``: devices, streams, events, memory and random numbers.

Names and behavior are those of ``torch.cuda``. The module initializes itself on first use.
Importing it and calling :func:`is_available` or :func:`device_count` initializes nothing.

Unless a function's description differs:

- any thread may call it, and streams and the current device are those of the calling thread;
- an argument ``device`` is an index, a string such as ``"openreg:1"``, a ``torch.device``, or None
  for the current device;
- a device that does not exist raises RuntimeError with the text ``The device index is out of
  range``, an argument of a wrong type TypeError, and another wrong value ValueError;
- sizes are in bytes.

Submodules: ``amp`` (mixed precision), ``comm`` (tensors spread over devices), ``memory``,
``profiler``, ``random``, ``sanitizer`` (finds work on several streams that nothing orders),
``sparse`` (types of sparse tensors), ``nccl`` and ``meta``.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

# torch looks up names with an underscore in this module, hence the F401s.
from torch_openreg.openreg import (  # noqa: F401
    _utils,
    comm,
    devices,
    fallback,
    initialization,
    memory,
    random,
    sparse,
    streams,
    tensor_types,
)
from torch_openreg.openreg._utils import MODULE_NAME
from torch_openreg.openreg.devices import *
from torch_openreg.openreg.devices import (  # noqa: F401
    _exchange_device,
    _get_device,
    _maybe_exchange_device,
)
from torch_openreg.openreg.fallback import *
from torch_openreg.openreg.initialization import *
from torch_openreg.openreg.initialization import (  # noqa: F401
    _is_in_bad_fork,
    _lazy_call,
    _lazy_init,
)
from torch_openreg.openreg.memory import *
from torch_openreg.openreg.random import *
from torch_openreg.openreg.random import (  # noqa: F401
    _get_default_generators,
    _get_generator,
    _set_rng_state_offset,
)
from torch_openreg.openreg.streams import *
from torch_openreg.openreg.streams import _set_stream_by_id, _sleep  # noqa: F401
from torch_openreg.openreg.tensor_types import *

# Extras add their names, see torch_openreg.extras.
__all__ = ["AcceleratorError", "OutOfMemoryError", "comm", "default_generators", "sparse"]
__all__ += devices.__all__
__all__ += fallback.__all__
__all__ += initialization.__all__
__all__ += memory.__all__
__all__ += random.__all__
__all__ += streams.__all__
__all__ += tensor_types.__all__

AcceleratorError = torch.AcceleratorError
OutOfMemoryError = torch.OutOfMemoryError

# Computed on each access; see __getattr__.
_initialized: bool
default_generators: tuple[torch.Generator, ...]
_LOOKUPS: dict[str, Callable[[], object]] = {
    "_initialized": is_initialized,
    "default_generators": _get_default_generators,
}

if not TYPE_CHECKING:

    def __dir__() -> list[str]:
        return sorted({*globals(), "default_generators"} - {"TYPE_CHECKING", "torch"})

    def __getattr__(name: str) -> object:
        if name in _LOOKUPS:
            return _LOOKUPS[name]()
        raise AttributeError(f"module {MODULE_NAME!r} has no attribute {name!r}")
