"""How Triton finds our devices, and leaves other targets to their own compilers."""

import torch
from common import DEVICE_TYPE, run_program, run_tests
from extras.triton.kernels import HAS_TRITON, TritonTestCase, needs_triton

if HAS_TRITON:
    import triton
    from extras.triton.kernels import add_kernel
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler.compiler import make_backend
    from triton.runtime import driver


@needs_triton
class TestBackend(TritonTestCase):
    def backend(self):
        return make_backend(driver.active.get_current_target())

    def test_target_has_the_name_of_the_device_type(self):
        target = driver.active.get_current_target()
        self.assertEqual((target.backend, target.arch, target.warp_size), (DEVICE_TYPE, 80, 32))
        self.assertEqual(driver.active.get_active_torch_device().type, DEVICE_TYPE)

    def test_options_of_cuda_and_hip_are_accepted(self):
        options = self.backend().parse_options(
            {"num_warps": 8, "maxnreg": 64, "waves_per_eu": 2, "debug": True}
        )
        self.assertEqual((options.num_warps, options.maxnreg, options.waves_per_eu), (8, 64, 2))
        other = self.backend().parse_options({"num_warps": 4})
        self.assertNotEqual(options.hash(), other.hash())

    def test_unknown_options_are_refused_by_triton(self):
        x = torch.ones(4, device=DEVICE_TYPE)
        with self.assertRaisesRegex(KeyError, "no_such_option"):
            add_kernel[(1,)](x, x, x, 4, BLOCK=4, no_such_option=1)

    def test_clusters_need_the_capability_that_cuda_needs(self):
        with self.assertRaisesRegex(ValueError, "num_ctas > 1 requires NVIDIA SM90"):
            self.backend().parse_options({"num_ctas": 2})

    def test_smallest_product_is_that_of_the_device_type(self):
        options = self.backend().parse_options({})
        smallest = self.backend().get_codegen_implementation(options)["min_dot_size"]
        half = triton.language.block_type(triton.language.float16, [16, 16])
        expected = (1, 1, 16) if DEVICE_TYPE == "cuda" else (1, 1, 1)
        self.assertEqual(smallest(half, half), expected)

    def test_gluon_is_refused(self):
        from triton.backends.compiler import Language

        with self.assertRaisesRegex(triton.CompilationError, "Gluon programs the parts of a GPU"):
            self.backend().add_stages({}, self.backend().parse_options({}), Language.GLUON)

    def test_target_of_a_gpu_is_compiled_to_its_assembly(self):
        signature = {"x_ptr": "*fp32", "y_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32"}
        source = ASTSource(add_kernel, {**signature, "BLOCK": "constexpr"}, {"BLOCK": 64})
        kernel = triton.compile(source, target=GPUTarget("cuda", 90, 32))
        self.assertIn(".target sm_90a", kernel.asm["ptx"])
        own = triton.compile(source, target=driver.active.get_current_target())
        self.assertNotIn("ptx", own.asm)

    def test_key_of_compiled_kernels_has_the_compiler(self):
        from torch_openreg.extras.triton import _stages

        key = self.backend().hash()
        _stages._key_of_sources.cache_clear()
        before = _stages._compile.compiler_key
        _stages._compile.compiler_key = lambda: "another machine"
        try:
            self.assertNotEqual(self.backend().hash(), key)
        finally:
            _stages._compile.compiler_key = before
            _stages._key_of_sources.cache_clear()

    def test_clearing_what_a_benchmark_leaves_in_caches(self):
        filler = driver.active.get_empty_cache_for_benchmark()
        self.assertEqual(filler.device.type, DEVICE_TYPE)
        driver.active.clear_cache(filler.fill_(1))
        self.assertEqual(int(filler.sum()), 0)

    def test_types_in_cpp(self):
        types = {"*fp32": "void*", "i1": "int8_t", "i32": "int32_t", "u64": "uint64_t"}
        types["bf16"] = "double"
        for name, expected in types.items():
            self.assertEqual(driver.active.map_python_to_cpp_type(name), expected)


@needs_triton
class TestImports(TritonTestCase):
    def test_triton_without_our_device_finds_no_driver(self):
        code = """
            import sys

            import triton
            from triton.runtime import driver

            assert "torch" not in sys.modules, "import triton imports torch"
            assert "triton_openreg.driver" in sys.modules
            try:
                driver.active
            except RuntimeError as error:
                print(error)
        """
        # The last is set for children in cuda mode.
        settings = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "TRITON_DEFAULT_BACKEND": ""}
        output = run_program(code, settings).stdout
        self.assertTrue(output.startswith("0 active drivers"), output)

    def test_cuda_mode_chooses_our_driver_for_children_too(self):
        code = """
            import os
            import subprocess
            import sys

            import torch

            child = "from triton.runtime import driver; print(driver.active)"
            command = [sys.executable, "-c", child]
            print(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            print(os.environ["TRITON_DEFAULT_BACKEND"])
        """
        output = run_program(code, {"OPENREG_DEVICE_TYPE": "cuda"}).stdout
        self.assertIn("triton_openreg.driver.OpenRegDriver", output)
        self.assertTrue(output.endswith("openreg\n"), output)

    def test_backends_are_complete_whatever_the_base_classes_demand(self):
        code = """
            import abc

            import triton.backends.compiler as compiler
            import triton.backends.driver as driver

            for base in (compiler.BaseBackend, driver.DriverBase):
                base.added = abc.abstractmethod(lambda self: None)
                base.__abstractmethods__ |= {"added"}
            import importlib
            import inspect

            import triton_openreg.compiler
            import triton_openreg.driver

            for module in (triton_openreg.compiler, triton_openreg.driver):
                importlib.reload(module)
            assert not inspect.isabstract(triton_openreg.compiler.OpenRegBackend)
            assert not inspect.isabstract(triton_openreg.driver.OpenRegDriver)
        """
        run_program(code)


if __name__ == "__main__":
    run_tests()
