"""The interface of torch.openreg.sanitizer, from Python and from the environment."""

import contextlib
import inspect
import json
import os
import re
import tempfile
import threading
import unittest.mock
import warnings
from pathlib import Path

import pytest
import torch
from common import (
    ERROR_PREFIX,
    OpenRegTestCase,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_program,
    run_tests,
    subtest,
)
from extras.sanitizer.programs import device

from torch_openreg import _C
from torch_openreg.extras.sanitizer import _report_file
from torch_openreg.extras.sanitizer import sanitizer as checker

pytestmark = pytest.mark.sample(0.076)

_module = getattr(torch, device.type)


def _graph():
    return _module.CUDAGraph() if device.type == "cuda" else _module.Graph()


_RACE = f"""
import torch
x, side = torch.zeros(64, device="{device.type}"), torch.{device.type}.Stream()
with torch.{device.type}.stream(side):
    y = x * 2
torch.{device.type}.synchronize()
"""


def _race():
    x, side = torch.zeros(64, device=device), _module.Stream()
    with _module.stream(side):
        return x * 2


@contextlib.contextmanager
def _no_variable(name):
    """Lets a block set a variable of the environment that is not set."""
    with unittest.mock.patch.dict(os.environ):
        os.environ.pop(name, None)
        yield


# --- Programs with a wait that comes too early, in the line of the comment. The write or the copy
# is on `side`.


def _event_before_the_write(x, side):
    event = side.record_event()
    with _module.stream(side):
        x.add_(1)
    _module.current_stream().wait_event(event)  # too early
    x.sum()


def _event_waited_for_before_the_write(x, side):
    event = side.record_event()
    _module.current_stream().wait_event(event)  # too early
    with _module.stream(side):
        x.add_(1)
    x.sum()


def _stream_before_the_write(x, side):
    _module.current_stream().wait_stream(side)  # too early
    with _module.stream(side):
        x.add_(1)
    x.sum()


def _host_waits_for_an_event_before_the_write(x, side):
    event = side.record_event()
    with _module.stream(side):
        x.add_(1)
    event.synchronize()  # too early
    x.sum()


def _in_a_capture(x, side):
    with _module.graph(_graph()):
        current = _module.current_stream()
        side.wait_stream(current)
        event = side.record_event()
        with _module.stream(side):
            x.add_(1)
        current.wait_event(event)  # too early
        x.sum()
        current.wait_stream(side)


def _host_reads_after_an_event_before_the_copy(x, side):
    event = side.record_event()
    with _module.stream(side):
        host = x.to("cpu", non_blocking=True)
    event.synchronize()  # too early
    host.sum()


def _host_reads_after_a_stream_before_the_copy(x, side):
    side.synchronize()  # too early
    with _module.stream(side):
        host = x.to("cpu", non_blocking=True)
    host.sum()


def _host_reads_an_array_after_the_device_before_the_copy(x, side):
    _module.synchronize()  # too early
    with _module.stream(side):
        host = x.to("cpu", non_blocking=True)
    host.numpy().sum()


_TOO_EARLY = (
    _event_before_the_write,
    _event_waited_for_before_the_write,
    _stream_before_the_write,
    _host_waits_for_an_event_before_the_write,
    _in_a_capture,
    _host_reads_after_an_event_before_the_copy,
    _host_reads_after_a_stream_before_the_copy,
    _host_reads_an_array_after_the_device_before_the_copy,
)


