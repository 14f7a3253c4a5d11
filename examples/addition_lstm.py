"""Trains an LSTM to add two numbers that are marked in a long sequence.

Nothing here names a device: whatever ``torch.accelerator`` finds is used. All random numbers are
drawn on the device, so a backend with the CPU's generator prints the same as the CPU.
"""

import argparse
import hashlib

import torch
from torch import Tensor, nn

LENGTH = 20
WIDTH = 32
BATCH = 64


class Adder(nn.Module):
    """Reads pairs of a number and a mark; returns one number at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(input_size=2, hidden_size=WIDTH, num_layers=2, batch_first=True)
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, sequence: Tensor) -> Tensor:
        states, _ = self.lstm(sequence)
        return self.head(states[:, -1]).squeeze(1)


def make_batch(device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns sequences, shape (BATCH, LENGTH, 2), and the sums of their marked numbers."""
    numbers = torch.rand(BATCH, LENGTH, device=device)
    half = LENGTH // 2
    first = torch.randint(half, (BATCH, 1), device=device)
    second = torch.randint(half, LENGTH, (BATCH, 1), device=device)
    marks = torch.zeros_like(numbers).scatter_(1, torch.cat([first, second], dim=1), 1.0)
    return torch.stack([numbers, marks], dim=2), (numbers * marks).sum(dim=1)


def fingerprint(model: nn.Module) -> str:
    """Returns a hash of the model's state; it differs if one bit does."""
    sha = hashlib.sha256()
    for value in model.state_dict().values():
        sha.update(bytes(value.cpu().flatten().view(torch.uint8).tolist()))
    return sha.hexdigest()[:16]


def main() -> None:
    """Runs the program."""
    parser = argparse.ArgumentParser(description=__doc__)
    accelerator = torch.accelerator.current_accelerator()
    parser.add_argument("--device", type=torch.device, default=accelerator or "cpu")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    device = torch.device(options.device)
    torch.manual_seed(options.seed)

    with device:
        model = Adder()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    for step in range(options.steps):
        sequences, sums = make_batch(device)
        loss = nn.functional.mse_loss(model(sequences), sums)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % max(options.steps // 10, 1) == 0:
            print(f"step {step}: loss {loss.item():.6f}")

    with torch.no_grad():
        sequences, sums = make_batch(device)
        error = (model(sequences) - sums).abs().max().item()
    print(f"largest error in {BATCH} new sequences: {error:.6f}")
    print(f"parameters {fingerprint(model)}")


if __name__ == "__main__":
    main()
