"""Section 3 of the demo: the same training on openreg and on the CPU, compared bit by bit.

Both trainings start from the same parameters, see the same batches and draw their dropout
masks from generators with the same seed. They take turns, epoch by epoch, so that whatever
else the machine does affects both.
"""

import time
from dataclasses import dataclass

import torch
from torch import nn

from torch_openreg.demo.digits import CLASS_COUNT, PIXEL_COUNT, Digits, load_digits
from torch_openreg.demo.report import Report, are_steady, describe_spread

__all__ = ["Training", "make_model", "show_training"]

_SEED = 42
_BATCH_SIZE = 64
_HIDDEN_SIZE = 256
_TEST_SIZE = 360
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Epoch:
    """One pass over the training images.

    Attributes:
        losses: the loss of each step, on the CPU.
        seconds: from the first launch until the last loss had arrived on the CPU.
    """

    losses: torch.Tensor
    seconds: float


class Training:
    """A model that is trained on the digits on one device."""

    def __init__(
        self, device: torch.device, digits: Digits, state: dict[str, torch.Tensor]
    ) -> None:
        """Copies the digits and a model with the parameters ``state`` to the device."""
        self.device = device
        self.model = make_model()
        self.model.load_state_dict(state)
        self.model.to(device)
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self._digits = digits.to(device)

    def run_epoch(self, order: torch.Tensor) -> Epoch:
        """Trains on all images in the order given, without waiting for any step's result."""
        start = time.perf_counter()
        digits = self._digits[order.to(self.device)]
        losses = []
        for images, labels in zip(
            digits.images.split(_BATCH_SIZE), digits.labels.split(_BATCH_SIZE), strict=True
        ):
            self._optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(images), labels)
            loss.backward()
            self._optimizer.step()
            losses.append(loss.detach())
        return Epoch(torch.stack(losses).cpu(), time.perf_counter() - start)

    def predict(self, images: torch.Tensor) -> torch.Tensor:
        """Returns the predicted digit of each image, on the CPU."""
        self.model.eval()
        with torch.no_grad():
            scores: torch.Tensor = self.model(images.to(self.device))
        self.model.train()
        return scores.argmax(dim=1).cpu()

    def parameters(self) -> dict[str, torch.Tensor]:
        """Returns copies of the parameters, on the CPU."""
        return {name: value.detach().cpu() for name, value in self.model.named_parameters()}


def make_model() -> nn.Module:
    """Returns a perceptron with two hidden layers and dropout, on the CPU."""
    return nn.Sequential(
        nn.Linear(PIXEL_COUNT, _HIDDEN_SIZE),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(_HIDDEN_SIZE, _HIDDEN_SIZE),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(_HIDDEN_SIZE, CLASS_COUNT),
    )


def show_training(report: Report, device: torch.device, epoch_count: int) -> None:
    """Trains on ``device`` and on the CPU and checks that nothing differs."""
    digits = load_digits()
    train, test = digits[:-_TEST_SIZE], digits[-_TEST_SIZE:]
    report.section(f"Training on {device} and on the CPU")
    report.line(
        f"{len(train)} images of hand-written digits, "
        f"{epoch_count} epochs of {-(-len(train) // _BATCH_SIZE)} steps"
    )
    torch.manual_seed(_SEED)
    state = make_model().state_dict()
    ours, reference = (Training(each, train, state) for each in (device, _CPU))
    # Seeds the generators of all devices: from here on, each draws for its own dropout only.
    torch.manual_seed(_SEED)
    our_epochs, reference_epochs = _train_in_turn(report, ours, reference, len(train), epoch_count)

    _check_losses(report, our_epochs, reference_epochs)
    our_parameters, parameters = ours.parameters(), reference.parameters()
    different = [
        name for name in parameters if not torch.equal(our_parameters[name], parameters[name])
    ]
    report.check(
        not different,
        "all parameters are bit-equal after training",
        f"{', '.join(different)} differ",
    )
    predictions = ours.predict(test.images)
    report.check(
        torch.equal(predictions, reference.predict(test.images)),
        f"both models read the same digits in {len(test)} new images",
    )
    accuracy = (predictions == test.labels).float().mean().item()
    report.line(f"accuracy on the new images: {accuracy:.1%}")
    # The first epoch is a warm-up, so it counts only if it is the only one.
    count = max(epoch_count - 1, 1)
    our_seconds, seconds = (
        [epoch.seconds for epoch in epochs[-count:]] for epochs in (our_epochs, reference_epochs)
    )
    if are_steady(our_seconds) and are_steady(seconds):
        ratios = [one / other for one, other in zip(our_seconds, seconds, strict=True)]
        report.line(f"time per epoch: {describe_spread(ratios)} of the CPU's")
    else:
        report.line(
            "time per epoch: not compared, as other programs use the processors: "
            f"{min(our_seconds) * 1e3:.0f} to {max(our_seconds) * 1e3:.0f} ms on {device}, "
            f"{min(seconds) * 1e3:.0f} to {max(seconds) * 1e3:.0f} ms on the CPU"
        )


def _train_in_turn(
    report: Report, ours: Training, reference: Training, image_count: int, epoch_count: int
) -> tuple[list[Epoch], list[Epoch]]:
    generator = torch.Generator().manual_seed(_SEED)
    progress = report.progress(epoch_count)
    our_epochs: list[Epoch] = []
    reference_epochs: list[Epoch] = []
    turns = [(ours, our_epochs), (reference, reference_epochs)]
    for _ in range(epoch_count):
        order = torch.randperm(image_count, generator=generator)
        for training, epochs in turns:
            epochs.append(training.run_epoch(order))
        turns.reverse()
        progress.advance(
            f"loss {our_epochs[-1].losses.mean():.6f}, "
            f"on the CPU {reference_epochs[-1].losses.mean():.6f}"
        )
    return our_epochs, reference_epochs


def _check_losses(report: Report, epochs: list[Epoch], reference_epochs: list[Epoch]) -> None:
    losses = torch.cat([epoch.losses for epoch in epochs])
    reference = torch.cat([epoch.losses for epoch in reference_epochs])
    # Compared as integers: floats would call 0.0 and -0.0 equal and two NaNs different.
    different = (losses.view(torch.int32) != reference.view(torch.int32)).nonzero().flatten()
    detail = ""
    if different.numel():
        step = int(different[0])
        detail = (
            f"{different.numel()} differ, the first at step {step}: "
            f"{losses[step].item()!r} instead of {reference[step].item()!r}"
        )
    report.check(
        not different.numel(), f"the losses of all {losses.numel()} steps are bit-equal", detail
    )
