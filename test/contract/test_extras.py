"""Extras can be left out of a build. Run in a build with or without them, as this says of each.

OPENREG_EXTRAS is what the build had. ``.ci/run`` tests a build with OPENREG_EXTRAS=none, the core,
by ``python test/contract/test_extras.py``; pytest would import the package of the source tree.
"""

import os
import subprocess
import sys
import types
import unittest
from unittest import mock

import pytest
import torch
from source_tree import ROOT
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

sys.path.insert(0, str(ROOT / "tools" / "backend"))
from openreg_extras import EXTRAS, extra_of, missing_extras

from torch_openreg import _C, _settings, extras
from torch_openreg.extras import _absent
from torch_openreg.testing import schedule


def begin_group():
    torch.distributed.init_process_group(
        "occl", rank=0, world_size=1, store=torch.distributed.HashStore()
    )
    torch.distributed.destroy_process_group()


def compile_a_function():
    torch._dynamo.reset()
    torch.compile(lambda x: x + 1)(torch.ones(2, device="openreg"))


def sanitize():
    torch.openreg.sanitizer.enable()
    torch.openreg.sanitizer.disable()


def choose_driver_of_triton():
    try:
        from triton.runtime import driver
    except ImportError:
        raise unittest.SkipTest("Triton is not installed") from None
    driver.active.get_current_target()


# What a program does first with each extra.
FIRST_USES = {
    "autocast": lambda: torch.autocast("openreg").__enter__(),
    "distributed": begin_group,
    "graph": lambda: torch.openreg.Graph(),
    "inductor": compile_a_function,
    "ipc": lambda: torch.openreg.ipc_collect(),
    "poison": lambda: schedule("free").__enter__(),
    "profiler": lambda: torch.openreg.profiler.mark("here"),
    "sanitizer": sanitize,
    "triton": choose_driver_of_triton,
}


# The prelude of a program whose package has no folder of an extra, and takes all for missing.
WITHOUT_EXTRAS = """
import importlib.abc, importlib.util, sys

class Hiding(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.startswith("torch_openreg.extras.") and "._" not in name:
            raise ModuleNotFoundError(name, name=name)
        if name == "torch_openreg.extras":
            sys.meta_path.remove(self)
            spec = importlib.util.find_spec(name)
            sys.meta_path.insert(0, self)
            execute = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (execute(module), hide(module))
            return spec

def hide(module):
    module._missing = lambda: frozenset(module.EXTRAS)

sys.meta_path.insert(0, Hiding())
"""

# The first uses of some extras, and something that the core does.
USES = """
import torch

for use in (
    lambda: torch.openreg.Graph(),
    lambda: torch.autocast("openreg").__enter__(),
    lambda: torch.distributed.init_process_group(
        "occl", rank=0, world_size=1, store=torch.distributed.HashStore()
    ),
    lambda: __import__("torch_openreg.distributed"),
    lambda: __import__("torch_openreg.cuda"),
    lambda: torch.compile(lambda x: x + 1)(torch.ones(2, device="openreg")),
):
    try:
        use()
    except Exception as error:
        print("needs the extra" in str(error))
print((torch.ones(2, device="openreg") + 1).tolist())
"""


class TestFirstUses(TestCase):
    def test_extras_of_this_build_are_those_that_were_asked_for(self):
        missing = set(missing_extras(os.environ.get("OPENREG_EXTRAS", "all")))
        self.assertEqual({extra for extra in EXTRAS if not extras.has(extra)}, missing)

    @pytest.mark.slow("extra_inductor")
    @parametrize("extra", list(FIRST_USES))
    def test_extra_works_or_its_error_names_it(self, extra):
        if extras.has(extra):
            FIRST_USES[extra]()
            return
        with self.assertRaises(Exception) as raised:
            FIRST_USES[extra]()
        self.assertIn(extra, str(raised.exception))
        self.assertIn("OPENREG_EXTRAS=all", str(raised.exception))

    def test_operator_of_an_extra_is_there_if_the_extra_is(self):
        self.assertEqual(hasattr(torch.ops.openreg, "custom_abs"), extras.has("custom"))

    def test_core_computes_and_differentiates(self):
        x = torch.arange(4.0, device="openreg", requires_grad=True)
        (x * x).sum().backward()
        self.assertEqual(x.grad.cpu(), torch.arange(4.0) * 2)

    def test_extras_add_the_names_that_are_refused_without_them(self):
        openreg = torch.openreg
        core = {"AcceleratorError", "OutOfMemoryError", "comm", "default_generators", "sparse"}
        for name in ("devices", "fallback", "initialization", "memory", "random", "streams"):
            core |= {*getattr(openreg, name).__all__}
        core |= {*openreg.tensor_types.__all__}
        of_extras = {"get_amp_supported_dtype"} if extras.has("autocast") else set()
        for extra, names in _absent.NAMES.items():
            of_extras |= {*names} if extras.has(extra) else set()
            self.assertEqual(
                {name for name in names if hasattr(openreg, name)}, of_extras & {*names}
            )
        self.assertEqual({*openreg.__all__} - core, of_extras)
        self.assertEqual(len(openreg.__all__), len({*openreg.__all__}))

    def test_name_that_nothing_has_is_an_attribute_error(self):
        with self.assertRaisesRegex(AttributeError, "has no attribute '_no_such_name'"):
            _ = _C._no_such_name
        self.assertFalse(hasattr(_C, "_no_such_name"))


