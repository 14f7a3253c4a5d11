"""The conformance kit reports a device's defects and missing features.

Three targets: openreg, openreg as CUDA, and the twin of minimal/ that twin.py builds, which lacks
some features and, with a setting, has a mistake for each chapter. Each runs in a separate process,
as for a user.
"""

import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
import xml.etree.ElementTree
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest
import torch
from common import TestCase, run_tests

import torch_openreg
from torch_openreg._version import TORCH_RELEASES, release_of
from torch_openreg.conformance import plugin, report
from torch_openreg.conformance.chapters import CHAPTERS, chapter_of
from torch_openreg.conformance.report import Result, terminal_lines, to_html
from torch_openreg.conformance.target import MissingError, Target

pytestmark = pytest.mark.sample(0.02)

_FOLDER = Path(__file__).resolve().parent
_DOCS = _FOLDER.parents[1] / "docs"
_PACKAGE = "torch_openreg.conformance"
_TIMEOUT_S = 600

# docs: seeded-defects
# The test that has to fail, and the defect of the backend.
DEFECTS = {
    "test_ops_forward::TestForward::test_forward_add": "add ignores alpha",
    "test_ops_layouts::TestLayouts::test_forward_exp": "exp takes memory for contiguous",
    "test_ops_forward::TestForward::test_repetition_with_other_numbers_sin": (
        "sin returns what it computed for another tensor of the same size"
    ),
    "test_modules::TestModules::test_module_nn_LayerNorm_train": "another epsilon",
    "test_optimizers::TestOptimizers::test_optimizer_Adam": "lerp_ has its weight reversed",
    "test_guard::TestGuard::test_block_selects_a_device_and_restores_the_one_before": (
        "exchangeDevice returns the new device"
    ),
    "test_hooks::TestHooks::test_storage_grows_and_keeps_its_contents": (
        "resizePrivateUse1Bytes loses the contents"
    ),
    "test_streams::TestStreams::"
    "test_new_stream_is_neither_the_current_one_nor_another_new_one": "getNewStream has one stream",
    "test_events::TestEvents::test_event_is_done_after_it_was_synchronized": (
        "queryEvent never returns true"
    ),
    "test_random::TestDefaultGenerator::test_seed_determines_the_numbers": (
        "uniform_ draws from a generator that is never seeded"
    ),
    "test_serialization::TestSerialization::test_map_location_chooses_another_device": (
        "storages always come back to device 0"
    ),
    "test_errors::TestErrors::test_host_memory_and_device_memory_do_not_mix": (
        "add takes tensors of the CPU"
    ),
}
# docs: end

# Results that are the same in both cases. A defective device cannot run all; these do not depend on
# its defects.
CONTROLS = (
    "test_ops_forward::TestForward::test_forward_sub",
    "test_ops_layouts::TestLayouts::test_forward_sigmoid",
    "test_ops_forward::TestForward::test_repetition_with_other_numbers_cos",
    "test_modules::TestModules::test_module_nn_Linear_train",
    "test_optimizers::TestOptimizers::test_optimizer_Rprop",
)

# Chapters of which the backend has no feature, with the beginning of the kit's text.
MISSING = {
    "events": "the device lacks timing: Backend doesn't support elapsedTime.",
    "memory": "the device lacks statistics: ",
    "graphs": "the device lacks graphs: Graph is not supported on device type: minimal",
    "random numbers": "the device lacks generator: ",
    "autocast": "the device lacks autocast: torch.minimal has no get_amp_supported_dtype",
}

# torch's functions for it serve CUDA alone; openreg has others.
DATA_PARALLEL = (
    "test_func::TestTrainingUtilities::test_data_parallel_gives_the_gradients_of_one_device"
)

# Modules of the chapters about interfaces, which take seconds.
INTERFACES = [
    f"{_PACKAGE}.{module}"
    for chapter in CHAPTERS
    for module in chapter.tests
    if "::" not in module
    and len(chapter.tests) == 1
    and chapter.name not in ("modules", "optimizers")
] + [f"{_PACKAGE}.test_streams", f"{_PACKAGE}.test_errors"]


class Run(NamedTuple):
    returncode: int
    output: str
    outcomes: dict[str, str]
    texts: dict[str, str]
    page: str


