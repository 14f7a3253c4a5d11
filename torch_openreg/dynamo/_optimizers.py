"""Compiled optimizers: their ``step`` is on the device, and reading it does not wait.

Dynamo turns the option ``capturable`` on while it compiles the step of an optimizer whose
parameters are on CUDA or XPU and which has no state yet. It asks each parameter for the two types
by name, and there is no registration for others.
"""

from typing import Any

from torch._dynamo.variables.optimizer import OptimizerVariable

from torch_openreg._torch_release import HAS_CAPTURABLE_WHILE_COMPILING
from torch_openreg.openreg._utils import DEVICE_TYPE

__all__ = ["install"]


def _is_served(optimizer: Any, group: dict[str, Any]) -> bool:
    """Whether a group of parameters has the option, no state, and is on the device."""
    return "capturable" in group and all(
        one.device.type == DEVICE_TYPE and one not in optimizer.state for one in group["params"]
    )


def install() -> None:
    """Has Dynamo make optimizers on the device capturable."""
    if DEVICE_TYPE == "cuda":
        return  # by torch itself
    changed: Any = OptimizerVariable
    if HAS_CAPTURABLE_WHILE_COMPILING:
        is_served_by_torch = changed._safe_to_set_capturable

        def is_served(self: Any, group: dict[str, Any]) -> bool:
            return bool(is_served_by_torch(self, group)) or _is_served(self.value, group)

        changed._safe_to_set_capturable = is_served
        return
    set_capturable = changed._set_capturable

    def set_ours_capturable(self: Any, *args: Any) -> None:
        for group in self.value.param_groups:
            if _is_served(self.value, group):
                group["capturable"] = True
        set_capturable(self, *args)

    changed._set_capturable = set_ours_capturable


install()
