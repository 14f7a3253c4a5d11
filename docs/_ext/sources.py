"""Tables that the sources contain: settings, errors, marked regions.

Nothing of torch or Sphinx is imported, here or in the modules beside, so that tests can use them.
"""

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUNTIME_HEADERS = ROOT / "third_party" / "openreg_runtime" / "include" / "openreg"
SETTING_HEADER = RUNTIME_HEADERS / "setting.h"
ERROR_HEADER = RUNTIME_HEADERS / "error.h"
# Where errors of the runtime, and exceptions of kernels, become exceptions.
ERROR_SOURCE = ROOT / "csrc" / "core" / "DeviceForm.cpp"
EXCEPTION_SOURCE = ROOT / "csrc" / "core" / "Exception.cpp"

# A line that begins or ends a marked region.
_MARK = r"^\s*(?://|#|/\*) docs: {}(?: \*/)?\s*$"

_PYTHON_EXCEPTIONS = {
    "c10::AcceleratorError": "torch.AcceleratorError",
    "c10::DistBackendError": "torch.distributed.DistBackendError",
    "c10::Error": "RuntimeError",
    "c10::IndexError": "IndexError",
    "c10::LinAlgError": "torch.linalg.LinAlgError",
    "c10::NotImplementedError": "NotImplementedError",
    "c10::OutOfMemoryError": "torch.OutOfMemoryError",
    "c10::TypeError": "TypeError",
    "c10::ValueError": "ValueError",
}


class SourceError(Exception):
    """The sources do not have the shape that a table relies on."""


def read(path: Path) -> str:
    """Returns the text of a file of the repository."""
    if not path.is_file():
        raise SourceError(f"{path.relative_to(ROOT)}: expected a file")
    return path.read_text(encoding="utf-8")


# --- X-macro tables


def macro_rows(path: Path, macro: str, columns: int) -> list[tuple[str, ...]]:
    """Returns the arguments of each X(...) in an X-macro table, string literals unquoted."""
    found = re.search(rf"#define {macro}\(X\)(.*?[^\\])\n", read(path), re.DOTALL)
    if found is None:
        raise SourceError(f"{path.relative_to(ROOT)}: expected '#define {macro}(X)'")
    string = r'"(?:[^"\\]|\\.)*"'
    rows = []
    for arguments in re.findall(rf"\bX\(((?:{string}|[^()\"])*)\)", found[1]):
        values = re.findall(rf"({string})|([\w]+)", arguments)
        rows.append(tuple(quoted[1:-1] or bare for quoted, bare in values))
    for row in rows:
        if len(row) != columns:
            raise SourceError(f"{macro}: expected rows of {columns} columns, got {row}")
    if not rows:
        raise SourceError(f"{path.relative_to(ROOT)}: expected {macro} to have rows, got none")
    return rows


@dataclass(frozen=True)
class Setting:
    """One environment variable."""

    variable: str
    default: str
    allowed: str
    description: str


def settings() -> list[Setting]:
    """Returns the runtime's table, then the settings of the other layers by name."""
    rows = macro_rows(SETTING_HEADER, "OPENREG_SETTINGS", 5)
    own = [
        _declared(variable, default, values, description, "" if allowed == "NULL" else allowed)
        for variable, default, values, allowed, description in rows
    ]
    declared = [*_settings_of_the_backend(), *_settings_of_the_package()]
    return [*own, *sorted(declared, key=lambda one: one.variable)]


def _settings_of_the_backend() -> Iterable[Setting]:
    """Yields the constants of the type Setting in csrc."""
    string = r'"(?:[^"\\]|\\.)*"'
    for path in sorted((ROOT / "csrc").rglob("*.cpp")):
        for arguments in re.findall(rf"\bSetting \w+\{{((?:{string}|[\s,])+)\}}", read(path)):
            texts = re.findall(rf"(?:{string}\s*)+", arguments)
            yield _declared(
                *("".join(re.findall(string, text)).replace('""', "")[1:-1] for text in texts)
            )


def _settings_of_the_package() -> Iterable[Setting]:
    """Yields the settings that modules of the package declare."""
    for path in sorted((ROOT / "torch_openreg").rglob("*.py")):
        text = read(path)
        if "_declare_setting(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "_declare_setting":
                named = {str(one.arg): ast.literal_eval(one.value) for one in node.keywords}
                yield _declared(*map(ast.literal_eval, node.args), **named)


def _declared(
    variable: str, default: str, values: str, description: str, allowed: str = ""
) -> Setting:
    # As the runtime does for orDeclareSetting.
    *others, last = values.split()
    words = f"{', '.join(others)} or {last}" if others else last
    return Setting(variable, default, allowed or words, description)


@dataclass(frozen=True)
class ErrorCode:
    """One error of the runtime, and the Python exception that it becomes; "" if none."""

    name: str
    number: int
    text: str
    exception: str


def error_codes() -> list[ErrorCode]:
    """Returns the table of openreg/error.h, with the exceptions of csrc/core/DeviceForm.cpp."""
    thrown = dict(_thrown_by(r"or\w+", ERROR_SOURCE))
    default = re.search(r"default:\s*throw (c10::\w+)", read(ERROR_SOURCE))
    if default is None or not thrown:
        raise SourceError("csrc/core/DeviceForm.cpp: expected a switch over errors that throws")
    codes = []
    for name, number, text in macro_rows(ERROR_HEADER, "OPENREG_ERRORS", 3):
        exception = _PYTHON_EXCEPTIONS[thrown.get(name, default[1])]
        if name in ("orSuccess", "orErrorNotReady"):
            exception = ""
        codes.append(ErrorCode(name, int(number), text, exception))
    return codes


def kernel_exceptions() -> list[tuple[str, str]]:
    """Returns the types that a kernel may throw, and the resulting exceptions in Python."""
    found = _thrown_by(r"KernelExceptionTag::\w+", EXCEPTION_SOURCE)
    thrown = [(cpp, _PYTHON_EXCEPTIONS[cpp]) for _, cpp in found]
    if not thrown:
        raise SourceError("csrc/core/Exception.cpp: expected a switch over KernelExceptionTag")
    return [*thrown, ("anything else", _PYTHON_EXCEPTIONS["c10::AcceleratorError"])]


def _thrown_by(label: str, source: Path) -> list[tuple[str, str]]:
    return re.findall(rf"case ({label}):\s*throw (c10::\w+)", read(source))


# --- Marked regions


def regions(path: Path) -> Iterable[str]:
    """Returns the names of the regions that a source marks with `docs: name`."""
    names = re.findall(_MARK.format(r"([\w-]+)"), read(path), re.MULTILINE)
    return [name for name in names if name != "end"]


def mark(name: str) -> re.Pattern[str]:
    """Returns the pattern of the line that begins a region, or ends one: "end"."""
    return re.compile(_MARK.format(re.escape(name)))
