"""Errors: the exception, its text, the call that raises it, and work after it."""

import contextlib
import ctypes
import math
import re
import unittest
from pathlib import Path

import torch
import torch.nn.functional as F
from common import (
    DEVICE_TYPE,
    ERROR_PREFIX,
    FORK_TEXT,
    OpenRegTestCase,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_child,
    run_tests,
    subtest,
)

from torch_openreg import _C
from torch_openreg.cpp_extension import library_paths


def out_of_range():
    """An index beyond the four elements that it is used on."""
    return torch.tensor([9], device=DEVICE_TYPE)


def index_out_of_range():
    return torch.ones(4, device=DEVICE_TYPE)[out_of_range()]


def gather_out_of_range():
    return torch.ones(4, device=DEVICE_TYPE).gather(0, out_of_range())


def nll_loss_out_of_range():
    return torch.nn.functional.nll_loss(torch.ones(1, 4, device=DEVICE_TYPE), out_of_range())


# Kernels that fail because of data, which the host does not check.
FAILURES = parametrize(
    "fail,kernel",
    [
        subtest((index_out_of_range, "'openreg_kernel<aten::index.Tensor>'"), name="index"),
        subtest((gather_out_of_range, "'openreg_kernel<aten::gather>'"), name="gather"),
        subtest(
            (nll_loss_out_of_range, "'openreg_kernel<aten::nll_loss_forward>'"), name="nll_loss"
        ),
    ],
)
KERNEL_ERRORS = (IndexError, RuntimeError)
# The setting that makes launches wait, as texts name it.
LAUNCH_BLOCKING = {"openreg": "OPENREG_LAUNCH_BLOCKING", "cuda": "CUDA_LAUNCH_BLOCKING"}[
    DEVICE_TYPE
]


def raised_by(error):
    """The function that an error's text names."""
    return re.search(r"\nRaised by (.*)\.$", str(error), re.MULTILINE)[1]


