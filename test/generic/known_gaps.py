"""What openreg is known not to do as the CPU does. An entry that does not show fails its test."""

from dataclasses import dataclass

__all__ = ["GAPS", "Gap"]


@dataclass(frozen=True)
class Gap:
    """A known difference.

    Attributes:
        name: the formatted name of the OpInfo, or the name of the module or optimizer.
        variant: what is done with it, such as "forward".
        reason: why it differs.
        dtypes: names such as "float32"; empty for all.
        is_late: whether only samples show it that the default run leaves out.
    """

    name: str
    variant: str
    reason: str
    dtypes: tuple[str, ...] = ()
    is_late: bool = False

    def matches(self, name: str, variant: str, dtype: str, is_full_run: bool) -> bool:
        return (
            self.name == name
            and self.variant == variant
            and (not self.dtypes or dtype in self.dtypes)
            and (is_full_run or not self.is_late)
        )


# docs: known-gaps
_CONJUGATE = "conjugated already, where the CPU conjugates later and operators round otherwise"
_RESULT = "a result of the CPU's kernel is not taken over as it is"
_STATISTICS = "in evaluation the statistics come back as torch's decomposition promises of accelerators"
_INDICES = "the CPU has a kernel without indices, which returns contiguous results; CUDA has not"

GAPS: list[Gap] = [
    *(
        Gap(name, variant, _STATISTICS, dtypes)
        for name, layout_dtypes in (
            ("_native_batch_norm_legit", ("bfloat16", "float32")),
            ("native_batch_norm", ("float32", "float64")),
        )
        for variant, dtypes in (
            ("backward", ("float32",)),
            ("forward", ("bfloat16", "float16", "float32", "float64")),
            ("repetition", ("float32",)),
            ("layouts backward", ("float32",)),
            ("layouts", layout_dtypes),
        )
    ),
    Gap("nn_functional_max_pool1d", "layouts", _INDICES, ("float64",)),
    Gap("linalg_lu_solve", "backward", _CONJUGATE, ("complex64",), is_late=True),
    Gap("triangular_solve", "out", _RESULT, ("float32",)),
    Gap("triangular_solve", "out", _RESULT, ("complex128", "complex64", "float64"), is_late=True),
]
# docs: end
