"""Runs a program that is written for CUDA: ``python -m torch_openreg.cuda script.py arguments``.

``-m module`` and ``-c code`` take the place of a script, as for Python.

In the program's process, and in those that it starts, device type ``cuda`` is served by this
package, on the CPU. It is the same as setting the environment variable ``OPENREG_DEVICE_TYPE`` to
``cuda``; the options set others.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import torch

from torch_openreg import _settings
from torch_openreg._loading import RegistrationError
from torch_openreg._version import __version__
from torch_openreg.extras.cuda import build, tools

__all__ = ["main"]

_PROGRAM = "python -m torch_openreg.cuda"
_DRY_RUN_OPTIONS = (
    *("gpu", "report", "picture", "timing", "beyond", "world-size", "rank", "ranks"),
    *("data-dependent", "made-up-value"),
)
_USAGE = f"""\
{_PROGRAM} [options] script.py [argument ...]
       {_PROGRAM} [options] -m module [argument ...]
       {_PROGRAM} [options] -c code [argument ...]"""
_DESCRIPTION = """\
Runs a program that is written for CUDA on emulated devices: in its process, and in those that it
starts, torch_openreg serves device type cuda, on the CPU. The options set environment variables;
"python -m torch_openreg --settings" lists all of them."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Replaces this process by one that runs the program.

    The device type is chosen when the libraries are loaded, and in this process they are loaded.

    Args:
        arguments: the command line without the program's name; None takes the process's own.

    Raises:
        SystemExit: if an option is unknown or invalid, a setting is invalid, no program is given,
            no device is available, or torch can use the machine's GPUs.
    """
    parser = _parser()
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        near = _settings.nearest(unknown[0].partition("=")[0], parser._option_string_actions)
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{near}")
    if not options.program:
        parser.error("expected a script, -m and a module, or -c and code")
    if options.gpu is not None and ":" in options.gpu:
        options.gpu, options.devices = options.gpu.split(":", 1)
    for option in _DRY_RUN_OPTIONS:
        if getattr(options, option.replace("-", "_")) is not None and options.dry_run is None:
            parser.error(f"--{option}: expected --dry-run with it")
    ranks = _ranks(parser, options)
    if os.environ.get("OPENREG_DEVICE_TYPE") != "cuda":  # otherwise, it is this package's option
        try:
            build.check_machine()
        except RegistrationError as error:
            sys.exit(f"{_PROGRAM}: error: {error}")
    os.environ["OPENREG_DEVICE_TYPE"] = "cuda"
    # The command selects the device, regardless of the environment.
    os.environ.pop("TORCH_DEVICE_BACKEND_AUTOLOAD", None)
    for option, variable, value in (
        ("--devices", "OPENREG_DEVICE_COUNT", options.devices),
        ("--memory", "OPENREG_DEVICE_MEMORY", options.memory),
        ("--sanitizer", "OPENREG_SANITIZER", options.sanitizer),
        ("--dry-run", "OPENREG_DRY_RUN", options.dry_run),
        ("--gpu", "OPENREG_DRY_RUN_GPU", options.gpu),
        ("--report", "OPENREG_DRY_RUN_REPORT", options.report),
        ("--picture", "OPENREG_DRY_RUN_PICTURE", options.picture),
        ("--timing", "OPENREG_DRY_RUN_TIMING", options.timing),
        ("--data-dependent", "OPENREG_DRY_RUN_SIZES", options.data_dependent),
        ("--made-up-value", "OPENREG_DRY_RUN_VALUE", options.made_up_value),
        ("--beyond", "OPENREG_DRY_RUN_BEYOND", options.beyond),
        ("--world-size", "OPENREG_DRY_RUN_WORLD_SIZE", options.world_size),
        ("--rank", "OPENREG_DRY_RUN_RANK", options.rank),
        ("--ranks", "OPENREG_DRY_RUN_RANKS", options.ranks),
    ):
        if value is not None:
            os.environ[variable] = value
            if (allowed := _settings.allowed_instead(variable)) is not None:
                parser.error(f"{option}: expected {allowed}, got {value!r}")
    if (reason := _settings.no_device_text()) is not None:
        sys.exit(f"{_PROGRAM}: error: no device is available: {reason}")
    if (problem := _report_problem()) is not None:
        sys.exit(f"{_PROGRAM}: error: {problem}")
    tools.offer()
    command = [sys.executable, *_interpreter_options(), *options.kind, *options.program]
    if ranks is not None:
        from torch_openreg.extras.dry_run import _play

        sys.exit(_play.play(command, ranks))
    os.execve(sys.executable, command, os.environ)


def _ranks(parser: argparse.ArgumentParser, options: argparse.Namespace) -> list[int] | None:
    """Returns the ranks of ``--ranks``; None without it."""
    for option in ("rank", "ranks"):
        if getattr(options, option) is not None and options.world_size is None:
            parser.error(f"--{option}: expected --world-size with it")
    if options.ranks is None:
        return None
    if options.rank is not None:
        parser.error("--ranks: expected no --rank with it, since one process runs for each")
    for option in ("report", "picture"):
        path = getattr(options, option)
        if path is not None and "%r" not in path:
            parser.error(f"--{option}: expected %r, which is the rank, in the name, got {path!r}")
    from torch_openreg.extras.dry_run import dry_run

    size = int(options.world_size) if options.world_size.isdecimal() else 0
    ranks = dry_run.ranks_in(options.ranks, size)
    if ranks is None:
        parser.error(
            f"--ranks: expected ranks below --world-size, {options.world_size}, with commas "
            f"between them, got {options.ranks!r}"
        )
    return ranks


def _report_problem() -> str | None:
    """Why the program's sanitizer could not write its report; None if it can, or if it is off."""
    path = os.environ.get("OPENREG_SANITIZER_REPORT")
    if not path or os.environ.get("OPENREG_SANITIZER", "0") == "0":
        return None
    from torch_openreg.extras.sanitizer._report_file import ReportFile

    return ReportFile(path).begin()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=_PROGRAM, usage=_USAGE, description=_DESCRIPTION)
    parser.add_argument("--devices", metavar="N", help="the number of devices (default: 2)")
    parser.add_argument("--memory", metavar="SIZE", help="the memory of each device, such as 8GiB")
    parser.add_argument(
        "--sanitizer",
        action="store_const",
        const="1",
        help="find races between streams, as OPENREG_SANITIZER=1 does",
    )
    parser.add_argument(
        "--dry-run",
        action="store_const",
        const="1",
        help="skip kernels on large tensors, and report whether the program fits the GPU",
    )
    parser.add_argument(
        "--gpu",
        metavar="NAME[:N]",
        type=str.lower,
        help="of a dry run: the GPU whose memory the devices have, such as h100, and their number",
    )
    parser.add_argument(
        "--report", metavar="FILE", help="of a dry run: also write the report to a file, as JSON"
    )
    parser.add_argument(
        "--picture", metavar="FILE", help="of a dry run: also draw memory over time, as SVG"
    )
    parser.add_argument(
        "--timing",
        metavar="WHEN",
        help="of a dry run: when memory that other streams use comes back, early or late",
    )
    parser.add_argument(
        "--data-dependent",
        metavar="SIZES",
        help="of a dry run: sizes that depend on data are the worst, none, or an error",
    )
    parser.add_argument(
        "--made-up-value",
        metavar="NUMBER",
        help="of a dry run: what small results of skipped work read as, 0 or 1",
    )
    parser.add_argument(
        "--beyond",
        action="store_const",
        const="1",
        help="of a dry run: go on beyond the GPU's memory, and report how much it takes",
    )
    parser.add_argument(
        "--world-size",
        metavar="W",
        help="of a dry run: the number of ranks, of which one runs and the others are absent",
    )
    parser.add_argument("--rank", metavar="R", help="of a dry run: the rank that runs (default: 0)")
    parser.add_argument(
        "--ranks",
        metavar="R,R",
        help="of a dry run: the ranks that run, such as one of each stage of a pipeline, each in a "
        "process of its own",
    )
    parser.add_argument(
        "--version",
        action="version",
        version=f"torch_openreg {__version__}, torch {torch.__version__}",
    )
    for option, what in (("-m", "a module"), ("-c", "code")):
        parser.add_argument(
            option, dest="kind", action="append_const", const=option, default=[], help=f"run {what}"
        )
    parser.add_argument("program", nargs=argparse.REMAINDER, help="the script, module or code")
    return parser


def _interpreter_options() -> list[str]:
    """Returns the options of this interpreter that stand before ``-m torch_openreg.cuda``."""
    options = sys.orig_argv[1:]
    for index, option in enumerate(options):
        if option in ("-m", "-mtorch_openreg.cuda"):
            return options[:index]
    return []
