# Step 1: torch finds the device.
import subprocess
import sys

import torch
from common import MODULE, NAME
from torch.testing._internal.common_utils import TestCase, run_tests


class TestAutoload(TestCase):
    def test_import_of_torch_is_enough(self):
        program = f"import torch; print(torch.ones(2, device='{NAME}').sum().item())"
        run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        self.assertEqual(run.stdout, "2.0\n", run.stderr)

    def test_device_and_module_have_the_name(self):
        self.assertEqual(torch.accelerator.current_accelerator(), torch.device(NAME))
        self.assertIs(getattr(torch, NAME), MODULE)

    def test_tensors_and_modules_have_a_method_of_that_name(self):
        self.assertTrue(getattr(torch.ones(1), f"is_{NAME}") is False)
        self.assertEqual(getattr(torch.ones(1), NAME)().device, torch.device(NAME, 0))
        self.assertEqual(getattr(torch.nn.Linear(1, 1), NAME)().weight.device.type, NAME)

    def test_process_with_pending_work_ends(self):
        program = (
            f"import torch; x = torch.zeros(1000, device='{NAME}')\n"
            "s = torch.Stream(x.device)\n"
            "with s:\n"
            "    y = [x + x for _ in range(2000)]\n"
            "x.record_stream(s)\n"
        )
        run = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=600)
        self.assertEqual((run.returncode, run.stderr), (0, b""))

    def test_process_ends_while_an_autograd_thread_has_a_python_object(self):
        program = _HELD_AT_THE_END.format(device=NAME)
        for _ in range(3):  # one that ends wrongly may end in time
            run = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=600)
            self.assertEqual((run.returncode, run.stderr), (0, b""))


# ``backward`` passes the context on to the autograd thread, which is at times the last to drop it,
# and then has it until the end.
_HELD_AT_THE_END = """
import atexit, contextvars, threading, torch

dropped, ending, threads = threading.Event(), threading.Event(), set()
atexit.register(ending.set)

class Held:
    def __del__(self):
        threads.add(threading.current_thread())
        dropped.set()
        if threading.current_thread() is not threading.main_thread():
            ending.wait()

variable = contextvars.ContextVar("variable")
x = torch.ones(2, device="{device}", requires_grad=True)

def step():
    variable.set(Held())
    x.sum().backward()

while threads <= {{threading.main_thread()}}:
    dropped.clear()
    contextvars.copy_context().run(step)
    dropped.wait()
"""


if __name__ == "__main__":
    run_tests()
