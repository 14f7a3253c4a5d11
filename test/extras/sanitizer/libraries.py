"""What libraries do with streams, in small, with the mistakes that they once made: see programs.py.

Three patterns: a loader that uploads the next batch while the model works on this one, weights that
live on the host and visit the device for their layer's turn, and activations that wait on the host
for the backward pass. ``releases.py`` runs the libraries themselves.
"""

from collections.abc import Iterator

import torch
from extras.sanitizer.programs import SIZE, Stream, _after, _ready, current, device, mistake, stream
from torch.autograd.graph import saved_tensors_hooks

__all__: list[str] = []

_BATCHES = 4
_LAYERS = 4


def _images() -> Iterator[torch.Tensor]:
    for number in range(_BATCHES):
        yield torch.full((8, SIZE), number, dtype=torch.uint8).pin_memory()


def _layers() -> list[tuple[torch.nn.Linear, list[tuple[torch.nn.Parameter, torch.Tensor]]]]:
    """Layers on the host, each with its parameters and where their values are kept."""
    layers = [torch.nn.Linear(SIZE, SIZE) for _ in range(_LAYERS)]
    return [(layer, [(p, p.detach().pin_memory()) for p in layer.parameters()]) for layer in layers]


# --- A loader that is one batch ahead


@mistake("lifetime")
def prefetcher_uploads_into_what_the_model_reads(right):
    loader, mean, model = Stream(), _ready(1), torch.nn.Linear(SIZE, 1).to(device)

    def prefetched():
        ready = None
        for images in _images():
            _after(loader, current(), right)
            with stream(loader):
                following = images.to(device, non_blocking=True).float().sub_(mean)
            if ready is not None:
                yield ready
            current().wait_stream(loader)
            ready = following
        yield ready

    with torch.no_grad():
        for batch in prefetched():  # <2>
            model(batch).sum()  # <1>


@mistake("race")
def prefetched_batch_is_used_before_it_is_there(right):
    loader, mean, model = Stream(), _ready(1), torch.nn.Linear(SIZE, 1).to(device)

    def prefetched():
        ready = None
        for images in _images():
            loader.wait_stream(current())
            with stream(loader):
                following = images.to(device, non_blocking=True).float().sub_(mean)  # <1>
            if ready is not None:
                yield ready
            _after(current(), loader, right)
            ready = following
        yield ready

    with torch.no_grad():
        for batch in prefetched():
            model(batch).sum()  # <2>


# --- Weights that are on the device for their layer's turn


@mistake("lifetime")
def weights_are_recorded_for_the_stream_that_brings_them(right):
    transfer, layers, x = Stream(), _layers(), _ready(4, SIZE)

    def bring(weights):
        user = current()
        with stream(transfer):
            for weight, kept in weights:
                weight.data = kept.to(device, non_blocking=True)
                weight.data.record_stream(user if right else current())

    def drop(weights):
        for weight, kept in weights:
            weight.data = kept  # <2>

    bring(layers[0][1])
    with torch.no_grad():
        for number, (layer, weights) in enumerate(layers):
            current().wait_stream(transfer)
            x = layer(x)  # <1>
            if number + 1 < len(layers):
                bring(layers[number + 1][1])
            drop(weights)


@mistake("race")
def weights_are_used_before_they_are_there(right):
    transfer, layers, x = Stream(), _layers(), _ready(4, SIZE)

    def bring(weights):
        user = current()
        with stream(transfer):
            for weight, kept in weights:
                weight.data = kept.to(device, non_blocking=True)  # <1>
                weight.data.record_stream(user)

    def drop(weights):
        for weight, kept in weights:
            weight.data = kept

    bring(layers[0][1])
    with torch.no_grad():
        for number, (layer, weights) in enumerate(layers):
            _after(current(), transfer, right)
            x = layer(x)  # <2>
            if number + 1 < len(layers):
                bring(layers[number + 1][1])
            drop(weights)


# --- Activations that wait on the host for the backward pass


@mistake("lifetime")
def activation_goes_while_the_backward_pass_uses_it(right):
    user, transfer, x = current(), Stream(), _ready().requires_grad_()

    def pack(activation):
        transfer.wait_stream(user)
        with stream(transfer):
            kept = activation.detach().to("cpu", non_blocking=True)
        activation.record_stream(transfer)
        return kept

    def unpack(kept):
        with stream(transfer):
            activation = kept.to(device, non_blocking=True)  # <2>
        user.wait_stream(transfer)
        if right:
            activation.record_stream(user)
        return activation

    with saved_tensors_hooks(pack, unpack):
        y = x.sin().exp().tanh().sum()
    y.backward()  # <1>


@mistake("race")
def activation_is_taken_before_it_is_computed(right):
    user, transfer, x = current(), Stream(), _ready().requires_grad_()

    def pack(activation):
        _after(transfer, user, right)
        with stream(transfer):
            kept = activation.detach().to("cpu", non_blocking=True)  # <2>
        activation.record_stream(transfer)
        return kept

    def unpack(kept):
        with stream(transfer):
            activation = kept.to(device, non_blocking=True)
        user.wait_stream(transfer)
        activation.record_stream(user)
        return activation

    with saved_tensors_hooks(pack, unpack):
        y = x.sin().exp().tanh().sum()  # <1>
    y.backward()
