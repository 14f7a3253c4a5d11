"""What openreg is known not to do as the CPU does. An entry that does not show fails its test."""

from dataclasses import dataclass

__all__ = ["GAPS", "Gap"]

_SPARSE = "openreg has no tensors of sparse layouts"
_COMPOSED = "composed of other operators, where the CPU has a kernel or a check of its own"
_OVERLAP = "the worker does not see that arguments of one call share memory"
_CONJUGATE = "conjugated already, where the CPU conjugates later and operators round otherwise"
_RESULT = "a result of the CPU's kernel is not taken over as it is"


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


GAPS: list[Gap] = [
    Gap("SparseAdam", "errors", _SPARSE),
    Gap("SparseAdam", "steps", _SPARSE),
    Gap("sparse_mm_reduce", "backward", _SPARSE),
    Gap("sparse_mm_reduce", "forward", _SPARSE),
    Gap("sparse_sampled_addmm", "backward", _SPARSE),
    Gap("sparse_sampled_addmm", "forward", _SPARSE),
    Gap("sparse_sampled_addmm", "out", _SPARSE),
    Gap("sparse_mm_reduce", "repetition", _SPARSE),
    Gap("sparse_sampled_addmm", "repetition", _SPARSE),
    Gap("to_sparse", "repetition", _SPARSE),
    Gap("native_dropout_backward", "repetition", _RESULT, ("int64",)),
    Gap("to_sparse", "backward", _SPARSE),
    Gap("to_sparse", "forward", _SPARSE),
    Gap("addr", "inplace", _COMPOSED),
    Gap("conj_physical", "inplace", _COMPOSED, ("complex128", "complex32", "complex64")),
    Gap("mode", "out", _COMPOSED),
    Gap("narrow_copy", "errors", _COMPOSED),
    Gap("svd", "out", _COMPOSED, ("complex128", "complex64")),
    Gap("take", "errors", _OVERLAP),
    Gap("linalg_lstsq", "backward", _RESULT),
    Gap("linalg_lstsq_grad_oriented", "backward", _RESULT),
    Gap("linalg_lstsq", "forward", _RESULT, ("complex128",), is_late=True),
    Gap("linalg_lstsq", "out", _RESULT, ("complex128",), is_late=True),
    Gap("linalg_lstsq_grad_oriented", "forward", _RESULT, ("complex128",), is_late=True),
    Gap("linalg_lu_solve", "backward", _CONJUGATE, ("complex64",), is_late=True),
    Gap("native_dropout_backward", "forward", _RESULT, ("int16", "int32", "int64", "int8")),
    Gap("triangular_solve", "out", _RESULT, ("float32",)),
    Gap("triangular_solve", "out", _RESULT, ("complex128", "complex64", "float64"), is_late=True),
]
