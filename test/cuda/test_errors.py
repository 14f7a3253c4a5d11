"""Errors of kernels and their texts, as programs for CUDA expect them."""

import re

import pytest
import torch
import torch.nn.functional as F
from common import (
    OpenRegTestCase,
    StreamGate,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_child,
    run_program,
    run_tests,
    subtest,
)

from torch_openreg.conformance.late_errors import LATE_ERRORS, is_late_on_cuda

pytestmark = pytest.mark.sample(0.5)


def _name_of_module(kind):
    return kind.__module__.replace(".", "_")


ASSERT = 710
FIRST_LINE = "CUDA error: device-side assert triggered"


def on(device, *values):
    return torch.tensor(values, device=device)


# Calls whose data a kernel rejects. Those of a reason that begins with "nothing" are no error on
# CUDA; offsets of segment_reduce are checked at the call.
WRONG_DATA = {
    "index": lambda device: torch.ones(4, device=device)[on(device, 9)],
    "index_of_a_matrix": lambda device: torch.ones(4, 4, device=device)[
        on(device, 0), on(device, 9)
    ],
    "index_put": lambda device: torch.ones(4, device=device).index_put_(
        (on(device, 9),), on(device, 1.0)
    ),
    "gather": lambda device: torch.ones(4, device=device).gather(0, on(device, 9)),
    "scatter": lambda device: torch.ones(4, device=device).scatter_(0, on(device, 9), 1.0),
    "take": lambda device: torch.ones(4, device=device).take(on(device, 9)),
    "repeat_interleave": lambda device: torch.ones(2, device=device).repeat_interleave(
        on(device, 2, 3), output_size=4
    ),
    "index_select": lambda device: torch.ones(4, device=device).index_select(0, on(device, 9)),
    "index_add": lambda device: torch.ones(4, device=device).index_add_(
        0, on(device, 9), on(device, 1.0)
    ),
    "embedding": lambda device: F.embedding(on(device, 9), torch.ones(4, 2, device=device)),
    "embedding_bag": lambda device: F.embedding_bag(
        on(device, [9]), torch.ones(4, 2, device=device)
    ),
    "nll_loss": lambda device: F.nll_loss(torch.ones(1, 4, device=device), on(device, 9)),
    "nll_loss2d": lambda device: F.nll_loss(
        torch.ones(1, 4, 1, 1, device=device), on(device, [[9]])
    ),
    "cross_entropy": lambda device: F.cross_entropy(torch.ones(1, 4, device=device), on(device, 9)),
    "multi_margin_loss": lambda device: F.multi_margin_loss(
        torch.ones(1, 4, device=device), on(device, 9)
    ),
    "max_unpool2d": lambda device: F.max_unpool2d(
        torch.ones(1, 1, 1, 1, device=device), on(device, [[[99]]]), 2
    ),
    "lu_unpack": lambda device: torch.lu_unpack(
        torch.eye(2, device=device), torch.tensor([9, 9], dtype=torch.int32, device=device)
    ),
    "binary_cross_entropy": lambda device: F.binary_cross_entropy(on(device, 2.0), on(device, 1.0)),
    "bernoulli": lambda device: torch.bernoulli(on(device, 2.0)),
    "multinomial": lambda device: torch.multinomial(on(device, -1.0, 2.0), 2, replacement=True),
    "normal": lambda device: torch.normal(on(device, 0.0), on(device, -1.0)),
    "assert_async": lambda device: torch._assert_async(on(device, 0)),
    "assert_async_with_a_text": lambda device: torch._assert_async(on(device, False)[0], "not so"),
}

# Calls with an argument that the host rejects.
WRONG_ARGUMENTS = {
    "dimension": (lambda: torch.ones(4, device="cuda").gather(3, on("cuda", 0)), IndexError),
    "sizes": (lambda: torch.geqrf(torch.ones(4, device="cuda")), RuntimeError),
    "sizes_of_a_loss": (
        lambda: F.ctc_loss(torch.ones(2, 1, 3, device="cuda"), on("cuda", [9]), (2, 2), (1,)),
        RuntimeError,
    ),
    "dtype": (lambda: torch.ones(4, device="cuda").take(on("cuda", 0.5)), RuntimeError),
    "value": (lambda: torch.ones(4, device="cuda").kthvalue(9), RuntimeError),
    "singular_matrix": (
        lambda: torch.linalg.inv(torch.zeros(2, 2, device="cuda")),
        torch.linalg.LinAlgError,
    ),
    "probabilities_of_multinomial": (
        lambda: torch.multinomial(on("cuda", -1.0), 1),
        RuntimeError,
    ),
}


def error_on_the_cpu(function):
    try:
        function("cpu")
    except Exception as error:
        return str(error).split("\n")[0]
    raise AssertionError("expected an error")


