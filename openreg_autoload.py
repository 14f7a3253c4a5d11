"""The entry point of the group ``torch.backends``: ``import torch`` calls ``autoload``.

It is a module outside of the package, since importlib imports the module of an entry point before
it calls anything: see Note [Imports by several threads] in torch_openreg/__init__.py.
"""

import sys
from importlib import import_module

__all__ = ["autoload"]


def autoload() -> None:
    """Imports the package, as part of ``import torch``, and lets it say what is wrong."""
    try:
        package = import_module("torch_openreg")
    except RuntimeError:
        # importlib's deadlock error: another thread loads the package, and waits for this one.
        if "torch_openreg" not in sys.modules:
            raise
        package = sys.modules["torch_openreg"]
    package._autoload()
