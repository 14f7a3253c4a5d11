"""Tables of the sweeps' comparisons, from the records that `test/run.py` collects."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from torch_openreg.conformance.records import Record

__all__ = ["empty_variants", "is_asynchronous", "summary"]

_OF_OPERATORS = ("forward", "inplace", "out")


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
