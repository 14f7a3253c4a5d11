"""Trains the GPT of ``char_gpt.py`` on several processes.

    torchrun --nproc-per-node 2 examples/distributed/train_gpt.py --parallel ddp
    torchrun --nproc-per-node 2 examples/distributed/train_gpt.py --parallel fsdp
    python examples/distributed/train_gpt.py --parts 2

All three print the same losses. A batch has a part for each process; one process alone takes the
parts in turn and adds their gradients. Nothing here names a device: whatever ``torch.accelerator``
finds is used, and its distributed backend.
"""

import argparse
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

EXAMPLES = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(EXAMPLES))

from char_gpt import BATCH, CONTEXT, CharGPT  # noqa: E402


def distribute(model: CharGPT, parallel: str) -> nn.Module:
    """Returns the model, to be trained by all processes of the default group."""
    if parallel == "ddp":
        return DistributedDataParallel(model)
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def checksum(model: nn.Module) -> float:
    """Returns the sum of all parameters' absolute values; all processes have to ask for it."""
    parameters = [
        parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        for parameter in model.parameters()
    ]
    return sum(parameter.detach().abs().double().sum().item() for parameter in parameters)


def main() -> None:
    """Runs the program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    accelerator = torch.accelerator.current_accelerator()
    parser.add_argument("--device", default=accelerator.type if accelerator else "cpu")
    parser.add_argument("--parallel", choices=["ddp", "fsdp"], default="ddp")
    parser.add_argument("--parts", type=int, help="of a batch (default: one per process)")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    is_distributed = dist.is_torchelastic_launched()
    device = torch.device(options.device)
    if is_distributed and device.type != "cpu":
        local_rank = int(os.environ["LOCAL_RANK"])
        device = torch.device(device.type, local_rank % torch.accelerator.device_count())
        torch.accelerator.set_device_index(device.index)
    if is_distributed:
        dist.init_process_group("gloo" if device.type == "cpu" else None)
    rank, size = (dist.get_rank(), dist.get_world_size()) if is_distributed else (0, 1)
    parts = options.parts or size
    mine = range(rank, parts, size)

    source = (EXAMPLES / "char_gpt.py").read_text(encoding="utf-8")
    alphabet = sorted(set(source))
    text = torch.tensor([alphabet.index(character) for character in source], device=device)
    torch.manual_seed(options.seed)
    with device:
        model: nn.Module = CharGPT(len(alphabet))
    if is_distributed:
        model = distribute(model, options.parallel)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    window = torch.arange(CONTEXT + 1, device=device)

    def loss_of(step: int, part: int) -> Tensor:
        # Each part has its own random numbers, whichever rank computes it.
        torch.manual_seed(options.seed + 1 + step * parts + part)
        starts = torch.randint(len(text) - CONTEXT, (BATCH // parts, 1), device=device)
        batch = text[starts + window]
        return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    for step in range(options.steps):
        optimizer.zero_grad()
        total = torch.zeros((), device=device)
        for part in mine:
            # Gradients are averaged over the processes.
            loss = loss_of(step, part) / len(mine)
            loss.backward()
            total += loss.detach()
        optimizer.step()
        if step % max(options.steps // 10, 1) == 0:
            if is_distributed:
                dist.all_reduce(total)
            if rank == 0:
                print(f"step {step}: loss {total.item() / size:.6f}")
    result = checksum(model)
    if rank == 0:
        print(f"parameters {result:.6f}")
    if is_distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
