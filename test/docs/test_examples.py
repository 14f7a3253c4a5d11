"""The programs of ``examples``: on every device they print the same, to the last bit."""

import re
from pathlib import Path

import pytest
from common import (
    OpenRegTestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_children,
    run_program,
    run_tests,
)

pytestmark = pytest.mark.sample(0.045)

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))
EACH = parametrize("name", NAMES)


def program(name: str, *arguments: str, at_the_end: str = "") -> tuple[str, dict[str, str]]:
    """Returns an example as a child program."""
    path = str(EXAMPLES / f"{name}.py")
    code = (
        f"import runpy, sys, torch\nsys.argv = {[path, *arguments]!r}\n"
        f"runpy.run_path({path!r}, run_name='__main__')\n{at_the_end}\n"
    )
    return code, {"OMP_NUM_THREADS": "1"}


class TestExamples(OpenRegTestCase):
    def run_all(self, *programs: tuple[str, dict[str, str]]) -> list[str]:
        outputs = []
        for child in run_children(programs):
            self.assertEqual(child.returncode, 0, child.output)
            outputs.append(child.output)
        return outputs

    @pytest.mark.slow("name_ring_gan")
    @EACH
    def test_output_is_that_of_the_cpu(self, name):
        on_cpu, on_openreg = self.run_all(
            program(name, "--steps", "5", "--device", "cpu"),
            program(name, "--steps", "5", "--device", "openreg"),
        )
        self.assertRegex(on_cpu, r"step 4: loss .*\d\.\d{6}\n")
        self.assertRegex(on_cpu, r"\nparameters [0-9a-f]{16}\n$")
        self.assertEqual(on_openreg, on_cpu)

    @EACH
    def test_output_on_cuda_is_that_of_the_cpu(self, name):
        serving = {"OPENREG_DEVICE_TYPE": "cuda", "OPENREG_CUDA_NOTICE": "0"}
        outputs = []
        for device in ("cpu", "cuda"):
            code, settings = program(name, "--steps", "5", "--device", device)
            outputs.append(run_program(code, settings | serving).stdout)
        self.assertRegex(outputs[0], r"step 4: loss .*\d\.\d{6}\n")
        self.assertEqual(*outputs)

    @EACH
    def test_default_device_is_the_accelerator(self, name):
        (output,) = self.run_all(
            program(
                name, "--steps", "1", at_the_end="print(torch.accelerator.max_memory_allocated())"
            )
        )
        self.assertGreater(int(output.splitlines()[-1]), 0)

    @EACH
    def test_another_seed_gives_other_parameters(self, name):
        outputs = self.run_all(
            *(
                program(name, "--steps", "1", "--device", "cpu", "--seed", seed)
                for seed in ("1", "2")
            )
        )
        parameters = {output.splitlines()[-1] for output in outputs}
        self.assertEqual(len(parameters), 2)


class TestDistributed(OpenRegTestCase):
    """The GPT is trained by several processes as by one that takes their parts in turn."""

    def train(self, processes, parts, device, *arguments):
        path = str(EXAMPLES / "distributed" / "train_gpt.py")
        call = [path, "--steps", "4", "--device", device, "--parts", str(parts), *arguments]
        launcher = ["--standalone", "--nproc-per-node", str(processes)]
        code = f"""
            import runpy, sys
            from torch.distributed.run import main
            sys.argv = {call!r}
            if {processes} > 1:
                main({[*launcher, *call]!r})
            else:
                runpy.run_path({path!r}, run_name="__main__")
        """
        settings = {"OMP_NUM_THREADS": "1"}
        if device == "cuda":
            settings |= {"OPENREG_DEVICE_TYPE": "cuda", "OPENREG_CUDA_NOTICE": "0"}
        output = run_program(code, settings).stdout
        self.assertRegex(output, r"step 3: loss \d\.\d{6}\nparameters \d+\.\d{6}\n$")
        return output

    @pytest.mark.slow("parallel_ddp", "parallel_fsdp")
    @parametrize("parallel", ["ddp", "fsdp"])
    def test_two_processes_compute_what_one_does(self, parallel):
        expected = self.train(1, 2, "openreg")
        self.assertEqual(self.train(2, 2, "openreg", "--parallel", parallel), expected)

    @pytest.mark.slow
    def test_two_processes_compute_the_same_on_cuda(self):
        self.assertEqual(self.train(2, 2, "cuda"), self.train(1, 2, "cpu"))

    @pytest.mark.slow
    def test_four_processes_compute_nearly_the_same(self):
        outputs = (self.train(1, 4, "openreg"), self.train(4, 4, "openreg", "--parallel", "fsdp"))
        one, four = ([float(x) for x in re.findall(r"\d+\.\d+", text)] for text in outputs)
        self.assertEqual(four, one, rtol=1e-6, atol=1e-5)


class TestSources(OpenRegTestCase):
    def test_readme_lists_every_example(self):
        listed = re.findall(r"^\| \[`(\w+)\.py`\]", (EXAMPLES / "README.md").read_text(), re.M)
        self.assertEqual(sorted(listed), NAMES)

    @parametrize("name", [*NAMES, "distributed/train_gpt"])
    def test_example_does_not_know_the_device(self, name):
        text = (EXAMPLES / f"{name}.py").read_text()
        self.assertNotRegex(text, r"(import|from) torch_openreg|torch\.openreg|[\"']openreg")


instantiate_parametrized_tests(TestExamples)
instantiate_parametrized_tests(TestDistributed)
instantiate_parametrized_tests(TestSources)

if __name__ == "__main__":
    run_tests()
