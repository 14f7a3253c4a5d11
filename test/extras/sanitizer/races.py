"""Programs in which two streams use the same bytes: see programs.py."""

import threading

import torch
from extras.sanitizer.programs import (
    SIZE,
    Event,
    Stream,
    _after,
    _module,
    _ready,
    current,
    device,
    mistake,
    stream,
)

__all__: list[str] = []


@mistake("race")
def result_is_read_without_a_wait(right):
    x, side = _ready(), Stream()
    with stream(side):
        x.add_(1)  # <1>
    _after(current(), side, right)
    x.mul(2)  # <2>


@mistake("race")
def input_is_read_before_it_is_there(right):
    x, side = torch.zeros(SIZE, device=device), Stream()  # <1>
    _after(side, current(), right)
    with stream(side):
        x.mul(2)  # <2>


@mistake("race")
def writer_does_not_wait_for_the_reader(right):
    x, side = _ready(), Stream()
    with stream(side):
        x.sum()  # <1>
    _after(current(), side, right)
    x.fill_(3)  # <2>


@mistake("race")
def double_buffer_is_refilled_too_early(right):
    slots, loader = [_ready(), _ready()], Stream()
    read = [Event(), Event()]
    for step in range(4):
        slot = slots[step % 2]
        with stream(loader):
            if right and step > 1:
                loader.wait_event(read[step % 2])
            slot.fill_(step)  # <1>
        current().wait_stream(loader)
        slot.mul(2)  # <2>
        read[step % 2].record()


@mistake("race")
def bucket_of_two_producers_waits_for_one(right):
    bucket, one, other = _ready(2, SIZE), Stream(), Stream()
    with stream(one):
        bucket[0].add_(1)
    with stream(other):
        bucket[1].add_(1)  # <1>
    current().wait_stream(one)
    _after(current(), other, right)
    bucket.sum()  # <2>


@mistake("race")
def wait_comes_before_the_work(right):
    x, side = _ready(), Stream()
    current().wait_stream(side)
    with stream(side):
        x.add_(1)  # <1>
    _after(current(), side, right)
    x.mul(2)  # <2>


@mistake("race")
def event_is_recorded_before_the_work(right):
    x, side, done = _ready(), Stream(), Event()
    with stream(side):
        done.record()
        x.add_(1)  # <1>
        if right:
            done.record()
    current().wait_event(done)
    x.mul(2)  # <2>


@mistake("race")
def event_of_another_stream_is_waited_for(right):
    x, side, third = _ready(), Stream(), Stream()
    with stream(side):
        x.add_(1)  # <1>
    current().wait_event((side if right else third).record_event())
    x.mul(2)  # <2>


@mistake("race")
def default_stream_waits_and_another_is_current(right):
    x, side, own = _ready(), Stream(), Stream()
    with stream(own):
        with stream(side):
            x.add_(1)  # <1>
        (current() if right else _module.default_stream()).wait_stream(side)
        x.mul(2)  # <2>


@mistake("race")
def event_was_never_recorded(right):
    x, side, done = _ready(), Stream(), Event()
    with stream(side):
        x.add_(1)  # <1>
        if right:
            done.record()
    current().wait_event(done)
    x.mul(2)  # <2>


@mistake("race")
def event_is_recorded_on_two_streams(right):
    x, one, other, done, second = _ready(2, SIZE), Stream(), Stream(), Event(), Event()
    with stream(one):
        x[0].add_(1)  # <1>
        done.record()
    with stream(other):
        x[1].add_(1)
        (second if right else done).record()
    current().wait_event(done)
    current().wait_event(second)
    x.mul(2)  # <2>


@mistake("race")
def views_overlap_by_a_few_elements(right):
    x, side = _ready(), Stream()
    with stream(side):
        x[:40].add_(1)  # <1>
    _after(current(), side, right)
    x[39:].mul(2)  # <2>


