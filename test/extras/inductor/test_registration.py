"""What Dynamo finds before anything was compiled: the backend "openreg", and the interface."""

import unittest

import pytest
import torch
from common import (
    DEVICE_COUNT,
    DEVICE_TYPE,
    OpenRegTestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_program,
    run_tests,
    subtest,
)
from extras.inductor.compiled import CompiledTestCase, kernel_sources
from torch._dynamo.backends.registry import list_backends, lookup_backend
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters

pytestmark = pytest.mark.sample(0.093)


def chain(x):
    return (x + 1).relu() * 2


class TestBackend(CompiledTestCase):
    def test_backend_is_listed(self):
        self.assertIn("openreg", list_backends())

    def test_graph_becomes_one_fused_kernel_on_the_stream(self):
        x = torch.randn(16)
        with kernel_sources() as kernels:
            result = torch.compile(chain, backend="openreg", fullgraph=True)(x.to(DEVICE_TYPE))
        self.assertEqual(result.device.type, DEVICE_TYPE)
        self.assert_bit_equal(result, chain(x))
        self.assertEqual(len(kernels), 1)

    def test_graph_on_the_cpu_is_compiled_as_by_inductor(self):
        x = torch.randn(16)
        with kernel_sources() as kernels:
            result = torch.compile(chain, backend="openreg", fullgraph=True)(x)
        self.assertEqual(result.device.type, "cpu")
        self.assert_bit_equal(result, chain(x))
        self.assertEqual(len(kernels), 1)

    def test_backward_is_compiled_too(self):
        x = torch.randn(16).to(DEVICE_TYPE).requires_grad_()
        with kernel_sources() as kernels:
            torch.compile(lambda x: chain(x).sum(), backend="openreg")(x).backward()
        self.assert_bit_equal(x.grad, (x.detach().cpu() + 1 > 0) * 2.0)
        self.assertEqual(len(kernels), 2)

    @parametrize("dynamic", [False, True])
    def test_sizes_are_compiled_for(self, dynamic):
        counter = CompileCounterWithBackend("openreg")
        compiled = torch.compile(chain, backend=counter, dynamic=dynamic)
        for size in (5, 5, 7):
            x = torch.randn(size)
            self.assert_bit_equal(compiled(x.to(DEVICE_TYPE)), chain(x))
        self.assertEqual(counter.frame_count, 1 if dynamic else 2)

    def test_graph_break_compiles_both_sides(self):
        def broken(x):
            y = x + 1
            torch._dynamo.graph_break()
            return y * 2

        counter = CompileCounterWithBackend("openreg")
        x = torch.randn(4)
        self.assert_bit_equal(
            torch.compile(broken, backend=counter)(x.to(DEVICE_TYPE)), (x + 1) * 2
        )
        self.assertEqual(counter.frame_count, 2)

    def test_copy_to_the_cpu_breaks_no_graph(self):
        x = torch.randn(4)
        compiled = torch.compile(lambda x: chain(x).cpu() * 2, backend="openreg", fullgraph=True)
        self.assert_bit_equal(compiled(x.to(DEVICE_TYPE)), chain(x) * 2)

    def test_autocast_and_default_device_are_followed(self):
        def product(x):
            with torch.autocast(DEVICE_TYPE, dtype=torch.bfloat16):
                return x @ torch.ones(3, 3)

        with torch.device(DEVICE_TYPE):
            result = torch.compile(product, backend="openreg")(torch.ones(2, 3))
        self.assertEqual((result.dtype, result.device.type), (torch.bfloat16, DEVICE_TYPE))
        self.assertEqual(result.tolist(), [[3.0] * 3] * 2)

    def test_mode_reaches_inductor(self):
        counters.clear()
        compiled = torch.compile(chain, backend="openreg", mode="reduce-overhead")
        x = torch.randn(8)
        for _ in range(3):
            self.assert_bit_equal(compiled(x.to(DEVICE_TYPE)), chain(x))
        self.assertEqual(counters["openreg_graphs"]["captured"], 1)

    def test_options_reach_inductor(self):
        x = torch.zeros(3, device=DEVICE_TYPE)
        with kernel_sources() as kernels:
            torch.compile(chain, backend="openreg", options={"cpp.simdlen": 1})(x)
        self.assertNotIn("at::vec::Vectorized", kernels[0])
        with self.assertRaisesRegex(Exception, "Unexpected optimization option unheard_of"):
            torch.compile(chain, backend="openreg", options={"unheard_of": 1})(x)

    def test_backend_is_a_function_that_takes_a_graph(self):
        graph = torch.fx.symbolic_trace(chain)
        x = torch.randn(4)
        compiled = lookup_backend("openreg")(graph, [x.to(DEVICE_TYPE)])
        self.assert_bit_equal(compiled(x.to(DEVICE_TYPE)), chain(x))


