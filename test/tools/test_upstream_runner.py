"""The commands that run PyTorch's own tests, on made-up test files."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import unittest
import unittest.mock
from pathlib import Path

import pytest
from common import TestCase, instantiate_parametrized_tests, parametrize, run_tests, subtest

pytestmark = pytest.mark.sample(0.06)

_TOOLS = Path(__file__).resolve().parents[2] / "tools"

_GOOD = """
import unittest

class TestGood(unittest.TestCase):
    def test_first(self):
        pass

    def test_skipped(self):
        self.skipTest("not today")

    @unittest.expectedFailure
    def test_own_expectation(self):
        self.assertEqual(1, 2)
"""

_BAD = """
import os
import threading
import unittest

class TestBad(unittest.TestCase):
    def test_a_fails(self):
        self.assertEqual("left", "right")

    def test_b_crashes(self):
        os.abort()

    def test_c_exits(self):
        os._exit(0)

    def test_d_hangs(self):
        threading.Event().wait()

    def test_e_fails_in_a_subtest(self):
        for number in (1, 2):
            with self.subTest(number=number):
                self.assertEqual(number, 1)

    def test_f_passes(self):
        pass
"""

_FAILS = """
def test_it():
    assert False, "as listed"
"""

_PASSES = """
def test_it():
    pass
