"""Mistakes with graphs: in a capture, between replays, before the first one. See programs.py."""

import contextlib

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


def _graph():
    return _module.CUDAGraph() if device.type == "cuda" else _module.Graph()


# From a separate pool, so that no other stream of these programs is the same.
_trunk = Stream(priority=-1)


def _capture(graph=None, **options):
    return _module.graph(graph or _graph(), stream=_trunk, **options)


def _refused(right):
    """Takes the error of a call that no graph can repeat."""
    return contextlib.nullcontext() if right else contextlib.suppress(RuntimeError)


# --- Races between the branches of one graph


@mistake("race")
def two_branches_write_one_tensor(right):
    x, side = _ready(), Stream()
    with _capture():
        side.wait_stream(current())
        with stream(side):
            x.add_(1)  # <1>
        _after(current(), side, right)
        x.mul_(2)  # <2>
        current().wait_stream(side)


@mistake("race")
def branch_is_read_before_it_is_joined(right):
    x, side = _ready(), Stream()
    with _capture():
        side.wait_stream(current())
        with stream(side):
            y = x.mul(2)  # <1>
        if right:
            current().wait_stream(side)
        y.sum()  # <2>
        current().wait_stream(side)


@mistake("race")
def fork_is_too_early(right):
    x, side = _ready(), Stream()
    with _capture():
        side.wait_stream(current())
        y = x.mul(2)  # <1>
        _after(side, current(), right)
        with stream(side):
            y.sum()  # <2>
        current().wait_stream(side)


@mistake("race")
def join_takes_an_event_before_the_work(right):
    x, side, done = _ready(), Stream(), Event()
    with _capture():
        side.wait_stream(current())
        with stream(side):
            done.record()
            x.add_(1)  # <1>
            if right:
                done.record()
        current().wait_event(done)
        x.sum()  # <2>
        current().wait_stream(side)


@mistake("race")
def branch_overwrites_what_the_trunk_reads(right):
    x, side = _ready(), Stream()
    with _capture():
        side.wait_stream(current())
        x.sum()  # <1>
        _after(side, current(), right)
        with stream(side):
            x.zero_()  # <2>
        current().wait_stream(side)


@mistake("race")
def two_branches_do_not_know_each_other(right):
    x, one, two = _ready(), Stream(), Stream()
    with _capture():
        one.wait_stream(current())
        two.wait_stream(current())
        with stream(one):
            x[:40].add_(1)  # <1>
        _after(two, one, right)
        with stream(two):
            x[20:].mul_(2)  # <2>
        current().wait_stream(one)
        current().wait_stream(two)


@mistake("race")
def wait_from_before_the_capture_orders_nothing_in_it(right):
    x, side = _ready(), Stream()
    with stream(side):
        x.add_(1)
    current().wait_stream(side)
    _module.synchronize()
    with _capture():
        side.wait_stream(current())
        with stream(side):
            x.add_(1)  # <1>
        _after(current(), side, right)
        x.sum()  # <2>
        current().wait_stream(side)


@mistake("lifetime")
def temporary_of_a_graph_is_freed_while_a_branch_reads_it(right):
    x, side = _ready(), Stream()
    with _capture():
        temporary = x.mul(2)
        side.wait_stream(current())
        with stream(side):
            total = temporary.sum()  # <1>
        _after(current(), side, right)
        del temporary  # <2>
        x.mul(3)
        current().wait_stream(side)
        total.add(1)


@mistake("lifetime")
def memory_of_the_trunk_is_first_used_by_a_branch(right):
    x, side = _ready(), Stream()
    with _capture():
        side.wait_stream(current())
        x.add_(1)
        y = torch.empty(SIZE, device=device)  # <1>
        _after(side, current(), right)
        with stream(side):
            y.fill_(1)  # <2>
        current().wait_stream(side)


# --- Replays


@mistake("race")
def graphs_of_one_pool_are_replayed_on_two_streams(right):
    x, one, two, side = _ready(), _graph(), _graph(), Stream()
    with _capture(one):
        x.mul(2).sum()
    with _capture(two, pool=one.pool()):
        x.mul(3).sum()
    one.replay()  # <1>
    _after(side, current(), right)
    with stream(side):
        two.replay()  # <2>
    _module.synchronize()


@mistake("race")
def result_of_a_replay_on_a_side_stream_is_read(right):
    x, graph, side = _ready(), _graph(), Stream()
    with _capture(graph):
        y = x.mul(2)
    with stream(side):
        graph.replay()  # <1>
    _after(current(), side, right)
    y.sum()  # <2>
    _module.synchronize()


