"""Makes the environment ``.venv``, installs the package, and runs the demo program or the tests.

``python3 tools/quickstart.py`` runs the demo program, ``python3 tools/quickstart.py --test`` the
tests, with the options of ``test/run.py``. Each command is printed before it runs, and existing
results are reused.

If there is no torch in ``.venv``, a build without CUDA is installed: it takes 200 MB instead of
gigabytes, and cuda mode needs one. If pip is configured with an index, torch comes from there, with
or without CUDA.
"""

from __future__ import annotations

import http.client
import importlib.util
import os
import re
import runpy
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path

__all__ = ["main"]

_ROOT = Path(__file__).resolve().parent.parent
_BIN = _ROOT / ".venv" / "bin"
_CPU_INDEX = "https://download.pytorch.org/whl/cpu"

sys.path.insert(0, str(_ROOT / "tools" / "backend"))
from openreg_machine import MachineError, check_machine  # noqa: E402


def main(arguments: Sequence[str]) -> int:
    """Runs the program and returns its exit code."""
    is_test = list(arguments[:1]) == ["--test"]
    if arguments and not is_test:
        print(__doc__, file=sys.stdout if arguments[0] in ("-h", "--help") else sys.stderr)
        return 0 if arguments[0] in ("-h", "--help") else 2
    try:
        check_machine(_ROOT)
        if not (_BIN / "pip").exists():
            _make_environment()
    except MachineError as error:
        return _fail(str(error))
    requirements = ["-r", "requirements-test.txt"] if is_test else []
    steps = [
        *([] if _has_torch() else [_install_torch()]),
        [str(_BIN / "pip"), "install", "-e", ".", *requirements],
    ]
    for step in steps:
        if _run(step) != 0:
            return _fail(f"'{_text(step)}' failed: see above")
    program = ["test/run.py", *arguments[1:]] if is_test else ["-m", "torch_openreg"]
    return _run([str(_BIN / "python"), *program])


def _make_environment() -> None:
    if importlib.util.find_spec("ensurepip") is None:
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        raise MachineError(
            f"expected Python's module ensurepip, which makes environments with pip. Install it: "
            f"apt install python{version}-venv"
        )
    if _run([sys.executable, "-m", "venv", ".venv"]) != 0:
        raise MachineError("the environment .venv could not be made: see above")


def _has_torch() -> bool:
    program = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    return subprocess.run([_BIN / "python", "-P", "-c", program], check=False).returncode == 0


def _install_torch() -> list[str]:
    release = runpy.run_path(str(_ROOT / "torch_openreg" / "_version.py"))["DEFAULT_RELEASE"]
    return [str(_BIN / "pip"), "install", f"torch=={release}.*", "numpy", *_index_options()]


def _index_options() -> list[str]:
    """Returns the options by which pip finds a build of torch without CUDA."""
    settings = subprocess.run(
        [_BIN / "pip", "config", "list"], stdout=subprocess.PIPE, text=True, check=False
    ).stdout
    if re.search(r"\b(index-url|find-links|no-index)=", settings):
        print("torch comes from where pip's settings say", flush=True)
        return []
    try:
        # pip would try for minutes, package by package.
        urllib.request.urlopen(f"{_CPU_INDEX}/torch/", timeout=10).close()
    except (OSError, http.client.HTTPException) as error:
        print(f"torch comes from pip's index: {_CPU_INDEX} cannot be reached ({error})", flush=True)
        return []
    return ["--extra-index-url", _CPU_INDEX]


def _run(command: Sequence[str]) -> int:
    print(f"\n$ {_text(command)}", flush=True)
    return subprocess.run(command, cwd=_ROOT, check=False).returncode


def _text(command: Sequence[str]) -> str:
    program, *arguments = command
    if Path(program).parent == _BIN:
        program = os.path.relpath(program, _ROOT)
    return shlex.join([program, *arguments])


def _fail(reason: str) -> int:
    print(f"torch_openreg: {reason}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
