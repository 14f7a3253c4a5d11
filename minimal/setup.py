"""Builds the package: ``pip install --no-build-isolation .``. In full: setup.py."""

import os
from pathlib import Path

from setuptools import setup

NAME = "minimal"  # the one place of the name in Python; the folder torch_NAME is called after it
PACKAGE = f"torch_{NAME}"

# The driver, of which a vendor has headers and a library: libraries=["chip"], and no source. A
# relative path begins where the command was given, not here, where pip runs this file.
DEFAULT = Path(__file__).resolve().parents[1] / "third_party" / "openreg_runtime"
DRIVER = Path(os.environ.get("PWD", ""), os.environ.get("CHIP_DRIVER", DEFAULT))
if not (DRIVER / "include/openreg/openreg.h").exists():
    raise SystemExit(f"CHIP_DRIVER: expected a folder with include/openreg/openreg.h, got {DRIVER}")

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # building needs no device
from torch.utils.cpp_extension import BuildExtension, CppExtension  # noqa: E402

EXTENSION = CppExtension(
    f"{PACKAGE}._C",
    [*sorted(map(str, Path("csrc").rglob("*.cpp"))), str(DRIVER / "openreg.cpp")],
    include_dirs=[str(DRIVER / "include"), str(DRIVER / "src")],
    extra_compile_args=["-std=c++20", "-O1", "-g0", "-fvisibility=hidden", "-Wall"],
)

setup(
    name=PACKAGE,
    version="1.0",
    packages=[PACKAGE],
    package_dir={"": "python"},  # not here, where it would hide the one that is installed
    package_data={PACKAGE: ["*.pyi", "py.typed"]},
    ext_modules=[EXTENSION],
    cmdclass={"build_ext": BuildExtension},
    entry_points={"torch.backends": [f"{NAME} = {PACKAGE}:_autoload"]},
)
