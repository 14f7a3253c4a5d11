"""What openreg is known not to do as the CPU does. An entry that does not show fails its test."""

from dataclasses import dataclass

__all__ = ["GAPS", "Gap"]


@dataclass(frozen=True)
class Gap:
    """A known difference.

    Attributes:
        op: the formatted name of the OpInfo, or the name of the module or optimizer.
        variants: such as "forward".
        dtypes: names such as "float32"; empty for all.
        reason: why.
    """

    op: str
    variants: tuple[str, ...]
    dtypes: tuple[str, ...]
    reason: str

    def matches(self, op: str, variant: str, dtype: str) -> bool:
        return (
            self.op == op and variant in self.variants and (not self.dtypes or dtype in self.dtypes)
        )

    def __str__(self) -> str:
        return self.reason


GAPS: list[Gap] = []
