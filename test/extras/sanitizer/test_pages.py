"""Host accesses to pinned memory that are found by the protection of pages."""

import io
import os
import threading
import warnings
from pathlib import Path

import pytest
import torch
from common import OpenRegTestCase, run_program, run_tests
from extras.sanitizer.programs import SIZE, device

from torch_openreg import _C
from torch_openreg.extras.sanitizer import sanitizer as checker

pytestmark = pytest.mark.sample(0.18)

_module = getattr(torch, device.type)

_TOO_EARLY = f"""
import os, sys, torch
x = torch.zeros(64, device="{device.type}")
host = x.to("cpu", non_blocking=True)
"""


def _copied():
    """A result on the host that is not waited for."""
    return torch.ones(SIZE, device=device).to("cpu", non_blocking=True)


class TestPages(OpenRegTestCase):
    def setUp(self):
        super().setUp()
        checker.clear()

    def tearDown(self):
        _module.synchronize()
        checker.disable()
        checker.clear()
        super().tearDown()

    def test_finding_tells_what_the_host_did(self):
        with checker.check("collect"):
            host = _copied()
            host.numpy()[3] = 2
            (finding,) = checker.findings()
        later, earlier = finding.accesses
        self.assertEqual((finding.kind, later.operator), ("host", "host code"))
        self.assertTrue(later.is_write and later.is_host and earlier.is_write)
        self.assertEqual(later.offset, 12)
        self.assertEqual(later.thread, threading.get_native_id())
        self.assertEqual(earlier.operator, "aten::copy_")
        self.assertEqual(later.filename, __file__)
        self.assertEqual(later.frame.name, "test_finding_tells_what_the_host_did")
        text = str(finding)
        for part in ("host code writes pinned memory", "host.numpy()[3] = 2", "pinned memory"):
            self.assertIn(part, text)

    def test_host_goes_on_with_the_values_it_would_have_had(self):
        with checker.check("collect"):
            buffer = torch.zeros(SIZE).pin_memory()
            x = buffer.to(device, non_blocking=True)
            buffer.numpy()[:] = 3
            _module.synchronize()
            self.assertEqual(buffer, torch.full((SIZE,), 3.0))
            back = x.to("cpu", non_blocking=True)
            _module.synchronize()
            self.assertTrue(back.is_pinned())
            self.assertEqual(back.tolist(), x.cpu().tolist())
        self.assertEqual(len(checker.findings()), 1)

    def test_copy_has_one_finding(self):
        with checker.check("collect"):
            array = _copied().numpy()
            for _ in range(3):
                array.sum()
        self.assertEqual([one.count for one in checker.findings()], [1])

    def test_operators_are_reported_as_such_and_once(self):
        with checker.check("collect"):
            host = _copied()
            host.add_(1)
            host.numpy().sum()
        (finding,) = checker.findings()
        self.assertEqual(finding.accesses[0].operator, "aten::add_")

    def test_what_was_found_by_its_page_is_not_found_by_its_operator(self):
        with checker.check("collect"):
            host = _copied()
            host.tolist()
            host.sum()
        (finding,) = checker.findings()
        self.assertEqual(finding.accesses[0].operator, "host code")

    def test_reads_of_what_a_copy_reads_are_right(self):
        with checker.check("raise"):
            buffer = torch.ones(SIZE).pin_memory()
            x = buffer.to(device, non_blocking=True)
            self.assertEqual(buffer.numpy().sum(), SIZE)
            self.assertEqual(buffer.tolist(), [1.0] * SIZE)
            self.assertEqual(buffer.sum(), SIZE)
            torch.save(buffer, io.BytesIO())
            self.assertEqual(x.cpu(), buffer)
        self.assertEqual(checker.findings(), [])

    def test_copies_to_two_devices_have_a_finding_each(self):
        if torch.accelerator.device_count() < 2:
            self.skipTest("needs two devices")
        with checker.check("collect"):
            buffer = torch.ones(SIZE).pin_memory()
            x = buffer.to(torch.device(device.type, 0), non_blocking=True)
            y = buffer.to(torch.device(device.type, 1), non_blocking=True)
            buffer.numpy()[0] = 5
            _module.synchronize(x.device)
            _module.synchronize(y.device)
        devices = {one.accesses[1].device.index for one in checker.findings()}
        self.assertEqual(devices, {0, 1})
        self.assertEqual(len({one.accesses[0].frame for one in checker.findings()}), 1)

    def test_other_bytes_of_a_page_are_counted(self):
        with checker.check("collect"):
            buffer = torch.zeros(2, SIZE).pin_memory()
            before = _C._sanitizer_counts()["pages_opened"]
            x = buffer[0].to(device, non_blocking=True)
            array = buffer.numpy()
            array[1] = 1
            self.assertEqual(_C._sanitizer_counts()["pages_opened"], before + 1)
            self.assertEqual(checker.findings(), [])
            self.assertIn(" not watched until the next call", checker.summary())
            x + 1
            array[0] = 1
        self.assertEqual(len(checker.findings()), 1)

    def test_many_copies_are_watched(self):
        with checker.check("collect"):
            buffers = [torch.zeros(SIZE).pin_memory() for _ in range(1000)]
            copies = [one.to(device, non_blocking=True) for one in buffers]
            for one in buffers:
                one.numpy()[1] = 1
            (finding,) = checker.findings()
            self.assertEqual(finding.count, 1000)
            checker.clear()
            copies = [one.to(device, non_blocking=True) for one in buffers]
            _module.synchronize()
            for one in buffers:
                one.numpy()[1] = 2
            self.assertEqual(checker.findings(), [])
            self.assertEqual(_C._sanitizer_counts()["pages_opened"], 0)
        self.assertEqual(len(copies), 1000)

    def test_pages_are_open_afterwards(self):
        read, write = os.pipe()
        try:
            with checker.check("collect"):
                found = _copied()
                found.numpy()[0] = 1
                disabled = _copied()
                # System calls fail on pages that the host may not access.
                self.assertRaises(OSError, os.write, write, disabled.numpy())
            for one in (found, disabled):
                self.assertEqual(os.write(write, one.numpy()), one.nbytes)
                self.assertEqual(len(os.read(read, one.nbytes)), one.nbytes)
        finally:
            os.close(read)
            os.close(write)
        self.assertEqual(len(checker.findings()), 1)

    def test_operators_only(self):
        with checker.check("collect", host="operators"):
            host = _copied()
            host.numpy().sum()
            self.assertEqual(checker.findings(), [])
            self.assertEqual(_C._sanitizer_counts()["copies_not_watched"], 0)
            host.sum()
        self.assertEqual(len(checker.findings()), 1)
        with checker.check("collect", host=False):
            host = _copied()
            host.numpy().sum()
            host.sum()
        self.assertEqual(len(checker.findings()), 1)

    def test_memory_from_before_is_left_to_operators(self):
        torch.accelerator.empty_host_cache()
        buffer = torch.zeros(SIZE).pin_memory()
        with checker.check("collect"):
            x = buffer.to(device, non_blocking=True)
            buffer.numpy()[0] = 1
            self.assertEqual(checker.findings(), [])
            self.assertIn("1 copy of pinned memory of which only", checker.summary())
            buffer.add_(1)
            self.assertEqual(len(checker.findings()), 1)
        self.assertEqual(x.numel(), SIZE)

    def test_blocks_that_were_cached_before_are_not_used(self):
        del [torch.zeros(SIZE).pin_memory() for _ in range(4)][:]
        with checker.check("collect"):
            _copied().numpy().sum()
        self.assertEqual(len(checker.findings()), 1)

    def test_raises_at_the_next_call_into_the_backend(self):
        line = None
        with (
            self.assertRaisesRegex(checker.SanitizerError, "host code reads pinned memory"),
            checker.check(),
        ):
            host = _copied()
            host.tolist()
            line = "after the access"
            _module.synchronize()
            line = "after the call"
        self.assertEqual(line, "after the access")

    def test_raises_at_the_end_of_a_block(self):
        with self.assertRaises(checker.SanitizerError), checker.check():
            _copied().tolist()
        self.assertFalse(checker.is_enabled())

    def test_another_error_of_a_block_is_not_replaced(self):
        with self.assertRaises(KeyError), checker.check():
            _copied().tolist()
            raise KeyError
        self.assertEqual(len(checker.findings()), 1)

    def test_warns_with_the_line_of_the_host(self):
        with checker.check("warn"), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            host = _copied()
            host.tolist()
            _module.synchronize()
        self.assertEqual([one.filename for one in caught], [__file__])

    def test_suppression_by_operator(self):
        with checker.check("raise"), checker.suppress("host", operator="host code"):
            _copied().tolist()
            _module.synchronize()
        self.assertEqual(checker.findings(), [])

    def test_value_of_a_pinned_number_is_read_by_the_host(self):
        with checker.check("collect"):
            x = torch.ones(SIZE, device=device)
            number = x.sum().to("cpu", non_blocking=True)
            x * number
            _module.synchronize()
        self.assertEqual([one.kind for one in checker.findings()], ["host"])

    def test_names_that_are_not_ascii_are_kept(self):
        source = "def lies_früh(array):\n    return array.sum()\n"
        names = {}
        exec(compile(source, "/tmp/früh.py", "exec"), names)
        with checker.check("collect"):
            names["lies_früh"](_copied().numpy())
        later = checker.findings()[0].accesses[0]
        self.assertEqual((later.filename, later.lineno), ("/tmp/früh.py", 2))
        self.assertEqual(later.frame.name, "lies_früh")

    def test_code_that_is_gone_before_the_report_is_named(self):
        names = {}
        exec(compile("def read(array):\n    return array[0] + 1\n", "/tmp/gone.py", "exec"), names)
        with checker.check("collect"):
            names.pop("read")(_copied().numpy())
            later = checker.findings()[0].accesses[0]
        self.assertEqual((later.filename, later.lineno), ("/tmp/gone.py", 2))

    def test_threads_that_copy_and_read_meanwhile(self):
        def work():
            side = _module.Stream()
            with _module.stream(side):
                for step in range(50):
                    x = torch.full((SIZE,), step, dtype=torch.float, device=device)
                    host = x.to("cpu", non_blocking=True)
                    side.record_event().synchronize()
                    self.assertEqual(host.tolist(), [float(step)] * SIZE)

        with checker.check("collect"):
            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(checker.findings(), [])

    def test_files_are_private(self):
        with checker.check("collect"):
            torch.ones(4).pin_memory()
        files = Path("/proc/self/fd").iterdir()
        modes = {
            one.stat().st_mode & 0o777
            for one in files
            if one.is_symlink() and os.readlink(one).startswith("/memfd:openreg")
        }
        self.assertEqual(modes, {0o600})


