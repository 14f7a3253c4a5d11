"""CUDA's runtime library as torch offers it, primary contexts, and the version of CUDA."""

import ctypes
import tempfile
from pathlib import Path

import pytest
import torch
from common import (
    BUILD_HAS_CUDA,
    OpenRegTestCase,
    StreamGate,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_child,
    run_program,
    run_tests,
)

pytestmark = pytest.mark.sample(0.085)


class TestErrors(OpenRegTestCase):
    def test_success_is_no_error(self):
        torch.cuda.check_error(0)
        torch.cuda.check_error(torch.cuda.cudart().cudaError.success)

    @parametrize(
        "number,text",
        [
            (2, "out of memory (2)"),
            (713, "pointer does not correspond to a registered memory region (713)"),
            (12345, "unrecognized error code (12345)"),
        ],
    )
    def test_other_numbers_raise_cuda_s_exception(self, number, text):
        with self.assertRaises(torch.cuda.CudaError) as caught:
            torch.cuda.check_error(number)
        self.assertEqual(str(caught.exception), text)

    def test_an_error_is_its_number(self):
        error = torch.cuda.cudart().cudaError(2)
        self.assertEqual(int(error), 2)
        self.assertNotEqual(error, torch.cuda.cudart().cudaError.success)


class TestRegisteredMemory(OpenRegTestCase):
    def setUp(self):
        super().setUp()
        self.library = torch.cuda.cudart()
        self.x = torch.arange(20.0)

    def register(self, x):
        size = x.numel() * x.element_size()
        return self.library.cudaHostRegister(x.data_ptr(), size, 0)

    def test_memory_counts_as_pinned_while_it_is_registered(self):
        self.assertFalse(self.x.is_pinned())
        self.assertEqual(self.register(self.x), 0)
        self.assertTrue(self.x.is_pinned())
        self.assertFalse(torch.ones(20).is_pinned())
        self.assertEqual(self.library.cudaHostUnregister(self.x.data_ptr()), 0)
        self.assertFalse(self.x.is_pinned())

    def test_copies_from_and_to_it_are_asynchronous(self):
        y = torch.zeros(20, device="cuda")
        torch.cuda.synchronize()
        self.assertEqual(self.register(self.x), 0)
        with StreamGate() as gate:
            y.copy_(self.x, non_blocking=True)
            y.mul_(2)
            self.x.copy_(y, non_blocking=True)
            self.assertEqual(self.x, torch.arange(20.0))
            gate.open()
            torch.cuda.synchronize()
        self.assertEqual(self.x, 2 * torch.arange(20.0))
        self.assertEqual(self.library.cudaHostUnregister(self.x.data_ptr()), 0)

    def test_bad_arguments_are_cuda_s_errors(self):
        address = self.x.data_ptr()
        self.assertEqual(self.library.cudaHostRegister(0, 4, 0), 1)
        self.assertEqual(self.library.cudaHostRegister(address, 0, 0), 1)
        self.assertEqual(self.library.cudaHostUnregister(address), 713)
        self.assertEqual(self.register(self.x[4:8]), 0)
        for overlapping in (self.x, self.x[4:8], self.x[7:], self.x[:5]):
            self.assertEqual(self.register(overlapping), 712)
        self.assertEqual(self.register(self.x[8:]), 0)
        for part in (self.x[4:], self.x[8:]):
            self.assertEqual(self.library.cudaHostUnregister(part.data_ptr()), 0)
        self.assertEqual(self.register(torch.ones(4).pin_memory()), 712)


class TestStreams(OpenRegTestCase):
    @requires_two_devices
    @parametrize("device", [0, 1])
    def test_stream_of_the_library_is_an_external_stream(self, device):
        library, handle = torch.cuda.cudart(), ctypes.c_uint64()
        with torch.cuda.device(device):
            self.assertEqual(library.cudaStreamCreate(ctypes.addressof(handle)), 0)
        stream = torch.cuda.ExternalStream(handle.value, device=device)
        self.assertEqual(stream.cuda_stream, handle.value)
        with torch.cuda.stream(stream):
            x = torch.ones(3, device=f"cuda:{device}").sum()
        stream.synchronize()
        self.assertEqual(x.item(), 3)
        self.assertEqual(library.cudaStreamDestroy(handle.value), 0)
        self.assertEqual(library.cudaStreamDestroy(handle.value), 400)

    def test_bad_arguments_are_cuda_s_errors(self):
        self.assertEqual(torch.cuda.cudart().cudaStreamCreate(0), 1)
        self.assertEqual(torch.cuda.cudart().cudaStreamDestroy(8), 400)