class TestKernelFailure(OpenRegTestCase):
    @FAILURES
    def test_failure_comes_out_of_synchronize_with_the_kernels_name(self, fail, kernel):
        fail()
        with self.assertRaisesRegex(KERNEL_ERRORS, kernel):
            torch.openreg.synchronize()

    @FAILURES
    def test_failure_comes_out_once(self, fail, kernel):
        fail()
        with self.assertRaises(KERNEL_ERRORS):
            torch.openreg.synchronize()
        torch.openreg.synchronize()

    @FAILURES
    def test_device_works_after_a_failure(self, fail, kernel):
        fail()
        with self.assertRaises(KERNEL_ERRORS):
            torch.openreg.synchronize()
        self.assertEqual((torch.ones(3, device=DEVICE_TYPE) + 1).tolist(), [2.0] * 3)

    @FAILURES
    def test_failure_comes_out_of_a_copy_to_the_host(self, fail, kernel):
        with self.assertRaisesRegex(KERNEL_ERRORS, kernel):
            fail().cpu()

    @FAILURES
    def test_failure_comes_out_of_item(self, fail, kernel):
        with self.assertRaisesRegex(KERNEL_ERRORS, kernel):
            fail().sum().item()

    @FAILURES
    def test_failure_comes_out_of_stream_synchronize(self, fail, kernel):
        with torch.openreg.Stream() as stream:
            fail()
            with self.assertRaisesRegex(KERNEL_ERRORS, kernel):
                stream.synchronize()

    @FAILURES
    def test_failure_comes_out_of_event_synchronize(self, fail, kernel):
        with torch.openreg.Stream() as stream:
            fail()
            event = stream.record_event()
            with self.assertRaisesRegex(KERNEL_ERRORS, kernel):
                event.synchronize()
        with self.assertRaises(KERNEL_ERRORS):
            torch.openreg.synchronize()

    @FAILURES
    def test_failure_comes_out_of_accelerator_synchronize(self, fail, kernel):
        fail()
        with self.assertRaisesRegex(KERNEL_ERRORS, kernel):
            torch.accelerator.synchronize()

    @FAILURES
    def test_failure_reaches_a_stream_that_waits(self, fail, kernel):
        waiting = torch.openreg.Stream()
        with torch.openreg.Stream() as stream:
            fail()
            waiting.wait_stream(stream)
        with self.assertRaisesRegex(KERNEL_ERRORS, kernel):
            waiting.synchronize()
        with self.assertRaises(KERNEL_ERRORS):
            stream.synchronize()

    @parametrize(
        "wait,name",
        [
            subtest(
                (lambda: torch.openreg.synchronize(), f"torch.{DEVICE_TYPE}.synchronize"),
                name=DEVICE_TYPE,
            ),
            subtest(
                (lambda: torch.accelerator.synchronize(), "torch.accelerator.synchronize"),
                name="accelerator",
            ),
            subtest(
                (lambda: torch.openreg.current_stream().synchronize(), "torch.Stream.synchronize"),
                name="stream",
            ),
            subtest(
                (
                    lambda: torch.openreg.current_stream().record_event().synchronize(),
                    "torch.Event.synchronize",
                ),
                name="event",
            ),
            subtest((lambda: torch.ones(1, device=DEVICE_TYPE).cpu(), "aten::copy_"), name="copy"),
            subtest(
                (lambda: torch.ones(1, device=DEVICE_TYPE).item(), "aten::_local_scalar_dense"),
                name="item",
            ),
        ],
    )
    def test_text_names_what_was_called_and_no_source(self, wait, name):
        index_out_of_range()
        with self.assertRaises(KERNEL_ERRORS) as caught:
            wait()
        self.assertEqual(raised_by(caught.exception), name)
        with contextlib.suppress(*KERNEL_ERRORS):  # an event leaves the stream's failure
            torch.openreg.synchronize()

    @parametrize("ask", ["stream", "event"])
    def test_text_names_the_query_that_saw_the_failure(self, ask):
        with torch.openreg.Stream() as stream:
            index_out_of_range()
            event = stream.record_event()
            asked = {"stream": stream, "event": event}[ask]
            with self.assertRaises(KERNEL_ERRORS) as caught:
                while not asked.query():
                    pass
        self.assertEqual(raised_by(caught.exception), f"torch.{ask.capitalize()}.query")
        with contextlib.suppress(*KERNEL_ERRORS):
            torch.openreg.synchronize()

    def test_failure_of_an_index_is_an_index_error_or_cudas_assert(self):
        index_out_of_range()
        with self.assertRaises(KERNEL_ERRORS) as caught:
            torch.openreg.synchronize()
        expected = {"openreg": IndexError, "cuda": torch.AcceleratorError}[DEVICE_TYPE]
        self.assertIs(type(caught.exception), expected)

    def test_failure_leaves_other_streams_alone(self):
        with torch.openreg.Stream() as failing:
            index_out_of_range()
        with torch.openreg.Stream() as stream:
            x = torch.ones(3, device=DEVICE_TYPE) + 1
            stream.synchronize()
            self.assertEqual(x.tolist(), [2.0] * 3)
        with self.assertRaises(KERNEL_ERRORS):
            failing.synchronize()

    @requires_two_devices
    def test_failure_leaves_other_devices_alone(self):
        index_out_of_range()
        torch.openreg.synchronize(1)
        self.assertEqual((torch.ones(2, device=f"{DEVICE_TYPE}:1") + 1).tolist(), [2.0] * 2)
        with self.assertRaises(KERNEL_ERRORS):
            torch.openreg.synchronize(0)

    def test_work_after_a_failure_is_dropped_until_the_failure_is_seen(self):
        x = torch.zeros(3, device=DEVICE_TYPE)
        torch.openreg.synchronize()
        index_out_of_range()
        x.fill_(1)
        with self.assertRaises(KERNEL_ERRORS):
            torch.openreg.synchronize()
        self.assertEqual(x.tolist(), [0.0] * 3)

    def test_first_of_several_failures_is_told(self):
        x, index = torch.ones(4, device=DEVICE_TYPE), out_of_range()
        x[index]
        x.gather(0, index)
        with self.assertRaisesRegex(KERNEL_ERRORS, "aten::index.Tensor"):
            torch.openreg.synchronize()
        torch.openreg.synchronize()

    def test_text_says_how_to_find_the_call(self):
        index_out_of_range()
        with self.assertRaisesRegex(KERNEL_ERRORS, f"{LAUNCH_BLOCKING}=1"):
            torch.openreg.synchronize()

    @parametrize("kernel", ["index", "gather", "nll_loss"])
    def test_blocking_mode_raises_at_the_call(self, kernel):
        result = run_child(
            f"""
            import torch
            from core.test_errors import {kernel}_out_of_range as fail
            try:
                fail()
            except (IndexError, RuntimeError) as error:
                print(type(error).__name__, "{kernel}" in str(error))
            torch.openreg.synchronize()
            """,
            {LAUNCH_BLOCKING: "1"},
        )
        # Above it, torch may warn that it finds no GPU; below it is the count of asserts.
        self.assertRegex(result, r"(?m)^(IndexError|RuntimeError|AcceleratorError) True$")


