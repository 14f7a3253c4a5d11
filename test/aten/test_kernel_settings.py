"""A kernel runs with its caller's environment at the call: settings, threads, modes."""

import re
import threading
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from common import (
    DEVICE_TYPE,
    OpenRegTestCase,
    StreamGate,
    instantiate_parametrized_tests,
    parametrize,
    run_child,
    run_tests,
    subtest,
)
from torch.testing._internal.common_utils import recover_orig_fp32_precision

import torch_openreg
from torch_openreg import _C
from torch_openreg._version import release_of

pytestmark = pytest.mark.sample(0.5)

ROOT = Path(__file__).resolve().parents[2]
KERNEL_SETTINGS = ROOT / "csrc" / "aten" / "cpu" / "KernelSettings.cpp"
RUNTIME = str(Path(torch_openreg.__file__).parent / "lib" / "libopenreg.so")
CONTEXT = Path(torch.__file__).parent / "include" / "ATen" / "Context.h"

# Members of at::Context that a launch does not capture, with the reason. Those whose names say that
# they are of CUDA's libraries, or of another backend's, are not listed.
NOT_CAPTURED = {
    "init_": "whether devices are initialized",
    "sdp_priority_order": "the choice between attention kernels, made at the call",
    "enabled_fa3SDP": "a kernel of CUDA",
    "sm_carveout": "processors of CUDA",
    "display_vmap_fallback_warnings_": "read by functorch, at the call",
    "warn_on_accumulate_grad_stream_mismatch_": "read by autograd, at the call",
    "override_stale_capture_stream_": "read when a graph of CUDA is captured",
    "fp32_precision": "captured entry by entry: kPrecisionKeys",
    "prev_allocator_ptr_": "the allocator before a change; no kernel asks for it",
}
if release_of(str(torch.__version__)) not in ("2.13", "2.14"):
    NOT_CAPTURED |= {
        "enabled_fa4SDP": "a kernel of CUDA",
        "allow_native_aot": "kernels of CUDA that torch brings compiled",
        "mask_unconditional_native_aot": "the same",
    }
OF_OTHER_BACKENDS = re.compile("cudnn|cublas|miopen|rocm|linalg_preferred|blas_preferred", re.I)


def members_of_context() -> dict[str, str]:
    """The data members of at::Context: their types by name."""
    text = re.sub(r"//[^\n]*|^#[^\n]*$", "", CONTEXT.read_text(), flags=re.MULTILINE)
    body = text[
        text.index("class TORCH_API Context") : text.index("TORCH_API Context& globalContext")
    ]
    private = body[body.rindex(" private:") + len(" private:") :]
    # An initializer in braces or after `=` is not part of the declaration.
    while True:
        shorter = re.sub(r"\{[^{}]*\}", "", private)
        if shorter == private:
            break
        private = shorter
    members = {}
    for statement in private.split(";"):
        declaration = " ".join(statement.split("=")[0].split())
        match = re.fullmatch(r"(.+?)[\s>]\s*(\w+)", declaration)
        if match is not None and not declaration.startswith(("using ", "struct ", "}")):
            members[match[2]] = declaration
    return members


def captured_members() -> set[str]:
    text = KERNEL_SETTINGS.read_text()
    table = text[text.index("#define OPENREG_CONTEXT_SETTINGS") : text.index("// docs: end")]
    return set(re.findall(r"X\(.+, (\w+), \d+\)", table))


class TestListOfSettings(OpenRegTestCase):
    def test_members_are_found(self):
        members = members_of_context()
        self.assertGreater(len(members), 35)
        self.assertIn("quantized_engine", members)
        self.assertIn("sm_carveout", members)
        self.assertIn("release_original_weights", members)

    def test_every_member_of_the_context_is_captured_or_has_a_reason(self):
        members = {one for one in members_of_context() if not OF_OTHER_BACKENDS.search(one)}
        captured = captured_members()
        self.assertGreater(len(captured), 10)
        self.assertEqual(
            members - captured - set(NOT_CAPTURED), set(), "neither listed nor captured"
        )
        self.assertEqual(captured - members, set(), "not in torch's header")
        self.assertEqual(set(NOT_CAPTURED) - members, set(), "not in torch's header any more")
        self.assertEqual(captured & set(NOT_CAPTURED), set(), "captured nonetheless")

    def test_every_precision_of_the_cpu_is_captured(self):
        text = CONTEXT.read_text()
        precisions = text[text.index("fp32_precision = {") :]
        precisions = precisions[: precisions.index("};")]
        entry = re.compile(r"\{Float32Backend::(\w+), Float32Op::(\w+)\}")
        of_torch = {one for one in entry.findall(precisions) if one[0] != "CUDA"}
        keys = KERNEL_SETTINGS.read_text()
        keys = keys[keys.index("kPrecisionKeys = {{") : keys.index("}};")]
        self.assertGreater(len(of_torch), 3)
        self.assertEqual(set(entry.findall(keys)), of_torch)