def run_kit(
    tests: list[str], options: list[str], environment: dict[str, str], **modules: str
) -> Run:
    """Runs the kit in a separate process, outside of the repository, beside some modules."""
    with tempfile.TemporaryDirectory() as folder:
        for name, code in modules.items():
            (Path(folder) / f"{name}.py").write_text(textwrap.dedent(code))
        if modules:
            path = [folder, environment.get("PYTHONPATH", "")]
            environment = environment | {"PYTHONPATH": os.pathsep.join(filter(None, path))}
        results, page = Path(folder) / "results.xml", Path(folder) / "report.html"
        process = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs"),
                *tests,
                *(f"--junitxml={results}", f"--conformance-report={page}", *options),
            ],
            env={
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("OPENREG_", "PYTEST_")) and name != "CUDA_VISIBLE_DEVICES"
            }
            | environment,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
        outcomes, texts = {}, {}
        if results.exists():
            for case in xml.etree.ElementTree.parse(results).iter("testcase"):
                properties = {one.get("name"): one.get("value") for one in case.iter("property")}
                name = properties.get("conformance_test", case.get("name"))
                parts = [case.find(kind) for kind in ("failure", "error", "skipped")]
                if outcomes.get(name) == "failure":
                    continue  # changed state is a separate error
                found = next((part for part in parts if part is not None), None)
                outcomes[name] = "passed" if found is None else found.tag
                texts[name] = "" if found is None else found.get("message", "")
        text = page.read_text() if page.exists() else ""
        return Run(process.returncode, process.stdout + process.stderr, outcomes, texts, text)


@functools.cache
def _twin() -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory()  # removed when the process ends
    subprocess.run([sys.executable, str(_FOLDER / "twin.py"), folder.name], check=True)
    return folder


def _documented_arguments() -> list[str]:
    """The arguments of the command for the twin in the kit's chapter of the documentation."""
    page = (_DOCS / "conformance.md").read_text()
    command = page.partition("<!-- command: twin -->\n```sh\n")[2].partition("```")[0]
    words = shlex.split(command.replace("\\\n", ""))
    return words[words.index("pytest") + 1 :]


def _documented_tables() -> list[str]:
    """What that command ends with, by that page: without the mistakes, and with them."""
    page = (_DOCS / "conformance.md").read_text()
    return re.findall(r"^```text\n(chapter  .*?)\n```$", page, re.MULTILINE | re.DOTALL)


@functools.cache
def _runs() -> dict[tuple[bool, bool], Future[Run]]:
    """All runs of the twin, two at a time: a run with the mistakes waits for a minute."""
    _twin()
    executor = ThreadPoolExecutor(2)
    cases = ((True, True), (False, True), (True, False), (False, False))
    return {case: executor.submit(_run_twin, *case) for case in cases}


def run_twin(has_defects: bool, is_documented: bool) -> Run:
    """Returns the result of the documented command, or of the operators.

    These are the operators that have a mistake or are controls.
    """
    return _runs()[has_defects, is_documented].result()


def _run_twin(has_defects: bool, is_documented: bool) -> Run:
    names = [*DEFECTS, *CONTROLS]
    if is_documented:
        arguments = _documented_arguments()
        arguments.remove("--pyargs")
        tests, options = [_PACKAGE], [one for one in arguments if one != _PACKAGE]
    else:
        operators = ("test_ops", "test_mod", "test_optim")
        names = [one for one in names if one.startswith(operators)]
        tests = [f"{_PACKAGE}.{name}" for name in (*names, DATA_PARALLEL)]
        options = ["-p", "torch_minimal", "--device=minimal"]
    return run_kit(
        tests,
        options,
        {
            "PYTHONPATH": _twin().name,
            "CHIP_DEFECTS": str(int(has_defects)),
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        },
    )


def run_both(has_defects: bool) -> Run:
    """What both runs give together."""
    one, other = (run_twin(has_defects, is_documented) for is_documented in (False, True))
    return Run(
        max(one.returncode, other.returncode),
        one.output + other.output,
        one.outcomes | other.outcomes,
        one.texts | other.texts,
        one.page + other.page,
    )


