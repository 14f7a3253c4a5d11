"""Fails unless each device computes: ``python tools/check_devices.py``, for the action.

``OPENREG_DEVICE_TYPE`` and ``OPENREG_DEVICE_COUNT`` say which devices are expected. A failure is a
line that GitHub shows at the top of the run. ``--requirement RELEASE`` prints what pip has to
install for this release of torch, and fails if the package does not support it; without RELEASE,
it is any supported release.
"""

import argparse
import os
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

__all__ = ["main", "problem_of_devices", "requirement_for"]

_ROOT = Path(__file__).resolve().parent.parent
_policy = SimpleNamespace(**runpy.run_path(str(_ROOT / "torch_openreg" / "_version.py")))


def requirement_for(release: str) -> str:
    """Returns pip's requirement for a release of torch, or for any release if it is empty.

    Raises:
        ValueError: The package does not support the release.
    """
    if release and release not in _policy.TORCH_RELEASES:
        supported = ", ".join(_policy.TORCH_RELEASES)
        raise ValueError(f"torch: expected one of {supported}, or nothing, got {release!r}")
    requirement: str = _policy.torch_requirement(release or None)
    return requirement


def problem_of_devices(kind: str, count: int) -> str | None:
    """Returns what is wrong with the devices; None if each of them computes.

    Args:
        kind: The device type that the package has to serve.
        count: The number of its devices.
    """
    expected = f"expected {count} devices of the type {kind} from torch_openreg"
    try:
        import torch
    except ImportError as error:
        return f"{expected}, but torch cannot be imported: {error}"
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or accelerator.type != kind or not hasattr(torch, "openreg"):
        return f"{expected}, but the accelerator of torch {torch.__version__} is {accelerator}"
    found = torch.accelerator.device_count()
    if found != count:
        return f"{expected}, got {found}"
    for index in range(count):
        x = torch.arange(8.0, device=f"{kind}:{index}")
        if x.mul(2).tolist() != list(range(0, 16, 2)):
            return f"{expected}, but {kind}:{index} computes wrong numbers"
    print(f"torch_openreg {_policy.__version__}, torch {torch.__version__}: {count} x {kind}")
    return None


def main() -> int:
    """Runs the program and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python tools/check_devices.py", description=__doc__)
    parser.add_argument("--requirement", nargs="?", const="", metavar="RELEASE")
    options = parser.parse_args()
    if options.requirement is not None:
        try:
            print(requirement_for(options.requirement))
        except ValueError as error:
            # Not on stdout, which the action reads; GitHub takes commands from both.
            print(f"::error title=torch_openreg::{error}", file=sys.stderr)
            return 1
        return 0
    kind, count = os.environ["OPENREG_DEVICE_TYPE"], int(os.environ["OPENREG_DEVICE_COUNT"])
    if (problem := problem_of_devices(kind, count)) is not None:
        print(f"::error title=torch_openreg::{problem}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
