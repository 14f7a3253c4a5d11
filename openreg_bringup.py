"""Lists the operators of a program that ran on the CPU: what a new backend gets kernels for next.

``python -m openreg_bringup --device=mychip train.py arguments`` runs the program, then prints how
often each operator fell back to the CPU, the bytes that were copied for it, and the schemas to
register. It is about any backend of torch whose device module has two functions, as
``torch.mychip`` of a copy of ``minimal/`` has:

- ``fallback_stats()``: calls by operator, such as ``{"aten::mul.out": 3}``;
- ``fallback_copied_bytes()``: bytes by operator, with the same keys.

It counts this process and not those that the program starts. This is a module outside of the
package: importing the package imports torch, and would register the device openreg.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import re
import runpy
import shlex
import sys
import types
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import FunctionSchema

__all__ = ["COMPOSITE_KEYS", "Fallback", "Group", "fallbacks_of", "group_of", "has_kernel", "main"]

_PROGRAM = "python -m openreg_bringup"
_USAGE = f"""\
{_PROGRAM} --device=NAME [--json=FILE] script.py [argument ...]
       {_PROGRAM} --device=NAME [--json=FILE] -m module [argument ...]
       {_PROGRAM} --device=NAME [--json=FILE] -c command [argument ...]"""
_KIT = "pytest_openreg"  # pytest's plug-in of the conformance kit
_COUNTERS = ("fallback_stats", "fallback_copied_bytes")
# How torch says that an operator has no kernel, on the device or for the fallback on the CPU.
_NO_KERNEL = re.compile(r"Could not run '(aten::[\w.]+)'|\b(\w+_overrideable) not implemented")
# The dispatch keys of kernels that torch composes of other operators.
COMPOSITE_KEYS = (
    "CompositeImplicitAutograd",
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
)


@dataclass(frozen=True)
class Fallback:
    """An operator that ran on the CPU.

    Attributes:
        operator: its name with the overload, such as "aten::mul.out".
        calls: how often it ran.
        copied_bytes: what was copied for it, to the host and back.
        has_kernel: whether the device has a kernel, which then called the fallback.
    """

    operator: str
    calls: int
    copied_bytes: int
    has_kernel: bool


@dataclass(frozen=True)
class Group:
    """The functional, in-place and out variants of an operator.

    Attributes:
        name: the name that they share, such as "aten::mul".
        to_register: the schemas of those that need a kernel and have none.
        composed: the names of those that torch composes of the others.
    """

    name: str
    to_register: tuple[str, ...]
    composed: tuple[str, ...]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a program and prints the report, also if the program fails.

    Args:
        arguments: the command line without the program's name; None takes the process's own.

    Raises:
        SystemExit: if the command line is wrong, or the program raises it. Other exceptions of the
            program are raised, too.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    if not options.program:
        parser.error("expected a script, -m and a module, or -c and a command")
    device_type = options.device.split(":")[0]
    if device_type not in ("openreg", "cuda"):
        os.environ.setdefault("OPENREG_DEVICE_TYPE", "none")
    _prepare(parser, options)
    if options.json is not None:
        options.json = options.json.absolute()  # the program may change the current folder
        try:
            options.json.write_text("")
        except OSError as error:
            parser.error(f"--json: expected a file that can be written: {error}")
    _check_device(parser, device_type)
    failure: BaseException | None = None
    try:
        _run(options)
    except BaseException as error:
        failure = error
        raise
    finally:
        fallbacks = fallbacks_of(device_type)
        lines = [*_lines(fallbacks, device_type), *_lines_about(failure, device_type)]
        print("\n".join(lines), flush=True)
        if options.json is not None:
            options.json.write_text(_to_json(fallbacks, device_type))


def fallbacks_of(device_type: str) -> list[Fallback]:
    """Returns the operators that ran on the CPU in this process, those with most calls first."""
    import torch

    module: Any = torch.get_device_module(device_type)
    calls, copied = module.fallback_stats(), module.fallback_copied_bytes()
    key = torch._C._dispatch_key_for_device(device_type)
    fallbacks = [
        Fallback(name, calls[name], copied.get(name, 0), has_kernel(name, key)) for name in calls
    ]
    return sorted(fallbacks, key=lambda one: (-one.calls, -one.copied_bytes, one.operator))


def group_of(operator: str, device_type: str) -> Group:
    """Returns the group of an operator, such as "aten::mul.out", by torch's registry."""
    import torch

    name, _, overload = operator.partition(".")
    base = name if name.endswith("__") else name.removesuffix("_")
    find = torch._C._jit_get_schemas_for_operator
    own = next((schema for schema in find(name) if schema.overload_name == overload), None)
    if own is None:  # the program has defined it, and its library ended with the program
        return Group(base, (operator,), ())
    variants = {
        _name_of(schema): schema
        for schema in (*find(base), *find(f"{base}_"))
        if _inputs_of(schema) == _inputs_of(own)
    }
    composed = {one for one in variants if any(has_kernel(one, key) for key in COMPOSITE_KEYS)}
    key = torch._C._dispatch_key_for_device(device_type)
    return Group(
        base,
        tuple(
            str(schema)
            for one, schema in variants.items()
            if one not in composed and not has_kernel(one, key)
        ),
        tuple(sorted(one for one in composed if not has_kernel(one, key))),
    )