class TestTwin(TestCase):
    @pytest.mark.slow
    def test_every_seeded_defect_is_named(self):
        run = run_both(has_defects=True)
        for name, what in DEFECTS.items():
            with self.subTest(defect=what):
                self.assertEqual(run.outcomes.get(name), "failure", f"{name}\n{run.output[-4000:]}")
                self.assertIn(f"failed: {name}", run.output)
                self.assertIn(f"<code>{name}</code>", run.page)
        self.assertEqual(run.returncode, 1)

    @pytest.mark.slow
    def test_nothing_that_was_not_documented_fails_without_the_defects(self):
        run = run_both(has_defects=False)
        failed = [name for name, outcome in run.outcomes.items() if outcome == "failure"]
        if release_of(str(torch.__version__)) == "2.15":  # refuses one tensor for both outputs
            failed.remove("test_op_errors::TestErrors::test_errors_aminmax")
        self.assertEqual(len(failed), 7, run.output[-4000:])
        for name in failed:
            self.assertTrue(name.startswith("test_op_errors::"), name)
        self.assertEqual(run_twin(has_defects=False, is_documented=False).returncode, 0)
        for name in (*DEFECTS, *CONTROLS):
            self.assertEqual(run.outcomes.get(name), "passed", name)

    @pytest.mark.slow
    def test_documented_command_ends_with_the_documented_numbers(self):
        if release_of(str(torch.__version__)) != TORCH_RELEASES[0]:
            self.skipTest(f"the numbers are those of torch {TORCH_RELEASES[0]}")
        for has_defects, table in zip((False, True), _documented_tables(), strict=True):
            run = run_twin(has_defects, is_documented=True)
            self.assertIn(f"\n{table}\n\n", run.output)

    @pytest.mark.slow
    def test_device_without_pinned_memory_lacks_it_in_every_chapter(self):
        run = run_twin(has_defects=False, is_documented=True)
        text = run.texts[
            "test_stream_programs::TestStreamPrograms::"
            "test_program_prefetched_batches_of_pinned_memory_free"
        ]
        self.assertIn("the device reports: You should register `PrivateUse1HooksInterface`", text)

    @pytest.mark.slow
    def test_operator_without_a_kernel_is_missing(self):
        run = run_twin(has_defects=False, is_documented=True)
        text = run.texts["test_op_errors::TestErrors::test_errors_nn_functional_conv2d"]
        self.assertEqual(text, "the device lacks a kernel of aten::convolution_overrideable")

    @pytest.mark.slow
    def test_what_is_right_passes_beside_the_defects(self):
        run = run_both(has_defects=True)
        self.assertEqual([run.outcomes.get(name) for name in CONTROLS], ["passed"] * len(CONTROLS))

    @pytest.mark.slow
    def test_what_is_missing_is_said_to_be_missing(self):
        run = run_both(has_defects=False)
        for chapter, text in MISSING.items():
            with self.subTest(chapter=chapter):
                self.assertIn(f"missing: {text}", run.output)
                self.assertTrue(any(text in one for one in run.texts.values()))
        skipped = {text for name, text in run.texts.items() if run.outcomes[name] == "skipped"}
        says = ("the device lacks ", "the device reports: ")
        self.assertEqual([text for text in skipped if not text.startswith(says)], [])

    def test_functions_of_torch_for_cuda_are_said_to_be_missing(self):
        run = run_twin(has_defects=False, is_documented=False)
        self.assertRegex(
            run.texts[DATA_PARALLEL], "^the device lacks DataParallel: .*(_C|CUDA|NVIDIA)"
        )

    @pytest.mark.slow
    def test_page_of_a_chapter_is_linked(self):
        run = run_both(has_defects=True)
        for page in ("guard.md", "graphs.md"):
            self.assertIn(f'href="{(_DOCS / page).as_uri()}"', run.page)


class TestOurDevices(TestCase):
    def check(self, device: str, environment: dict[str, str]) -> None:
        run = run_kit(
            [
                f"{_PACKAGE}.test_ops_forward::TestForward::test_forward_add",
                f"{_PACKAGE}.{DATA_PARALLEL}",
                *INTERFACES,
            ],
            [f"--device={device}", "--conformance-tolerance=exact"],
            environment,
        )
        failed = [name for name, outcome in run.outcomes.items() if outcome != "passed"]
        self.assertEqual((failed, run.returncode), ([], 0), run.output[-4000:])
        self.assertGreater(len(run.outcomes), 70)
        self.assertIn(f"device: {device}:0", run.output + run.page.replace("<code>", ""))

    def test_openreg_lacks_nothing(self):
        self.check("openreg", {})

    def test_cuda_mode_lacks_nothing(self):
        self.check("cuda", {"OPENREG_DEVICE_TYPE": "cuda", "OPENREG_CUDA_NOTICE": "0"})