class TestInterface(OpenRegTestCase):
    def setUp(self):
        super().setUp()
        checker.clear()

    def tearDown(self):
        # torch.cuda.graph does not do it if its capture fails.
        _module.set_stream(_module.default_stream())
        _module.synchronize()
        checker.disable()
        checker.clear()
        super().tearDown()

    def test_is_off_until_it_is_enabled(self):
        self.assertFalse(checker.is_enabled())
        _race()
        self.assertEqual(checker.findings(), [])
        checker.enable("collect")
        self.assertTrue(checker.is_enabled())
        _race()
        self.assertEqual(len(checker.findings()), 1)
        checker.disable()
        self.assertFalse(checker.is_enabled())

    def test_warns_once_for_each_pair_of_lines(self):
        with checker.check("warn", lifetime=False), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(3):
                _race()
        self.assertEqual([one.category for one in caught], [checker.SanitizerWarning])
        self.assertEqual(caught[0].filename, __file__)
        self.assertEqual([one.count for one in checker.findings()], [3])

    def test_raises_at_the_second_access_and_does_not_launch_it(self):
        x, side = torch.zeros(64, device=device), _module.Stream()
        _module.synchronize()
        with checker.check(action="raise"):
            x.add_(1)
            with (
                _module.stream(side),
                self.assertRaisesRegex(
                    checker.SanitizerError, "sanitizer: race: aten::mul.Tensor writes"
                ) as caught,
            ):
                x.mul_(10)
            self.assertEqual(caught.exception.finding.kind, "race")
        _module.synchronize()
        self.assertEqual(x.cpu(), torch.ones(64))

    def test_what_was_refused_is_refused_again(self):
        x, side = torch.zeros(64, device=device), _module.Stream()
        with checker.check(action="raise"):
            x.add_(1)
            for _ in range(2):
                with _module.stream(side), self.assertRaises(checker.SanitizerError):
                    x.mul_(10)

    def test_raises_where_backward_was_called(self):
        weight, comm = torch.zeros(8, device=device, requires_grad=True), _module.Stream()
        total = torch.zeros(8, device=device)

        def hook(grad):
            with _module.stream(comm):
                total.add_(grad)

        weight.register_hook(hook)
        _module.synchronize()
        with checker.check(), self.assertRaises(checker.SanitizerError):
            (weight * 2).sum().backward()

    def test_host_access_raises_in_the_main_thread(self):
        x = torch.zeros(64, device=device)
        with checker.check(), self.assertRaisesRegex(checker.SanitizerError, ": host: "):
            host = x.to("cpu", non_blocking=True)
            host.sum()
            for _ in range(1000):
                pass

    def test_finding_names_both_accesses(self):
        with checker.check("collect"):
            _race()
        (finding,) = checker.findings()
        later, earlier = finding.accesses
        self.assertEqual((later.operator, later.argument), ("aten::mul.Tensor", "self"))
        self.assertEqual((earlier.operator, earlier.argument), ("aten::zero_", "self"))
        self.assertFalse(later.is_write)
        self.assertTrue(earlier.is_write)
        self.assertNotEqual(later.stream, earlier.stream)
        self.assertEqual((later.nbytes, later.offset, later.sizes), (256, 0, (64,)))
        self.assertEqual(later.filename, __file__)
        self.assertEqual(later.lineno, earlier.lineno + 2)
        lines = {frame.lineno for stack in finding.stacks() for frame in stack}
        self.assertLessEqual({later.lineno, earlier.lineno}, lines)
        for text in ("wait_stream", "test_interface.py", "allocated", "stream 0 (default)"):
            self.assertIn(text, str(finding))

    @requires_two_devices
    def test_text_has_the_device_of_each_stream(self):
        other = torch.device(device.type, 1)
        with _module.device(other), checker.check("collect"):
            x = torch.zeros(64, device=other)
            pinned = x.to("cpu", non_blocking=True)
            with _module.stream(_module.Stream()):
                x * 2
            pinned.sum()
            _module.synchronize()
        self.assertEqual({one.kind for one in checker.findings()}, {"race", "host"})
        for finding in checker.findings():
            text = str(finding)
            named = list(re.finditer(r"\bstream \d+(?: \(default\))?", text))
            self.assertGreaterEqual(len(named), 2)
            for name in named:
                self.assertTrue(text[name.end() :].startswith(f" of {other}"), text)

    def test_arguments_have_the_names_of_the_schema(self):
        x, y, side = (*torch.zeros(2, 64, device=device), _module.Stream())
        _module.synchronize()
        for call, name in ((y.add_, "other"), (x.add, "self"), (x.sort, "self")):
            with checker.check("collect"):
                with _module.stream(side):
                    x.fill_(1)
                call(*([x] if call == y.add_ else [0] if call == x.add else []))
                _module.synchronize()
            (finding,) = checker.findings()
            self.assertEqual([one.argument for one in finding.accesses], [name, "self"])
            checker.clear()

    def test_report_tells_of_a_wait_that_was_too_early(self):
        x, side = torch.zeros(64, device=device), _module.Stream()
        _module.synchronize()
        with checker.check("collect"):
            with _module.stream(side):
                x.add_(1)
            _module.current_stream().wait_stream(side)
            with _module.stream(side):
                x.add_(1)
            x.sum()
        (finding,) = checker.findings()
        self.assertRegex(str(finding), r"last waited for stream \d+ of \S+ at .*test_interface.py")

    @parametrize("program", [subtest(one, name=one.__name__) for one in _TOO_EARLY])
    @parametrize("has_worked", [False, True])
    def test_last_line_names_the_wait_that_was_too_early(self, program, has_worked):
        x, side = torch.zeros(64, device=device), _module.Stream()
        _module.synchronize()
        with checker.check("collect"):
            if has_worked:
                with _module.stream(side):
                    torch.ones(4, device=device)
            program(x, side)
            _module.synchronize()
        (finding,) = checker.findings()
        lines, first = inspect.getsourcelines(program)
        (wait,) = (first + at for at, line in enumerate(lines) if "# too early" in line)
        last = str(finding).splitlines()[-1]
        self.assertRegex(last, rf"test_interface.py:{wait}, which is too early: it ")

    def test_wait_for_another_stream_is_not_named(self):
        x, side, third = torch.zeros(64, device=device), _module.Stream(), _module.Stream()
        _module.synchronize()
        with checker.check("collect"):
            with _module.stream(side):
                x.add_(1)
            _module.current_stream().wait_stream(third)
            third.synchronize()
            x.sum()
        (finding,) = checker.findings()
        self.assertNotIn("too early", str(finding))

    def test_kinds_can_be_left_out(self):
        with checker.check("collect", race=False):
            _race()
        self.assertEqual(checker.findings(), [])

    def test_refused_calls_raise_their_own_error(self):
        x, graph = torch.zeros(64, device=device), _graph()
        # torch.cuda.graph still ends the capture, which is a separate error.
        errors = f"{ERROR_PREFIX}StreamCapture(Unsupported|Invalidated)"
        with (
            checker.check("raise"),
            self.assertRaisesRegex(torch.AcceleratorError, errors),
            _module.graph(graph),
        ):
            x.sum().item()
        (finding,) = checker.findings()
        call, beginning = finding.accesses
        self.assertEqual(finding.kind, "capture")
        self.assertEqual(call.operator, "aten::_local_scalar_dense")
        self.assertEqual((call.filename, call.lineno - beginning.lineno), (__file__, 5))
        for text in ("the capture began", "test_interface.py", "graph.replay()"):
            self.assertIn(text, str(finding))

    def test_refused_calls_can_be_left_out(self):
        x = torch.zeros(64, device=device)
        with (
            checker.check("collect", capture=False),
            self.assertRaises(torch.AcceleratorError),
            _module.graph(_graph()),
        ):
            x.sum().item()
        self.assertEqual(checker.findings(), [])

    def test_text_of_a_refused_call_is_stable(self):
        def refused():
            with (
                self.assertRaises(torch.AcceleratorError),
                _module.graph(_graph(), stream=trunk),
            ):
                x.sum().item()
            (finding,) = checker.findings()
            checker.clear()
            return str(finding)

        x, trunk = torch.zeros(64, device=device), _module.Stream()
        with checker.check("collect"):
            self.assertEqual(len({refused() for _ in range(3)}), 1)

    def test_each_refused_call_has_a_fix_of_its_own(self):
        x, side, event = torch.zeros(64, device=device), _module.Stream(), _module.Event()
        with _module.stream(side):
            event.record()
        torch.nonzero(x)
        counts = torch.ones(64, dtype=torch.int64, device=device)
        calls = {
            # Its results cannot be predicted, as the numbers are not those of dummies.
            "before the capture": lambda: torch.repeat_interleave(counts, output_size=10),
            "torch.where": lambda: torch.nonzero(x),
            "static_input.copy_": lambda: x.copy_(torch.ones(64)),
            "wait_event": lambda: _module.current_stream().wait_event(event),
            "graph.replay()": _module.synchronize,
        }
        for text, call in calls.items():
            with (
                checker.check("collect"),
                self.assertRaises(torch.AcceleratorError),
                _module.graph(_graph()),
            ):
                x.add_(1)
                call()
            (finding,) = checker.findings()
            self.assertIn(text, finding.fix)
            checker.clear()

    def test_race_in_a_capture_refuses_the_launch(self):
        x, trunk, side = torch.zeros(64, device=device), *(_module.Stream() for _ in range(2))
        with (
            checker.check("raise"),
            self.assertRaisesRegex(checker.SanitizerError, ": race: "),
            _module.graph(_graph(), stream=trunk),
        ):
            side.wait_stream(trunk)
            with _module.stream(side):
                x.add_(1)
            try:
                x.mul_(2)
            finally:
                trunk.wait_stream(side)

    def test_freed_input_of_a_graph_has_the_line_of_its_free(self):
        with checker.check("collect"):
            graph, x = _graph(), torch.zeros(64, device=device)
            _module.synchronize()
            with _module.graph(graph):
                x[4:].mul(2)
            del x
            graph.replay()
        (finding,) = checker.findings()
        replay, captured = finding.accesses
        self.assertEqual((captured.offset, captured.nbytes), (16, 240))
        self.assertEqual(replay.lineno, captured.lineno + 2)
        self.assertEqual(finding.freed[0].lineno, captured.lineno + 1)
        self.assertIn("offset 16 of an allocation of stream 0", str(finding))

    def test_unwritten_bytes_are_named(self):
        with checker.check("collect", uninitialized=True):
            x = torch.empty(64, device=device)
            x[:10].fill_(1)
            x[4:].sum()
        (finding,) = checker.findings()
        reader, allocation = finding.accesses
        self.assertTrue(allocation.is_allocation)
        self.assertEqual((reader.operator, reader.offset), ("aten::sum.dim_IntList", 16))
        self.assertEqual(reader.lineno, allocation.lineno + 2)
        self.assertIn("the first uninitialized byte: offset 40", str(finding))

    def test_unwritten_bytes_are_looked_for_if_asked(self):
        with checker.check("collect"):
            torch.empty(64, device=device).sum()
        self.assertEqual(checker.findings(), [])

    def test_unwritten_read_that_was_refused_is_refused_again(self):
        with checker.check(uninitialized=True):
            x = torch.empty(64, device=device)
            for _ in range(2):
                with self.assertRaisesRegex(checker.SanitizerError, ": uninitialized: "):
                    x.add_(1)

    def test_too_many_runs_are_silent_and_counted(self):
        with checker.check("collect", uninitialized=True):
            x = torch.empty(2, 5000, device=device)
            x.t()[:, 0].fill_(1)
            x.t()[::2, :].sum()
            counted = _C._sanitizer_counts()["undecided"]
            y = torch.empty(5000, 2, device=device)
            y[:, 0].fill_(1)
            y[:-1].sum()  # what lies between the runs of the fill counts as written
            self.assertGreater(_C._sanitizer_counts()["undecided"], counted)
        self.assertEqual(checker.findings(), [])
        self.assertIn("too many runs of bytes", checker.summary())

    def test_exact_lifetimes_need_the_same_memory(self):
        def free_early(size):
            x, side = torch.zeros(64, device=device), _module.Stream()
            side.wait_stream(_module.current_stream())
            with _module.stream(side):
                x.mul(2)
            del x
            torch.zeros(size, device=device)

        for size, count in ((1 << 20, 0), (64, 1)):
            with checker.check("collect", lifetime="exact"):
                free_early(size)
            self.assertEqual(len(checker.findings()), count)

    def test_suppressed_findings_are_counted(self):
        with checker.check("raise"), checker.suppress("race", operator="aten::mul*"):
            _race()
        self.assertEqual(checker.findings(), [])
        self.assertIn("1 finding suppressed", checker.summary())
        with checker.check("collect"), checker.suppress("lifetime"), checker.suppress(file="*.c"):
            _race()
        self.assertEqual(len(checker.findings()), 1)

    def test_check_decorates_functions_and_nests(self):
        checker.enable("collect")
        with checker.check("raise"):
            self.assertRaises(checker.SanitizerError, _race)
        self.assertTrue(checker.is_enabled())
        _race()
        checker.disable()
        self.assertRaises(checker.SanitizerError, checker.check()(_race))
        self.assertFalse(checker.is_enabled())

    def test_summary_counts_kernels_that_were_not_seen(self):
        with checker.check("collect"):
            torch.ones(3, device=device)
            before = _C._sanitizer_counts()
            self.assertEqual(before["not_seen"], 0)
            self.assertGreater(before["launches"], 0)
        self.assertIn("0 findings", checker.summary())

    def test_bad_arguments_are_refused(self):
        with self.assertRaisesRegex(ValueError, "expected action to be one of .*, got 'stop'"):
            checker.enable("stop")
        with self.assertRaisesRegex(ValueError, "expected lifetime to be .*, got 'nearly'"):
            checker.enable(lifetime="nearly")
        with self.assertRaisesRegex(ValueError, "expected host to be .*, got 'pages'"):
            checker.enable(host="pages")

    def test_threads_that_allocate_and_free_meanwhile(self):
        def work():
            side = _module.Stream()
            with _module.stream(side):
                for _ in range(100):
                    x = torch.ones(64, device=device)
                    (x * 2 + 1).sum()

        with checker.check("raise"):
            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            _module.synchronize()
        self.assertEqual(checker.findings(), [])


