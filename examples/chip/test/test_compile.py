# Step 11: torch.compile with the backends that call the device's operators.
import subprocess
import sys

import torch
from common import NAME
from torch.testing._internal.common_utils import TestCase, run_tests


class TestCompile(TestCase):
    def test_import_of_torch_does_not_import_dynamo(self):
        program = "import sys, torch; print('torch._dynamo' in sys.modules)"
        run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        self.assertEqual(run.stdout, "False\n", run.stderr)

    def test_interface_is_registered_before_the_first_compile(self):
        from torch._dynamo.device_interface import get_interface_for_device

        interface = get_interface_for_device(NAME)
        self.assertEqual(interface.device_count(), torch.accelerator.device_count())
        self.assertEqual(interface.current_device(), 0)

    def test_training_step_has_the_eager_results(self):
        for backend in ("eager", "aot_eager"):
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU()).to(NAME)
            x = torch.randn(2, 4, device=NAME)
            compiled = torch.compile(model, backend=backend, fullgraph=True)
            expected, actual = model(x), compiled(x)
            self.assertEqual(actual.cpu(), expected.cpu())
            gradients = torch.autograd.grad(expected.sum(), model.parameters())
            for compared, gradient in zip(
                torch.autograd.grad(actual.sum(), model.parameters()), gradients, strict=True
            ):
                self.assertEqual(compared.cpu(), gradient.cpu())

    def test_streams_and_events_are_compiled(self):
        x, side = torch.ones(4, device=NAME), torch.Stream(NAME)

        def forked(x):
            event = torch.Event(x.device)
            with side:
                y = x + x
                event.record()
            event.wait()
            return y + x

        torch.accelerator.synchronize()
        for backend in ("eager", "aot_eager"):
            y = torch.compile(forked, backend=backend, fullgraph=True)(x)
            self.assertEqual(y.cpu(), torch.full((4,), 3.0))

    def test_operator_of_the_package_is_in_the_graph(self):
        x = torch.ones(4, device=NAME)
        compiled = torch.compile(
            lambda x: torch.ops.chip.squares(x) + x, backend="aot_eager", fullgraph=True
        )
        self.assertEqual(compiled(x).cpu(), torch.full((4,), 2.0))


if __name__ == "__main__":
    run_tests()
