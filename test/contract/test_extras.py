"""Extras can be left out of a build. Run in a build with or without them, as this says of each.

OPENREG_EXTRAS is what the build had. ``.ci/run`` tests a build with OPENREG_EXTRAS=none, the core,
by ``python test/contract/test_extras.py``; pytest would import the package of the source tree.
"""

import os
import sys
import unittest

import torch
from source_tree import ROOT
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

sys.path.insert(0, str(ROOT / "tools" / "backend"))
from openreg_extras import EXTRAS, missing_extras

from torch_openreg import _C, _extras


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
    "profiler": lambda: torch.openreg.profiler.mark("here"),
    "sanitizer": sanitize,
    "triton": choose_driver_of_triton,
}


class TestFirstUses(TestCase):
    def test_extras_of_this_build_are_those_that_were_asked_for(self):
        missing = set(missing_extras(os.environ.get("OPENREG_EXTRAS", "all")))
        self.assertEqual({extra for extra in EXTRAS if not _extras.has(extra)}, missing)

    @parametrize("extra", list(FIRST_USES))
    def test_extra_works_or_its_error_names_it(self, extra):
        if _extras.has(extra):
            FIRST_USES[extra]()
            return
        with self.assertRaises(Exception) as raised:
            FIRST_USES[extra]()
        self.assertIn(extra, str(raised.exception))
        self.assertIn("OPENREG_EXTRAS=all", str(raised.exception))

    def test_operator_of_an_extra_is_there_if_the_extra_is(self):
        self.assertEqual(hasattr(torch.ops.openreg, "custom_abs"), _extras.has("custom"))

    def test_core_computes_and_differentiates(self):
        x = torch.arange(4.0, device="openreg", requires_grad=True)
        (x * x).sum().backward()
        self.assertEqual(x.grad.cpu(), torch.arange(4.0) * 2)

    def test_name_that_nothing_has_is_an_attribute_error(self):
        with self.assertRaisesRegex(AttributeError, "has no attribute '_no_such_name'"):
            _ = _C._no_such_name
        self.assertFalse(hasattr(_C, "_no_such_name"))


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
        for extra in set(EXTRAS) - {"cuda"}:
            self.assertTrue((ROOT / "csrc" / "extras" / extra).is_dir(), extra)


instantiate_parametrized_tests(TestFirstUses)
instantiate_parametrized_tests(TestChoice)

if __name__ == "__main__":
    run_tests()
