"""Programs with kernels of Triton: compilation, launches, tuning, hooks, caches."""

import tempfile
from pathlib import Path

import pytest
import torch
from common import DEVICE_TYPE, StreamGate, run_program, run_tests
from extras.triton.kernels import HAS_TRITON, TritonTestCase, needs_triton
from torch.testing._internal.common_utils import instantiate_parametrized_tests, parametrize

pytestmark = pytest.mark.sample(0.5)

if HAS_TRITON:
    import triton
    import triton.language as tl
    from extras.triton.kernels import (
        add,
        add_kernel,
        checked_kernel,
        matmul_kernel,
        row_norm,
        row_softmax,
    )

FOLDER = str(Path(__file__).parents[2])


def program(body):
    return f"import sys\nsys.path.insert(0, {FOLDER!r})\n{body}"


ADD = """
import torch
from common import DEVICE_TYPE
from extras.triton.kernels import add

x = torch.arange(100.0, device=DEVICE_TYPE)
out, kernel = add(x, x)
assert out.tolist() == [2.0 * i for i in range(100)]
"""


@needs_triton
class TestKernels(TritonTestCase):
    def test_add(self):
        x, y = torch.randn(1000), torch.randn(1000)
        out, _ = add(x.to(DEVICE_TYPE), y.to(DEVICE_TYPE))
        self.assert_bit_equal(out, x + y)

    def test_softmax(self):
        x = torch.randn(7, 100)
        on_device = x.to(DEVICE_TYPE)
        out = torch.empty_like(on_device)
        row_softmax[(7,)](on_device, out, 100, BLOCK=128)
        self.assertEqual(out.cpu(), torch.softmax(x, -1))

    @parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_layer_norm(self, dtype):
        x, w, b = torch.randn(7, 100).to(dtype), torch.randn(100), torch.randn(100)
        on_device = x.to(DEVICE_TYPE)
        out = torch.empty(7, 100, device=DEVICE_TYPE)
        parameters = (w.to(DEVICE_TYPE), b.to(DEVICE_TYPE))
        row_norm[(7,)](on_device, *parameters, out, 100, 1e-5, BLOCK=128)
        self.assertEqual(out.cpu(), torch.nn.functional.layer_norm(x.float(), (100,), w, b))

    @parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
    def test_matmul(self, dtype):
        a, b = torch.randn(40, 50).to(dtype), torch.randn(50, 30).to(dtype)
        c = torch.empty(40, 30, device=DEVICE_TYPE)
        matmul_kernel[(2, 1)](a.to(DEVICE_TYPE), b.to(DEVICE_TYPE), c, 40, 30, 50, 32, 32, 16)
        expected = a.double() @ b.double()
        self.assertEqual(c.cpu().double(), expected, rtol=1e-4, atol=1e-4)

    def test_launch_returns_before_the_kernel_has_run(self):
        x = torch.ones(100, device=DEVICE_TYPE)
        add(x, x)
        out = torch.zeros_like(x)
        with StreamGate() as gate:
            add(x, x, out)
            self.assertFalse(torch.openreg.current_stream().query())
            gate.open()
        self.assertEqual(out.cpu(), torch.full((100,), 2.0))

    def test_capture_and_replay(self):
        x = torch.ones(100, device=DEVICE_TYPE)
        out, _ = add(x, x)
        graph = torch.openreg.Graph()
        with torch.openreg.graph(graph):
            add(x, x, out)
        x.fill_(3)
        graph.replay()
        self.assertEqual(out.cpu(), torch.full((100,), 6.0))

    def test_second_device(self):
        with torch.openreg.device(1):
            x = torch.ones(100, device=f"{DEVICE_TYPE}:1")
            out, _ = add(x, x)
        self.assertEqual(out.cpu(), torch.full((100,), 2.0))

    def test_asm_has_each_stage(self):
        x = torch.ones(16, device=DEVICE_TYPE)
        _, kernel = add(x, x)
        self.assertIn("tt.func", kernel.asm["ttir"])
        self.assertIn("OPENREG_TRITON_ENTRY", kernel.asm["cpp"])
        self.assertEqual(kernel.asm["so"][:4], b"\x7fELF")
        self.assertEqual(kernel.name, "add_kernel")

    def test_asm_says_that_it_has_no_code_of_gpus(self):
        x = torch.ones(100, device=DEVICE_TYPE)
        _, kernel = add(x, x)
        for form in ("ptx", "cubin", "ttgir", "llir", "sass"):
            with self.assertRaisesRegex(
                KeyError, f"{form}: .* compiled by way of C.., and has cpp"
            ):
                kernel.asm[form]
        with self.assertRaisesRegex(KeyError, "Unknown key: 'other'"):
            kernel.asm["other"]

    def test_kernel_is_bound_once(self):
        x = torch.ones(16, device=DEVICE_TYPE)
        _, kernel = add(x, x)
        first = kernel.run
        add(x, x)
        kernel._init_handles()
        self.assertIs(kernel.run, first)

    def test_tuple_and_none_as_arguments(self):
        @triton.jit
        def store_all(pointers, n, unused):
            for i in tl.static_range(2):
                tl.store(pointers[i] + tl.arange(0, 4), n + i)

        x, y = (torch.zeros(4, dtype=torch.int32, device=DEVICE_TYPE) for _ in range(2))
        store_all[(1,)]((x, y), 5, None)
        self.assertEqual((x.tolist(), y.tolist()), ([5] * 4, [6] * 4))

    def test_tensor_descriptor(self):
        from triton.tools.tensor_descriptor import TensorDescriptor

        @triton.jit
        def double(source, target):
            target.store([0, 0], source.load([4, 0]) * 2)

        x = torch.arange(64.0).reshape(8, 8)
        out = torch.zeros(4, 8, device=DEVICE_TYPE)
        double[(1,)](
            TensorDescriptor.from_tensor(x.to(DEVICE_TYPE), [4, 8]),
            TensorDescriptor.from_tensor(out, [4, 8]),
        )
        self.assertEqual(out.cpu(), x[4:] * 2)


