"""Settings: the warnings about environment variables at import.

Each layer declares the settings that it reads, and the runtime reads and checks them; see Note
[Settings table] in openreg/setting.h. A Python module declares its own with
``_C._declare_setting``. This module checks the environment as it is now: it keeps nothing, so a
program may still change settings until it first needs a device.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable
from types import FrameType

__all__ = ["BUILD_AND_TEST_NAMES", "SettingWarning", "no_device_text", "problems", "warn"]

_PREFIX = "OPENREG_"

# Variables of the build, the tests and the tools, which are not settings of the device. A test
# compares the set with what these read.
BUILD_AND_TEST_NAMES = frozenset(
    {
        "OPENREG_BUILD_SANITIZER",
        "OPENREG_EXTRAS",
        "OPENREG_JOIN",
        "OPENREG_RELEASE",
        "OPENREG_TEST_FULL",
        "OPENREG_TEST_PROGRAMS",
        "OPENREG_TEST_REPORT",
        "OPENREG_TEST_SEED",
        "OPENREG_VERSION_LABEL",
        "OPENREG_WERROR",
    }
)

_LIST = "; python -m torch_openreg --settings lists them"

# How much less alike than the nearest name another one may be to be named, too.
_MARGIN = 0.05
# Names with a lower similarity are not suggested.
_LEAST_LIKENESS = 0.6


class SettingWarning(UserWarning):
    """An environment variable of this package has an invalid value, or no meaning."""


def problems() -> list[str]:
    """Returns the problems of the current environment: invalid values, then unknown names."""
    return [*bad_values(), *unknown_names()]


def bad_values() -> list[str]:
    """Returns a text for each setting with an invalid value. With one, no device is available."""
    from torch_openreg import _C

    return _C._review_settings()[1]


def allowed_instead(variable: str) -> str | None:
    """Returns the allowed values of a setting with an invalid value; None if it is valid."""
    for text in bad_values():
        if text.startswith(f"{variable} is "):
            return text.rpartition("; allowed: ")[2]
    return None


def unknown_names() -> list[str]:
    """Returns a text for each variable with the package's prefix that is not a setting."""
    from torch_openreg import _C

    names = [name for name in os.environ if name.startswith(_PREFIX)]
    if not names:
        return []
    known = {*_C._setting_names(), *BUILD_AND_TEST_NAMES}
    return [_of_no_setting(name, known) for name in sorted(names) if name not in known]


def _of_no_setting(name: str, known: set[str]) -> str:
    from torch_openreg import extras
    from torch_openreg.extras import _absent

    if (extra := _absent.extra_of_setting(name)) is not None:
        return extras.explain(name, extra)
    return f"{name} is no setting{nearest(name, known - BUILD_AND_TEST_NAMES) or _LIST}"


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns "; did you mean ...?" with the known names that are most like one; "" if none is."""
    from difflib import SequenceMatcher

    likeness = {one: SequenceMatcher(None, name, one).ratio() for one in known}
    best = max(likeness.values())
    if best < _LEAST_LIKENESS:
        return ""
    near = [one for one in known if likeness[one] >= best - _MARGIN]
    near.sort(key=lambda one: -likeness[one])
    return f"; did you mean {' or '.join(near[:3])}?"


def warn(may_raise: bool) -> None:
    """Warns of each problem, at the line of the program that imports torch or this package.

    Args:
        may_raise: Whether a filter may turn a warning into an exception. In ``import torch`` it may
            not, since that would fail: the text then goes to stderr.
    """
    for text in () if _is_launcher() else problems():
        warn_of(text, SettingWarning, may_raise)


def warn_of(text: str, category: type[Warning], may_raise: bool) -> None:
    """Warns as :func:`warn` does."""
    frame = _importing_frame()
    try:
        warnings.warn_explicit(
            text,
            category,
            filename=frame.f_code.co_filename,
            lineno=frame.f_lineno,
            module=frame.f_globals.get("__name__"),
            registry=frame.f_globals.setdefault("__warningregistry__", {}),
        )
    except category:
        if may_raise:
            raise
        sys.stderr.write(f"{category.__name__}: {text}\n")


def _is_launcher() -> bool:
    """Whether this is ``python -m torch_openreg.cuda``, whose program warns by itself."""
    return sys.argv[:1] == ["-m"] and any(
        option in ("torch_openreg.cuda", "-mtorch_openreg.cuda") for option in sys.orig_argv
    )


def _importing_frame() -> FrameType:
    """The innermost frame that is neither of the import system nor of torch or this package."""
    frame = sys._getframe()
    while frame.f_back is not None:
        name = str(frame.f_globals.get("__name__"))
        if name.split(".")[0] not in (
            "importlib",
            "torch",
            "torch_openreg",
            "torch_openreg_autoload",
        ):
            break
        frame = frame.f_back
    return frame


def no_device_text() -> str | None:
    """Returns why no device is available with this environment; None if one is."""
    from torch_openreg import _C

    count, bad = _C._review_settings()
    if count > 0:
        return None
    if bad:
        return bad[0]
    names = ["OPENREG_VISIBLE_DEVICES"]
    if os.environ.get("OPENREG_DEVICE_TYPE") == "cuda":
        names.append("CUDA_VISIBLE_DEVICES")
    name = next((name for name in names if name in os.environ), "OPENREG_DEVICE_COUNT")
    if os.environ.get("OPENREG_DEVICE_COUNT") == "0":
        name = "OPENREG_DEVICE_COUNT"
    return f"{name} is {os.environ.get(name, '')!r}"
