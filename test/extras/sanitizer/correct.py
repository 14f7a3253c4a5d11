"""Programs that look suspicious and are correct: they must have no findings."""

import queue
import threading
from collections.abc import Callable

import torch
from extras.sanitizer.programs import SIZE, Event, Stream, _module, _ready, current, device, stream

from torch_openreg.testing import StreamGate

__all__ = ["CORRECT"]

CORRECT: list[Callable[[], None]] = []


def correct(run: Callable[[], None]) -> Callable[[], None]:
    """Registers a program."""
    CORRECT.append(run)
    return run


def _graph() -> object:
    return _module.CUDAGraph() if device.type == "cuda" else _module.Graph()


@correct
def two_streams_read():
    x, one, two = _ready(), Stream(), Stream()
    for side in (one, two):
        with stream(side):
            x.mul(2)
    x.sum()
    _module.synchronize()


@correct
def odd_and_even_columns():
    x, side = _ready(8, 8), Stream()
    with stream(side):
        x[:, ::2].add_(1)
    x[:, 1::2].add_(1)
    _module.synchronize()


@correct
def left_and_right_half_of_each_row():
    x, side = _ready(100, 100), Stream()
    with stream(side):
        x[:, :50].add_(1)
    x[:, 50:].add_(1)
    _module.synchronize()


@correct
def neighboring_ranges():
    x, side = _ready(), Stream()
    with stream(side):
        x[:32].add_(1)
    x[32:].mul_(2)
    _module.synchronize()


@correct
def metadata_of_a_tensor_that_is_written():
    x, side = _ready(), Stream()
    with stream(side):
        x.add_(1)
    torch.zeros_like(x)
    x.new_ones(3)
    torch.empty_like(x).fill_(2)
    assert x.shape == (SIZE,)
    _module.synchronize()


@correct
def views_of_a_tensor_that_is_written():
    x, side = _ready(), Stream()
    with stream(side):
        x.add_(1)
    view = x.view(8, 8).t()[1:3]
    current().wait_stream(side)
    view.sum()


@correct
def wait_goes_through_a_third_stream():
    x, one, two = _ready(), Stream(), Stream()
    with stream(one):
        x.add_(1)
    two.wait_stream(one)
    current().wait_stream(two)
    x.sum()


@correct
def event_is_recorded_again_after_the_wait():
    x, y, side, done = _ready(), _ready(), Stream(), Event()
    with stream(side):
        x.add_(1)
        done.record()
    current().wait_event(done)
    with stream(side):
        y.add_(1)
        done.record()
    x.sum()
    current().wait_event(done)


@correct
def host_waits_for_an_event():
    x, side, done = _ready(), Stream(), Event()
    with stream(side):
        x.add_(1)
        done.record()
    done.synchronize()
    x.sum()


@correct
def host_waits_for_a_stream():
    x, side = _ready(), Stream()
    with stream(side):
        x.add_(1)
    side.synchronize()
    x.sum()


@correct
def stream_has_two_names():
    x, side, done = _ready(), Stream(), Event()
    same = _module.ExternalStream(side.native_handle)
    with stream(same):
        x.add_(1)
    with stream(side):
        x.mul_(2)
    current().wait_stream(side)
    x.sum()
    with stream(side):
        y = torch.ones_like(x)
    with stream(same):
        y.add_(1)
    done.record(same)
    current().wait_event(done)
    y.record_stream(current())
    y.sum()


@correct
def host_waits_for_the_device():
    x, side = _ready(), Stream()
    with stream(side):
        x.add_(1)
    _module.synchronize()
    x.sum()


@correct
def host_waits_through_torch_accelerator():
    x, side = _ready(), Stream()
    with stream(side):
        x.add_(1)
    torch.accelerator.synchronize()
    x.sum()


@correct
def host_asks_until_it_is_done():
    x, side, done = _ready(), Stream(), Event()
    with stream(side):
        x.add_(1)
        done.record()
    while not done.query():
        pass
    x.sum()


@correct
def host_asks_a_stream_until_it_is_done():
    x, side = _ready(), Stream()
    with stream(side):
        x.add_(1)
    while not side.query():
        pass
    x.sum()


@correct
def host_waits_until_a_gate_is_reached():
    x, side = _ready(), Stream()
    with stream(side):
        x.add_(1)
    with StreamGate(side) as gate:
        gate.wait_until_reached()
        x.sum()
    _module.synchronize()


@correct
def item_orders_its_own_stream():
    x, side = _ready(), Stream()
    with stream(side):
        x.add_(1)
        x.sum().item()
    x.mul(2)


@correct
def blocking_copy_orders_its_own_stream():
    x, side = _ready(), Stream()
    with stream(side):
        x.add_(1)
        x.cpu()
    x.mul(2)