class Change:
    """A setting, two of its values, and a call on whose result it bears."""

    def __init__(self, read, write, values, call, *inputs):
        self.read, self.write, self.values = read, write, values
        self.call, self.inputs = call, inputs


def fp32_precision(operators):
    return (
        lambda: torch._C._get_fp32_precision_getter("mkldnn", operators),
        lambda value: torch._C._set_fp32_precision_setter("mkldnn", operators, value),
        ("ieee", "bf16"),
    )


DEFAULT_DTYPE = (torch.get_default_dtype, torch.set_default_dtype, (torch.float32, torch.float64))
PRECISION = (
    torch.get_float32_matmul_precision,
    torch.set_float32_matmul_precision,
    ("highest", "medium"),
)
MKLDNN = (torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled, (True, False))
DETERMINISM = (
    torch.are_deterministic_algorithms_enabled,
    torch.use_deterministic_algorithms,
    (False, True),
)
INVARIANTS = (
    torch.sparse.check_sparse_tensor_invariants.is_enabled,
    lambda value: (
        torch.sparse.check_sparse_tensor_invariants.enable()
        if value
        else torch.sparse.check_sparse_tensor_invariants.disable()
    ),
    (False, True),
)
INTEGERS = torch.arange(1, 6)
# Large enough for kernels that heed the precision.
MATRIX = torch.randn(256, 256, generator=torch.Generator().manual_seed(1))
IMAGE, FILTER = MATRIX.view(2, 32, 32, 32), MATRIX[:36].reshape(32, 32, 3, 3)

CHANGES = {
    "default_dtype_sigmoid": Change(*DEFAULT_DTYPE, torch.sigmoid, INTEGERS),
    "default_dtype_rsqrt": Change(*DEFAULT_DTYPE, torch.rsqrt, INTEGERS),
    "default_dtype_i0": Change(*DEFAULT_DTYPE, torch.i0, INTEGERS),
    "default_dtype_division": Change(*DEFAULT_DTYPE, lambda x: x / 7, INTEGERS),
    "default_dtype_logsumexp": Change(*DEFAULT_DTYPE, lambda x: x.logsumexp(0), INTEGERS),
    "default_dtype_foreach_exp": Change(
        *DEFAULT_DTYPE, lambda x: torch._foreach_exp([x])[0], INTEGERS
    ),
    "default_dtype_foreach_div": Change(
        *DEFAULT_DTYPE, lambda x: torch._foreach_div([x], 3)[0], INTEGERS
    ),
    "matmul_precision_mm": Change(*PRECISION, torch.mm, MATRIX, MATRIX),
    "matmul_precision_cdist": Change(*PRECISION, torch.cdist, MATRIX, MATRIX.flip(0)),
    "matmul_precision_linear": Change(*PRECISION, F.linear, MATRIX, MATRIX),
    "conv_precision": Change(*fp32_precision("conv"), F.conv2d, IMAGE, FILTER),
    "mkldnn_conv2d": Change(*MKLDNN, F.conv2d, IMAGE, FILTER),
    "mkldnn_conv_transpose2d": Change(*MKLDNN, F.conv_transpose2d, IMAGE, FILTER),
    "determinism_max_unpool2d": Change(
        *DETERMINISM,
        lambda x, i: F.max_unpool2d(x, i, 2),
        IMAGE[0, :, :2, :2],
        torch.tensor([0, 2, 8, 10]).view(1, 2, 2).repeat(32, 1, 1),
    ),
    "determinism_index_copy": Change(
        *DETERMINISM,
        lambda x, i: torch.zeros_like(x).index_copy(0, i, x),
        MATRIX,
        torch.arange(256).flip(0),
    ),
}


def bits(tensor):
    # A number, as comparing long sequences takes assertEqual long.
    return tensor.dtype, tensor.shape, hash(tensor.cpu().contiguous().numpy().tobytes())


