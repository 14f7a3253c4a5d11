"""Prints how openreg compares with the CPU: ``python -m bench``. See README.md."""

import argparse
import functools
import json
import os
import platform
import re
import sys
from pathlib import Path

import torch

from bench import (
    allocation,
    compile,
    copies,
    distributed,
    dry_run,
    graphs,
    growth,
    imports,
    ipc,
    operators,
    ops,
    profiler,
    sanitizer,
    streams,
    system_calls,
    training,
    triton,
)
from bench.measure import FULL, QUICK, Benchmark, Ratios, UnmeasurableError, in_child

__all__ = ["main"]

_TOPICS = (
    ops,
    operators,
    allocation,
    copies,
    streams,
    graphs,
    ipc,
    training,
    distributed,
    compile,
    profiler,
    sanitizer,
    triton,
    dry_run,
    growth,
    imports,
    system_calls,
)
_HEADER = ("what", "median", "min", "max", "1 is", "target", "")
_ROW = "{:<52} {:>7} {:>7} {:>7}  {:<20} {:<8} {}"


def main() -> int:
    """Runs the program and returns its exit code, 0 unless nothing was selected."""
    options = _parse()
    selected = [
        benchmark
        for topic in _TOPICS
        for benchmark in topic.benchmarks()
        if re.search(options.only, benchmark.name)
    ]
    if not selected:
        print(f"no benchmark matches {options.only!r}", file=sys.stderr)
        return 1
    effort = QUICK if options.quick else FULL
    environment = _describe_environment()
    print(", ".join(f"{key} {value}" for key, value in environment.items()))
    print(_ROW.format(*_HEADER).rstrip())
    records = []
    for benchmark in selected:
        try:
            ratios = in_child(functools.partial(benchmark.measure, effort))
        except UnmeasurableError as error:
            print(f"{benchmark.name:<52} not measured: {error}", flush=True)
            records.append({"name": benchmark.name, "not_measured": str(error)})
        else:
            print(_row(benchmark, ratios), flush=True)
            records.append(_record(benchmark, ratios))
    if options.json:
        document = {"environment": environment, "results": records}
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", default="", metavar="PATTERN", help="regular expression of names")
    parser.add_argument("--quick", action="store_true", help="few and short samples")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples to a file")
    return parser.parse_args()


def _describe_environment() -> dict[str, str]:
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "processors": str(os.cpu_count()),
        "intra-op threads": str(torch.get_num_threads()),
    }


def _row(benchmark: Benchmark, ratios: Ratios) -> str:
    target = verdict = ""
    if benchmark.target:
        target = str(benchmark.target)
        verdict = "met" if benchmark.target.is_met_by(ratios.median) else "MISSED"
    values = (f"{value:.3f}" for value in (ratios.median, ratios.smallest, ratios.largest))
    return _ROW.format(benchmark.name, *values, benchmark.unit, target, verdict).rstrip()


def _record(benchmark: Benchmark, ratios: Ratios) -> dict[str, object]:
    target = benchmark.target
    return {
        "name": benchmark.name,
        "unit": benchmark.unit,
        "median": ratios.median,
        "min": ratios.smallest,
        "max": ratios.largest,
        "values": list(ratios.values),
        "target": str(target) if target else None,
        "met": target.is_met_by(ratios.median) if target else None,
    }


if __name__ == "__main__":
    sys.exit(main())
