"""Exit: a process ends, quickly and without a crash, whatever the device is doing.

Each ending is tried many times, as the order in which threads and destructors meet differs.
"""

from common import (
    OpenRegTestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_children,
    run_tests,
)

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
        0,
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


class TestExit(OpenRegTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        names = list(ENDINGS) * REPEATS
        children = run_children([(PRELUDE + ENDINGS[name][0], {}) for name in names])
        cls.children = {name: [] for name in ENDINGS}
        for name, child in zip(names, children, strict=True):
            cls.children[name].append(child)

    @parametrize("ending", list(ENDINGS))
    def test_process_ends_with(self, ending):
        _, returncode = ENDINGS[ending]
        self.assertEqual(len(self.children[ending]), REPEATS)
        for child in self.children[ending]:
            self.assertEqual(child.returncode, returncode, child.output)

    @parametrize("ending", [name for name in ENDINGS if ENDINGS[name][1] != 1])
    def test_process_prints_nothing_of_its_own_with(self, ending):
        expected = "6.0\n" if ending == "work_in_atexit" else ""
        for child in self.children[ending]:
            self.assertEqual(child.output, expected)


instantiate_parametrized_tests(TestExit)

if __name__ == "__main__":
    run_tests()
