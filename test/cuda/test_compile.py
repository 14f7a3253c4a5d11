"""torch.compile of programs for CUDA: Inductor's kernels for the CPU on our streams, never Triton.

``inductor/test_functions.py`` compares functions and gradients with the CPU's, for both types.
"""

import importlib.util
import inspect

import pytest
import torch
import torch.nn.functional as F
from common import (
    StreamGate,
    instantiate_parametrized_tests,
    parametrize,
    run_program,
    run_tests,
)
from extras.inductor.compiled import AbsenceTests, CompiledTestCase
from torch._dynamo import device_interface
from torch._inductor.utils import run_and_get_code
from torch.utils import _triton

pytestmark = pytest.mark.sample(0.053)


def chain(x):
    return (x + 1).relu() * 2


def loss_of(logits, target, scale):
    scaled = F.layer_norm(logits, logits.shape[-1:], scale)
    return F.cross_entropy(scaled, target) + scaled.softmax(-1).square().mean()


class TestCompiled(CompiledTestCase):
    def test_code_launches_kernels_and_has_nothing_of_triton(self):
        def gradient(device):
            torch.manual_seed(0)
            torch._dynamo.reset()
            arguments = [
                torch.randn(6, 40).to(device).requires_grad_(),
                torch.arange(6).to(device),
                torch.randn(40).to(device).requires_grad_(),
            ]

            def forward_and_backward():
                loss = torch.compile(loss_of)(*arguments)
                loss.backward()
                return loss

            loss, codes = run_and_get_code(forward_and_backward)
            return [loss, arguments[0].grad, arguments[2].grad], codes

        expected, _ = gradient("cpu")
        actual, codes = gradient("cuda")
        self.assertEqual(len(codes), 2)
        for code in codes:
            self.assertRegex(code, r"cpp_fused_\w+\.launch\(")
            self.assertNotIn("async_compile.triton", code)
            self.assertNotIn("triton_helpers", code)
        for one, other in zip(actual, expected, strict=True):
            self.assertTrue(one.is_cuda)
            self.assert_bit_equal(one, other)

    @pytest.mark.slow
    def test_call_returns_before_its_kernel_has_run(self):
        compiled = torch.compile(chain)
        x = torch.randn(64)
        on_device = x.cuda()
        compiled(on_device)
        torch.cuda.synchronize()
        with StreamGate() as gate:
            result = compiled(on_device)
            self.assertFalse(torch.cuda.current_stream().query())
            gate.open()
        self.assert_bit_equal(result, chain(x))

    def test_capture_into_a_graph_of_torch_cuda(self):
        compiled = torch.compile(chain)
        x = torch.randn(64)
        on_device = x.cuda()
        compiled(on_device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = compiled(on_device)
        on_device.copy_(x * 3)
        graph.replay()
        self.assert_bit_equal(result, chain(x * 3))

    def test_streams_and_events_of_torch_cuda_inside_a_function(self):
        def on_two_streams(x):
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                y = x * 2 + 1
            event = side.record_event()
            torch.cuda.current_stream().wait_event(event)
            return y.relu() - x

        x = torch.randn(64)
        result = torch.compile(on_two_streams)(x.cuda())
        self.assertEqual(result.cpu(), (x * 2 + 1).relu() - x)

    @parametrize("mode", ["reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
    def test_modes(self, mode):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16))
        x = torch.randn(4, 8)
        expected = model(x)
        compiled = torch.compile(model.cuda(), mode=mode)
        for _ in range(3):
            result = compiled(x.cuda())
            result.sum().backward()
        self.assertEqual(result.cpu(), expected)

    def test_optimizer_that_dynamo_makes_capturable(self):
        def train(wrap, **options):
            torch.manual_seed(0)
            model = torch.nn.Linear(8, 4).cuda()
            optimizer = torch.optim.AdamW(model.parameters(), 0.1, **options)
            step = wrap(lambda: optimizer.step())
            for _ in range(4):
                optimizer.zero_grad()
                model(torch.ones(2, 8, device="cuda")).square().sum().backward()
                step()
            # Since torch 2.15, the option is set for the compilation alone.
            return model.weight.detach().cpu(), optimizer.state[model.weight]["step"]

        compiled, step = train(torch.compile)
        self.assertTrue(step.is_cuda)
        expected, _ = train(lambda step: step, capturable=True)
        self.assertEqual(compiled, expected)

    def test_mixed_precision_with_a_scaler(self):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
        model = torch.compile(model.cuda())
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        scaler = torch.amp.GradScaler("cuda")
        x = torch.randn(32, 8, device="cuda")
        target = (x.sum(1) > 0).long()
        losses = []
        for _ in range(8):
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                logits = model(x)
                loss = F.cross_entropy(logits.float(), target)
            self.assertIs(logits.dtype, torch.float16)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
        self.assertLess(losses[-1], losses[0])


class TestRefusals(CompiledTestCase):
    def test_wrapper_in_cpp(self):
        with (
            torch._inductor.config.patch(cpp_wrapper=True),
            self.assertRaisesRegex(Exception, "expected cpp_wrapper=False for tensors on cuda"),
        ):
            torch.compile(chain)(torch.randn(3, device="cuda"))

    def test_package_of_a_compiled_program(self):
        model = torch.nn.Linear(3, 2).cuda()
        program = torch.export.export(model, (torch.randn(4, 3, device="cuda"),))
        with self.assertRaisesRegex(Exception, "AOTInductor: expected a program on the CPU"):
            torch._inductor.aoti_compile_and_package(program)

    def test_triton(self):
        interface = device_interface.get_interface_for_device("cuda:0")
        self.assertFalse(interface.is_triton_capable())
        with self.assertRaisesRegex(RuntimeError, "expected real CUDA for Triton, got emulated"):
            interface.raise_if_triton_unavailable()

    def test_torch_finds_no_triton_with_any_of_its_arguments(self):
        copy = importlib.util.module_from_spec(_triton.__spec__)
        _triton.__spec__.loader.exec_module(copy)
        self.assertIsNot(copy.has_triton, _triton.has_triton)
        arguments = dict.fromkeys(inspect.signature(copy.has_triton).parameters, True)
        self.assertFalse(_triton.has_triton())
        self.assertFalse(_triton.has_triton(**arguments))


class TestRegistration(AbsenceTests, CompiledTestCase):
    def test_registration_comes_with_the_import_of_inductor(self):
        output = run_program(
            """
            import sys, torch
            import torch._inductor.compile_fx
            from torch._inductor.codegen import common

            print(common.get_scheduling_for_device("cuda").__name__)
            print(common.get_wrapper_codegen_for_device("cuda").__name__)
            print(type(torch._inductor.compile_fx.__loader__).__module__)
            # What waits for the import of something else may stay.
            ours = [one for one in sys.meta_path if "torch_openreg" in type(one).__module__]
            print([one._name for one in ours if "cpp_extension" not in one._name])
            """
        )
        self.assertEqual(
            output.stdout.split("\n"),
            ["OpenRegScheduling", "OpenRegWrapper", "_frozen_importlib_external", "[]", ""],
        )

    def test_inductor_that_was_imported_first(self):
        output = run_program(
            """
            import torch
            from torch._inductor import compile_fx
            from torch._inductor.codegen import common

            common.init_backend_registration()
            import torch_openreg

            x = torch.randn(5)
            print(torch.equal(torch.compile(lambda x: x.relu() + 1)(x.cuda()).cpu(), x.relu() + 1))
            """,
            {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        )
        self.assertEqual(output.stdout.strip(), "True")


instantiate_parametrized_tests(TestCompiled)

if __name__ == "__main__":
    run_tests()