class TestHostErrors(OpenRegTestCase):
    def test_wrong_shapes_raise_at_the_call(self):
        x = torch.ones(2, 3, device=DEVICE_TYPE)
        for operate in (
            lambda: x @ x,
            lambda: x + torch.ones(4, device=DEVICE_TYPE),
            lambda: x.view(7),
            lambda: torch.cat([x, torch.ones(2, device=DEVICE_TYPE)]),
            lambda: torch.nn.functional.linear(x, torch.ones(4, 5, device=DEVICE_TYPE)),
        ):
            with self.assertRaises(RuntimeError):
                operate()

    def test_wrong_type_raises_at_the_call(self):
        with self.assertRaises(RuntimeError):
            torch.ones(2, device=DEVICE_TYPE).to(torch.int64).uniform_()
        with self.assertRaises(RuntimeError):
            torch.nn.functional.embedding(
                torch.ones(2, device=DEVICE_TYPE), torch.ones(4, 3, device=DEVICE_TYPE)
            )

    def test_wrong_dimension_raises_index_error_at_the_call(self):
        with self.assertRaises(IndexError):
            torch.ones(2, device=DEVICE_TYPE).sum(5)

    def test_wrong_strides_of_scales_raise_at_the_call(self):
        left, right = (torch.ones(16, 16, device=DEVICE_TYPE).to(torch.float8_e4m3fn),) * 2
        scales = torch.ones(16, 2, device=DEVICE_TYPE)[:, :1].as_strided((16, 1), (2, 2))
        rows, plain = [F.ScalingType.RowWise], [F.SwizzleType.NO_SWIZZLE]
        with self.assertRaisesRegex(ValueError, r"expected scale_a.stride\(1\) to be 1, but got 2"):
            F.scaled_mm(left, right.t(), [scales], rows, [scales.t()], rows, plain, plain)
        torch.accelerator.synchronize()

    @unittest.skipIf(not hasattr(torch.linalg, "polar"), "new in torch 2.14")
    def test_matrix_without_a_result_raises_at_the_call(self):
        matrix = torch.full((5, 5), math.nan, device=DEVICE_TYPE)
        for function in (torch.linalg.polar, torch.linalg.matrix_sqrth):
            for _ in range(3):
                with self.assertRaisesRegex(torch.linalg.LinAlgError, "failed to converge"):
                    function(matrix)
        torch.accelerator.synchronize()

    def test_failed_runtime_call_is_an_accelerator_error_with_a_code(self):
        handle = _C._create_external_stream(0, 0)
        _C._destroy_external_stream(handle)
        with self.assertRaises(torch.AcceleratorError) as caught:
            _C._destroy_external_stream(handle)
        self.assertEqual(caught.exception.error_code, 400)
        self.assertIn(f"{ERROR_PREFIX}InvalidResourceHandle", str(caught.exception))
        self.assertEqual(raised_by(caught.exception), "orStreamValidate")

    def test_error_table_has_no_number_or_name_twice(self):
        names, numbers, texts = zip(*_C._error_table(), strict=True)
        self.assertEqual(len(set(names)), len(names))
        self.assertEqual(len(set(numbers)), len(numbers))
        self.assertTrue(all(texts))
        self.assertIn(("orErrorMemoryAllocation", 2), list(zip(names, numbers, strict=True)))

    def test_error_classes_are_torchs(self):
        self.assertIs(torch.openreg.OutOfMemoryError, torch.OutOfMemoryError)
        self.assertIs(torch.openreg.AcceleratorError, torch.AcceleratorError)


