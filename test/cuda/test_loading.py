"""The device type CUDA: how and when it is selected, and its effects in a process."""

import subprocess
import sys
import tempfile

import pytest
import torch
from common import (
    BUILD_HAS_CUDA,
    OpenRegTestCase,
    instantiate_parametrized_tests,
    make_cuda_driver,
    parametrize,
    run_program,
    run_tests,
    subtest,
)

from torch_openreg import _C

pytestmark = pytest.mark.sample(0.045)

USE = "print(torch.ones(2, device='cuda').sum().item(), torch.cuda.device_count())"
NOTICE = "torch_openreg: CUDA is emulated on the CPU"


class TestIdentity(OpenRegTestCase):
    def test_torch_sees_cuda(self):
        self.assertTrue(torch.cuda.is_available())
        self.assertTrue(torch.backends.cuda.is_built())
        self.assertTrue(_C._has_cuda_hooks())
        self.assertEqual(torch.accelerator.current_accelerator(), torch.device("cuda"))

    def test_programs_can_ask_whether_it_is_real(self):
        self.assertTrue(torch.cuda.is_emulated)
        self.assertEqual(torch.version.cuda is not None, BUILD_HAS_CUDA)
        self.assertIn("OpenReg", torch.cuda.get_device_name())

    def test_tensors_are_on_cuda(self):
        x = torch.arange(3.0).cuda()
        self.assertTrue(x.is_cuda)
        self.assertEqual(repr(x), "tensor([0., 1., 2.], device='cuda:0')")
        self.assertEqual(x.type(), "torch.cuda.FloatTensor")
        keys = torch._C._dispatch_keys(x)
        self.assertTrue(keys.has(torch._C.DispatchKey.CUDA))
        self.assertFalse(keys.has(torch._C.DispatchKey.PrivateUse1))

    def test_devices_are_not_mixed(self):
        x, y = torch.ones(2, device="cuda:0"), torch.ones(2, device="cuda:1")
        with self.assertRaisesRegex(RuntimeError, "same device.*cuda:0 and cuda:1"):
            x + y
        with self.assertRaisesRegex(RuntimeError, "same device.*cuda:0 and cpu"):
            x + torch.ones(2)

    def test_kernels_of_other_libraries_under_the_key_cuda_are_called(self):
        with torch.library._scoped_library("openreg_test_cuda", "FRAGMENT") as library:
            library.define("twice(Tensor x) -> Tensor")
            library.impl("twice", lambda x: x * 2, "CUDA")
            x = torch.ones(2, device="cuda")
            self.assertEqual(torch.ops.openreg_test_cuda.twice(x), x * 2)

    def test_module_openreg_is_there_for_what_cuda_lacks(self):
        from torch.openreg import fallback_stats

        self.assertIs(torch.openreg.fallback_stats, fallback_stats)


