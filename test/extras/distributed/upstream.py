"""Runs torch's own tests of ``torch.distributed``: ``python upstream.py PLACE [TEST ...]``.

The tests are ``torch.testing._internal.distributed.distributed_test`` of the torch that is
installed. Of their 285, some are for Gloo and some for NCCL, and some need more than two ranks, or
eight. They run in three places:

- cpu: those for Gloo, as they are, without our device. What passes there should on the device.
- cuda: those for NCCL, in cuda mode, as they are.
- openreg: those for Gloo, with the device as the default device and groups for both.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

__all__ = ["LEFT_OUT", "PLACES", "run"]

PLACES = {
    "cpu": {"BACKEND": "gloo", "OPENREG_DEVICE_TYPE": "none"},
    "cuda": {"BACKEND": "nccl", "OPENREG_DEVICE_TYPE": "cuda", "OPENREG_CUDA_NOTICE": "0"},
    "openreg": {"BACKEND": "gloo", "UPSTREAM_DEVICE_TYPE": "openreg"},
}

_NOT_OVER = "asks whether a message is over after wait(), which blocks the stream"

# Tests that are not run unless they are named, and why.
LEFT_OUT: dict[str, dict[str, str]] = {
    "cpu": {},
    "cuda": {"test_ddp_uneven_inputs": "convolves for many minutes"},
    "openreg": {
        "test_irecv": _NOT_OVER,
        "test_isend": _NOT_OVER,
        "test_isend_autograd_profiler": _NOT_OVER,
        "test_isend_torch_profiler": _NOT_OVER,
    },
}

_TEST_LIMIT_S = 300

_PROGRAM = """
import json, sys
from pathlib import Path
from extras.distributed.upstream_cases import run_upstream
path, left_out, *names = sys.argv[1:]
sys.argv[1:] = []
Path(path).write_text(json.dumps(run_upstream(names, json.loads(left_out))))
"""


def run(
    place: str, names: Sequence[str] = (), ranks: int = 2, verbose: bool = False
) -> dict[str, list[str]]:
    """Runs tests, by default all, and returns the outcome of each and its reason."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("OPENREG_")
    }
    environment |= PLACES[place] | {
        "WORLD_SIZE": str(ranks),
        "OMP_NUM_THREADS": "1",
        "OPENREG_DEVICE_COUNT": str(ranks),
        "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(_TEST_LIMIT_S),
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
    }
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        process = subprocess.run(
            [sys.executable, "-c", _PROGRAM, results, json.dumps(list(LEFT_OUT[place])), *names],
            env=environment,
            cwd=folder,
            stdout=None if verbose else subprocess.PIPE,
            stderr=None if verbose else subprocess.STDOUT,
            text=True,
        )
        if process.returncode != 0:
            raise RuntimeError(f"upstream tests ended with {process.returncode}\n{process.stdout}")
        outcomes: dict[str, list[str]] = json.loads(results.read_text())
        return outcomes


def main() -> None:
    """Runs the program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("place", choices=list(PLACES))
    parser.add_argument("tests", nargs="*", metavar="TEST", help="default: all")
    parser.add_argument("--ranks", type=int, default=2, help="default: %(default)s")
    options = parser.parse_intermixed_args()
    outcomes = run(options.place, options.tests, options.ranks, verbose=True)
    for name, (outcome, reason) in outcomes.items():
        if outcome != "passed":
            print(f"{outcome} {name}: {reason.strip()}")
    counts = Counter(outcome for outcome, _ in outcomes.values())
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))


if __name__ == "__main__":
    main()