@mistake("race")
def row_and_column_cross(right):
    x, side = _ready(8, 8), Stream()
    with stream(side):
        x[3].add_(1)  # <1>
    _after(current(), side, right)
    x[:, 5].mul(2)  # <2>


@mistake("race")
def transposed_view_is_the_same_memory(right):
    x, side = _ready(8, 8), Stream()
    with stream(side):
        x.t().mul_(2)  # <1>
    _after(current(), side, right)
    x.sum()  # <2>


@mistake("race")
def one_of_three_streams_is_not_joined(right):
    parts, streams = _ready(3, SIZE), [Stream() for _ in range(3)]
    for number, side in enumerate(streams):
        with stream(side):
            parts[number].add_(number)  # <1>
    for side in streams if right else streams[:2]:
        current().wait_stream(side)
    parts.sum()  # <2>


@mistake("race")
def gradients_are_used_on_another_stream(right):
    weight, comm = _ready().requires_grad_(), Stream()
    (weight * 2).sum().backward()  # <1>
    _after(comm, current(), right)
    with stream(comm):
        weight.grad.mul_(0.5)  # <2>


@mistake("race")
def hook_uses_a_stream_of_its_own(right):
    weight, comm, total = _ready().requires_grad_(), Stream(), _ready()

    def reduce(grad):
        _after(comm, current(), right)
        with stream(comm):
            total.add_(grad)  # <2>
        current().wait_stream(comm)

    weight.register_hook(reduce)
    (weight * 2).sum().backward()  # <1>


@mistake("race")
def thread_has_a_current_stream_of_its_own(right):
    x, side, done = _ready(), Stream(), Event()

    def work():
        with stream(side):
            x.add_(1)  # <1>
            done.record()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if right:
        current().wait_event(done)
    x.mul(2)  # <2>


@mistake("race")
def prefetcher_does_not_wait(right):
    loader = Stream()
    for _ in range(3):
        with stream(loader):
            batch = torch.ones(SIZE, device=device)
            batch.mul_(2)  # <1>
        _after(current(), loader, right)
        batch.sum()  # <2>
        batch.record_stream(current())


@mistake("race")
def fallback_writes(right):
    x, side = _ready(), Stream()
    values, indices = torch.sort(x)
    torch.sort(x, out=(values, indices))
    _module.synchronize()
    with stream(side):
        torch.sort(x, out=(values, indices))  # <1>
    _after(current(), side, right)
    values.sum()  # <2>


@mistake("race")
def first_call_of_a_fallback_orders_nothing(right):
    x, side = _ready(3, 5, 7), Stream()
    with stream(side):
        x.add_(1)  # <1>
    _after(current(), side, right)
    torch.cummax(x, 1)  # <2>


@mistake("race")
def copy_on_the_device(right):
    x, y, side = _ready(), _ready(), Stream()
    with stream(side):
        y.copy_(x)  # <1>
    _after(current(), side, right)
    y.sum()  # <2>


@mistake("race")
def copy_that_converts(right):
    x, y, side = _ready(), _ready().to(torch.float64), Stream()
    _module.synchronize()
    with stream(side):
        y.copy_(x)  # <1>
    _after(current(), side, right)
    y.sum()  # <2>


@mistake("race")
def list_of_tensors_is_written_at_once(right):
    parts, side = [_ready(), _ready()], Stream()
    torch._foreach_add_(parts, 1)
    _module.synchronize()
    with stream(side):
        torch._foreach_add_(parts, 1)  # <1>
    _after(current(), side, right)
    parts[1].sum()  # <2>


@mistake("race")
def optimizer_steps_on_another_stream(right):
    weight, side = _ready().requires_grad_(), Stream()
    weight.grad = _ready()
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with stream(side):
        optimizer.step()  # <1>
    _after(current(), side, right)
    weight.sum()  # <2>


