"""How Inductor finds what this package registers with it.

Note [How Inductor finds the package]
    Before it compiles its first graph, for any device, Inductor of torch 2.15 and later calls the
    function ``_inductor_backend_init`` of the device type's module, which is ``torch.openreg``.
    Earlier releases look up four classes in the module instead, and register them if all four
    exist. ``torch.openreg`` has three: the lookup of the first makes this package's own
    registration, including the pass, for which Inductor's registration has no argument. The fourth
    makes Inductor leave it at that.

    Inductor gets classes only from the module of the device type ``PrivateUse1``. Where the device
    type is CUDA, the registration is made when Inductor has been imported, which only programs that
    compile do.
"""

import functools
from collections.abc import Callable
from types import ModuleType

from torch_openreg._imports import after_import
from torch_openreg.openreg._utils import DEVICE_TYPE

__all__ = ["before_first_compilation"]


def before_first_compilation(module: ModuleType, function: Callable[[], None]) -> None:
    """Has Inductor call a function before it compiles its first graph, for any device.

    Args:
        module: The module ``torch.openreg``.
        function: The function.
    """
    once = functools.cache(function)
    if DEVICE_TYPE == "cuda":
        after_import("torch._inductor.compile_fx", once)
        return

    def look_up() -> ModuleType:
        once()
        return module

    module.__dict__["_inductor_backend_init"] = once
    for name in ("Scheduling", "PythonWrapperCodegen", "CppWrapperCodegen"):
        module.__dict__["_LOOKUPS"][name] = look_up
