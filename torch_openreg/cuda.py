"""Runs a program that is written for CUDA: ``python -m torch_openreg.cuda script.py arguments``.

In the program's process, and in those that it starts, device type ``cuda`` is served by this
package, on the CPU. It is the same as setting the environment variable ``OPENREG_DEVICE_TYPE`` to
``cuda``; the options set others.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from torch_openreg._registration import RegistrationError, check_build_for_cuda

__all__ = ["main"]

_USAGE = """\
python -m torch_openreg.cuda [--devices N] [--memory SIZE] script.py [argument ...]
       python -m torch_openreg.cuda [--devices N] [--memory SIZE] -m module [argument ...]"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Replaces this process by one that runs the program.

    The device type is chosen when the libraries are loaded, and in this process they are loaded.

    Args:
        arguments: the command line without the program's name; None takes the process's own.

    Raises:
        SystemExit: if there is an option that is not known, no program, or a torch that has a
            device type CUDA of its own.
    """
    options = _parse(arguments)
    if os.environ.get("OPENREG_DEVICE_TYPE") != "cuda":  # otherwise, it is ours
        try:
            check_build_for_cuda()
        except RegistrationError as error:
            sys.exit(f"torch_openreg.cuda: {error}")
    environment = {**os.environ, "OPENREG_DEVICE_TYPE": "cuda"}
    if options.devices is not None:
        environment["OPENREG_DEVICE_COUNT"] = str(options.devices)
    if options.memory is not None:
        environment["OPENREG_DEVICE_MEMORY"] = options.memory
    program = [*(["-m"] if options.module else []), *options.program]
    os.execve(sys.executable, [sys.executable, *_interpreter_options(), *program], environment)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(usage=_USAGE, description=__doc__)
    parser.add_argument("--devices", type=int, metavar="N", help="how many devices there are")
    parser.add_argument("--memory", metavar="SIZE", help="of each device, such as 8GiB")
    parser.add_argument("-m", dest="module", action="store_true", help="run a module")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="the script or module")
    options = parser.parse_args(arguments)
    if not options.program:
        parser.error("expected a script, or -m and a module")
    return options


def _interpreter_options() -> list[str]:
    """Returns the options of this interpreter that stand before ``-m torch_openreg.cuda``."""
    options = sys.orig_argv[1:]
    for index, option in enumerate(options):
        if option in ("-m", "-mtorch_openreg.cuda"):
            return options[:index]
    return []


if __name__ == "__main__":
    main()