class TestReportFile(OpenRegTestCase):
    def test_a_finding_goes_to_the_end_without_reading_what_is_there(self):
        with tempfile.TemporaryDirectory() as folder, _no_variable(_report_file._BEGUN):
            report = _report_file.ReportFile(str(Path(folder) / "findings.json"))
            self.assertIsNone(report.begin())
            findings = [{"title": f"]\n\u00e4 {i}", "accesses": [{"line": i}]} for i in range(5)]
            report.add(findings[0])
            with unittest.mock.patch.object(_report_file, "_read", side_effect=AssertionError):
                for finding in findings[1:]:
                    report.add(finding)
            written = Path(report.path).read_text(encoding="utf-8")
            self.assertEqual(
                [one["title"] for one in json.loads(written)], [one["title"] for one in findings]
            )
            report.end(findings)
            self.assertEqual(Path(report.path).read_text(encoding="utf-8"), written)
            self.assertIsNone(report.problem)

    def test_a_file_that_a_crash_has_cut_is_begun_again(self):
        with tempfile.TemporaryDirectory() as folder, _no_variable(_report_file._BEGUN):
            report = _report_file.ReportFile(str(Path(folder) / "findings.json"))
            self.assertIsNone(report.begin())
            Path(report.path).write_text('[\n {"title": "cu', encoding="utf-8")
            report.add({"title": "whole"})
            (one,) = json.loads(Path(report.path).read_text(encoding="utf-8"))
            self.assertEqual(one["title"], "whole")