class TestPaths(TestCase):
    @pytest.mark.slow
    def test_installation_behind_a_symbolic_link_has_its_report(self):
        with tempfile.TemporaryDirectory() as folder:
            link = Path(folder) / "link"
            link.symlink_to(Path(torch_openreg.__file__).resolve().parents[1])
            run = run_kit(
                [f"{_PACKAGE}.test_guard"], ["--device=openreg"], {"PYTHONPATH": str(link)}
            )
        self.assertEqual(run.returncode, 0, run.output)
        self.assertRegex(run.output, r"\nguard +\d+ +0 +0")


class TestEnds(TestCase):
    """Tests that do not end by themselves, in each of the ways of Note [Tests that do not end]."""

    # One test has two seconds; the others have time, even on a busy machine.
    HANG = """
        import contextlib, ctypes, os, signal, pytest
        from torch_openreg.conformance.deadlines import Deadlines

        hold = Deadlines.hold

        def hold_shortly(self, test):
            self._seconds = 2 if test.endswith("test_event_is_recorded_again") else 600
            return hold(self, test)

        Deadlines.hold = hold_shortly

        def lock_twice(library):
            mutex = ctypes.create_string_buffer(64)
            for _ in range(2):
                library.pthread_mutex_lock(mutex)

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_call(item):
            if item.name == "test_event_is_recorded_again":
                HOW
    """
    TEST = "test_events::TestEvents::test_event_is_recorded_again"

    def run_with(self, how: str) -> Run:
        return run_kit(
            [f"{_PACKAGE}.test_events"],
            ["-p", "hang", "--device=openreg"],
            {},
            hang=self.HANG.replace("HOW", how),
        )

    def test_loop_that_never_ends_is_a_failed_test_with_its_reason(self):
        run = self.run_with("while True: pass")
        failed = [name for name, outcome in run.outcomes.items() if outcome != "passed"]
        self.assertEqual((failed, run.returncode), ([self.TEST], 1), run.output)
        self.assertGreater(len(run.outcomes), 5)
        self.assertIn("the test did not end within 2 seconds; it was at", run.texts[self.TEST])

    def test_wait_that_no_signal_interrupts_ends_the_run_with_its_report(self):
        run = self.run_with("lock_twice(ctypes.CDLL(None))")
        self.assertEqual(run.returncode, 1, run.output)
        for text in (f"failed: {self.TEST}: the test did not end", "not complete: a test hangs"):
            self.assertIn(text, run.output)
        self.assertIn(f"<code>{self.TEST}</code>", run.page)

    @pytest.mark.slow
    def test_wait_that_holds_pythons_lock_ends_the_run_with_its_stack(self):
        run = self.run_with("lock_twice(ctypes.PyDLL(None))")
        self.assertEqual(run.returncode, 1, run.output)
        self.assertRegex(run.output, r"Timeout \(0:00:\d\d.*\)!")
        self.assertIn("in lock_twice", run.output)

    @pytest.mark.slow
    def test_run_that_is_ended_says_so_and_reports_what_it_has(self):
        kill = "os.kill(os.getpid(), signal.SIGTERM)"
        for how in (
            kill,
            # In a test that expects errors of what it calls, as those that sweep over operators.
            f"with contextlib.suppress(Exception): {kill}",
        ):
            run = self.run_with(how)
            self.assertEqual(run.returncode, 2, run.output)
            for text in (run.output, run.page):
                self.assertRegex(
                    text, r"not complete: interrupted by SIGTERM; \d of 7 tests have ended"
                )


