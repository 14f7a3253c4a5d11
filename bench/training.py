"""Training steps, and a loop with additional host work."""

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import nn

from bench.measure import (
    Benchmark,
    Effort,
    Names,
    Ratios,
    Target,
    compare_apart,
    in_child,
    on_cpu,
    on_openreg,
    versus_cpu,
)
from torch_openreg.demo.digits import load_digits
from torch_openreg.demo.training import Training, make_model

__all__ = ["benchmarks", "make_demo", "make_step", "make_transformer_step"]

_BATCH_SIZE = 64
_SIZES = (784, 256, 256, 10)
# Long enough for the system to settle on processors for host, worker and OpenMP threads.
_STRETCH = 10
_OVERLAP_ELEMENTS = 30_000  # few enough for a kernel of one thread

_Wrap: TypeAlias = Callable[[nn.Module], nn.Module]


def benchmarks() -> list[Benchmark]:
    """Returns the rows of this topic."""
    return [
        versus_cpu(
            "train: step of MLP 784-256-256-10, batch 64, SGD",
            "step()",
            make_step,
            stretch=_STRETCH,
            target=Target(0.8),
        ),
        versus_cpu(
            "train: step of transformer encoder, AdamW",
            "step()",
            make_transformer_step,
            stretch=_STRETCH,
            target=Target(0.85),
        ),
        versus_cpu(
            "train: epoch of the demo",
            "run_epoch(order)",
            make_demo,
            stretch=_STRETCH,
            target=Target(1.0),
        ),
        Benchmark("overlap: op, and Python of the same length", "cpu", _overlap, Target(0.7)),
    ]


def _unchanged(model: nn.Module) -> nn.Module:
    return model


def make_step(device: torch.device, wrap: _Wrap = _unchanged) -> Names:
    """Makes step(), which does one training step on a fixed batch.

    Args:
        device: where.
        wrap: takes the model, and returns the one to train, such as a compiled one.
    """
    torch.manual_seed(0)
    inputs, hidden, hidden2, outputs = _SIZES
    model = nn.Sequential(
        nn.Linear(inputs, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden2),
        nn.ReLU(),
        nn.Linear(hidden2, outputs),
    ).to(device)
    forward = wrap(model)
    optimizer = torch.optim.SGD(forward.parameters(), lr=0.01)
    images = torch.randn(_BATCH_SIZE, inputs).to(device)
    labels = torch.randint(outputs, (_BATCH_SIZE,)).to(device)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(forward(images), labels).backward()
        optimizer.step()

    return {"step": step}


def make_transformer_step(device: torch.device, wrap: _Wrap = _unchanged) -> Names:
    """Makes step() for two layers of width 128 on 8 sequences of 64 tokens; see make_step."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        d_model=128, nhead=4, dim_feedforward=512, dropout=0.0, batch_first=True
    )
    model = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False).to(device)
    forward = wrap(model)
    optimizer = torch.optim.AdamW(forward.parameters(), lr=1e-3)
    tokens, goals = (torch.randn(8, 64, 128).to(device) for _ in range(2))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.mse_loss(forward(tokens), goals).backward()
        optimizer.step()

    return {"step": step}


def make_demo(device: torch.device) -> Names:
    """Makes run_epoch(order), which trains the demo's network."""
    digits = load_digits()
    torch.manual_seed(0)
    training = Training(device, digits, make_model().state_dict())
    return {"run_epoch": training.run_epoch, "order": torch.arange(len(digits))}


def _overlap(effort: Effort) -> Ratios:
    rounds = in_child(_rounds_like_op)

    def setup(device: torch.device) -> Names:
        x, y = (torch.ones(_OVERLAP_ELEMENTS).to(device) for _ in range(2))
        return {"pow": torch.pow, "x": x, "y": y, "work": lambda: _count_to(rounds)}

    statement = "pow(x, 2.5, out=y); work()"
    effort = replace(effort, sample_seconds=_STRETCH * effort.sample_seconds)
    return compare_apart(
        lambda: on_openreg(statement, setup), lambda: on_cpu(statement, setup), effort
    )


def _rounds_like_op() -> int:
    """Returns how far Python counts while the CPU computes the op."""
    x, y = (torch.ones(_OVERLAP_ELEMENTS) for _ in range(2))
    op_seconds = _seconds_of(lambda: torch.pow(x, 2.5, out=y))
    return round(op_seconds / _seconds_of(lambda: _count_to(1000)) * 1000)


def _count_to(rounds: int) -> int:
    total = 0
    for number in range(rounds):
        total += number
    return total


def _seconds_of(function: Callable[[], object]) -> float:
    samples = []
    for _ in range(200):
        start = time.perf_counter()
        function()
        samples.append(time.perf_counter() - start)
    return statistics.median(samples)
