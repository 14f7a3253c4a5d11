"""Programs that free memory while a stream still uses it: see programs.py."""

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


@mistake("lifetime")
def freed_without_record_stream(right):
    x, side = _ready(), Stream()
    with stream(side):
        x.mul(2)  # <1>
    if right:
        x.record_stream(side)
    del x  # <2>
    torch.ones(SIZE, device=device)


@mistake("lifetime")
def other_sizes_are_no_excuse(right):
    x, side = _ready(4096), Stream()
    with stream(side):
        x.mul(2)  # <1>
    if right:
        x.record_stream(side)
    del x  # <2>
    torch.ones(3, device=device)


@mistake("lifetime")
def memory_of_the_side_stream_is_read_by_the_main_stream(right):
    side, y = Stream(), _ready()
    for _ in range(2):
        with stream(side):
            batch = torch.ones(SIZE, device=device)
        current().wait_stream(side)
        y.add_(batch)  # <1>
        if right:
            batch.record_stream(current())
        del batch  # <2>


@mistake("lifetime")
def wrong_stream_is_recorded(right):
    x, side = _ready(), Stream()
    main = current()
    with stream(side):
        x.mul(2)  # <1>
        x.record_stream(current() if right else main)
    del x  # <2>
    torch.ones(SIZE, device=device)


@mistake("lifetime")
def temporary_of_a_loop(right):
    side = Stream()
    total = _ready()
    for step in range(3):
        part = torch.full((SIZE,), step, device=device)
        side.wait_stream(current())
        with stream(side):
            total.add_(part)  # <1>
        if right:
            part.record_stream(side)
        part = None  # <2>


@mistake("lifetime")
def weights_are_replaced(right):
    weight, side = torch.nn.Parameter(_ready()), Stream()
    new = _ready()
    with stream(side), torch.no_grad():
        weight.mul(2)  # <1>
    if right:
        side.synchronize()
    weight.data = new  # <2>
    torch.ones(SIZE, device=device)


@mistake("lifetime")
def storage_is_resized_to_nothing(right):
    x, side = _ready(), Stream()
    with stream(side):
        x.mul(2)  # <1>
    if right:
        x.record_stream(side)
    x.untyped_storage().resize_(0)  # <2>
    torch.ones(SIZE, device=device)


@mistake("lifetime")
def tensor_is_set_to_another_storage(right):
    x, other, side = _ready(), _ready(), Stream()
    with stream(side):
        x.mul(2)  # <1>
    _after(current(), side, right)
    x.set_(other)  # <2>
    torch.ones(SIZE, device=device)


@mistake("lifetime")
def first_used_on_another_stream(right):
    side = Stream()
    _ready().add_(1)
    x = torch.empty(SIZE, device=device)  # <1>
    _after(side, current(), right)
    with stream(side):
        x.fill_(1)  # <2>
    current().wait_stream(side)


@mistake("lifetime")
def first_read_on_another_stream(right):
    side = Stream()
    _ready().add_(1)
    x = torch.empty(SIZE, device=device)  # <1>
    _after(side, current(), right)
    with stream(side):
        x.clone()  # <2>
    current().wait_stream(side)


@mistake("lifetime")
def one_of_two_users_is_recorded(right):
    x, one, two = _ready(), Stream(), Stream()
    with stream(one):
        x.mul(2)
    with stream(two):
        x.mul(2)  # <1>
    x.record_stream(one)
    if right:
        x.record_stream(two)
    del x  # <2>
    torch.ones(SIZE, device=device)


@mistake("lifetime")
def wait_comes_after_the_next_use(right):
    x, side = _ready(), Stream()
    with stream(side):
        x.mul(2)  # <1>
    del x  # <2>
    _after(current(), side, right)
    torch.ones(SIZE, device=device)
    current().wait_stream(side)


@mistake("lifetime")
def copy_is_recorded_instead(right):
    x, side = _ready(), Stream()
    y = x.clone()
    side.wait_stream(current())
    with stream(side):
        x.mul(2)  # <1>
    (x if right else y).record_stream(side)
    del x  # <2>
    torch.ones(SIZE, device=device)


@mistake("lifetime")
def event_was_recorded_before_the_last_use(right):
    x, side, done = _ready(), Stream(), Event()
    with stream(side):
        done.record()
        x.mul(2)  # <1>
        if right:
            done.record()
    current().wait_event(done)
    del x  # <2>
    torch.ones(SIZE, device=device)


@mistake("lifetime")
def freed_in_another_thread(right):
    box, side = [_ready()], Stream()
    with stream(side):
        box[0].mul(2)  # <1>
    if right:
        box[0].record_stream(side)

    def free():
        box.clear()  # <2>

    thread = threading.Thread(target=free)
    thread.start()
    thread.join()
    torch.ones(SIZE, device=device)


@mistake("lifetime")
def dictionary_drops_its_last_reference(right):
    cache, side = {"key": _ready()}, Stream()
    with stream(side):
        cache["key"].mul(2)  # <1>
    if right:
        cache["key"].record_stream(side)
    cache.pop("key")  # <2>
    torch.ones(SIZE, device=device)


@mistake("lifetime")
def offloaded_weights_are_dropped(right):
    weight, side = _ready(), Stream()
    host = torch.empty(SIZE).pin_memory()
    with stream(side):
        host.copy_(weight, non_blocking=True)  # <1>
    if right:
        side.synchronize()
    del weight  # <2>
    torch.ones(SIZE, device=device)
    side.synchronize()


@mistake("lifetime")
def prefetched_batch_goes_back_to_the_loader(right):
    loader, model = Stream(), torch.nn.Linear(SIZE, 1).to(device)
    _module.synchronize()
    for _ in range(2):
        with stream(loader):
            batch = torch.ones(SIZE).pin_memory().to(device, non_blocking=True)
        current().wait_stream(loader)
        if right:
            batch.record_stream(current())
        with torch.no_grad():
            model(batch)  # <1>
        del batch  # <2>
    _module.synchronize()


@mistake("graph-input")
def input_of_a_graph_is_freed(right):
    graph = _module.CUDAGraph() if device.type == "cuda" else _module.Graph()
    x = _ready()
    kept = [x]
    with _module.graph(graph):
        x.mul(2)  # <1>
    if not right:
        kept.clear()
    del x
    graph.replay()  # <2>
    _module.synchronize()


@mistake("lifetime")
def sparse_matrix_is_freed_during_its_product(right):
    matrix, factor = torch.eye(8).to_sparse().to(device).coalesce(), _ready(8, 8)
    side = Stream()
    with stream(side):
        torch.sparse.mm(matrix, factor)  # <1>
    if right:
        side.synchronize()
    del matrix  # <2>
    torch.ones(SIZE, device=device)
