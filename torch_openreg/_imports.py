"""Functions that run when a program imports a module of torch."""

import contextlib
import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["after_import", "import_after"]


class _CallingLoader(Loader):
    """Loads a module as another loader does, and calls a function then."""

    def __init__(self, loader: Loader, action: Callable[[], None]) -> None:
        self._loader = loader
        self._action = action

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        assert spec is not None
        spec.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._action()


class _Finder(MetaPathFinder):
    """Runs a function at the import of one module, then removes itself."""

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self._name = name
        self._action = action

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _CallingLoader(spec.loader, self._action)
        return spec


def after_import(name: str, action: Callable[[], None]) -> None:
    """Calls a function when a module has been imported: now, if that is the case already."""
    if name in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _Finder(name, action))


def import_after(name: str, own: str) -> None:
    """Imports a module of this package when a module of torch has been imported.

    Unless this version of torch lacks a name that the own module imports: programs that do not use
    the device must not notice. Compiling graphs on this device then raises an error with the
    reason: Inductor imports the same modules.
    """
    after_import(name, functools.partial(_import_if_torch_has_all, own))


def _import_if_torch_has_all(module: str) -> None:
    with contextlib.suppress(ImportError):
        importlib.import_module(module)