class TestCaptures(TestCase):
    """Work that raises in a capture is the failure, or the missing feature, of its test alone."""

    CHAPTERS = "--conformance-chapter=graphs,random numbers,serialization"
    FIRST = "test_graphs::TestGraphs::test_captured_work_runs_when_it_is_replayed"

    RAISES = """
        import torch

        add_ = torch.Tensor.add_

        def add_eagerly(self, *args, **kwargs):
            if torch.openreg.is_current_stream_capturing():
                raise ERROR
            return add_(self, *args, **kwargs)

        torch.Tensor.add_ = add_eagerly
    """
    # The capture cannot be ended, as that of a driver that hangs.
    NEVER_ENDS = """
        import torch

        def capture_end(self):
            raise RuntimeError("the driver is busy")

        torch.openreg.Graph.capture_end = capture_end
    """

    def run_with(self, module: str) -> Run:
        return run_kit(
            [_PACKAGE], ["-p", "raises", "--device=openreg", self.CHAPTERS], {}, raises=module
        )

    def test_missing_kernel_in_a_capture_is_missing_and_later_tests_pass(self):
        text = "Could not run 'aten::add_' with arguments from the 'PrivateUse1' backend."
        run = self.run_with(self.RAISES.replace("ERROR", f'NotImplementedError("{text}")'))
        others = {name: one for name, one in run.outcomes.items() if one != "passed"}
        self.assertEqual((others, run.returncode), ({self.FIRST: "skipped"}, 0), run.output)
        self.assertGreater(len(run.outcomes), 15)
        self.assertEqual(run.texts[self.FIRST], "the device lacks a kernel of aten::add_")

    def test_other_error_in_a_capture_is_one_failure(self):
        run = self.run_with(self.RAISES.replace("ERROR", 'RuntimeError("of the kernel")'))
        others = {name: one for name, one in run.outcomes.items() if one != "passed"}
        self.assertEqual((others, run.returncode), ({self.FIRST: "failure"}, 1), run.output)
        self.assertIn("of the kernel", run.texts[self.FIRST])

    def test_device_that_does_not_recover_is_reported_once(self):
        run = self.run_with(self.NEVER_ENDS)
        self.assertEqual(run.returncode, 1, run.output)
        count = len(run.outcomes) - 1
        text = f"the device has not recovered from {self.FIRST}: "
        # Where CI is set, pytest's summary below ours has the whole text of each failure.
        _, _, below = run.output.partition("= conformance =")
        ours, _, _ = below.partition("= short test summary info =")
        for report_of in (ours, run.page.partition("<h2")[0]):
            self.assertEqual(report_of.count("has not recovered from"), 1, run.output)
            self.assertIn(text, report_of)
            self.assertIn(f"; {count} later tests fail by that", report_of)

    def test_operator_without_a_kernel_that_cannot_be_captured_is_named(self):
        device = Target("openreg")
        x, stream = torch.eye(3, device="openreg"), torch.Stream("openreg")
        torch.accelerator.synchronize()
        with stream:
            with (
                self.assertRaisesRegex(MissingError, "lacks a kernel of aten::linalg_eig"),
                device.capture(torch.openreg.Graph()),
            ):
                torch.linalg.eig(x)
            # This one has a kernel.
            with (
                self.assertRaisesRegex(torch.AcceleratorError, "_local_scalar_dense"),
                device.capture(torch.openreg.Graph()),
            ):
                x[0, 0].item()
        self.assertFalse(torch.openreg.is_current_stream_capturing())
        torch.accelerator.synchronize()


class TestChapters(TestCase):
    def test_tests_run_in_the_order_of_the_chapters(self):
        run = run_kit([_PACKAGE], ["--device=openreg", "--collect-only"], {})
        tests = re.findall(r"(test_\w+)\.py::\w+::(\w+)$", run.output, re.MULTILINE)
        chapters = [chapter_of(*test).name for test in tests]
        self.assertEqual(list(dict.fromkeys(chapters)), [one.name for one in CHAPTERS])
        self.assertEqual(chapters, sorted(chapters, key=[one.name for one in CHAPTERS].index))

    def test_every_module_of_tests_has_a_chapter_and_every_chapter_a_page(self):
        entries = {entry.partition("::")[0] for one in CHAPTERS for entry in one.tests}
        folder = _FOLDER.parents[1] / "torch_openreg" / "conformance"
        self.assertEqual(entries, {path.stem for path in folder.glob("test_*.py")})
        for chapter in CHAPTERS:
            self.assertTrue((_DOCS / f"{chapter.page}.md").is_file(), chapter.page)

    def test_entries_with_a_prefix_leave_no_test_out(self):
        folder = _FOLDER.parents[1] / "torch_openreg" / "conformance"
        for module in ("test_ops_forward", "test_foreach"):
            beginnings = [
                entry.partition("::")[2]
                for one in CHAPTERS
                for entry in one.tests
                if entry.startswith(f"{module}::")
            ]
            names = re.findall(r"    def (test_\w+)", (folder / f"{module}.py").read_text())
            self.assertGreater(len(names), 1)
            for name in names:
                self.assertTrue(any(name.startswith(one) for one in beginnings), name)


