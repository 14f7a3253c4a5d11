"""The list of settings: ``python -m torch_openreg --settings``."""

import os
from typing import TextIO

from torch_openreg import _C, _settings

__all__ = ["show_settings"]


def show_settings(stream: TextIO) -> int:
    """Prints each setting, its current value, and the source of the value.

    Returns:
        The exit code: 1 if a setting has a bad value or a variable no meaning, else 0.
    """
    bad = {text.split(" ")[0] for text in _settings.bad_values()}
    unknown = _settings.unknown_names()
    for variable, default, allowed, description, value, source in _C._settings():
        mark = "  BAD" if variable in bad else ""
        origin = "default" if source is None else _origin(variable, source)
        print(f"{variable} = {default if value is None else value}  ({origin}){mark}", file=stream)
        print(f"    {description}", file=stream)
        print(f"    Default: {default}. Allowed: {allowed}.", file=stream)
    if bad:
        print(f"\nNo device is available: {', '.join(_settings.bad_values())}", file=stream)
    for text in unknown:
        print(f"\n{text}", file=stream)
    return 1 if bad or unknown else 0


def _origin(variable: str, source: str) -> str:
    if source == variable:
        return "environment"
    return f"from {source}={os.environ.get(source, '')}"
