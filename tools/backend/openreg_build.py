"""The build backend: setuptools, and the torch of the environment that the package is for.

pip builds in an environment of its own, in which it installs what the build requires. A torch that
came that way would be gigabytes to download, and would be another one than the package runs with.
So the build looks for torch where programs of the user find it, and requires one only if there is
none: the policy's default release. Other front ends, such as ``uv`` and ``python -m build``, build
with an interpreter that knows nothing of the user's environment; docs/versions.md says what to type
there.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import setuptools

# All that is not defined here is as in setuptools.
from setuptools.build_meta import (
    build_editable,
    build_sdist,
    build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "policy",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
    "search_path_of_user",
]

_ROOT = Path(__file__).resolve().parents[2]

# Which pip does not see to without isolation, and which older ones do not say clearly.
_OLDEST_SETUPTOOLS = 77
if int(setuptools.__version__.split(".")[0]) < _OLDEST_SETUPTOOLS:
    sys.exit(
        f"torch_openreg: building needs setuptools {_OLDEST_SETUPTOOLS} or newer, but "
        f"{setuptools.__version__} is installed: pip install 'setuptools>={_OLDEST_SETUPTOOLS}'"
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
    # What a package that loads itself at start-up prints comes before.
    folders: list[str] = json.loads(output.splitlines()[-1])
    return folders


def get_requires_for_build_wheel(config_settings: Mapping[str, Any] | None = None) -> list[str]:
    """Returns what the isolated build has to install: torch only if the user has none."""
    del config_settings
    tools = ["ninja>=1.13", "pyyaml"]
    for found in importlib.metadata.distributions(name="torch", path=search_path_of_user()):
        try:
            policy.check_torch(found.version)
        except policy.VersionError as error:
            sys.exit(f"torch_openreg: {error}")
        return tools
    return [*tools, policy.torch_requirement(policy.DEFAULT_RELEASE)]


get_requires_for_build_editable = get_requires_for_build_wheel


def get_requires_for_build_sdist(config_settings: Mapping[str, Any] | None = None) -> list[str]:
    """Returns nothing: a source distribution is made of files."""
    del config_settings
    return []
