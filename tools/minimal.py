"""Builds and tests ``minimal/``, a renamed copy, and that with ``examples/chip/``.

``python tools/minimal.py``. The copy is made by the commands of ``docs/bring_up.md``, as they are
printed. Each is installed into a folder of its own, and its tests run there, in processes where
openreg is not registered. So do the page's programs, with the last. The conformance kit runs with
the first and the last: what fails has to be what ``minimal/README.md`` says. The torch of this
Python is used, and nothing is downloaded.
"""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

__all__ = ["known_failures", "main", "page_command", "page_programs"]

_ROOT = Path(__file__).resolve().parent.parent
# What the commands of the page need of the repository.
_PARTS = ("minimal", "examples/chip", "third_party/openreg_runtime", "LICENSE")
# The chapters of the kit that a backend without autocast and graphs has to pass, and those two.
_CHAPTERS = "guard,hooks,memory,streams,events,random numbers,serialization,errors"
_MORE_CHAPTERS = f"{_CHAPTERS},graphs,autocast"


def known_failures(release: tuple[int, int]) -> set[str]:
    """The tests of the kit that fail with a release of torch, by the README of ``minimal/``."""
    text = (_ROOT / "minimal" / "README.md").read_text()
    rows = re.findall(r"^\| `(\w+::\w+::\w+)` \| (.*) \|$", text, re.MULTILINE)
    since = {test: re.search(r"since torch (\d+)\.(\d+)", reason) for test, reason in rows}
    return {
        test for test, found in since.items() if not found or _version(*found.groups()) <= release
    }


def _version(major: str, minor: str) -> tuple[int, int]:
    return int(major), int(minor)


def page_command(name: str) -> str:
    """The commands in the block of ``docs/bring_up.md`` below ``<!-- command: NAME -->``.

    Raises:
        LookupError: There is none.
    """
    page = (_ROOT / "docs" / "bring_up.md").read_text()
    block = re.search(rf"^<!-- command: {name} -->\n```sh\n(.*?)^```", page, re.M | re.S)
    if block is None:
        raise LookupError(f"docs/bring_up.md: expected a block below <!-- command: {name} -->")
    return block[1]


def page_programs() -> list[tuple[str, str]]:
    """Names and texts of the programs in ``docs/bring_up.md`` below ``<!-- chip program -->``."""
    page = (_ROOT / "docs" / "bring_up.md").read_text()
    block = r"^<!-- chip program(?:: (\S+))? -->\n```python\n(.*?)^```"
    found = re.finditer(block, page, re.M | re.S)
    return [(one[1] or f"program_{i}.py", one[2]) for i, one in enumerate(found)]


def main() -> int:
    """Runs the program and returns its exit code, 1 if something is wrong."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        repository = folder / "repository"
        for part in _PARTS:
            source, target = _ROOT / part, repository / part
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("build"))
            else:
                shutil.copy(source, target)
        first, copy = folder / "site", folder / "copy_site"
        _install("minimal", "pip install --no-build-isolation ./minimal", repository, first)
        is_right = _test(repository / "minimal", first)
        is_right &= _run_kit(first, "minimal", _CHAPTERS)
        is_right &= _run_tool("bringup_page.py", first, "minimal", "before")
        is_right &= _run_tool("operator_counts.py", first, "--device=minimal", "--check")
        _install("a renamed copy", page_command("copy"), repository, copy)
        is_right &= _test(folder / "mychip", copy)
        _install("the copy with examples/chip", page_command("examples"), repository, copy)
        is_right &= _test(folder / "mychip", copy)
        is_right &= _run_programs(folder, copy)
        is_right &= _run_kit(copy, "mychip", _MORE_CHAPTERS)
        is_right &= _run_tool("bringup_page.py", copy, "mychip", "after")
        return 0 if is_right else 1


def _install(what: str, commands: str, folder: Path, site: Path) -> None:
    """Runs commands, of which those of pip install into a folder."""
    begin = time.monotonic()
    options = {"TARGET": str(site), "UPGRADE": "1", "QUIET": "1", "NO_DEPS": "1", "NO_INDEX": "1"}
    settings = {f"PIP_{name}": value for name, value in options.items()}
    _run(["bash", "-euc", commands], folder, settings=settings)
    print(f"{what}: built in {time.monotonic() - begin:.0f} s", flush=True)


def _test(folder: Path, site: Path) -> bool:
    """Runs the tests of an installed backend; returns whether they have passed."""
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    return _run(tests, folder, site, check=False).returncode == 0


def _run_programs(folder: Path, site: Path) -> bool:
    """Runs the programs of the page with the copy that they are about."""
    is_right = True
    for name, code in page_programs():
        (folder / name).write_text(code)
        command = page_command("launch") if name == "train.py" else f"python {name}"
        is_right &= _run(["bash", "-euc", command], folder, site, check=False).returncode == 0
    return is_right


def _run_kit(site: Path, device: str, chapters: str) -> bool:
    """Runs the kit; returns whether those tests have failed that are known to fail."""
    kit = ["--pyargs", "torch_openreg.conformance", f"--device={device}"]
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *kit]
    output = _run(
        [*tests, f"--conformance-chapter={chapters}"], site, site, check=False, capture=True
    ).stdout
    report = output.partition("= conformance =")[2]
    print(report or output)
    failed = set(re.findall(r"^  failed: (\w+::\w+::\w+)", report, re.MULTILINE))
    known = known_failures(_version(*importlib.metadata.version("torch").split(".")[:2]))
    for text, names in (
        ("has failed, and minimal/README.md does not say so", failed - known),
        ("has passed, and minimal/README.md says that it fails", known - failed),
    ):
        for name in sorted(names):
            print(f"{name} {text}")
    return bool(report) and failed == known


def _run_tool(name: str, site: Path, *arguments: str) -> bool:
    """Runs a program beside this one with a backend; returns whether it has succeeded."""
    command = [sys.executable, str(_ROOT / "tools" / name), *arguments]
    return _run(command, site, site, check=False).returncode == 0


def _run(
    command: list[str],
    folder: Path,
    site: Path | None = None,
    settings: dict[str, str] | None = None,
    check: bool = True,
    capture: bool = False,
) -> "subprocess.CompletedProcess[str]":
    """Runs a command; with a site, in its environment."""
    path = [str(site), str(_ROOT)] if site else []
    scripts = os.path.dirname(sys.executable)  # python and pip, as the page calls them
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OPENREG_", "CHIP_"))
    }
    environment |= {
        "OPENREG_DEVICE_TYPE": "none",
        "PATH": os.pathsep.join([scripts, os.environ.get("PATH", os.defpath)]),
        "PYTHONPATH": os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")]).strip(os.pathsep),
    } | (settings or {})
    output = subprocess.PIPE if capture else None
    return subprocess.run(
        command, cwd=folder, env=environment, check=check, stdout=output, text=True
    )


if __name__ == "__main__":
    sys.exit(main())