def call_and_wait(function, device="cuda"):
    function(device)
    torch.cuda.synchronize()


class ErrorTestCase(OpenRegTestCase):
    def assert_begins(self, text, start):
        self.assertEqual(str(text)[: len(start)], start)


class TestDeviceAsserts(ErrorTestCase):
    @parametrize("case", list(WRONG_DATA))
    def test_wrong_data_is_cudas_device_side_assert_in_the_first_call_and_in_later_ones(self, case):
        text = error_on_the_cpu(WRONG_DATA[case])
        for _ in range(3):
            with self.assertRaises(torch.AcceleratorError) as caught:
                call_and_wait(WRONG_DATA[case])
            self.assertEqual(caught.exception.error_code, ASSERT)
            first, second, *_ = str(caught.exception).split("\n")
            self.assertEqual(first, FIRST_LINE)
            self.assert_begins(second, "Search for `cudaErrorAssert' in https://docs.nvidia.com/")
            self.assertIn(
                "For debugging consider passing CUDA_LAUNCH_BLOCKING=1", str(caught.exception)
            )
            self.assertIn(text, str(caught.exception))
            self.assertRegex(
                str(caught.exception), r"\nkernel '.*' on stream 0 of device 0 failed: "
            )

    def test_all_errors_of_data_have_a_case(self):
        texts = [error_on_the_cpu(function) for function in WRONG_DATA.values()]
        without = {"offsets do not decrease"}
        for one in LATE_ERRORS:
            if not one.reason.startswith("nothing") and one.reason not in without:
                found = any(re.search(one.pattern, text, re.IGNORECASE) for text in texts)
                self.assertTrue(found, one.reason)
        unlisted = [text for text in texts if not is_late_on_cuda(text)]
        self.assertEqual(len(unlisted), 2, unlisted)  # those of _assert_async

    @parametrize("case", list(WRONG_ARGUMENTS))
    def test_wrong_arguments_raise_the_hosts_error(self, case):
        call, error = WRONG_ARGUMENTS[case]
        for _ in range(2):
            with self.assertRaises(error) as caught:
                call()
            self.assertIs(type(caught.exception), error)
        torch.cuda.synchronize()

    def test_later_work_and_later_tests_find_a_device_that_works(self):
        with self.assertRaises(torch.AcceleratorError):
            call_and_wait(WRONG_DATA["index"])
        self.assertEqual((torch.ones(3, device="cuda") + 1).tolist(), [2.0] * 3)

    def test_regular_expression_of_cuda_programs_matches(self):
        with self.assertRaisesRegex(RuntimeError, "CUDA error: device-side assert triggered"):
            call_and_wait(WRONG_DATA["gather"])

    def test_dummies_draw_no_numbers(self):
        torch.cuda.manual_seed(0)
        expected = torch.rand(3, device="cuda")
        torch.cuda.manual_seed(0)
        # A call with sizes that no other test uses, so that it is a first one.
        with self.assertRaises(torch.AcceleratorError):
            call_and_wait(lambda device: torch.bernoulli(torch.full((3, 7, 5), 2.0, device=device)))
        torch.cuda.manual_seed(0)
        self.assert_bit_equal(torch.rand(3, device="cuda"), expected)

    def test_compiled_code_asserts_as_well(self):
        output = run_child(
            """
            import torch
            def function(x, index):
                return x[index] + 1
            x, index = torch.ones(4, device="cuda"), torch.tensor([9], device="cuda")
            try:
                torch.compile(function)(x, index)
                torch.cuda.synchronize()
            except torch.AcceleratorError as error:
                print(error.error_code, str(error).split("\\n")[0])
            """
        )
        self.assertIn(f"{ASSERT} {FIRST_LINE}", output)


