"""What the sweeps did, in records that `test/run.py` collects."""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

__all__ = [
    "Record",
    "empty_variants",
    "is_asynchronous",
    "read_records",
    "summary",
    "write_record",
]

_OF_OPERATORS = ("forward", "inplace", "out")
_FOLDER_VARIABLE = "OPENREG_TEST_REPORT"


@dataclass
class Record:
    """One test of a sweep.

    Attributes:
        name: the operator, module or optimizer.
        variant: what was done with it, such as "forward".
        samples: how many cases agreed with the CPU.
        asynchronous: how many of them waited for no operator when a call was repeated.
        passed: how many dtypes agreed.
        failed: how many differed, or agreed though they are listed as gaps.
        listed: how many differed and are listed as gaps.
        operators: the operators of ATen that the first sample called, with their tiers.
        waited: the operators for which the host waited in a call that repeated another.
    """

    name: str
    variant: str
    samples: int = 0
    asynchronous: int = 0
    passed: int = 0
    failed: int = 0
    listed: int = 0
    operators: dict[str, str] = field(default_factory=dict)
    waited: list[str] = field(default_factory=list)

    @property
    def tier(self) -> str:
        """The tier of the only operator that was called, or "composite"."""
        if len(self.operators) != 1:
            return "composite"
        (tier,) = self.operators.values()
        if tier != "fallback":
            return tier
        return "synchronous fallback" if self.waited else "asynchronous fallback"


def write_record(record: Record) -> None:
    """Adds a record to those of this run of the tests, if one collects them."""
    folder = os.environ.get(_FOLDER_VARIABLE)
    if folder:
        with (Path(folder) / f"{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(record)) + "\n")


def read_records(folder: Path) -> Iterator[Record]:
    """Returns the records of a run."""
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            yield Record(**json.loads(line))


def summary(records: Sequence[Record]) -> str:
    """Returns tables of the records, as text."""
    by_tier = _grouped(
        [record for record in records if record.variant in _OF_OPERATORS],
        lambda record: record.tier,
    )
    by_variant = _grouped(records, lambda record: record.variant)
    asynchronous = sum(is_asynchronous(record) for record in records)
    cases = sum(record.samples for record in records)
    asynchronous_cases = sum(record.asynchronous for record in records)
    head = ("tests", "cases", "asynchronous", "dtypes passed", "failed", "known gaps")
    return "\n".join(
        [
            *_table("tier of the operators", head, by_tier),
            "",
            *_table("variant", head, by_variant),
            "",
            f"{asynchronous_cases} of {cases} cases, and all of {asynchronous} of {len(records)} "
            "tests, ran without waiting when calls were repeated; "
            f"{len({name for record in records for name in record.operators})} operators of ATen",
        ]
    )


def is_asynchronous(record: Record) -> bool:
    """Whether something was called on the stream and nothing waited for."""
    return bool(record.samples and record.operators and not record.waited)


def empty_variants(records: Sequence[Record]) -> list[str]:
    """Returns the variants of which no case has agreed with the CPU: their sweeps prove nothing."""
    counts: Counter[str] = Counter()
    for record in records:
        counts[record.variant] += record.samples
    return sorted(variant for variant, count in counts.items() if not count)


def _grouped(records: Sequence[Record], key: Callable[[Record], str]) -> dict[str, tuple[int, ...]]:
    groups: dict[str, tuple[int, ...]] = {}
    for record in records:
        row = (
            1,
            record.samples,
            record.asynchronous,
            record.passed,
            record.failed,
            record.listed,
        )
        sums = groups.get(key(record), (0,) * len(row))
        groups[key(record)] = tuple(map(sum, zip(sums, row, strict=True)))
    return dict(sorted(groups.items()))


def _table(what: str, head: Sequence[str], rows: Mapping[str, Sequence[int]]) -> list[str]:
    lines: list[Sequence[object]] = [(what, *head)]
    lines += [(name, *row) for name, row in rows.items()]
    widths = [max(len(str(line[i])) for line in lines) for i in range(len(head) + 1)]
    return [
        "  ".join(
            str(cell).ljust(width) if i == 0 else str(cell).rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]