@correct
def result_of_unknown_size_orders_its_own_stream():
    x, side = _ready(), Stream()
    with stream(side):
        x.add_(1)
        x.nonzero()
    x.mul(2)


@correct
def double_buffer_with_events():
    slots, loader = [_ready(), _ready()], Stream()
    filled, read = [Event(), Event()], [Event(), Event()]
    for step in range(8):
        index = step % 2
        loader.wait_event(read[index])
        with stream(loader):
            slots[index].fill_(step)
            filled[index].record()
        current().wait_event(filled[index])
        slots[index].sum()
        read[index].record()


@correct
def recorded_and_freed():
    side = Stream()
    for _ in range(3):
        x = torch.ones(SIZE, device=device)
        side.wait_stream(current())
        with stream(side):
            x.mul(2)
        x.record_stream(side)
        del x
    torch.ones(SIZE, device=device)


@correct
def recorded_through_a_view():
    x, side = _ready(), Stream()
    with stream(side):
        x.mul(2)
    x[3:5].record_stream(side)
    del x
    torch.ones(SIZE, device=device)


@correct
def freed_and_waited_for_before_the_next_use():
    x, side = _ready(), Stream()
    with stream(side):
        x.mul(2)
    del x
    current().wait_stream(side)
    torch.ones(SIZE, device=device)


@correct
def kept_until_it_was_waited_for():
    x, side = _ready(), Stream()
    with stream(side):
        x.mul(2)
    current().wait_stream(side)
    del x
    torch.ones(SIZE, device=device)


@correct
def freed_after_the_host_has_waited():
    x, side = _ready(), Stream()
    with stream(side):
        x.mul(2)
    side.synchronize()
    del x
    torch.ones(SIZE, device=device)


@correct
def freed_while_its_own_stream_uses_it():
    for _ in range(4):
        torch.ones(SIZE, device=device).mul_(2)


@correct
def memory_of_a_side_stream_goes_back_to_it():
    side, y = Stream(), _ready()
    for _ in range(3):
        with stream(side):
            batch = torch.ones(SIZE, device=device)
        current().wait_stream(side)
        y.add_(batch)
        side.wait_stream(current())
        del batch


@correct
def waited_then_allocated_with_nothing_between():
    side = Stream()
    _ready().add_(1)
    side.wait_stream(current())
    x = torch.empty(SIZE, device=device)
    with stream(side):
        x.fill_(1)
    current().wait_stream(side)
    x.sum()


@correct
def allocated_where_it_is_used_first():
    side = Stream()
    with stream(side):
        x = torch.ones(SIZE, device=device)
    current().wait_stream(side)
    x.sum()
    side.wait_stream(current())


@correct
def prefetcher_that_waits_and_records():
    loader, model = Stream(), torch.nn.Linear(SIZE, 1).to(device)
    _module.synchronize()

    def load():
        with stream(loader):
            return torch.ones(SIZE).pin_memory().to(device, non_blocking=True)

    following = load()
    for _ in range(4):
        current().wait_stream(loader)
        batch = following
        batch.record_stream(current())
        following = load()
        with torch.no_grad():
            model(batch)
    _module.synchronize()


@correct
def backward_on_a_side_stream():
    weight, side = _ready().requires_grad_(), Stream()
    with stream(side):
        loss = (weight * 2).sum()
    current().wait_stream(side)
    loss.backward()
    weight.grad.sum()
    side.wait_stream(current())


@correct
def forward_on_two_streams_and_one_backward():
    weight, one, two = _ready().requires_grad_(), Stream(), Stream()
    losses = []
    for side in (one, two):
        with stream(side):
            losses.append((weight * 2).sum())
    for side in (one, two):
        current().wait_stream(side)
    sum(losses).backward()
    weight.grad.sum()
    for side in (one, two):
        side.wait_stream(current())


@correct
def training_step():
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(), torch.nn.Linear(16, 2)
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        x = torch.randn(4, 8, device=device)
        y = torch.zeros(4, dtype=torch.long, device=device)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


@correct
def convolutional_training_step():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.MaxPool2d(2)
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(2, 1, 8, 8, device=device)).sum().backward()
        optimizer.step()


@correct
def numbers_are_drawn_on_two_streams():
    x, y, side = _ready(), _ready(), Stream()
    with stream(side):
        x.normal_()
    y.normal_()
    _module.synchronize()


@correct
def copies_between_devices():
    other = torch.device(device.type, 1)
    x = torch.ones(SIZE, device=device)
    y = x.to(other)
    y.add_(1)
    x.copy_(y)
    x.sum()
    _module.synchronize(0)
    _module.synchronize(1)


@correct
def copy_to_the_host_and_an_event():
    x, side, done = _ready(), Stream(), Event()
    with stream(side):
        host = x.to("cpu", non_blocking=True)
        done.record()
    done.synchronize()
    assert host.sum() == 0
    x.add_(1)


