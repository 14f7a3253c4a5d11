"""Inductor's caches, threads and processes."""

import os
import tempfile
import threading
from unittest import mock

import pytest
import torch
from common import DEVICE_TYPE, run_program, run_tests
from extras.inductor.compiled import CompiledTestCase

from torch_openreg.extras.inductor import _internals, _lowering

# Prints the caches' counters for a function that is compiled with its gradient.
_PROGRAM = f"""
    import torch
    from torch._dynamo.utils import counters

    def chain(x):
        return ((x + 1).relu() * 2).sum(-1)

    def count(device="{DEVICE_TYPE}", **options):
        torch._dynamo.reset()
        counters.clear()
        compiled = torch.compile(chain, **options)
        for _ in range(3):
            x = torch.full((4, 8), 2.0, device=device, requires_grad=True)
            result = compiled(x)
            result.sum().backward()
            assert result.tolist() == [48.0] * 4, result
            assert x.grad.tolist() == [[2.0] * 8] * 4, x.grad
        return [
            counters["inductor"]["fxgraph_cache_hit"],
            counters["inductor"]["fxgraph_cache_miss"],
            counters["aot_autograd"]["autograd_cache_hit"],
            counters["aot_autograd"]["autograd_cache_miss"],
            counters["openreg_graphs"]["captured"],
        ]

    def count_frozen(seed):
        torch._dynamo.reset()
        counters.clear()
        torch.manual_seed(seed)
        layer, x = torch.nn.Linear(8, 4), torch.randn(2, 8)
        expected = layer(x).relu().detach()
        layer.to("{DEVICE_TYPE}")
        with torch.no_grad(), torch._inductor.config.patch(freezing=True):
            result = torch.compile(lambda x: layer(x).relu())(x.to("{DEVICE_TYPE}"))
        torch.testing.assert_close(result.cpu(), expected)
        return [
            counters["inductor"]["fxgraph_cache_hit"],
            counters["inductor"]["fxgraph_cache_miss"],
        ]

    print(count(), count("cpu"), count(mode="reduce-overhead"))
"""


class TestCaches(CompiledTestCase):
    def run_with_caches(self, folder, addition=""):
        settings = {
            "TORCHINDUCTOR_CACHE_DIR": folder,
            "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
            "TORCHINDUCTOR_AUTOGRAD_CACHE": "1",
            "OPENREG_DEVICE_TYPE": DEVICE_TYPE,
        }
        return run_program(_PROGRAM + addition, settings).stdout.strip()

    @pytest.mark.slow
    def test_second_process_finds_what_the_first_compiled(self):
        with tempfile.TemporaryDirectory() as folder:
            first = self.run_with_caches(folder, "    print(count_frozen(seed=0))\n")
            second = self.run_with_caches(
                folder,
                """
    print(count_frozen(seed=0), count_frozen(seed=1))
    torch.set_num_threads(torch.get_num_threads() + 1)
    print(count(), count_frozen(seed=0))
""",
            )
        # The graphs of the two devices differ, and so do those of the modes.
        self.assertEqual(first, "[0, 2, 0, 1, 0] [0, 2, 0, 1, 0] [0, 2, 0, 1, 2]\n[0, 1]")
        hits, frozen, other_threads = second.split("\n")
        self.assertEqual(hits, "[2, 0, 1, 0, 0] [2, 0, 1, 0, 0] [2, 0, 1, 0, 2]")
        # Frozen parameters are a part of the graph.
        self.assertEqual(frozen, "[1, 0] [0, 1]")
        # The backward graph is compiled on the thread that runs it, with its caller's number.
        self.assertEqual(other_threads, "[0, 2, 0, 1, 0] [0, 1]")

    def test_keys_contain_what_kernels_depend_on(self):
        compiler_pass = _lowering.LowerAsCpu()
        before = compiler_pass.uuid()
        self.assertEqual(compiler_pass.uuid(), before)
        threads = torch.get_num_threads()
        for change in (
            mock.patch.object(_lowering, "__version__", "0.0.0"),
            mock.patch.object(_internals, "pick_vec_isa", lambda: "other instructions"),
            mock.patch.object(_lowering, "_source_hash", lambda: b"other sources"),
            mock.patch.object(torch, "get_num_threads", lambda: threads + 1),
            mock.patch.object(_lowering._C, "_get_device", lambda: 1),
        ):
            with change:
                self.assertNotEqual(compiler_pass.uuid(), before)


class TestThreads(CompiledTestCase):
    @pytest.mark.slow
    def test_two_threads_compile_and_run(self):
        def call(index, failures):
            def function(x):
                return (x * (index + 2)).sin() + x

            x = torch.full((5, 7), 0.5 + index)
            try:
                compiled = torch.compile(function)
                with torch.openreg.stream(torch.openreg.Stream()):
                    given = x.to(DEVICE_TYPE).requires_grad_()
                    compiled(given).sum().backward()
                    torch.testing.assert_close(compiled(given).detach().cpu(), function(x))
                    expected = (index + 2) * (x * (index + 2)).cos() + 1
                    torch.testing.assert_close(given.grad.cpu(), expected)
            except BaseException as error:
                failures.append(error)

        failures = []
        threads = [threading.Thread(target=call, args=(i, failures)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])


class TestProcesses(CompiledTestCase):
    @pytest.mark.slow
    def test_forked_child_refuses_as_eager_operators_do(self):
        output = run_program(
            f"""
            import os, torch

            x = torch.ones(4, device="{DEVICE_TYPE}")
            compiled = torch.compile(lambda x: (x + 1).relu() * 2)
            compiled(x)
            torch.accelerator.synchronize()
            child = os.fork()
            if child == 0:
                for function in (compiled, lambda x: x + 1):
                    try:
                        function(x)
                    except RuntimeError as error:
                        print(str(error).splitlines()[0].split(": ", 1)[-1], flush=True)
                os._exit(0)
            os.waitpid(child, 0)
            print(compiled(x).tolist())
            """,
            {"OPENREG_DEVICE_TYPE": DEVICE_TYPE, "TORCHINDUCTOR_CACHE_DIR": _folder()},
        ).stdout.splitlines()
        self.assertEqual(len(output), 3, output)
        self.assertIn("fork", output[0])
        self.assertEqual(output[0], output[1])
        self.assertEqual(output[2], "[4.0, 4.0, 4.0, 4.0]")


def _folder():
    return os.environ["TORCHINDUCTOR_CACHE_DIR"]


if __name__ == "__main__":
    run_tests()
