"""Inductor's own code for a GPU, on our devices: OPENREG_INDUCTOR=triton with device type cuda."""

import tempfile
import textwrap

import pytest
from common import run_program, run_tests
from extras.triton.kernels import TritonTestCase, cache_folder, needs_triton

pytestmark = pytest.mark.sample(0.2)

SETTINGS = {
    "OPENREG_DEVICE_TYPE": "cuda",
    "OPENREG_INDUCTOR": "triton",
    "OPENREG_TRITON_AUTOTUNE": "first",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
}
PRELUDE = """\
import torch
from torch import nn
from torch._inductor.utils import run_and_get_code
from torch.nn.functional import gelu, layer_norm
from torch.nn.attention.flex_attention import flex_attention

torch.manual_seed(0)


def check(function, *inputs, is_triton=True, **options):
    \"\"\"Compares the compiled function with the same one on the CPU.\"\"\"
    compiled = torch.compile(function, fullgraph=True, **options)
    on_device = [one.cuda() if isinstance(one, torch.Tensor) else one for one in inputs]
    actual, codes = run_and_get_code(compiled, *on_device)
    if is_triton:
        assert "@triton.jit" in "".join(codes), codes
    assert "cpp_pybinding" not in "".join(codes), codes
    torch.testing.assert_close(
        actual, function(*inputs), check_device=False, atol=1e-4, rtol=1e-4
    )
    return compiled
"""


@needs_triton
class TestInductor(TritonTestCase):
    def run_with(self, code, **settings):
        code = PRELUDE + textwrap.dedent(code)
        with tempfile.TemporaryDirectory() as folder:
            folders = {"TORCHINDUCTOR_CACHE_DIR": folder, "TRITON_CACHE_DIR": cache_folder()}
            return run_program(code, SETTINGS | folders | settings)

    def test_forward(self):
        self.run_with("""
            def reductions(x):
                return layer_norm(x, x.shape[-1:]).relu().sum(0) + x.softmax(1).amax(0)

            check(reductions, torch.randn(50, 70))
            check(lambda x, w: gelu(x @ w), torch.randn(30, 40), torch.randn(40, 20))
            check(lambda x, y: (x.unsqueeze(1) * y).sum(-1), torch.randn(9, 5), torch.randn(7, 5))
        """)

    def test_kernels_with_a_benchmark(self):
        self.run_with("""
            from torch._inductor.config import patch

            def two_sums(x):
                y = torch.nn.functional.silu(x)
                return y / y.amax(0), (y / y.amax(1, keepdim=True)).t().contiguous()

            with patch(benchmark_kernel=True):
                check(two_sums, torch.randn(64, 96))
            torch._dynamo.reset()
            with patch(benchmark_fusion=True):
                check(two_sums, torch.randn(64, 96))
        """)

    def test_gradients(self):
        self.run_with("""
            model = nn.Sequential(nn.Linear(20, 30), nn.GELU(), nn.LayerNorm(30), nn.Linear(30, 4))
            x = torch.randn(16, 20)
            model(x).square().mean().backward()
            expected = [one.grad for one in model.parameters()]
            model.zero_grad()
            model.cuda()
            torch.compile(model, fullgraph=True)(x.cuda()).square().mean().backward()
            for one, gradient in zip(model.parameters(), expected, strict=True):
                torch.testing.assert_close(one.grad.cpu(), gradient, atol=1e-4, rtol=1e-4)
        """)

    def test_dynamic_shapes(self):
        self.run_with("""
            def function(x):
                return (x.sin() * x.shape[0]).sum(1)

            compiled = check(function, torch.randn(10, 33), dynamic=True)
            for sizes in ((3, 5), (64, 129)):
                x = torch.randn(sizes)
                torch.testing.assert_close(
                    compiled(x.cuda()).cpu(), function(x), atol=1e-4, rtol=1e-4
                )
        """)

    def test_kernels_of_the_program(self):
        self.run_with(f"""
            import sys
            sys.path.insert(0, {str(__file__.rpartition("/extras/")[0])!r})
            from extras.triton.kernels import add_kernel

            def function(x, y):
                out = torch.empty_like(x)
                add_kernel[(4,)](x * 2, y, out, x.numel(), BLOCK=256)
                return (out + 1).relu()

            x, y = torch.randn(1000), torch.randn(1000)
            result, codes = run_and_get_code(torch.compile(function), x.cuda(), y.cuda())
            assert "triton_poi" in codes[0] and "add_kernel" in codes[0]
            torch.testing.assert_close(result.cpu(), (x * 2 + y + 1).relu())
        """)

    def test_templates_of_matrix_products(self):
        self.run_with("""
            import torch._inductor.config as config

            config.max_autotune_gemm_backends = "TRITON"
            config.autotune_in_subproc = False
            config.test_configs.max_mm_configs = 1
            options = {"max_autotune": True}
            w = torch.randn(64, 32)
            compiled = check(lambda x, w: gelu(x @ w), torch.randn(48, 64), w, options=options)
        """)

    def test_flex_attention(self):
        self.run_with("""
            def rotated(a, b, k, v):
                return flex_attention(torch.stack([a, b], -1).flatten(3).transpose(1, 2), k, v)

            halves = [torch.randn(1, 64, 2, 8) for _ in range(2)]
            k, v = (torch.randn(1, 2, 64, 16) for _ in range(2))
            check(rotated, *halves, k, v)
        """)

    def test_processes_that_compile(self):
        self.run_with(
            "check(lambda x: x.sin() + x.softmax(1), torch.randn(20, 30))",
            TORCHINDUCTOR_COMPILE_THREADS="2",
            TORCHINDUCTOR_WORKER_START="subprocess",
        )

    def test_second_device_and_streams(self):
        self.run_with("""
            compiled = check(lambda x: (x + 1).sum(1), torch.randn(20, 30))
            x = torch.randn(20, 30)
            y = compiled(x.to("cuda:1"))
            assert y.device == torch.device("cuda:1")
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                z = compiled(x.cuda())
            side.synchronize()
            for result in (y, z):
                torch.testing.assert_close(result.cpu(), (x + 1).sum(1))
        """)

    def test_no_false_alarm_of_the_sanitizer(self):
        self.run_with(
            "check(lambda x: layer_norm(x, (70,)).softmax(0).sum(1), torch.randn(50, 70))",
            OPENREG_SANITIZER="1",
            OPENREG_SANITIZER_UNINITIALIZED="1",
        )

    def test_where_it_is_not_possible(self):
        result = run_program(
            """
            import torch

            torch.compile(lambda x: x + 1)(torch.ones(1, device="openreg"))
            """,
            {"OPENREG_INDUCTOR": "triton"},
            expect_success=False,
        )
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("OPENREG_INDUCTOR=triton: expected the device type cuda", result.stderr)


if __name__ == "__main__":
    run_tests()
