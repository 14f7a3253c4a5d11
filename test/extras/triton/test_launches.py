"""Launches of Triton's kernels, with a kernel that was written by hand."""

import functools
import subprocess
import tempfile
import unittest
from pathlib import Path

import torch
from common import DEVICE_TYPE, OpenRegTestCase, StreamGate, run_program, run_tests
from torch.testing._internal.common_utils import instantiate_parametrized_tests, parametrize

import torch_openreg
from torch_openreg import _C, extras

SOURCE = Path(__file__).with_name("scaling_kernel.cpp")
INCLUDE = Path(torch_openreg.__file__).parent / "include"

NAMES = ["x_ptr", "y_ptr", "n", "factor", "mode"]
LOCATIONS = [("n is odd", "scale.py:7, called at scale.py:12"), ("", "scale.py:8")]
# Statuses of torch_openreg/triton/kernel.h.
READ, WRITE, ATOMIC, MISALIGNED, ASSERT, INDEX, WAIT, OUT_OF_MEMORY = range(1, 9)


@functools.cache
def library():
    folder = tempfile.mkdtemp(prefix="openreg-triton-test-")
    path = Path(folder) / "scaling.so"
    command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", f"-I{INCLUDE}", str(SOURCE)]
    subprocess.run([*command, "-o", str(path)], check=True)
    return str(path)


@functools.cache
def kernel(kinds="rwifi", name="scaling_kernel"):
    return _C._triton_kernel(name, library(), kinds, NAMES, LOCATIONS)


def current_stream():
    return _C._triton_current_stream()(torch.openreg.current_device())


