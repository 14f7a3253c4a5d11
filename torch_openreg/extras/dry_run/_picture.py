"""A picture of a device's memory over time, by category."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch_openreg.extras.dry_run._report import CATEGORIES, Frame, category_of

__all__ = ["draw"]

_WIDTH, _HEIGHT = 860, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 20, 36, 46
_COLORS = {
    "parameters": "#4c78a8",
    "gradients": "#e45756",
    "optimizer": "#54a24b",
    "activations": "#f58518",
    "collectives": "#b279a2",
    "workspaces": "#9d755d",
    "temporary": "#72b7b2",
}
_GIB = 2**30


def draw(
    blocks: Sequence[Mapping[str, Any]], stacks: Sequence[Sequence[Frame]], limit: int, title: str
) -> str:
    """Draws memory over time.

    Args:
        blocks: As ``_C._memory_record_spans`` describes them, with their times.
        stacks: The frames that their ``"stack"`` is an index of.
        limit: Bytes of the device, drawn as a line if the picture reaches half of it.
        title: The text below the picture.

    Returns:
        The picture, as SVG.
    """
    series = _series(blocks, stacks)
    totals = [sum(column) for column in zip(*series.values(), strict=True)]
    top: int = max([*totals, 1])
    if top * 2 > limit:
        top = max(top, limit)

    def x(column: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * column / max(len(totals) - 1, 1)

    def y(size: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * size / top

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
    ]

    def edge(sizes: Sequence[int]) -> list[str]:
        heights = [f"{y(size):.1f}" for size in sizes]
        return [f"{x(i):.1f},{heights[i]}" for i in _corners(heights)]

    below = [0] * len(totals)
    for name, sizes in series.items():
        if not any(sizes):
            continue
        above = [low + size for low, size in zip(below, sizes, strict=True)]
        upper, lower = edge(above), edge(below)
        parts.append(f'<polygon points="{" ".join(upper + lower[::-1])}" fill="{_COLORS[name]}"/>')
        below = above
    for share in (0, 0.5, 1):
        parts.append(
            f'<text x="{_LEFT - 8}" y="{y(share * top) + 4:.1f}" text-anchor="end">'
            f"{share * top / _GIB:.2f} GiB</text>"
        )
    if top >= limit:
        parts.append(
            f'<path d="M{_LEFT} {y(limit):.1f}H{_WIDTH - _RIGHT}" stroke="black" '
            'stroke-dasharray="4 3"/>'
        )
    shown = [name for name in series if any(series[name])]
    for i, name in enumerate(shown):
        left = _LEFT + 108 * i
        parts.append(f'<rect x="{left}" y="12" width="12" height="12" fill="{_COLORS[name]}"/>')
        parts.append(f'<text x="{left + 17}" y="22">{name}</text>')
    parts.append(
        f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 14}" text-anchor="middle">'
        f"{title}</text>"
    )
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _corners(heights: Sequence[str]) -> list[int]:
    """Where a line begins, ends, or is not level."""
    last = len(heights) - 1
    return [
        i
        for i, height in enumerate(heights)
        if i in (0, last) or not heights[i - 1] == height == heights[i + 1]
    ]


def _series(
    blocks: Sequence[Mapping[str, Any]], stacks: Sequence[Sequence[Frame]]
) -> dict[str, list[int]]:
    """The bytes of each category, at most _WIDTH times in the order of allocations and frees."""
    end = max((max(one["allocated_at"], one["freed_at"]) for one in blocks), default=0)
    step = max(end // _WIDTH, 1)
    columns = end // step + 2
    changes = {name: [0] * columns for name in CATEGORIES}
    for block in blocks:
        change = changes[category_of(block, stacks[block["stack"]])]
        begin = block["allocated_at"] // step
        # A block that lives for less than a column is seen in it.
        after = block["freed_at"] // step + 1 if block["freed_at"] else columns
        change[begin] += block["size"]
        if after < columns:
            change[after] -= block["size"]
    series = {}
    for name, change in changes.items():
        sizes, size = [], 0
        for one in change:
            size += one
            sizes.append(size)
        series[name] = sizes
    return series
