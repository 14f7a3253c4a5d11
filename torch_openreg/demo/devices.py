"""Section 1 of the demo: which devices there are."""

import torch

from torch_openreg import __version__, _settings, openreg
from torch_openreg.demo.report import Report
from torch_openreg.openreg._utils import DEVICE_TYPE

__all__ = ["show_devices"]

_GIB = 1024**3


def show_devices(report: Report) -> None:
    """Prints each device with its memory; a machine without one fails the report."""
    report.section("Devices")
    report.line(f"torch_openreg {__version__}, torch {torch.__version__}")
    count = openreg.device_count()
    reason = _settings.no_device_text() or ""
    report.check(count > 0, "at least one device is visible", f"{count} devices: {reason}")
    for index in range(count):
        properties = openreg.get_device_properties(index)
        free, total = openreg.mem_get_info(index)
        report.line(
            f"{DEVICE_TYPE}:{index}  {properties.name}, {total / _GIB:.2f} GiB of memory "
            f"({free / _GIB:.2f} GiB free), {properties.multi_processor_count} processors"
        )
