"""Draws a snapshot as memory.svg: the memory in use over time, by its allocator's caller.

``python docs/draw_memory.py [FOLDER]``; the folder is ``docs/_static`` unless named.
"""

import sys
from pathlib import Path
from typing import Any

import torch

WIDTH, HEIGHT = 860, 340
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 36, 46
COLORS = {
    "parameters": "#4c78a8",
    "data": "#72b7b2",
    "forward": "#f58518",
    "backward": "#e45756",
    "optimizer": "#54a24b",
}
MIB = 1024 * 1024


def parameters() -> torch.nn.Module:
    """Makes a model."""
    return torch.nn.Sequential(
        torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256)
    ).to("openreg")


def data() -> torch.Tensor:
    """Makes a batch."""
    return torch.randn(1024, 256, device="openreg")


def forward(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Returns a loss."""
    return (model(x) - x).square().mean()


def optimizer(step: torch.optim.Optimizer) -> None:
    """Updates the parameters."""
    step.step()
    step.zero_grad()


def record() -> list[dict[str, Any]]:
    """Trains for three steps and returns the events of the device."""
    memory = torch.openreg.memory
    memory._record_memory_history(stacks="python", clear_history=True)
    model = parameters()
    adam = torch.optim.Adam(model.parameters())
    for _ in range(3):
        loss = forward(model, data())
        loss.backward()
        optimizer(adam)
    torch.openreg.synchronize()
    events = memory._snapshot()["device_traces"][0]
    memory._record_memory_history(None)
    return events


def owner(event: dict[str, Any]) -> str:
    """Names the allocating code. Frames are missing in autograd's thread: the backward pass."""
    for frame in event["frames"]:
        if frame["filename"] == __file__ and frame["name"] in COLORS:
            return frame["name"]
    return "backward"


def outlines(events: list[dict[str, Any]]) -> tuple[list[tuple[str, int, list[int]]], int, int]:
    """Stacks live allocations in the order of their age.

    Returns:
        For each allocation its owner, its size and a list: the time it began, then its lower edge
        at each time from there on. Then the end of time and the peak.
    """
    live: dict[int, tuple[str, int, list[int]]] = {}
    done = []
    peak = 0
    time = 0
    for event in events:
        if event["action"] == "alloc":
            live[event["addr"]] = (owner(event), event["size"], [time])
        elif event["action"] == "free_completed" and event["addr"] in live:
            done.append(live.pop(event["addr"]))
        else:
            continue
        offset = 0
        for _, size, edge in live.values():
            edge.append(offset)
            offset += size
        peak = max(peak, offset)
        time += 1
    return done + list(live.values()), time, peak


def draw(events: list[dict[str, Any]]) -> str:
    """Returns the picture."""
    shapes, end, peak = outlines(events)

    def x(time: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * time / end

    def y(size: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * size / peak

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for name, size, (begin, *edge) in shapes:
        if y(0) - y(size) < 0.3:
            continue  # too thin to see
        # Corners only: where the lower edge begins, ends or moves.
        steps = [i for i in range(len(edge)) if i == 0 or edge[i] != edge[i - 1]]
        corners = [
            (x(begin + at), edge[i])
            for i, after in zip(steps, [*steps[1:], len(edge)], strict=True)
            for at in (i, after)
        ]
        lower = [f"{a:.1f},{y(offset):.1f}" for a, offset in corners]
        upper = [f"{a:.1f},{y(offset + size):.1f}" for a, offset in reversed(corners)]
        parts.append(
            f'<polygon points="{" ".join(lower + upper)}" fill="{COLORS[name]}" '
            'stroke="white" stroke-width="0.3"/>'
        )
    for share in (0, 0.5, 1):
        height = y(share * peak)
        parts.append(
            f'<text x="{LEFT - 8}" y="{height + 4:.1f}" text-anchor="end">'
            f"{share * peak / MIB:.1f} MiB</text>"
        )
    for i, (name, color) in enumerate(COLORS.items()):
        left = LEFT + 120 * i
        parts.append(f'<rect x="{left}" y="12" width="12" height="12" fill="{color}"/>')
        parts.append(f'<text x="{left + 17}" y="22">{name}</text>')
    parts.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 14}" text-anchor="middle">'
        f"{end} allocations and frees of three training steps, in their order</text>"
    )
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "_static"
    (folder / "memory.svg").write_text(draw(record()), encoding="utf-8")
