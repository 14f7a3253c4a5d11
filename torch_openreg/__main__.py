"""Shows the openreg devices and proves that they work: ``python -m torch_openreg``."""

import argparse
import sys
from collections.abc import Sequence

import torch

from torch_openreg import __version__
from torch_openreg.demo.devices import show_devices
from torch_openreg.demo.overlap import show_launch, show_overlap
from torch_openreg.demo.report import Report
from torch_openreg.demo.settings import show_settings
from torch_openreg.demo.training import show_training
from torch_openreg.openreg._utils import _A_DEVICE, DEVICE_TYPE

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program.

    Args:
        arguments: the command line without the program's name; None takes the process's own.

    Returns:
        The exit code: 0 if everything agreed with the CPU, else 1. With ``--settings``: 1 if a
        setting has a bad value or a variable no meaning.
    """
    options = _parse(arguments)
    if options.settings:
        return show_settings(sys.stdout)
    report = Report(sys.stdout)
    show_devices(report)
    if not report.failures:
        show_launch(report, options.device)
        show_overlap(report, options.device)
        show_training(report, options.device, options.epochs)
    report.section("Result")
    if report.failures:
        report.line(f"{len(report.failures)} of the checks failed:")
        for failure in report.failures:
            report.line(f"  {failure}")
        return 1
    report.line(f"{DEVICE_TYPE} and the CPU agree")
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m torch_openreg",
        description=f"Lists the {DEVICE_TYPE} devices and demonstrates that they work.",
    )
    parser.add_argument(
        "--epochs", type=_positive, default=40, help="passes over the data (default: %(default)s)"
    )
    parser.add_argument(
        "--device",
        type=_openreg_device,
        default=f"{DEVICE_TYPE}:0",
        help="the device to train on (default: %(default)s)",
    )
    parser.add_argument(
        "--settings", action="store_true", help="list the settings and their values, and end"
    )
    parser.add_argument(
        "--version",
        action="version",
        version=f"torch_openreg {__version__}, torch {torch.__version__}",
    )
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a positive integer, got {text!r}")
    return int(text)


def _openreg_device(text: str) -> torch.device:
    try:
        device = torch.device(text)
    except RuntimeError as error:
        raise argparse.ArgumentTypeError(f"expected a device, got {text!r}") from error
    if device.type != DEVICE_TYPE:
        raise argparse.ArgumentTypeError(f"expected {_A_DEVICE}, got {text!r}")
    return torch.device(DEVICE_TYPE, device.index or 0)


if __name__ == "__main__":
    sys.exit(main())
