"""Programs in which the host touches pinned memory that a copy uses: see programs.py."""

import torch
from extras.sanitizer.programs import (
    SIZE,
    Stream,
    _module,
    _ready,
    current,
    device,
    mistake,
    stream,
)

__all__: list[str] = []


@mistake("host")
def result_is_read_before_the_copy_is_over(right):
    x = _ready()
    host = x.to("cpu", non_blocking=True)  # <1>
    if right:
        current().synchronize()
    host.sum()  # <2>
    _module.synchronize()


@mistake("host")
def result_is_read_after_a_wait_for_another_stream(right):
    x, side = _ready(), Stream()
    with stream(side):
        host = x.to("cpu", non_blocking=True)  # <1>
    (side if right else current()).synchronize()
    host.mul(2)  # <2>
    _module.synchronize()


@mistake("host")
def staging_buffer_is_refilled(right):
    buffer, x = torch.zeros(SIZE).pin_memory(), _ready()
    for step in range(2):
        buffer.fill_(step)  # <2>
        x.copy_(buffer, non_blocking=True)  # <1>
        if right:
            current().synchronize()
    _module.synchronize()


@mistake("host")
def part_of_the_staging_buffer_is_refilled(right):
    buffer, x = torch.zeros(2, SIZE).pin_memory(), _ready()
    x.copy_(buffer[0], non_blocking=True)  # <1>
    buffer[int(right)].fill_(1)  # <2>
    _module.synchronize()


@mistake("host")
def gradients_are_used_by_an_optimizer_of_the_host(right):
    weight = torch.zeros(SIZE).pin_memory()
    gradient, side = _ready(), Stream()
    with stream(side):
        on_host = gradient.to("cpu", non_blocking=True)  # <1>
    if right:
        side.record_event().synchronize()
    weight.sub_(on_host)  # <2>
    _module.synchronize()


@mistake("host")
def weights_are_changed_while_they_are_uploaded(right):
    weight, x = torch.zeros(SIZE).pin_memory(), _ready()
    x.copy_(weight, non_blocking=True)  # <1>
    if right:
        x.sum().item()
    weight.add_(1)  # <2>
    _module.synchronize()


@mistake("host")
def copy_on_the_host_reads_too_early(right):
    x, kept = _ready(), torch.zeros(SIZE)
    host = x.to("cpu", non_blocking=True)  # <1>
    if right:
        torch.accelerator.synchronize()
    kept.copy_(host)  # <2>
    _module.synchronize()


@mistake("host")
def number_of_the_host_is_read_too_early(right):
    x = _ready(1)
    host = torch.empty(1).pin_memory()
    host.copy_(x, non_blocking=True)  # <1>
    done = current().record_event()
    if right:
        while not done.query():
            pass
    host.item()  # <2>
    _module.synchronize()


@mistake("host")
def source_of_a_copy_is_written_at_indices_of_the_device(right):
    host, x, side = torch.zeros(SIZE).pin_memory(), _ready(), Stream()
    index = torch.arange(2, device=device)
    side.wait_stream(current())
    with stream(side):
        x.copy_(host, non_blocking=True)  # <1>
    if right:
        side.synchronize()
    host[index] = 1.0  # <2>
    _module.synchronize()
