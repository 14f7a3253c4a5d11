"""Draws what programs print in a terminal: ``python docs/draw_terminal.py [FOLDER]``.

The programs run here and now; nothing is typed by hand. Where a run has addresses and times, which
change from run to run, the picture has fixed ones.
"""

import html
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

__all__ = ["main"]

_ROOT = Path(__file__).resolve().parent.parent
_COLUMNS = 94
_LETTER, _LINE, _MARGIN, _BAR = 7.8, 18, 18, 30
_TEXT, _DIM, _BACKGROUND = "#d8dee9", "#8a94a6", "#1f2430"
_RED, _GREEN, _BLUE, _YELLOW = "#ff7a85", "#a3d977", "#7cc7ff", "#ffd173"

_RACE = """\
import torch

batch = torch.zeros(4096, device="cuda")
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    doubled = batch * 2
"""
_HOST_ACCESS = """\
import ctypes
import torch

x = torch.ones(4, device="cuda")
ctypes.c_float.from_address(x.data_ptr()).value
"""
# The colors of a line, by its contents: the first matching pattern is used.
_COLORS = (
    (r"^\$ ", _TEXT),
    (r"^(openreg|cuda sanitizer)", _RED),
    (r"\bFAILED|^Segmentation", _RED),
    (r"passed|PASSED", _GREEN),
    (r"^ +\S+\.py:\d+ in ", _BLUE),
    (r"wait_stream|copy it to the host|OPENREG_MEMORY_PROTECTION", _YELLOW),
    (r"^  (read|written|allocated|tensor)", _DIM),
    (r"^kernel '", _RED),
    (r"^Traceback|^    \S", _DIM),
    (r'^  File "', _BLUE),
)
# Patterns that differ from run to run, and their replacements.
_UNSTABLE = (
    (r" in \d+\.\d+s", ""),
    (r"0x[0-9a-f]+", "0x7f4942800000"),
    (r"collecting \.\.\. ", ""),
    (r"={4,}", "===="),
    (r"\n +[~^]+(?=\n)", ""),  # below the calls of a traceback; Python's versions differ
)


def main() -> None:
    """Runs the programs and draws their output."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else _ROOT / "docs" / "_static"
    with tempfile.TemporaryDirectory() as work:
        project = Path(work)
        (project / "train.py").write_text(_RACE)
        (project / "peek.py").write_text(_HOST_ACCESS)
        programs = [
            (
                "race",
                "A race between two streams",
                "OPENREG_SANITIZER=1 python -m torch_openreg.cuda train.py",
                project,
            ),
            (
                "suite",
                "A test suite for CUDA on a machine without a GPU",
                "pytest --openreg-cuda -v",
                _ROOT / "examples" / "cuda_project",
            ),
            (
                "host_access",
                "The host reads device memory",
                "python -m torch_openreg.cuda peek.py",
                project,
            ),
        ]
        if _has_triton():
            programs.append(
                (
                    "triton",
                    "A kernel of Triton reads behind its argument",
                    "python -m torch_openreg.cuda mistakes.py mask",
                    _ROOT / "examples" / "triton_project",
                )
            )
        for name, title, command, where in programs:
            output = _run(command, where)
            picture = _draw(title, [f"$ {command}", *output.splitlines()])
            (folder / f"{name}.svg").write_text(picture, encoding="utf-8")


def _has_triton() -> bool:
    """Whether the package is installed, and the build has its part."""
    from torch_openreg import extras

    return importlib.util.find_spec("triton") is not None and extras.has("triton")


def _run(command: str, folder: Path) -> str:
    """Returns the output of a command, run with this interpreter."""
    words = command.split()
    settings = {"OPENREG_CUDA_NOTICE": "0", "COLUMNS": "80", "TRITON_DEFAULT_FP_FUSION": "1"}
    while "=" in words[0]:
        name, value = words.pop(0).split("=")
        settings[name] = value
    if words[0] == "pytest":
        words[1:1] = ["--no-header", "-n", "0", "-p", "no:cacheprovider", "-o", "addopts="]
        words[:1] = ["python", "-m", "pytest"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OPENREG", "PYTEST"))}
    result = subprocess.run(
        [sys.executable, *words[1:]],
        cwd=folder,
        env=environment | settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    text = result.stdout.replace(f"{folder}/", "")
    for pattern, stable in _UNSTABLE:
        text = re.sub(pattern, stable, text)
    return text.rstrip()


def _wrap(line: str) -> list[str]:
    """Breaks a line between words; what follows is indented as the line is, and by two more."""
    indent = len(line) - len(line.lstrip()) + 2
    return textwrap.wrap(line, _COLUMNS, subsequent_indent=" " * indent, drop_whitespace=True) or [
        ""
    ]


def _draw(title: str, lines: list[str]) -> str:
    """Returns the picture."""
    rows = []
    for line in lines:
        color = next((color for pattern, color in _COLORS if re.search(pattern, line)), _TEXT)
        rows += [(part, color) for part in _wrap(line)]
    width = round(_COLUMNS * _LETTER + 2 * _MARGIN)
    height = _BAR + _LINE * len(rows) + _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-size="13" '
        'font-family="DejaVu Sans Mono, Menlo, Consolas, monospace">',
        f"<title>{html.escape(title)}</title>",
        f'<rect width="{width}" height="{height}" rx="8" fill="{_BACKGROUND}"/>',
    ]
    for i, color in enumerate((_RED, _YELLOW, _GREEN)):
        parts.append(f'<circle cx="{20 + 17 * i}" cy="17" r="5" fill="{color}" opacity="0.8"/>')
    for i, (text, color) in enumerate(rows):
        letters = text.lstrip()
        if letters:
            # The length makes the columns right, whatever font there is.
            left = _MARGIN + _LETTER * (len(text) - len(letters))
            parts.append(
                f'<text x="{left:.1f}" y="{_BAR + _LINE * i + 14}" fill="{color}" '
                'xml:space="preserve" '
                f'textLength="{_LETTER * len(letters):.1f}">{html.escape(letters)}</text>'
            )
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    main()
