"""``python -m openreg_bringup``: which operators ran on the CPU, and what to register."""

import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from common import run_children
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)

import openreg_bringup

pytestmark = pytest.mark.sample(0.5)

# A package with a device, which torch finds by its entry point: it has no kernels, and counters
# that say what a program has told them.
_CHIP = """
import torch

calls = {}
copied = {}

class Module:
    @staticmethod
    def fallback_stats():
        return calls

    @staticmethod
    def fallback_copied_bytes():
        return copied

def autoload():
    torch.utils.rename_privateuse1_backend("mychip")
    torch._register_device_module("mychip", Module)
"""
_FALLS_BACK = "import torch; torch.fft.fft(torch.ones(4, device='openreg'))"


class BringupTestCase(TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def run_tool(self, *arguments: object, status: int = 0) -> subprocess.CompletedProcess[str]:
        names = [name for name in os.environ if not name.startswith(("OPENREG_", "TORCH_DEVICE"))]
        environment = {name: os.environ[name] for name in names} | {"PYTHONPATH": str(self.folder)}
        process = subprocess.run(
            [sys.executable, "-m", "openreg_bringup", *map(str, arguments)],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
        )
        self.assertEqual(process.returncode, status, process.stdout + process.stderr)
        return process


class TestPrograms(BringupTestCase):
    """On openreg, whose fallback counts."""

    def run_main(self, *arguments: object, status: int = 0) -> str:
        """Runs the tool in a process that has imported torch; returns all that it prints."""
        code = f"""
        import os
        os.chdir({str(self.folder)!r})
        import openreg_bringup
        openreg_bringup.main({["--device=openreg", *map(str, arguments)]!r})
        """
        (child,) = run_children([(code, {})])
        self.assertEqual(child.returncode, status, child.output)
        return child.output

    def test_script_gets_its_arguments_and_the_table_follows_its_output(self):
        self.write("programs/beside.py", f"def fall_back():\n    {_FALLS_BACK}\n")
        script = self.write(
            "programs/train.py",
            "import sys\nfrom beside import fall_back\nfall_back()\nfall_back()\n"
            "print(__name__, sys.argv[1:], sys.argv[0] == __file__)\n",
        )
        output = self.run_tool("--device=openreg", script, "--device", "x").stdout
        lines = output.splitlines()
        self.assertEqual(lines[0], "__main__ ['--device', 'x'] True")
        self.assertEqual(lines[1], "operators that ran on the CPU instead of openreg:")
        self.assertRegex(output, r"\n {8}2 +\d+  aten::_fft_r2c\n")
        self.assertIn("\naten::_fft_r2c(Tensor self, int[] dim, ", output)
        self.assertIn(
            "pytest --pyargs torch_openreg.conformance \\\n"
            "  --device=openreg --conformance-operators=aten::_fft_r2c\n",
            output,
        )
        self.assertEqual(self.run_main(script, "--device", "x"), output)

    def test_module_runs_as_python_runs_it(self):
        self.write("package/__init__.py", "")
        self.write("package/run.py", f"import sys\n{_FALLS_BACK}\nprint(__name__, sys.argv)\n")
        output = self.run_main("-m", "package.run", "-m")
        place = self.folder / "package" / "run.py"
        self.assertIn(f"__main__ {[str(place), '-m']!r}\n", output)
        self.assertIn("aten::_fft_r2c", output)

    def test_command_runs_as_python_runs_it(self):
        command = f"import sys; {_FALLS_BACK}; print(__name__, sys.argv)"
        output = self.run_main("-c", command, "-c", "5")
        self.assertIn("__main__ ['-c', '-c', '5']\n", output)
        self.assertIn("aten::_fft_r2c", output)

    def test_program_that_fails_has_a_table_and_its_own_status(self):
        for end, status, text in (
            ("raise KeyError('the end')", 1, "KeyError: 'the end'"),
            ("import sys; sys.exit(7)", 7, ""),
        ):
            output = self.run_main("-c", f"{_FALLS_BACK}\n{end}", status=status)
            self.assertIn("aten::_fft_r2c", output)
            self.assertIn(text, output)

    def test_operator_without_any_kernel_that_ends_the_program_has_its_schema(self):
        x = "torch.ones(1, 4)"
        for call, schema in (
            (f"_thnn_fused_lstm_cell({x}, {x}, {x})", "aten::_thnn_fused_lstm_cell(Tensor input_"),
            (
                f"convolution_overrideable({x}, {x}, None, [1], [0], [1], False, [0], 1)",
                "aten::convolution_overrideable(Tensor input, Tensor weight, ",
            ),
        ):
            output = self.run_main("-c", f"import torch; torch.ops.aten.{call}", status=1)
            self.assertIn(
                "\nwhere the program ended: an operator that neither openreg nor the CPU has\n\n"
                f"{schema}",
                output,
            )
        for error in ("NotImplementedError('of the program')", "KeyError('x_overrideable')"):
            output = self.run_main("-c", f"raise {error}", status=1)
            self.assertNotIn("where the program ended", output)

    def test_program_without_fallbacks_says_so(self):
        self.assertEqual(
            self.run_main("-c", "pass"), "no operator ran on the CPU instead of openreg\n"
        )


class TestOtherBackend(BringupTestCase):
    """Beside openreg, which is installed, too, and stays out."""

    def setUp(self):
        super().setUp()
        self.write("chip_of_the_test.py", _CHIP)
        self.write(
            "chip_of_the_test-1.0.dist-info/entry_points.txt",
            "[torch.backends]\nmychip = chip_of_the_test:autoload\n",
        )
        self.write("chip_of_the_test-1.0.dist-info/METADATA", "Name: chip_of_the_test\n")

    def test_nothing_of_openreg_is_loaded(self):
        program = """if True:
            import sys, torch
            assert torch._C._get_privateuse1_backend_name() == "mychip"
            assert "openreg" not in open("/proc/self/maps").read()
            print("torch_openreg._C" in sys.modules)
        """
        self.assertTrue(self.run_tool("--device=mychip", "-c", program).stdout.startswith("False"))

    def test_table_has_the_most_called_first_and_one_schema_for_a_structured_group(self):
        program = """if True:
            import chip_of_the_test as chip
            chip.calls |= {"aten::relu_": 1, "aten::mul.out": 1234, "aten::relu": 1}
            chip.copied |= {"aten::relu_": 16, "aten::mul.out": 1048576, "aten::relu": 8}
        """
        path = self.folder / "report.json"
        process = self.run_tool("--device=mychip", f"--json={path}", "-c", program)
        self.assertEqual(
            process.stdout,
            """\
operators that ran on the CPU instead of mychip:

    calls    bytes copied  operator
    1,234       1,048,576  aten::mul.out
        1              16  aten::relu_
        1               8  aten::relu
    1,236       1,048,600  all

what to register, in this order:

aten::mul.out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)
    serves aten::mul.Tensor, aten::mul_.Tensor, too

aten::relu(Tensor self) -> Tensor
aten::relu_(Tensor(a!) self) -> Tensor(a!)
    serves aten::relu.out, too

what tests it: pytest --pyargs torch_openreg.conformance \\
  --device=mychip --conformance-operators=aten::mul,aten::relu
""",
        )
        report = json.loads(path.read_text())
        self.assertEqual(report["device"], "mychip")
        first = report["operators"][0]
        self.assertEqual(
            (first["operator"], first["calls"], first["copied_bytes"], first["has_kernel"]),
            ("aten::mul.out", 1234, 1048576, False),
        )
        self.assertEqual(first["group"]["composed"], ["aten::mul.Tensor", "aten::mul_.Tensor"])

    def test_operators_with_a_kernel_are_marked_and_those_without_schemas_have_their_names(self):
        program = """if True:
            import torch
            import chip_of_the_test as chip
            kept = chip.library = torch.library.Library("aten", "IMPL")
            kept.impl("add.Tensor", lambda *_: None, "PrivateUse1")
            chip.calls |= {"aten::add.Tensor": 2, "program::op": 1}
        """
        output = self.run_tool("--device=mychip", "-c", program).stdout
        self.assertIn("  aten::add.Tensor  (its kernel called the fallback)\n", output)
        self.assertIn("\naten::add.out(Tensor self, Tensor other, *, Scalar alpha=1, ", output)
        self.assertIn("    serves aten::add_.Tensor, too\n", output)
        # The program's own library has ended with it.
        self.assertIn("\n\nprogram::op\n", output)

    def test_command_of_the_kit_is_one_that_runs_without_torch_openreg(self):
        program = "import chip_of_the_test as chip; chip.calls['aten::mul.out'] = 1"
        hidden = """if True:
            import importlib.metadata, openreg_bringup
            find = importlib.metadata.entry_points
            importlib.metadata.entry_points = (
                lambda group: [] if group == "pytest11" else find(group=group)
            )
            openreg_bringup.main(ARGUMENTS)
        """.replace("ARGUMENTS", repr(["--device=mychip", "-c", program]))
        environment = dict(os.environ) | {"PYTHONPATH": str(self.folder)}
        environment |= {"TORCH_DEVICE_BACKEND_AUTOLOAD": "1", "OPENREG_DEVICE_TYPE": "none"}
        run = subprocess.run(
            [sys.executable, "-c", hidden], env=environment, capture_output=True, text=True
        )
        place = shlex.quote(str(Path(openreg_bringup.__file__).parent))
        self.assertTrue(
            run.stdout.endswith(
                f"what tests it: PYTHONPATH={place} \\\n"
                "  pytest -p pytest_openreg --pyargs torch_openreg.conformance \\\n"
                "  --device=mychip --conformance-operators=aten::mul\n"
            ),
            run.stdout + run.stderr,
        )

    def test_device_that_torch_does_not_have_is_an_error_of_one_line(self):
        process = self.run_tool("--device=mychp", "-c", "print('runs')", status=2)
        self.assertEqual(process.stdout, "")
        self.assertEqual(
            process.stderr.splitlines()[-1],
            "python -m openreg_bringup: error: --device: expected the name of a device, got "
            "'mychp'; torch has found the backend 'mychip'",
        )


class TestErrors(BringupTestCase):
    @parametrize(
        "arguments, text",
        [
            subtest(
                (["--device=mychip", "-c", "pass"], "got 'mychip'; torch has found no backend"),
                name="no_backend",
            ),
            subtest(
                (
                    ["--device=cpu", "-c", "pass"],
                    "--device: expected torch.cpu to have fallback_stats and fallback_copied_bytes,"
                    " which return the calls and the bytes copied of each operator that ran on the "
                    "CPU, such as {'aten::mul.out': 3}; minimal/csrc/aten/Fallback.cpp shows how",
                ),
                name="no_counters",
            ),
            subtest((["train.py"], "arguments are required: --device"), name="no_device"),
            subtest(
                (["--device=openreg"], "expected a script, -m and a module, or -c and a command"),
                name="no_program",
            ),
            subtest(
                (
                    ["--device=openreg", "train.py"],
                    "expected a script, got 'train.py', which does not exist",
                ),
                name="no_script",
            ),
            subtest(
                (["--device=openreg", "-m", "none.such"], "-m: expected a module, got 'none.such'"),
                name="no_module",
            ),
            subtest(
                (
                    ["--device=openreg", "--json=none/such.json", "-c", "pass"],
                    "--json: expected a file that can be written: ",
                ),
                name="no_file",
            ),
        ],
    )
    def test_wrong_command_line_is_an_error_of_one_line(self, arguments, text):
        process = self.run_tool(*arguments, status=2)
        self.assertIn(text, process.stderr.splitlines()[-1])
        self.assertNotIn("Traceback", process.stderr)
        self.assertEqual(process.stdout, "")


class TestGroups(TestCase):
    """With a device type of which torch has no kernels."""

    def check(self, operator, to_register, composed):
        group = openreg_bringup.group_of(operator, "hpu")
        names = [schema.partition("(")[0] for schema in group.to_register]
        self.assertEqual((names, list(group.composed)), (to_register, composed))

    def test_each_variant_of_a_structured_operator_has_the_same_group(self):
        for name in ("add.Tensor", "add_.Tensor", "add.out"):
            self.check(
                f"aten::{name}", ["aten::add.out"], ["aten::add.Tensor", "aten::add_.Tensor"]
            )

    def test_variants_that_need_kernels_of_their_own_are_listed(self):
        self.check("aten::relu", ["aten::relu", "aten::relu_"], ["aten::relu.out"])
        self.check("aten::threshold_backward.grad_input", ["aten::threshold_backward.grad_input"], [
            "aten::threshold_backward"
        ])  # fmt: skip

    def test_operators_whose_names_end_in_underscores_are_found(self):
        self.check("aten::__ilshift__.Scalar", ["aten::__ilshift__.Scalar"], [])
        self.check("aten::set_.source_Tensor", ["aten::set_.source_Tensor"], [
            "aten::set.source_Tensor", "aten::set.source_Tensor_out",
        ])  # fmt: skip


instantiate_parametrized_tests(TestErrors)

if __name__ == "__main__":
    run_tests()
