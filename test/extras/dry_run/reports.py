"""Dry runs of programs, and their reports."""

import json
import tempfile
from pathlib import Path

from common import run_program

DRY = {"OPENREG_DEVICE_TYPE": "cuda", "OPENREG_DRY_RUN": "1", "OPENREG_CUDA_NOTICE": "0"}


def dry_run(code, expect_success=True, **settings):
    """Runs a program dry for an H100; returns the ended process and its report."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        environment = {
            **DRY,
            "OPENREG_DRY_RUN_GPU": "h100",
            "OPENREG_DRY_RUN_REPORT": str(path),
            **settings,
        }
        process = run_program(code, environment, expect_success)
        return process, json.loads(path.read_text())
