"""Registers the backend of sketch.cpp: ``pytest -p sketch`` does so before anything else runs.

SKETCH_BUILD is the folder that the extension is built in.
"""

import os
import types
from pathlib import Path

import torch
from torch.utils import cpp_extension
from torch.utils.backend_registration import (
    generate_methods_for_privateuse1_backend,
    rename_privateuse1_backend,
)

__all__ = ["build"]


def build() -> types.ModuleType:
    """Builds the extension, or takes the one that is there."""
    return cpp_extension.load(
        "sketch_backend",
        [str(Path(__file__).with_suffix(".cpp"))],
        extra_cflags=["-O0", "-g0", "-std=c++20"],
        build_directory=os.environ["SKETCH_BUILD"],
    )


_backend = build()
rename_privateuse1_backend("sketch")


def _module() -> types.ModuleType:
    module = types.ModuleType("torch.sketch")
    module.is_available = lambda: True
    module.device_count = _backend.device_count
    module.current_device = _backend.current_device
    module.device = lambda device: torch.accelerator.device_index(torch.device(device).index)
    module.synchronize = lambda device=None: None
    module._is_in_bad_fork = lambda: False
    module.manual_seed_all = lambda seed: None
    module.is_initialized = lambda: True
    return module


torch._register_device_module("sketch", _module())
# Mistake: storages have no method that takes them to the device, which torch.load calls.
generate_methods_for_privateuse1_backend(
    for_storage=os.environ.get("SKETCH_DEFECTS") != "1",
)