class TestSettingsOfTheCall(OpenRegTestCase):
    """A setting holds for a call as it was at the call."""

    def outcome(self, change, inputs):
        try:
            return bits(change.call(*inputs))
        except RuntimeError as error:
            return type(error)

    @parametrize("order", [(0, 1), (1, 0)])
    @parametrize("change", [subtest(change, name=name) for name, change in CHANGES.items()])
    @recover_orig_fp32_precision  # writing the precision of products writes those of libraries, too
    def test_change_before_the_kernel_runs_is_not_seen(self, change, order):
        on_device = [one.to(DEVICE_TYPE) for one in change.inputs]
        at_call, afterwards = (change.values[index] for index in order)
        before = change.read()
        try:
            change.write(at_call)
            expected = self.outcome(change, change.inputs)
            self.assertEqual(self.outcome(change, on_device), expected)
            if isinstance(expected, type):
                return  # an error with this value, at the call
            torch.accelerator.synchronize()
            with StreamGate():
                actual = change.call(*on_device)
                innocent = on_device[0] + 1
                change.write(afterwards)
            torch.accelerator.synchronize()
            self.assertEqual(change.read(), afterwards)
            self.assertEqual(bits(actual), expected)
            self.assert_bit_equal(innocent, change.inputs[0] + 1)
        finally:
            change.write(before)

    def test_program_does_not_see_the_settings_of_a_kernel_that_runs(self):
        x = INTEGERS.to(DEVICE_TYPE)
        x.sigmoid()
        torch.accelerator.synchronize()
        with StreamGate():
            try:
                torch.set_default_dtype(torch.float64)
                ours = [x.sigmoid() for _ in range(200)]
            finally:
                torch.set_default_dtype(torch.float32)
        # The kernels of double run meanwhile.
        theirs = [INTEGERS.sigmoid() for _ in range(200)]
        self.assertEqual({one.dtype for one in theirs}, {torch.float32})
        for one in ours:
            self.assert_bit_equal(one, INTEGERS.double().sigmoid())


class TestAutocast(OpenRegTestCase):
    """The CPU's autocast must not affect the device's kernels, which use CPU tensors."""

    def assert_is_as_without(self, call):
        for _ in range(2):
            with torch.autocast("cpu"):
                first = call()
            second = call()
            torch.accelerator.synchronize()
            self.assertEqual(bits(first), bits(second))

    def test_encoder_layer(self):
        torch.manual_seed(0)
        layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
        x = torch.randn(2, 8, 16)
        on_device, input = layer.to(DEVICE_TYPE), x.to(DEVICE_TYPE)
        with torch.no_grad():
            self.assert_is_as_without(lambda: on_device(input))

    def test_sparse_product(self):
        matrix = MATRIX.to_sparse_csr().to(DEVICE_TYPE)
        dense = MATRIX.to(DEVICE_TYPE)
        self.assert_is_as_without(lambda: matrix @ dense)

    def test_solution(self):
        matrix, vector = MATRIX.to(DEVICE_TYPE), MATRIX[:, :1].to(DEVICE_TYPE)
        self.assert_is_as_without(lambda: torch.linalg.solve(matrix, vector))


