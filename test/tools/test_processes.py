"""The processes of test/run.py: what a file sees of them, and how a test that ends one counts."""

import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest
from common import OpenRegTestCase, instantiate_parametrized_tests, parametrize, run_tests, subtest
from environments import MODULES, environment_of, set_before_torch
from fork_server import ForkServer
from processes import Limits, Runner

pytestmark = pytest.mark.sample(0.1)

_TEST = Path(__file__).resolve().parents[1]
_LIMITS = Limits(test_s=100, file_s=300)


class TestRunner(OpenRegTestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def outcomes(self, *texts, limits=_LIMITS):
        """The outcomes of files with these texts, which run one after another."""
        runs = {}
        for number, text in enumerate(texts):
            path = self.folder / f"test_{number}.py"
            path.write_text(textwrap.dedent(text))
            runs[f"file {number}"] = (str(path), "-p", "no:cacheprovider", "-s")
        return Runner(os.environ, 1, limits).run(runs)

    @parametrize(
        "end",
        [
            subtest("os.kill(os.getpid(), signal.SIGKILL)", name="signal"),
            subtest("os._exit(0)", name="exit"),
            subtest("threading.Event().wait()", name="hang"),
        ],
    )
    def test_test_that_ends_its_process_fails_alone(self, end):
        (outcome,) = self.outcomes(
            f"""
            import os, signal, threading
            def test_before(): pass
            def test_end(): {end}
            def test_after(): pass
            """,
            limits=Limits(test_s=2, file_s=300),
        )
        self.assertFalse(outcome.is_success)
        self.assertEqual(outcome.counts, {"passed": 2, "failed": 1})

    @pytest.mark.slow
    def test_crash_at_exit_is_a_failure(self):
        (outcome,) = self.outcomes(
            """
            import atexit, os
            def test_it(): atexit.register(os.abort)
            """
        )
        self.assertFalse(outcome.is_success)
        self.assertEqual(outcome.counts, {"passed": 1})
        self.assertIn("ended by SIGABRT", outcome.output)

    def test_file_that_takes_too_long_is_a_failure(self):
        (outcome,) = self.outcomes(
            """
            import threading
            def test_it(): threading.Event().wait()
            """,
            limits=Limits(test_s=100, file_s=2),
        )
        self.assertFalse(outcome.is_success)
        self.assertIn("ended: not done after 2 s", outcome.output)

    def test_process_that_a_file_leaves_is_ended(self):
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)
        (outcome,) = self.outcomes(
            f"""
            import subprocess
            def test_it(): subprocess.Popen(["sleep", "1000"], stdout=open({str(pipe)!r}, "w"))
            """
        )
        self.assertTrue(outcome.is_success)
        os.set_blocking(reader, True)
        self.assertEqual(os.read(reader, 1), b"")  # the last writer has ended

    def test_runner_that_is_killed_leaves_no_process(self):
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        (self.folder / "test_it.py").write_text(
            textwrap.dedent(
                f"""
                import threading
                def test_it():
                    pipe = open({str(pipe)!r}, "w")
                    print("running", file=pipe, flush=True)
                    threading.Event().wait()
                """
            )
        )
        program = f"""
            import sys
            from pathlib import Path
            sys.path.insert(0, {str(_TEST)!r})
            from fork_server import ForkServer
            arguments = [{str(self.folder / "test_it.py")!r}, "-p", "no:cacheprovider", "-s"]
            output = Path({str(self.folder / "output")!r})
            ForkServer(["pytest"], {{}}).run(arguments, output, timeout_s=1000)
            """
        command = [sys.executable, "-c", textwrap.dedent(program)]
        with subprocess.Popen(command, cwd=self.folder) as runner, pipe.open() as reader:
            self.assertEqual(reader.readline(), "running\n")
            runner.kill()
            self.assertEqual(reader.read(), "")  # the last writer has ended

    def test_files_share_no_state(self):
        text = """
            import os, torch
            def test_it():
                assert not hasattr(torch, "it_was_here")
                assert not torch.openreg.is_initialized()
                assert "IT_WAS_HERE" not in os.environ
                torch.it_was_here = os.environ["IT_WAS_HERE"] = "yes"
                torch.ones(2, device="openreg")
            """
        self.assertTrue(all(outcome.is_success for outcome in self.outcomes(text, text)))

    @pytest.mark.slow
    def test_memory_is_poisoned_in_files_that_ask_for_it(self):
        folders = [str(_TEST), str(_TEST / "generic")]
        text = f"""
            import sys
            sys.path += {folders}
            from poison import TARGET
            import torch
            def test_it(): assert torch.empty(1, device="openreg").isnan()
            """
        self.assertTrue(all(outcome.is_success for outcome in self.outcomes(text, text)))

    def test_inductor_is_imported_before_files_that_compile(self):
        text = f"""
            import sys
            is_imported = "torch._inductor.compile_fx" in sys.modules
            sys.path.append({str(_TEST)!r})
            from extras.inductor.compiled import CompiledTestCase
            import torch
            def test_it():
                assert is_imported
                assert not torch.openreg.is_initialized()
                assert not torch._inductor.config.fx_graph_cache
            """
        self.assertTrue(all(outcome.is_success for outcome in self.outcomes(text)))

    def test_file_sees_what_it_sees_under_pytest(self):
        text = """
            import os, sys
            import torch.testing._internal.common_utils  # changes the path
            def test_it():
                print("SEEN", sys.path, os.getcwd(), sys.stdin.read())
            """
        (outcome,) = self.outcomes(text)
        direct = subprocess.run(
            [sys.executable, "-m", "pytest", self.folder / "test_0.py", "-s"],
            cwd=_TEST.parent,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
        )
        (seen,) = (line for line in direct.stdout.splitlines() if "SEEN" in line)
        self.assertIn(seen, outcome.output)


class TestEnvironments(OpenRegTestCase):
    def test_file_has_the_variables_that_it_needs_when_torch_is_imported(self):
        for module, variables in MODULES.items():
            with self.subTest(module=module):
                environments_of_files = map(environment_of, _TEST.rglob("test_*.py"))
                count = sum(variables.items() <= one.items() for one in environments_of_files)
                self.assertGreater(count, 1)
        self.assertEqual(environment_of(Path(__file__)), {})

    def test_variables_that_come_too_late_are_refused(self):
        with self.assertRaisesRegex(RuntimeError, "poison: expected a process .* OPENREG_MEMORY_P"):
            set_before_torch("poison")


class TestForkServer(OpenRegTestCase):
    def test_server_that_cannot_import_says_so(self):
        server = ForkServer(["it_is_not_there"], os.environ)
        with self.assertRaisesRegex(ChildProcessError, "the fork server ended with exit code 1"):
            server.run([], Path(os.devnull), 100)


instantiate_parametrized_tests(TestRunner)

if __name__ == "__main__":
    run_tests()
