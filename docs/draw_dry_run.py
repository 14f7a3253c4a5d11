"""Draws the memory of examples/will_it_fit/train.py on an A100: ``python docs/draw_dry_run.py``.

Writes dry_run.svg to ``docs/_static``, or to the folder that is named.
"""

import subprocess
import sys
from pathlib import Path

_DOCS = Path(__file__).resolve().parent
_PROGRAM = _DOCS.parent / "examples" / "will_it_fit" / "train.py"


def main() -> None:
    """Runs the example with two of its fixes, which do not suffice, and has it draw its memory."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else _DOCS / "_static"
    picture = str(folder / "dry_run.svg")
    options = ["--dry-run", "--gpu", "a100-40gb", "--beyond", "--picture", picture]
    command = [sys.executable, "-m", "torch_openreg.cuda", *options, str(_PROGRAM)]
    subprocess.run([*command, "--bf16", "--steps", "2"], check=True)


if __name__ == "__main__":
    main()
