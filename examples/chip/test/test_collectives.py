# Step 12: torch.distributed, with the backend in Python.
import subprocess
import sys
import tempfile

import torch
import torch.distributed as dist
from common import NAME
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.common_utils import TestCase, run_tests

SIZE = 2


def train(rank: int, file: str) -> None:
    """A step of each of two processes; raises if a result differs from that of one process."""
    dist.init_process_group(f"{NAME}_ccl", init_method=f"file://{file}", rank=rank, world_size=SIZE)
    torch.accelerator.set_device_index(rank)
    device = torch.device(NAME, rank)
    x = torch.full((3,), float(rank + 1), device=device)
    dist.all_reduce(x)
    torch.testing.assert_close(x.cpu(), torch.full((3,), 3.0))
    rows = [torch.empty(3, device=device) for _ in range(SIZE)]
    dist.all_gather(rows, torch.full((3,), float(rank), device=device))
    assert [row[0].item() for row in rows] == [0, 1]
    torch.manual_seed(rank)
    model = torch.nn.Linear(4, 1).to(device)
    ddp = DistributedDataParallel(model)
    first = [parameter.detach().cpu() for parameter in model.parameters()]
    batch = torch.arange(8.0).view(SIZE, 4)
    ddp(batch[rank : rank + 1].to(device)).sum().backward()
    alone = torch.nn.Linear(4, 1)
    for parameter, value in zip(alone.parameters(), first, strict=True):
        parameter.data.copy_(value)
    (alone(batch).sum() / SIZE).backward()
    for parameter, expected in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad.cpu(), expected.grad)
    dist.barrier()
    dist.destroy_process_group()


class TestCollectives(TestCase):
    def test_two_processes_train_as_one(self):
        with tempfile.TemporaryDirectory() as folder:
            runs = [
                subprocess.Popen(
                    [sys.executable, __file__, "--rank", str(rank), f"{folder}/store"],
                    stderr=subprocess.PIPE,
                    text=True,
                )
                for rank in range(SIZE)
            ]
            for run in runs:
                _, errors = run.communicate(timeout=600)
                self.assertEqual(run.returncode, 0, errors)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        train(int(sys.argv[2]), sys.argv[3])
    else:
        run_tests()