@correct
def pageable_source_changes_after_the_call():
    for size in (SIZE, 1 << 20):
        host = torch.ones(size)
        x = host.to(device, non_blocking=True)
        host.zero_()
        x.sum()


@correct
def storage_grows_on_its_own_stream():
    x = torch.ones(SIZE, device=device)
    x.resize_(10 * SIZE).fill_(1)
    x.sum()


@correct
def threads_hand_over_by_a_queue():
    ready: queue.Queue[tuple[torch.Tensor, torch.Event]] = queue.Queue()
    side = Stream()

    def produce():
        for step in range(3):
            with stream(side):
                x = torch.full((SIZE,), step, device=device)
                ready.put((x, side.record_event()))

    thread = threading.Thread(target=produce)
    thread.start()
    for _ in range(3):
        x, done = ready.get()
        current().wait_event(done)
        x.sum()
        x.record_stream(current())
    thread.join()


@correct
def thread_waits_on_the_host_for_another():
    box, side = [], Stream()

    def produce():
        with stream(side):
            box.append(torch.ones(SIZE, device=device))
        side.synchronize()

    thread = threading.Thread(target=produce)
    thread.start()
    thread.join()
    box[0].mul_(2)
    _module.synchronize()


@correct
def graph_is_replayed_between_other_work():
    x, graph = _ready(), _graph()
    with _module.graph(graph):
        y = x.mul(2)
    for step in range(3):
        x.fill_(step)
        graph.replay()
        y.sum()
    _module.synchronize()


@correct
def one_graph_is_replayed_on_two_streams():
    x, graph = _ready(), _graph()
    with _module.graph(graph):
        x.add_(1)
    _module.synchronize()
    for side in (Stream(), Stream()):
        with stream(side):
            graph.replay()
    _module.synchronize()
    assert x.sum().item() == 2 * SIZE


@correct
def graph_forks_and_joins():
    x, graph, side = _ready(), _graph(), Stream()
    with _module.graph(graph):
        side.wait_stream(current())
        with stream(side):
            y = x.mul(2)
        z = x.add(1)
        current().wait_stream(side)
        total = y + z
    graph.replay()
    total.sum()
    _module.synchronize()


@correct
def graph_with_temporaries_is_replayed():
    x, graph = _ready(), _graph()
    with _module.graph(graph):
        y = ((x + 1) * 2).relu().sum()
    for _ in range(2):
        graph.replay()
    y.item()


@correct
def fallback_is_called_again_and_again():
    x, side = _ready(), Stream()
    for _ in range(3):
        side.wait_stream(current())
        with stream(side):
            values = torch.cummax(x, 0).values
        current().wait_stream(side)
        values.sum()
        side.wait_stream(current())


@correct
def context_of_a_stream_that_is_current():
    x = _ready()
    with stream(current()):
        x.add_(1)
    x.sum()


@correct
def streams_of_the_pool_come_again():
    x = _ready()
    for _ in range(70):
        side = Stream()
        side.wait_stream(current())
        with stream(side):
            x.add_(1)
        current().wait_stream(side)


@correct
def empty_tensors():
    x, side = torch.empty(0, device=device), Stream()
    with stream(side):
        x.fill_(1)
    x.sum()
    _module.synchronize()


@correct
def numbers_of_the_host_as_arguments():
    x, side = _ready(), Stream()
    number = torch.tensor(3.0)
    with stream(side):
        x.add_(number)
    current().wait_stream(side)
    x.mul_(number)


@correct
def tensors_of_an_expanded_dimension():
    x, side = _ready(1, SIZE), Stream()
    with stream(side):
        x.expand(8, SIZE).sum()
    x.expand(4, SIZE).sum()
    _module.synchronize()


@correct
def module_moves_to_the_device():
    model = torch.nn.Linear(8, 8).to(device)
    side = Stream()
    side.wait_stream(current())
    with stream(side), torch.no_grad():
        model(torch.ones(8, device=device))
    current().wait_stream(side)


@correct
def saved_and_loaded():
    x = _ready()
    with torch.no_grad():
        x.add_(1)
    import io

    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    assert torch.equal(torch.load(file).cpu(), x.cpu())


@correct
def accumulated_over_streams_in_turn():
    total, sides = _ready(), [Stream(), Stream(), Stream()]
    last = current()
    for step in range(9):
        side = sides[step % 3]
        side.wait_stream(last)
        with stream(side):
            total.add_(step)
        last = side
    current().wait_stream(last)
    total.sum()


@correct
def host_tensor_written_at_indices_of_a_side_stream_waits_for_it():
    index, side = torch.arange(2, device=device), Stream()
    side.wait_stream(current())
    with stream(side):
        index.add_(1)
        torch.zeros(SIZE)[index] = 1.0  # the host waits for the side stream
    index.add_(1)