class TestEvents(OpenRegTestCase):
    def test_event_has_a_device_once_it_is_recorded(self):
        event = torch.cuda.Event()
        self.assertIsNone(event.device)
        event.record()
        self.assertEqual(event.device, torch.device("cuda:0"))

    @requires_two_devices
    def test_event_that_other_processes_wait_for_is_bound_by_its_handle(self):
        with torch.cuda.device(1):
            event = torch.cuda.Event(interprocess=True)
            event.ipc_handle()
        self.assertEqual(event.device, torch.device("cuda:1"))


@requires_two_devices
class TestPrimaryContexts(OpenRegTestCase):
    """As test_cuda_primary_ctx.py of torch has it: only a device that is used has a context."""

    PROGRAM = """
    import torch
    def contexts():
        return [torch._C._cuda_hasPrimaryContext(i) for i in (0, 1)]
    assert contexts() == [False, False]
    {use}
    assert contexts() == {expected}, contexts()
    """

    @parametrize(
        "use",
        [
            "x = torch.randn(1, device='cuda:1')",
            "x = torch.randn(1, device='cuda:1'); str(x), repr(x)",
            "x = torch.randn(1, device='cuda:1'); y = torch.randn(1); y.copy_(x)",
            "x = torch.randn(1, device='cuda:1'); assert not x.is_pinned()",
            "x = torch.randn(1, device='cuda:1'); x = torch.randn(3).pin_memory()",
            "x = torch.randn(1, device='cuda:1'); x = torch.zeros(3, pin_memory=True).pin_memory()",
            "x = torch.ones(3).to('cuda:1'); x.sum().item()",
            "torch.cuda.set_device(1); torch.cuda.current_stream().synchronize()",
            "torch.cuda.memory_allocated(0); torch.cuda.manual_seed_all(1); torch.ones(1).cuda(1)",
        ],
    )
    def test_only_the_device_that_is_used_has_one(self, use):
        run_child(self.PROGRAM.format(use=use, expected=[False, True]))

    def test_initialization_makes_none_and_keeps_children_from_devices(self):
        run_child(self.PROGRAM.format(use="torch.cuda.init()", expected=[False, False]))
        program = """
        import os, torch
        torch.cuda.init()
        if os.fork() == 0:
            try:
                torch.ones(1, device="cuda")
            except RuntimeError as error:
                print(error, flush=True)
            os._exit(0)
        os.wait()
        """
        self.assertIn("Cannot re-initialize CUDA in forked subprocess", run_program(program).stdout)


class TestVisibleDevices(OpenRegTestCase):
    @parametrize(
        "asks",
        [
            "torch.cuda.device_count()",
            "torch.cuda.is_available(); torch.cuda.device_count()",
            "torch.cuda.is_initialized(); torch.manual_seed(1); torch.cuda.device_count()",
        ],
    )
    def test_they_may_be_set_until_the_first_use(self, asks):
        program = f"""
        import os, torch
        {asks}
        os.environ["CUDA_VISIBLE_DEVICES"] = "1"
        print(torch.cuda.device_count())
        torch.ones(1, device="cuda")
        os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"
        print(torch.cuda.device_count(), torch.cuda.get_device_properties(0).uuid[-1])
        """
        self.assertEqual(run_program(program).stdout.split(), ["1", "1", "1"])


