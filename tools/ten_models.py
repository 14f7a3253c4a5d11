"""Ten small models, each with the layers of a usual network of its kind, and their training steps.

``tools/operator_counts.py`` trains them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["MODELS", "Step"]

Step = Callable[[], None]


def _mlp(device: str) -> Step:
    model = nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 128), nn.ReLU()
    ).append(nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.to(device).parameters(), lr=0.01, momentum=0.9)
    x, labels = torch.randn(32, 64, device=device), torch.randint(10, (32,)).to(device)
    return _step(optimizer, lambda: F.cross_entropy(model(x), labels))


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(channels) for _ in range(2)])

    def forward(self, x: Tensor) -> Any:
        h = F.relu(self.norms[0](self.first(x)), inplace=True)
        h = self.norms[1](self.second(h))
        h += x
        return F.relu(h, inplace=True)


def _resnet(device: str) -> Step:
    stem = [nn.Conv2d(3, 16, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(16)]
    body = [nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1), _Residual(16), _Residual(16)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)]
    model = nn.Sequential(*stem, *body, *head)
    optimizer = torch.optim.SGD(
        model.to(device).parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4
    )
    x, labels = torch.randn(4, 3, 32, 32, device=device), torch.randint(10, (4,)).to(device)
    return _step(optimizer, lambda: F.cross_entropy(model(x), labels))


class _Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.lstm = nn.LSTM(32, 32, num_layers=2, batch_first=True)
        self.head = nn.Linear(32, 50)

    def forward(self, tokens: Tensor) -> Any:
        h, _ = self.lstm(self.embedding(tokens))
        return self.head(h)


def _lstm(device: str) -> Step:
    model = _Lstm().to(device)
    optimizer = torch.optim.Adam(model.parameters())
    tokens = torch.randint(50, (4, 9)).to(device)

    def loss() -> Tensor:
        return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    return _step(optimizer, loss, clipped=model)


class _Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(50, 32), nn.Embedding(16, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, activation="gelu")
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 50)

    def forward(self, tokens: Tensor, is_padding: Tensor) -> Any:
        places = torch.arange(tokens.size(0), device=tokens.device)[:, None]
        h = self.embedding(tokens) + self.positions(places)
        return self.head(self.layers(h, src_key_padding_mask=is_padding))


def _encoder(device: str) -> Step:
    model = _Encoder().to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(50, (12, 4)).to(device)
    is_padding = (torch.arange(12) >= 10).expand(4, 12).to(device)
    labels = torch.where(torch.rand(12, 4) < 0.3, torch.randint(50, (12, 4)), -100).to(device)

    def loss() -> Tensor:
        return F.cross_entropy(model(tokens, is_padding).flatten(0, 1), labels.flatten())

    return _step(optimizer, loss, clipped=model)


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(32) for _ in range(2)])
        self.attention, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.mlp = nn.Sequential(nn.Linear(32, 128), nn.GELU(approximate="tanh"))
        self.mlp.append(nn.Linear(128, 32)).append(nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Any:
        q, k, v = (
            one.unflatten(2, (4, 8)).transpose(1, 2)
            for one in self.attention(self.norms[0](x)).chunk(3, dim=2)
        )
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(h.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


class _Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(50, 32), nn.Embedding(16, 32)
        self.blocks = nn.Sequential(_Block(), _Block(), nn.LayerNorm(32))
        self.head = nn.Linear(32, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Any:
        places = torch.arange(tokens.size(1), device=tokens.device)
        return self.head(self.blocks(self.embedding(tokens) + self.positions(places)))


def _gpt(device: str) -> Step:
    model = _Gpt().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95))
    tokens = torch.randint(50, (4, 13)).to(device)

    def loss() -> Tensor:
        return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    return _step(optimizer, loss, clipped=model)


class _Vit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 8, stride=8)
        self.first = nn.Parameter(torch.zeros(1, 1, 32))
        self.positions = nn.Parameter(torch.randn(1, 17, 32) * 0.02)
        layer = nn.TransformerEncoderLayer(
            32, 4, 64, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, nn.LayerNorm(32), enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Any:
        h = self.patches(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.first.expand(len(x), -1, -1), h], dim=1) + self.positions
        return self.head(self.layers(h)[:, 0])


def _vit(device: str) -> Step:
    model = _Vit().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.05)
    x, labels = torch.randn(4, 3, 32, 32, device=device), torch.randint(10, (4,)).to(device)
    return _step(optimizer, lambda: F.cross_entropy(model(x), labels, label_smoothing=0.1))


class _UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep = self._layers(1, 8), self._layers(8, 16)
        self.up, self.out = nn.ConvTranspose2d(16, 8, 2, stride=2), self._layers(16, 8)
        self.head = nn.Conv2d(8, 1, 1)

    def _layers(self, before: int, after: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(inplace=True)
        )

    def forward(self, x: Tensor) -> Any:
        down = self.down(x)
        deep = self.deep(F.max_pool2d(down, 2))
        return self.head(self.out(torch.cat([down, self.up(deep)], dim=1)))


def _unet(device: str) -> Step:
    model = _UNet().to(device)
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(2, 1, 16, 16, device=device)
    mask = (torch.rand(2, 1, 16, 16) < 0.5).float().to(device)

    def loss() -> Tensor:
        logits: Tensor = model(x)
        overlap = (logits.sigmoid() * mask).sum((1, 2, 3))
        total = (logits.sigmoid() + mask).sum((1, 2, 3))
        dice = 1 - (2 * overlap + 1) / (total + 1)
        return F.binary_cross_entropy_with_logits(logits, mask) + dice.mean()

    return _step(optimizer, loss)


def _gan(device: str) -> Step:
    maker = nn.Sequential(
        nn.ConvTranspose2d(16, 16, 4, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True)
    )
    maker.append(nn.ConvTranspose2d(16, 1, 4, stride=2, padding=1)).append(nn.Tanh())
    critic = nn.Sequential(nn.Conv2d(1, 16, 4, stride=2, padding=1), nn.LeakyReLU(0.2))
    critic.append(nn.Flatten()).append(nn.Linear(256, 1))
    makers = torch.optim.Adam(maker.to(device).parameters(), betas=(0.5, 0.999))
    critics = torch.optim.Adam(critic.to(device).parameters(), betas=(0.5, 0.999))
    real = torch.randn(4, 1, 8, 8, device=device)

    def loss_of(images: Tensor, is_real: bool) -> Tensor:
        logits = critic(images)
        return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, is_real))

    def step() -> None:
        made = maker(torch.randn(4, 16, 1, 1, device=device))
        _step(critics, lambda: loss_of(real, True) + loss_of(made.detach(), False))()
        _step(makers, lambda: loss_of(made, True))()

    return step


class _Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.EmbeddingBag(100, 16, mode="sum") for _ in range(3)])
        self.bottom = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(22, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, numbers: Tensor, ids: Sequence[Tensor]) -> Any:
        dense = self.bottom(numbers)
        features = torch.stack(
            [dense, *(table(one) for table, one in zip(self.tables, ids, strict=True))], dim=1
        )
        rows, columns = torch.tril_indices(4, 4, offset=-1, device=numbers.device)
        products = torch.bmm(features, features.transpose(1, 2))[:, rows, columns]
        return self.top(torch.cat([dense, products], dim=1)).squeeze(1)


def _recommender(device: str) -> Step:
    model = _Recommender().to(device)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    numbers = torch.rand(16, 8, device=device).log1p()
    ids = [torch.randint(100, (16, 5)).to(device) for _ in range(3)]
    clicks = (torch.rand(16) < 0.3).float().to(device)
    return _step(
        optimizer,
        lambda: F.binary_cross_entropy(model(numbers, ids).sigmoid(), clicks),
    )


class _Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 16))
        self.first, self.norm = nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16)
        self.second, self.out = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 1, 3, padding=1)

    def forward(self, x: Tensor, times: Tensor) -> Any:
        rates = torch.exp(torch.arange(8, device=x.device) * -0.5)
        angles = times[:, None].float() * rates
        time = self.time(torch.cat([angles.sin(), angles.cos()], dim=1))[:, :, None, None]
        h = F.avg_pool2d(F.silu(self.norm(self.first(x)) + time), 2)
        h = F.interpolate(F.silu(self.second(h)), scale_factor=2.0, mode="nearest")
        return self.out(h)


def _diffusion(device: str) -> Step:
    model = _Denoiser().to(device)
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.99)
    )
    optimizer = torch.optim.AdamW(model.parameters())
    images = torch.randn(4, 1, 8, 8, device=device)
    kept = torch.linspace(0.99, 0.01, 100).to(device)

    def loss() -> Tensor:
        times = torch.randint(100, (4,), device=device)
        noise, share = torch.randn_like(images), kept[times][:, None, None, None]
        return F.mse_loss(model(share.sqrt() * images + (1 - share).sqrt() * noise, times), noise)

    step = _step(optimizer, loss)

    def step_and_average() -> None:
        step()
        average.update_parameters(model)

    return step_and_average


def _step(
    optimizer: torch.optim.Optimizer, loss: Callable[[], Tensor], clipped: nn.Module | None = None
) -> Step:
    def step() -> None:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        if clipped is not None:
            nn.utils.clip_grad_norm_(clipped.parameters(), 1.0)
        optimizer.step()
        value.item()

    return step


MODELS = {
    "MLP": _mlp,
    "residual network": _resnet,
    "LSTM": _lstm,
    "transformer encoder": _encoder,
    "GPT": _gpt,
    "vision transformer": _vit,
    "U-Net": _unet,
    "GAN": _gan,
    "recommender": _recommender,
    "diffusion": _diffusion,
}