@needs_triton
class TestErrors(TritonTestCase):
    def test_illegal_access_names_the_line(self):
        x = torch.ones(1000, device=DEVICE_TYPE)
        y = torch.ones(500, device=DEVICE_TYPE)
        add(x, y)
        with self.assertRaises(torch.AcceleratorError) as raised:
            torch.openreg.synchronize()
        self.assertEqual(raised.exception.error_code, 700)
        self.assertRegex(
            str(raised.exception),
            r"program \(1, 0, 0\) of add_kernel reads 4 bytes \d+ bytes behind the end of argument "
            r"'y_ptr' \(2000 bytes\), at .*kernels\.py:\d+, address 0x",
        )
        line = int(str(raised.exception).split("kernels.py:")[1].split(",")[0])
        source = Path(__file__).with_name("kernels.py").read_text().splitlines()
        self.assertIn("tl.load(y_ptr", source[line - 1])

    def test_assertion(self):
        x = torch.zeros(4, dtype=torch.int32, device=DEVICE_TYPE)
        checked_kernel[(4,)](x, 4, debug=True)
        self.assertEqual(x.tolist(), [0, 1, 2, 3])
        checked_kernel[(5,)](x, 4, debug=True)
        with self.assertRaisesRegex(torch.AcceleratorError, "too many programs") as raised:
            torch.openreg.synchronize()
        self.assertEqual(raised.exception.error_code, 710)

    def test_tensor_of_the_host_is_refused(self):
        x = torch.ones(4, device=DEVICE_TYPE)
        with self.assertRaisesRegex(ValueError, r"cannot be accessed from Triton \(cpu tensor\?\)"):
            add(x, torch.ones(4))

    def test_inline_assembly_is_refused_with_its_line(self):
        @triton.jit
        def with_assembly(x_ptr):
            x = tl.load(x_ptr)
            x = tl.inline_asm_elementwise(
                "mov.u32 $0, %clock;", "=r,r", [x], dtype=tl.int32, is_pure=True, pack=1
            )
            tl.store(x_ptr, x)

        x = torch.zeros(1, dtype=torch.int32, device=DEVICE_TYPE)
        with self.assertRaisesRegex(triton.CompilationError, r"test_jit\.py:\d+.*inline_asm"):
            with_assembly[(1,)](x)

    def test_more_than_32_warps_are_refused(self):
        x = torch.ones(4, device=DEVICE_TYPE)
        with self.assertRaisesRegex(triton.runtime.errors.OutOfResources, "threads"):
            add_kernel[(1,)](x, x, x, 4, BLOCK=4, num_warps=64)