"""

_LIST = """
[categories]
odd = "does odd things"
"""

_ENTRY = """
[[expected]]
test = "{test}"
category = "odd"
reason = "it is odd"
"""


def run_tool(
    files, *arguments, tool="upstream_openreg.py", listed=(), flag="", expected=None, report=None
):
    """Runs a command on a folder with these files; returns its result and all outcomes."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, report = Path(scratch, "tests"), Path(report or Path(scratch, "report.json"))
        folder.mkdir()
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(textwrap.dedent(content))
        entries = "".join(_ENTRY.format(test=test) + flag for test in listed)
        (Path(scratch) / "list.toml").write_text(expected or _LIST + entries)
        result = subprocess.run(
            [
                *(sys.executable, str(_TOOLS / tool), str(folder), *arguments),
                *("--expected", str(Path(scratch, "list.toml")), "--report", str(report)),
            ],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        return result, json.loads(report.read_text()) if report.is_file() else {}


def run_with_triton(installed, files):
    """Runs the command for Triton's tests where Triton has these files."""
    with tempfile.TemporaryDirectory() as scratch:
        for name, content in installed.items():
            Path(scratch, name).parent.mkdir(parents=True, exist_ok=True)
            Path(scratch, name).write_text(content)
        with unittest.mock.patch.dict(os.environ, PYTHONPATH=scratch):
            return run_tool(files, tool="upstream_triton.py")


class TestUpstreamRunner(TestCase):
    def test_passing_skipped_and_own_expected_failures_are_right(self):
        result, outcomes = run_tool({"test_good.py": _GOOD})
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertEqual(
            {name.rpartition("::")[2]: one["kind"] for name, one in outcomes.items()},
            {"test_first": "passed", "test_skipped": "skipped", "test_own_expectation": "xfailed"},
        )
        self.assertIn("3 tests in 1 files: 1 passed, 1 skipped", result.stdout)

    @pytest.mark.slow
    def test_a_crash_or_hang_is_one_failure_and_later_tests_run(self):
        result, outcomes = run_tool({"test_bad.py": _BAD}, "--timeout=10")
        self.assertEqual(result.returncode, 1)
        self.assertEqual(
            {name.rpartition("::")[2]: one["kind"] for name, one in outcomes.items()},
            {
                "test_a_fails": "failed",
                "test_b_crashes": "crashed",
                "test_c_exits": "crashed",
                "test_d_hangs": "timed out",
                "test_e_fails_in_a_subtest": "failed",
                "test_f_passes": "passed",
            },
        )
        texts = {name.rpartition("::")[2]: one["text"] for name, one in outcomes.items()}
        self.assertIn("'left' != 'right'", texts["test_a_fails"])
        self.assertIn("SIGABRT", texts["test_b_crashes"])
        self.assertIn("ended with status 0", texts["test_c_exits"])
        self.assertIn("took more than 10 s", texts["test_d_hangs"])
        for text in texts.values():
            self.assertIn(text.strip(), result.stdout)

    def test_report_that_cannot_be_written_is_refused_before_tests_run(self):
        for report in ("/nonexistent/report.json", "/tmp"):
            result, _ = run_tool({"test_good.py": _GOOD}, report=report)
            self.assertEqual(result.returncode, 2, result.stdout)
            self.assertIn(
                f"--report: expected a file that can be written, got '{report}'", result.stderr
            )
            self.assertEqual(result.stdout, "")

    def test_files_do_not_share_a_process(self):
        file = """
            import sys

            def test_it():
                assert "left_behind" not in sys.modules
                sys.modules["left_behind"] = sys
        """
        result, _ = run_tool({"test_one.py": file, "test_two.py": file})
        self.assertEqual(result.returncode, 0, result.stdout)

    def test_what_a_failed_test_holds_is_freed_before_the_next(self):
        content = """
            import weakref

            class Big:
                pass

            kept = []

            def test_a_fails():
                big = Big()
                kept.append(weakref.ref(big))
                assert big is None

            def test_b_is_alone():
                assert kept[0]() is None
        """
        result, outcomes = run_tool(
            {"test_held.py": content}, listed=("test_held.py::test_a_fails",)
        )
        self.assertEqual(outcomes["test_held.py::test_b_is_alone"]["kind"], "passed")
        self.assertEqual(result.returncode, 0, result.stdout)

    def test_settings_of_a_project_around_the_folder_do_not_apply(self):
        result, _ = run_tool(
            {"test_good.py": _GOOD, "pytest.ini": "[pytest]\naddopts = --no-such-option\n"}
        )
        self.assertEqual(result.returncode, 0, result.stdout)

    def test_listed_failure_is_expected(self):
        listed = ["test_bad.py::test_it"]
        result, _ = run_tool({"test_bad.py": _FAILS, "test_good.py": _GOOD}, listed=listed)
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertIn("1 failed as listed, 0 failed, 0 passed unexpectedly", result.stdout)
        self.assertIn("failed as listed: 1 because it does odd things", result.stdout)

    def test_unlisted_failure_fails_the_run(self):
        result, _ = run_tool({"test_bad.py": _FAILS})
        self.assertEqual(result.returncode, 1)
        self.assertIn("--- test_bad.py::test_it: failed", result.stdout)
        self.assertIn("as listed", result.stdout)

    def test_listed_test_that_passes_fails_the_run(self):
        result, _ = run_tool({"test_good.py": _PASSES}, listed=["test_good.py::test_it"])
        self.assertEqual(result.returncode, 1)
        self.assertIn("passes, but is listed: test_good.py::test_it: it is odd", result.stdout)

    @parametrize(
        "name",
        [
            subtest("test_good.py::test_other", name="test"),
            subtest("test_other.py::test_it", name="file"),
        ],
    )
    def test_listed_test_that_does_not_exist_fails_the_run(self, name):
        result, _ = run_tool({"test_good.py": _PASSES}, listed=[name])
        self.assertEqual(result.returncode, 1)
        self.assertIn(f"is listed, but does not exist: {name}", result.stdout)

    def test_a_listed_test_may_be_missing_in_some_versions(self):
        flag = "is_in_every_version = false"
        listed = ["test_good.py::test_other"]
        result, _ = run_tool({"test_good.py": _PASSES}, listed=listed, flag=flag)
        self.assertEqual(result.returncode, 0, result.stdout)

    @parametrize("content", [subtest(_PASSES, name="passes"), subtest(_FAILS, name="fails")])
    def test_a_listed_test_may_pass_at_times(self, content):
        flag = "passes_at_times = true"
        listed = ["test_it.py::test_it"]
        result, _ = run_tool({"test_it.py": content}, listed=listed, flag=flag)
        self.assertEqual(result.returncode, 0, result.stdout)

    def test_list_is_checked_for_the_named_files_alone(self):
        files = {"test_good.py": _PASSES, "test_bad.py": _FAILS}
        listed = ["test_bad.py::test_it"]
        result, outcomes = run_tool(files, "test_good.py", listed=listed)
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertEqual(list(outcomes), ["test_good.py::test_it"])

    def test_a_sample_is_the_same_in_each_run_and_has_what_is_listed(self):
        content = "".join(f"def test_{number}(): pass\n" for number in range(20))
        files = {"test_bad.py": f"{content}{_FAILS}", "test_good.py": content}
        listed = ["test_bad.py::test_it"]
        names = []
        for _ in range(2):
            result, outcomes = run_tool(files, "--sample=4", listed=listed)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            self.assertIn("1 failed as listed", result.stdout)
            names.append(sorted(outcomes))
        self.assertEqual(names[0], names[1])
        self.assertIn(len(names[0]), (8, 9))
        self.assertEqual(len([name for name in names[0] if name.startswith("test_good")]), 4)

    def test_a_share_is_a_part_of_all_tests_and_has_what_is_listed(self):
        content = "".join(f"def test_{number}(): pass\n" for number in range(60))
        files = {"test_bad.py": f"{content}{_FAILS}", "test_good.py": content}
        listed = ["test_bad.py::test_it"]
        names = []
        for share in ("10", "30"):
            result, outcomes = run_tool(files, f"--share={share}", listed=listed)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            self.assertIn("1 failed as listed", result.stdout)
            names.append(set(outcomes))
        self.assertLess(names[0], names[1])
        self.assertTrue(4 < len(names[0]) < 24 < len(names[1]) < 60, names)

    def test_a_share_without_tests_of_a_file_runs_none_of_it(self):
        files = {"test_bad.py": _FAILS, "test_worse.py": "import no_such_module"}
        result, outcomes = run_tool(files, "--share=1e-9")
        self.assertEqual(result.returncode, 1)
        self.assertEqual(list(outcomes), ["test_worse.py::<import>"])

    def test_sources_of_triton_in_the_folder_are_not_imported(self):
        installed = {"triton/__init__.py": "", "triton/_internal_testing.py": ""}
        files = {
            "triton/__init__.py": "raise ImportError('sources without their library')",
            "test/unit/language/test_core.py": f"import triton\n{_PASSES}",
        }
        result, outcomes = run_with_triton(installed, files)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertEqual(list(outcomes), ["test/unit/language/test_core.py::test_it"])

    def test_a_tutorial_that_prints_the_mark_of_a_wrong_result_fails(self):
        installed = {
            "triton/__init__.py": "from triton import profiler, testing",
            "triton/_internal_testing.py": "",
            "triton/testing.py": "class Mark: pass",
            "triton/profiler/__init__.py": "",
        }
        for mark, code in (("✅", 0), ("❌", 1)):
            result, _ = run_with_triton(
                installed, {"tutorials/01-vector-add.py": f"print('product: {mark}')"}
            )
            self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        self.assertIn("the script prints product: ❌", result.stdout)

    def test_what_a_tutorial_measures_runs_once_without_a_profiler(self):
        installed = {
            "triton/__init__.py": "from triton import profiler, testing",
            "triton/_internal_testing.py": "",
            "triton/testing.py": "class Mark: pass",
            "triton/profiler/__init__.py": "def start(name): raise RuntimeError('no GPU')",
        }
        script = """
        import sys
        from pathlib import Path
        import triton.profiler as profiler
        import triton.profiler.viewer as viewer

        turns = []

        def bench(size, reps=10000, warmup_reps=10000):
            for _ in range(reps + warmup_reps):
                turns.append(size)

        if __name__ == "__main__":
            profiler.start("name")
            profiler.deactivate()
            bench(3)
            with profiler.scope("scope", {"bytes": 1}):
                bench(4)
            profiler.finalize()
            tree, metrics = viewer.parse(["time/ms"], "name.hatchet")
            viewer.print_tree(tree, metrics)
            assert turns == [3, 3, 4, 4], turns
            assert sys.modules["__main__"].turns is turns
            assert Path(__file__).is_file()
        """
        result, outcomes = run_with_triton(installed, {"tutorials/01-vector-add.py": script})
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertEqual(list(outcomes), ["tutorials/01-vector-add.py::script"])

    @parametrize(
        "files",
        [
            subtest({}, name="no_files"),
            subtest({"test_empty.py": ""}, name="no_tests"),
            subtest(
                {"test_s.py": "import pytest\npytestmark = pytest.mark.skip\n" + _PASSES},
                name="mark",
            ),
            subtest({"test_s.py": "import unittest\nraise unittest.SkipTest('no')"}, name="file"),
        ],
    )
    def test_a_run_of_nothing_fails(self, files):
        result, _ = run_tool(files)
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertIn("nothing ran", result.stdout + result.stderr)

    @parametrize(
        "content,kind",
        [
            subtest(("import no_such_module", "failed"), name="exception"),
            subtest(("import os\nos.abort()", "crashed"), name="crash"),
        ],
    )
    def test_a_file_that_cannot_be_imported_is_a_failure(self, content, kind):
        result, outcomes = run_tool({"test_bad.py": content, "test_good.py": _PASSES})
        self.assertEqual(result.returncode, 1)
        self.assertEqual(outcomes["test_bad.py::<import>"]["kind"], kind)
        self.assertEqual(outcomes["test_good.py::test_it"]["kind"], "passed")
        self.assertEqual(len(outcomes), 2)

    def test_a_crash_after_the_last_test_is_a_failure(self):
        content = f"import atexit, os\natexit.register(os.abort)\n{_PASSES}"
        result, outcomes = run_tool({"test_bad.py": content})
        self.assertEqual(result.returncode, 1)
        self.assertEqual(outcomes["test_bad.py::test_it"]["kind"], "passed")
        self.assertEqual(outcomes["test_bad.py::<exit>"]["kind"], "crashed")

    @parametrize(
        "entry,text",
        [
            subtest(('category = "even"\nreason = "r"', "expected one of odd"), name="category"),
            subtest(('category = "odd"\nreason = " "', "expected a reason"), name="reason"),
            subtest(
                ('category = "odd"', "expected a test, a category and a reason"), name="incomplete"
            ),
        ],
    )
    def test_a_list_without_reasons_is_refused(self, entry, text):
        expected = f'{_LIST}\n[[expected]]\ntest = "test_good.py::test_it"\n{entry}\n'
        result, _ = run_tool({"test_good.py": _PASSES}, expected=expected)
        self.assertEqual(result.returncode, 1)
        self.assertIn(text, result.stderr)

    def test_an_entry_may_name_several_tests(self):
        files = {"test_bad.py": _FAILS, "test_worse.py": _FAILS, "test_good.py": _PASSES}
        entry = 'tests = ["test_bad.py::test_it", "test_worse.py::test_it"]\n'
        entry += 'category = "odd"\nreason = "r"'
        result, _ = run_tool(files, expected=f"{_LIST}\n[[expected]]\n{entry}\n")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn("2 failed as listed, 0 failed", result.stdout)

    def test_an_entry_may_stand_for_the_tests_of_a_class(self):
        bad = "import unittest\n\nclass TestBad(unittest.TestCase):\n"
        bad += "".join(
            f"    def test_{name}(self):\n        {body}\n\n"
            for name, body in (
                ("a", "assert False"),
                ("b", "assert False"),
                ("c", "self.skipTest('')"),
            )
        )
        files, listed = {"test_bad.py": bad}, ["test_bad.py::*Bad::test_*"]
        result, _ = run_tool(files, listed=listed)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn("failed as listed: 2 because it does odd things", result.stdout)
        bad += "    def test_d(self):\n        pass\n"
        result, _ = run_tool({"test_bad.py": bad}, listed=listed)
        self.assertEqual(result.returncode, 1)
        text = "passes, but is listed: test_bad.py::TestBad::test_d: it is odd"
        self.assertIn(text, result.stdout)
        result, _ = run_tool({"test_good.py": _PASSES}, listed=listed)
        self.assertIn("does not exist: test_bad.py::*Bad::test_*", result.stdout)
        self.assertEqual(result.returncode, 1)

    @parametrize("suite", ["cuda", "device", "openreg", "triton"])
    def test_our_list_has_a_known_category_and_a_reason_for_each_test(self, suite):
        code = (
            f"import upstream_suites as u, upstream_{suite} as s; "
            "lists = [u.read_list(s.SUITE.list, device) for device in s.SUITE.devices or ('',)]; "
            "e = [one for _, tests in lists for one in tests.values()]; "
            "assert set(lists[0][0]) == {one.category for one in e}; print(len(e))"
        )
        result = subprocess.run(
            [sys.executable, "-c", code], cwd=_TOOLS, capture_output=True, text=True, check=True
        )
        self.assertGreater(int(result.stdout), 0)


# The beginning of a graph test in torch's test_cuda.py, and a test that needs a separate process.
_CUDA = """
import os
import unittest

import torch
from torch.testing._internal.common_utils import TEST_CUDA, TEST_CUDA_GRAPH, TestCase

class TestCuda(TestCase):
    @unittest.skipIf(not TEST_CUDA_GRAPH, "CUDA >= 11.0 required for graphs")
    def test_graph(self):
        x = torch.ones(4, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x + 1
        graph.replay()
        self.assertEqual(y.tolist(), [2.0] * 4)

    def test_version(self):
        self.assertGreaterEqual(tuple(map(int, torch.version.cuda.split("."))), (12, 0))

    def test_own_mistake(self):
        self.assertEqual(torch.ones(1, device="cuda").item(), 2)
"""

_FIRST_USE = """
import torch

def test_first():
    assert not torch._C._cuda_hasPrimaryContext(0)
    torch.ones(1, device="cuda:0")

test_second = test_first
"""

_CONFTEST = "raise ImportError('needs the machines of PyTorch')"


class TestUpstreamCuda(TestCase):
    @pytest.mark.slow
    def test_files_of_cuda_run_as_cuda_and_others_do_not(self):
        files = {
            "test_cuda.py": _CUDA,
            "test_cuda_primary_ctx.py": _FIRST_USE,
            "test_other.py": _FAILS,
            "conftest.py": _CONFTEST,
        }
        listed = ["test_cuda.py::TestCuda::test_own_mistake", "test_cuda_trace.py::TestTrace::*"]
        result, outcomes = run_tool(files, tool="upstream_cuda.py", listed=listed)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertEqual(
            {name: one["kind"] for name, one in outcomes.items()},
            {
                "test_cuda.py::TestCuda::test_graph": "passed",
                "test_cuda.py::TestCuda::test_own_mistake": "failed",
                "test_cuda.py::TestCuda::test_version": "passed",
                "test_cuda_primary_ctx.py::test_first": "passed",
                "test_cuda_primary_ctx.py::test_second": "passed",
            },
        )
        self.assertIn("2 files", result.stdout)

    def test_file_that_cannot_be_imported_alone_is_a_failure(self):
        files = {"test_cuda_primary_ctx.py": "import no_such_module"}
        result, outcomes = run_tool(files, tool="upstream_cuda.py")
        self.assertEqual(result.returncode, 1)
        self.assertEqual(list(outcomes), ["test_cuda_primary_ctx.py::<import>"])

    def test_folder_without_files_of_cuda_fails(self):
        result, _ = run_tool({"test_other.py": _PASSES}, tool="upstream_cuda.py")
        self.assertEqual(result.returncode, 1)
        self.assertIn("nothing ran", result.stderr)


# A device-generic test file of torch; and a copy for another device type, with its words.
_GENERIC = """
import torch
from torch.testing._internal.common_device_type import instantiate_device_type_tests, onlyCPU
from torch.testing._internal.common_utils import TestCase

class TestGeneric(TestCase):
    def test_runs(self, device):
        self.assertEqual(torch.ones(2, device=device).device.type, "DEVICE")

    def test_fails(self, device):
        self.assertEqual(torch.ones(2, device=device), torch.zeros(2, device=device))

    @onlyCPU
    def test_of_the_cpu(self, device):
        raise AssertionError

class TestOther(TestCase):
    def test_of_no_device(self):
        raise AssertionError

instantiate_device_type_tests(TestGeneric, globals())
"""

_COPY = """
import torch
from torch.testing._internal.common_device_type import (
    TEST_XPU,
    dtypes,
    dtypesIfCUDA,
    dtypesIfXPU,
    instantiate_device_type_tests,
    onlyOn,
    onlyXPU,
    skipXPU,
)
from torch.testing._internal.common_utils import TEST_XPU as HAS_DEVICE
from torch.testing._internal.common_utils import TestCase
from test_base_xpu import WORDS

class TestCopy(TestCase):
    @onlyXPU
    def test_words(self, device):
        torch.xpu.synchronize()
        self.assertEqual(device, "xpu:0")
        self.assertTrue(TEST_XPU and HAS_DEVICE and torch.ones(1, device="xpu").is_xpu)
        self.assertEqual(WORDS[torch.device(device).type], torch.xpu.device_count())

    @onlyOn(["mps", "xpu"])
    def test_list_of_types(self, device):
        pass

    @skipXPU
    def test_that_the_other_device_skips(self, device):
        pass

    @dtypes(torch.float64)
    @dtypesIfCUDA(torch.float32)
    @dtypesIfXPU(torch.float16)
    def test_dtypes(self, device, dtype):
        pass

instantiate_device_type_tests(TestCopy, globals(), only_for="xpu", allow_xpu=True)
"""


class TestUpstreamDevice(TestCase):
    @parametrize("device", ["cuda", "openreg"])
    def test_tests_of_the_device_run_with_names_without_its_type(self, device):
        files = {"test_torch.py": _GENERIC.replace("DEVICE", device), "test_other.py": _FAILS}
        listed = ["test_torch.py::TestGeneric::test_fails", "test_nn.py::TestNN::test_of_no_run"]
        result, outcomes = run_tool(
            files, f"--device={device}", tool="upstream_device.py", listed=listed
        )
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertEqual(
            {name: one["kind"] for name, one in outcomes.items()},
            {
                "test_torch.py::TestGeneric::test_runs": "passed",
                "test_torch.py::TestGeneric::test_fails": "failed",
                "test_torch.py::TestGeneric::test_of_the_cpu": "skipped",
            },
        )

    @parametrize("device", ["cuda", "openreg"])
    def test_a_copy_for_another_device_type_is_read_as_one_for_this(self, device):
        files = {"test_torch_xpu.py": _COPY, "test_base_xpu.py": "WORDS = {'xpu': 2}"}
        result, outcomes = run_tool(files, f"--device={device}", tool="upstream_device.py")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        dtype = "float32" if device == "cuda" else "float16"
        self.assertEqual(
            {name: one["kind"] for name, one in outcomes.items()},
            {
                "test_torch.py::TestCopy::test_words": "passed",
                "test_torch.py::TestCopy::test_list_of_types": "passed",
                "test_torch.py::TestCopy::test_that_the_other_device_skips": "passed",
                f"test_torch.py::TestCopy::test_dtypes_{dtype}": "passed",
            },
        )

    def test_an_entry_for_the_other_device_type_does_not_count(self):
        files = {"test_torch.py": _GENERIC.replace("DEVICE", "openreg")}
        listed = ["test_torch.py::TestGeneric::test_fails"]
        for device, code in (("cuda", 1), ("openreg", 0)):
            result, _ = run_tool(
                files,
                "--device=openreg",
                tool="upstream_device.py",
                listed=listed,
                flag=f'device = "{device}"',
            )
            self.assertEqual(result.returncode, code, result.stdout + result.stderr)


# What Triton's tests of its language have: their settings, a name of triton-cpu, and a kernel.
_TRITON_SETTINGS = """
import pytest

def pytest_addoption(parser):
    parser.addoption("--device", default="cuda")

@pytest.fixture
def device(request):
    return request.config.getoption("--device")
"""

_LANGUAGE = """
import torch
import triton
import triton.language as tl
from triton._internal_testing import is_cpu

@triton.jit
def double(x_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(x_ptr + i, tl.load(x_ptr + i) * 2)

def test_kernel(device):
    assert not is_cpu()
    assert device == triton.runtime.driver.active.get_active_torch_device().type
    x = torch.ones(8, device=device)
    double[(1,)](x, N=8)
    assert x.tolist() == [2.0] * 8
"""

_TUTORIAL = """
import sys

import pytest
import triton

SIZES = []

@pytest.mark.parametrize("number", [1, 2])
def test_op(number):
    assert number == 1

@triton.testing.perf_report(
    triton.testing.Benchmark(
        x_names=["M", "N"], x_vals=[4, 8], line_arg="provider", line_vals=["a", "b"],
        line_names=["A", "B"], plot_name="plot", args={"last": 3},
    )
)
def benchmark(M, N, last, provider, scale):
    times = []
    SIZES.append((M, N, last, provider, scale))
    assert triton.testing.do_bench(lambda: times.append(1)) == 1.0
    low, high = triton.testing.do_bench(lambda: times.append(1), quantiles=[0.2, 0.8], rep=500)
    assert len(times) == 2
    return low

if __name__ == "__main__":
    assert len(sys.argv) == 1
    benchmark.run(show_plots=True, print_data=True, save_path=".", scale=5)
    assert SIZES == [(4, 4, 3, "a", 5), (4, 4, 3, "b", 5)]
"""

_LIBRARY = """
from liger_kernel import NUMBER
from test.utils import OTHER

def test_numbers():
    assert (NUMBER, OTHER) == (1, 2)
"""


@unittest.skipUnless(importlib.util.find_spec("triton"), "needs Triton")
class TestUpstreamTriton(TestCase):
    @parametrize("device", ["cuda", "openreg"])
    def test_tests_of_the_language_run_on_the_device(self, device):
        files = {
            "test/conftest.py": _TRITON_SETTINGS,
            "test/unit/language/test_core.py": _LANGUAGE,
            "test/unit/language/test_other.py": _FAILS,
        }
        result, outcomes = run_tool(files, f"--device={device}", tool="upstream_triton.py")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertEqual(list(outcomes), ["test/unit/language/test_core.py::test_kernel"])

    def test_tutorials_run_as_programs_with_their_smallest_sizes(self):
        files = {
            "tutorials/01-vector-add.py": "assert __name__ == '__main__'\nassert 1 == 2\n",
            "tutorials/06-fused-attention.py": _TUTORIAL,
            "tutorials/12-later.py": "assert False\n",
        }
        result, outcomes = run_tool(files, tool="upstream_triton.py")
        self.assertEqual(result.returncode, 1)
        self.assertEqual(
            {name.partition("/")[2]: one["kind"] for name, one in outcomes.items()},
            {
                "01-vector-add.py::script": "failed",
                "06-fused-attention.py::script": "passed",
                "06-fused-attention.py::test_op[1]": "passed",
                "06-fused-attention.py::test_op[2]": "failed",
            },
        )
        self.assertIn("assert 1 == 2", outcomes["tutorials/01-vector-add.py::script"]["text"])

    def test_a_library_of_kernels_is_that_of_the_checkout(self):
        files = {
            "src/liger_kernel/__init__.py": "NUMBER = 1",
            "test/__init__.py": "",
            "test/utils.py": "OTHER = 2",
            "test/transformers/test_rope.py": _LIBRARY,
        }
        result, outcomes = run_tool(files, tool="upstream_triton.py")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertEqual(len(outcomes), 1)


instantiate_parametrized_tests(TestUpstreamRunner)
instantiate_parametrized_tests(TestUpstreamTriton)
instantiate_parametrized_tests(TestUpstreamDevice)

if __name__ == "__main__":
    run_tests()
