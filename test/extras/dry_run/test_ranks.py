"""Dry runs of one rank of many: collectives, sharded training, and waits for absent ranks."""

from pathlib import Path

import pytest
from common import (
    OpenRegTestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_program,
    run_tests,
)

pytestmark = pytest.mark.sample(0.4)

LLAMA = Path(__file__).with_name("llama.py").read_text()

SETTINGS = {
    "OPENREG_DEVICE_TYPE": "cuda",
    "OPENREG_DRY_RUN": "1",
    "OPENREG_CUDA_NOTICE": "0",
    "OPENREG_DRY_RUN_SUMMARY": "0",
    "OPENREG_DEVICE_MEMORY": "64GiB",
}


def run_rank(code, rank, size, expect_success=True, **settings):
    ranks = {"OPENREG_DRY_RUN_RANK": str(rank), "OPENREG_DRY_RUN_WORLD_SIZE": str(size)}
    return run_program(code, {**SETTINGS, **ranks, **settings}, expect_success)


class TestCollectives(OpenRegTestCase):
    def check(self, body, expected, rank=2, size=4):
        code = f"""
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
own = torch.tensor([1.0, 2.0, 3.0, 4.0], device="cuda")
{body}
dist.destroy_process_group()
"""
        self.assertEqual(run_rank(code, rank, size).stdout.strip(), expected)

    @parametrize(
        "name, body, expected",
        [
            ("all_reduce", "dist.all_reduce(own); print(own.tolist())", "[4.0, 8.0, 12.0, 16.0]"),
            (
                "all_reduce_max",
                "dist.all_reduce(own, dist.ReduceOp.MAX); print(own.tolist())",
                "[1.0, 2.0, 3.0, 4.0]",
            ),
            (
                "all_reduce_avg",
                "dist.all_reduce(own, dist.ReduceOp.AVG); print(own.tolist())",
                "[1.0, 2.0, 3.0, 4.0]",
            ),
            ("broadcast", "dist.broadcast(own, 0); print(own.tolist())", "[1.0, 2.0, 3.0, 4.0]"),
            (
                "all_gather",
                "all = torch.empty(16, device='cuda'); dist.all_gather_into_tensor(all, own); "
                "print(all.view(4, 4).sum(0).tolist())",
                "[4.0, 8.0, 12.0, 16.0]",
            ),
            (
                "all_gather_list",
                "all = [torch.empty_like(own) for _ in range(4)]; dist.all_gather(all, own); "
                "print([one.sum().item() for one in all])",
                "[10.0, 10.0, 10.0, 10.0]",
            ),
            (
                "reduce_scatter",
                "part = torch.empty(1, device='cuda'); dist.reduce_scatter_tensor(part, own); "
                "print(part.item())",
                "12.0",
            ),
            (
                "all_to_all",
                "out = torch.empty(4, device='cuda'); dist.all_to_all_single(out, own); "
                "print(out.tolist())",
                "[1.0, 2.0, 3.0, 4.0]",
            ),
            ("barrier", "dist.barrier(); print(dist.get_rank(), dist.get_world_size())", "2 4"),
            (
                "objects",
                "all = [None] * 4; dist.all_gather_object(all, {'rank': dist.get_rank()}); "
                "print(all)",
                "[{'rank': 2}, {'rank': 2}, {'rank': 2}, {'rank': 2}]",
            ),
            (
                "subgroup",
                "group = dist.new_group([0, 2]); dist.all_reduce(own, group=group); "
                "print(own.tolist())",
                "[2.0, 4.0, 6.0, 8.0]",
            ),
        ],
        name_fn=lambda name, body, expected: name,
    )
    def test_peers_are_as_this_rank(self, name, body, expected):
        self.check(body, expected)

    def test_group_of_the_cpu(self):
        code = """
        import torch
        import torch.distributed as dist

        dist.init_process_group("cpu:gloo,cuda:nccl")
        own = torch.ones(3)
        dist.all_reduce(own)
        other = torch.ones(3, device="cuda")
        dist.all_reduce(other)
        print(own.tolist(), other.tolist())
        """
        self.assertEqual(run_rank(code, 0, 8).stdout.strip(), "[8.0, 8.0, 8.0] [8.0, 8.0, 8.0]")

    def test_large_tensors_are_not_moved(self):
        self.check(
            "x = torch.zeros(2**34, dtype=torch.uint8, device='cuda'); dist.all_reduce(x); "
            "print(torch.cuda.memory_allocated() >= 2**34)",
            "True",
        )


