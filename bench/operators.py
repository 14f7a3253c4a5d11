"""Operators of common models, one row each and the geometric mean of all."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch.nn import functional

from bench.measure import Benchmark, Effort, Names, Ratios, Target, versus_cpu

__all__ = ["benchmarks", "make_operands"]

_SHAPE = (64, 256)
_EVERY_OPERATOR = Target(1.1)

# Statements over x, y of shape (64, 256), the weights w (256, 256) and b (256), rows (64 indices),
# the mask x > 0, the images i (8, 16, 28, 28) with filters k (16, 16, 3, 3), and the heads q, also
# key and value (8, 4, 64, 32).
_STATEMENTS = {
    "add": "x + y",
    "mul by a number": "x * 2",
    "exp": "torch.exp(x)",
    "tanh": "torch.tanh(x)",
    "relu": "torch.relu(x)",
    "gelu": "F.gelu(x)",
    "softmax": "torch.softmax(x, -1)",
    "sum of rows": "x.sum(-1)",
    "mean": "x.mean()",
    "argmax of rows": "x.argmax(-1)",
    "cumsum": "x.cumsum(-1)",
    "sort": "x.sort(-1)",
    "cat": "torch.cat((x, y))",
    "contiguous transpose": "x.t().contiguous()",
    "index_select": "x.index_select(0, rows)",
    "embedding": "F.embedding(rows, x)",
    "gather": "x.gather(0, rows[None])",
    "where": "torch.where(mask, x, y)",
    "masked_fill": "x.masked_fill(mask, 0)",
    "dropout": "F.dropout(x, 0.1)",
    "layer_norm 64x256": "F.layer_norm(x, (256,), b, b)",
    "batch_norm": "F.batch_norm(x, None, None, b, b, True)",
    "matmul": "x @ w",
    "linear": "F.linear(x, w, b)",
    "cross_entropy": "F.cross_entropy(x, rows)",
    "conv2d": "F.conv2d(i, k)",
    "max_pool2d": "F.max_pool2d(i, 2)",
    "attention": "F.scaled_dot_product_attention(q, q, q)",
    "foreach add": "torch._foreach_add(parts, 1)",
}
_WITH_TARGET = ("layer_norm 64x256", "conv2d", "attention")


def benchmarks() -> list[Benchmark]:
    """Returns the rows of this topic."""
    rows = [
        versus_cpu(
            f"operator: {name}",
            statement,
            make_operands,
            target=_EVERY_OPERATOR if name in _WITH_TARGET else None,
        )
        for name, statement in _STATEMENTS.items()
    ]
    mean = partial(_geometric_mean, [row.measure for row in rows])
    return [*rows, Benchmark("operators: geometric mean", "cpu", mean, Target(1.2))]


def _geometric_mean(measures: Sequence[Callable[[Effort], Ratios]], effort: Effort) -> Ratios:
    """Measures all again, with a third of the repetitions: the mean needs fewer."""
    effort = replace(effort, repetitions=max(3, effort.repetitions // 3))
    columns = zip(*(measure(effort).values for measure in measures), strict=True)
    return Ratios([statistics.geometric_mean(column) for column in columns])


def make_operands(device: torch.device) -> Names:
    """Creates the tensors for the statements of this topic."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(device)

    x = normal(*_SHAPE)
    return {
        "torch": torch,
        "F": functional,
        "x": x,
        "y": normal(*_SHAPE),
        "w": normal(256, 256),
        "b": normal(256),
        "rows": torch.randint(0, 64, (64,), generator=generator).to(device),
        "mask": x > 0,
        "i": normal(8, 16, 28, 28),
        "k": normal(16, 16, 3, 3),
        "q": normal(8, 4, 64, 32),
        "parts": [normal(64) for _ in range(20)],
    }