class TestThreads(OpenRegTestCase):
    def test_worker_leaves_the_process_s_number_alone(self):
        output = run_child(
            """
            import threading
            import torch
            from torch_openreg.testing import StreamGate

            x = torch.ones(5, device="openreg") + 1
            torch.accelerator.synchronize()
            with StreamGate():
                torch.set_num_threads(1)
                y = x + 1
                torch.set_num_threads(4)
            torch.accelerator.synchronize()
            numbers = [torch.get_num_threads()]
            thread = threading.Thread(target=lambda: numbers.append(torch.get_num_threads()))
            thread.start()
            thread.join()
            print(numbers, y.tolist())
            """
        )
        self.assertEqual(output.strip(), "[4, 4] [3.0, 3.0, 3.0, 3.0, 3.0]")

    def test_number_of_mkl_is_its_default_unless_the_caller_has_another(self):
        # MKL with a number of the thread's own starts threads within parallel regions, too.
        output = run_child(
            f"""
            import ctypes
            import pathlib
            import torch

            mkl = ctypes.CDLL(str(pathlib.Path(torch.__file__).parent / "lib/libtorch_cpu.so"))
            if hasattr(mkl, "MKL_Set_Num_Threads_Local"):
                set_number = mkl.MKL_Set_Num_Threads_Local
                runtime = ctypes.CDLL({RUNTIME!r})
                numbers = []

                @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
                def note(_):
                    numbers.append(set_number(0))
                    set_number(numbers[-1])

                default = mkl.MKL_Get_Max_Threads()
                x = torch.ones(5, device="openreg")
                for number in (None, default + 1, default):
                    if number is not None:
                        torch.set_num_threads(number)
                    x + 1
                    stream = torch.openreg.current_stream()
                    assert runtime.orLaunchHostFunc(stream, note, None) == 0
                    torch.openreg.synchronize()
                assert numbers == [0, default + 1, 0], numbers
            """
        )
        self.assertEqual(output, "")

    def test_callers_with_different_numbers_share_a_worker(self):
        before = torch.get_num_threads()
        x = torch.randn(1 << 17, generator=torch.Generator().manual_seed(2))
        on_device = x.to(DEVICE_TYPE)
        expected, actual = {}, {}

        def work(number):
            torch.set_num_threads(number)
            expected[number] = bits(x.sum())
            barrier.wait()
            for _ in range(50):
                actual.setdefault(number, set()).add(repr(bits(on_device.sum())))

        barrier = threading.Barrier(2)
        threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2)]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            torch.set_num_threads(before)
        for number in (1, 2):
            self.assertEqual(actual[number], {repr(expected[number])})

    def test_backward_has_the_number_of_its_caller(self):
        """torch runs the backward of a device in a thread that it starts once."""
        output = run_child(
            """
            import threading

            import torch

            numbers = torch.Generator().manual_seed(2)
            direction = torch.randn(1 << 17, generator=numbers)

            def gradient(device, count):
                leaf = torch.ones(1, device=device, requires_grad=True)
                result, direction_there = leaf.expand_as(direction), direction.to(device)
                torch.set_num_threads(count)
                result.backward(direction_there)
                return leaf.grad.item()  # a sum, in parts for threads

            def nested_gradient(device, count):
                # The inner pass runs in the outer one, with tensors that the outer one makes.
                leaf = torch.ones(1, device=device, requires_grad=True)
                result, direction_there = leaf.expand_as(direction), direction.to(device)
                torch.set_num_threads(count)
                torch.utils.checkpoint.checkpoint(
                    lambda x: x.expand_as(direction_there), leaf, use_reentrant=True
                ).backward(direction_there)
                return leaf.grad.item()

            # As the thread of a DataLoader does that pins memory.
            thread = threading.Thread(target=torch.set_num_threads, args=(1,))
            thread.start()
            thread.join()
            print(gradient("cpu", 1) != gradient("cpu", 2))
            for function in (gradient, nested_gradient):
                print([function("openreg", n) == function("cpu", n) for n in (2, 1, 2, 3, 1)])
            """
        )
        self.assertEqual(output.splitlines(), ["True", str([True] * 5), str([True] * 5)])

    def test_pass_whose_caller_did_not_set_a_number(self):
        """The number of the caller and not that of the process, which another thread set."""
        output = run_child(
            """
            import threading

            import torch

            torch.set_num_threads(2)
            torch.get_num_threads()
            thread = threading.Thread(target=torch.set_num_threads, args=(1,))
            thread.start()
            thread.join()
            direction = torch.randn(1 << 17, generator=torch.Generator().manual_seed(2))
            gradients = []
            for device in ("cpu", "openreg"):
                leaf = torch.ones(1, device=device, requires_grad=True)
                leaf.expand_as(direction).backward(direction.to(device))
                gradients.append(leaf.grad.item())
            print(gradients[0] == gradients[1], torch.get_num_threads())
            """
        )
        self.assertEqual(output.splitlines(), ["True 2"])


