"""Extras: what the package can be built without. See OPENREG_EXTRAS in setup.py.

Each has a folder here, which a build without the extra does not install, and whose function
``register(module)`` adds its names to ``torch.openreg`` and has torch find the rest. The core
imports no extra: it calls :func:`register`. What a program meets without an extra is in
``_absent.py``.

A name of ``torch_openreg._C`` that belongs to a missing extra raises AttributeError and says so.
"""

import functools
import importlib
import sys
from collections.abc import Iterable
from types import ModuleType

__all__ = [
    "EXTRAS",
    "ExtraError",
    "add_module",
    "add_names",
    "explain",
    "has",
    "register",
    "require",
    "start",
]

# In the order of registration. tools/backend/openreg_extras.py has the same names for the build.
EXTRAS = (
    "autocast",
    "cuda",
    "custom",
    "distributed",
    "dry_run",
    "graph",
    "inductor",
    "ipc",
    "poison",
    "profiler",
    "sanitizer",
    "triton",
)


class ExtraError(NotImplementedError, AttributeError):
    """The extra was left out when torch_openreg was built.

    Also an AttributeError: ``hasattr(torch.openreg, "Graph")`` is False in a build without graphs.
    """


@functools.cache
def _missing() -> frozenset[str]:
    from torch_openreg import _C

    return frozenset(name for name in _C._missing_extras().split(", ") if name)


def has(extra: str) -> bool:
    """Returns whether an extra was built."""
    return extra not in _missing()


def explain(what: str, extra: str) -> str:
    """Returns the text of the error for what needs a missing extra."""
    return (
        f"{what}: needs the extra '{extra}', without which torch_openreg was built; install it "
        "again with OPENREG_EXTRAS=all"
    )


def require(what: str, extra: str) -> None:
    """Raises if an extra is missing.

    Args:
        what: The function or class that needs it.
        extra: Its name.

    Raises:
        ExtraError: It is missing.
    """
    if not has(extra):
        raise ExtraError(explain(what, extra))


def register(module: ModuleType) -> None:
    """Registers all extras of this build, and refusals of the others.

    Args:
        module: The module ``torch.openreg``.
    """
    for extra in EXTRAS:
        if has(extra):
            _folder(extra).register(module)
        else:
            from torch_openreg.extras import _absent

            _absent.register(extra, module)


def start(may_warnings_raise: bool) -> None:
    """Applies the settings that act at import. Called when the device is registered.

    Args:
        may_warnings_raise: Whether a filter may turn a warning into an exception.
    """
    for extra in filter(has, EXTRAS):
        if (start_one := getattr(_folder(extra), "start", None)) is not None:
            start_one(may_warnings_raise)


def add_names(module: ModuleType, source: ModuleType, names: Iterable[str]) -> None:
    """Adds public functions and classes of an extra to ``torch.openreg``."""
    for name in names:
        setattr(module, name, getattr(source, name))
        module.__dict__["__all__"].append(name)


def add_module(module: ModuleType, added: ModuleType, is_public: bool = False) -> None:
    """Adds a module of an extra to ``torch.openreg``, so that programs may import it from there.

    Args:
        module: The module ``torch.openreg``.
        added: The module.
        is_public: Whether it is one of the public names of ``torch.openreg``.
    """
    name = added.__name__.rpartition(".")[2]
    setattr(module, name, added)
    sys.modules[f"{module.__name__}.{name}"] = added
    if is_public:
        module.__dict__["__all__"].append(name)


def _folder(extra: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{extra}")
