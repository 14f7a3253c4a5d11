"""What openreg is known not to do as the CPU does. An entry that does not show fails its test."""

import functools
from dataclasses import dataclass

import torch
from common import DEVICE_TYPE

from torch_openreg._version import release_of

__all__ = ["GAPS", "Gap", "names_of_gaps"]

_RELEASE = release_of(str(torch.__version__))


@dataclass(frozen=True)
class Gap:
    """A known difference.

    Attributes:
        name: the formatted name of the OpInfo, or the name of the module or optimizer.
        variant: The tested use, such as "forward".
        reason: why it differs.
        dtypes: names such as "float32"; empty for all.
        is_late: whether only samples show it that the default run leaves out.
        device_type: the only device type that has it; None for both.
        releases: of torch that show it, such as "2.15"; empty for all.
    """

    name: str
    variant: str
    reason: str
    dtypes: tuple[str, ...] = ()
    is_late: bool = False
    device_type: str | None = None
    releases: tuple[str, ...] = ()

    @property
    def applies(self) -> bool:
        return self.device_type in (None, DEVICE_TYPE) and (
            not self.releases or _RELEASE in self.releases
        )

    def matches(self, name: str, variant: str, dtype: str, is_full_run: bool) -> bool:
        return (
            self.applies
            and self.name == name
            and self.variant == variant
            and (not self.dtypes or dtype in self.dtypes)
            and (is_full_run or not self.is_late)
        )


# docs: known-gaps
_RESULT = "a result of the CPU's kernel is not taken over as it is"
_INDICES = "the CPU has a kernel without indices, which returns contiguous results; CUDA has not"
_ALPHA = "torch compares alpha with the dtype of out= on every device but the CPU"
_IS_CPU = "torch's formula keeps the input's memory format on the CPU only; on CUDA it does not"
_MIXED = "of two dtypes, the CPU converts one before it chooses the result's strides; CUDA does not"
_FLUSHES = "the CPU has a kernel without indices, which flushes denormal numbers; CUDA has not"
# torch has formulas that check is_cuda(). They are those of CUDA.
_ZEROS = "the backward of a maximum among equals gives -0.0 where the CPU gives 0.0, as on CUDA"
_FORMULA = "torch has a formula of its own for second derivatives of CUDA's operator"
_ACCUMULATED = "the norm is accumulated in float, as on CUDA, where the CPU takes double"
_CONTIGUOUS = "the gradient of a maximum among equals is contiguous, as on CUDA"
_UNBATCHED = "torch asks whether cuDNN has a CTC loss, which vmap cannot, on CUDA neither"
_NAMED = "with deterministic algorithms the result is a named tuple, as torch makes it for CUDA"
_LATE = "the CPU's kernel finds that results overlap, which is late; CUDA's does not look"
_DIMENSION = "CUDA's operator checks the dimension first, and raises IndexError"
_NARROW = "of 16 bits into float64 the CPU has no kernel, whose error has the name of CUDA's"
_WITHOUT_DEVICE = "a function of torch._refs does not know the default device of a block"
_IN_DOUBLE = "torch's reference of arange computes in double for the CPU only"
_NORM_REF = "torch's reference of group_norm has a formula of its own for the CPU"
_FLEX_BACKWARD = "the CPU refuses the backward of FlexAttention, as CUDA does not"
_ASSEMBLER = "CUDA alone has assembler, and there it is refused with another exception"
_FLEX = "torch has a list of device types for FlexAttention"
# Inductor's decompositions run before any pass of a device.
_ROW = "Inductor decomposes a row times a column for the CPU only"
_NORM = "Inductor decomposes group_norm, which has a formula of its own for the CPU"

GAPS: list[Gap] = [
    Gap("nn_functional_max_pool1d", "layouts", _INDICES, ("float64",)),
    Gap(
        "nn_functional_max_pool1d",
        "layouts",
        _INDICES,
        ("bfloat16", "float16", "float32"),
        is_late=True,
    ),
    Gap("nn_functional_max_pool1d", "settings", _FLUSHES, ("float32",), is_late=True),
    Gap("nn_functional_normalize", "layouts backward", _MIXED, ("complex64",), is_late=True),
    Gap("add", "out", _ALPHA, ("bool",), is_late=True),
    *(
        Gap(
            "nn.GroupNorm",
            f"modules, layouts, {mode}",
            _IS_CPU,
            ("float32",),
            is_late=True,
            device_type="cuda",
        )
        for mode in ("eval", "train")
    ),
    Gap("native_group_norm", "backward", _IS_CPU, ("float32",), releases=("2.14", "2.15")),
    Gap("triangular_solve", "out", _RESULT, ("complex64", "float32")),
    Gap("triangular_solve", "out", _RESULT, ("complex128", "float64"), is_late=True),
    *(
        Gap(name, "compiled", _NORM, ("float32",), is_late=True)
        for name in ("native_group_norm", "nn_functional_group_norm")
    ),
    *(
        Gap(name, "compiled", _ROW, ("float32",), is_late=True)
        for name in ("nn_functional_linear_cross_entropy_chunked_none", "ormqr")
    ),
    *(
        Gap("flex_attention_simple", variant, _FLEX, device_type="openreg")
        for variant in ("higher order", "higher order backward")
    ),
    Gap("flex_attention_simple", "higher order backward", _FLEX_BACKWARD, device_type="cuda"),
    Gap(
        "inline_asm_elementwise_simple",
        "higher order",
        _ASSEMBLER,
        device_type="cuda",
    ),
    Gap("_refs_arange", "refs", _IN_DOUBLE, ("float32",), is_late=True),
    Gap("_refs_arange", "refs", _WITHOUT_DEVICE, ("int64",), is_late=True),
    Gap("_refs_native_group_norm", "refs", _NORM_REF),
    Gap("_foreach_max", "backward", _ZEROS, ("float32",), device_type="cuda"),
    Gap("max_reduction_no_dim", "layouts backward", _CONTIGUOUS, ("float32",), device_type="cuda"),
    *(
        Gap(name, "second gradients", _ZEROS, ("float32",), device_type="cuda")
        for name in ("max_reduction_no_dim", "median", "min_reduction_no_dim", "nanmedian")
    ),
    Gap("nn_functional_ctc_loss", "vmap of vjp", _UNBATCHED, ("float32",), device_type="cuda"),
    Gap("nn_functional_max_pool3d", "settings", _NAMED, ("float16", "float32"), device_type="cuda"),
    Gap("mode", "out refused", _LATE, ("float32",), device_type="cuda"),
    Gap("narrow_copy", "numbers", _DIMENSION, ("float32", "int64", "uint8"), device_type="cuda"),
    Gap("var", "out", _NARROW, ("bfloat16",), device_type="cuda"),
    *(
        Gap("nn_functional_rms_norm", variant, _FORMULA, ("float32",), device_type="cuda")
        for variant in ("second gradients", "vmap of vjp")
    ),
    Gap("renorm", "backward", _ACCUMULATED, ("complex64", "float32"), device_type="cuda"),
    Gap("renorm", "layouts backward", _ACCUMULATED, ("complex64", "float32"), device_type="cuda"),
    *(
        Gap("renorm", variant, _ACCUMULATED, ("float32",), device_type="cuda")
        for variant in (
            "second gradients",
            "settings backward",
            "threads backward",
            "vmap of vjp",
        )
    ),
]
# docs: end


@functools.cache
def names_of_gaps() -> frozenset[str]:
    """The operators, modules and optimizers with a gap that the default samples show."""
    return frozenset(gap.name for gap in GAPS if not gap.is_late and gap.applies)