class TestOrders(OpenRegTestCase):
    @parametrize(
        "imports",
        [
            subtest("import torch", name="autoload"),
            subtest("import torch_openreg, torch", name="package_first"),
            subtest("import torch, torch_openreg", name="package_last"),
            subtest("import torch.nn; import torch_openreg", name="submodule_first"),
        ],
    )
    def test_imports(self, imports):
        self.assertEqual(run_program(f"{imports}\n{USE}").stdout.split(), ["2.0", "2"])

    @parametrize(
        "use",
        [
            subtest("torch.openreg.init()", name="init"),
            subtest("torch.openreg.current_stream()", name="current_stream"),
            subtest("torch.Stream('cuda')", name="stream"),
            subtest("torch.cuda.Event().record()", name="event"),
        ],
    )
    def test_a_seed_before_the_first_use_holds(self, use):
        run_program(
            f"""
            import torch
            torch.manual_seed(5)
            {use}
            x = torch.rand(3, device="cuda")
            torch.manual_seed(5)
            assert torch.equal(x.cpu(), torch.rand(3))
            """
        )

    @parametrize("autoload", ["0", "1"])
    @parametrize(
        "imports",
        [
            subtest("import torch, torch_openreg", name="package_last"),
            subtest("import torch_openreg, torch", name="package_first"),
        ],
    )
    def test_overrides_of_torch_for_gpus_are_removed_without_a_warning(self, imports, autoload):
        result = run_program(
            f"""
            {imports}
            from torch._native import registry
            x = [torch.ones(2, 2, device="cuda")]
            assert torch._foreach_mm(x, x)[0].sum().item() == 8
            # Renamed in torch 2.15, whose keys have the dispatch key last.
            found = getattr(registry, "_aten_override_libs", None)
            found = registry._override_libs if found is None else found
            print([key for key in found if "CUDA" in key])
            """,
            {"TORCH_DEVICE_BACKEND_AUTOLOAD": autoload, "OPENREG_CUDA_NOTICE": "0"},
        )
        self.assertEqual((result.stdout, result.stderr), ("[]\n", ""))

    def test_without_autoload_an_import_registers(self):
        program = f"import torch\nprint(torch.cuda.is_available())\nimport torch_openreg\n{USE}"
        output = run_program(program, {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}).stdout
        self.assertEqual(output.split(), ["False", "2.0", "2"])

    def test_spawned_child_and_its_use_of_the_same_variable(self):
        program = """
        import torch
        import torch.multiprocessing as mp
        def work(queue):
            queue.put(torch.ones(3, device="cuda:1").sum().item())
        if __name__ == "__main__":
            torch.ones(1, device="cuda")
            context = mp.get_context("spawn")
            queue = context.Queue()
            child = context.Process(target=work, args=(queue,))
            child.start()
            print(queue.get())
            child.join()
        """
        import tempfile
        import textwrap
        from pathlib import Path

        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "program.py"
            file.write_text(textwrap.dedent(program))
            run = subprocess.run(
                [sys.executable, str(file)], capture_output=True, text=True, timeout=240, check=True
            )
        self.assertEqual(run.stdout.strip(), "3.0")

    def test_child_forked_before_the_first_use_works(self):
        program = f"""
        import os, torch
        assert torch.cuda.is_available()
        if os.fork() == 0:
            {USE}
            os._exit(0)
        print(os.wait()[1])
        """
        self.assertEqual(run_program(program).stdout.split()[-1], "0")

    def test_child_forked_after_use_is_refused_in_cuda_s_words(self):
        program = """
        import os, torch
        torch.ones(1, device="cuda")
        if os.fork() == 0:
            try:
                torch.ones(1, device="cuda")
            except RuntimeError as error:
                print(error, flush=True)
            os._exit(0)
        os.wait()
        """
        self.assertIn(
            "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you "
            "must use the 'spawn' start method",
            run_program(program).stdout,
        )


