"""``torch.compile``: Inductor gets our wrapper and pass for CUDA, in place of Triton's.

Inductor asks the module of the device type ``PrivateUse1`` for classes, and no other; see Note [How
Inductor finds us] in ``torch_openreg/inductor``. Here ours are registered when Inductor has been
imported, which only programs that compile do.
"""

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["install"]

_INDUCTOR = "torch._inductor.compile_fx"


def _register() -> None:
    importlib.import_module("torch_openreg.inductor")


class _RegisteringLoader(Loader):
    """Loads a module as another loader does, and registers what we have for it."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        assert spec is not None
        spec.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        _register()


class _Finder(MetaPathFinder):
    """Sees one import, and is gone."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _INDUCTOR:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _RegisteringLoader(spec.loader)
        return spec


def install() -> None:
    """Has the import of Inductor register our device type."""
    if _INDUCTOR in sys.modules:
        _register()
    else:
        sys.meta_path.insert(0, _Finder())