def _lines(fallbacks: Sequence[Fallback], device_type: str) -> Iterator[str]:
    if not fallbacks:
        yield f"no operator ran on the CPU instead of {device_type}"
        return
    calls = sum(one.calls for one in fallbacks)
    copied = sum(one.copied_bytes for one in fallbacks)
    yield f"operators that ran on the CPU instead of {device_type}:"
    yield ""
    yield f"{'calls':>9}  {'bytes copied':>14}  operator"
    for one in fallbacks:
        note = "  (its kernel called the fallback)" if one.has_kernel else ""
        yield f"{one.calls:9,}  {one.copied_bytes:14,}  {one.operator}{note}"
    yield f"{calls:9,}  {copied:14,}  all"
    yield ""
    yield "what to register, in this order:"
    groups = dict.fromkeys(group_of(one.operator, device_type) for one in fallbacks)
    for group in groups:
        yield ""
        yield from group.to_register or [f"{group.name}: all have kernels, which call the fallback"]
        if group.composed:
            yield f"    serves {', '.join(group.composed)}, too"
    yield ""
    yield f"what tests it: {_pytest()} --pyargs torch_openreg.conformance \\"
    names = ",".join(dict.fromkeys(group.name for group in groups))
    yield f"  --device={device_type} --conformance-operators={names}"


def _lines_about(failure: BaseException | None, device_type: str) -> Iterator[str]:
    """What to register before the program comes further, if it has met an operator without it."""
    found = _NO_KERNEL.search(str(failure))
    if not isinstance(failure, NotImplementedError) or found is None:
        return
    import torch

    name, _, overload = (found[1] or f"aten::{found[2]}").partition(".")
    yield ""
    yield f"where the program ended: an operator that neither {device_type} nor the CPU has"
    yield ""
    for schema in torch._C._jit_get_schemas_for_operator(name):
        if schema.overload_name == overload:
            yield str(schema)


def _pytest() -> str:
    """How pytest is called with the kit, which is beside this file."""
    if any(one.name == _KIT for one in importlib.metadata.entry_points(group="pytest11")):
        return "pytest"  # torch_openreg is installed
    folder = shlex.quote(str(Path(__file__).resolve().parent))
    return f"PYTHONPATH={folder} \\\n  pytest -p {_KIT}"


def _to_json(fallbacks: Sequence[Fallback], device_type: str) -> str:
    rows = [
        asdict(one) | {"group": asdict(group_of(one.operator, device_type))} for one in fallbacks
    ]
    return json.dumps({"device": device_type, "operators": rows}, indent=1) + "\n"


def _name_of(schema: FunctionSchema) -> str:
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name


def _inputs_of(schema: FunctionSchema) -> list[tuple[str, str]]:
    """The arguments that all variants of an operator have."""
    return [(one.name, str(one.type)) for one in schema.arguments if not one.is_out]


def has_kernel(operator: str, key: str) -> bool:
    """Returns whether an operator, which may be gone, has a kernel under a dispatch key."""
    import torch

    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return torch._C._dispatch_has_kernel(operator) and has(operator, key)


def _check_device(parser: argparse.ArgumentParser, device_type: str) -> None:
    """Ends the process unless the device's module has counters."""
    import torch

    try:
        torch.device(device_type)
        module = torch.get_device_module(device_type)
    except (RuntimeError, ValueError):
        found = torch._C._get_privateuse1_backend_name()
        parser.error(
            f"--device: expected the name of a device, got {device_type!r}; torch has found "
            + ("no backend" if found == "privateuseone" else f"the backend {found!r}")
        )
    missing = [name for name in _COUNTERS if not callable(getattr(module, name, None))]
    if missing:
        parser.error(
            f"--device: expected torch.{device_type} to have {' and '.join(missing)}, which return "
            "the calls and the bytes copied of each operator that ran on the CPU, such as "
            "{'aten::mul.out': 3}; minimal/csrc/aten/Fallback.cpp shows how"
        )


def _prepare(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Sets sys.argv and sys.path as Python does, and ends the process if there is no program."""
    program, *rest = options.program
    sys.argv = ["-m" if options.module else "-c" if options.command else program, *rest]
    place = ""
    if options.module:
        place = os.getcwd()
    elif not options.command:
        place = os.path.dirname(os.path.abspath(program))
    if not sys.flags.safe_path:
        sys.path[0] = place
    if options.module and not _is_module(program):
        parser.error(f"-m: expected a module, got {program!r}")
    if not options.module and not options.command and not os.path.exists(program):
        parser.error(f"expected a script, got {program!r}, which does not exist")


def _run(options: argparse.Namespace) -> None:
    """Runs the program as Python does, under the name __main__."""
    program = options.program[0]
    if options.module:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    elif options.command:
        main_module = types.ModuleType("__main__")
        sys.modules["__main__"] = main_module
        exec(compile(program, "<string>", "exec"), main_module.__dict__)
    else:
        runpy.run_path(program, run_name="__main__")


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of the package that it is in
        return False


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=_PROGRAM,
        usage=_USAGE,
        description="Runs a program, and lists its operators that ran on the CPU instead of a "
        "device, with the schemas to register.",
    )
    parser.add_argument(
        "--device",
        required=True,
        metavar="NAME",
        help="the device type, such as that of your backend",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report as JSON, too")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("-m", dest="module", action="store_true", help="run a module")
    kinds.add_argument("-c", dest="command", action="store_true", help="run a command")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="the script, module or command")
    return parser


if __name__ == "__main__":
    main()
