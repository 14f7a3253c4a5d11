"""Installations of this package in environments of their own, from the libraries that are built."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

from source_tree import ROOT

import torch_openreg

__all__ = [
    "install",
    "make_environment",
    "make_fresh_environment",
    "make_tree",
    "make_wheel",
    "run",
    "site_packages",
]

# The part of the source tree that a build without the native part reads. The rest is only listed.
COPIED = (
    *("LICENSE", "README.md", "openreg_bringup.py", "pyproject.toml", "pytest_openreg.py"),
    *("setup.py", "tools", "triton_openreg"),
)
LINKED = ("csrc", "include", "third_party")

# Runs setup.py as the build backend does, but with the native part as it is.
BUILD = """
import sys
import setuptools

original = setuptools.setup

def setup(**options):
    assert options.pop("ext_modules") and options["cmdclass"].pop("build_ext")
    return original(**options)

setuptools.setup = setup
sys.path.insert(0, "tools/backend")
import openreg_build

getattr(openreg_build, f"build_{sys.argv[1]}")(sys.argv[2])
"""


def make_tree(folder, has_libraries):
    """Creates the contents of a clone in folder, with or without this clone's native part."""
    folder.mkdir(parents=True)
    for name in (*COPIED, "torch_openreg_autoload.py"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    for name in LINKED:
        (folder / name).symlink_to(ROOT / name)
    ignored = shutil.ignore_patterns(*([] if has_libraries else ["*.so", "lib"]), "__pycache__")
    shutil.copytree(Path(torch_openreg.__file__).parent, folder / "torch_openreg", ignore=ignored)


def make_environment(folder):
    """Makes a virtual environment that has the packages of this one; returns its interpreter."""
    venv.create(folder, symlinks=True)
    packages = [path for path in sys.path if Path(path, "torch", "__init__.py").is_file()]
    packages += [path for path in sys.path if path.endswith("site-packages")]
    (site_packages(folder) / "zz_packages.pth").write_text("\n".join(packages) + "\n")
    return folder / "bin" / "python"


def site_packages(environment):
    return next(environment.glob("lib/python3*/site-packages"))


def install(kind, tree, environment):
    """Builds a wheel ("wheel") or what an editable installation installs, and installs it."""
    with tempfile.TemporaryDirectory() as folder:
        run([sys.executable, "-c", BUILD, kind, folder], tree)
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            wheel.extractall(site_packages(environment))
    origin = {"url": tree.as_uri(), "dir_info": {"editable": kind == "editable"}}
    information = next(site_packages(environment).glob("torch_openreg-*.dist-info"))
    (information / "direct_url.json").write_text(json.dumps(origin))


def run(command, folder):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OPENREG", "PYTHON", "TORCH"))}
    result = subprocess.run(command, cwd=folder, env=kept, capture_output=True, text=True)
    if result.returncode != 0:
        raise AssertionError(f"{command} ended with {result.returncode}\n{result.stderr}")
    return result


def make_wheel(folder):
    """Makes a wheel with this build's libraries in a folder; returns its path."""
    with tempfile.TemporaryDirectory() as temporary:
        tree = Path(temporary, "tree")
        make_tree(tree, has_libraries=False)
        run([sys.executable, "-c", BUILD, "wheel", str(folder)], tree)
    (wheel,) = Path(folder).glob("*.whl")
    package = Path(torch_openreg.__file__).parent
    with zipfile.ZipFile(wheel, "a") as archive:
        for path in (*package.glob("*.so"), *(package / "lib").rglob("*")):
            if path.is_file():
                archive.write(path, path.relative_to(package.parent))
    return wheel


# As pip would make them.
PROGRAMS = {
    "pip": "from pip._internal.cli.main import main",
    "pytest": "from pytest import console_main as main",
    "torchrun": "from torch.distributed.run import main",
}


def make_fresh_environment(folder):
    """Makes an environment in which all packages of this one but ours are installed, for pip too.

    Returns:
        The variables of a process in it.
    """
    venv.create(folder, symlinks=True)
    packages = site_packages(folder)
    for path in sys.path:
        if not path.endswith("site-packages"):
            continue
        for one in Path(path).iterdir():
            is_ours = one.name.startswith(
                ("torch_openreg", "torch-stubs", "openreg_bringup", "pytest_openreg", "__editable")
            )
            if not is_ours and one.suffix != ".pth" and not (packages / one.name).exists():
                (packages / one.name).symlink_to(one)
    for name, line in PROGRAMS.items():
        program = folder / "bin" / name
        program.write_text(f"#!{folder / 'bin' / 'python'}\nimport sys\n{line}\nsys.exit(main())\n")
        program.chmod(0o755)
    foreign = ("OPENREG", "PYTHON", "TORCH", "PIP", "PYTEST")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
    return kept | {
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "VIRTUAL_ENV": str(folder),
    }
