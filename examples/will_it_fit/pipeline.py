"""Trains the model of train.py as a pipeline of two stages, each sharded over data-parallel ranks.

    python -m torch_openreg.cuda --dry-run --gpu h100 --world-size 8 --ranks 0,4 pipeline.py

Rank 0 is the first of the four ranks of the first stage, and rank 4 of those of the second. The
first stage holds the activations of more micro-batches at a time.

The program does not mention torch_openreg: torchrun starts it on eight GPUs.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn import functional
from train import BATCH, LAYERS, LENGTH, WIDTH, WORDS, Block

STAGES = 2
MICRO_BATCHES = 4


class Stage(nn.Module):
    """Layers of the model: with the embedding in the first stage, and the output in the last."""

    def __init__(self, index):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH) if index == 0 else nn.Identity()
        self.layers = nn.ModuleList([Block() for _ in range(LAYERS // STAGES)])
        self.output = nn.Linear(WIDTH, WORDS) if index == STAGES - 1 else nn.Identity()

    def forward(self, x):
        x = self.words(x)
        for layer in self.layers:
            x = layer(x)
        return self.output(x)


def main():
    """Two steps of this rank."""
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(rank % torch.cuda.device_count())
    device = torch.device("cuda", torch.cuda.current_device())
    sizes = (STAGES, dist.get_world_size() // STAGES)
    mesh = init_device_mesh("cuda", sizes, mesh_dim_names=("stage", "data"))
    index = mesh["stage"].get_local_rank()
    with device:
        model = Stage(index)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    stage = PipelineStage(model, index, STAGES, device, group=mesh["stage"].get_group())

    def loss_of(scores, labels):
        return functional.cross_entropy(scores.flatten(0, 1), labels.flatten())

    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=loss_of)
    words = torch.randint(WORDS, (BATCH, LENGTH), device=device)
    labels = torch.randint(WORDS, (BATCH, LENGTH), device=device)
    for _ in range(2):
        if index == 0:
            schedule.step(words)
        else:
            schedule.step(target=labels)
        optimizer.step()
        optimizer.zero_grad()
    peak = torch.cuda.max_memory_allocated() / 2**30
    print(f"rank {rank}, stage {index}: {peak:.2f} GiB at the peak")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
