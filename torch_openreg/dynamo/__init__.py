"""Registrations with Dynamo: the device's interface, and the backend ``"openreg"``.

The modules here register something each when they are imported, which happens when a program has
imported the module of Dynamo for it; ``import torch`` imports neither Dynamo nor them.
"""

from torch_openreg._imports import import_after

__all__ = ["register"]

# Modules of torch -> modules of this folder that register something there.
_AFTER = {
    "torch._dynamo.backends.registry": "_backend",
    "torch._dynamo.device_interface": "_interface",
    "torch._dynamo.variables.optimizer": "_optimizers",
    "torch._dynamo": "_functions",
    "torch._functorch.partitioners": "_random_state",
    "torch._inductor.decomposition": "_decompositions",
}


def register() -> None:
    """Makes the import of Dynamo register the device's interface and backend."""
    for name, own in _AFTER.items():
        import_after(name, f"{__name__}.{own}")