class TestEnvironment(OpenRegTestCase):
    def run_with(self, code=_RACE, **settings):
        return run_program(code, {"OPENREG_SANITIZER": "1", **settings}, expect_success=False)

    def test_process_with_findings_ends_with_status_77(self):
        result = self.run_with()
        self.assertEqual(result.returncode, 77, result.stderr)
        self.assertIn("SanitizerWarning", result.stderr)
        self.assertIn("1 finding, ", result.stderr)

    def test_import_loads_no_texts_of_findings(self):
        code = """
            import sys, torch
            name = "torch_openreg.extras.sanitizer._findings"
            before = name in sys.modules
            print(before, torch.openreg.sanitizer.Finding.__name__, name in sys.modules)
        """
        result = run_program(code, {"OPENREG_SANITIZER": "0"})
        self.assertEqual(result.stdout, "False Finding True\n")

    def test_process_that_dealt_with_them_keeps_its_status(self):
        code = _RACE + f"torch.{device.type}.sanitizer.clear()\n"
        self.assertEqual(self.run_with(code).returncode, 0)
        self.assertEqual(self.run_with(OPENREG_SANITIZER_EXIT="0").returncode, 0)
        self.assertEqual(self.run_with(OPENREG_SANITIZER="0").returncode, 0)

    def test_action_raise(self):
        result = self.run_with(OPENREG_SANITIZER="raise")
        self.assertEqual(result.returncode, 77, result.stderr)
        self.assertRegex(result.stderr, r"SanitizerError: \w+ sanitizer: race")

    def test_report_is_written(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "findings.json"
            self.run_with(OPENREG_SANITIZER="collect", OPENREG_SANITIZER_REPORT=str(path))
            (finding,) = json.loads(path.read_text())
        self.assertEqual(finding["kind"], "race")
        self.assertEqual([one["lineno"] for one in finding["accesses"]], [5, 3])

    def report_of(self, code, name="findings.json", runs=1, **settings):
        """Runs a program that writes a report; returns how it ended, and the files by name."""
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / name)
            for _ in range(runs):
                result = self.run_with(
                    code,
                    **{"OPENREG_SANITIZER": "collect", "OPENREG_SANITIZER_REPORT": path} | settings,
                )
            files = {one.name: json.loads(one.read_text()) for one in Path(folder).iterdir()}
        return result, files

    def test_ranks_and_their_launcher_share_the_report(self):
        code = f"""
            import os, subprocess, sys, tempfile
            import torch
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "trainer.py")
                with open(path, "w") as file:
                    file.write({_RACE!r})
                launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
                subprocess.run([sys.executable, *launcher, path], check=True)
        """
        # With its status of findings, the rank that ends first would have the other one killed.
        result, files = self.report_of(code, OPENREG_SANITIZER_EXIT="0")
        self.assertEqual(list(files), ["findings.json"], result.stderr)
        found = [(one["kind"], one["process"]["rank"]) for one in files["findings.json"]]
        self.assertEqual(sorted(found), [("race", 0), ("race", 1)], result.stderr)
        self.assertEqual(len({one["process"]["id"] for one in files["findings.json"]}), 2)

    def test_report_is_of_one_run(self):
        code = f"import subprocess, sys\n{_RACE}subprocess.run([sys.executable, '-c', {_RACE!r}])\n"
        _, files = self.report_of(code, runs=2)
        self.assertEqual(len(files["findings.json"]), 2)
        _, files = self.report_of("import torch")
        self.assertEqual(files, {"findings.json": []})

    def test_process_number_in_the_name_gives_each_process_a_file(self):
        child = f"import os\nprint(os.getpid(), flush=True)\n{_RACE}"
        code = f"import subprocess, sys\n{child}subprocess.run([sys.executable, '-c', {child!r}])\n"
        result, files = self.report_of(code, "%p.json")
        self.assertEqual(sorted(files), sorted(f"{one}.json" for one in result.stdout.split()))
        self.assertEqual([len(one) for one in files.values()], [1, 1])

    def test_forked_child_leaves_the_report_of_its_parent_alone(self):
        code = f"import os, sys\n{_RACE}if os.fork() == 0:\n    sys.exit(0)\nos.wait()\n"
        _, files = self.report_of(code)
        self.assertEqual(len(files["findings.json"]), 1)

    def test_process_that_is_killed_has_reported(self):
        code = f"import os, signal\n{_RACE}os.kill(os.getpid(), signal.SIGKILL)\n"
        result, files = self.report_of(code)
        self.assertEqual(result.returncode, -9)
        self.assertEqual(len(files["findings.json"]), 1)

    def test_report_that_cannot_be_written_is_refused_at_the_start(self):
        settings = {"OPENREG_SANITIZER_REPORT": "/nowhere/findings.json"}
        text = (
            "SettingWarning: OPENREG_SANITIZER_REPORT is '/nowhere/findings.json'; allowed: the "
            "name of a file that can be written (No such file or directory)"
        )
        result = self.run_with(f"{_RACE}print('ran')\n", OPENREG_SANITIZER="collect", **settings)
        self.assertEqual((result.returncode, result.stdout), (77, "ran\n"), result.stderr)
        self.assertIn(text, result.stderr.splitlines()[0])
        for line in ("sanitizer: race: aten::mul", "1 finding, "):
            self.assertIn(line, result.stderr)
        code = f"import torch\ntorch.{device.type}.sanitizer.enable()\n"
        result = self.run_with(code, OPENREG_SANITIZER="0", **settings)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("ValueError: sanitizer.enable: OPENREG_SANITIZER_REPORT is", result.stderr)

    def test_report_that_can_no_longer_be_written_goes_to_stderr(self):
        code = f"import os, shutil\n{_RACE}shutil.rmtree(os.environ['FOLDER'])\n"
        with tempfile.TemporaryDirectory() as outer:
            folder = Path(outer) / "reports"
            folder.mkdir()
            result = self.run_with(
                code,
                OPENREG_SANITIZER="collect",
                OPENREG_SANITIZER_REPORT=str(folder / "findings.json"),
                FOLDER=str(folder),
            )
        self.assertEqual(result.returncode, 77, result.stderr)
        for line in ("No such file or directory", "sanitizer: race: aten::mul", "1 finding, "):
            self.assertIn(line, result.stderr)

    def test_status_tells_of_findings_however_the_process_ends(self):
        for ending in ("raise ValueError", "sys.exit(3)", "os.close(1)", "os.close(2)"):
            with self.subTest(ending=ending):
                code = f"import os, sys\n{_RACE}print('text')\n{ending}\n"
                self.assertEqual(self.run_with(code).returncode, 77)

    def test_unwritten_bytes_are_looked_for(self):
        code = f"import torch\ntorch.empty(64, device='{device.type}').sum().item()\n"
        for value, status in (("0", 0), ("1", 77)):
            result = self.run_with(code, OPENREG_SANITIZER_UNINITIALIZED=value)
            self.assertEqual(result.returncode, status, result.stderr)

    def test_suppressions_are_read(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "suppressions"
            path.write_text("# known\nrace:*:aten::mul*\n")
            result = self.run_with(OPENREG_SANITIZER_SUPPRESSIONS=str(path))
            self.assertEqual(result.returncode, 0, result.stderr)
            path.write_text("haste:*\n")
            result = self.run_with(OPENREG_SANITIZER_SUPPRESSIONS=str(path))
            self.assertTrue(re.search("expected kind:file:operator", result.stderr), result.stderr)


instantiate_parametrized_tests(TestInterface)

if __name__ == "__main__":
    run_tests()
