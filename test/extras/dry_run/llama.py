"""Llama 3 with fully sharded data parallelism, as torchtitan trains it, for one rank of many.

Written from the model's published sizes and from torchtitan's description of its runs:
parameters in float32, computation in bfloat16, gradients reduced in float32, AdamW, and the loss in
float32. Prints the peaks of allocated and reserved memory in GiB.
"""

import argparse
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

SIZES = {
    # layers, width, heads, heads of keys and values, width inside of the feed-forward part
    "8b": (32, 4096, 32, 8, 14336),
    "70b": (80, 8192, 64, 8, 28672),
    "tiny": (2, 256, 4, 2, 512),
}
WORDS = 128256

aten = torch.ops.aten
# What selective checkpointing by operators saves; of the products each second one.
SAVED = {
    aten.mm.default,
    aten._scaled_dot_product_cudnn_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_flash_attention.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
    aten.max.default,
}


def rotate(x, turns):
    """Rotates pairs of (batch, length, heads, width) by complex (length, width / 2)."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns[None, :, None]).flatten(3).type_as(x)


class Attention(nn.Module):
    def __init__(self, width, heads, kv_heads):
        super().__init__()
        self.size = width // heads
        self.groups = heads // kv_heads
        self.wq = nn.Linear(width, width, bias=False)
        self.wk = nn.Linear(width, kv_heads * self.size, bias=False)
        self.wv = nn.Linear(width, kv_heads * self.size, bias=False)
        self.wo = nn.Linear(width, width, bias=False)

    def forward(self, x, turns):
        batch, length, _ = x.shape
        query, key, value = (
            one(x).view(batch, length, -1, self.size) for one in (self.wq, self.wk, self.wv)
        )
        query, key = rotate(query, turns), rotate(key, turns)
        key, value = (self.repeated(one) for one in (key, value))
        out = functional.scaled_dot_product_attention(
            query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), is_causal=True
        )
        return self.wo(out.transpose(1, 2).contiguous().view(batch, length, -1))

    def repeated(self, x):
        batch, length, heads, size = x.shape
        grouped = x[:, :, :, None, :].expand(batch, length, heads, self.groups, size)
        return grouped.reshape(batch, length, heads * self.groups, size)


class FeedForward(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.w1 = nn.Linear(width, inner, bias=False)
        self.w2 = nn.Linear(inner, width, bias=False)
        self.w3 = nn.Linear(width, inner, bias=False)

    def forward(self, x):
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, width, heads, kv_heads, inner):
        super().__init__()
        self.attention = Attention(width, heads, kv_heads)
        self.feed_forward = FeedForward(width, inner)
        self.attention_norm = nn.RMSNorm(width, eps=1e-5)
        self.ffn_norm = nn.RMSNorm(width, eps=1e-5)

    def forward(self, x, turns):
        x = x + self.attention(self.attention_norm(x), turns)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    def __init__(self, layers, width, heads, kv_heads, inner, length):
        super().__init__()
        self.tok_embeddings = nn.Embedding(WORDS, width)
        self.layers = nn.ModuleList([Block(width, heads, kv_heads, inner) for _ in range(layers)])
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.output = nn.Linear(width, WORDS, bias=False)
        turns = torch.empty(length, width // heads // 2, dtype=torch.complex64)
        self.register_buffer("turns", turns, persistent=False)

    def forward(self, words):
        x = self.tok_embeddings(words)
        for layer in self.layers:
            x = layer(x, self.turns[: words.shape[1]])
        return self.output(self.norm(x))


def selective_contexts():
    counts = {False: 0, True: 0}

    def policy(context, function, *arguments, **keywords):
        is_product = function == aten.mm.default
        counts[context.is_recompute] += is_product
        is_saved = function in SAVED and not (is_product and counts[context.is_recompute] % 2 == 0)
        return CheckpointPolicy.MUST_SAVE if is_saved else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=list(SIZES), default="8b")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--checkpoint", choices=["selective", "full", "second"])
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()

    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    with torch.device("meta"):
        model = Llama(*SIZES[options.size], options.length)
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for i, layer in enumerate(model.layers):
        if options.checkpoint == "selective":
            wrapped = checkpoint_wrapper(
                layer, context_fn=selective_contexts, preserve_rng_state=False
            )
        elif options.checkpoint == "full" or (options.checkpoint == "second" and i % 2 == 0):
            wrapped = checkpoint_wrapper(layer, preserve_rng_state=False)
        else:
            wrapped = layer
        model.layers[i] = wrapped
        is_last = i == len(model.layers) - 1
        fully_shard(wrapped, mesh=mesh, mp_policy=precision, reshard_after_forward=not is_last)
    fully_shard(model, mesh=mesh, mp_policy=precision)
    model.to_empty(device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    loss_of = partial(torch.randint, WORDS, (options.batch, options.length), device="cuda")
    for _ in range(options.steps):
        words, labels = loss_of(), loss_of()
        logits = model(words)
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))
        del logits
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad()
    gib = [torch.cuda.max_memory_allocated() / 2**30, torch.cuda.max_memory_reserved() / 2**30]
    print(*(f"{one:.2f}" for one in gib))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
