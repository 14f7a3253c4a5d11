"""Counts the operators of ten models: which of them a backend gets kernels for first.

``python tools/operator_counts.py --device=mychip`` trains each model for two steps, and prints how
often the second one ran each operator on the CPU, as the functions ``fallback_stats`` and
``fallback_copied_bytes`` of the device's module say. On a backend without kernels, such as that in
``minimal/``, these are all operators that reach it. ``--write`` puts the table into
``docs/what_to_write_next.md``, and ``--check`` compares it with the page's.
"""

import argparse
import itertools
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from ten_models import MODELS
from torch import Tensor

import openreg_bringup

__all__ = ["main"]

_PAGE = Path(__file__).resolve().parent.parent / "docs" / "what_to_write_next.md"
_BEGIN = "<!-- operators: python tools/operator_counts.py --device=minimal --write -->\n"
_END = "<!-- end of operators -->\n"
_RELEASE = "2.13"  # of the page's table: other releases of torch compose operators of others


# --- Operators for which torch has no kernel on the CPU


def _convolution(*arguments: Any) -> Any:
    return torch.ops.aten.convolution(*arguments)


def _convolution_backward(grad: Tensor, x: Tensor, weight: Tensor, *rest: Any) -> Any:
    bias_sizes = [grad.size(1)]
    return torch.ops.aten.convolution_backward(grad, x, weight, bias_sizes, *rest)


