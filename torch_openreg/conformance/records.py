"""Records of the sweeps' comparisons, which a run of the tests collects."""

import json
import os
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

__all__ = ["Record", "read_records", "write_record", "written"]

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


# The last records of this process; the kit's report takes those of a test.
written: deque[Record] = deque(maxlen=16)


def write_record(record: Record) -> None:
    """Adds a record to those of this run of the tests, if one collects them."""
    written.append(record)
    folder = os.environ.get(_FOLDER_VARIABLE)
    if folder:
        with (Path(folder) / f"{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(record)) + "\n")


def read_records(folder: Path) -> Iterator[Record]:
    """Returns the records of a run."""
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            yield Record(**json.loads(line))
