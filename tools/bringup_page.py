"""Checks docs/what_to_write_next.md: ``python tools/bringup_page.py NAME before``.

Runs the page's program under ``openreg_bringup`` and compares the output with that in the page.
``--write`` puts it there. ``tools/minimal.py`` does this with ``minimal/``, and with a copy of it
that has the page's kernel.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

__all__ = ["main"]

_ROOT = Path(__file__).resolve().parent.parent
_PAGE = _ROOT / "docs" / "what_to_write_next.md"
_PROGRAM = _ROOT / "examples" / "bringup" / "train.py"
_RELEASE = "2.13"  # of the outputs in the page: other releases compose operators of others


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program and returns its exit code: 1 if the page has another output."""
    parser = argparse.ArgumentParser(description="Checks docs/what_to_write_next.md.")
    parser.add_argument("device", help="the name of the backend; the page calls it mychip")
    parser.add_argument("block", choices=["before", "after"], help="without or with the kernel")
    parser.add_argument("--write", action="store_true", help="write the output into the page")
    options = parser.parse_args(arguments)
    command = [sys.executable, "-m", "openreg_bringup", f"--device={options.device}", str(_PROGRAM)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    output = output.replace(options.device, "mychip")
    # The page is for those who have not installed torch_openreg.
    output = output.replace(str(_ROOT), "clone").replace(
        "what tests it: pytest ", "what tests it: PYTHONPATH=clone \\\n  pytest -p pytest_openreg "
    )
    if options.block == "after":
        output = output.partition("\nwhat to register")[0]
    if not str(torch.__version__).startswith(f"{_RELEASE}."):
        print(f"{_PAGE.name} has outputs of torch {_RELEASE}, not of {torch.__version__}")
        return 0
    page = _PAGE.read_text(encoding="utf-8")
    block = rf"(<!-- prints: {options.block} -->\n```text\n).*?(^```$)"
    updated, count = re.subn(
        block, lambda found: found[1] + output + found[2], page, flags=re.DOTALL | re.MULTILINE
    )
    if count != 1:
        parser.error(f"expected one block {options.block!r} in {_PAGE.name}, got {count}")
    if options.write:
        _PAGE.write_text(updated, encoding="utf-8")
    elif updated != page:
        print(f"{_PAGE.name} has another block {options.block!r} than this one:\n{output}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
