"""Trains a convolutional network to read hand-written digits.

Nothing here names a device: whatever ``torch.accelerator`` finds is used. All random numbers are
drawn on the device, so a backend with the CPU's generator prints the same as the CPU.
"""

import argparse
import gzip
import hashlib
from pathlib import Path

import torch
from torch import Tensor, nn

DATA = Path(__file__).parent.parent / "torch_openreg" / "demo" / "data" / "digits.csv.gz"
SIDE = 8
DARKEST = 16
TEST_SIZE = 360
BATCH = 32


def load_digits() -> tuple[Tensor, Tensor]:
    """Returns images, shape (N, 1, SIDE, SIDE), from 0 to 1, and labels, shape (N,)."""
    lines = gzip.decompress(DATA.read_bytes()).decode("ascii").split()
    table = torch.tensor([[int(value) for value in line.split(",")] for line in lines])
    return (table[:, :-1] / DARKEST).view(-1, 1, SIDE, SIDE), table[:, -1]


def make_model() -> nn.Module:
    """Returns a network of two convolutions and a classifier."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(32 * 4, 10),
    )


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
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    device = torch.device(options.device)
    torch.manual_seed(options.seed)

    images, labels = (values.to(device) for values in load_digits())
    train_images, train_labels = images[:-TEST_SIZE], labels[:-TEST_SIZE]
    with device:
        model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(options.steps, 1))

    for step in range(options.steps):
        rows = torch.randint(len(train_labels), (BATCH,), device=device)
        loss = nn.functional.cross_entropy(model(train_images[rows]), train_labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % max(options.steps // 10, 1) == 0:
            print(f"step {step}: loss {loss.item():.6f}")

    model.eval()
    with torch.no_grad():
        read = model(images[-TEST_SIZE:]).argmax(dim=1)
    right = (read == labels[-TEST_SIZE:]).sum().item()
    print(f"{right} of {TEST_SIZE} new images read rightly")
    print(f"parameters {fingerprint(model)}")


if __name__ == "__main__":
    main()