class TestStickyErrors(OpenRegTestCase):
    """With ``OPENREG_CUDA_STICKY_ERRORS=1`` a device stays unusable, as a GPU does."""

    def lines(self, code):
        return run_child(code, {"OPENREG_CUDA_STICKY_ERRORS": "1"}).splitlines()

    def test_each_later_call_that_needs_the_device_raises_the_error(self):
        *lines, last = self.lines(
            """
            import torch
            x, event = torch.ones(4, device="cuda"), torch.cuda.Event()
            stream = torch.cuda.Stream()
            torch.cuda.synchronize()
            kept = [torch.ones(5, device="cuda") for _ in range(3)]
            calls = {
                "wait": torch.cuda.synchronize,
                "launch": lambda: x + 1,
                "launch on another stream": lambda: torch.cuda.stream(stream).__enter__() or x + 1,
                "copy": x.cpu,
                "copy to the device": lambda: x.copy_(torch.ones(4)),
                "query": lambda: torch.cuda.current_stream().query(),
                "record": event.record,
                "memory": lambda: torch.empty(2**26, device="cuda"),
                "item": lambda: x[0].item(),
            }
            x[torch.tensor([9], device="cuda")]
            for _ in range(2):
                for name, call in calls.items():
                    try:
                        call()
                    except torch.AcceleratorError as error:
                        print(error.error_code, str(error).split("\\n")[0])
                    else:
                        print("no error:", name)
            del kept, x, event
            torch.cuda.empty_cache()
            """
        )
        self.assertEqual(set(lines), {f"{ASSERT} {FIRST_LINE}"})
        self.assertEqual(len(lines), 18)
        self.assertIn("the program met 18 device-side asserts", last)

    @requires_two_devices
    def test_another_device_remains_usable(self):
        lines = self.lines(
            """
            import torch
            y = torch.ones(3, device="cuda:1")
            torch.ones(4, device="cuda")[torch.tensor([9], device="cuda")]
            try:
                torch.cuda.synchronize()
            except torch.AcceleratorError:
                print((y + 1).tolist())
            """
        )
        self.assertEqual(lines[0], "[2.0, 2.0, 2.0]")

    def test_without_it_the_device_works_again(self):
        output = run_child(
            """
            import torch
            x = torch.ones(4, device="cuda")
            x[torch.tensor([9], device="cuda")]
            try:
                torch.cuda.synchronize()
            except torch.AcceleratorError:
                print(x.tolist())
            """,
            {"OPENREG_CUDA_STICKY_ERRORS": "0"},
        )
        self.assertEqual(output.splitlines()[0], "[1.0, 1.0, 1.0, 1.0]")

    def test_another_value_is_refused(self):
        process = run_program(
            "import torch; torch.ones(1, device='cuda')",
            {"OPENREG_CUDA_STICKY_ERRORS": "yes"},
            expect_success=False,
        )
        self.assertIn("OPENREG_CUDA_STICKY_ERRORS is 'yes'; allowed: 0 or 1", process.stderr)


COUNTED = """
import torch
x, index = torch.ones(4, device="cuda"), torch.tensor([9], device="cuda")
for _ in range({count}):
    try:
        x[index].cpu()
    except RuntimeError:
        pass
{end}
"""


class TestCount(OpenRegTestCase):
    """A program that goes on after a device-side assert is told so at its end."""

    @parametrize(
        "count,end,expected",
        [
            subtest((0, "", None), name="none"),
            subtest((1, "", "1 device-side assert:"), name="one"),
            subtest((3, "", "3 device-side asserts:"), name="three"),
            subtest((2, "raise SystemExit(4)", "2 device-side asserts:"), name="other_end"),
            subtest((0, "x[index].cpu()", None), name="one_that_ends_the_program"),
            subtest((1, "x[index].cpu()", "1 device-side assert:"), name="one_before_the_last"),
            subtest((0, "x[index]", None), name="one_that_no_call_raises"),
        ],
    )
    def test_end_of_the_program_says_how_many(self, count, end, expected):
        process = run_program(COUNTED.format(count=count, end=end), expect_success=False)
        lines = [line for line in process.stderr.splitlines() if "the program met" in line]
        if expected is None:
            self.assertEqual(lines, [])
            return
        (line,) = lines
        self.assertEqual(
            line,
            f"torch_openreg: the program met {expected} on a GPU each later call of the process "
            "that needs the device fails",
        )


class TestDevices(OpenRegTestCase):
    @parametrize(
        "call",
        [
            subtest(lambda: torch.zeros(1, device="cuda:99"), name="factory"),
            subtest(lambda: torch.ones(1).to("cuda:99"), name="copy"),
            subtest(lambda: torch.cuda.set_device(99), name="set_device"),
            subtest(lambda: torch.cuda.synchronize(99), name="synchronize"),
            subtest(lambda: torch.cuda.device(99).__enter__(), name="context"),
            subtest(lambda: torch.cuda.Stream(99), name="stream"),
            subtest(lambda: torch.cuda.mem_get_info(99), name="memory"),
        ],
    )
    def test_device_that_does_not_exist_is_cudas_invalid_ordinal(self, call):
        with self.assertRaises(torch.AcceleratorError) as caught:
            call()
        self.assertEqual(caught.exception.error_code, 101)
        first, second, *_ = str(caught.exception).split("\n")
        self.assertEqual(first, "CUDA error: invalid device ordinal")
        self.assertEqual(second, "GPU device may be out of range, do you have enough GPUs?")
        self.assertIn("OPENREG_DEVICE_COUNT", str(caught.exception))

    def test_device_is_not_integrated(self):
        self.assertEqual(torch.cuda.get_device_properties(0).is_integrated, 0)

    def test_list_of_architectures_has_that_of_the_devices(self):
        major, minor = torch.cuda.get_device_capability()
        self.assertEqual(torch.cuda.get_arch_list(), [f"sm_{major}{minor}"])
        gencode = f"compute=compute_{major}{minor},code=sm_{major}{minor}"
        self.assertEqual(torch.cuda.get_gencode_flags(), f"-gencode {gencode}")

    @parametrize("capability", ["7.5", "9.0"])
    def test_torch_has_no_complaint_about_the_architecture(self, capability):
        process = run_program(
            """
            import torch
            print(torch.cuda.get_arch_list())
            torch.ones(1, device="cuda")
            """,
            {"OPENREG_CUDA_CAPABILITY": capability, "OPENREG_CUDA_VERSION": "12.8"},
        )
        self.assertEqual(process.stdout, f"['sm_{capability.replace('.', '')}']\n")
        self.assertNotIn("Warning", process.stderr)


