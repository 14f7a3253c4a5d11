"""Builds the native parts: the runtime, the backend on it, and the Python bindings.

Everything declarative is in ``pyproject.toml``.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from setuptools import Extension, setup

ROOT = Path(__file__).resolve().parent
os.chdir(ROOT)

# An older version of this package may be installed; importing torch must not load it.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

TORCH_RELEASE = "2.13"
LIB_PACKAGE = "torch_openreg.lib."


def fail(reason: str) -> None:
    sys.exit(f"torch_openreg: {reason}")


if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
    fail(f"expected Linux on x86-64 or aarch64, got {sys.platform} on {platform.machine()}")

try:
    import torch
    from torch.utils.cpp_extension import BuildExtension, include_paths, library_paths
except ImportError as error:
    fail(f"building needs torch {TORCH_RELEASE}.*, which cannot be imported: {error}")

if not torch.__version__.startswith(TORCH_RELEASE + "."):
    fail(f"building needs torch {TORCH_RELEASE}.*, got torch {torch.__version__}")


def sources(*patterns: str) -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for p in patterns for path in ROOT.glob(p))


# Absolute, as ninja runs in the build folder.
RUNTIME = ROOT / "third_party" / "openreg_runtime"
GENERATED = ROOT / "build" / "generated"
# What extension authors may include, in the folders in which it is installed.
INCLUDE = ROOT / "include"
# Everything below csrc is the backend's, but for the bindings.
BACKEND_FOLDERS = sorted({path.name for path in (ROOT / "csrc").iterdir()} - {"python"})


def torch_include_paths() -> list[str]:
    """Returns torch's include folders by paths that are the same in every build.

    pip's isolated builds each have a torch of their own, somewhere else. A command that names it
    would make ninja compile everything again.
    """
    installed = Path(torch.__file__).parent
    link = ROOT / "build" / f"torch-{torch.__version__}"
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(installed)
    folders = [str(link / Path(path).relative_to(installed)) for path in include_paths()]
    # The headers of torch that include Kineto's look for them there.
    return [*folders, f"{folders[0]}/kineto"]


DEBUG = os.environ.get("DEBUG", "0") == "1"
COMPILE_ARGS = [
    "-std=c++20",
    *(["-O0", "-g"] if DEBUG else ["-O2", "-g0"]),
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
]
# Headers of others are system headers: their warnings are not ours. Two kinds come up all the
# same, when g++ 12 has inlined torch's SmallVector and intrusive_ptr into our functions.
TORCH_COMPILE_ARGS = [
    *COMPILE_ARGS,
    # Headers of torch declare the operators that they use, instead of all there are.
    "-DAT_PER_OPERATOR_HEADERS",
    "-Wno-maybe-uninitialized",
    "-Wno-array-bounds",
    *(f"-isystem{path}" for path in torch_include_paths()),
]


class Build(BuildExtension):  # type: ignore[misc]
    """Builds two plain shared libraries besides the Python extension."""

    def finalize_options(self) -> None:
        super().finalize_options()
        # The same for every kind of install, so that a second build starts from the first.
        self.build_temp = str(ROOT / "build" / "temp")

    def get_ext_filename(self, fullname: str) -> str:
        if fullname.split(".")[-1] in ("libopenreg", "libtorch_openreg"):
            return os.path.join(*fullname.split(".")) + ".so"
        return str(super().get_ext_filename(fullname))

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return list(ext.export_symbols or [])

    def run(self) -> None:
        generate_operators()
        for extension in self.extensions:
            if extension.name == LIB_PACKAGE + "libtorch_openreg":
                extension.sources += sources("build/generated/*.cpp")
        super().run()
        copy_headers(Path(self.build_lib) / "torch_openreg")

    def build_extensions(self) -> None:
        library = Path(self.get_ext_fullpath(LIB_PACKAGE + "libopenreg")).parent
        for extension in self.extensions:
            extension.library_dirs.append(str(library))
        super().build_extensions()

    def copy_extensions_to_source(self) -> None:
        (ROOT / "torch_openreg" / "lib").mkdir(exist_ok=True)
        super().copy_extensions_to_source()
        copy_headers(ROOT / "torch_openreg")


def generate_operators() -> None:
    """Writes the structured operators' sources; unchanged files keep their time stamps."""
    subprocess.run(
        [
            sys.executable,
            "csrc/aten/structured/codegen/gen_structured.py",
            "--output-dir",
            str(GENERATED),
        ],
        check=True,
    )


def copy_headers(package: Path) -> None:
    """Puts the public headers into the package, those of the runtime among them."""
    folder = package / "include"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(RUNTIME / "include", folder)
    shutil.copytree(INCLUDE, folder, dirs_exist_ok=True)


def backend_extension(name: str, patterns: list[str], **options: Any) -> Extension:
    return Extension(
        name,
        sources(*patterns),
        include_dirs=[str(ROOT), str(INCLUDE), str(RUNTIME / "include")],
        library_dirs=library_paths(),
        extra_compile_args=TORCH_COMPILE_ARGS,
        language="c++",
        **options,
    )


setup(
    ext_modules=[
        Extension(
            LIB_PACKAGE + "libopenreg",
            sources("third_party/openreg_runtime/src/*.cpp"),
            include_dirs=[str(RUNTIME / "include"), str(RUNTIME / "src")],
            extra_compile_args=[*COMPILE_ARGS, "-pthread"],
            extra_link_args=["-pthread", "-Wl,-soname,libopenreg.so"],
            language="c++",
        ),
        backend_extension(
            LIB_PACKAGE + "libtorch_openreg",
            [f"csrc/{folder}/**/*.cpp" for folder in BACKEND_FOLDERS],
            libraries=["openreg", "c10", "torch_cpu", "torch"],
            extra_link_args=[
                "-Wl,-soname,libtorch_openreg.so",
                "-Wl,-rpath,$ORIGIN",
                "-Wl,--no-undefined",
            ],
        ),
        backend_extension(
            "torch_openreg._C",
            ["csrc/python/*.cpp"],
            libraries=["torch_openreg", "openreg", "c10", "torch_cpu", "torch", "torch_python"],
            extra_link_args=["-Wl,-rpath,$ORIGIN/lib"],
        ),
    ],
    cmdclass={"build_ext": Build},
)
