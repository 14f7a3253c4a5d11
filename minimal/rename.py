"""Copies this backend under another name: ``python minimal/rename.py mychip ../mychip``."""

import shutil
import sys
from pathlib import Path

name, target = sys.argv[1], Path(sys.argv[2])
shutil.copytree(Path(__file__).parent, target, ignore=shutil.ignore_patterns("build", "*.egg-info"))
for file in (target / "setup.py", target / "csrc/runtime/Functions.h"):
    file.write_text(file.read_text().replace('"minimal"', f'"{name}"'))
(target / "python/torch_minimal").rename(target / f"python/torch_{name}")