class TestProcesses(OpenRegTestCase):
    def run_with(self, code, **settings):
        environment = {"OPENREG_SANITIZER": "collect", **settings}
        return run_program(code, environment, expect_success=False)

    def test_forked_child_has_open_pages(self):
        code = (
            _TOO_EARLY
            + """
child = os.fork()
if child == 0:
    assert not torch.get_device_module().sanitizer.is_enabled()
    array = host.numpy()
    array[1] = 7
    os._exit(int(array[0] + array[1]))
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
torch.accelerator.synchronize()
assert host.tolist()[1] == 0
assert torch.accelerator.current_accelerator() is not None
sys.exit(status)
"""
        )
        result = self.run_with(code)
        self.assertEqual((result.returncode, result.stderr), (7, ""))

    def test_operators_of_a_forked_child_are_not_checked(self):
        code = (
            _TOO_EARLY
            + """
child = os.fork()
if child == 0:
    host.sum()
    os._exit(len(torch.openreg.sanitizer.findings()))
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
torch.accelerator.synchronize()
sys.exit(status)
"""
        )
        result = self.run_with(code, OPENREG_SANITIZER_HOST="operators")
        self.assertEqual((result.returncode, result.stderr), (0, ""))

    def test_access_before_the_end_is_reported_at_the_end(self):
        result = self.run_with(_TOO_EARLY + "host.tolist()\n")
        self.assertEqual(result.returncode, 77, result.stderr)
        self.assertIn("1 finding, ", result.stderr)

    def test_setting_leaves_pages_alone(self):
        for value in ("operators", "0"):
            result = self.run_with(_TOO_EARLY + "host.tolist()\n", OPENREG_SANITIZER_HOST=value)
            self.assertEqual(result.returncode, 0, result.stderr)

    def test_faults_of_others_are_reported_as_before(self):
        code = (
            _TOO_EARLY
            + """
import ctypes, faulthandler
faulthandler.enable()
other = x.to("cpu", non_blocking=True)
host.tolist()
other.tolist()
ctypes.memset(4096, 0, 1)
"""
        )
        result = self.run_with(code)
        self.assertLess(result.returncode, 0)
        self.assertEqual(result.stderr.count("Fatal Python error: Segmentation fault"), 1)

    def test_device_memory_is_named_as_before(self):
        result = self.run_with(_TOO_EARLY + "import ctypes\nctypes.memset(x.data_ptr(), 0, 1)\n")
        self.assertLess(result.returncode, 0)
        self.assertIn("the host touched device memory", result.stderr)


if __name__ == "__main__":
    run_tests()
