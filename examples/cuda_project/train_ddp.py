"""The model of ``train.py``, trained by several processes with a GPU each.

Run it with ``torchrun --nproc-per-node 2 train_ddp.py`` where GPUs are, and otherwise with ``python
-m torch_openreg.cuda --devices 2 -m torch.distributed.run --nproc-per-node 2 train_ddp.py``.
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from train import make_batches


def main() -> None:
    """Trains one model; each process has batches of its own."""
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 2)).to(device)
    parallel = DistributedDataParallel(model, device_ids=[device.index])
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.5)
    for points, labels in make_batches(20):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(parallel(points.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
    total = sum(parameter.detach().sum() for parameter in model.parameters())
    # One write, as the processes share the output.
    line = f"rank {dist.get_rank()} on {device}: loss {loss.item():.3f}, parameters {total:.6f}\n"
    print(line, end="", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