class TestCrash(TestCase):
    def test_test_of_a_worker_that_crashed_is_found_by_what_its_id_has(self):
        method = "TestEvents::test_event_is_recorded_again"
        for path in ("test_events.py", "../kit/torch_openreg/conformance/test_events.py", ""):
            found = plugin._properties_of_crash(f"{path}::{method}")
            self.assertEqual(
                found,
                {"conformance_chapter": "events", "conformance_test": f"test_events::{method}"},
            )
        self.assertEqual(plugin._properties_of_crash("test_mine.py::TestMine::test_x"), {})


class TestReport(TestCase):
    RESULTS = (
        Result("guard", "test_guard::A::test_x", "passed"),
        Result("guard", "test_guard::A::test_y", "failed", "1 is not <2>", "details"),
        Result("graphs", "test_graphs::B::test_z", "skipped", "the device lacks graphs: none"),
        Result("operators", "test_ops_out::C::test_out_add", "passed", cases=7),
    )

    def test_terminal_counts_by_chapter(self):
        rows = [line.split() for line in terminal_lines(self.RESULTS)]
        self.assertIn(["guard", "1", "1", "0", "0", "docs/guard.md"], rows)
        self.assertIn(["operators", "1", "0", "0", "7", "docs/operators.md"], rows)
        self.assertIn(["graphs", "0", "0", "1", "0", "docs/graphs.md"], rows)

    def test_note_of_a_chapter_is_told_where_the_chapter_ran(self):
        note = next(one.note for one in CHAPTERS if one.name == "serialization")
        results = (
            *self.RESULTS,
            Result("serialization", "test_serialization::D::test_w", "passed"),
        )
        for has_run, given in ((False, self.RESULTS), (True, results)):
            self.assertEqual(f"  note: {note}" in terminal_lines(given), has_run)
            self.assertEqual(f"<p>Note: {note}</p>" in to_html(given, "T", {}, "docs/"), has_run)

    def test_page_escapes_texts_and_links_to_a_site(self):
        page = to_html(self.RESULTS, "T", {"device": "x:0"}, "https://example.org/")
        self.assertIn("1 is not &lt;2&gt;", page)
        self.assertIn('href="https://example.org/guard.html"', page)
        self.assertNotIn("src=", page)

    def test_page_without_a_clone_has_no_dead_links(self):
        with mock.patch.object(report, "_FOLDER", _FOLDER):
            page = to_html(self.RESULTS, "T", {}, None)
        self.assertNotIn('href="docs', page)
        self.assertIn("<code>docs/guard.md</code>", page)


