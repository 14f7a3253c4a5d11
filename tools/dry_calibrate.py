"""Compares dry runs with real runs of the same programs, on a machine with a GPU.

``python tools/dry_calibrate.py --gpu h100 [--json FILE] [PROGRAM ...]`` runs each program of
test/extras/dry_run/programs.py twice: with torch's own CUDA, and dry for the GPU that is named. It
prints the peaks of both, in bytes, and their ratio. PROGRAMs are names; the default is all.

``--emulated`` has this package's devices in the GPU's place, to try the tool without one.
"""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parent.parent
_PROGRAMS = _ROOT / "test" / "extras" / "dry_run"
_RUN = "import sys; sys.path.insert(0, {path!r}); import programs; {call}"
_ROW = "{:<32} {:>14} {:>14} {:>9} {:>14} {:>14} {:>9}"
_HEADER = ("program", "allocated", "dry", "ratio", "reserved", "dry", "ratio")
# In each row of a mark, the places of these peaks.
_ALLOCATED, _RESERVED = 1, 3


@dataclass(frozen=True)
class Peaks:
    """The peaks of a program's first device, in bytes."""

    allocated: int
    reserved: int


def main() -> int:
    """Runs the program; the exit code is 1 if a program of either kind fails."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gpu", required=True, help="the GPU of the machine, such as h100")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the peaks to a file")
    parser.add_argument("--emulated", action="store_true", help="try the tool without a GPU")
    parser.add_argument("programs", nargs="*", metavar="PROGRAM")
    options = parser.parse_args()
    real = _real_settings(options.emulated)
    dry = {
        "OPENREG_DEVICE_TYPE": "cuda",
        "OPENREG_DRY_RUN": "1",
        "OPENREG_DRY_RUN_GPU": options.gpu,
        "OPENREG_DRY_RUN_SUMMARY": "0",
        "OPENREG_CUDA_OVER_GPU": "1",
    }
    print(_ROW.format(*_HEADER))
    found: dict[str, dict[str, Any]] = {}
    failed = False
    for name in options.programs or _names(dry):
        one, other = _peaks(name, real), _peaks(name, dry)
        if one is None or other is None:
            failed = True
            continue
        found[name] = {"real": asdict(one), "dry": asdict(other)}
        print(
            _ROW.format(
                name,
                *(one.allocated, other.allocated, _ratio(other.allocated, one.allocated)),
                *(one.reserved, other.reserved, _ratio(other.reserved, one.reserved)),
            ),
            flush=True,
        )
    same = sum(one["real"] == one["dry"] for one in found.values())
    print(f"{len(found)} programs ran, {same} of them have the same peaks")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    return int(failed or not found)


def _real_settings(is_emulated: bool) -> dict[str, str]:
    if is_emulated:
        return {"OPENREG_DEVICE_TYPE": "cuda", "OPENREG_DRY_RUN": "0"}
    return {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


def _ratio(dry: int, real: int) -> str:
    return f"{dry / real:.4f}" if real else "-"


def _run(call: str, settings: dict[str, str]) -> subprocess.CompletedProcess[str]:
    clean = {name: one for name, one in os.environ.items() if not name.startswith("OPENREG_")}
    code = _RUN.format(path=str(_PROGRAMS), call=call)
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**clean, "OPENREG_CUDA_NOTICE": "0", **settings},
        capture_output=True,
        text=True,
        check=False,
    )


def _names(settings: dict[str, str]) -> list[str]:
    return _run("print(*programs.PROGRAMS)", settings).stdout.split()


def _peaks(name: str, settings: dict[str, str]) -> Peaks | None:
    """The largest peaks of any mark, as programs may reset them; None if the program fails."""
    ended = _run(f"programs.run({name!r})", settings)
    if ended.returncode != 0:
        last = ended.stderr.strip().splitlines()[-1:]
        print(f"{name}: ended with {ended.returncode}: {' '.join(last)}", file=sys.stderr)
        return None
    marks = json.loads(ended.stdout.splitlines()[-1])
    rows = [mark[0] for mark in marks]
    return Peaks(max(row[_ALLOCATED] for row in rows), max(row[_RESERVED] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
