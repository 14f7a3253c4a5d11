"""What the sweeps did, in records that `test/run.py` collects."""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

__all__ = ["Record", "read_records", "write_record"]

_FOLDER_VARIABLE = "OPENREG_TEST_REPORT"


@dataclass
class Record:
    """One test of a sweep.

    Attributes:
        op: the operator, module or optimizer.
        variant: such as "forward".
        samples: how many samples were compared.
        passed: how many dtypes agreed with the CPU.
        failed: how many did not, or did and are listed as gaps.
        listed: how many did not and are listed as gaps.
        tier: how the operator ran, see tiers.py; empty if that was not looked at.
        operators: the operators of ATen that ran, with their tiers.
        is_asynchronous: whether no operator waited on the fallback.
    """

    op: str
    variant: str
    samples: int = 0
    passed: int = 0
    failed: int = 0
    listed: int = 0
    tier: str = ""
    operators: dict[str, str] = field(default_factory=dict)
    is_asynchronous: bool = False


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