class TestRefusals(OpenRegTestCase):
    def import_error(self, program: str, **settings: str) -> str:
        code = f"""
        try:
            {program}
        except ImportError as error:
            print(error)
        """
        return run_program(code, {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", **settings}).stdout

    def test_bad_value_at_import(self):
        text = self.import_error("import torch_openreg", OPENREG_DEVICE_TYPE="gpu")
        self.assertIn("OPENREG_DEVICE_TYPE is 'gpu'; allowed: openreg, cuda or none", text)

    @parametrize("before", [None, "openreg"])
    def test_a_choice_that_comes_too_late_is_an_error_of_device_cuda(self, before):
        program = """
        import os
        os.environ.pop("OPENREG_DEVICE_TYPE")
        {set}
        import torch
        for is_late in (False, True):
            for use in (torch.cuda.init, lambda: torch.ones(1, device="cuda"), torch.ones(1).cuda):
                try:
                    use()
                except AssertionError as error:
                    print(error)
                except RuntimeError as error:
                    assert "NVIDIA driver" in str(error), error
            os.environ["OPENREG_DEVICE_TYPE"] = "cuda"
        """
        # In two parts, since programs of tests are changed to say cuda.
        text = "pass"
        if before is not None:
            text = f"os.environ['OPENREG_DEVICE_TYPE'] = {before[:4]!r} + {before[4:]!r}"
        lines = run_program(program.format(set=text)).stdout.splitlines()
        text = "OPENREG_DEVICE_TYPE was not 'cuda'"
        if BUILD_HAS_CUDA:  # and finds no driver
            self.assertEqual(len(lines), 3)
        else:
            own = "Torch not compiled with CUDA enabled"
            self.assertEqual(lines[:3], [own] * 3)
            self.assertEqual(len(lines), 6)
            text = f"{own}, and {text}"
        for line in lines[-3:]:
            self.assertTrue(line.startswith(text), line)

    def test_index_beyond_the_devices_names_the_setting_and_the_option(self):
        program = """
        import torch
        for use in (lambda: torch.cuda.set_device(2), lambda: torch.ones(1, device="cuda:2")):
            try:
                use()
            except RuntimeError as error:
                print(repr(str(error)))
        """
        lines = run_program(program).stdout.splitlines()
        self.assertEqual(len(lines), 2)
        for line in lines:
            self.assertTrue(line.startswith("'CUDA error: invalid device ordinal\\n"), line)
            self.assertIn("OPENREG_DEVICE_COUNT", line)
            self.assertIn("--devices of python -m torch_openreg.cuda", line)

    @parametrize("name,value", [("CUDA_VISIBLE_DEVICES", "5"), ("OPENREG_VISIBLE_DEVICES", "")])
    def test_text_without_a_device_names_the_variable_that_is_set(self, name, value):
        program = """
        import torch
        for use in (torch.cuda.init, torch.ones(1).cuda):
            try:
                use()
            except RuntimeError as error:
                print(error)
        """
        lines = run_program(program, {name: value}).stdout.splitlines()
        text = f"{name} is '{value}', and devices are numbered from 0 to 1"
        self.assertEqual(lines, [f"No CUDA device is available: {text}"] * 2)

    def test_bad_value_does_not_break_import_torch(self):
        run = run_program("import torch; print(1)", {"OPENREG_DEVICE_TYPE": "gpu"})
        self.assertEqual(run.stdout.strip(), "1")
        self.assertIn("OPENREG_DEVICE_TYPE is 'gpu'", run.stderr)

    def test_build_of_torch_for_rocm(self):
        text = self.import_error("import torch; torch.version.hip = '6.4'; import torch_openreg")
        self.assertIn("needs a build of torch for CUDA or for the CPU", text)

    def test_gpus_that_torch_can_use(self):
        """They are in use, unless the program asks for ours by name; see `build`."""
        program = """
        import torch
        torch.version.cuda = torch.version.cuda or "12.8"  # of the other build, if it is not one
        import torch_openreg
        print(torch.ones(2, device="cuda").sum().item())
        """
        with tempfile.TemporaryDirectory() as folder:
            settings = make_cuda_driver(folder)
            refused = run_program(program, settings, False)
            over = run_program(program, settings | {"OPENREG_CUDA_OVER_GPU": "1"})
        self.assertIn("but this machine has 3 that torch", refused.stderr)
        self.assertIn("OPENREG_CUDA_OVER_GPU=1 hides them from this process", refused.stderr)
        self.assertEqual(over.stdout.strip(), "2.0")

    def test_hooks_that_torch_does_not_see(self):
        program = """
        import importlib.util, os, torch
        # The native library without the package: for the look at the hooks alone.
        folder = importlib.util.find_spec("torch_openreg").submodule_search_locations[0]
        names = [name for name in os.listdir(folder) if name.startswith("_C.") and "so" in name]
        spec = importlib.util.spec_from_file_location(
            "torch_openreg._C", os.path.join(folder, names[0])
        )
        native = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(native)
        native._has_cuda_hooks = lambda: False
        import sys
        sys.modules["torch_openreg._C"] = native
        try:
            import torch_openreg
        except ImportError as error:
            print(error)
        """
        text = run_program(program, {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}).stdout
        self.assertIn("does not use the CUDA hooks", text)

    @parametrize("before,after", [("openreg", "cuda"), ("cuda", "openreg")])
    def test_variable_changed_after_the_import(self, before, after):
        program = """
        import os, torch
        os.environ["OPENREG_DEVICE_TYPE"] = os.environ["AFTER"]
        try:
            torch.ones(1, device=os.environ["BEFORE"])
        except RuntimeError as error:
            print(error)
        """
        settings = {"OPENREG_DEVICE_TYPE": before, "BEFORE": before, "AFTER": after}
        text = run_program(program, settings).stdout
        self.assertIn(
            f"OPENREG_DEVICE_TYPE changed from '{before}' to '{after}' after torch_openreg was",
            text,
        )


class TestNotice(OpenRegTestCase):
    def test_first_use_says_so_once_in_one_line(self):
        run = run_program(
            f"import torch, sys; sys.stderr.write('before ')\n{USE}\n{USE}",
            {"OPENREG_CUDA_NOTICE": "1"},
        )
        self.assertEqual(len(run.stderr.strip().splitlines()), 1, run.stderr)
        self.assertTrue(run.stderr.startswith(f"before {NOTICE}"), run.stderr)

    def test_it_can_be_silenced(self):
        self.assertEqual(
            run_program(f"import torch\n{USE}", {"OPENREG_CUDA_NOTICE": "0"}).stderr, ""
        )


class TestVariablesOfCuda(OpenRegTestCase):
    @parametrize(
        "text,indices",
        [
            subtest(("1", [1]), name="one"),
            subtest(("2,0", [2, 0]), name="order"),
            subtest(("", []), name="empty"),
            subtest(("-1", []), name="none"),
            subtest(("0, 2", [0, 2]), name="space"),
            subtest(("1,7,0", [1]), name="ends_at_the_first_that_is_missing"),
            subtest(("1,1", []), name="twice"),
            subtest(("0,1,2,3,4,5,6,7", [0, 1, 2]), name="more_than_there_are"),
        ],
    )
    def test_visible_devices(self, text, indices):
        program = """
        import torch
        c = torch.cuda
        print([int(c.get_device_properties(i).uuid[-4:], 16) for i in range(c.device_count())])
        """
        settings = {"CUDA_VISIBLE_DEVICES": text, "OPENREG_DEVICE_COUNT": "3"}
        self.assertEqual(run_program(program, settings).stdout.strip(), str(indices))

    def test_visible_devices_may_be_set_between_import_and_first_use(self):
        program = f"import os, torch\nos.environ['CUDA_VISIBLE_DEVICES'] = '1'\n{USE}"
        self.assertEqual(run_program(program).stdout.split(), ["2.0", "1"])

    def test_own_variable_comes_first(self):
        settings = {"CUDA_VISIBLE_DEVICES": "0", "OPENREG_VISIBLE_DEVICES": "0,1"}
        self.assertEqual(run_program(f"import torch\n{USE}", settings).stdout.split(), ["2.0", "2"])

    def test_they_mean_nothing_to_openreg(self):
        program = "import torch; print(torch.openreg.device_count())"
        settings = {"CUDA_VISIBLE_DEVICES": "0", "OPENREG_DEVICE_TYPE": "openreg"}
        self.assertEqual(run_program(program, settings).stdout.strip(), "2")

    @parametrize("text,is_blocking", [("1", True), ("0", False), ("yes", False)])
    def test_launch_blocking(self, text, is_blocking):
        program = """
        import torch
        from torch_openreg import _C
        x = torch.zeros(1, device="cuda")
        torch.cuda.synchronize()
        torch.cuda._sleep(100_000_000)
        print(torch.cuda.current_stream().query())
        """
        output = run_program(program, {"CUDA_LAUNCH_BLOCKING": text}).stdout
        self.assertEqual(output.strip(), str(is_blocking))

    def test_alloc_conf(self):
        program = """
        import torch
        torch.ones(1, device="cuda")
        print(torch.cuda.memory._snapshot()["allocator_settings"]["max_split_size"])
        """
        output = run_program(program, {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}).stdout
        self.assertEqual(output.strip(), str(64 << 20))

    @parametrize("text,pair", [("9.0", (9, 0)), (None, (8, 0))])
    def test_capability(self, text, pair):
        program = "import torch; print(torch.cuda.get_device_capability())"
        settings = {} if text is None else {"OPENREG_CUDA_CAPABILITY": text}
        self.assertEqual(run_program(program, settings).stdout.strip(), str(pair))


class TestTable(OpenRegTestCase):
    def test_what_is_refused_says_why_in_one_line(self):
        from torch_openreg.extras.cuda import absent

        for name in absent.REFUSED:
            with self.subTest(name=name), self.assertRaises(NotImplementedError) as caught:
                getattr(torch._C, name)()
            text = str(caught.exception)
            self.assertTrue(text.startswith(f"torch._C.{name}: not available on emulated CUDA: "))
            self.assertNotIn("\n", text)

    def test_what_is_left_out_is_not_there(self):
        from torch_openreg.extras.cuda import absent

        self.assertFalse([name for name in absent.LEFT_OUT if hasattr(torch._C, name)])


instantiate_parametrized_tests(TestOrders)
instantiate_parametrized_tests(TestRefusals)
instantiate_parametrized_tests(TestVariablesOfCuda)

if __name__ == "__main__":
    run_tests()
