"""Draws what a unit costs in small and large problems, as growth.svg.

``python docs/draw_growth.py [FOLDER]``; the folder is ``docs/_static`` unless named. The numbers
are those of one run, in ``docs/growth.json``; ``python docs/draw_growth.py --measure`` takes new
ones, for a few minutes.
"""

import json
import math
import sys
from pathlib import Path

_DOCS = Path(__file__).resolve().parent
_NUMBERS = _DOCS / "growth.json"
_WIDTH, _HEIGHT = 860, 470
_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 250, 24, 52
_COLORS = ("#4c78a8", "#f58518", "#e45756", "#72b7b2", "#54a24b", "#b279a2", "#9d755d", "#8a8a8a")
_DASHES = ("", "5 3")
_PROCESSES = 3
_NOT_DRAWN = {"copy"}  # a byte is not a thing of microseconds

_Curves = dict[str, dict[str, float]]


def measure() -> None:
    """Writes the microseconds per unit of the cases of ``bench/growth.py``, in each size."""
    sys.path.insert(0, str(_DOCS.parent))
    from bench.growth import CASES, Case, cost
    from bench.measure import OPENREG

    def least(case: Case, size: int) -> float:
        return min(cost(case, OPENREG, size) for _ in range(_PROCESSES))

    curves = {
        case.name: {str(size): round(1e6 * least(case, size), 4) for size in case.sizes}
        for case in CASES
        if case.name not in _NOT_DRAWN
    }
    _NUMBERS.write_text(json.dumps(curves, indent=2) + "\n", encoding="utf-8")


def draw(curves: _Curves) -> str:
    """Returns the picture."""
    sizes = [float(size) for curve in curves.values() for size in curve]
    costs = [cost for curve in curves.values() for cost in curve.values()]
    last = math.log10(max(sizes))
    lowest, highest = math.floor(math.log10(min(costs))), math.ceil(math.log10(max(costs)))

    def x(size: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * math.log10(size) / last

    def y(cost: float) -> float:
        share = (math.log10(cost) - lowest) / (highest - lowest)
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * share

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
    ]
    for power in range(int(last) + 1):
        at = x(10**power)
        parts.append(
            f'<line x1="{at:.1f}" y1="{_TOP}" x2="{at:.1f}" y2="{_HEIGHT - _BOTTOM}" '
            'stroke="#e4e4e4"/>'
        )
        parts.append(
            f'<text x="{at:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">'
            f"{10**power:,}</text>"
        )
    for power in range(lowest, highest + 1):
        at = y(10.0**power)
        parts.append(
            f'<line x1="{_LEFT}" y1="{at:.1f}" x2="{_WIDTH - _RIGHT}" y2="{at:.1f}" '
            'stroke="#e4e4e4"/>'
        )
        parts.append(
            f'<text x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{10.0**power:g} us</text>'
        )
    for i, (name, curve) in enumerate(curves.items()):
        color, dash = _COLORS[i % len(_COLORS)], _DASHES[i // len(_COLORS) % len(_DASHES)]
        stroke = f'stroke="{color}" stroke-width="2" stroke-dasharray="{dash}" fill="none"'
        points = [(x(float(size)), y(cost)) for size, cost in curve.items()]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        parts.append(f'<polyline points="{path}" {stroke}/>')
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.5" fill="{color}"/>' for a, b in points]
        row = _TOP + 14 + 22 * i
        left = _WIDTH - _RIGHT + 20
        parts.append(f'<polyline points="{left},{row} {left + 26},{row}" {stroke}/>')
        parts.append(f'<text x="{left + 34}" y="{row + 4}">{name}</text>')
    parts.append(
        f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 12}" text-anchor="middle">'
        "how many there are: tensors, parameters, nodes, kernels, shapes or streams</text>"
    )
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    if sys.argv[1:] == ["--measure"]:
        measure()
        sys.argv.pop()
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else _DOCS / "_static"
    numbers = json.loads(_NUMBERS.read_text(encoding="utf-8"))
    (folder / "growth.svg").write_text(draw(numbers), encoding="utf-8")