class TestBeforeACompile(OpenRegTestCase):
    """Each in a process that has compiled nothing."""

    @unittest.skipIf(DEVICE_TYPE == "cuda", "as CUDA, torch has an interface of its own")
    @parametrize(
        "imports",
        [
            subtest("import torch, torch._dynamo", name="dynamo_after"),
            subtest("import torch, torch._dynamo, torch_openreg", name="dynamo_before"),
        ],
    )
    @parametrize("autoload", ["0", "1"])
    def test_interface_answers(self, imports, autoload):
        if autoload == "0" and "torch_openreg" not in imports:
            imports = imports.replace("import torch,", "import torch, torch_openreg,")
        output = run_program(
            imports
            + """
from torch._dynamo.device_interface import get_interface_for_device
interface = get_interface_for_device("openreg")
print(interface.device_count(), interface.current_device(), interface.is_available())
assert interface is get_interface_for_device(torch.device("openreg:1"))
import sys
assert "torch._inductor.codegen.cpp" not in sys.modules
""",
            {"TORCH_DEVICE_BACKEND_AUTOLOAD": autoload},
        )
        self.assertEqual(output.stdout.split(), [str(DEVICE_COUNT), "0", "True"])

    def test_backend_is_listed_and_names_no_other_devices(self):
        output = run_program(
            """
            import torch
            from torch._dynamo.backends.registry import list_backends
            from torch._dynamo.device_interface import get_interface_for_device
            print("open" + "reg" in list_backends())
            try:
                print(get_interface_for_device("open" + "reg").__name__)
            except NotImplementedError:
                print("no interface")
            """
        )
        expected = "no interface" if DEVICE_TYPE == "cuda" else "OpenRegInterface"
        self.assertEqual(output.stdout.split("\n")[:2], ["True", expected])

    @unittest.skipIf(DEVICE_TYPE == "cuda", "as CUDA, torch registers a backend of its own")
    def test_function_that_torch_2_15_calls_registers_the_backend(self):
        run_program(
            """
            import torch
            from torch._inductor.codegen.common import get_scheduling_for_device

            assert get_scheduling_for_device("openreg") is None
            for _ in range(2):
                torch.openreg._inductor_backend_init()
            assert get_scheduling_for_device("openreg") is not None
            """
        )

    def test_import_of_dynamo_reads_no_setting(self):
        output = run_program(
            """
            import torch, torch._dynamo, os
            os.environ["OPENREG_DEVICE_COUNT"] = "5"
            print(torch.openreg.device_count())
            """
        )
        self.assertEqual(output.stdout.strip(), "5")

    def test_import_of_torch_imports_of_ours_what_every_program_needs(self):
        output = run_program(
            """
            import sys, torch
            names = [name.split(".") for name in sys.modules]
            print(*(name[1] for name in names if name[0] == "torch_openreg" and len(name) == 2))
            """
        )
        needed = {
            "_C",
            "_backward_calls",
            "_comm",
            "_device_name",
            "_fake_tensors",
            "_imports",
            "_loading",
            "_torch_release",
        }
        needed |= {"_settings", "_version", "distributed", "dynamo", "extras", "openreg"}
        needed |= set() if DEVICE_TYPE == "cuda" else {"backends"}
        self.assertEqual(set(output.stdout.split()) - needed, set())

    @pytest.mark.slow
    def test_dynamo_that_lacks_something_is_imported_all_the_same(self):
        output = run_program(
            """
            import torch, sys
            import importlib.abc

            class Renaming(importlib.abc.MetaPathFinder):
                def find_spec(self, name, path, target=None):
                    if name == "torch_openreg.dynamo._interface":
                        raise ImportError("cannot import name 'DeviceInterface'")

            sys.meta_path.insert(0, Renaming())
            print(torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)).item())
            print("torch_openreg.dynamo._backend" in sys.modules)
            try:
                torch.compile(lambda x: x + 1)(torch.ones(1, device="openreg"))
            except Exception as error:
                print("cannot import name 'DeviceInterface'; use" in str(error))
            """
        )
        self.assertEqual(output.stdout.split(), ["2.0", "True", "True"])


instantiate_parametrized_tests(TestBackend)
instantiate_parametrized_tests(TestBeforeACompile)

if __name__ == "__main__":
    run_tests()
