"""The names of torch_openreg._C, with their C++ functions and their users."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from cpp import INDEX_CHECKS, Function, backend_functions, cpp_functions, runtime_functions
from package import python_users
from sources import ROOT, SourceError, read

_STUB = ROOT / "torch_openreg" / "_C.pyi"


@dataclass
class Binding:
    """A name of torch_openreg._C."""

    name: str
    cpp: str = ""  # the bound function, or the functions that a lambda calls
    runtime: list[str] = field(default_factory=list)
    python: list[str] = field(default_factory=list)


def stub_names() -> list[str]:
    """Returns the names that torch_openreg/_C.pyi declares."""
    names = []
    for node in ast.parse(read(_STUB)).body:
        if isinstance(node, ast.FunctionDef):
            names.append(node.name)
        elif isinstance(node, ast.ClassDef):
            names += _method_names(node)
    names += stub_aliases()
    return list(dict.fromkeys(names))  # a property with a setter is there twice


def stub_aliases() -> dict[str, str]:
    """Returns the second names that torch_openreg/_C.pyi declares -> the first ones."""
    return {
        ast.unparse(node.targets[0]): node.value.id
        for node in ast.parse(read(_STUB)).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name)
    }


def _method_names(node: ast.ClassDef) -> list[str]:
    """Returns the names of a class's methods, and of those of the classes in it."""
    names = []
    for member in node.body:
        if isinstance(member, ast.FunctionDef):
            names.append(f"{node.name}.{member.name}")
        elif isinstance(member, ast.ClassDef):
            names += [f"{node.name}.{name}" for name in _method_names(member)]
    return names


def bound_names() -> dict[str, tuple[str, list[str]]]:
    """Returns what csrc binds: for each name, the C++ side and the runtime's functions."""
    bound: dict[str, tuple[str, list[str]]] = {}
    for path in sorted((ROOT / "csrc").glob("**/python/*.cpp")):
        text = read(path)
        local = {function.name: function for function in cpp_functions(path)}
        for name, target in _binding_targets(text):
            bound[name] = _bound_function(target, local)
        for alias, name in re.findall(r'm\.attr\("(\w+)"\) = m\.attr\("(\w+)"\);', text):
            bound[alias] = bound[name]
    return bound


def _binding_targets(text: str) -> Iterator[tuple[str, str]]:
    """Yields each bound name and the C++ expression it is bound to."""
    class_name = ""
    variables = {"m": ""}  # classes that have a name in the source, as another one is in them
    pattern = (
        r'py::class_<[^;(]*>\s*(?P<variable>\w*)\(\s*(?P<scope>\w+),\s*"(?P<class>\w+)"\)'
        r"|^  (?P<again>\w+)$(?=\s*\.def)"
        r'|(?P<module>\bm)?\.def(?:_\w+)?\(\s*(?:"(?P<name>\w+)"|(?P<init>py::init[<(]))'
    )
    for found in re.finditer(pattern, text, re.MULTILINE):
        if found["class"]:
            outer = variables[found["scope"]]
            class_name = f"{outer}.{found['class']}" if outer else found["class"]
            variables[found["variable"]] = class_name
            continue
        if found["again"]:
            class_name = variables[found["again"]]
            continue
        opening = text.index("(", found.start() + len(found["module"] or ""))
        depth, end = 0, opening
        for end in range(opening, len(text)):
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            if depth == 0:
                break
        target = text[found.end() : end].lstrip(", \n")
        name = found["name"] or "__init__"
        yield (name if found["module"] else f"{class_name}.{name}"), " ".join(target.split())


# Functions of at::Context -> the hook that they call.
_BY_CONTEXT = {"defaultGenerator": "getDefaultOpenRegGenerator"}


