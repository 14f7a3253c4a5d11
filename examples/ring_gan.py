"""Trains a generator and a discriminator against each other, on points around a circle.

Nothing here names a device: whatever ``torch.accelerator`` finds is used. All random numbers are
drawn on the device, so a backend with the CPU's generator prints the same as the CPU.
"""

import argparse
import hashlib
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

NOISE = 8
WIDTH = 64
BATCH = 128
MODES = 8


def sample_ring(device: torch.device) -> Tensor:
    """Returns points, shape (BATCH, 2), close to one of MODES places on the unit circle."""
    angle = torch.randint(MODES, (BATCH,), device=device) * (2 * math.pi / MODES)
    places = torch.stack([angle.cos(), angle.sin()], dim=1)
    return places + 0.05 * torch.randn(BATCH, 2, device=device)


def make_generator() -> nn.Module:
    """Returns a network from noise to points."""
    return nn.Sequential(
        nn.Linear(NOISE, WIDTH),
        nn.BatchNorm1d(WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, WIDTH),
        nn.BatchNorm1d(WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, 2),
    )


def make_discriminator() -> nn.Module:
    """Returns a network from points to a score: positive for those it takes for real."""
    return nn.Sequential(
        nn.Linear(2, WIDTH),
        nn.LeakyReLU(0.2),
        nn.Dropout(0.1),
        nn.Linear(WIDTH, WIDTH),
        nn.LeakyReLU(0.2),
        nn.Linear(WIDTH, 1),
    )


def fingerprint(*models: nn.Module) -> str:
    """Returns a hash of the models' state; it differs if one bit does."""
    sha = hashlib.sha256()
    for model in models:
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
        generator, discriminator = make_generator(), make_discriminator()
    generator_steps = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    discriminator_steps = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.999))

    for step in range(options.steps):
        real = sample_ring(device)
        fake = generator(torch.randn(BATCH, NOISE, device=device))
        # log(1 + exp(-score)) is the loss of a point that is to pass as real.
        discriminator_loss = (
            F.softplus(-discriminator(real)).mean()
            + F.softplus(discriminator(fake.detach())).mean()
        )
        discriminator_steps.zero_grad()
        discriminator_loss.backward()
        discriminator_steps.step()

        generator_loss = F.softplus(-discriminator(fake)).mean()
        generator_steps.zero_grad()
        generator_loss.backward()
        generator_steps.step()
        if step % max(options.steps // 10, 1) == 0:
            print(
                f"step {step}: loss of the discriminator {discriminator_loss.item():.6f}, "
                f"of the generator {generator_loss.item():.6f}"
            )

    generator.eval()
    with torch.no_grad():
        radius = generator(torch.randn(BATCH, NOISE, device=device)).norm(dim=1)
    print(f"distance from the center: {radius.mean().item():.3f} +- {radius.std().item():.3f}")
    print(f"parameters {fingerprint(generator, discriminator)}")


if __name__ == "__main__":
    main()
