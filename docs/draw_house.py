"""Draws the rooms of the sources, and which includes which, as house.svg.

``python docs/draw_house.py [FOLDER]``; the folder is ``docs/_static`` unless named. The arrows are
those of the includes in the sources. One that others imply is left out.
"""

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

__all__ = ["main", "reduced", "uses"]

_ROOT = Path(__file__).resolve().parent.parent
_PUBLIC = "include/torch_openreg"
_WIDTH, _ROW, _BOX = 820, 92, 56

Graph = Mapping[str, set[str]]


class Room(NamedTuple):
    """A box of the figure: its row and its column in pixels, its width, and two lines of text."""

    row: int
    left: int
    width: int
    place: str
    contents: str
    color: str


_CORE, _EXTRA, _OUTER = "#e8f1fb", "#fdf3e3", "#f4f4f4"
_ROOMS = {
    "package": Room(0, 20, 520, "torch_openreg/", "torch.openreg: Python only", _OUTER),
    "extras": Room(1, 20, 520, "csrc/extras/", "one folder each, with its bindings", _EXTRA),
    "python": Room(2, 20, 520, "csrc/python/", "bindings of the core: torch_openreg._C", _CORE),
    "aten": Room(3, 20, 280, "csrc/aten/", "operators, fallback, launch of kernels", _CORE),
    "hooks": Room(3, 320, 220, "csrc/hooks/", "what ATen asks of a device", _CORE),
    "memory": Room(4, 20, 280, "csrc/memory/", "allocators of device and pinned memory", _CORE),
    "random": Room(4, 320, 220, "csrc/random/", "generator", _CORE),
    "serialization": Room(4, 560, 240, "csrc/serialization/", "metadata in files", _CORE),
    "core": Room(
        5, 20, 780, "csrc/core/", "device, stream, event, guard, errors, observers", _CORE
    ),
    "runtime": Room(
        6, 20, 780, "third_party/openreg_runtime/", "in place of a driver: no torch", _OUTER
    ),
}
# Joined by functions of Python instead of includes: _C has the bindings of both.
_CALLS = {"package": {"python", "extras"}}


def main() -> None:
    """Draws the figure."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "_static"
    (folder / "house.svg").write_text(_draw(reduced(uses())), encoding="utf-8")


def uses() -> dict[str, set[str]]:
    """Returns the rooms that the files of each room include.

    Raises:
        ValueError: A folder of csrc is not in the figure.
    """
    graph: dict[str, set[str]] = {name: set(_CALLS.get(name, ())) for name in _ROOMS}
    for folder in ("csrc", _PUBLIC):
        for path in sorted((_ROOT / folder).rglob("*")):
            name = _room_of(path.relative_to(_ROOT).as_posix())
            if path.suffix not in (".h", ".cpp") or name is None:
                continue
            if name not in graph:
                raise ValueError(f"docs/draw_house.py: expected a place for {name}")
            for include in re.findall(
                r'^#include [<"]([^>"]+)[>"]', path.read_text(), re.MULTILINE
            ):
                other = _room_of_include(include)
                if other not in (None, name):
                    graph[name].add(other)
    return graph


def _room_of(path: str) -> str | None:
    """The room of a file of the backend; None for those above the folders, such as OpenReg.h."""
    parts = path.removeprefix(f"{_PUBLIC}/").removeprefix("csrc/").split("/")
    if len(parts) == 1:
        return None
    # Public headers of an extra have no folder named extras.
    return parts[0] if parts[0] in _ROOMS or path.startswith("csrc/") else "extras"


def _room_of_include(include: str) -> str | None:
    if include.startswith("openreg/"):
        return "runtime"
    if include.startswith("torch_openreg/"):
        return _room_of(f"include/{include}")
    return _room_of(include) if include.startswith("csrc/") else None


def reduced(graph: Graph) -> dict[str, set[str]]:
    """Returns the arrows that others do not imply, of a graph without circles."""

    def reached(name: str) -> set[str]:
        return {name}.union(*(reached(other) for other in graph[name]))

    return {
        name: {
            other
            for other in others
            if not any(other in reached(third) for third in others - {other})
        }
        for name, others in graph.items()
    }


def _draw(graph: Graph) -> str:
    height = _ROW * (1 + max(room.row for room in _ROOMS.values()))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}" font-family="Helvetica, Arial, sans-serif" '
        'font-size="14">\n<title>Folders of the sources, and which includes which</title>',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="#444"/></marker></defs>',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for name, others in graph.items():
        for other in sorted(others):
            parts.append(_arrow(name, other))
    for name, room in _ROOMS.items():
        top = _top(room)
        parts += [
            f'<rect x="{room.left}" y="{top}" width="{room.width}" height="{_BOX}" rx="5" '
            f'fill="{room.color}" stroke="#5b8ec4"/>',
            f'<text x="{room.left + 12}" y="{top + 23}" fill="#222" font-weight="bold">{name}'
            f'<tspan font-weight="normal" font-family="monospace" font-size="11" dx="8" '
            f'fill="#555">{room.place}</tspan></text>',
            f'<text x="{room.left + 12}" y="{top + 44}" fill="#222">{room.contents}</text>',
        ]
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _top(room: Room) -> int:
    return 16 + _ROW * room.row


def _arrow(name: str, other: str) -> str:
    """A line from the bottom of a box to the top of another, as upright as both allow."""
    start, end = _ROOMS[name], _ROOMS[other]
    left = max(start.left, end.left)
    right = min(start.left + start.width, end.left + end.width)
    if left < right:
        x = end_x = (left + right) // 2
    elif start.left < end.left:
        x, end_x = right - 50, left + 50
    else:
        x, end_x = left + 50, right - 50
    return (
        f'<line x1="{x}" y1="{_top(start) + _BOX}" x2="{end_x}" y2="{_top(end) - 2}" '
        f'stroke="#444" stroke-width="1.5" marker-end="url(#tip)"><title>{name} includes '
        f"{other}</title></line>"
    )


if __name__ == "__main__":
    main()