def _bound_function(target: str, local: dict[str, Function]) -> tuple[str, list[str]]:
    """Returns the functions of an expression such as `&name` or `[] { ... }`."""
    backend = backend_functions()
    runtime: dict[str, None] = {}
    if target.startswith("&"):
        name = target[1:].split(",")[0].strip().rstrip(")")
        shown = [name]
        inner = [name]
        if name in local:
            inner = [call for call in local[name].calls if call not in INDEX_CHECKS]
            runtime.update(dict.fromkeys(local[name].runtime_calls))
    elif not target.startswith("["):
        shown, inner = ["the constructor"], []
    else:
        function = Function("", target)
        methods = [f"OpenRegStream::{call}" for _, call in function.method_calls]
        hooks = [_BY_CONTEXT[call] for _, call in function.method_calls if call in _BY_CONTEXT]
        known = [call for call in [*function.calls, *methods, *hooks] if call in backend]
        inner = [call for call in known if call not in INDEX_CHECKS] or known
        # A function of the operators, which are not in `backend`, or a field of the object.
        free = [call for call in function.calls if call not in local and call[0].islower()]
        # Or the result of a function of the same file.
        free = free or [
            one for call in function.calls if call in local for one in local[call].calls
        ]
        shown = inner or function.runtime_calls or [c for c in free if c != "string"]
        shown = shown or [f"orDeviceProp::{one}" for one in re.findall(r"\bp\.(\w+)", target)]
        runtime.update(dict.fromkeys(function.runtime_calls))
    for call in inner:
        runtime.update(dict.fromkeys(_runtime_of(call)))
    return ", ".join(dict.fromkeys(shown)), list(runtime)


def _runtime_of(name: str) -> list[str]:
    return runtime_functions(name) if name in backend_functions() else []


def users_in(folder: str, binding: str) -> list[str]:
    """Returns the Python files of a folder that use a binding."""
    pattern = re.compile(rf"\b_C\.{re.escape(binding)}\b")
    return [
        f"`{path.relative_to(ROOT)}`"
        for path in sorted((ROOT / folder).rglob("*.py"))
        if pattern.search(read(path))
    ]


# Bindings that neither the package nor a test calls -> their purpose.
_UNCALLED = {
    "_is_received_storage": "no caller: says whether another process owns a storage",
    "_maybe_exchange_device": "no caller: the name that `torch.cuda` has",
}


def bindings() -> list[Binding]:
    """Returns every binding with its C++ and its Python side.

    Raises:
        SourceError: A name is declared and not bound, or bound and not declared.
    """
    declared, bound, users = stub_names(), bound_names(), python_users()
    aliases = stub_aliases()
    problems = [
        *(f"{n}: in _C.pyi, but not bound in csrc" for n in declared if n not in bound),
        *(f"{n}: bound in csrc, but not in _C.pyi" for n in bound if n not in declared),
    ]
    rows = []
    for name in declared:
        if name not in bound:
            continue
        cpp, runtime = bound[name]
        python = users.get(name) or users_in("torch_openreg", name) or users_in("test", name)
        if name in aliases:
            python = [f"another name of `{aliases[name]}`"]
        if not python and name in _UNCALLED:
            python = [_UNCALLED[name]]
        row = Binding(name, cpp, runtime, python)
        if "." in name:
            row.python = _class_users(name)
        if not re.fullmatch(r"[\w:, ]+", row.cpp):
            problems.append(f"{name}: cannot tell which C++ function it is bound to: {row.cpp!r}")
        if not row.python:
            problems.append(f"{name}: neither the package nor a test uses it")
        rows.append(row)
    if problems:
        raise SourceError("bindings without a complete mapping:\n  " + "\n  ".join(problems))
    return rows


# Classes of torch_openreg._C -> their counterparts in Python.
_CLASSES: dict[str, str] = {
    "_Activity": "torch.openreg.profiler.Activity",
    "_DeviceGloo": 'torch.distributed.init_process_group("gloo")',
    "_DeviceProperties": "torch.openreg.get_device_properties()",
    "_Gate": "torch_openreg.testing.StreamGate",
    "_MemPool": "torch.openreg.MemPool",
    "ProcessGroupOCCL": "torch_openreg.distributed.ProcessGroupOCCL",
}


def _class_users(name: str) -> list[str]:
    """Returns the attribute of Python that a member of a class is.

    Raises:
        SourceError: The class is not known here.
    """
    owner, _, member = name.partition(".")
    if owner not in _CLASSES:
        raise SourceError(f"{name}: expected its class in _CLASSES of docs/_ext/bindings.py")
    # A method that creates an object, or enters it, is listed as the class.
    member = ".".join(part for part in member.split(".") if part not in ("__init__", "block"))
    return [f"`{_CLASSES[owner]}{'.' if member else ''}{member}`"]