def scale(x, y, n=None, factor=2.0, mode=0, grid=None, launch=None, hooks=(None, None)):
    """Launches as Triton does."""
    n = y.numel() if n is None else n
    grid = (-(-n // 4), 1, 1) if grid is None else grid
    launch = launch or kernel()
    launch(*grid, current_stream(), 0, (4, 1, 16), "metadata", *hooks, x, y, n, factor, mode)


@unittest.skipUnless(extras.has("triton"), "the build has no Triton")
class TritonLaunchTestCase(OpenRegTestCase):
    def setUp(self):
        super().setUp()
        self.host = torch.arange(10.0)
        self.x = self.host.to(DEVICE_TYPE)
        self.y = torch.zeros_like(self.x)
        torch.openreg.synchronize()


class TestLaunches(TritonLaunchTestCase):
    def test_launch_returns_before_the_kernel_has_run(self):
        with StreamGate() as gate:
            scale(self.x, self.y)
            self.assertFalse(torch.openreg.current_stream().query())
            gate.open()
        self.assertEqual(self.y.cpu(), self.host * 2)

    def test_kernel_runs_on_the_current_stream(self):
        side = torch.openreg.Stream()
        with StreamGate(), torch.openreg.stream(side):
            scale(self.x, self.y)
            side.synchronize()  # the gate holds the default stream alone
        self.assertEqual(self.y.cpu(), self.host * 2)

    def test_kernel_runs_on_the_stream_whose_number_is_given(self):
        side = torch.openreg.Stream()
        with StreamGate():
            kernel()(
                *(3, 1, 1, side.native_handle, 0, None, None, None, None),
                *(self.x, self.y, 10, 2.0, 0),
            )
            side.synchronize()
        self.assertEqual(self.y.cpu(), self.host * 2)

    def test_event_orders_kernels_of_two_streams(self):
        side, event = torch.openreg.Stream(), torch.openreg.Event()
        with StreamGate() as gate:
            scale(self.x, self.y)
            event.record()
            side.wait_event(event)
            with torch.openreg.stream(side):
                z = torch.zeros_like(self.y)
                scale(self.y, z)
            gate.open()
        side.synchronize()
        self.assertEqual(z.cpu(), self.host * 4)

    def test_capture_and_replay(self):
        graph = torch.openreg.Graph()
        with torch.openreg.graph(graph):
            scale(self.x, self.y)
        for factor in (1, 3):
            self.x.copy_(self.host * factor)
            graph.replay()
            self.assertEqual(self.y.cpu(), self.host * factor * 2)

    def test_memory_that_is_freed_behind_a_launch_is_reused_in_order(self):
        with StreamGate() as gate:
            y = torch.zeros_like(self.x)
            scale(self.x, y)
            result = y + 1
            del y
            torch.zeros_like(self.x).fill_(-1)
            gate.open()
        self.assertEqual(result.cpu(), self.host * 2 + 1)

    def test_second_device(self):
        with torch.openreg.device(1):
            x = self.host.to(f"{DEVICE_TYPE}:1")
            y = torch.zeros_like(x)
            scale(x, y)
            self.assertEqual(y.cpu(), self.host * 2)

    def test_view_begins_where_its_elements_do(self):
        scale(self.x[4:], self.y[4:])
        self.assertEqual(self.y.cpu(), torch.cat([torch.zeros(4), self.host[4:] * 2]))

    @parametrize("grid", [(0, 1, 1), (3, 0, 1), (3, 1, 0), (-1, 1, 1)])
    def test_grid_without_programs_runs_nothing(self, grid):
        scale(self.x, self.y, grid=grid)
        self.assertEqual(self.y.cpu(), torch.zeros(10))

    def test_grid_beyond_the_limits_is_refused(self):
        with self.assertRaisesRegex(RuntimeError, r"^Triton Error \[CUDA\]: invalid argument\n"):
            scale(self.x, self.y, grid=(2**31, 1, 1))
        if DEVICE_TYPE == "cuda":
            with self.assertRaisesRegex(RuntimeError, "65536 programs in direction 1"):
                scale(self.x, self.y, grid=(1, 65536, 1))

    def test_hooks_are_called_around_the_launch(self):
        calls = []
        enter, leave = (
            functools.partial(lambda *call: calls.append(call), name) for name in ("in", "out")
        )
        scale(self.x, self.y, hooks=(enter, leave))
        self.assertEqual(calls, [("in", "metadata"), ("out", "metadata")])

    def test_exception_of_a_hook_keeps_the_kernel_from_running(self):
        def fail(metadata):
            raise KeyError(metadata)

        with self.assertRaises(KeyError):
            scale(self.x, self.y, hooks=(fail, None))
        self.assertEqual(self.y.cpu(), torch.zeros(10))

    def test_profiler_has_the_kernel_by_its_name(self):
        with torch.profiler.profile() as profile:
            scale(self.x, self.y)
            torch.openreg.synchronize()
        names = [event.name for event in profile.events() if event.device_index == 0]
        self.assertIn("scaling_kernel", names)

    def test_constants_are_no_arguments_of_the_kernel(self):
        launch = kernel("rwcifci")
        launch(
            *(3, 1, 1, current_stream(), 0, None, None, None, None),
            *(self.x, self.y, "constant", 10, 2.0, None, 0),
        )
        self.assertEqual(self.y.cpu(), self.host * 2)


class TestArguments(TritonLaunchTestCase):
    def test_tensor_of_the_host_is_refused(self):
        with self.assertRaises(ValueError) as raised:
            scale(self.host, self.y)
        self.assertEqual(
            str(raised.exception),
            "Pointer argument cannot be accessed from Triton (cpu tensor?)\nArgument 'x_ptr' of "
            f"scaling_kernel is on cpu, and the kernel runs on {DEVICE_TYPE}:0",
        )

    def test_tensor_of_another_device_is_refused(self):
        other = self.host.to(f"{DEVICE_TYPE}:1")
        with self.assertRaisesRegex(
            ValueError,
            rf"^Pointer argument cannot be accessed from Triton \(a tensor of another device\?\)\n"
            rf"Argument 'x_ptr' of scaling_kernel is on {DEVICE_TYPE}:1",
        ):
            scale(other, self.y)

    def test_pinned_tensor_is_accessible(self):
        pinned = self.host.pin_memory()
        scale(pinned, self.y)
        self.assertEqual(self.y.cpu(), self.host * 2)

    def test_address_is_accessible_if_it_is_allocated(self):
        scale(self.x.data_ptr(), self.y)
        self.assertEqual(self.y.cpu(), self.host * 2)
        with self.assertRaisesRegex(ValueError, "is on another device or the host"):
            scale(self.host.data_ptr(), self.y)

    def test_none_is_no_memory(self):
        scale(None, self.y)
        with self.assertRaisesRegex(torch.AcceleratorError, "reads 4 bytes outside of the memory"):
            torch.openreg.synchronize()

    def test_object_that_has_an_address(self):
        class Reinterpreted:
            base = self.x

            def data_ptr(self):
                return self.base.data_ptr() + 8

        scale(Reinterpreted(), self.y, n=8)
        self.assertEqual(self.y[:8].cpu(), self.host[2:] * 2)

    def test_other_objects_are_refused(self):
        with self.assertRaisesRegex(
            TypeError, "^Pointer argument must be either uint64 or have data_ptr method"
        ):
            scale("text", self.y)

    def test_wrong_number_of_arguments_is_refused(self):
        with self.assertRaisesRegex(TypeError, "scaling_kernel: expected 5 arguments, got 1"):
            kernel()(*(1, 1, 1, current_stream(), 0, None, None, None, None), self.x)

    def test_integer_that_is_too_large_is_refused(self):
        with self.assertRaises(OverflowError):
            scale(self.x, self.y, mode=2**64)


class TestErrors(TritonLaunchTestCase):
    def failure(self):
        with self.assertRaises(torch.AcceleratorError) as raised:
            torch.openreg.synchronize()
        return raised.exception

    def test_illegal_read_is_reported_by_synchronize(self):
        scale(self.x, torch.zeros(16, device=DEVICE_TYPE), n=16)
        error = self.failure()
        self.assertEqual(error.error_code, 700)
        address = self.x.data_ptr() + 40
        self.assertIn(
            "kernel 'scaling_kernel' on stream 0 of device 0 failed: program (2, 0, 0) of "
            "scaling_kernel reads 4 bytes 0 bytes behind the end of argument 'x_ptr' (40 bytes), "
            f"at scale.py:8, address {address:#x}\n",
            str(error),
        )

    def test_view_may_be_left_and_its_storage_may_not(self):
        wide = torch.ones(16, device=DEVICE_TYPE)
        y = torch.zeros(16, device=DEVICE_TYPE)
        scale(wide[:4], y)
        torch.openreg.synchronize()
        self.assertEqual(y.cpu(), torch.full((16,), 2.0))

    def test_address_before_an_argument(self):
        x = torch.ones(1, device=DEVICE_TYPE).set_(self.x.untyped_storage()[8:], 0, (2,))
        launch = kernel()

        class Before:
            base = x

            def data_ptr(self):
                return self.base.untyped_storage().data_ptr() - 12

        scale(Before(), self.y, launch=launch)
        self.assertIn("12 bytes before the begin of argument 'x_ptr'", str(self.failure()))

    @parametrize(
        "mode,code,text",
        [
            (WRITE, 700, "writes 4 bytes 8 bytes behind the end of argument"),
            (ATOMIC, 700, "updates 4 bytes 8 bytes behind the end of argument"),
            (MISALIGNED, 719, "updates 4 bytes at an address that is not a multiple of"),
            (ASSERT, 710, "device-side assert triggered: n is odd"),
            (INDEX, 700, "gathers element [0-9]+ of a dimension of size 4"),
            (WAIT, 719, "has waited for 60 s in a loop"),
            (OUT_OF_MEMORY, 2, "the host has no memory for the tiles of a program, 4 bytes"),
        ],
    )
    def test_status(self, mode, code, text):
        scale(self.x, self.y, mode=mode)
        with self.assertRaisesRegex((torch.AcceleratorError, RuntimeError), text) as raised:
            torch.openreg.synchronize()
        self.assertIn(", at scale.py:7, called at scale.py:12", str(raised.exception))
        if isinstance(raised.exception, torch.AcceleratorError):
            self.assertEqual(raised.exception.error_code, code)

    def test_later_work_of_the_stream_is_left_out_and_the_device_lives(self):
        with StreamGate() as gate:
            scale(self.x, self.y, mode=WRITE)
            self.y.fill_(7)
            gate.open()
        self.failure()
        self.assertEqual(self.y[4:].cpu(), torch.zeros(6))
        scale(self.x, self.y)
        self.assertEqual(self.y.cpu(), self.host * 2)

    def test_check_can_be_turned_off(self):
        program = """
            import sys
            sys.path.insert(0, {folder!r})
            import torch
            from extras.triton.test_launches import DEVICE_TYPE, scale

            x = torch.ones(8, device=DEVICE_TYPE)
            y = torch.zeros(12, device=DEVICE_TYPE)
            scale(x, y)
            torch.openreg.synchronize()
            print("ran")
        """.replace("{folder!r}", repr(str(Path(__file__).parents[2])))
        self.assertEqual(run_program(program, {"OPENREG_TRITON_CHECK": "0"}).stdout, "ran\n")

    def test_library_without_a_kernel_is_refused(self):
        with self.assertRaisesRegex(RuntimeError, "expected a library that exports openreg_triton"):
            _C._triton_kernel("none", torch_openreg._C.__file__, "", [], [])
        with self.assertRaisesRegex(RuntimeError, "cannot be loaded"):
            _C._triton_kernel("none", "/no/such/file.so", "", [], [])
        with self.assertRaisesRegex(RuntimeError, "expected parameters of the kinds .* got 'x'"):
            _C._triton_kernel("none", library(), "x", ["x"], [])
        with self.assertRaisesRegex(RuntimeError, "expected a name for each of 1 parameters"):
            _C._triton_kernel("none", library(), "r", [], [])


class TestSanitizer(TritonLaunchTestCase):
    def tearDown(self):
        torch.openreg.sanitizer.clear()
        super().tearDown()

    def races(self, program):
        with torch.openreg.sanitizer.check("collect"):
            program()
            torch.openreg.synchronize()
        return [one for one in torch.openreg.sanitizer.findings() if "scaling_kernel" in str(one)]

    def launch_on_two_streams(self, first, second, wait):
        side = torch.openreg.Stream()
        side.wait_stream(torch.openreg.current_stream())
        scale(*first)
        if wait:
            side.wait_stream(torch.openreg.current_stream())
        with torch.openreg.stream(side):
            scale(*second)

    def test_write_beside_a_read_is_found(self):
        pair = (self.x, self.y), (self.y, torch.zeros_like(self.y))
        self.assertNotEqual(self.races(lambda: self.launch_on_two_streams(*pair, wait=False)), [])

    def test_ordered_launches_are_no_race(self):
        pair = (self.x, self.y), (self.y, torch.zeros_like(self.y))
        self.assertEqual(self.races(lambda: self.launch_on_two_streams(*pair, wait=True)), [])

    def test_two_reads_are_no_race(self):
        other = torch.zeros_like(self.y)
        pair = (self.x, self.y), (self.x, other)
        self.assertEqual(self.races(lambda: self.launch_on_two_streams(*pair, wait=False)), [])


instantiate_parametrized_tests(TestLaunches)
instantiate_parametrized_tests(TestErrors)

if __name__ == "__main__":
    run_tests()
