"""Trains a language model with 1.3 billion parameters on one GPU, if it fits.

It does not fit an A100 with 40 GB as it is. Each option is a fix:

    python -m torch_openreg.cuda --dry-run --gpu a100-40gb train.py
    python -m torch_openreg.cuda --dry-run --gpu a100-40gb train.py --bf16
    python -m torch_openreg.cuda --dry-run --gpu a100-40gb train.py --bf16 --checkpoint
    python -m torch_openreg.cuda --dry-run --gpu a100-40gb train.py --bf16 --checkpoint --micro 4

The program does not mention torch_openreg: on a GPU, the same commands without the first part train
the model.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

WORDS = 50304
WIDTH = 2048
HEADS = 16
LAYERS = 24
LENGTH = 1024
BATCH = 16


class Block(nn.Module):
    """Attention and a multilayer perceptron, each behind a norm."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.queries_keys_values = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        """Takes and returns (batch, length, width)."""
        batch, length, _ = x.shape
        heads = self.queries_keys_values(self.norms[0](x)).view(batch, length, 3, HEADS, -1)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


class Model(nn.Module):
    """Predicts each word from those before it."""

    def __init__(self, uses_checkpoints):
        super().__init__()
        self.uses_checkpoints = uses_checkpoints
        self.words = nn.Embedding(WORDS, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words):
        """Takes words (batch, length), returns logits (batch, length, words)."""
        x = self.words(words) + self.positions(torch.arange(words.shape[1], device=words.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.uses_checkpoints else block(x)
        return self.out(self.norm(x))


def train(options):
    """Makes the steps that the options ask for."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Model(options.checkpoint)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(options.steps):
        batch = torch.randint(WORDS, (BATCH, LENGTH + 1))
        for part in batch.chunk(BATCH // options.micro):
            words = part.cuda()
            with torch.autocast("cuda", torch.bfloat16, enabled=options.bf16):
                logits = model(words[:, :-1])
                loss = functional.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten())
            (loss * options.micro / BATCH).backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}")


def options_of(arguments=None):
    """Reads the options, of the command line by default."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bf16", action="store_true", help="compute in bfloat16")
    parser.add_argument("--checkpoint", action="store_true", help="recompute activations")
    parser.add_argument("--micro", type=int, default=BATCH, help="sequences at a time")
    parser.add_argument("--steps", type=int, default=2)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    train(options_of())
