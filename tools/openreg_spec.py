"""The device functions that the tests of transformers and diffusers need.

``TRANSFORMERS_TEST_DEVICE_SPEC`` and ``DIFFUSERS_TEST_DEVICE_SPEC`` name this file.
"""

from torch_openreg import openreg

DEVICE_NAME = "openreg"
MANUAL_SEED_FN = openreg.manual_seed
EMPTY_CACHE_FN = openreg.empty_cache
DEVICE_COUNT_FN = openreg.device_count
SYNCHRONIZE_FN = openreg.synchronize
RESET_PEAK_MEMORY_STATS_FN = openreg.reset_peak_memory_stats
RESET_MAX_MEMORY_ALLOCATED_FN = openreg.reset_peak_memory_stats
MAX_MEMORY_ALLOCATED_FN = openreg.max_memory_allocated
SUPPORTS_TRAINING = True
