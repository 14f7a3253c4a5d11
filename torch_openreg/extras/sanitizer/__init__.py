"""The sanitizer of streams: finds work on several streams that nothing orders."""

from types import ModuleType

from torch_openreg.extras import add_module, add_names
from torch_openreg.extras.sanitizer import sanitizer

__all__ = ["register", "start"]


def register(module: ModuleType) -> None:
    """Adds ``torch.openreg.sanitizer``.

    Args:
        module: The module ``torch.openreg``.
    """
    add_module(module, sanitizer, is_public=True)
    add_names(module, sanitizer, ("SanitizerError", "SanitizerWarning"))


def start(may_warnings_raise: bool) -> None:
    """Turns the sanitizer on if OPENREG_SANITIZER asks for it.

    Args:
        may_warnings_raise: Whether a filter may turn a warning of a setting into an exception.
    """
    sanitizer.enable_from_environment(may_warnings_raise)
