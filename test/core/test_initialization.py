"""Lazy initialization: queued calls run once, in order; errors name the queuing line."""

import textwrap
import unittest

import torch
from common import DEVICE_TYPE, FORK_TEXT, OpenRegTestCase, run_child, run_tests


def run(code):
    return run_child("import torch\n" + textwrap.dedent(code)).split("\n")[:-1]


@unittest.skipIf(DEVICE_TYPE == "cuda", "as CUDA, the queue is that of torch.cuda; see below")
class TestQueuedCalls(OpenRegTestCase):
    def test_call_runs_at_once_if_the_module_is_initialized(self):
        torch.openreg.init()
        calls = []
        torch.openreg._lazy_call(lambda: calls.append(1))
        self.assertEqual(calls, [1])

    def test_error_of_a_call_that_runs_at_once_is_its_own(self):
        torch.openreg.init()
        with self.assertRaises(ZeroDivisionError):
            torch.openreg._lazy_call(lambda: 1 // 0)

    def test_calls_wait_for_the_initialization_and_run_once_in_order(self):
        lines = run(
            """
            for number in range(3):
                torch.openreg._lazy_call(lambda number=number: print("call", number))
            print(torch.openreg.is_initialized())
            torch.ones(1, device="openreg")
            print(torch.openreg.is_initialized())
            torch.openreg.init()
            """
        )
        self.assertEqual(lines, ["False", "call 0", "call 1", "call 2", "True"])

    def test_queued_calls_run_before_anything_else_on_the_device(self):
        lines = run(
            """
            def call():
                print(torch.openreg.memory_allocated())
                torch.openreg.manual_seed(7)

            torch.openreg._lazy_call(call)
            x = torch.rand(3, device="openreg")
            print(torch.equal(x.cpu(), torch.rand(3, generator=torch.Generator().manual_seed(7))))
            """
        )
        self.assertEqual(lines, ["0", "True"])

    def test_queued_call_may_use_the_device_and_queue_another(self):
        lines = run(
            """
            def call():
                print(torch.ones(2, device="openreg").sum().item())
                torch.openreg.init()
                torch.openreg._lazy_call(lambda: print("inner"))

            torch.openreg._lazy_call(call)
            torch.openreg._lazy_call(lambda: print("second"))
            torch.openreg.init()
            """
        )
        # The device is in use when the inner one is queued, so it runs at once.
        self.assertEqual(lines, ["2.0", "inner", "second"])

    def test_error_names_the_call_and_the_line_that_queued_it(self):
        lines = run(
            """
            def configure():
                torch.openreg._lazy_call(lambda: 1 // 0)

            configure()
            for _ in range(2):  # it is tried again, and those behind it wait
                try:
                    torch.openreg.init()
                except torch.openreg.DeferredOpenRegCallError as error:
                    print(isinstance(error.__cause__, ZeroDivisionError))
                    print("division or modulo by zero" in str(error), "in configure" in str(error))
                    print("initialization.py" in str(error))
            """
        )
        self.assertEqual(lines, ["True", "True True", "False"] * 2)

    def test_calls_behind_one_that_fails_run_when_it_succeeds(self):
        lines = run(
            """
            attempts = []

            def call():
                attempts.append(1)
                if len(attempts) == 1:
                    raise ValueError("not yet")

            torch.openreg._lazy_call(lambda: print("first"))
            torch.openreg._lazy_call(call)
            torch.openreg._lazy_call(lambda: print("last"))
            try:
                torch.openreg.init()
            except torch.openreg.DeferredOpenRegCallError:
                print("failed")
            torch.openreg.init()
            print(len(attempts))
            """
        )
        self.assertEqual(lines, ["first", "failed", "last", "2"])

    def test_threads_that_initialize_run_the_queue_once(self):
        lines = run(
            """
            import threading

            calls = []
            for _ in range(20):
                torch.openreg._lazy_call(lambda: calls.append(torch.openreg.current_device()))
            barrier = threading.Barrier(4)

            def use():
                barrier.wait()
                torch.openreg.init()
                assert len(calls) == 20

            threads = [threading.Thread(target=use) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            print(len(calls))
            """
        )
        self.assertEqual(lines, ["20"])

    def test_child_of_a_fork_runs_what_was_queued_before(self):
        lines = run(
            """
            import os

            torch.openreg._lazy_call(lambda: print("called", flush=True))
            pid = os.fork()
            if pid == 0:
                torch.openreg.init()
                os._exit(0)
            os.waitpid(pid, 0)
            print(torch.openreg.is_initialized())
            """
        )
        self.assertEqual(lines, ["called", "False"])

    def test_call_waits_in_a_child_that_cannot_use_devices(self):
        lines = run(
            f"""
            import os

            torch.openreg.init()
            pid = os.fork()
            if pid == 0:
                torch.openreg._lazy_call(lambda: print("called"))
                try:
                    torch.openreg.init()
                except RuntimeError as error:
                    print({FORK_TEXT!r} in str(error), flush=True)
                os._exit(0)
            os.waitpid(pid, 0)
            """
        )
        self.assertEqual(lines, ["True"])

    def test_keywords_of_torch_cuda_are_accepted(self):
        calls = []
        torch.openreg.init()
        torch.openreg._lazy_call(lambda: calls.append(1), seed=True)
        torch.openreg._lazy_call(lambda: calls.append(2), seed_all=True)
        self.assertEqual(calls, [1, 2])
        with self.assertRaisesRegex(TypeError, "_lazy_call: expected a function, got 5"):
            torch.openreg._lazy_call(5)
        with self.assertRaisesRegex(TypeError, "expected seed or seed_all as keywords, got sead"):
            torch.openreg._lazy_call(lambda: None, sead=True)


@unittest.skipUnless(DEVICE_TYPE == "cuda", "about torch.cuda's queue")
class TestQueueOfCuda(OpenRegTestCase):
    def test_call_is_queued_for_the_initialization_of_torch_cuda(self):
        lines = run(
            """
            torch.openreg._lazy_call(lambda: print("called"))
            torch.cuda._lazy_call(lambda: print("called by torch.cuda"))
            print(torch.cuda.is_initialized())
            torch.ones(1, device="cuda")
            torch.openreg._lazy_call(lambda: print("called at once"))
            """
        )
        self.assertEqual(lines, ["False", "called", "called by torch.cuda", "called at once"])


if __name__ == "__main__":
    run_tests()
