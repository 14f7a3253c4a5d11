"""Exit: a process ends, quickly and without a crash, whatever the device is doing.

Each ending is tried many times, as the order in which threads and destructors meet differs.
"""

import re

import pytest
from common import (
    DEVICE_TYPE,
    OpenRegTestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_children,
    run_program,
    run_tests,
)

pytestmark = pytest.mark.sample(0.12)

REPEATS = 10

PRELUDE = """
import atexit, os, sys, threading
import torch
from torch_openreg import _C
from torch_openreg.testing import StreamGate

x = torch.ones(128, 128, device="openreg")
"""

# name -> (program, exit code)
ENDINGS = {
    "nothing_pending": ("torch.openreg.synchronize()", 0),
    "pending_work": (
        """
for _ in range(30):
    x = x @ x * 0
""",
        0,
    ),
    "pending_work_on_many_streams_and_devices": (
        """
for device in range(torch.openreg.device_count()):
    y = torch.ones(64, 64, device=f"openreg:{device}")
    for _ in range(8):
        with torch.openreg.Stream(device):
            for _ in range(20):
                y = y @ y * 0
""",
        0,
    ),
    "live_tensors_in_a_cycle": (
        """
class Node:
    pass
node = Node()
node.self, node.tensor = node, [torch.ones(1000, device="openreg") for _ in range(50)]
node.gradient = torch.ones(3, device="openreg", requires_grad=True)
(node.gradient * 2).sum().backward()
""",
        0,
    ),
    "backward_at_the_end": (
        """
y = torch.ones(8, 8, device="openreg", requires_grad=True)
(y @ y).relu().sum().backward()
""",
        0,
    ),
    "python_object_that_an_autograd_thread_holds": (
        """
import contextvars

dropped, ending, threads = threading.Event(), threading.Event(), set()
atexit.register(ending.set)

class Held:
    def __del__(self):  # on the thread that drops the context last
        threads.add(threading.current_thread())
        dropped.set()
        if threading.current_thread() is not threading.main_thread():
            ending.wait()
            sum(1 for _ in range(10**6))  # longer than a thread keeps the interpreter

variable = contextvars.ContextVar("variable")
y = torch.ones(2, device="openreg", requires_grad=True)

def step():
    variable.set(Held())
    y.sum().backward()

while threads <= {threading.main_thread()}:
    dropped.clear()
    contextvars.copy_context().run(step)
    dropped.wait()
""",
        0,
    ),
    "exception_in_flight": (
        """
for _ in range(30):
    x = x @ x * 0
raise KeyError("on purpose")
""",
        1,
    ),
    "closed_gate": (
        """
gate = _C._Gate()
stream = torch.openreg.current_stream()
gate.block(stream.stream_id, stream.device_index, stream.device_type)
for _ in range(5):
    x.fill_(1)
""",
        0,
    ),
    "kernel_failure_nobody_asked_for": (
        """
torch.ones(4, device="openreg")[torch.tensor([9], device="openreg")]
""",
        1,
    ),
    "sys_exit_inside_a_stream_context": (
        """
with torch.openreg.Stream():
    x = x @ x
    sys.exit(3)
""",
        3,
    ),
    "thread_that_outlives_the_main_one": (
        """
def submit():
    threading.main_thread().join()
    y = torch.ones(4, device="openreg")
    for _ in range(1000):
        y.fill_(1)
threading.Thread(target=submit).start()
x.fill_(2)
""",
        0,
    ),
    "work_in_atexit": (
        """
atexit.register(lambda: print((torch.ones(3, device="openreg") + 1).sum().item()))
event = torch.openreg.Event(enable_timing=True)
event.record()
pinned = torch.ones(1000).pin_memory().to("openreg", non_blocking=True)
""",
        0,
    ),
}


FAILING = """
def fail():
    torch.ones(4, device="openreg")[torch.tensor([9], device="openreg")]
"""

