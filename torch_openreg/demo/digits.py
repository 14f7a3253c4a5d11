"""The demo's data: images of hand-written digits. Source and license: ``data/README.md``."""

import gzip
from dataclasses import dataclass
from importlib import resources

import torch

__all__ = ["CLASS_COUNT", "PIXEL_COUNT", "Digits", "load_digits"]

PIXEL_COUNT = 64
CLASS_COUNT = 10
_DARKEST = 16


@dataclass(frozen=True)
class Digits:
    """Labeled images.

    Attributes:
        images: float32 of shape (N, PIXEL_COUNT), from 0 to 1.
        labels: int64 of shape (N,), from 0 to CLASS_COUNT - 1.
    """

    images: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        """Returns the number of images."""
        return self.labels.size(0)

    def __getitem__(self, rows: slice | torch.Tensor) -> "Digits":
        """Returns some of the images."""
        return Digits(self.images[rows], self.labels[rows])

    def to(self, device: torch.device) -> "Digits":
        """Returns the same images in the memory of ``device``."""
        return Digits(self.images.to(device), self.labels.to(device))


def load_digits() -> Digits:
    """Returns the 1797 images of the data file, in its order, on the CPU."""
    file = resources.files(__package__) / "data" / "digits.csv.gz"
    text = gzip.decompress(file.read_bytes()).decode("ascii")
    table = torch.tensor([[int(value) for value in line.split(",")] for line in text.split()])
    return Digits(images=table[:, :PIXEL_COUNT] / _DARKEST, labels=table[:, PIXEL_COUNT].clone())