@mistake("race")
def out_variant_writes(right):
    x, out, side = _ready(), _ready(), Stream()
    with stream(side):
        torch.add(x, x, out=out)  # <1>
    _after(current(), side, right)
    out.sum()  # <2>


@mistake("race")
def index_put_writes(right):
    x, index, side = _ready(), torch.tensor([1, 3], device=device), Stream()
    values = _ready(2)
    with stream(side):
        x.index_put_((index,), values)  # <1>
    _after(current(), side, right)
    x.sum()  # <2>


@mistake("race")
def numbers_are_drawn_into_a_tensor(right):
    x, side = _ready(), Stream()
    with stream(side):
        x.normal_()  # <1>
    _after(current(), side, right)
    x.sum()  # <2>


@mistake("race")
def item_reads_a_result(right):
    x, side = _ready(), Stream()
    total = _ready(1)
    with stream(side):
        torch.sum(x, 0, keepdim=True, out=total)  # <1>
    _after(current(), side, right)
    total.item()  # <2>


@mistake("race")
def blocking_copy_to_the_host_reads(right):
    x, side = _ready(), Stream()
    with stream(side):
        x.add_(1)  # <1>
    _after(current(), side, right)
    x.cpu()  # <2>


@mistake("race")
def asynchronous_copy_from_the_host_writes(right):
    x, side = _ready(), Stream()
    batch = torch.ones(SIZE).pin_memory()
    with stream(side):
        x.copy_(batch, non_blocking=True)  # <1>
    _after(current(), side, right)
    x.sum()  # <2>
    _module.synchronize()


@mistake("race")
def copy_from_pageable_memory_without_blocking(right):
    x, side = _ready(), Stream()
    with stream(side):
        x.copy_(torch.ones(SIZE), non_blocking=True)  # <1>
    _after(current(), side, right)
    x.sum()  # <2>


@mistake("race")
def host_waited_for_an_earlier_record(right):
    x, side, done = _ready(), Stream(), Event()
    with stream(side):
        x.add_(1)
        done.record()
        x.add_(1)  # <1>
        if right:
            done.record()
    done.synchronize()
    x.mul(2)  # <2>


@mistake("race")
def event_of_the_step_before(right):
    x, side, done = _ready(), Stream(), Event()
    for _ in range(2):
        side.wait_stream(current())
        with stream(side):
            x.add_(1)  # <1>
            if right:
                done.record()
        current().wait_event(done)
        x.sum()  # <2>
        with stream(side):
            done.record()


@mistake("race")
def wait_in_the_wrong_direction(right):
    x, side = _ready(), Stream()
    with stream(side):
        x.add_(1)  # <1>
    if right:
        current().wait_stream(side)
    else:
        side.wait_stream(current())
    x.mul(2)  # <2>


@mistake("race")
def chain_of_three_lacks_a_link(right):
    x, one, two = _ready(), Stream(), Stream()
    with stream(one):
        x.add_(1)  # <1>
    _after(two, one, right)
    current().wait_stream(two)
    x.mul(2)  # <2>


@mistake("race")
def two_streams_write(right):
    x, one, two = _ready(), Stream(), Stream()
    with stream(one):
        x.fill_(1)  # <1>
    _after(two, one, right)
    with stream(two):
        x.fill_(2)  # <2>


@mistake("race")
def gradients_are_zeroed_while_they_are_sent(right):
    grad, comm = _ready(), Stream()
    comm.wait_stream(current())
    with stream(comm):
        grad.mul(0.5)  # <1>
    _after(current(), comm, right)
    grad.zero_()  # <2>


@mistake("race")
def staging_buffer_of_two_streams(right):
    buffer, one, two = torch.zeros(SIZE).pin_memory(), Stream(), Stream()
    x, y = _ready(), _ready()
    with stream(one):
        buffer.copy_(x, non_blocking=True)  # <1>
    _after(two, one, right)
    with stream(two):
        y.copy_(buffer, non_blocking=True)  # <2>
    _module.synchronize()


