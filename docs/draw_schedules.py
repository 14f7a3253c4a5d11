"""Draws the orders of one program under schedules as schedules.svg.

``python docs/draw_schedules.py [FOLDER]``; the folder is ``docs/_static`` unless named.
"""

import html
import sys
from collections.abc import Iterable
from pathlib import Path

import torch

from torch_openreg.testing import schedule

__all__ = ["main"]

_SCHEDULES = ("lazy", "eager", *range(8))
_WIDTH, _LEFT, _RIGHT, _ROW, _TOP = 860, 90, 110, 30, 34
_COLORS = {"the current stream": "#a9cdf0", "the side stream": "#f4c98a"}

Step = tuple[str, str]


def main() -> None:
    """Runs the program under each schedule and draws the orders."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "_static"
    rows = [(str(order), *_run(order)) for order in _SCHEDULES]
    (folder / "schedules.svg").write_text(_draw(rows), encoding="utf-8")


def _run(order: str | int) -> tuple[list[Step], float]:
    """Returns the kernels in their order, each with its stream, and the result."""
    x, side = torch.zeros(64, device="openreg"), torch.openreg.Stream()
    torch.openreg.synchronize()
    with schedule(order), torch.openreg.profiler.collect() as activities:
        with side:
            x += 1
            x *= 3
        # Nothing waits for the side stream: that is the mistake.
        y = x + 10
        with side:
            x -= 1
        total = (x + y).sum().item()
        torch.openreg.synchronize()
    main_stream = torch.openreg.current_stream().stream_id
    kernels = [one for one in activities if one.kind == "kernel"]
    steps = [
        (
            one.name.split(".")[0].removeprefix("openreg_kernel<aten::").rstrip(">"),
            "the current stream" if one.stream == main_stream else "the side stream",
        )
        for one in sorted(kernels, key=lambda one: one.start_ns)
    ]
    return steps, total


def _draw(rows: Iterable[tuple[str, list[Step], float]]) -> str:
    rows = list(rows)
    height = _TOP + _ROW * len(rows) + 10
    width = (_WIDTH - _LEFT - _RIGHT) / max(len(steps) for _, steps, _ in rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}" font-family="Helvetica, Arial, sans-serif" '
        'font-size="12">\n<title>Orders of one program under schedules</title>',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        '<text x="8" y="20" font-weight="bold">schedule</text>',
        f'<text x="{_WIDTH - _RIGHT + 12}" y="20" font-weight="bold">result</text>',
    ]
    for i, (name, color) in enumerate(_COLORS.items()):
        left = _LEFT + 160 * i
        parts.append(f'<rect x="{left}" y="9" width="13" height="13" fill="{color}"/>')
        parts.append(f'<text x="{left + 19}" y="20">on {name}</text>')
    for row, (order, steps, total) in enumerate(rows):
        top = _TOP + _ROW * row
        label = order if order.isalpha() else f"seed {order}"
        parts.append(f'<text x="8" y="{top + 18}">{label}</text>')
        for i, (kernel, stream) in enumerate(steps):
            left = _LEFT + width * i
            parts.append(
                f'<rect x="{left:.1f}" y="{top}" width="{width - 5:.1f}" height="{_ROW - 5}" '
                f'rx="3" fill="{_COLORS[stream]}"/><text x="{left + 8:.1f}" y="{top + 17}">'
                f"{html.escape(kernel)}</text>"
            )
        parts.append(f'<text x="{_WIDTH - _RIGHT + 12}" y="{top + 18}">{total:g}</text>')
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    main()