class TestAbsence(TestCase):
    """What is registered in place of an extra that a build does not have."""

    def module_without(self, extra):
        module = types.ModuleType("module")
        module._LOOKUPS = {}
        module.__getattr__ = lambda name: module._LOOKUPS[name]()
        _absent.register(extra, module)
        return module

    @parametrize("extra", list(_absent.NAMES))
    def test_names_raise_an_error_that_is_one_of_attributes_too(self, extra):
        module = self.module_without(extra)
        for name in _absent.NAMES[extra]:
            with self.assertRaisesRegex(NotImplementedError, f"{name}: needs the extra '{extra}'"):
                getattr(module, name)
            self.assertFalse(hasattr(module, name))

    def test_torch_asks_for_the_dtypes_of_autocast_and_gets_the_error(self):
        module = self.module_without("autocast")
        with self.assertRaisesRegex(NotImplementedError, "torch.autocast: needs .*'autocast'"):
            module.get_amp_supported_dtype()

    def test_setting_of_a_missing_extra_is_said_to_be_one(self):
        with mock.patch.object(extras, "has", lambda extra: extra != "sanitizer"):
            self.assertEqual(_absent.extra_of_setting("OPENREG_SANITIZER_HOST"), "sanitizer")
            self.assertIsNone(_absent.extra_of_setting("OPENREG_DEVICE_COUNT"))
            self.assertIn(
                "needs the extra 'sanitizer'", _settings._of_no_setting("OPENREG_SANITIZER", set())
            )
        self.assertIsNone(
            _absent.extra_of_setting("OPENREG_SANITIZER") if extras.has("sanitizer") else None
        )

    def test_settings_of_triton_are_said_to_be_so(self):
        with mock.patch.object(extras, "has", lambda extra: extra != "triton"):
            for setting in ("OPENREG_INDUCTOR", "OPENREG_TRITON_CHECK"):
                self.assertEqual(_absent.extra_of_setting(setting), "triton")

    @unittest.skipUnless(extras.has("inductor"), "the build has no inductor")
    def test_inductor_makes_its_own_kernels_in_a_build_without_triton(self):
        from torch_openreg.extras import inductor

        # The setting is that of the extra, and does not exist without it.
        no_setting = mock.Mock(side_effect=StopIteration)
        with (
            mock.patch.object(inductor, "has", lambda extra: extra != "triton"),
            mock.patch.object(inductor, "_setting", no_setting),
        ):
            self.assertFalse(inductor._makes_triton())

    def run_without_extras(self, program, **variables):
        return subprocess.run(
            [sys.executable, "-c", WITHOUT_EXTRAS + program],
            env=os.environ | variables,
            capture_output=True,
            text=True,
        )

    def test_package_without_folders_of_extras_is_the_core(self):
        result = self.run_without_extras(USES, OPENREG_SANITIZER="1")
        expected = ["True"] * 6 + ["[2.0, 2.0]"]
        self.assertEqual(result.stdout.splitlines(), expected, result.stderr)
        self.assertIn("OPENREG_SANITIZER: needs the extra 'sanitizer'", result.stderr)

    def test_device_type_cuda_needs_the_folder_of_its_extra(self):
        program = "import torch; print(hasattr(torch, 'openreg'))"
        result = self.run_without_extras(program, OPENREG_DEVICE_TYPE="cuda")
        self.assertEqual(result.stdout, "False\n")
        self.assertIn("OPENREG_DEVICE_TYPE=cuda: needs the extra 'cuda'", result.stderr)

    def test_registry_and_build_have_the_same_extras(self):
        self.assertEqual(extras.EXTRAS, EXTRAS)


class TestChoice(TestCase):
    def test_all_and_none(self):
        self.assertEqual(missing_extras("all"), [])
        self.assertEqual(missing_extras("none"), list(EXTRAS))

    def test_a_list_is_of_those_to_build_or_of_those_to_leave_out(self):
        self.assertEqual(missing_extras("-graph,-distributed"), ["distributed", "graph"])
        built = missing_extras("graph,distributed")
        self.assertEqual(sorted([*built, "distributed", "graph"]), list(EXTRAS))

    @parametrize("text", ["", "graphs", "graph,-ipc", "all,graph", "-all", "graph,"])
    def test_other_texts_are_refused(self, text):
        with self.assertRaisesRegex(ValueError, "OPENREG_EXTRAS: expected all, none, .*got"):
            missing_extras(text)

    def test_folders_have_the_names_of_extras(self):
        for extra in EXTRAS:
            self.assertTrue((ROOT / "csrc" / "extras" / extra).is_dir(), extra)
            self.assertTrue((ROOT / "torch_openreg" / "extras" / extra).is_dir(), extra)

    @parametrize(
        "path, extra",
        [
            ("csrc/extras/graph/Graph.cpp", "graph"),
            ("torch_openreg/extras/ipc", "ipc"),
            ("include/torch_openreg/triton/kernel.h", "triton"),
            ("torch_openreg/extras/__init__.py", None),
            ("csrc/core/GuardImpl.cpp", None),
        ],
    )
    def test_files_are_of_the_extra_whose_folder_has_them(self, path, extra):
        self.assertEqual(extra_of(path), extra)


instantiate_parametrized_tests(TestAbsence)
instantiate_parametrized_tests(TestFirstUses)
instantiate_parametrized_tests(TestChoice)

if __name__ == "__main__":
    run_tests()