class Kernel(ctypes.Structure):
    """``orKernel`` of openreg/stream.h."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("run", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)),
        *((name, ctypes.c_void_p) for name in ("move", "destroy", "describe", "owned_bytes")),
    )


def fail_with(code):
    """Launches a kernel that returns an error code, and waits for it."""
    library = ctypes.CDLL(str(Path(library_paths()[0]) / "libopenreg.so"))
    kernel = Kernel(name=b"failing", run=Kernel._fields_[1][1](lambda _: code))
    assert library.orLaunchKernel(ctypes.byref(kernel), None, ctypes.c_size_t(0), None, 0) == 0
    torch.accelerator.synchronize()


class TestErrorCodes(OpenRegTestCase):
    """Each error of the runtime, as Python raises it."""

    def setUp(self):
        super().setUp()
        torch.ones(1, device=DEVICE_TYPE)

    def raised(self):
        for name, code, text in _C._error_table():
            # The others are no failures.
            if name not in ("orSuccess", "orErrorNotReady"):
                with self.subTest(name=name), self.assertRaises(RuntimeError) as caught:
                    fail_with(code)
                yield name, code, text, caught.exception

    def test_first_line_is_that_of_the_device_type(self):
        count = 0
        for name, code, text, error in self.raised():
            count += 1
            line, _, rest = str(error).partition("\n")
            if name == "orErrorForked":
                self.assertEqual(str(error), FORK_TEXT)
                continue
            if DEVICE_TYPE == "cuda":
                self.assertEqual(line, f"CUDA error: {text}")
                self.assertNotRegex(str(error), r"OpenReg|torch\.openreg|\bor(?!LaunchK)[A-Z]")
            else:
                prefix = "The device index is out of range. " * (name == "orErrorInvalidDevice")
                start = f"{prefix}OpenReg error: {text} ({name}, code {code})"
                self.assertEqual(line[: len(start)], start)
            self.assertIn("kernel 'failing' on stream 0 of device 0 failed", str(error))
            self.assertEqual(raised_by(error), "torch.accelerator.synchronize")
            has_search = DEVICE_TYPE == "cuda" and code < 2000 and name != "orErrorInvalidDevice"
            self.assertEqual(f"Search for `cuda{name[2:]}' in https://" in rest, has_search)
        self.assertGreater(count, 20)

    def test_class_is_that_of_the_device_type(self):
        others = {
            "openreg": {
                "orErrorMemoryAllocation": torch.OutOfMemoryError,
                "orErrorForked": RuntimeError,
                "orErrorInvalidDevice": RuntimeError,
            },
            "cuda": {"orErrorForked": RuntimeError},
        }[DEVICE_TYPE]
        for name, code, _, error in self.raised():
            expected = others.get(name, torch.AcceleratorError)
            self.assertIs(type(error), expected, name)
            if expected is torch.AcceleratorError:
                self.assertEqual(error.error_code, code)

    def test_errors_of_kernels_say_that_they_may_be_late(self):
        late = {
            "openreg": {"orErrorLaunchFailure"},
            "cuda": {"orErrorAssert", "orErrorIllegalAddress", "orErrorLaunchFailure"},
        }[DEVICE_TYPE]
        found = {name for name, *_, error in self.raised() if LAUNCH_BLOCKING in str(error)}
        self.assertEqual(found, late)


class TestOutOfMemory(OpenRegTestCase):
    def test_request_beyond_the_capacity_is_refused_with_all_sizes(self):
        _, total = torch.openreg.mem_get_info()
        with self.assertRaises(torch.OutOfMemoryError) as caught:
            torch.empty(total + 1, dtype=torch.uint8, device=DEVICE_TYPE)
        for part in (
            "out of memory",
            "Tried to allocate",
            "GPU 0" if DEVICE_TYPE == "cuda" else "Device 0",
            "total capacity",
            "is free",
            "is allocated by PyTorch",
            "reserved by PyTorch but unallocated",
            "OPENREG_DEVICE_MEMORY",
        ):
            self.assertIn(part, str(caught.exception))

    def test_out_of_memory_is_counted(self):
        before = torch.openreg.memory_stats().get("num_ooms", 0)
        with self.assertRaises(torch.OutOfMemoryError):
            torch.empty(2**50, dtype=torch.uint8, device=DEVICE_TYPE)
        self.assertEqual(torch.openreg.memory_stats()["num_ooms"], before + 1)

    def test_memory_runs_out_at_the_capacity_and_comes_back(self):
        result = run_child(
            """
            import torch
            tensors = []
            try:
                while True:
                    tensors.append(torch.ones(2**20, device="openreg"))
            except torch.OutOfMemoryError as error:
                print(len(tensors), "64.00 MiB" in str(error))
            last = tensors.pop()
            del last
            x = torch.ones(2**20, device="openreg")
            print(float(x.sum()))
            tensors.clear()
            x = None
            print(torch.ones(15 * 2**20, device="openreg").shape)  # needs the cached memory
            """,
            {"OPENREG_DEVICE_MEMORY": "64MiB"},
        )
        count, *rest = result.split()
        self.assertIn(int(count), range(12, 17))
        self.assertEqual(rest[:2], ["True", "1048576.0"])

    @requires_two_devices
    def test_devices_run_out_separately(self):
        run_child(
            """
            import torch
            x = torch.empty(60 * 2**20, dtype=torch.uint8, device="openreg:0")
            y = torch.empty(60 * 2**20, dtype=torch.uint8, device="openreg:1")
            """,
            {"OPENREG_DEVICE_MEMORY": "64MiB"},
        )


def fall_back():
    """Calls an operator without a kernel for the device; the result has as many sizes as data."""
    return torch.bincount(torch.ones(3, dtype=torch.long, device=DEVICE_TYPE))


class TestFallback(OpenRegTestCase):
    def setUp(self):
        super().setUp()
        mode = torch.openreg.get_fallback_mode()
        self.addCleanup(torch.openreg.set_fallback_mode, mode)
        torch.openreg.reset_fallback_stats()

    def test_fallback_is_counted(self):
        torch.openreg.set_fallback_mode("silent")
        fall_back()
        once = torch.openreg.fallback_stats()
        self.assertGreater(once["aten::bincount"], 0)
        fall_back()
        self.assertEqual(
            torch.openreg.fallback_stats(), {name: 2 * count for name, count in once.items()}
        )
        torch.openreg.reset_fallback_stats()
        self.assertEqual(torch.openreg.fallback_stats(), {})

    def test_fallback_can_be_an_error(self):
        torch.openreg.set_fallback_mode("error")
        self.assertEqual(torch.openreg.get_fallback_mode(), "error")
        with self.assertRaises((RuntimeError, NotImplementedError)):
            fall_back()

    def test_fallback_can_warn(self):
        torch.openreg.set_fallback_mode("warn")
        with self.assertWarnsRegex(UserWarning, "bincount"):
            fall_back()

    def test_unknown_mode_is_refused(self):
        with self.assertRaisesRegex((RuntimeError, ValueError), "loud"):
            torch.openreg.set_fallback_mode("loud")


instantiate_parametrized_tests(TestKernelFailure)

if __name__ == "__main__":
    run_tests()
