"""Programs in which the host touches pinned memory without an operator: see programs.py."""

import ctypes
import io
import pickle
import tempfile
import threading

import torch
from extras.sanitizer.programs import (
    SIZE,
    Event,
    Stream,
    _module,
    _ready,
    current,
    device,
    mistake,
    stream,
)

__all__: list[str] = []

LARGE = 1 << 16  # elements; NumPy gives the GIL up for less


@mistake("host")
def numpy_reads_the_result_before_the_copy_is_over(right):
    x = _ready()
    host = x.to("cpu", non_blocking=True)  # <1>
    if right:
        current().synchronize()
    host.numpy().sum()  # <2>
    _module.synchronize()


@mistake("host")
def numpy_reads_a_large_result_without_the_lock_of_python(right):
    x = _ready(LARGE)
    host = x.to("cpu", non_blocking=True)  # <1>
    if right:
        current().record_event().synchronize()
    array = host.numpy()
    array * 2  # <2>
    _module.synchronize()


@mistake("host")
def numpy_changes_a_result_that_a_side_stream_still_writes(right):
    x, side = _ready(), Stream()
    with stream(side):
        host = x.to("cpu", non_blocking=True)  # <1>
    (side if right else current()).synchronize()
    host.numpy()[3] = 1  # <2>
    _module.synchronize()


@mistake("host")
def result_becomes_a_list_too_early(right):
    x = _ready()
    host = x.to("cpu", non_blocking=True)  # <1>
    done = current().record_event()
    if right:
        while not done.query():
            pass
    host.tolist()  # <2>
    _module.synchronize()


@mistake("host")
def state_is_saved_while_it_is_copied(right):
    state = {"weight": _ready(), "bias": _ready(4)}
    state = {name: one.to("cpu", non_blocking=True) for name, one in state.items()}  # <1>
    if right:
        _module.synchronize()
    torch.save(state, io.BytesIO())  # <2>
    _module.synchronize()


@mistake("host")
def checkpoint_is_written_while_it_is_copied(right):
    x = _ready(LARGE)
    host = x.to("cpu", non_blocking=True)  # <1>
    if right:
        current().synchronize()
    with tempfile.NamedTemporaryFile() as file:
        torch.save(host, file.name)  # <2>
    _module.synchronize()


@mistake("host")
def result_is_pickled_while_it_is_copied(right):
    x = _ready()
    host = x.to("cpu", non_blocking=True)  # <1>
    if right:
        x.sum().item()
    pickle.dumps(host.numpy())  # <2>
    _module.synchronize()


@mistake("host")
def staging_buffer_is_refilled_by_numpy(right):
    buffer, x, done = torch.zeros(SIZE).pin_memory(), _ready(), Event()
    array = buffer.numpy()
    for step in range(2):
        if right:
            done.synchronize()
        array[:] = step  # <2>
        x.copy_(buffer, non_blocking=True)  # <1>
        done.record()
    _module.synchronize()


@mistake("host")
def large_staging_buffer_is_refilled_by_numpy(right):
    buffer, x = torch.zeros(LARGE).pin_memory(), _ready(LARGE)
    x.copy_(buffer, non_blocking=True)  # <1>
    if right:
        current().synchronize()
    buffer.numpy()[:] = 1  # <2>
    _module.synchronize()


@mistake("host")
def slot_of_a_ring_is_refilled_before_its_turn(right):
    ring, x = torch.zeros(4, LARGE).pin_memory(), _ready(LARGE)
    slots = ring.numpy()
    done = []
    for step in range(5):
        if len(done) == 4 and right:
            done.pop(0).synchronize()
        slots[step % 4] = step  # <2>
        x.copy_(ring[step % 4], non_blocking=True)  # <1>
        done.append(current().record_event())
    _module.synchronize()


@mistake("host")
def staging_buffer_is_refilled_through_a_memoryview(right):
    buffer, x = torch.zeros(SIZE).pin_memory(), _ready()
    view = memoryview(buffer.numpy())
    x.copy_(buffer, non_blocking=True)  # <1>
    if right:
        current().synchronize()
    view[5] = 1.0  # <2>
    _module.synchronize()


@mistake("host")
def c_code_clears_a_buffer_that_is_uploaded(right):
    buffer, x = torch.ones(SIZE).pin_memory(), _ready()
    x.copy_(buffer, non_blocking=True)  # <1>
    if right:
        current().synchronize()
    ctypes.memset(buffer.data_ptr(), 0, buffer.nbytes)  # <2>
    _module.synchronize()


@mistake("host")
def another_thread_reads_the_result_too_early(right):
    x, values = _ready(), []
    host = x.to("cpu", non_blocking=True)  # <1>
    if right:
        current().synchronize()

    def read():
        values.append(host.numpy()[0])  # <2>

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    _module.synchronize()


@mistake("host")
def columns_that_are_downloaded_are_read(right):
    x = _ready(SIZE)
    host = torch.zeros(SIZE, 2).pin_memory()
    host[:, 1].copy_(x, non_blocking=True)  # <1>
    host.numpy()[5, int(not right)] + 1  # <2>
    _module.synchronize()


@mistake("host")
def replay_of_a_graph_is_not_waited_for(right):
    x, host = _ready(), torch.zeros(SIZE).pin_memory()
    graph = _module.CUDAGraph() if device.type == "cuda" else _module.Graph()
    with _module.graph(graph):
        host.copy_(x, non_blocking=True)
    graph.replay()  # <1>
    if right:
        current().synchronize()
    host.numpy().max()  # <2>
    _module.synchronize()