@mistake("race")
def replay_overwrites_what_is_still_read(right):
    x, graph, side = _ready(), _graph(), Stream()
    with _capture(graph):
        y = x.mul(2)
    graph.replay()
    side.wait_stream(current())
    with stream(side):
        y.sum()  # <1>
    _after(current(), side, right)
    graph.replay()  # <2>
    _module.synchronize()


# --- Calls that no graph can repeat


@mistake("capture")
def value_is_read_in_a_capture(right):
    x = _ready()
    with _refused(right), _capture():  # <1>
        y = x.sum()
        if not right:
            y.item()  # <2>


@mistake("capture")
def condition_depends_on_data(right):
    x = _ready()
    with _refused(right), _capture():  # <1>
        if not right and x.sum() > 0:  # <2>
            x.add_(1)
        x.add_(2)


@mistake("capture")
def device_is_synchronized_in_a_capture(right):
    x = _ready()
    with _refused(right), _capture():  # <1>
        x.add_(1)
        if not right:
            _module.synchronize()  # <2>


@mistake("capture")
def stream_is_synchronized_in_a_capture(right):
    x = _ready()
    with _refused(right), _capture():  # <1>
        x.add_(1)
        if not right:
            current().synchronize()  # <2>


@mistake("capture")
def event_is_synchronized_in_a_capture(right):
    x, event = _ready(), Event()
    with _refused(right), _capture():  # <1>
        x.add_(1)
        event.record()
        if not right:
            event.synchronize()  # <2>


@mistake("capture")
def copy_to_the_host_in_a_capture(right):
    x = _ready()
    with _refused(right), _capture():  # <1>
        y = x.add(1)
        if not right:
            y.cpu()  # <2>


@mistake("capture")
def copy_from_the_host_in_a_capture(right):
    x, batch = _ready(), torch.ones(SIZE)
    with _refused(right), _capture():  # <1>
        if not right:
            x.copy_(batch)  # <2>
        x.add_(1)


@mistake("capture")
def result_has_a_size_that_depends_on_data(right):
    x = _ready()
    torch.where(x > 0, x, -x)
    with _refused(right), _capture():  # <1>
        if not right:
            torch.nonzero(x)  # <2>
        torch.where(x > 0, x, -x)


@mistake("capture")
def mask_selects_in_a_capture(right):
    x = _ready()
    with _refused(right), _capture():  # <1>
        if not right:
            x[x > 0]  # <2>
        x.add_(1)


@mistake("capture")
def event_from_before_the_capture_is_waited_for(right):
    x, side = _ready(), Stream()
    with stream(side):
        event = current().record_event()
    if right:
        current().wait_event(event)
    with _refused(right), _capture():  # <1>
        if not right:
            current().wait_event(event)  # <2>
        x.add_(1)


@mistake("capture")
def branch_is_not_joined(right):
    x, y, side = _ready(), _ready(), Stream()
    with _refused(right), _capture():  # <1>
        side.wait_stream(current())
        with stream(side):
            y.mul_(2)
            y.add_(1)  # <2>
        x.add_(1)
        _after(current(), side, right)


@mistake("capture")
def branch_goes_on_after_the_join(right):
    x, y, side = _ready(), _ready(), Stream()
    with _refused(right), _capture():  # <1>
        side.wait_stream(current())
        with stream(side):
            y.mul_(2)
        current().wait_stream(side)
        with stream(side):
            y.add_(1)  # <2>
        x.add_(1)
        _after(current(), side, right)


# --- Results that are not computed yet


@mistake("uninitialized")
def result_of_a_graph_is_read_before_the_first_replay(right):
    x, graph = _ready(), _graph()
    with _capture(graph):
        y = x.mul(2)  # <1>
    if right:
        graph.replay()
    y.sum()  # <2>


@mistake("uninitialized")
def result_of_a_graph_is_copied_before_the_first_replay(right):
    x, graph = _ready(), _graph()
    with _capture(graph):
        y = x.mul(2).relu()  # <1>
    if right:
        graph.replay()
    y.cpu()  # <2>


@mistake("uninitialized")
def graph_is_replayed_before_the_one_whose_result_it_reads(right):
    x, one, two = _ready(), _graph(), _graph()
    with _capture(one):
        y = x.mul(2)  # <1>
    with _capture(two, pool=one.pool()):
        y.sum()
    if right:
        one.replay()
    two.replay()  # <2>
    _module.synchronize()
