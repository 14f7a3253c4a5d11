"""Host access: an access of device memory prints a message and ends the process."""

import signal

from common import (
    OpenRegTestCase,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_child,
    run_children,
    run_tests,
    subtest,
)

MAKE = """
import ctypes, sys, torch
x = torch.ones(1000, device="openreg:{device}")
torch.openreg.synchronize({device})
sys.stdout.flush()
address = x.data_ptr() + {offset}
"""
READ = "ctypes.c_char.from_address(address).value"
WRITE = "ctypes.memset(address, 0, 1)"


class TestHostAccess(OpenRegTestCase):
    def crash(self, access, device=0, offset=0, prelude=""):
        code = prelude + MAKE.format(device=device, offset=offset) + access + "\nprint('survived')"
        (child,) = run_children([(code, {"OPENREG_DEVICE_COUNT": "2"})])
        self.assertEqual(child.returncode, -signal.SIGSEGV, child.output)
        self.assertNotIn("survived", child.output)
        return child.output

    @parametrize("access", [subtest(READ, name="read"), subtest(WRITE, name="write")])
    def test_access_ends_the_process_with_a_message(self, access):
        self.assertIn("openreg", self.crash(access).lower())

    @parametrize("device", [0, 1])
    def test_message_names_the_device(self, device):
        self.assertRegex(self.crash(READ, device=device), rf"device {device}\b")

    def test_message_names_allocation_and_offset(self):
        text = self.crash(
            f"print(hex(x.data_ptr()), file=sys.stderr, flush=True)\n{READ}", offset=123
        )
        address = text.split()[0]
        self.assertIn(address, text.split("\n", 1)[1])
        self.assertRegex(text, r"\b123\b")

    def test_numpy_array_over_device_memory_faults(self):
        self.crash(
            "import numpy\n"
            "buffer = (ctypes.c_float * 1000).from_address(address)\n"
            "numpy.frombuffer(buffer, dtype=numpy.float32).sum()"
        )

    def test_earlier_handler_runs_afterwards(self):
        text = self.crash(READ, prelude="import faulthandler; faulthandler.enable()\n")
        self.assertIn("Fatal Python error: Segmentation fault", text)
        self.assertIn("device 0", text)

    def test_other_faults_are_as_before(self):
        code = "import ctypes, torch; torch.ones(1, device='openreg'); ctypes.string_at(8)"
        self.assertEqual(run_children([(code, {})]), [(-signal.SIGSEGV, "")])

    @requires_two_devices
    def test_tensors_of_all_devices_have_different_addresses(self):
        output = run_child(
            """
            import torch
            tensors = [torch.ones(10, device=f"openreg:{i}") for i in range(2) for _ in range(3)]
            print(len({x.data_ptr() for x in tensors}))
            """,
            {"OPENREG_DEVICE_COUNT": "2"},
        )
        self.assertEqual(output.strip(), "6")


instantiate_parametrized_tests(TestHostAccess)

if __name__ == "__main__":
    run_tests()
