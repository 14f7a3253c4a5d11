"""Programs whose memory is the same in a dry run: ``run("mlp")`` prints it as JSON.

Each calls ``mark`` at some points, which notes what the allocator has. They are small, but not as
small as the operands on which kernels run in a dry run.
"""

import gc
import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import checkpoint as checkpoints

DEVICE = torch.accelerator.current_accelerator()
assert DEVICE is not None
MODULE = torch.get_device_module(DEVICE)

Mark = Callable[[], None]
PROGRAMS: dict[str, Callable[[Mark], None]] = {}


def program(function: Callable[[Mark], None]) -> Callable[[Mark], None]:
    PROGRAMS[function.__name__] = function
    return function


def rand(*sizes: int, **options: Any) -> torch.Tensor:
    return torch.rand(sizes, device=DEVICE, **options)


def labels(count: int, classes: int) -> torch.Tensor:
    return torch.randint(classes, (count,)).to(DEVICE)


def train(
    model: nn.Module,
    batch: Callable[[], tuple[torch.Tensor, ...]],
    loss_of: Callable[..., torch.Tensor],
    mark: Mark,
    optimizer: torch.optim.Optimizer | None = None,
    steps: int = 3,
) -> None:
    """Trains, and marks each part of each step."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        inputs = batch()
        loss = loss_of(model, *inputs)
        mark()
        loss.backward()
        mark()
        optimizer.step()
        mark()
        optimizer.zero_grad()
        mark()


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(300, 400), nn.ReLU(), nn.Linear(400, 500), nn.GELU(), nn.Linear(500, 10)
    ).to(DEVICE)


def classify(model: nn.Module, inputs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(inputs), wanted)


def mlp_batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(128, 300).to(DEVICE), labels(128, 10)


def train_mlp(mark: Mark, **options: Any) -> None:
    model = mlp()
    optimizer = options.pop("optimizer")(model.parameters(), **options)
    train(model, mlp_batch, classify, mark, optimizer)


# --- Optimizers


@program
def sgd(mark: Mark) -> None:
    train_mlp(mark, optimizer=torch.optim.SGD, lr=0.1)


@program
def sgd_momentum(mark: Mark) -> None:
    train_mlp(mark, optimizer=torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True)


@program
def adamw(mark: Mark) -> None:
    train_mlp(mark, optimizer=torch.optim.AdamW, foreach=False)


@program
def adam_foreach(mark: Mark) -> None:
    train_mlp(mark, optimizer=torch.optim.Adam, foreach=True, amsgrad=True)


@program
def adam_fused(mark: Mark) -> None:
    train_mlp(mark, optimizer=torch.optim.Adam, fused=True)


@program
def adagrad(mark: Mark) -> None:
    train_mlp(mark, optimizer=torch.optim.Adagrad)


@program
def rmsprop(mark: Mark) -> None:
    train_mlp(mark, optimizer=torch.optim.RMSprop, centered=True)


@program
def adafactor(mark: Mark) -> None:
    train_mlp(mark, optimizer=torch.optim.Adafactor)


@program
def clipped_gradients(mark: Mark) -> None:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        classify(model, *mlp_batch()).backward()
        mark()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        mark()
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        mark()


@program
def optimizer_in_backward(mark: Mark) -> None:
    model = mlp()
    optimizers = {each: torch.optim.Adam([each]) for each in model.parameters()}

    def step(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()
        mark()

    for each in model.parameters():
        each.register_post_accumulate_grad_hook(step)
    for _ in range(2):
        classify(model, *mlp_batch()).backward()
        mark()


@program
def gradient_accumulation(mark: Mark) -> None:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(6):
        (classify(model, *mlp_batch()) / 3).backward()
        mark()
        if step % 3 == 2:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            mark()


@program
def averaged_weights(mark: Mark) -> None:
    model = mlp()
    averaged = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        train(model, mlp_batch, classify, mark, optimizer, steps=1)
        averaged.update_parameters(model)
        mark()


@program
def schedule_of_rates(mark: Mark) -> None:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=5)
    for _ in range(4):
        train(model, mlp_batch, classify, mark, optimizer, steps=1)
        schedule.step()


# --- Precision


@program
def autocast(mark: Mark) -> None:
    model = mlp()

    def loss_of(model: nn.Module, *batch: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE.type, torch.bfloat16):
            return classify(model, *batch)

    train(model, mlp_batch, loss_of, mark)


@program
def scaled_gradients(mark: Mark) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(DEVICE.type)
    for _ in range(3):
        with torch.autocast(DEVICE.type, torch.float16):
            loss = classify(model, *mlp_batch())
        scaler.scale(loss).backward()
        mark()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        mark()


@program
def half_model(mark: Mark) -> None:
    model = mlp().to(torch.bfloat16)

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        inputs, wanted = mlp_batch()
        return inputs.to(torch.bfloat16), wanted

    train(model, batch, classify, mark)


@program
def conversions(mark: Mark) -> None:
    x = rand(300, 500)
    for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.bool):
        y = x.to(dtype)
        mark()
        z = y.float() + x
        mark()
        del y, z
    mark()


# --- Networks


@program
def convolutions(mark: Mark) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.BatchNorm2d(32),
        nn.LeakyReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    ).to(DEVICE)
    train(model, lambda: (rand(16, 3, 32, 32), labels(16, 10)), classify, mark)


@program
def channels_last(mark: Mark) -> None:
    model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3, groups=4)).to(DEVICE)
    model = model.to(memory_format=torch.channels_last)

    def batch() -> tuple[torch.Tensor]:
        return (rand(8, 3, 40, 40).to(memory_format=torch.channels_last),)

    train(model, batch, lambda model, x: model(x).square().mean(), mark)


@program
def transposed_convolutions(mark: Mark) -> None:
    model = nn.Sequential(
        nn.ConvTranspose2d(8, 16, 4, stride=2),
        nn.GroupNorm(4, 16),
        nn.SiLU(),
        nn.Upsample(scale_factor=2),
    ).to(DEVICE)
    train(model, lambda: (rand(8, 8, 20, 20),), lambda model, x: model(x).mean(), mark)


@program
def convolutions_of_series(mark: Mark) -> None:
    model = nn.Sequential(nn.Conv1d(8, 64, 5), nn.ELU(), nn.AvgPool1d(2), nn.Conv1d(64, 8, 3)).to(
        DEVICE
    )
    train(model, lambda: (rand(16, 8, 200),), lambda model, x: model(x).abs().mean(), mark)


@program
def convolutions_of_volumes(mark: Mark) -> None:
    model = nn.Sequential(nn.Conv3d(2, 8, 3), nn.InstanceNorm3d(8), nn.ReLU()).to(DEVICE)
    train(model, lambda: (rand(2, 2, 20, 20, 20),), lambda model, x: model(x).std(), mark)


class Attention(nn.Module):
    def __init__(self, width: int = 64, heads: int = 4, **options: Any) -> None:
        super().__init__()
        self.heads = heads
        self.options = options
        self.inner = nn.Linear(width, 3 * width)
        self.outer = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        heads = self.inner(x).view(batch, length, 3, self.heads, -1).transpose(1, 3)
        q, k, v = heads.unbind(2)
        mixed = F.scaled_dot_product_attention(q, k, v, **self.options)
        return self.outer(mixed.transpose(1, 2).reshape(batch, length, width))


@program
def attention(mark: Mark) -> None:
    train(Attention().to(DEVICE), lambda: (rand(8, 64, 64),), lambda m, x: m(x).mean(), mark)


@program
def causal_attention(mark: Mark) -> None:
    model = Attention(is_causal=True).to(DEVICE)
    train(model, lambda: (rand(8, 64, 64),), lambda m, x: m(x).mean(), mark)


@program
def written_out_attention(mark: Mark) -> None:
    q, k, v = (rand(4, 4, 64, 32, requires_grad=True) for _ in range(3))
    mask = torch.ones(64, 64, device=DEVICE, dtype=torch.bool).tril()
    for _ in range(2):
        scores = (q @ k.transpose(-2, -1)) / 32**0.5
        scores = scores.masked_fill(~mask, float("-inf"))
        mark()
        (scores.softmax(-1) @ v).sum().backward()
        mark()


@program
def multihead_attention(mark: Mark) -> None:
    model = nn.MultiheadAttention(64, 4, batch_first=True, dropout=0.1).to(DEVICE)
    train(model, lambda: (rand(8, 48, 64),), lambda m, x: m(x, x, x)[0].mean(), mark)


@program
def encoder(mark: Mark) -> None:
    layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(DEVICE)
    train(model, lambda: (rand(8, 32, 64),), lambda m, x: m(x).mean(), mark)


class Language(nn.Module):
    def __init__(self, is_tied: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(1000, 64)
        self.places = nn.Embedding(64, 64)
        self.norm = nn.LayerNorm(64)
        self.blocks = nn.ModuleList(Attention(is_causal=True) for _ in range(2))
        self.head = nn.Linear(64, 1000, bias=False)
        if is_tied:
            self.head.weight = self.words.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = x + block(self.norm(x))
        return self.head(x)


def tokens() -> tuple[torch.Tensor]:
    return (torch.randint(1000, (8, 64)).to(DEVICE),)


def next_token(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    scores = model(tokens[:, :-1])
    return F.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())


@program
def language_model(mark: Mark) -> None:
    model = Language().to(DEVICE)
    train(model, tokens, next_token, mark, torch.optim.AdamW(model.parameters()))


@program
def tied_weights(mark: Mark) -> None:
    train(Language(is_tied=True).to(DEVICE), tokens, next_token, mark)


@program
def generation(mark: Mark) -> None:
    model = Language().to(DEVICE).eval()
    text = tokens()[0][:, :8]
    with torch.inference_mode():
        for _ in range(8):
            scores = model(text)[:, -1]
            best = scores.topk(5).values[:, -1:]
            chances = scores.masked_fill(scores < best, float("-inf")).softmax(-1)
            text = torch.cat([text, chances.argmax(-1, keepdim=True)], 1)
            mark()


@program
def key_value_cache(mark: Mark) -> None:
    keys = torch.zeros(4, 4, 128, 64, device=DEVICE)
    with torch.no_grad():
        for place in range(6):
            keys[:, :, place] = rand(4, 4, 64)
            scores = rand(4, 4, 1, 64) @ keys[:, :, : place + 1].transpose(-2, -1)
            mark()
            del scores


@program
def layer_norm(mark: Mark) -> None:
    model = nn.Sequential(nn.LayerNorm(200), nn.Linear(200, 200), nn.LayerNorm(200)).to(DEVICE)
    train(model, lambda: (rand(200, 200),), lambda m, x: m(x).square().mean(), mark)


@program
def root_mean_square_norm(mark: Mark) -> None:
    model = nn.Sequential(nn.RMSNorm(200), nn.Linear(200, 200)).to(DEVICE)
    train(model, lambda: (rand(200, 200),), lambda m, x: m(x).square().mean(), mark)


def train_embedding(mark: Mark, **options: Any) -> None:
    model = nn.Sequential(nn.Embedding(2000, 64, **options), nn.Linear(64, 8)).to(DEVICE)
    train(
        model,
        lambda: (torch.randint(2000, (64, 32)).to(DEVICE),),
        lambda m, x: m(x).mean(),
        mark,
    )


@program
def embeddings(mark: Mark) -> None:
    train_embedding(mark, padding_idx=0)


@program
def sparse_embeddings(mark: Mark) -> None:
    train_embedding(mark, sparse=True)


@program
def products_of_sparse_matrices(mark: Mark) -> None:
    for layout in (torch.sparse_coo, torch.sparse_csr):
        edges = torch.arange(40_000).view(2, -1) % 3000
        graph = torch.sparse_coo_tensor(edges, torch.ones(20_000), (3000, 3000)).coalesce()
        graph = graph.to_sparse(layout=layout).to(DEVICE)
        x, weight = rand(3000, 40, requires_grad=True), rand(40, 50, requires_grad=True)
        for _ in range(2):
            hidden = torch.sparse.mm(graph, x @ weight).relu()
            mark()
            torch.sparse.mm(graph, hidden).sum().backward()
            mark()


@program
def recurrent_cells(mark: Mark) -> None:
    cell = nn.GRUCell(64, 128).to(DEVICE)
    state = torch.zeros(200, 128, device=DEVICE)
    for _ in range(3):
        state = cell(rand(200, 64), state)
        mark()
    state.sum().backward()
    mark()


@program
def mixture_of_experts(mark: Mark) -> None:
    experts = nn.ModuleList(nn.Linear(64, 64) for _ in range(4)).to(DEVICE)
    gate = nn.Linear(64, 4).to(DEVICE)
    for _ in range(2):
        x = rand(300, 64)
        weights, _ = gate(x).softmax(-1).topk(2)
        outputs = torch.stack([expert(x) for expert in experts], 1)
        mark()
        (outputs[:, :2] * weights.unsqueeze(-1)).sum(1).mean().backward()
        mark()


# --- Memory of activations


@program
def checkpoint(mark: Mark) -> None:
    layers = nn.ModuleList(nn.Sequential(nn.Linear(200, 200), nn.GELU()) for _ in range(4)).to(
        DEVICE
    )
    for use_reentrant in (False, True):
        x = rand(200, 200, requires_grad=True)
        for layer in layers:
            x = checkpoints.checkpoint(layer, x, use_reentrant=use_reentrant)
            mark()
        x.sum().backward()
        mark()


@program
def checkpoint_with_dropout(mark: Mark) -> None:
    layer = nn.Sequential(nn.Linear(200, 200), nn.Dropout(0.2), nn.ReLU()).to(DEVICE)
    for _ in range(2):
        x = rand(200, 200, requires_grad=True)
        checkpoints.checkpoint(layer, x, use_reentrant=False).sum().backward()
        mark()


@program
def selective_checkpoint(mark: Mark) -> None:
    saved = [torch.ops.aten.mm.default, torch.ops.aten.addmm.default]
    contexts = lambda: checkpoints.create_selective_checkpoint_contexts(saved)  # noqa: E731
    layer = nn.Sequential(nn.Linear(200, 200), nn.GELU(), nn.Linear(200, 200)).to(DEVICE)
    x = rand(200, 200, requires_grad=True)
    y = checkpoints.checkpoint(layer, x, use_reentrant=False, context_fn=contexts)
    mark()
    y.sum().backward()
    mark()


@program
def offloaded_activations(mark: Mark) -> None:
    model = mlp()
    with torch.autograd.graph.save_on_cpu():
        loss = classify(model, *mlp_batch())
    mark()
    loss.backward()
    mark()


@program
def second_derivatives(mark: Mark) -> None:
    model = mlp()
    x = rand(128, 300, requires_grad=True)
    (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    mark()
    gradient.square().sum().backward()
    mark()


@program
def custom_function(mark: Mark) -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return 2 * x * gradient

    x = rand(300, 300, requires_grad=True)
    y = Square.apply(x)
    mark()
    y.sum().backward()
    mark()


@program
def functional_gradients(mark: Mark) -> None:
    model = mlp()
    values = {name: value.detach() for name, value in model.named_parameters()}

    def loss_of(values: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, values, (x,)).square().mean()

    gradients = torch.func.grad(loss_of)(values, rand(128, 300))
    mark()
    del gradients
    mark()


# --- Operators


@program
def views(mark: Mark) -> None:
    x = rand(300, 400)
    y = x.t()[10:200].unfold(0, 4, 2)
    mark()
    z = y.contiguous()
    mark()
    x.view(-1).as_strided((100, 100), (100, 1)).mul_(2)
    del x, y
    mark()
    z.reshape(-1)[::2].clone()
    mark()


@program
def joined_tensors(mark: Mark) -> None:
    parts = [rand(100, 50 + i) for i in range(5)]
    joined = torch.cat(parts, 1)
    mark()
    stacked = torch.stack([rand(100, 100) for _ in range(8)])
    mark()
    pieces = [piece.clone() for piece in joined.split(50, 1)]
    mark()
    del joined, stacked, parts, pieces
    mark()


@program
def indexing(mark: Mark) -> None:
    x = rand(500, 200, requires_grad=True)
    places = labels(300, 500)
    y = x[places]
    mark()
    z = x.gather(1, labels(500 * 20, 200).view(500, 20))
    mark()
    (y.sum() + z.sum() + x.index_select(0, places).sum()).backward()
    mark()
    total = torch.zeros(500, 200, device=DEVICE).index_add_(0, places, y.detach())
    total.scatter_add_(0, places.unsqueeze(1).expand(-1, 200), y.detach())
    mark()
    total[places] = 1.0
    mark()


@program
def sorting(mark: Mark) -> None:
    x = rand(200, 500)
    values, places = x.sort(dim=1)
    mark()
    top = x.topk(20, dim=0)
    mark()
    del values, places, top
    x.argsort(), x.kthvalue(3, dim=0), x.median(dim=1)
    mark()


@program
def reductions(mark: Mark) -> None:
    x = rand(300, 500)
    for dim in (0, 1, None):
        results = [x.sum(dim), x.mean(dim), x.amax(dim or 0), x.var(dim), x.logsumexp(dim or 0)]
        mark()
        del results
    x.cumsum(0), x.prod(0), x.norm(), x.std(1), x.any(), x.argmax(1), x.aminmax(dim=0)
    mark()


@program
def dropouts(mark: Mark) -> None:
    x = rand(300, 500, requires_grad=True)
    y = F.dropout(x, 0.3)
    mark()
    z = F.alpha_dropout(F.dropout1d(y), 0.2)
    mark()
    z.sum().backward()
    mark()


@program
def random_numbers(mark: Mark) -> None:
    x = torch.empty(300, 500, device=DEVICE)
    x.normal_().uniform_().exponential_().bernoulli_(0.3)
    mark()
    y = torch.randn(400, 400, device=DEVICE), torch.randperm(50000, device=DEVICE)
    mark()
    (
        torch.multinomial(rand(200, 300), 4),
        torch.bernoulli(rand(300, 300)),
        torch.poisson(rand(300, 300)),
    )
    mark()
    del x, y


@program
def losses(mark: Mark) -> None:
    x = rand(500, 100, requires_grad=True)
    y = rand(500, 100)
    wanted = labels(500, 100)
    for loss in (
        lambda: F.mse_loss(x, y),
        lambda: F.l1_loss(x, y),
        lambda: F.smooth_l1_loss(x, y),
        lambda: F.huber_loss(x, y),
        lambda: F.binary_cross_entropy_with_logits(x, y),
        lambda: F.binary_cross_entropy(x.sigmoid(), y),
        lambda: F.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean"),
        lambda: F.nll_loss(x.log_softmax(1), wanted),
        lambda: F.cross_entropy(x, wanted, label_smoothing=0.1),
        lambda: F.cross_entropy(x, y.softmax(1)),
        lambda: F.multi_margin_loss(x, wanted),
        lambda: F.soft_margin_loss(x, y),
        lambda: F.cosine_embedding_loss(x, y, torch.ones(500, device=DEVICE)),
        lambda: F.triplet_margin_loss(x, y, y.flip(0)),
        lambda: F.gaussian_nll_loss(x, y, y + 1),
        lambda: F.poisson_nll_loss(x, y),
    ):
        value = loss()
        mark()
        value.backward()
        mark()


@program
def activations(mark: Mark) -> None:
    x = rand(300, 400, requires_grad=True)
    for function in (
        *(
            F.relu,
            F.gelu,
            F.silu,
            F.mish,
            F.elu,
            F.selu,
            F.celu,
            F.leaky_relu,
            F.hardtanh,
            F.hardswish,
        ),
        *(F.softplus, F.softsign, F.logsigmoid, F.hardsigmoid, F.tanhshrink, torch.tanh),
        *(torch.sigmoid, lambda x: F.glu(x, 1), lambda x: F.softmax(x, 1), lambda x: F.rrelu(x)),
    ):
        y = function(x)
        mark()
        y.sum().backward()
        mark()
        del y


@program
def linear_algebra(mark: Mark) -> None:
    x = rand(4, 80, 80)
    spd = x @ x.transpose(1, 2) + 80 * torch.eye(80, device=DEVICE)
    mark()
    factor = torch.linalg.cholesky(spd)
    mark()
    solved = torch.linalg.solve(spd, x), torch.cholesky_solve(x, factor)
    mark()
    qr = torch.linalg.qr(x)
    mark()
    svd = torch.linalg.svd(x, full_matrices=False)
    mark()
    del factor, solved, qr, svd
    torch.linalg.eigh(spd), torch.linalg.inv(spd), torch.linalg.det(spd)
    mark()


@program
def transforms(mark: Mark) -> None:
    x = rand(200, 256)
    y = torch.fft.fft(x)
    mark()
    z = torch.fft.irfft(torch.fft.rfft(x))
    mark()
    torch.stft(
        rand(4, 5000), 256, return_complex=True, window=torch.hann_window(256, device=DEVICE)
    )
    mark()
    del y, z


@program
def lists_of_tensors(mark: Mark) -> None:
    xs = [rand(100, 100 + i) for i in range(6)]
    ys = torch._foreach_mul(xs, 2.0)
    mark()
    torch._foreach_add_(xs, ys)
    norms = torch._foreach_norm(xs)
    mark()
    torch._foreach_sqrt_(xs)
    del ys, norms
    mark()


@program
def interpolation(mark: Mark) -> None:
    x = rand(4, 8, 40, 40, requires_grad=True)
    for mode in ("nearest", "bilinear", "bicubic", "area"):
        y = F.interpolate(x, scale_factor=1.5, mode=mode)
        mark()
        y.sum().backward()
        del y
    grid = rand(4, 20, 20, 2)
    F.grid_sample(x, grid, align_corners=False).sum().backward()
    F.pad(x, (1, 2, 3, 4), mode="reflect").sum().backward()
    mark()


@program
def fills(mark: Mark) -> None:
    x = torch.zeros(300, 300, device=DEVICE)
    y = torch.full((300, 300), 2.0, device=DEVICE)
    z = torch.arange(90000, device=DEVICE), torch.linspace(0, 1, 90000, device=DEVICE)
    mark()
    x.fill_(3), y.zero_(), x.copy_(y), torch.where(x > 0, x, y), x.masked_fill_(y == 0, 1)
    mark()
    del z


@program
def resized_tensors(mark: Mark) -> None:
    x = rand(300, 300)
    x.resize_(600, 300)
    mark()
    y = torch.empty(0, device=DEVICE)
    torch.add(x, x, out=y)
    mark()
    x.untyped_storage().resize_(0)
    mark()


# --- Values on the host


@program
def branches_on_values(mark: Mark) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        loss = classify(model, *mlp_batch())
        if not torch.isfinite(loss):
            raise FloatingPointError(f"the loss of step {step} is not finite")
        loss.backward()
        mark()
        if not torch.isnan(loss).any():
            optimizer.step()
        optimizer.zero_grad()
        mark()


@program
def counted_steps(mark: Mark) -> None:
    count = torch.zeros((), device=DEVICE)
    x = rand(200, 200)
    while count.item() < 4:
        x = x @ x.softmax(0)
        count += 1
        mark()


@program
def lengths_of_sequences(mark: Mark) -> None:
    lengths = torch.tensor([30, 50, 20, 70]).to(DEVICE)
    longest = int(lengths.max())
    x = rand(4, longest, 200)
    mask = torch.arange(longest, device=DEVICE) < lengths.unsqueeze(1)
    mark()
    packed = x[mask.nonzero(as_tuple=True)]
    mark()
    ids = torch.repeat_interleave(torch.arange(4, device=DEVICE), lengths)
    torch.zeros(4, 200, device=DEVICE).index_add_(0, ids, packed)
    mark()


@program
def drawn_sizes(mark: Mark) -> None:
    MODULE.manual_seed(7)
    for rows in torch.randint(100, 400, (4,), device=DEVICE).tolist():
        x = rand(rows, 100)
        mark()
        del x


@program
def chances(mark: Mark) -> None:
    weights = torch.tensor([0.1, 0.0, 0.9, 0.0]).to(DEVICE)
    for _ in range(3):
        rows = 200 + 100 * int(torch.multinomial(weights, 1))
        rand(rows, 100)
        mark()


@program
def metrics(mark: Mark) -> None:
    model = mlp().eval()
    right = torch.zeros((), device=DEVICE)
    with torch.no_grad():
        for _ in range(3):
            inputs, wanted = mlp_batch()
            right += (model(inputs).argmax(1) == wanted).sum()
            mark()
    assert 0 <= right.item() <= 3 * 128


# --- Streams, graphs and more


@program
def streams(mark: Mark) -> None:
    side = torch.Stream(DEVICE)
    x = rand(300, 300)
    for _ in range(4):
        side.wait_stream(torch.accelerator.current_stream())
        with side:
            y = x @ x
        torch.accelerator.current_stream().wait_stream(side)
        z = y + x
        mark()
        torch.accelerator.synchronize()
        del y, z


@program
def copies_to_the_host(mark: Mark) -> None:
    x = rand(300, 300)
    there = x.cpu()
    pinned = torch.empty(300, 300).pin_memory()
    pinned.copy_(x, non_blocking=True)
    torch.accelerator.synchronize()
    mark()
    back = there.to(DEVICE) + pinned.to(DEVICE, non_blocking=True)
    mark()
    del back


@program
def several_devices(mark: Mark) -> None:
    first, second = (torch.device(DEVICE.type, index) for index in range(2))
    lower, upper = nn.Linear(300, 300).to(first), nn.Linear(300, 300).to(second)
    for _ in range(2):
        upper(lower(torch.rand(100, 300, device=first)).to(second)).sum().backward()
        mark()


@program
def loaded_weights(mark: Mark) -> None:
    model = mlp()
    state = {name: value.cpu() for name, value in model.state_dict().items()}
    model.load_state_dict(state)
    mark()
    empty = nn.Linear(300, 300, device="meta").to_empty(device=DEVICE)
    nn.init.xavier_uniform_(empty.weight)
    mark()


@program
def rejected_draws(mark: Mark) -> None:
    nn.init.trunc_normal_(torch.empty(300, 300, device=DEVICE))
    mark()


@program
def emptied_cache(mark: Mark) -> None:
    xs = [rand(300, 300 + i) for i in range(8)]
    del xs[::2]
    torch.accelerator.empty_cache()
    mark()
    rand(1000, 1000)
    mark()


@program
def pool_of_memory(mark: Mark) -> None:
    for size in (10, 1000, 100_000, 300_000, 2_000_000, 5_000_000):
        blocks = [torch.empty(size, device=DEVICE) for _ in range(3)]
        mark()
        del blocks
        mark()


@program
def recurrent_network(mark: Mark) -> None:
    model = nn.LSTM(64, 128, num_layers=2, batch_first=True).to(DEVICE)
    train(model, lambda: (rand(16, 30, 64),), lambda m, x: m(x)[0].mean(), mark)


@program
def gated_network(mark: Mark) -> None:
    model = nn.GRU(64, 128, bidirectional=True).to(DEVICE)
    train(model, lambda: (rand(30, 16, 64),), lambda m, x: m(x)[0].mean(), mark)


@program
def batch_norm_in_evaluation(mark: Mark) -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16)).to(DEVICE).eval()
    with torch.no_grad():
        model(rand(16, 3, 32, 32))
    mark()
    model(rand(16, 3, 32, 32)).sum().backward()
    mark()


@program
def layer_norm_of_bfloat16(mark: Mark) -> None:
    model = nn.LayerNorm(200).to(DEVICE, torch.bfloat16)
    model(rand(400, 200).to(torch.bfloat16)).sum().backward()
    mark()


@program
def mapped_function(mark: Mark) -> None:
    model = mlp()
    values = {name: value.detach() for name, value in model.named_parameters()}

    def loss_of(values: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, values, (x,)).square().mean()

    each = torch.func.vmap(torch.func.grad(loss_of), (None, 0))(values, rand(4, 300))
    mark()
    del each
    mark()


@program
def captured_graph(mark: Mark) -> None:
    x = rand(300, 300)
    graph = torch.accelerator.Graph()
    side = torch.Stream(DEVICE)
    with side:
        (x @ x).relu()
        torch.accelerator.synchronize()
        graph.capture_begin()
        y = (x @ x).relu()
        graph.capture_end()
    mark()
    for _ in range(3):
        x.copy_(rand(300, 300))
        graph.replay()
    torch.accelerator.synchronize()
    mark()
    del y


def one_rank() -> None:
    torch.distributed.init_process_group(
        f"cpu:gloo,{DEVICE.type}:{'nccl' if DEVICE.type == 'cuda' else 'occl'}",
        rank=0,
        world_size=1,
        store=torch.distributed.HashStore(),
    )


@program
def distributed_data_parallel(mark: Mark) -> None:
    one_rank()
    model = nn.parallel.DistributedDataParallel(mlp())
    train(model, mlp_batch, classify, mark)
    torch.distributed.destroy_process_group()


@program
def fully_sharded(mark: Mark) -> None:
    from torch.distributed.fsdp import fully_shard

    one_rank()
    model = mlp()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    train(model, mlp_batch, classify, mark, torch.optim.AdamW(model.parameters()))
    torch.distributed.destroy_process_group()


@program
def compiled(mark: Mark) -> None:
    model = torch.compile(mlp())
    train(model, mlp_batch, classify, mark, steps=2)


def run(name: str) -> None:
    """Runs a program and prints a list with the memory at each mark."""
    marks: list[Any] = []

    def mark() -> None:
        gc.collect()
        row = []
        for device in range(torch.accelerator.device_count()):
            stats = torch.accelerator.memory.memory_stats(device)
            row.append(
                [
                    stats.get(f"{kind}_bytes.all.{what}", 0)
                    for kind in ("allocated", "reserved", "requested", "active")
                    for what in ("current", "peak")
                ]
            )
        row.append(blocks())
        marks.append(row)

    # Cycles of Python objects would be collected at other times than in another run.
    gc.disable()
    torch.manual_seed(0)
    PROGRAMS[name](mark)
    mark()
    json.dump(marks, sys.stdout)


def blocks() -> list[Any]:
    """The blocks of all segments, without addresses and stacks."""
    segments = sorted(MODULE.memory_snapshot(), key=lambda one: (one["device"], one["address"]))
    return [
        [one["device"], one["total_size"], [[b["size"], b["state"]] for b in one["blocks"]]]
        for one in segments
    ]
