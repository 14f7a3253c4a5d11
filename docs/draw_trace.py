"""Draws a trace of torch.profiler as trace.svg: ``python docs/draw_trace.py [FOLDER]``.

Profiles a step on two streams, reads the trace file back and draws its contents: a row per host
thread, stream and kind of event, boxes to scale, and the arrows from calls to their work.
"""

import html
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

__all__ = ["main"]

_WIDTH, _LEFT, _ROW, _GAP = 1000, 190, 24, 14
_COLORS = {
    "cpu_op": "#fdf3e3",
    "user_annotation": "#e9e3f5",
    "privateuse1_runtime": "#f4d9a8",
    "gpu_user_annotation": "#e9e3f5",
    "kernel": "#a9cdf0",
    "gpu_memcpy": "#b9e0bd",
    "gpu_memset": "#b9e0bd",
}
_TRACES = 30
_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
_MIN_LABEL_WIDTH = 34
_LETTER_WIDTH = 6.2

Event = dict[str, Any]


def main() -> None:
    """Profiles and draws."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "_static"
    # On a busy machine the streams' threads may take turns; the picture shows them side by side,
    # in the step that waited least for a processor.
    traces = [_last_step(_record()) for _ in range(_TRACES)]
    traces = [trace for trace in traces if _overlaps(trace)]
    if not traces:
        raise SystemExit("the streams never ran at the same time: try again on an idle machine")
    events = min(traces, key=_duration)
    (folder / "trace.svg").write_text(_draw(events), encoding="utf-8")


def _record() -> list[Event]:
    """Returns the events of a trace: a layer, while the next batch is copied on another stream."""
    torch.set_num_threads(1)  # one processor for each stream's kernels
    batch = torch.randn(1024, 1024, pin_memory=True)
    x, weight = (torch.randn(256, 256, device="openreg") for _ in range(2))
    copies = torch.openreg.Stream()

    def step() -> None:
        with record_function("layer"):
            y = torch.relu(x @ weight)
        with torch.openreg.stream(copies), record_function("next batch"):
            following = batch.to("openreg", non_blocking=True)
        torch.openreg.current_stream().wait_stream(copies)
        y.add_(1)
        torch.openreg.synchronize()
        del following

    for _ in range(20):
        step()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as profiler:
        for _ in range(3):
            step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events: list[Event] = json.loads(path.read_text())["traceEvents"]
    return events


class _Rows:
    """Places of the rows, from the top; a row is a process, a thread and a depth."""

    def __init__(self) -> None:
        self.places: dict[tuple[object, object, int], int] = {}
        self.height = 30

    def add(self, pid: object, tid: object, depths: int) -> int:
        top = self.height
        for depth in range(depths):
            self.places[pid, tid, depth] = self.height
            self.height += _ROW
        self.height += _GAP
        return top

    def of(self, event: Event, depth: int) -> int:
        return self.places[event["pid"], event["tid"], depth]


def _last_step(events: list[Event]) -> list[Event]:
    """Leaves out what came before it, and the profiler's own waiting at the end."""
    boxes = [e for e in events if e["ph"] == "X" and e["cat"] in _COLORS]
    start = max(e["ts"] for e in boxes if e["cat"] == "user_annotation" and e["name"] == "layer")
    end = max(e["ts"] + e["dur"] for e in boxes if e["cat"] in _WORK)
    names = [e for e in events if e["ph"] == "M" and e["name"] == "thread_name"]
    return names + [e for e in boxes if start <= e["ts"] < end]


def _duration(events: list[Event]) -> float:
    boxes = [e for e in events if e["ph"] == "X"]
    end = max(e["ts"] + e["dur"] for e in boxes if e["cat"] in _WORK)
    return float(end - min(e["ts"] for e in boxes))


def _overlaps(events: list[Event]) -> bool:
    (copy,) = [e for e in events if e.get("cat") == "gpu_memcpy"]
    (product,) = [e for e in events if e.get("cat") == "kernel" and "aten::mm" in e["name"]]
    latest_start = max(copy["ts"], product["ts"])
    return bool(
        min(e["ts"] + e["dur"] for e in (copy, product)) > latest_start + product["dur"] / 4
    )


