"""Runs the backend's stress under a sanitizer: ``python tools/sanitize.py [address|thread]``.

Builds the runtime, the backend and the bindings instrumented, in a separate folder in ``build``,
and runs ``test/stress.py`` with them. Torch and Python are not instrumented: the sanitizer checks
memory that the package's code allocates, frees and accesses, and arguments from them. The sanitizer
of streams is on as well: its tables are filled and searched by all threads at once, and it has to
find nothing.

The thread sanitizer does not see how torch's own threads wait for each other, libgomp's above all;
``tools/tsan.supp`` lists the suppressions, with reasons. With one OpenMP thread, and with races
reported only between two stacks of the package, only its own errors remain.
"""

import argparse
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

__all__ = ["main"]

_ROOT = Path(__file__).resolve().parent.parent
_LIBRARIES = {"address": "libasan.so", "thread": "libtsan.so"}
_TIMEOUT_S = 900.0


def main() -> int:
    """Runs the program and returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sanitizer", nargs="?", choices=_LIBRARIES, default="address")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the stress runs")
    parser.add_argument("--seed", type=int, help="the stress's seed")
    options = parser.parse_args()
    package = _build(options.sanitizer)
    command = [sys.executable, "test/stress.py", "--seconds", str(options.seconds)]
    if options.seed is not None:
        command += ["--seed", str(options.seed)]
    if options.sanitizer == "thread":
        # Fixed addresses, where the sanitizer expects them.
        command = ["setarch", platform.machine(), "--addr-no-randomize", *command]
    return subprocess.run(
        command,
        cwd=_ROOT,
        env=os.environ | _environment(options.sanitizer, package),
        timeout=_TIMEOUT_S,
        check=False,
    ).returncode


def _build(sanitizer: str) -> Path:
    """Builds the package; returns the folder that it is in."""
    begin = time.monotonic()
    base = _ROOT / "build" / sanitizer
    library = base / "lib"
    subprocess.run(
        [
            *(sys.executable, "setup.py", "--quiet", "build"),
            *("--build-base", str(base), "--build-lib", str(library)),
        ],
        cwd=_ROOT,
        env=os.environ | {"OPENREG_BUILD_SANITIZER": sanitizer},
        check=True,
    )
    print(f"built for the {sanitizer} sanitizer in {time.monotonic() - begin:.0f} s", flush=True)
    return library


def _environment(sanitizer: str, package: Path) -> dict[str, str]:
    found = subprocess.run(
        ["c++", f"-print-file-name={_LIBRARIES[sanitizer]}"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    # libstdc++ beside it: the sanitizer looks up the functions that throw when it starts.
    stdcxx = subprocess.run(
        ["c++", "-print-file-name=libstdc++.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    suppressions = _ROOT / "tools" / "tsan.supp"
    return {
        "LD_PRELOAD": f"{found} {stdcxx}",
        "PYTHONPATH": str(package),
        "PYTHONMALLOC": "malloc",
        "OPENREG_SANITIZER": "collect",
        "OMP_NUM_THREADS": "1" if sanitizer == "thread" else "2",
        # Python and torch leak; the runtime's fault handler comes before the sanitizer's.
        "ASAN_OPTIONS": "detect_leaks=0:handle_segv=0:allocator_may_return_null=1",
        "TSAN_OPTIONS": f"handle_segv=0:exitcode=66:suppressions={suppressions}"
        ":ignore_noninstrumented_modules=1:report_signal_unsafe=0",
    }


if __name__ == "__main__":
    sys.exit(main())
