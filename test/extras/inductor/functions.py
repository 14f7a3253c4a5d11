"""Functions to compile, each with its arguments: what kinds of graphs and kernels there are.

A tensor that :func:`on_host` made stays on the CPU.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch._higher_order_ops import scan, while_loop


def normal(*sizes: int, **options: Any) -> torch.Tensor:
    return torch.randn(*sizes, **options)


def leaf(*sizes: int, **options: Any) -> torch.Tensor:
    return torch.randn(*sizes, **options).requires_grad_()


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    tensor.stays_on_host = True  # type: ignore[attr-defined]
    return tensor


@dataclass(frozen=True)
class Case:
    """A function, what makes its arguments, and how it is compiled.

    Attributes:
        same_kernels: Whether the kernels are those of the CPU, character by character.
        same_bits: Whether the values are; else they agree within rounding.
        why: The reason if they are not.
        captures_scalars: Whether Dynamo takes ``.item()`` into the graph, which it needs for loops.
    """

    function: Callable[..., Any]
    arguments: Callable[[], list[Any]]
    options: dict[str, Any] = field(default_factory=dict)
    same_kernels: bool = True
    same_bits: bool = True
    why: str = ""
    captures_scalars: bool = False


def update_in_place(x):
    x.add_(1)
    x[0] = 3
    return x * 2


def put(x, index, values):
    x.index_put_((index,), values, accumulate=True)
    return x


def factories(x):
    zeros = torch.zeros(5, device=x.device)
    return torch.arange(5, device=x.device) + zeros + torch.full((5,), 3.0, device=x.device)


def random_numbers(x):
    a = torch.rand_like(x) + torch.randn(5, device=x.device)
    return a + torch.randint(0, 9, (5,), device=x.device)


def branch(x):
    return torch.cond(
        x.sum() > 0,
        lambda x: x.sin() + torch.ones(5, device=x.device),
        lambda x: x.cos(),
        (x,),
    )


def branch_on_host(is_true, x):
    return torch.cond(is_true, lambda x: x.sin(), lambda x: x.cos(), (x,))


def loop(x):
    begin = torch.zeros(1, device=x.device)
    return while_loop(lambda i, x: i.sum() < 3, lambda i, x: (i + 1, x * 2), (begin, x))


def scan_rows(x):
    return scan(lambda carry, x: (carry + x, carry * x), torch.zeros(3, device=x.device), x)


@torch.compiler.nested_compile_region
def region(x):
    return x.sin() * 2 + 1


def conv_norm(x, weight, scale, shift):
    return F.relu(F.batch_norm(F.conv2d(x, weight), None, None, scale, shift, training=True))


def scalars_of_host(x, scalar, vector):
    computed = scalar * 2 + 1
    return scalar + x, x * scalar, computed + x, x * vector[1]


def computed_scalars(x, scalar, number):
    root = (number * 2 + 1) ** 0.5
    return (x * number).softmax(-1), x * root + (scalar + 1).sqrt(), scalar.exp() * x.sum()


NO_CPU_KERNEL_AT_ALL = "the CPU's graph has a kernel for the scalar, ours reads it in the launch"
OF_GROUP_NORM = "torch's decomposition, which comes before our pass, asks for the type cpu"
OF_ATTENTION = "the operator of attention is another; torch decomposes the CPU's for Inductor"

CASES = {
    "pointwise": Case(lambda a, b: torch.relu(a + b) * 2, lambda: [leaf(64, 64), leaf(64, 64)]),
    "softmax": Case(lambda x: F.softmax(x, -1), lambda: [leaf(8, 33)]),
    "layer_norm": Case(
        lambda x, w, b: F.layer_norm(x, (32,), w, b), lambda: [leaf(8, 32), leaf(32), leaf(32)]
    ),
    "linear": Case(
        lambda x, w, b: F.gelu(F.linear(x, w, b)), lambda: [leaf(8, 32), leaf(16, 32), leaf(16)]
    ),
    "convolution": Case(
        lambda x, w: F.relu(F.conv2d(x, w)), lambda: [leaf(2, 3, 8, 8), leaf(4, 3, 3, 3)]
    ),
    "batch_norm": Case(conv_norm, lambda: [leaf(2, 3, 8, 8), leaf(4, 3, 3, 3), leaf(4), leaf(4)]),
    "group_norm": Case(
        lambda x, w, b: F.group_norm(x, 2, w, b),
        lambda: [leaf(2, 4, 5, 5), leaf(4), leaf(4)],
        same_kernels=False,
        same_bits=False,
        why=OF_GROUP_NORM,
    ),
    "attention": Case(
        F.scaled_dot_product_attention,
        lambda: [leaf(2, 2, 8, 16), leaf(2, 2, 8, 16), leaf(2, 2, 8, 16)],
        same_kernels=False,
        why=OF_ATTENTION,
    ),
    "dropout": Case(lambda x: F.dropout(x, 0.5), lambda: [leaf(64)]),
    "random": Case(random_numbers, lambda: [normal(5)]),
    "embedding": Case(
        lambda w, i: F.embedding(i, w), lambda: [leaf(10, 4), torch.tensor([1, 2, 1, 5])]
    ),
    "max_pool": Case(lambda x: F.max_pool2d(x, 2), lambda: [leaf(2, 3, 8, 8)]),
    "sort": Case(lambda x: (*torch.sort(x), *torch.topk(x, 3)), lambda: [normal(20)]),
    "scan_operators": Case(lambda x: x.cumsum(0) + x.cumprod(0), lambda: [leaf(20)]),
    "variance": Case(lambda x: torch.var_mean(x, -1), lambda: [leaf(8, 40)]),
    "products": Case(lambda x, y: torch.bmm(x, y) + 1, lambda: [leaf(2, 4, 5), leaf(2, 5, 6)]),
    "cross_entropy": Case(
        lambda x, t: F.cross_entropy(x, t), lambda: [leaf(6, 10), torch.arange(6)]
    ),
    "views": Case(
        lambda x: (x.t(), x.view(-1)[2:] * 2, x.expand(2, 4, 5) + 1, torch.cat([x, x * 2])),
        lambda: [normal(4, 5)],
    ),
    "aliases": Case(lambda x: (x, x.view(-1), x + 1), lambda: [normal(4, 5)]),
    "interpolation": Case(
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), lambda: [leaf(1, 2, 4, 4)]
    ),
    "scatter": Case(
        lambda x, i: torch.zeros(5, device=x.device).scatter_add(0, i, x),
        lambda: [leaf(6), torch.tensor([0, 1, 0, 2, 4, 4])],
    ),
    "in_place": Case(update_in_place, lambda: [normal(5)]),
    "index_put": Case(put, lambda: [normal(10), torch.tensor([1, 2, 3]), normal(3)]),
    "dynamic": Case(lambda x: (x * x.shape[0]).sum(0), lambda: [leaf(20, 3)], {"dynamic": True}),
    "bfloat16": Case(lambda x: (x * 2).sum(-1).relu(), lambda: [leaf(8, 40, dtype=torch.bfloat16)]),
    "double": Case(lambda x: (x.exp() * 2).mean(-1), lambda: [leaf(8, 40, dtype=torch.double)]),
    "integers": Case(
        lambda x: (x // 3, x % 3, x << 1, x.bitwise_not()), lambda: [torch.arange(-20, 20)]
    ),
    "complex": Case(lambda x: (x * 2 + 1).abs(), lambda: [normal(5, dtype=torch.complex64)]),
    "factories": Case(factories, lambda: [normal(5)]),
    "cond": Case(branch, lambda: [normal(5)]),
    "cond_on_host": Case(branch_on_host, lambda: [on_host(torch.tensor(True)), normal(5)]),
    "while_loop": Case(loop, lambda: [normal(5)]),
    "scan": Case(
        scan_rows,
        lambda: [normal(4, 3)],
        captures_scalars=True,
        same_kernels=False,
        why="the number of the step is on the host: it has kernels of its own",
    ),
    "invoke_subgraph": Case(lambda x: region(region(x)), lambda: [leaf(5)]),
    "scalars_of_host": Case(
        scalars_of_host,
        lambda: [normal(5), on_host(torch.tensor(2.5)), on_host(torch.tensor([2.5, 3.5]))],
        same_kernels=False,
        why=NO_CPU_KERNEL_AT_ALL,
    ),
    "computed_scalars": Case(
        computed_scalars,
        lambda: [leaf(17, 7), on_host(torch.tensor(2.5, dtype=torch.float64)), 25.5],
        options={"dynamic": True},
    ),
    "constant": Case(lambda x: torch.where(x > 0, x, torch.tensor(-3.0)), lambda: [normal(5)]),
    "small_constant": Case(
        lambda x: x + torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]).to(x.device), lambda: [normal(5)]
    ),
    "large_constant": Case(
        lambda x: x + torch.tensor([float(i) for i in range(20)]).to(x.device),
        lambda: [normal(20)],
    ),
    "to_host": Case(
        lambda x: (x * 2).cpu() + 1, lambda: [normal(5)], same_kernels=False, why="it copies"
    ),
    "from_host": Case(
        lambda x, y: x + (y * 2).to(x.device),
        lambda: [normal(5), on_host(normal(5))],
        same_kernels=False,
        why="it copies",
    ),
    "indices_on_host": Case(
        lambda x, i: x[i] + 1, lambda: [normal(10), on_host(torch.tensor([1, 2]))]
    ),
}
