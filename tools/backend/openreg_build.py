"""The build backend: setuptools, and the torch of the environment that the package is for.

pip builds in a separate environment, in which it installs the build requirements. A torch that came
that way would be gigabytes to download, and would be another one than the package runs with. So the
build searches for torch where programs of the user find it, and requires it only if there is
none: the policy's default release. Other front ends, such as ``uv`` and ``python -m build``, build
with an interpreter without access to the user's environment; docs/versions.md has the commands for
them.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import json
import os
import runpy
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import setuptools
from openreg_machine import MachineError, check_machine, check_python

# All that is not defined here is as in setuptools.
from setuptools import build_meta
from setuptools.build_meta import (
    build_sdist,
    build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "fail",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "policy",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
    "search_path_of_user",
]

_ROOT = Path(__file__).resolve().parents[2]


def fail(reason: object) -> NoReturn:
    """Ends the build with a line for the user, which is the last one that the front end shows."""
    sys.exit(f"torch_openreg: {reason}")


# The files below, and the build requirements, do not support older ones.
try:
    check_python()
except MachineError as error:
    fail(error)

# Which pip does not see to without isolation, and which older ones do not say clearly.
_OLDEST_SETUPTOOLS = 77
if int(setuptools.__version__.split(".")[0]) < _OLDEST_SETUPTOOLS:
    fail(
        f"building needs setuptools {_OLDEST_SETUPTOOLS} or newer, but {setuptools.__version__} is "
        f"installed: pip install 'setuptools>={_OLDEST_SETUPTOOLS}'"
    )

# What hides the user's packages from an interpreter that runs in an isolated build.
_ISOLATING_VARIABLES = ("PYTHONPATH", "PYTHONNOUSERSITE", "PYTHONHOME")

# torch_openreg/_version.py, which cannot be imported without torch.
policy = SimpleNamespace(**runpy.run_path(str(_ROOT / "torch_openreg" / "_version.py")))


def search_path_of_user() -> list[str]:
    """Returns where this interpreter finds modules outside of an isolated build."""
    environment = {k: v for k, v in os.environ.items() if k not in _ISOLATING_VARIABLES}
    program = "import json, sys; print(json.dumps(sys.path))"
    output = subprocess.run(
        # Without the current folder.
        [sys.executable, "-P", "-c", program],
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    # Packages that load at start-up may print before it.
    folders: list[str] = json.loads(output.splitlines()[-1])
    return folders


def get_requires_for_build_wheel(config_settings: Mapping[str, Any] | None = None) -> list[str]:
    """Returns the requirements of the isolated build: torch only if the user has none."""
    del config_settings
    # Before anything is downloaded.
    try:
        check_machine(_ROOT)
    except MachineError as error:
        fail(error)
    tools = ["ninja>=1.13", "pyyaml"]
    for found in importlib.metadata.distributions(name="torch", path=search_path_of_user()):
        try:
            policy.check_torch(found.version)
        except policy.VersionError as error:
            fail(error)
        return tools
    return [*tools, policy.torch_requirement(policy.DEFAULT_RELEASE)]


get_requires_for_build_editable = get_requires_for_build_wheel


def get_requires_for_build_sdist(config_settings: Mapping[str, Any] | None = None) -> list[str]:
    """Returns nothing: a source distribution is made of files."""
    del config_settings
    return []


def build_editable(
    wheel_directory: str,
    config_settings: Mapping[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Builds as setuptools does, and puts copies of the entry points' modules into the wheel.

    All other modules of an editable installation are in the source tree. If that is moved, the
    copies are still there, so that ``import torch`` works and reports what is missing, and ``import
    triton`` works.
    """
    name = str(build_meta.build_editable(wheel_directory, config_settings, metadata_directory))
    modules = [_ROOT / "torch_openreg_autoload.py", *sorted(_ROOT.glob("triton_openreg/*.py"))]
    _add_to_wheel(Path(wheel_directory) / name, modules)
    return name


def _add_to_wheel(wheel: Path, modules: Sequence[Path]) -> None:
    """Adds modules to a wheel and to the wheel's list of its files."""
    contents = {str(path.relative_to(_ROOT)): path.read_bytes() for path in modules}
    rows = b""
    for name, content in contents.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        rows += f"{name},sha256={digest},{len(content)}\n".encode()
    with zipfile.ZipFile(wheel) as archive:
        members = [(member, archive.read(member)) for member in archive.infolist()]
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in members:
            is_list = member.filename.endswith(".dist-info/RECORD")
            archive.writestr(member, rows + data if is_list else data)
        for name, content in contents.items():
            archive.writestr(name, content)
