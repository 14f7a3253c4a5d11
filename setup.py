"""Builds the native parts: the runtime, the backend on it, and the Python bindings.

Everything declarative is in ``pyproject.toml``.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
os.chdir(ROOT)

# An older version of this package may be installed; importing torch must not load it.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

sys.path.insert(0, str(ROOT / "tools" / "backend"))
from openreg_build import fail, policy, search_path_of_user  # noqa: E402
from openreg_extras import extra_of, missing_extras  # noqa: E402
from openreg_machine import MachineError, affordable_jobs, check_machine, full_disk  # noqa: E402

LIB_PACKAGE = "torch_openreg.lib."


if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
    fail(f"expected Linux on x86-64 or aarch64, got {sys.platform} on {platform.machine()}")

if "sdist" in sys.argv:
    # A source distribution is made of files, and is for any torch.
    setup(version=policy.__version__, install_requires=[policy.torch_requirement(), "numpy"])
    sys.exit()

# Also without isolation, where the build backend was not queried for its requirements.
try:
    check_machine(ROOT)
except MachineError as error:
    fail(error)

# Last: the packages of an isolated build come before the user's.
USER_PATH = [folder for folder in search_path_of_user() if folder not in sys.path]
sys.path += USER_PATH

try:
    import torch
    from torch.utils.cpp_extension import (
        BuildExtension,
        get_cxx_compiler,
        include_paths,
        library_paths,
    )
except ImportError as error:
    fail(
        f"building needs {policy.torch_requirement()}, which cannot be imported: {error}. Install "
        f"it first: pip install '{policy.torch_requirement(policy.TORCH_RELEASES[-1])}' numpy"
    )

TORCH_VERSION = str(torch.__version__)
TORCH_RELEASE = policy.release_of(TORCH_VERSION)
try:
    policy.check_torch(TORCH_VERSION)
except policy.VersionError as error:
    fail(error)

# See Note [Versions] in torch_openreg/_version.py.
IS_FOR_OTHERS = os.environ.get("OPENREG_VERSION_LABEL", "0") == "1"


def prefer_packaged_ninja() -> None:
    """Puts the program of the package ninja first on the path, which torch searches.

    A ninja of another version does not understand the log of the last build, and would compile
    everything again. Isolated builds have the package; so it is the one for all.
    """
    try:
        files = importlib.metadata.files("ninja") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    programs = [Path(str(file.locate())).resolve() for file in files if file.name == "ninja"]
    folders = [str(program.parent) for program in programs if os.access(program, os.X_OK)]
    if not folders:
        fail("building needs the package ninja, which is not installed: pip install ninja")
    os.environ["PATH"] = os.pathsep.join([*folders, os.environ.get("PATH", os.defpath)])


prefer_packaged_ninja()

if importlib.util.find_spec("yaml") is None:
    fail("building needs the package pyyaml, which is not installed: pip install pyyaml")


def sources(*patterns: str) -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for p in patterns for path in ROOT.glob(p))


# "address" or "thread": what tools/sanitize.py builds, beside the usual build.
SANITIZER = os.environ.get("OPENREG_BUILD_SANITIZER", "")
# Optimizing instrumented code takes a third of the build. Races are found by chance, by fast code.
OPTIMIZATION = {"": ["-O2", "-g0"], "address": ["-O0", "-g1"], "thread": ["-O1", "-g1"]}
if SANITIZER not in OPTIMIZATION:
    fail(f"OPENREG_BUILD_SANITIZER: expected address or thread, got {SANITIZER}")
# Absolute, as ninja runs in the build folder.
BUILD = ROOT / "build" / SANITIZER
RUNTIME = ROOT / "third_party" / "openreg_runtime"
GENERATED = ROOT / "build" / "generated"
# What extension authors may include, in the folders in which it is installed.
INCLUDE = ROOT / "include"
PRECOMPILED = BUILD / "precompiled"
JOINED = BUILD / "joined"
# At most so many sources are compiled together: the compiler spends most of its time on
# instantiations in torch's headers, for any source. OPENREG_JOIN=1 compiles each by itself.
SOURCES_PER_OBJECT = int(os.environ.get("OPENREG_JOIN", "10"))
PRECOMPILED_HEADERS = {
    LIB_PACKAGE + "libtorch_openreg": "csrc/aten/Precompiled.h",
    "torch_openreg._C": "csrc/python/Precompiled.h",
}
try:
    MISSING_EXTRAS = missing_extras(os.environ.get("OPENREG_EXTRAS", "all"))
except ValueError as error:
    fail(error)
BACKEND_AND_BINDINGS = [
    file for file in sources("csrc/**/*.cpp") if extra_of(file) not in MISSING_EXTRAS
]
# Folders named python hold bindings, all others the backend.
BINDINGS = [file for file in BACKEND_AND_BINDINGS if Path(file).parent.name == "python"]
BACKEND = [file for file in BACKEND_AND_BINDINGS if file not in BINDINGS]


def room_of(source: Path) -> tuple[str, ...]:
    """Returns the folder whose sources may be compiled with a source, as its parts.

    That is a folder of csrc, csrc/aten or csrc/extras, or of the runtime's src. The bindings of all
    extras are one. The tables of autocast are with the collectives, as both need all of ATen.
    """
    parts = source.parent.parts
    if parts[0] == "third_party":
        return parts
    if parts[1] == "extras":
        room = "distributed" if parts[2] == "autocast" else parts[2]
        return (*parts[:2], "python") if parts[-1] == "python" else (*parts[:2], room)
    return parts[:3]


def join_sources(files: list[str]) -> list[str]:
    """Writes sources that include several others, of one room each; returns these.

    Small rooms beside each other are one. Generated sources, which are large, stay as they are.
    """
    rooms: dict[tuple[str, ...], list[Path]] = {}
    joined = [file for file in files if SOURCES_PER_OBJECT == 1 or file.startswith("build")]
    for file in map(Path, files):
        if str(file) not in joined:
            rooms.setdefault(room_of(file), []).append(file)
    for room, members in list(rooms.items()):
        if room[0] == "csrc" and len(members) < SOURCES_PER_OBJECT // 2:
            rooms.setdefault((*room[:-1], "small"), []).extend(rooms.pop(room))
    for room, members in rooms.items():
        # The compiler takes twice as long for bindings.
        weight = 2 if "python" in room else 1
        count = min(len(members), len(members) * weight // SOURCES_PER_OBJECT + 1)
        for index in range(count):
            part = members[index * len(members) // count : (index + 1) * len(members) // count]
            target = JOINED / f"{'_'.join(room[-2:])}_{index}.cpp"
            text = "".join(f'#include "{os.path.relpath(file, JOINED)}"\n' for file in part)
            # An unchanged file keeps its time, and its object.
            if not target.is_file() or target.read_text() != text:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text)
            joined.append(str(target.relative_to(ROOT)))
    return joined


def torch_include_paths() -> list[str]:
    """Returns torch's include folders by paths that are the same in every build with that torch.

    Each environment has its own torch in a different folder. A command that names it would make
    ninja compile everything again.
    """
    installed = Path(torch.__file__).parent
    link = ROOT / "build" / f"torch-{TORCH_VERSION}"
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(installed)
    folders = [str(link / Path(path).relative_to(installed)) for path in include_paths()]
    # torch's headers include Kineto's headers from there.
    return [*folders, f"{folders[0]}/kineto"]


DEBUG = os.environ.get("DEBUG", "0") == "1"
SANITIZER_ARGS = [f"-fsanitize={SANITIZER}", "-fno-omit-frame-pointer"] if SANITIZER else []
# g++ collects garbage each time its memory has grown by a third, among all that the precompiled
# header has put there. It has little.
IS_GCC = (
    "Free Software Foundation"
    in subprocess.run(
        [*shlex.split(get_cxx_compiler()), "--version"], check=True, capture_output=True, text=True
    ).stdout
)
COMPILE_ARGS = [
    "-std=c++20",
    *(["--param=ggc-min-heapsize=1000000"] if IS_GCC else []),
    *(["-O0", "-g"] if DEBUG else OPTIMIZATION[SANITIZER]),
    *SANITIZER_ARGS,
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    *(["-Werror"] if os.environ.get("OPENREG_WERROR", "0") == "1" else []),
]
# Functions of the libraries are not interposed, so calls among them need no table of addresses.
LINK_ARGS = ["-Wl,-Bsymbolic-functions", *SANITIZER_ARGS]
# Headers of other projects are system headers, which disables their warnings. Two kinds come up all
# the same, when g++ 12 has inlined torch's SmallVector and intrusive_ptr into our functions.
TORCH_COMPILE_ARGS = [
    *COMPILE_ARGS,
    # Headers of torch declare the operators that they use, instead of all there are.
    "-DAT_PER_OPERATOR_HEADERS",
    "-Wno-maybe-uninitialized",
    "-Wno-array-bounds",
    *(f"-isystem{path}" for path in torch_include_paths()),
]


def precompiled_header(source: str, command: list[str]) -> list[str]:
    """Compiles a header of headers; returns the arguments by which sources use it.

    It holds headers of torch and Python only. The folder's name contains all its dependencies, so
    that a change of them changes every command. A compiler that cannot use the compiled one reads
    the header itself.
    """
    compiler = [*shlex.split(get_cxx_compiler()), "--version"]
    version = subprocess.run(compiler, check=True, capture_output=True, text=True).stdout
    parts = [*command, version, sys.version, str(torch.version.git_version)]
    text = (ROOT / source).read_text()
    parts += [line for line in text.splitlines() if line.startswith("#include")]
    key = hashlib.sha256("\0".join(parts).replace(str(ROOT), "").encode()).hexdigest()
    name = Path(source).parent.name
    header = PRECOMPILED / f"{name}-{key[:16]}" / "precompiled.h"
    if not header.exists():
        for old in PRECOMPILED.glob(f"{name}-*"):
            shutil.rmtree(old)
        unfinished = PRECOMPILED / f"unfinished-{name}"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        # Each command includes it once.
        (unfinished / header.name).write_text(text.replace("#pragma once\n", ""))
        compiled = unfinished / f"{header.name}.gch"
        subprocess.run(
            [*command, "-x", "c++-header", str(unfinished / header.name), "-o", str(compiled)],
            check=True,
        )
        # What ccache may take for the content, with CCACHE_PCH_EXTSUM.
        Path(f"{compiled}.sum").write_text(key)
        unfinished.rename(header.parent)
    return ["-include", str(header)]


def editor_commands(folder: Path) -> list[dict[str, Any]]:
    """Returns the entries of compile_commands.json for the extension that was built last.

    ninja has a command for each object; a source that is compiled together with others gets that of
    their object. Left out are arguments that clang, which editors use, does not take from g++ (the
    precompiled header, the size of the heap), the file of dependencies, which is ninja's, and
    -Werror, since clang warns of other things.
    """
    output = subprocess.run(
        ["ninja", "-t", "compdb"], cwd=folder, check=True, capture_output=True, text=True
    ).stdout
    entries = []
    for command in json.loads(output):
        compiled = Path(command["file"])
        members = [compiled]
        if compiled.parent == JOINED:
            names = re.findall('#include "(.*)"', compiled.read_text())
            members = [Path(os.path.normpath(JOINED / name)) for name in names]
        words = iter(shlex.split(command["command"]))
        arguments = []
        for word in words:
            if word in ("-include", "-MF"):
                next(words)
            elif not re.match("-MMD|-Werror|-Winvalid-pch|--param=", word):
                arguments.append(word)
        entries += [
            {
                "directory": str(ROOT),
                "file": str(member),
                "arguments": [str(member) if one == str(compiled) else one for one in arguments],
            }
            for member in members
        ]
    return entries


class Build(BuildExtension):  # type: ignore[misc]
    """Builds two plain shared libraries besides the Python extension."""

    def finalize_options(self) -> None:
        super().finalize_options()
        # The same for every kind of install, so that a second build starts from the first.
        self.build_temp = str(BUILD / "temp")
        # Each virtual environment has an empty folder for headers, which a command must not name:
        # ninja would compile everything again for the next environment.
        of_environment = os.path.join(sys.exec_prefix, "include")
        if sys.exec_prefix != sys.base_exec_prefix:
            self.include_dirs = [path for path in self.include_dirs if path != of_environment]

    def get_ext_filename(self, fullname: str) -> str:
        if fullname.split(".")[-1] in ("libopenreg", "libtorch_openreg"):
            return os.path.join(*fullname.split(".")) + ".so"
        return str(super().get_ext_filename(fullname))

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return list(ext.export_symbols or [])

    def run(self) -> None:
        jobs = affordable_jobs()
        if jobs is not None and "MAX_JOBS" not in os.environ:
            print(f"torch_openreg: memory for {jobs} compilers at a time; MAX_JOBS=N sets another")
            os.environ["MAX_JOBS"] = str(jobs)
        try:
            self.build_all()
        except Exception as error:
            reason = full_disk(ROOT)
            if reason is not None:
                fail(reason)
            # torch raises the first for a compiler; the compilation of a header raises the second.
            if isinstance(error, (RuntimeError, subprocess.CalledProcessError)):
                fail(
                    "the build failed: see the messages above. If a compiler was killed, the "
                    "machine ran out of memory: each needs 1.4 GB; MAX_JOBS=1 runs one at a time"
                )
            raise

    def build_all(self) -> None:
        generate_operators()
        for extension in self.extensions:
            if extension.name == LIB_PACKAGE + "libtorch_openreg":
                extension.sources += sources("build/generated/*.cpp")
            extension.sources = join_sources(extension.sources)
        super().run()
        complete_package(Path(self.build_lib) / "torch_openreg")

    def build_extensions(self) -> None:
        library = Path(self.get_ext_fullpath(LIB_PACKAGE + "libopenreg")).parent
        for extension in self.extensions:
            extension.library_dirs.append(str(library))
        # Python's own flags for optimization, debug information and warnings are replaced.
        compiler, *flags = self.compiler.compiler_so
        flags = [flag for flag in flags if not re.match("-O|-g|-W(?!p,)", flag)]
        self.compiler.set_executable("compiler_so", [compiler, *flags])
        self.precompile_headers([*shlex.split(get_cxx_compiler()), *flags])
        self.editor_commands: list[dict[str, Any]] = []
        super().build_extensions()
        text = json.dumps(self.editor_commands, indent=1)
        (BUILD / "compile_commands.json").write_text(f"{text}\n")

    def build_extension(self, extension: Extension) -> None:
        super().build_extension(extension)
        self.editor_commands += editor_commands(Path(self.build_temp))

    def precompile_headers(self, command: list[str]) -> None:
        folders = [f"-I{path}" for path in (sysconfig.get_path("include"), *self.include_dirs)]

        def add_header(extension: Extension) -> None:
            header = PRECOMPILED_HEADERS.get(extension.name)
            if header is not None:
                arguments = [*extension.extra_compile_args, "-Winvalid-pch"]
                use = precompiled_header(header, [*command, *folders, *arguments])
                extension.extra_compile_args = [*arguments, *use]

        with ThreadPoolExecutor() as threads:
            list(threads.map(add_header, self.extensions))

    def copy_extensions_to_source(self) -> None:
        (ROOT / "torch_openreg" / "lib").mkdir(exist_ok=True)
        super().copy_extensions_to_source()
        complete_package(ROOT / "torch_openreg")


def generate_operators() -> None:
    """Writes the structured operators' sources; unchanged files keep their time stamps."""
    script = ROOT / "csrc" / "aten" / "structured" / "codegen" / "gen_structured.py"
    # pip's isolation takes the user's folders out of the path, even if PYTHONPATH has them.
    program = (
        "import runpy, sys; "
        f"sys.path[:0] = [{str(script.parent)!r}]; sys.path += {USER_PATH!r}; "
        f"runpy.run_path({str(script)!r}, run_name='__main__')"
    )
    subprocess.run(
        [sys.executable, "-c", program, "--output-dir", str(GENERATED)],
        check=True,
    )


