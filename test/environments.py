"""Environment variables that test files need when torch or Inductor is imported, which read them.

A module that sets some of them calls ``set_before_torch``. test/run.py, whose processes have
imported torch, reads the imports of a file with ``environment_of``.
"""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["INDUCTOR", "MODULES", "environment_of", "set_before_torch"]

_ROOT = Path(__file__).resolve().parent.parent
# The module of test/ that is imported by files that compile.
INDUCTOR = "extras.inductor.compiled"

# By the module of test/ that sets them.
MODULES: Mapping[str, Mapping[str, str]] = {
    "cuda.conftest": {"OPENREG_DEVICE_TYPE": "cuda"},
    "poison": {
        "OPENREG_MEMORY_POISON": "1",
        # Each test ends with a check of the memory in quarantine.
        "OPENREG_MEMORY_QUARANTINE": "4MiB",
    },
    INDUCTOR: {
        # A kernel is a call of the C++ compiler, which takes seconds: one folder for all tests and
        # runs, where a kernel's name is a hash of its source. The other caches are off, so that
        # each test compiles all but that.
        "TORCHINDUCTOR_CACHE_DIR": str(_ROOT / "build" / "inductor"),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
    },
}


def set_before_torch(module: str) -> None:
    """Sets the variables of a module.

    Raises:
        RuntimeError: torch has been imported without them.
    """
    variables = MODULES[module]
    missing = {name for name, value in variables.items() if os.environ.get(name) != value}
    if missing and "torch" in sys.modules:
        raise RuntimeError(
            f"{module}: expected a process that has not imported torch, or has had "
            f"{', '.join(sorted(missing))} from its start; run this file by itself, or all tests "
            "by test/run.py"
        )
    os.environ.update(variables)


def environment_of(file: Path) -> dict[str, str]:
    """Returns the variables that a test file needs: those of the modules that it imports."""
    variables: dict[str, str] = {}
    if file.parent.name == "cuda":
        variables |= MODULES["cuda.conftest"]
    for module in re.findall(r"^(?:from|import) ([\w.]+)", file.read_text("utf-8"), re.MULTILINE):
        variables |= MODULES.get(module, {})
    return variables