def _lstm_cell(
    x: Tensor, h: Tensor, c: Tensor, x_bias: Tensor | None = None, h_bias: Tensor | None = None
) -> tuple[Tensor, ...]:
    gates = x + h if x_bias is None or h_bias is None else x + h + x_bias + h_bias
    i, f, g, o = gates.chunk(4, dim=1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    new = f * c + i * g
    return o * new.tanh(), new, torch.cat([i, f, g, o], dim=1)


def _lstm_cell_backward(
    grad_h: Tensor | None, grad_c: Tensor | None, c: Tensor, new: Tensor, gates: Tensor, bias: bool
) -> tuple[Tensor | None, ...]:
    i, f, g, o = gates.chunk(4, dim=1)
    grad_h = torch.zeros_like(c) if grad_h is None else grad_h
    grad_new = grad_h * o * (1 - new.tanh() ** 2) + (0 if grad_c is None else grad_c)
    grads = [grad_new * g * i * (1 - i), grad_new * c * f * (1 - f), grad_new * i * (1 - g**2)]
    grad = torch.cat([*grads, grad_h * new.tanh() * o * (1 - o)], dim=1)
    return grad, grad_new * f, grad.sum(0) if bias else None


_NOT_ON_CPU = {
    "convolution_overrideable": _convolution,
    "convolution_backward_overrideable": _convolution_backward,
    "_thnn_fused_lstm_cell": _lstm_cell,
    "_thnn_fused_lstm_cell_backward_impl": _lstm_cell_backward,
}


def _serve(device_type: str) -> tuple[Counter[str], list[torch.library.Library]]:
    """Registers those that the backend lacks, on the CPU, and counts their calls.

    Returns:
        The counts, and what keeps the kernels registered.
    """
    calls: Counter[str] = Counter()
    library = torch.library.Library("aten", "IMPL")
    key = torch._C._dispatch_key_for_device(device_type)

    def kernel_of(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def kernel(*arguments: Any) -> Any:
            calls[name] += 1
            tree_map = torch.utils._pytree.tree_map_only
            device = next(one.device for one in arguments if isinstance(one, Tensor))
            results = function(*tree_map(Tensor, Tensor.cpu, arguments))
            return tree_map(Tensor, lambda one: one.to(device), results)

        return kernel

    for name, function in _NOT_ON_CPU.items():
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key):
            library.impl(name, kernel_of(f"aten::{name}", function), key)
    return calls, [library]


# --- The table


@dataclass
class _Row:
    """An operator: the calls of one step of each model, and the models that call it."""

    calls: int = 0
    models: int = 0


def _rows(device: str) -> dict[str, _Row]:
    """Trains the models, and returns the operators, those of most models first."""
    module: Any = torch.get_device_module(device)
    device_type = torch.device(device).type
    served, _kept = _serve(device_type)
    rows: dict[str, _Row] = {}
    for model in MODELS.values():
        torch.manual_seed(0)
        step = model(device)
        step()
        before = Counter(module.fallback_stats()) + served
        step()
        counts: Counter[str] = Counter()
        for name, calls in (Counter(module.fallback_stats()) + served - before).items():
            counts[_registered_for(name, device_type)] += calls
        for name, calls in counts.items():
            row = rows.setdefault(name, _Row())
            row.calls += calls
            row.models += 1
    return dict(sorted(rows.items(), key=lambda one: (-one[1].models, -one[1].calls, one[0])))


def _registered_for(operator: str, device_type: str) -> str:
    """The operator that a backend registers for this one: its out variant, if torch composes it."""
    if _needs_kernel(operator):
        return operator
    schemas = openreg_bringup.group_of(operator, device_type).to_register
    return schemas[0].partition("(")[0] if schemas else operator


def _needs_kernel(operator: str) -> bool:
    """Whether torch does not compose the operator, or its composition only raises an error."""
    return operator.endswith("_overrideable") or not any(
        openreg_bringup.has_kernel(operator, key) for key in openreg_bringup.COMPOSITE_KEYS
    )


def _table(rows: dict[str, _Row]) -> str:
    """The rows in Markdown, with the share of all calls that a row and those before have."""
    total = sum(row.calls for row in rows.values())
    shares = [part / total for part in itertools.accumulate(row.calls for row in rows.values())]
    most = sum(share < 0.8 for share in shares) + 1
    lines = [
        f"The models call {len(rows)} of the {_count_to_register()} operators of ATen that need a "
        f"kernel, and the first {most} have {100 * shares[most - 1]:.0f} % of the calls:",
        "",
        "| operator | models | calls | share of calls, with those above |",
        "|---|---|---|---|",
    ]
    for (name, row), share in zip(rows.items(), shares, strict=True):
        mark = " \\*" if name.removeprefix("aten::") in _NOT_ON_CPU else ""
        lines.append(f"| `{name}`{mark} | {row.models} | {row.calls:,} | {100 * share:.0f} % |")
    return "\n".join(lines) + "\n"


def _count_to_register() -> int:
    """The number of ATen's operators that need a kernel."""
    names = torch._C._dispatch_get_all_op_names()
    return sum(
        name.startswith("aten::") and torch._C._dispatch_has_kernel(name) and _needs_kernel(name)
        for name in names
    )


def _updated(page: str, table: str) -> str:
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"{_PAGE}: expected the lines {_BEGIN!r} and {_END!r}")
    return f"{before}{begin}\n{table}\n{end}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program and returns its exit code: 1 if the page has another table."""
    parser = argparse.ArgumentParser(description="Counts the operators of ten models.")
    parser.add_argument("--device", required=True, help="a device type with fallback_stats()")
    parser.add_argument("--write", action="store_true", help="write the table into the page")
    parser.add_argument("--check", action="store_true", help="compare the table with the page's")
    options = parser.parse_args(arguments)
    table = _table(_rows(options.device))
    if not options.write and not options.check:
        print(table, end="")
        return 0
    if not torch.__version__.startswith(f"{_RELEASE}."):
        print(f"{_PAGE.name} has the table of torch {_RELEASE}, not of {torch.__version__}")
        return 0
    page = _PAGE.read_text(encoding="utf-8")
    updated = _updated(page, table)
    if options.write:
        _PAGE.write_text(updated, encoding="utf-8")
        return 0
    if updated == page:
        return 0
    print(
        f"{_PAGE.name} has another table: python tools/operator_counts.py --device=minimal --write"
    )
    print(table, end="")
    return 1


if __name__ == "__main__":
    sys.exit(main())