class TestCommandLine(TestCase):
    def test_device_is_asked_for(self):
        run = run_kit([f"{_PACKAGE}.test_guard"], [], {})
        self.assertIn("expected --device=NAME, got none", run.output)

    def test_device_is_asked_for_beside_another_backend(self):
        program = "import torch; torch.utils.rename_privateuse1_backend('neighbor')"
        settings = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        run = run_kit([f"{_PACKAGE}.test_guard"], ["-p", "neighbor"], settings, neighbor=program)
        self.assertIn("expected --device=NAME, got none", run.output)
        self.assertNotIn("Traceback", run.output)

    def test_misspelled_option_is_refused_with_the_nearest(self):
        options = ["--device=cpu", "--conformance-chapters=guard"]
        run = run_kit([f"{_PACKAGE}.test_guard"], options, {})
        self.assertIn("did you mean --conformance-chapter?", run.output)

    @pytest.mark.slow
    def test_device_that_is_not_there_is_refused(self):
        run = run_kit([f"{_PACKAGE}.test_guard"], ["--device=xpu"], {})
        self.assertIn("expected a device that holds a tensor, got 'xpu'", run.output)

    def test_device_that_is_not_there_is_not_taken_for_openreg(self):
        run = run_kit(
            [f"{_PACKAGE}.test_guard"], ["--device=npu"], {"OPENREG_DEVICE_TYPE": "openreg"}
        )
        self.assertEqual((run.returncode, run.outcomes), (4, {}))
        text = "the tests found openreg, not npu: install it, or set OPENREG_DEVICE_TYPE=none"
        self.assertIn(text, run.output)

    def test_plug_in_may_be_named_where_it_is_installed(self):
        run = run_kit(
            [f"{_PACKAGE}.test_errors"],
            ["-p", "pytest_openreg", "--device=cpu", "-k", "shapes_that_do_not_fit"],
            {},
        )
        self.assertEqual(list(run.outcomes.values()), ["passed"], run.output)

    def test_number_that_is_none_is_refused(self):
        for option, expected in (("tolerance", "a number or 'exact'"), ("deadline", "a number of")):
            for value in ("foo", "-1", "nan"):
                argument = f"--conformance-{option}={value}"
                run = run_kit([f"{_PACKAGE}.test_guard"], ["--device=openreg", argument], {})
                text = f"--conformance-{option}: expected {expected}"
                self.assertRegex(run.output, rf"{text}.*, got '{value}'")

    def test_report_that_cannot_be_written_is_refused_at_the_start(self):
        options = ["--device=openreg", "--conformance-report=/nowhere/report.html"]
        run = run_kit([f"{_PACKAGE}.test_guard"], options, {})
        self.assertEqual((run.returncode, run.outcomes), (4, {}))
        self.assertIn("--conformance-report: expected a file that can be written", run.output)

    def test_run_of_which_nothing_ran_is_an_error(self):
        for options, why in (
            (["--device=cpu"], r"each of the \d+ tests lacks something"),
            (["--device=openreg", "-k", "nothing"], "no test was collected"),
        ):
            run = run_kit([f"{_PACKAGE}.test_guard"], options, {})
            self.assertEqual(run.returncode, 5, run.output)
            self.assertRegex(run.output, f"nothing ran: {why}")
            self.assertRegex(run.page, f"nothing ran: {why}")

    def test_kit_runs_from_sources_that_are_not_built(self):
        with tempfile.TemporaryDirectory() as folder:
            sources = _FOLDER.parents[1]
            ignored = shutil.ignore_patterns("*.so", "lib", "include", "__pycache__")
            package = Path(folder) / "torch_openreg"
            shutil.copytree(sources / "torch_openreg", package, ignore=ignored)
            shutil.copy(sources / "pytest_openreg.py", folder)
            run = run_kit(
                [f"{_PACKAGE}.test_errors"],
                ["-p", "pytest_openreg", "--device=cpu", "-k", "shapes_that_do_not_fit"],
                {"PYTHONPATH": folder, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            )
        self.assertEqual(list(run.outcomes.values()), ["passed"], run.output)
        # The copy has no documentation to link to.
        self.assertIn("<code>docs/errors.md</code>", run.page)

    def test_chapter_that_is_not_there_is_refused(self):
        options = ["--device=openreg", "--conformance-chapter=guards"]
        run = run_kit([f"{_PACKAGE}.test_guard"], options, {})
        self.assertIn("--conformance-chapter: expected names out of", run.output)

    def test_operators_have_the_tests_of_their_names_or_of_what_calls_them(self):
        operators = "aten::mul.out,aten::threshold_backward.grad_input,aten::_thnn_fused_gru_cell"
        run = run_kit(
            [f"{_PACKAGE}.test_ops_forward", f"{_PACKAGE}.test_guard"],
            ["--device=openreg", f"--conformance-operators={operators}", "-k", "not repetition"],
            {},
        )
        names = ("mul", "nn_functional_relu", "nn_functional_threshold")
        tests = [f"test_ops_forward::TestForward::test_forward_{name}" for name in names]
        self.assertEqual(run.outcomes, dict.fromkeys(tests, "passed"))
        text = "no entry of torch's database calls aten::_thnn_fused_gru_cell"
        self.assertIn(text, run.output)

    def test_operator_that_is_not_there_is_refused(self):
        options = ["--device=cpu", "--conformance-operators=aten::mull"]
        run = run_kit([f"{_PACKAGE}.test_guard"], options, {})
        self.assertEqual((run.returncode, run.outcomes), (4, {}))
        self.assertIn(
            "expected operators of torch, such as aten::mul.out, got 'aten::mull'", run.output
        )

    def test_import_of_the_package_imports_no_part_of_the_kit(self):
        code = "import sys, torch; print([n for n in sys.modules if 'openreg.conformance' in n])"
        output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        self.assertEqual(output.stdout.strip(), "[]", output.stderr)


if __name__ == "__main__":
    run_tests()