@needs_triton
class TestTuning(TritonTestCase):
    def test_autotune_measures_and_keeps_the_best(self):
        configs = [triton.Config({"BLOCK": size}) for size in (64, 256)]
        zeroed = []
        tuned = triton.autotune(
            configs, key=["n"], pre_hook=lambda *args, **kwargs: zeroed.append(1)
        )(add_kernel)
        x = torch.ones(300, device=DEVICE_TYPE)
        out = torch.empty_like(x)
        tuned[lambda meta: (triton.cdiv(300, meta["BLOCK"]),)](x, x, out, 300)
        self.assertEqual(out.cpu(), torch.full((300,), 2.0))
        self.assertIn(tuned.best_config, configs)
        self.assertGreater(len(zeroed), 2)

    def test_heuristics(self):
        chosen = triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(args["n"])})
        x = torch.ones(300, device=DEVICE_TYPE)
        out = torch.empty_like(x)
        chosen(add_kernel)[(1,)](x, x, out, 300)
        self.assertEqual(out.cpu(), torch.full((300,), 2.0))

    def test_do_bench(self):
        x = torch.ones(300, device=DEVICE_TYPE)
        self.assertGreater(triton.testing.do_bench(lambda: add(x, x), warmup=1, rep=2), 0)

    def test_warmup_compiles_and_runs_nothing(self):
        x = torch.zeros(16, device=DEVICE_TYPE)
        kernel = add_kernel.warmup(x, x, x, 16, BLOCK=16, grid=(1,))
        kernel._init_handles()
        properties = triton.runtime.driver.active.utils.get_device_properties(0)
        # As tutorial 02 computes how many programs run at once.
        per_processor = properties["max_num_regs"] // (kernel.n_regs * properties["warpSize"] * 4)
        self.assertGreater(per_processor, 0)
        self.assertGreater(properties["max_shared_mem"] // kernel.metadata.shared, 0)
        out = torch.zeros_like(x)
        x.fill_(1)
        kernel[(1, 1, 1)](x, x, out, 16, 16)
        self.assertEqual(out.cpu(), torch.full((16,), 2.0))

    def test_hooks_of_a_launch(self):
        seen = []
        hooks = triton.knobs.runtime.launch_enter_hook
        hooks.add(enter := lambda metadata: seen.append(metadata.get()["name"]))
        try:
            x = torch.ones(16, device=DEVICE_TYPE)
            add(x, x)
        finally:
            hooks.remove(enter)
        self.assertEqual(seen, ["add_kernel"])

    def test_hook_of_a_compilation_sees_what_can_be_written_as_json(self):
        seen = []

        @triton.jit
        def fill(x_ptr, value):
            tl.store(x_ptr, value)

        triton.knobs.runtime.jit_post_compile_hook = lambda **given: seen.append(given)
        try:
            fill[(1,)](torch.zeros(1, device=DEVICE_TYPE), 2.5)
        finally:
            triton.knobs.runtime.jit_post_compile_hook = None
        self.assertIn('"target"', seen[0]["compile"]["specialization_data"])


@needs_triton
class TestProcesses(TritonTestCase):
    def test_second_process_takes_the_kernel_from_the_cache(self):
        with tempfile.TemporaryDirectory() as folder:
            settings = {"TRITON_CACHE_DIR": folder}
            run_program(program(ADD), settings)
            compiled = sorted(Path(folder).rglob("*.so"))
            self.assertNotEqual(compiled, [])
            # Without a compiler: nothing is compiled.
            run_program(program(ADD), {**settings, "CC": "false"})
            self.assertEqual(sorted(Path(folder).rglob("*.so")), compiled)

    def test_library_of_ours_may_be_deleted(self):
        with tempfile.TemporaryDirectory() as folder:
            settings = {"TRITON_CACHE_DIR": folder}
            run_program(program(ADD), settings)
            for path in (Path(folder) / "openreg").iterdir():
                path.unlink()
            run_program(program(ADD), settings)

    def test_spawned_child_runs_kernels(self):
        child = program(
            "import multiprocessing\n"
            f"def run():\n    exec({ADD!r}, {{}})\n"
            "if __name__ == '__main__':\n"
            "    process = multiprocessing.get_context('spawn').Process(target=exec,\n"
            f"        args=({program(ADD)!r}, {{}}))\n"
            "    process.start(); process.join(); assert process.exitcode == 0\n"
        )
        run_program(child)

    def test_autotune_can_take_the_first_configuration(self):
        body = """
import torch, triton
from common import DEVICE_TYPE
from extras.triton.kernels import add_kernel

configs = [triton.Config({"BLOCK": size}) for size in (64, 256, 32)]
tuned = triton.autotune(configs, key=["n"])(add_kernel)
x = torch.ones(100, device=DEVICE_TYPE)
for n in (100, 50):
    tuned[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, x, torch.empty_like(x), n)
    assert tuned.best_config is configs[0], tuned.best_config
print(sum(len(caches[0]) for caches in add_kernel.device_caches.values()), "compiled")
"""
        settings = {"OPENREG_TRITON_AUTOTUNE": "first"}
        self.assertEqual(run_program(program(body), settings).stdout, "1 compiled\n")

    def test_checks_can_be_turned_off(self):
        body = ADD + (
            "y = torch.arange(50.0, device=DEVICE_TYPE)\nadd(x, y)\n"
            "torch.openreg.synchronize()\nprint('ran')\n"
        )
        result = run_program(program(body), {"OPENREG_TRITON_CHECK": "0"})
        self.assertEqual(result.stdout, "ran\n")


instantiate_parametrized_tests(TestKernels)

if __name__ == "__main__":
    run_tests()
