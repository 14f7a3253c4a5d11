"""Graphs: a replay of what was captured, against issuing it again."""

from collections.abc import Callable

import torch
from torch import nn

from bench.measure import (
    OPENREG,
    Benchmark,
    Effort,
    Names,
    Ratios,
    Subject,
    Target,
    compare,
    compare_apart,
    on_cpu,
    on_openreg,
)
from bench.ops import pair

__all__ = ["benchmarks"]

_LENGTH = 1000
_CHAIN = f"z = x\nfor _ in range({_LENGTH}):\n    z = z + y"
_STEP = "step()"


def benchmarks() -> list[Benchmark]:
    """Returns the rows of this topic."""
    chain = f"graph: {_LENGTH} adds, 1 element"
    return [
        Benchmark(chain, "eager openreg", _replay_versus_eager, Target(1 / 3)),
        Benchmark(chain, "cpu", _replay_versus_cpu, Target(1.0)),
        Benchmark("graph: training step, MLP 64-64-10", "eager openreg", _training),
    ]


def _replay_versus_eager(effort: Effort) -> Ratios:
    return compare(_captured(_CHAIN, pair(1)), on_openreg(_CHAIN, pair(1)), effort)


def _replay_versus_cpu(effort: Effort) -> Ratios:
    return compare_apart(
        lambda: _captured(_CHAIN, pair(1)), lambda: on_cpu(_CHAIN, pair(1)), effort
    )


def _training(effort: Effort) -> Ratios:
    return compare(_captured(_STEP, _training_step), on_openreg(_STEP, _training_step), effort)


def _captured(statement: str, setup: Callable[[torch.device], Names]) -> Subject:
    """Returns the replay of a statement, which has run once before the capture."""
    names = dict(setup(OPENREG))
    code = compile(statement, "<captured>", "exec")
    torch.accelerator.synchronize(OPENREG)
    with torch.openreg.Stream():
        exec(code, names)
    graph = torch.openreg.Graph()
    with torch.openreg.graph(graph):
        exec(code, names)
    return Subject("graph.replay()", {"graph": graph, "names": names}, OPENREG)


def _training_step(device: torch.device) -> Names:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(32, 64).to(device)
    labels = torch.zeros(32, dtype=torch.int64).to(device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(model(batch), labels).backward()
        optimizer.step()

    return {"step": step}