class TestVersion(OpenRegTestCase):
    """The setting, in a build without CUDA; one with CUDA keeps its version."""

    def run_with(self, version, program):
        settings = {} if version is None else {"OPENREG_CUDA_VERSION": version}
        return run_program(f"import torch\n{program}", settings)

    @parametrize(
        "version,expected,number",
        [(None, None, 0), ("none", None, 0), ("12.8", "12.8", 12080), ("11.10", "11.10", 11100)],
    )
    def test_version_is_the_setting(self, version, expected, number):
        run = self.run_with(
            version, "print(torch.version.cuda, torch._C._cuda_getCompiledVersion())"
        )
        if BUILD_HAS_CUDA:
            expected = torch.version.cuda
            major, minor = expected.split(".")
            number = 1000 * int(major) + 10 * int(minor)
        self.assertEqual(run.stdout.split(), [str(expected), str(number)])

    def test_bad_version_is_a_warning_and_then_an_error(self):
        program = """
try:
    torch.ones(1, device="cuda")
except RuntimeError as error:
    print(torch.version.cuda, error)
        """
        run = self.run_with("12", program)
        text = "OPENREG_CUDA_VERSION is '12'; allowed: none, or a major and a minor version"
        self.assertIn(text, run.stderr)
        self.assertIn(text, run.stdout)
        self.assertTrue(run.stdout.startswith(str(torch.version.cuda)))

    def test_it_leaves_the_settings_to_the_first_use(self):
        program = "import os; os.environ['OPENREG_DEVICE_COUNT'] = '3'; torch.ones(1).cuda(2)"
        self.run_with("12.8", program)

    def test_it_means_nothing_to_openreg(self):
        settings = {"OPENREG_CUDA_VERSION": "12.8", "OPENREG_DEVICE_TYPE": "openreg"}
        run = run_program("import torch; print(torch.version.cuda)", settings)
        self.assertEqual(run.stdout.strip(), str(torch.version.cuda))

    @parametrize("version,is_set", [(None, False), ("12.8", True)])
    def test_torch_s_tests_of_graphs_run_if_it_is_set(self, version, is_set):
        program = "import torch.testing._internal.common_utils as u; print(bool(u.TEST_CUDA_GRAPH))"
        shown = self.run_with(version, program).stdout.split()[-1]
        self.assertEqual(shown, str(is_set or BUILD_HAS_CUDA))

    def test_ddp_s_hook_for_bfloat16_works_if_it_is_set(self):
        program = """
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2).cuda())
model.register_comm_hook(None, bf16_compress_hook)
model(torch.ones(4, 3, device="cuda")).sum().backward()
print(model.module.weight.grad.tolist())
dist.destroy_process_group()
"""
        run = self.run_with("12.8", program)
        self.assertEqual(run.stdout.strip(), "[[4.0, 4.0, 4.0], [4.0, 4.0, 4.0]]")

    def test_no_compiler_is_found_if_it_is_set(self):
        program = """
import torch.utils.cpp_extension as extensions
print(extensions.CUDA_HOME)
try:
    extensions.load_inline("unused", "int f();", "int f() { return 1; }", functions=["f"])
except OSError as error:
    print(error)
"""
        with tempfile.TemporaryDirectory() as folder:
            compiler = Path(folder) / "bin" / "nvcc"
            compiler.parent.mkdir()
            compiler.write_text("#!/bin/sh\nexit 1\n")
            compiler.chmod(0o755)
            settings = {"OPENREG_CUDA_VERSION": "12.8", "CUDA_HOME": folder}
            lines = run_program(f"import torch\n{program}", settings).stdout.splitlines()
        self.assertEqual(lines[0], "None")
        self.assertIn("CUDA_HOME environment variable is not set", lines[1])

    def test_compiled_kernels_say_that_there_is_no_compiler(self):
        program = """
try:
    torch.cuda._compile_kernel('extern "C" __global__ void f() {}', "f")
except Exception as error:
    print(type(error).__name__, error)
"""
        for version in (None, "12.8"):
            text = self.run_with(version, program).stdout
            self.assertTrue(
                text.startswith("NotImplementedError torch.cuda._compile_kernel: "), text
            )


instantiate_parametrized_tests(TestErrors)
instantiate_parametrized_tests(TestStreams)
instantiate_parametrized_tests(TestPrimaryContexts)
instantiate_parametrized_tests(TestVisibleDevices)
instantiate_parametrized_tests(TestVersion)

if __name__ == "__main__":
    run_tests()
