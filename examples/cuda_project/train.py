"""A program for CUDA that does not mention openreg: one model per GPU, trained concurrently.

Run it with ``python -m torch_openreg.cuda --devices 4 train.py``. Batches are copied on a separate
stream while the GPU computes, in mixed precision.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn


class Prefetcher:
    """Copies the next batch to a GPU while the current one is used."""

    def __init__(self, batches: list[tuple[Tensor, Tensor]], device: torch.device) -> None:
        """Takes batches in pinned memory."""
        self.batches = batches
        self.device = device
        self.copies = torch.cuda.Stream(device)

    def _fetch(self, batch: tuple[Tensor, Tensor]) -> list[Tensor]:
        with torch.cuda.stream(self.copies):
            return [one.to(self.device, non_blocking=True) for one in batch]

    def __iter__(self) -> Iterator[list[Tensor]]:
        """Yields the batches, on the GPU."""
        following = self._fetch(self.batches[0])
        for upcoming in [*self.batches[1:], None]:
            compute = torch.cuda.current_stream(self.device)
            compute.wait_stream(self.copies)
            batch = following
            for one in batch:
                one.record_stream(compute)
            if upcoming is not None:
                following = self._fetch(upcoming)
            yield batch


def make_batches(count: int) -> list[tuple[Tensor, Tensor]]:
    """Makes points inside and outside of a circle, in pinned memory."""
    batches = []
    for _ in range(count):
        points = torch.rand(256, 2) * 2 - 1
        is_inside = points.square().sum(1) < 0.6
        batches.append((points.pin_memory(), is_inside.long().pin_memory()))
    return batches


def train(device: torch.device, seed: int = 0, steps: int = 60) -> tuple[nn.Module, list[float]]:
    """Trains a model and returns it with the loss of each step."""
    torch.manual_seed(seed)
    torch.cuda.set_device(device)
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, fused=True)
    scaler = torch.amp.GradScaler("cuda")
    losses = []
    for points, labels in Prefetcher(make_batches(steps), device):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(points), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
    return model, torch.stack(losses).tolist()


def main() -> None:
    """Trains a model on each GPU."""
    for index in range(torch.cuda.device_count()):
        _, losses = train(torch.device("cuda", index), seed=index)
        peak = torch.cuda.max_memory_allocated(index) >> 10
        print(f"cuda:{index}: loss {losses[0]:.3f} -> {losses[-1]:.3f}, peak {peak} KiB")


if __name__ == "__main__":
    main()