class TestWaits(OpenRegTestCase):
    @parametrize(
        "name, body, text",
        [
            (
                "message",
                "dist.recv(torch.empty(4, device='cuda'), 0); torch.cuda.synchronize()",
                "only ranks 1 run",
            ),
            (
                "store",
                "dist.distributed_c10d._get_default_store().get('of_rank_0')",
                "of_rank_0",
            ),
        ],
        name_fn=lambda name, body, text: name,
    )
    def test_wait_for_an_absent_rank_is_an_error_at_once(self, name, body, text):
        code = f"""
import time
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
before = time.monotonic()
try:
    {body}
finally:
    print(time.monotonic() - before < 20)
"""
        ended = run_rank(code, 1, 2, expect_success=False)
        self.assertEqual((ended.returncode, ended.stdout.strip()), (1, "True"), ended.stderr)
        self.assertIn(text, ended.stderr)

    @parametrize("rank, size", [(4, 4), (9, 2), (1, 1)])
    def test_rank_outside_of_the_world(self, rank, size):
        ended = run_rank("import torch", rank, size, expect_success=False)
        self.assertIn("OPENREG_DRY_RUN_RANK: expected a rank below", ended.stderr)


class TestTraining(OpenRegTestCase):
    def test_environment_is_that_of_a_launcher(self):
        code = """
        import os
        import torch
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
        print(*(os.environ[name] for name in names))
        """
        ended = run_rank(code, 13, 32, OPENREG_DEVICE_COUNT="8")
        self.assertEqual(ended.stdout.strip(), "13 32 5 8 1")

    def test_data_parallel(self):
        code = """
        import torch
        import torch.distributed as dist

        dist.init_process_group("nccl")
        model = torch.nn.parallel.DistributedDataParallel(
            torch.nn.Linear(2048, 2048).cuda(), device_ids=[0]
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.randn(64, 2048, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        print(torch.cuda.max_memory_allocated() > 3 * 2048 * 2048 * 4)
        """
        self.assertEqual(run_rank(code, 0, 64).stdout.strip(), "True")

    def test_sharded_parameters_shrink_with_the_ranks(self):
        peaks = []
        for size in (2, 16):
            code = f"import sys\nsys.argv[1:] = ['--size', 'tiny', '--length', '128']\n{LLAMA}"
            peaks.append(float(run_rank(code, size - 1, size).stdout.split()[0]))
        self.assertLess(peaks[1], peaks[0])

    def test_tensor_parallel(self):
        code = """
        import torch
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor.parallel import (
            ColwiseParallel, RowwiseParallel, parallelize_module
        )

        mesh = init_device_mesh("cuda", (4, 8), mesh_dim_names=("data", "tensor"))
        with torch.device("meta"):
            model = torch.nn.Sequential(
                torch.nn.Linear(4096, 16384, bias=False), torch.nn.ReLU(),
                torch.nn.Linear(16384, 4096, bias=False),
            )
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        parallelize_module(model, mesh["tensor"], plan)
        fully_shard(model, mesh=mesh["data"])
        model.to_empty(device="cuda")
        print(torch.cuda.memory_allocated() == 2 * 4096 * 16384 * 4 // 32)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            model(torch.randn(64, 4096, device="cuda")).sum().backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        categories = torch.openreg.dry_run.report().devices[0].categories
        print(categories["optimizer"] >= 2 * categories["parameters"])
        dist.destroy_process_group()
        """
        self.assertEqual(run_rank(code, 13, 32).stdout.split(), ["True", "True"])

    @pytest.mark.slow
    def test_parts_of_a_large_model_on_many_ranks(self):
        code = f"""
import sys
sys.argv[1:] = ["--size", "70b", "--checkpoint", "full", "--batch", "1", "--steps", "2"]
{LLAMA}
with torch.device("meta"):
    model = Llama(*SIZES["70b"], 8192)
part = sum(one.numel() for one in model.parameters()) * 4 / 1024
categories = torch.openreg.dry_run.report().devices[0].categories
print(*(categories[name] / part for name in ("parameters", "optimizer")))
"""
        ended = run_rank(code, 5, 1024, OPENREG_DEVICE_MEMORY="95GiB")
        shares = [float(one) for one in ended.stdout.splitlines()[1].split()]
        self.assertEqual(shares, [1.0, 2.0], rtol=0.01, atol=0)

    @pytest.mark.slow
    @parametrize("size, reserved", [(8, 82.4), (128, 67.0)])
    def test_published_memory_of_llama(self, size, reserved):
        # benchmarks/llama3_h100_202412_torchtitan.md of torchtitan, tables 1 and 3.
        code = f"import sys\nsys.argv[1:] = ['--checkpoint', 'selective']\n{LLAMA}"
        settings = {"OPENREG_DEVICE_MEMORY": "95GiB", "OPENREG_CUDA_CAPABILITY": "9.0"}
        ended = run_rank(code, 5, size, **settings)
        self.assertLess(abs(float(ended.stdout.split()[1]) / reserved - 1), 0.01)


instantiate_parametrized_tests(TestCollectives)
instantiate_parametrized_tests(TestWaits)
instantiate_parametrized_tests(TestTraining)

if __name__ == "__main__":
    run_tests()
