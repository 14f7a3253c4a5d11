"""``_C.pyi`` against the built module."""

import ast
import importlib.util
import inspect
import re
import subprocess
import sys
import tempfile
import types
import unittest
from pathlib import Path

import pytest
import torch
from source_tree import ROOT
from torch.testing._internal.common_utils import TestCase, run_tests

import torch_openreg
from torch_openreg import _C

STUB = ROOT / "torch_openreg" / "_C.pyi"

# What every module and every class of pybind11 has.
OF_A_MODULE = {
    "__all__",
    "__doc__",
    "__file__",
    "__getattr__",  # in the stub it would allow any name
    "__loader__",
    "__name__",
    "__package__",
    "__spec__",
}
OF_A_CLASS = {"__doc__", "__module__", "_pybind11_conduit_v1_", "__dict__", "__weakref__"}


def stub_scope(body):
    """Returns the definitions in a scope by name."""
    return {node.name: node for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}


STUB_BODY = ast.parse(STUB.read_text()).body
STUB_NAMES = stub_scope(STUB_BODY)
# Other names of functions: `_exchangeDevice = _exchange_device`.
STUB_ALIASES = {
    node.targets[0].id: node.value.id
    for node in STUB_BODY
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name)
}
STUB_CLASSES = {name: node for name, node in STUB_NAMES.items() if isinstance(node, ast.ClassDef)}


def parameter_count(function) -> int:
    """Counts the parameters in the signature that pybind11 puts first into a docstring."""
    # A static method has a docstring of its own since Python 3.13.
    signature = inspect.getdoc(getattr(function, "__func__", function)).splitlines()[0]
    parameters = re.match(r"\w+\((.*)\) ->", signature)[1]
    return len(re.findall(r"\w+: ", parameters))


class TestStubs(TestCase):
    def test_stub_is_that_of_the_module_under_test(self):
        self.assertEqual(_C, torch_openreg._C)

    def test_stub_names_what_the_module_has(self):
        self.assertEqual(set(STUB_NAMES) | set(STUB_ALIASES), set(dir(_C)) - OF_A_MODULE)

    def test_aliases_of_the_stub_are_those_of_the_module(self):
        self.assertEqual(set(STUB_ALIASES), {"_exchangeDevice", "_isInBadFork"})
        for alias, name in STUB_ALIASES.items():
            self.assertIs(getattr(_C, alias), getattr(_C, name))

    def test_classes_of_the_stub_name_what_the_classes_have(self):
        for name, node in STUB_CLASSES.items():
            # A slot that pybind11 did not fill with a function belongs to every class.
            built = {
                member
                for member, value in vars(getattr(_C, name)).items()
                if not isinstance(value, types.WrapperDescriptorType)
            }
            self.assertEqual(set(stub_scope(node.body)), built - OF_A_CLASS, msg=name)

    def test_properties_of_the_stub_are_properties(self):
        for name, node in STUB_CLASSES.items():
            for member, definition in stub_scope(node.body).items():
                is_property = any(
                    isinstance(decorator, ast.Name) and decorator.id == "property"
                    for decorator in definition.decorator_list
                )
                built = inspect.getattr_static(getattr(_C, name), member)
                self.assertEqual(is_property, isinstance(built, property), msg=f"{name}.{member}")

    def test_functions_of_the_stub_have_as_many_parameters_as_the_built_ones(self):
        for name, node in STUB_NAMES.items():
            if isinstance(node, ast.FunctionDef):
                self.assertEqual(len(node.args.args), parameter_count(getattr(_C, name)), msg=name)

    def test_methods_of_the_stub_have_as_many_parameters_as_the_built_ones(self):
        for name, node in STUB_CLASSES.items():
            for member, definition in stub_scope(node.body).items():
                built = inspect.getattr_static(getattr(_C, name), member)
                if isinstance(definition, ast.FunctionDef) and not isinstance(built, property):
                    self.assertEqual(
                        len(definition.args.args), parameter_count(built), msg=f"{name}.{member}"
                    )


TYPED = """
import torch
import torch.backends.openreg
import torch.openreg
import torch.openreg.streams

side = torch.openreg.Stream()
with side:
    torch.openreg.sanitizer.enable("raise")
count: int = torch.openreg.device_count()
reveal_type(torch.openreg.streams.current_stream())
reveal_type(torch.backends.openreg.is_built())
torch.openreg.set_device(1.5)
torch.openreg.nothing()
names = (
    {names}
)
"""


class TestTypesOfTorch(TestCase):
    """``torch-stubs`` gives the modules that are attached to torch the package's types."""

    STUBS = ROOT / "torch-stubs"

    def test_each_public_module_has_a_stub(self):
        prefix = "torch.openreg."
        modules = {
            name.removeprefix(prefix): module.__name__
            for name, module in sys.modules.items()
            if name.startswith(prefix) and not name.startswith(f"{prefix}_")
        }
        stubs = {path.stem for path in (self.STUBS / "openreg").glob("*.pyi")}
        self.assertEqual(stubs, {*modules, "__init__"})
        self.assertEqual((self.STUBS / "py.typed").read_text(), "partial\n")
        for name, module in modules.items():
            text = (self.STUBS / "openreg" / f"{name}.pyi").read_text()
            self.assertIn(f"from {module} import *\n", text)
            self.assertTrue(hasattr(sys.modules[module], "__all__"), module)

    @pytest.mark.slow
    @unittest.skipUnless(importlib.util.find_spec("mypy"), "needs mypy: requirements-lint.txt")
    def test_mypy_knows_the_module(self):
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "program.py"
            names = ",\n    ".join(f"torch.openreg.{name}" for name in torch.openreg.__all__)
            program.write_text(TYPED.format(names=names))
            result = subprocess.run(
                [
                    *(sys.executable, "-m", "mypy", "--strict", "--no-error-summary"),
                    *("--config-file=", "--cache-dir", ROOT / ".mypy_cache", program),
                ],
                cwd=ROOT,
                capture_output=True,
                text=True,
            )
        texts = [line.split(": ", 1)[1] for line in result.stdout.splitlines()]
        self.assertEqual(
            texts,
            [
                'note: Revealed type is "torch_openreg.openreg.streams.Stream"',
                'note: Revealed type is "bool"',
                'error: Argument 1 to "set_device" has incompatible type "float"; expected '
                '"int | str | device"  [arg-type]',
                'error: Module has no attribute "nothing"  [attr-defined]',
            ],
            result.stdout + result.stderr,
        )


if __name__ == "__main__":
    run_tests()
