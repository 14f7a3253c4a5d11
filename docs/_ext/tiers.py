"""How each of ATen's operators runs on openreg, from the dispatcher of the running torch.

Unlike the other modules here, this one imports torch, when it is called.
"""

import functools
import json
import re
from collections import Counter

from sources import ROOT, SourceError

TIERS = {
    "generated": "by a function made from torch's declarations, on the stream",
    "hand-written": "by a function in `csrc/aten/ops`, `attention` or `parity`, on the stream",
    "fallback": "by the boxed fallback",
    "composite": "as other operators, which ATen calls",
    "no kernel": "raises `NotImplementedError`: neither openreg nor the CPU has a kernel",
}

TABLE = ROOT / "build" / "generated" / "structured_ops.json"
_COMPOSITE_KEYS = (
    "CompositeImplicitAutograd",
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
)


@functools.cache
def _generated() -> frozenset[str]:
    if not TABLE.is_file():
        raise SourceError(f"{TABLE.relative_to(ROOT)}: expected the table that the build writes")
    groups = json.loads(TABLE.read_text(encoding="utf-8"))["generated"]
    return frozenset(f"aten::{name}" for names in groups.values() for name in names)


@functools.cache
def tier_of(operator: str) -> str:
    """Returns the tier of an operator, such as "aten::add.Tensor": a key of TIERS."""
    import torch

    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    if operator in _generated():
        return "generated"
    if has_kernel(operator, _key()):
        return "fallback" if _is_boxed(operator) else "hand-written"
    if any(has_kernel(operator, key) for key in _COMPOSITE_KEYS):
        return "composite"
    return "fallback" if has_kernel(operator, "CPU") else "no kernel"


def _is_boxed(operator: str) -> bool:
    """Whether our kernel takes any operator: then it is the fallback's, registered by name."""
    import torch

    dump = torch._C._dispatch_dump(operator)
    return re.search(rf"^{_key()}: .* \[ boxed \]$", dump, re.MULTILINE) is not None


def _key() -> str:
    """The dispatch key of the device type that the library serves."""
    from torch_openreg import _C

    return "CUDA" if _C._serves_cuda() else "PrivateUse1"


def counts() -> Counter[str]:
    """Returns how many operators of ATen each tier has."""
    import torch

    names = torch._C._dispatch_get_all_op_names()
    return Counter(tier_of(name) for name in names if name.startswith("aten::"))