@mistake("race")
def other_device_reads_what_a_stream_still_writes(right):
    x, side = _ready(), Stream()
    with stream(side):
        x.add_(1)  # <1>
    _after(current(), side, right)
    x.to(torch.device(device.type, 1))  # <2>


@mistake("race")
def result_of_a_replay_is_read_on_another_stream(right):
    x, graph, side = _ready(), _module.Graph() if device.type != "cuda" else None, Stream()
    graph = graph or _module.CUDAGraph()
    capture = _module.graph
    with capture(graph):
        x.add_(1)
    graph.replay()  # <1>
    _after(side, current(), right)
    with stream(side):
        x.sum()  # <2>
    _module.synchronize()


@mistake("race")
def input_of_a_replay_is_still_written(right):
    x, graph, side = _ready(), _module.Graph() if device.type != "cuda" else None, Stream()
    graph = graph or _module.CUDAGraph()
    with _module.graph(graph):
        x.mul(2)
    with stream(side):
        x.fill_(1)  # <1>
    _after(current(), side, right)
    graph.replay()  # <2>
    _module.synchronize()


@mistake("race")
def convolution_reads(right):
    layer, x, side = torch.nn.Conv2d(1, 2, 3).to(device), _ready(1, 1, 8, 8), Stream()
    layer(x)
    _module.synchronize()
    with stream(side):
        x.add_(1)  # <1>
    _after(current(), side, right)
    layer(x)  # <2>


@mistake("race")
def moving_average_is_written_by_the_forward(right):
    layer, x, side = torch.nn.BatchNorm1d(4).to(device), _ready(8, 4), Stream()
    layer(x)
    _module.synchronize()
    with stream(side):
        layer(x)  # <1>
    _after(current(), side, right)
    layer.running_mean.clone()  # <2>


@mistake("race")
def weights_are_loaded_during_the_forward(right):
    layer, x, side = torch.nn.Linear(SIZE, SIZE).to(device), _ready(), Stream()
    new = _ready(SIZE, SIZE)
    with torch.no_grad():
        layer(x)  # <1>
        _after(side, current(), right)
        with stream(side):
            layer.weight.copy_(new)  # <2>
    _module.synchronize()


@mistake("race")
def tensor_of_a_list_is_not_waited_for(right):
    parts, side = [_ready() for _ in range(4)], Stream()
    with stream(side):
        parts[2].add_(1)  # <1>
    _after(current(), side, right)
    torch.cat(parts)  # <2>


@mistake("race")
def indices_change_while_they_are_used(right):
    chosen = torch.tensor([1, 5], device=device)
    x, side = _ready(), Stream()
    with stream(side):
        x[chosen]  # <1>
    _after(current(), side, right)
    chosen.add_(1)  # <2>


# --- Calls for which the host waits here and not on CUDA


@mistake("race")
def weights_are_changed_while_they_are_drawn_from(right):
    weights, side = torch.ones(SIZE, device=device), Stream()
    _module.synchronize()
    torch.multinomial(weights, 4, replacement=True)  # <1>
    _after(side, current(), right)
    with stream(side):
        weights.fill_(2)  # <2>


@mistake("race")
def factor_of_a_sparse_product_is_overwritten(right):
    matrix, factor, side = torch.eye(8).to_sparse_csr().to(device), _ready(8, 8), Stream()
    torch.mm(matrix, factor)  # <1>
    _after(side, current(), right)
    with stream(side):
        factor.zero_()  # <2>


@mistake("race")
def host_tensor_is_written_at_indices_of_a_side_stream(right):
    index, side = torch.arange(2, device=device), Stream()
    side.wait_stream(current())
    with stream(side):
        index.add_(1)  # <1>
    _after(current(), side, right)
    torch.zeros(SIZE)[index] = 1.0  # <2>