def complete_package(package: Path) -> None:
    """Puts what else extension authors and ``import`` need beside the libraries.

    That is the public headers, those of the runtime among them, and what torch the libraries serve.
    """
    (package / "lib" / "TORCH_VERSION").write_text(f"{TORCH_VERSION}\n")
    folder = package / "include"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(RUNTIME / "include", folder)

    def missing(place: str, names: list[str]) -> list[str]:
        paths = {name: Path(place, name).relative_to(ROOT).as_posix() for name in names}
        return [name for name, path in paths.items() if extra_of(path) in MISSING_EXTRAS]

    shutil.copytree(INCLUDE, folder, ignore=missing, dirs_exist_ok=True)


class Package(build_py):
    """Leaves out the Python folders of missing extras."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.packages = [
            name for name in self.packages if extra_of(name.replace(".", "/")) not in MISSING_EXTRAS
        ]

    def run(self) -> None:
        # An earlier build with other extras has left theirs, and what is there is installed.
        for extra in MISSING_EXTRAS:
            folder = Path(self.build_lib, "torch_openreg", "extras", extra)
            shutil.rmtree(folder, ignore_errors=True)
        super().run()


def backend_extension(
    name: str, files: list[str], compile_args: tuple[str, ...] = (), **options: Any
) -> Extension:
    return Extension(
        name,
        files,
        include_dirs=[str(ROOT), str(INCLUDE), str(RUNTIME / "include")],
        library_dirs=library_paths(),
        extra_compile_args=[*TORCH_COMPILE_ARGS, *compile_args],
        language="c++",
        **options,
    )


setup(
    version=policy.labeled_version(TORCH_RELEASE) if IS_FOR_OTHERS else policy.__version__,
    # torch works without numpy, but warns about its absence in the first program of a newcomer.
    install_requires=[policy.torch_requirement(TORCH_RELEASE), "numpy"],
    ext_modules=[
        Extension(
            LIB_PACKAGE + "libopenreg",
            sources("third_party/openreg_runtime/src/**/*.cpp"),
            include_dirs=[str(RUNTIME / "include"), str(RUNTIME / "src")],
            extra_compile_args=[*COMPILE_ARGS, "-pthread"],
            extra_link_args=["-pthread", "-Wl,-soname,libopenreg.so", *LINK_ARGS],
            language="c++",
        ),
        backend_extension(
            LIB_PACKAGE + "libtorch_openreg",
            BACKEND,
            libraries=["openreg", "c10", "torch_cpu", "torch"],
            extra_link_args=[
                "-Wl,-soname,libtorch_openreg.so",
                "-Wl,-rpath,$ORIGIN",
                *LINK_ARGS,
                # A library that leaves a sanitizer's functions to the program has some undefined.
                *([] if SANITIZER else ["-Wl,--no-undefined"]),
            ],
        ),
        backend_extension(
            "torch_openreg._C",
            BINDINGS,
            (f'-DOPENREG_MISSING_EXTRAS="{", ".join(MISSING_EXTRAS)}"',),
            libraries=["torch_openreg", "openreg", "c10", "torch_cpu", "torch", "torch_python"],
            extra_link_args=["-Wl,-rpath,$ORIGIN/lib", *SANITIZER_ARGS],
        ),
    ],
    cmdclass={"build_ext": Build, "build_py": Package},
)
