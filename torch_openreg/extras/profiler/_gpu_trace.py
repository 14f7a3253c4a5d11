"""Callbacks for what happens on streams and in memory: what ``torch.cuda._gpu_trace`` is for CUDA.

torch calls the registries below by their names once ``torch._C._activate_gpu_trace()`` was called,
and passes addresses and handles as numbers. A callback may be called in any thread that uses the
device; torch logs its exceptions.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch._utils import CallbackRegistry

from torch_openreg import _C
from torch_openreg._device_name import DEVICE_NAME

__all__: list[str] = []

EventCreationCallbacks: CallbackRegistry[[int]] = CallbackRegistry(f"{DEVICE_NAME} event creation")
EventDeletionCallbacks: CallbackRegistry[[int]] = CallbackRegistry(f"{DEVICE_NAME} event deletion")
EventRecordCallbacks: CallbackRegistry[[int, int]] = CallbackRegistry(f"{DEVICE_NAME} event record")
EventWaitCallbacks: CallbackRegistry[[int, int]] = CallbackRegistry(f"{DEVICE_NAME} event wait")
MemoryAllocationCallbacks: CallbackRegistry[[int]] = CallbackRegistry(
    f"{DEVICE_NAME} memory allocation"
)
MemoryDeallocationCallbacks: CallbackRegistry[[int]] = CallbackRegistry(
    f"{DEVICE_NAME} memory deallocation"
)
StreamCreationCallbacks: CallbackRegistry[[int]] = CallbackRegistry(
    f"{DEVICE_NAME} stream creation"
)
DeviceSynchronizationCallbacks: CallbackRegistry[[]] = CallbackRegistry(
    f"{DEVICE_NAME} device synchronization"
)
StreamSynchronizationCallbacks: CallbackRegistry[[int]] = CallbackRegistry(
    f"{DEVICE_NAME} stream synchronization"
)
EventSynchronizationCallbacks: CallbackRegistry[[int]] = CallbackRegistry(
    f"{DEVICE_NAME} event synchronization"
)

register_callback_for_event_creation = EventCreationCallbacks.add_callback
register_callback_for_event_deletion = EventDeletionCallbacks.add_callback
register_callback_for_event_record = EventRecordCallbacks.add_callback
register_callback_for_event_wait = EventWaitCallbacks.add_callback
register_callback_for_memory_allocation = MemoryAllocationCallbacks.add_callback
register_callback_for_memory_deallocation = MemoryDeallocationCallbacks.add_callback
register_callback_for_stream_creation = StreamCreationCallbacks.add_callback
register_callback_for_device_synchronization = DeviceSynchronizationCallbacks.add_callback
register_callback_for_stream_synchronization = StreamSynchronizationCallbacks.add_callback
register_callback_for_event_synchronization = EventSynchronizationCallbacks.add_callback


def follow_activation() -> None:
    """Has this backend report to the callbacks when torch's trace is active, now or later."""
    library: Any = torch._C
    activate: Callable[[], None] = library._activate_gpu_trace

    def _activate_gpu_trace() -> None:
        activate()
        _C._start_gpu_trace()

    library._activate_gpu_trace = _activate_gpu_trace
    _C._start_gpu_trace()