def _draw(events: list[Event]) -> str:
    boxes = [e for e in events if e["ph"] == "X"]
    start = min(e["ts"] for e in boxes)
    end = max(e["ts"] + e["dur"] for e in boxes if e["cat"] in _WORK)
    scale = (_WIDTH - _LEFT - 20) / (end - start)
    depths = {id(e): depth for e, depth in _nest(boxes)}
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M"}
    devices = {e["pid"] for e in boxes if e["cat"] in _WORK}
    rows, labels = _Rows(), []
    for pid, tid in sorted(
        {(e["pid"], e["tid"]) for e in boxes}, key=lambda r: (r[0] in devices, r)
    ):
        depth = 1 + max(depths[id(e)] for e in boxes if (e["pid"], e["tid"]) == (pid, tid))
        top = rows.add(pid, tid, depth)
        label = f"openreg:{pid}, {names[pid, tid]}" if pid in devices else "host thread"
        labels.append((top, label))

    def x_of(time: float) -> float:
        return _LEFT + min(max(time - start, 0), end - start) * scale

    parts = [
        f'<text x="8" y="{top + 16}" fill="#222" font-weight="bold">{html.escape(label)}</text>'
        for top, label in labels
    ]
    for event in boxes:
        left, right = x_of(event["ts"]), x_of(event["ts"] + event["dur"])
        parts.append(_box(event, left, max(right - left, 1), rows.of(event, depths[id(event)])))
    parts += _arrows(boxes, depths, rows, x_of)
    parts.append(
        f'<text x="{_LEFT}" y="18" fill="#555">0</text><text x="{_WIDTH - 20}" y="18" '
        f'fill="#555" text-anchor="end">{(end - start) / 1000:.1f} ms</text>'
    )
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {rows.height}" '
        f'width="{_WIDTH}" height="{rows.height}" font-family="Helvetica, Arial, sans-serif" '
        f'font-size="11">\n<title>A trace of torch.profiler</title>\n'
        f'<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" '
        f'markerHeight="6" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="#b03030"/></marker>'
        f'</defs>\n<rect width="{_WIDTH}" height="{rows.height}" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def _nest(boxes: list[Event]) -> Iterator[tuple[Event, int]]:
    """Yields each event with the number of events of its row that contain it."""
    open_ends: dict[tuple[object, object], list[float]] = {}
    for event in sorted(boxes, key=lambda e: (e["ts"], -e["dur"])):
        ends = open_ends.setdefault((event["pid"], event["tid"]), [])
        while ends and ends[-1] <= event["ts"]:
            ends.pop()
        yield event, len(ends)
        ends.append(event["ts"] + event["dur"])


def _box(event: Event, left: float, width: float, top: int) -> str:
    box = (
        f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{_ROW - 4}" '
        f'fill="{_COLORS[event["cat"]]}" stroke="#888" stroke-width="0.5"/>'
    )
    if width < _MIN_LABEL_WIDTH:
        return box
    letters = int((width - 6) / _LETTER_WIDTH)
    name = event["name"] if len(event["name"]) <= letters else event["name"][: letters - 1] + "…"
    return box + f'<text x="{left + 3:.1f}" y="{top + 14}" fill="#222">{html.escape(name)}</text>'


def _arrows(boxes: list[Event], depths: dict[int, int], rows: _Rows, x_of: Any) -> Iterator[str]:
    calls = {
        e["args"]["correlation"]: e
        for e in boxes
        if e["cat"] == "privateuse1_runtime" and "correlation" in e["args"]
    }
    for work in boxes:
        call = calls.get(work["args"]["correlation"]) if work["cat"] in _WORK else None
        if call is not None:
            top = rows.of(call, depths[id(call)]) + _ROW - 4
            bottom = rows.of(work, depths[id(work)])
            yield (
                f'<line x1="{x_of(call["ts"]):.1f}" y1="{top}" x2="{x_of(work["ts"]):.1f}" '
                f'y2="{bottom}" stroke="#b03030" stroke-width="0.8" marker-end="url(#tip)"/>'
            )


if __name__ == "__main__":
    main()
