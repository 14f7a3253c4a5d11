"""Checkpoints that a separate process writes while the ranks continue."""

import os
import subprocess
import sys
import tempfile
import textwrap

import pytest
import torch
import torch.distributed.checkpoint
from common import (
    DEVICE_TYPE,
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)
from extras.distributed.ranks import BACKEND, LIMIT_S

PROGRAM = f"""
import os, sys
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor


def main():
    folder, kind = sys.argv[1:]
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.openreg.set_device(rank % torch.openreg.device_count())
    dist.init_process_group("{BACKEND}")
    device = torch.device("{DEVICE_TYPE}", torch.openreg.current_device())
    mesh = init_device_mesh(device.type, (size,))
    sharded = distribute_tensor(torch.arange(30.0, device=device).view(10, 3), mesh, [Shard(0)])
    plain = torch.full((5,), 2.0, device=device, dtype=torch.bfloat16)
    for step in range(2):
        future = checkpoint.async_save(
            {{"sharded": sharded, "plain": plain, "step": step}},
            checkpoint_id=f"{{folder}}/{{step}}",
            async_checkpointer_type=AsyncCheckpointerType(kind),
        )
        # What is saved is what the tensors held then.
        sharded += 100
        plain *= 2
        total = torch.ones(3, device=device)
        dist.all_reduce(total)
        assert total[0].item() == size
        future.result()
    dist.destroy_process_group()
    os.write(1, f"rank {{rank}} has saved\\n".encode())


if __name__ == "__main__":
    main()
"""


class TestCheckpoints(TestCase):
    @pytest.mark.slow("kind_process")
    @parametrize("kind", ["thread", "process"])
    def test_asynchronous_checkpoints_hold_what_was_there_at_the_call(self, kind):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "program.py")
            with open(path, "w") as file:
                file.write(textwrap.dedent(PROGRAM))
            launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
            result = subprocess.run(
                [sys.executable, *launcher, path, folder, kind],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=LIMIT_S,
            )
            self.assertEqual(result.returncode, 0, result.stdout)
            self.assertEqual(result.stdout.count("has saved"), 2, result.stdout)
            for step in range(2):
                # Read by a process that has no group, on the CPU.
                state = {
                    "sharded": torch.zeros(10, 3),
                    "plain": torch.zeros(5, dtype=torch.bfloat16),
                    "step": -1,
                }
                torch.distributed.checkpoint.load(
                    state, checkpoint_id=f"{folder}/{step}", no_dist=True
                )
                expected = torch.arange(30.0).view(10, 3) + 100 * step
                self.assertTrue(torch.equal(state["sharded"], expected))
                plain = torch.full((5,), 2.0 * 2**step, dtype=torch.bfloat16)
                self.assertTrue(torch.equal(state["plain"], plain))
                self.assertEqual(state["step"], step)


instantiate_parametrized_tests(TestCheckpoints)

if __name__ == "__main__":
    run_tests()
