"""Interrupts: Ctrl-C ends the main thread's wait for the device, and the work continues."""

import pytest
from common import DEVICE_TYPE, OpenRegTestCase, run_program, run_tests

pytestmark = pytest.mark.sample(0.27)

# The signal arrives while the main thread waits for the gate. On a machine so slow that it comes
# before, the program ends in the same way. A shell lets its background jobs ignore SIGINT, and the
# programs would inherit that: hence Python's own handler.
SENDER = """
import os, signal, threading
import torch
from torch_openreg.testing import StreamGate

signal.signal(signal.SIGINT, signal.default_int_handler)

def send(number):
    threading.Timer(0.3, os.kill, (os.getpid(), number)).start()
"""


class TestInterrupt(OpenRegTestCase):
    def test_every_wait_of_the_main_thread_ends_with_keyboard_interrupt(self):
        waits = {
            "stream": "torch.openreg.current_stream().synchronize()",
            "event": "event.synchronize()",
            "device": "torch.openreg.synchronize()",
            "accelerator": "torch.accelerator.synchronize()",
            "item": "x[0].item()",
            "cpu": "x.cpu()",
            "from_cpu": "x.copy_(torch.zeros(4))",
            "equal": "torch.equal(x, x)",
            "fallback": "x.nonzero()",
            "repr": "repr(x)",
        }
        if DEVICE_TYPE == "cuda":
            waits["cuda"] = "torch.cuda.synchronize()"
        body = "\n".join(f"    {name!r}: lambda: {wait}," for name, wait in waits.items())
        code = f"""
x = torch.zeros(4, device="openreg")
event = torch.Event(device="openreg")
torch.openreg.synchronize()
waits = {{
{body}
}}
for name, wait in waits.items():
    with StreamGate() as gate:
        x += 1
        event.record()
        send(signal.SIGINT)
        try:
            wait()
        except KeyboardInterrupt:
            print(name)
        assert not torch.openreg.current_stream().query() and not gate.is_open()
torch.openreg.synchronize()
print(x.tolist())
"""
        result = run_program(SENDER + code)
        *names, last = result.stdout.splitlines()
        self.assertEqual((names, result.stderr), (list(waits), ""))
        self.assertEqual(last, str([float(len(waits))] * 4))

    def test_handler_that_returns_does_not_end_the_wait(self):
        code = """
x = torch.zeros(4, device="openreg")
torch.openreg.synchronize()
with StreamGate() as gate:
    x += 1
    handled = []
    def handle(number, frame):
        handled.append(number == signal.SIGUSR1)
        gate.open()
        torch.openreg.synchronize()  # a wait within the wait
    signal.signal(signal.SIGUSR1, handle)
    send(signal.SIGUSR1)
    print(x.tolist(), handled)
"""
        output = run_program(SENDER + code).stdout
        self.assertEqual(output.strip(), "[1.0, 1.0, 1.0, 1.0] [True]")

    def test_exception_of_another_handler_ends_the_wait(self):
        code = """
class TooLate(Exception):
    pass

def handle(number, frame):
    raise TooLate

x = torch.zeros(4, device="openreg")
torch.openreg.synchronize()
signal.signal(signal.SIGALRM, handle)
with StreamGate() as gate:
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        x.sum().item()
    except TooLate:
        print("too late")
"""
        self.assertEqual(run_program(SENDER + code).stdout.strip(), "too late")

    def test_wait_of_another_thread_is_not_ended(self):
        code = """
x = torch.zeros(4, device="openreg")
torch.openreg.synchronize()
results = []
with StreamGate() as gate:
    x += 1
    stream = torch.openreg.current_stream()
    waiter = threading.Thread(target=lambda: results.append(stream.synchronize()))
    waiter.start()
    send(signal.SIGINT)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        print(results)
    gate.open()
    waiter.join()
print(results)
"""
        self.assertEqual(run_program(SENDER + code).stdout.split(), ["[]", "[None]"])


if __name__ == "__main__":
    run_tests()
