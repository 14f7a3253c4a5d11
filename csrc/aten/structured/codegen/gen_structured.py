"""Generates the structured operators of the backend, and the C++ tables of facts about operators.

    python gen_structured.py --output-dir DIR [--shards N]

writes, for the installed torch,

    DIR/RegisterStructured_<i>.cpp   definitions and registrations
    DIR/structured_ops.json          {"generated": {group: [overload, ...]},
                                      "skipped": {group: reason}}
    DIR/facts/<Fact>.h               a table of csrc/aten/facts/operators.yaml, or of what torch
                                      declares

A file is written only if its content changes, so that an incremental build stays one. Nothing of
torch is imported but its generator library, `torchgen`.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")

from device_checks import device_checks, shared_kernels, without_cuda_kernel
from emit import shard_text
from facts import fact_headers, installed_release, load_facts
from model import Operator, Operators, load_operators

DEFAULT_SHARDS = 8
TABLE = "structured_ops.json"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Generate the structured operators.")
    parser.add_argument("--output-dir", type=Path, required=True)
    parser.add_argument("--shards", type=int, default=DEFAULT_SHARDS)
    options = parser.parse_args(arguments)
    if options.shards < 1:
        parser.error(f"--shards: expected a positive number, got {options.shards}")
    operators = load_operators()
    files = generate(operators, options.shards)
    written, removed = write(files, options.output_dir)
    overloads = sum(len(operator.forms) for operator in operators.generated)
    print(
        f"structured operators: {len(operators.generated)} groups, {overloads} overloads, "
        f"{len(operators.skipped)} skipped; {written} of {len(files)} files written, "
        f"{removed} removed"
    )


def generate(operators: Operators, shards: int) -> dict[str, str]:
    """File name to content."""
    files = {
        shard_name(index): shard_text(shard)
        for index, shard in enumerate(split(operators.generated, shards))
    }
    table = {
        "generated": {o.overload: [form.overload for form in o.forms] for o in operators.generated},
        "skipped": operators.skipped,
    }
    files[TABLE] = json.dumps(table, indent=2) + "\n"
    release = installed_release()
    declared = {
        "device_checks": device_checks(),
        "without_cuda_kernel": without_cuda_kernel(),
        **shared_kernels(),
    }
    return (
        files
        | fact_headers(load_facts(), release)
        | fact_headers(declared, release, "torch's native_functions.yaml")
    )


def shard_name(index: int | str) -> str:
    return f"RegisterStructured_{index}.cpp"


def split(operators: Sequence[Operator], shards: int) -> Iterator[Sequence[Operator]]:
    """Shards of equal size, operators of one signature side by side.

    What a registration costs the compiler depends on the signature and is paid once per file:
    this order halves the time that a build takes.
    """
    ordered = sorted(operators, key=lambda operator: (operator.signature, operator.overload))
    for index in range(shards):
        yield ordered[index * len(ordered) // shards : (index + 1) * len(ordered) // shards]


def write(files: dict[str, str], directory: Path) -> tuple[int, int]:
    """Brings the directory up to date. Returns how many files it wrote and removed."""
    (directory / "facts").mkdir(parents=True, exist_ok=True)
    known = {directory / name for name in files}
    found = [*directory.glob(shard_name("*")), *directory.glob("facts/*.h")]
    stale = [path for path in found if path not in known]
    for path in stale:
        path.unlink()
    changed = [
        name
        for name, content in files.items()
        if not (directory / name).is_file() or (directory / name).read_text() != content
    ]
    for name in changed:
        (directory / name).write_text(files[name])
    return len(changed), len(stale)


if __name__ == "__main__":
    main()