class TestDenormals(OpenRegTestCase):
    """The treatment of denormal numbers is that of the calling thread at the call."""

    NUMBERS = torch.full((5,), 2e-38)

    def setUp(self):
        super().setUp()
        if not torch.set_flush_denormal(True):
            self.skipTest("the processor cannot flush denormal numbers")
        self.addCleanup(torch.set_flush_denormal, False)
        torch.set_flush_denormal(False)

    def zeros(self, tensor):
        """Which part of the elements is 0; a comparison may take denormal numbers for it, too."""
        return (tensor.cpu().view(torch.int32) == 0).float().mean().item()

    def products(self, stream, modes, numbers):
        """The results of a stream for calls in these modes: the part of the products that is 0."""
        results = []
        on_device = numbers.to(DEVICE_TYPE)
        with stream:
            for is_flushing in modes:
                torch.set_flush_denormal(is_flushing)
                result = on_device * 0.1
                torch.set_flush_denormal(False)
                results.append(result)
        stream.synchronize()
        return [self.zeros(one) for one in results]

    @parametrize("is_flushing", [True, False])
    def test_stream_follows_its_callers(self, is_flushing):
        modes = [is_flushing, not is_flushing, is_flushing]
        torch.set_flush_denormal(is_flushing)  # in which the stream's worker is made
        handle = _C._create_external_stream(0, 0)
        self.addCleanup(_C._destroy_external_stream, handle)
        stream = torch.openreg.ExternalStream(handle, 0)
        with stream:
            torch.zeros(1, device=DEVICE_TYPE).add_(1)
        torch.set_flush_denormal(False)
        self.assertEqual(self.products(stream, modes, self.NUMBERS), modes)

    @parametrize("is_flushing", [True, False])
    def test_threads_of_a_kernel_follow(self, is_flushing):
        before = torch.get_num_threads()
        torch.set_num_threads(2)
        try:
            modes = [is_flushing, not is_flushing, is_flushing]
            numbers = self.NUMBERS[0].repeat(1 << 17)
            self.assertEqual(self.products(torch.openreg.Stream(), modes, numbers), modes)
        finally:
            torch.set_num_threads(before)

    def test_threads_of_a_copy_to_the_host_follow_until_it_is_done(self):
        before = torch.get_num_threads()
        torch.set_num_threads(2)
        try:
            on_device = torch.full((1 << 18,), 1e-40, dtype=torch.float64).to(DEVICE_TYPE)
            numbers = self.NUMBERS[0].repeat(1 << 17)
            copied, of_the_cpu = [], []
            for is_flushing in (True, False, True):
                torch.set_flush_denormal(is_flushing)
                product_before = numbers * 0.1
                copy = torch.empty(on_device.shape).copy_(on_device)
                product_after = numbers * 0.1
                torch.set_flush_denormal(False)
                copied.append(self.zeros(copy))
                of_the_cpu.append((self.zeros(product_before), self.zeros(product_after)))
        finally:
            torch.set_num_threads(before)
        self.assertEqual(copied, [1, 0, 1])
        self.assertTrue(all(one == other for one, other in of_the_cpu), of_the_cpu)

    def test_threads_have_their_mode_again_after_a_kernel_that_copies_from_a_device(self):
        before = torch.get_num_threads()
        torch.set_num_threads(2)
        library = torch.library.Library("openreg_test_nested", "DEF")
        self.addCleanup(library._destroy)
        library.define("copy(Tensor x) -> Tensor")
        library.impl(
            "copy", lambda x: torch.empty(on_device.shape).copy_(on_device).flatten()[:1], "CPU"
        )
        try:
            on_device = torch.full((1 << 18,), 1e-40, dtype=torch.float64).to(DEVICE_TYPE)
            numbers = self.NUMBERS[0].repeat(1 << 17)
            first = numbers * 0.1  # starts the team
            torch.set_flush_denormal(True)
            copied = torch.ops.openreg_test_nested.copy(on_device)
            torch.set_flush_denormal(False)
            last = numbers * 0.1
        finally:
            torch.set_num_threads(before)
        self.assertEqual([self.zeros(one) for one in (first, copied, last)], [0, 1, 0])

    def test_change_before_the_kernel_runs_is_not_seen(self):
        x = self.NUMBERS.to(DEVICE_TYPE)
        torch.accelerator.synchronize()
        with StreamGate():
            kept = x * 0.1
            torch.set_flush_denormal(True)
            flushed = x * 0.1
            torch.set_flush_denormal(False)
        self.assertEqual([self.zeros(kept), self.zeros(flushed)], [0, 1])

    @parametrize("first", [False, True])
    def test_backward_has_the_mode_of_its_caller(self, first):
        """torch runs the backward of a device in a thread that it starts once."""
        output = run_child(
            f"""
            import torch

            x = torch.full((5,), 2e-38)

            def is_flushed(device, is_flushing):
                leaf = x.to(device).detach().requires_grad_()
                result, gradient = leaf * 0.1, x.to(device)
                torch.set_flush_denormal(is_flushing)
                result.backward(gradient)
                torch.accelerator.synchronize()
                torch.set_flush_denormal(False)
                return leaf.grad.cpu().view(torch.int32).count_nonzero().item() == 0

            modes = [{first}, {not first}, {first}]
            print([is_flushed("cpu", mode) for mode in modes] == modes)
            print([is_flushed("openreg", mode) for mode in modes] == modes)
            """
        )
        self.assertEqual(output.splitlines(), ["True", "True"])


instantiate_parametrized_tests(TestSettingsOfTheCall)
instantiate_parametrized_tests(TestDenormals)

if __name__ == "__main__":
    run_tests()