class TestOutOfMemory(OpenRegTestCase):
    def test_text_is_that_of_cudas_allocator(self):
        size = r"\d+(?:\.\d+)? (?:bytes|KiB|MiB|GiB)"
        with self.assertRaises(torch.cuda.OutOfMemoryError) as caught:
            torch.empty(2**50, dtype=torch.uint8, device="cuda")
        self.assertRegex(
            str(caught.exception).split("\n")[0],
            rf"^CUDA out of memory\. Tried to allocate {size}\. GPU 0 has a total capacity of "
            rf"{size} of which {size} is free\. Including non-PyTorch memory, this process has "
            rf"{size} memory in use\. Of the allocated memory {size} is allocated by PyTorch, and "
            rf"{size} is reserved by PyTorch but unallocated\.$",
        )

    @parametrize(
        "nbytes, text",
        [(100, "2.00 MiB"), (3 << 20, "20.00 MiB"), ((393 << 20) + 1, "394.00 MiB")],
    )
    def test_size_is_that_of_the_segment(self, nbytes, text):
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(0.0)
        self.addCleanup(torch.cuda.set_per_process_memory_fraction, 1.0)
        with self.assertRaisesRegex(torch.OutOfMemoryError, f"Tried to allocate {text}\\. GPU 0"):
            torch.empty(nbytes, dtype=torch.uint8, device="cuda")

    def test_limit_of_the_process_is_named(self):
        torch.cuda.set_per_process_memory_fraction(0.5)
        self.addCleanup(torch.cuda.set_per_process_memory_fraction, 1.0)
        with self.assertRaisesRegex(
            torch.OutOfMemoryError, r"in use\. \d+\.\d+ GiB allowed; Of the"
        ):
            torch.empty(2**50, dtype=torch.uint8, device="cuda")


class TestElapsedTime(ErrorTestCase):
    def events(self, kind, **options):
        if kind is torch.Event:
            options["device"] = "cuda"
        return kind(**options), kind(**options)

    @parametrize("kind", [torch.cuda.Event, torch.Event], name_fn=_name_of_module)
    def test_events_without_timing_raise_a_value_error(self, kind):
        start, end = self.events(kind)
        start.record(), end.record()
        with self.assertRaises(ValueError) as caught:
            start.elapsed_time(end)
        self.assert_begins(
            str(caught.exception), "Both events must be created with argument 'enable_timing=True'."
        )

    @parametrize("kind", [torch.cuda.Event, torch.Event], name_fn=_name_of_module)
    def test_events_that_were_never_recorded_raise_a_value_error(self, kind):
        start, end = self.events(kind, enable_timing=True)
        start.record()
        with self.assertRaises(ValueError) as caught:
            start.elapsed_time(end)
        self.assert_begins(
            str(caught.exception), "Both events must be recorded before calculating elapsed time."
        )

    @parametrize("kind", [torch.cuda.Event, torch.Event], name_fn=_name_of_module)
    def test_events_that_are_not_done_raise_a_runtime_error(self, kind):
        start, end = self.events(kind, enable_timing=True)
        start.record()
        with StreamGate():
            end.record()
            with self.assertRaises(RuntimeError) as caught:
                start.elapsed_time(end)
        self.assertIs(type(caught.exception), RuntimeError)
        self.assert_begins(
            str(caught.exception), "Both events must be completed before calculating elapsed time."
        )


instantiate_parametrized_tests(TestDeviceAsserts)
instantiate_parametrized_tests(TestCount)
instantiate_parametrized_tests(TestDevices)
instantiate_parametrized_tests(TestElapsedTime)
instantiate_parametrized_tests(TestOutOfMemory)

if __name__ == "__main__":
    run_tests()
