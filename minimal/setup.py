"""Builds the package: ``pip install --no-build-isolation ./minimal``. In full: setup.py."""

import os
from pathlib import Path

from setuptools import Extension, setup

NAME = "minimal"  # the one place of the name in Python; the folder torch_NAME is called after it

os.chdir(Path(__file__).resolve().parent)
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # building needs no device
from torch.utils.cpp_extension import BuildExtension, CppExtension  # noqa: E402

PACKAGE = f"torch_{NAME}"
# A vendor has headers and a library of the driver. Here it is built of its sources.
DRIVER = Path(os.environ.get("CHIP_DRIVER", "../third_party/openreg_runtime")).resolve()


class Build(BuildExtension):
    """Puts the driver's library beside the extension, which is linked with it."""

    def get_ext_filename(self, fullname: str) -> str:
        """Returns the file of an extension, which for the driver is a library like any other."""
        if fullname.endswith("libopenreg"):
            return fullname.replace(".", "/") + ".so"
        return str(super().get_ext_filename(fullname))

    def build_extensions(self) -> None:
        """Builds both, the driver first."""
        self.extensions[1].library_dirs.append(f"{self.build_lib}/{PACKAGE}")
        super().build_extensions()


FLAGS = ["-std=c++20", "-O1", "-g0", "-fvisibility=hidden", "-Wall"]
driver = Extension(
    f"{PACKAGE}.libopenreg",
    sorted(str(file) for file in DRIVER.glob("src/*.cpp")),
    include_dirs=[str(DRIVER / "include"), str(DRIVER / "src")],
    extra_compile_args=[*FLAGS, "-pthread"],
    extra_link_args=["-pthread", "-Wl,-soname,libopenreg.so"],
    language="c++",
)
backend = CppExtension(
    f"{PACKAGE}._C",
    sorted(str(file) for file in Path("csrc").rglob("*.cpp")),
    include_dirs=[str(DRIVER / "include")],
    libraries=["openreg"],
    extra_compile_args=FLAGS,
    extra_link_args=["-Wl,-rpath,$ORIGIN"],
)

setup(
    name=PACKAGE,
    version="1.0",
    packages=[PACKAGE],
    ext_modules=[driver, backend],
    cmdclass={"build_ext": Build},
    entry_points={"torch.backends": [f"{NAME} = {PACKAGE}:_autoload"]},
)
