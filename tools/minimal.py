"""Builds and tests ``minimal/``, as it is and under another name: ``python tools/minimal.py``.

Each of the two is installed into a folder of its own, and its tests run there, in processes where
openreg is not registered. The conformance kit runs once: what fails has to be what
``minimal/README.md`` says. The other one has the kernel of docs/what_to_write_next.md. The torch of
this Python is used, and nothing is downloaded.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

__all__ = ["known_failures", "main"]

_ROOT = Path(__file__).resolve().parent.parent
_RUNTIME = _ROOT / "third_party" / "openreg_runtime"
# The chapters of the kit that a backend without autocast and graphs has to pass.
_CHAPTERS = "guard,hooks,memory,streams,events,random numbers,serialization,errors"


def known_failures() -> set[str]:
    """The tests of the kit that fail, by the README of ``minimal/``."""
    text = (_ROOT / "minimal" / "README.md").read_text()
    return set(re.findall(r"^\| `(\w+::\w+::\w+)` \|", text, re.MULTILINE))


def main() -> int:
    """Runs the program and returns its exit code, 1 if something is wrong."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = folder / "minimal"
        shutil.copytree(_ROOT / "minimal", source, ignore=shutil.ignore_patterns("build"))
        is_right = _install_and_test(source, folder / "site")
        is_right &= _run_kit(folder / "site")
        is_right &= _run_tool("bringup_page.py", folder / "site", "minimal", "before")
        is_right &= _run_tool("operator_counts.py", folder / "site", "--device=minimal", "--check")
        copy = folder / "mychip"
        _run([sys.executable, str(source / "rename.py"), "mychip", str(copy)], folder)
        shutil.copy(_ROOT / "examples/bringup/Mul.cpp", copy / "csrc/aten")
        is_right &= _install_and_test(copy, folder / "renamed_site")
        is_right &= _run_tool("bringup_page.py", folder / "renamed_site", "mychip", "after")
        return 0 if is_right else 1


def _install_and_test(source: Path, site: Path) -> bool:
    """Installs a backend into a folder and runs its tests; returns whether they have passed."""
    begin = time.monotonic()
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    _run([*pip, "--no-build-isolation", f"--target={site}", str(source)], source)
    print(f"{source.name}: built in {time.monotonic() - begin:.0f} s", flush=True)
    return _run([sys.executable, "-m", "pytest", "-q"], source, site, check=False).returncode == 0


def _run_kit(site: Path) -> bool:
    """Runs the kit; returns whether those tests have failed that are known to fail."""
    kit = ["--pyargs", "torch_openreg.conformance", "--device=minimal"]
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *kit]
    output = _run(
        [*tests, f"--conformance-chapter={_CHAPTERS}"], site, site, check=False, capture=True
    ).stdout
    report = output.partition("= conformance =")[2]
    print(report or output)
    failed = set(re.findall(r"^  failed: (\w+::\w+::\w+)", report, re.MULTILINE))
    for text, names in (
        ("has failed, and minimal/README.md does not say so", failed - known_failures()),
        ("has passed, and minimal/README.md says that it fails", known_failures() - failed),
    ):
        for name in sorted(names):
            print(f"{name} {text}")
    return bool(report) and failed == known_failures()


def _run_tool(name: str, site: Path, *arguments: str) -> bool:
    """Runs a program beside this one with a backend; returns whether it has succeeded."""
    command = [sys.executable, str(_ROOT / "tools" / name), *arguments]
    return _run(command, site, site, check=False).returncode == 0


def _run(
    command: list[str],
    folder: Path,
    site: Path | None = None,
    check: bool = True,
    capture: bool = False,
) -> "subprocess.CompletedProcess[str]":
    path = [str(site), str(_ROOT)] if site else []
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("OPENREG_")
    }
    environment |= {
        "CHIP_DRIVER": str(_RUNTIME),
        "OPENREG_DEVICE_TYPE": "none",
        "PYTHONPATH": os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")]).strip(os.pathsep),
    }
    output = subprocess.PIPE if capture else None
    return subprocess.run(
        command, cwd=folder, env=environment, check=check, stdout=output, text=True
    )


if __name__ == "__main__":
    sys.exit(main())
