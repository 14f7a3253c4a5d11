"""Trains a small GPT on its own source, character by character, and lets it write.

Nothing here names a device: whatever ``torch.accelerator`` finds is used. Everything random is
drawn on the device, so a backend with the CPU's generator prints what the CPU prints.
"""

import argparse
import hashlib
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CONTEXT = 64
WIDTH = 64
HEADS = 4
LAYERS = 2
BATCH = 16


class Block(nn.Module):
    """Attention to what was written before, then a perceptron per character."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.project = nn.Linear(WIDTH, WIDTH)
        self.widen = nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        qkv = self.qkv(self.norms[0](x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.project(attended.transpose(1, 2).reshape(batch, length, WIDTH)))
        return x + self.dropout(self.narrow(F.gelu(self.widen(self.norms[1](x)))))


class CharGPT(nn.Module):
    """Scores for the next character, after each character of a text."""

    def __init__(self, alphabet_size: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(alphabet_size, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, alphabet_size)

    def forward(self, text: Tensor) -> Tensor:
        positions = torch.arange(text.shape[1], device=text.device)
        return self.head(self.norm(self.blocks(self.characters(text) + self.positions(positions))))


@torch.no_grad()
def write(model: CharGPT, text: Tensor, count: int) -> Tensor:
    """Returns the text, shape (1, N), with ``count`` sampled characters added."""
    model.eval()
    for _ in range(count):
        scores = model(text[:, -CONTEXT:])[:, -1]
        text = torch.cat([text, torch.multinomial(scores.softmax(dim=-1), 1)], dim=1)
    model.train()
    return text


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
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    device = torch.device(options.device)
    torch.manual_seed(options.seed)

    source = Path(__file__).read_text(encoding="utf-8")
    alphabet = sorted(set(source))
    text = torch.tensor([alphabet.index(character) for character in source], device=device)
    with device:
        model = CharGPT(len(alphabet))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    window = torch.arange(CONTEXT + 1, device=device)

    for step in range(options.steps):
        starts = torch.randint(len(text) - CONTEXT, (BATCH, 1), device=device)
        batch = text[starts + window]
        scores = model(batch[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % max(options.steps // 10, 1) == 0:
            print(f"step {step}: loss {loss.item():.6f}")

    written = write(model, text[None, :1], 200)[0].tolist()
    print("".join(alphabet[number] for number in written))
    print(f"parameters {fingerprint(model)}")


if __name__ == "__main__":
    main()