# What ends with a kernel's error that no call has raised -> (program, exit code). The code that the
# program has chosen stays, unless it is 0.
LATE_ERRORS = {
    "end_of_the_program": ("fail()", 1),
    "sys_exit": ("fail(); sys.exit()", 1),
    "sys_exit_with_a_code": ("fail(); sys.exit(3)", 3),
    "sys_exit_with_a_text": ("fail(); sys.exit('on purpose')", 1),
    "exception_in_flight": ("fail(); raise KeyError('on purpose')", 1),
    "error_behind_other_work": ("for _ in range(30):\n    x = x @ x * 0\nfail()", 1),
    "error_on_another_device": (
        "with torch.openreg.device(torch.openreg.device_count() - 1):\n    fail()",
        1,
    ),
    "error_on_another_stream": ("with torch.openreg.Stream():\n    fail()", 1),
    "error_in_a_thread": ("threading.Thread(target=fail).start()", 1),
    "error_in_atexit": ("atexit.register(fail)", 1),
    "error_of_a_backward_pass": (
        """
class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        fail()
        return gradient

y = torch.ones(3, device="openreg", requires_grad=True)
Fails.apply(y).sum().backward()
""",
        1,
    ),
    "held_stream": (
        """
fail()
gate = _C._Gate()
with torch.openreg.Stream() as stream:
    gate.block(stream.stream_id, stream.device_index, stream.device_type)
""",
        1,
    ),
}

# Programs with such an error that is not reported -> (program, exit code).
SILENT = {
    "error_that_was_raised": (
        """
try:
    fail()
    torch.openreg.synchronize()
except (IndexError, torch.AcceleratorError):
    pass
""",
        0,
    ),
    "end_without_clean_up": ("fail(); os._exit(0)", 0),
    "forked_child": (
        """
fail()
if os.fork() == 0:
    sys.exit()
_, status = os.wait()
try:
    torch.openreg.synchronize()
except (IndexError, torch.AcceleratorError):
    sys.exit(os.waitstatus_to_exitcode(status))
""",
        0,
    ),
    "capture_under_way": (
        """
stream = torch.openreg.Stream()
with stream:
    graph = torch.openreg.Graph()
    graph.capture_begin()
    x + 1
""",
        0,
    ),
}


class TestLateErrors(OpenRegTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cases = LATE_ERRORS | SILENT
        programs = [(PRELUDE + FAILING + program, {}) for program, _ in cases.values()]
        cls.children = dict(zip(cases, run_children(programs), strict=True))

    @parametrize("ending", list(LATE_ERRORS))
    def test_error_that_no_call_has_raised_is_printed_and_fails_the_process_with(self, ending):
        child = self.children[ending]
        self.assertEqual(child.returncode, LATE_ERRORS[ending][1], child.output)
        self.assertIn("a kernel has failed, and no call has raised its error", child.output)
        self.assertIn(
            {"openreg": "IndexError", "cuda": "AcceleratorError"}[DEVICE_TYPE], child.output
        )
        self.assertEqual(child.output.count("out of"), 1, child.output)

    @parametrize("ending", list(SILENT))
    def test_process_prints_no_error_with(self, ending):
        child = self.children[ending]
        # An assert that was raised is counted; see cuda/test_errors.py.
        output = re.sub(
            r"^torch_openreg: the program met 1 device-side assert.*\n", "", child.output
        )
        self.assertEqual((child.returncode, output), (SILENT[ending][1], ""))

    def test_functions_of_atexit_run_before_and_behind_it(self):
        process = run_program(
            """
            import atexit
            atexit.register(print, "registered first, runs last")
            import torch
            atexit.register(print, "registered last, runs first")
            torch.ones(4, device="openreg")[torch.tensor([9], device="openreg")]
            """,
            expect_success=False,
        )
        self.assertEqual(process.returncode, 1)
        self.assertEqual(
            process.stdout, "registered last, runs first\nregistered first, runs last\n"
        )
        self.assertIn("a kernel has failed", process.stderr)

    def test_process_of_multiprocessing_fails_with_its_error(self):
        process = run_program(
            """
            import torch
            import torch.multiprocessing

            if __name__ == "__main__":
                context = torch.multiprocessing.get_context("spawn")
                process = context.Process(target=exec, args=(
                    "import torch; torch.ones(4, device='openreg')"
                    "[torch.tensor([9], device='openreg')]",))
                process.start()
                process.join()
                print(process.exitcode)
            """
        )
        self.assertEqual(process.stdout, "1\n")
        self.assertIn("a kernel has failed", process.stderr)


class TestExit(OpenRegTestCase):
    @parametrize("ending", list(ENDINGS))
    def test_process_ends_with(self, ending):
        program, returncode = ENDINGS[ending]
        # All at a time: those with work that cannot end wait for seconds, without load.
        children = run_children([(PRELUDE + program, {})] * REPEATS, jobs=REPEATS)
        for child in children:
            self.assertEqual(child.returncode, returncode, child.output)
            if returncode != 1:  # no exception of the program's
                self.assertEqual(child.output, "6.0\n" if ending == "work_in_atexit" else "")


instantiate_parametrized_tests(TestExit)
instantiate_parametrized_tests(TestLateErrors)

if __name__ == "__main__":
    run_tests()
