"""Builds the defective twin of ``minimal/``: ``python test/conformance/twin.py FOLDER``.

The twin is ``minimal/`` with ``defects.patch`` and ``Defects.cpp``. It has no generator, no pinned
memory, no statistics and no timing. With ``CHIP_DEFECTS=1``, it has a mistake in each of the other
chapters of the kit. FOLDER then has the package ``torch_minimal``, which pytest's option ``-p``
imports.

Two things make the build short: all sources are one translation unit, and the driver is the library
that torch_openreg has installed.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["build", "patched_copy"]

_FOLDER = Path(__file__).resolve().parent
_ROOT = _FOLDER.parents[1]


def patched_copy(target: Path) -> None:
    """Copies the sources of ``minimal/`` to a new folder, with the defects.

    Raises:
        subprocess.CalledProcessError: The patch does not apply.
    """
    shutil.copytree(_ROOT / "minimal", target, ignore=shutil.ignore_patterns("build", "*.egg-info"))
    # If git found a repository above the copy, it would leave out the paths of the patch.
    environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(target.resolve().parent)}
    subprocess.run(
        ["git", "apply", str(_FOLDER / "defects.patch")], cwd=target, env=environment, check=True
    )
    (target / "csrc" / "runtime" / "HostAllocator.cpp").unlink()
    shutil.copy(_FOLDER / "Defects.cpp", target / "csrc" / "aten")


def build(folder: Path) -> None:
    """Builds the twin; loads it, too, so this process has no other device.

    Raises:
        ModuleNotFoundError: torch_openreg is not installed.
    """
    from torch.utils import cpp_extension

    # Not imported, as it would be another device.
    driver = importlib.util.find_spec("torch_openreg")
    if driver is None or driver.origin is None:
        raise ModuleNotFoundError("twin.py: expected torch_openreg to be installed, for its driver")
    libraries = Path(driver.origin).parent / "lib"
    folder.mkdir(parents=True, exist_ok=True)
    source = folder.resolve() / "source"
    patched_copy(source)
    sources = sorted((source / "csrc").rglob("*.cpp"))
    unit = source / "twin.cpp"
    unit.write_text("".join(f'#include "{file}"\n' for file in sources))
    package = folder.resolve() / "torch_minimal"
    shutil.copytree(source / "python" / "torch_minimal", package)
    cpp_extension.load(
        "_C",
        [str(unit)],
        extra_cflags=["-O0", "-g0", "-std=c++20"],
        extra_include_paths=[
            str(source / "csrc"),
            str(_ROOT / "third_party" / "openreg_runtime" / "include"),
        ],
        extra_ldflags=[f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-lopenreg"],
        build_directory=str(package),
    )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    build(Path(sys.argv[1]))
