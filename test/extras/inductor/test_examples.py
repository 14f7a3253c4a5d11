"""The programs of ``examples`` and the demo with compiled models: values of Inductor on the CPU.

By default, one of the programs; all of them with ``test/run.py --full``.
"""

import contextlib
import importlib
import io
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
from common import (
    DEVICE_TYPE,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_program,
    run_tests,
)
from extras.inductor.compiled import IS_FULL, CompiledTestCase, kernel_sources, requires_full
from torch._dynamo.utils import counters

from torch_openreg.demo import overlap, training
from torch_openreg.demo.report import Report

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"

# By program, the functions that make its models. Of addition_lstm.py nothing is compiled, on the
# CPU either: Dynamo leaves recurrent networks to eager mode.
MODELS = {
    "char_gpt": ["CharGPT"],
    "digits_cnn": ["make_model"],
    "ring_gan": ["make_generator", "make_discriminator"],
}


def compiling(module, name):
    """Has a function of a module return a compiled model."""
    make = getattr(module, name)
    return mock.patch.object(module, name, lambda *args: torch.compile(make(*args)))


class ProgramTestCase(CompiledTestCase):
    def setUp(self):
        super().setUp()
        # With more, Inductor's gradient of an embedding is a sum in any order, on the CPU as well.
        self.addCleanup(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
        # Autograd's thread for the device has the number that it had when it started.
        self.enterContext(torch.autograd.set_multithreading_enabled(False))


class TestExamples(ProgramTestCase):
    def setUp(self):
        super().setUp()
        sys.path.insert(0, str(EXAMPLES))
        self.addCleanup(sys.path.remove, str(EXAMPLES))

    def run_compiled(self, name, device):
        """Returns what an example prints: losses, and a hash of all parameters."""
        torch._dynamo.reset()
        counters.clear()
        module = importlib.import_module(name)
        output = io.StringIO()
        with contextlib.ExitStack() as patches:
            for model in MODELS[name]:
                patches.enter_context(compiling(module, model))
            if name == "char_gpt":
                # Texts are short, as each length of a text takes a step of the model.
                write = module.write
                short = mock.patch.object(module, "write", lambda *args: write(*args[:2], 3))
                patches.enter_context(short)
            arguments = [name, "--steps", "3", "--device", device]
            patches.enter_context(mock.patch.object(sys, "argv", arguments))
            kernels = patches.enter_context(kernel_sources())
            patches.enter_context(contextlib.redirect_stdout(output))
            module.main()
        self.assertGreater(counters["aot_autograd"]["ok"], 0)
        self.assertTrue(kernels)
        return output.getvalue()

    @pytest.mark.slow("name_digits_cnn")
    @parametrize("name", list(MODELS) if IS_FULL else ["digits_cnn"])
    def test_losses_and_parameters_are_those_of_the_cpu(self, name):
        expected = self.run_compiled(name, "cpu")
        self.assertRegex(expected, r"\nparameters [0-9a-f]{16}\n$")
        self.assertEqual(self.run_compiled(name, DEVICE_TYPE), expected)


@requires_full
class TestDemo(ProgramTestCase):
    """The demo compares with the CPU itself."""

    def check(self, show, *arguments):
        output = io.StringIO()
        report = Report(output)
        show(report, torch.device(DEVICE_TYPE, 0), *arguments)
        self.assertIn("[ok]", output.getvalue())
        self.assertEqual(report.failures, [], output.getvalue())

    def test_training(self):
        with compiling(training, "make_model"), kernel_sources() as kernels:
            self.check(training.show_training, 1)
        self.assertTrue(kernels)

    @requires_two_devices
    def test_chains_on_two_streams_and_on_two_devices(self):
        with (
            mock.patch.object(overlap, "_LANE_SIZE", 32),
            mock.patch.object(overlap, "_chain", torch.compile(overlap._chain)),
        ):
            self.check(overlap.show_overlap)


@requires_full
class TestProgramForCuda(CompiledTestCase):
    def test_losses_are_those_of_eager_mode_within_rounding(self):
        output = run_program(
            f"""
            import sys, types, torch
            sys.path.insert(0, {str(EXAMPLES / "cuda_project")!r})
            import train

            device = torch.device("cuda", 0)
            _, expected = train.train(device, steps=10)
            make = torch.nn.Sequential
            train.nn = types.SimpleNamespace(**vars(torch.nn))
            train.nn.Sequential = lambda *layers: torch.compile(make(*layers))
            _, losses = train.train(device, steps=10)
            torch.testing.assert_close(losses, expected, rtol=1e-3, atol=1e-3)
            graphs = torch._dynamo.utils.counters["aot_autograd"]["ok"]
            print("graphs", graphs, losses[-1] < losses[0])
            """,
            {"OPENREG_DEVICE_TYPE": "cuda", "OPENREG_CUDA_NOTICE": "0"},
        ).stdout
        self.assertRegex(output, r"graphs [1-9]\d* True\n")


instantiate_parametrized_tests(TestExamples)

if __name__ == "__main__":
    run_tests()
