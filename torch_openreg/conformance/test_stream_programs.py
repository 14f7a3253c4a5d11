"""Programs that are right on CUDA, as its rules of streams, events and memory have it.

Each runs freely, and with a stream held by a gate while the host submits, which exposes missing
ordering. Free memory reads as NaN, which exposes uses after a free.
"""

import contextlib
import queue
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from torch_openreg.conformance.arguments import CPU
from torch_openreg.conformance.cases import (
    call_in_threads,
    instantiate_parametrized_tests,
    needs,
    parametrize,
    subtest,
)
from torch_openreg.conformance.deadlines import PATIENCE_S, wait_until
from torch_openreg.conformance.records import Record, write_record
from torch_openreg.conformance.sweep import DEVICE, SweepTestCase
from torch_openreg.conformance.target import target

OTHER = target().other()
SIZE = 1000
ROUNDS = 6

# Holds a stream while the block runs, or does nothing.
Hold = Callable[[torch.Stream], AbstractContextManager[object]]
# The computed and the expected result of a program.
Pairs = list[tuple[torch.Tensor, torch.Tensor]]
Program = Callable[[Hold], Pairs]
# One step of training with a batch on the host.
Step = Callable[[torch.nn.Module, torch.optim.Optimizer, torch.Tensor], object]

PROGRAMS: list[Program] = []


def program(function: Program) -> Program:
    PROGRAMS.append(function)
    return function


def current() -> torch.Stream:
    return torch.accelerator.current_stream(DEVICE)


def numbers(*size: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(sum(size)))


def on_device(*size: int) -> torch.Tensor:
    """The same numbers on the device; no work is left."""
    tensor = numbers(*size).to(DEVICE)
    torch.accelerator.synchronize(DEVICE)
    return tensor


def litter(value: float = 7.0, count: int = 8) -> list[torch.Tensor]:
    """Takes memory that is free on the current stream, and writes to it."""
    return [torch.full((SIZE,), value, device=DEVICE) for _ in range(count)]


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)
    )


def trained(
    step: Callable[[torch.nn.Module, torch.optim.Optimizer, torch.Tensor], object],
) -> Pairs:
    """Trains a network on the device by a step, and on the CPU as usual."""
    pairs = []
    batches = [numbers(5, 8) + round for round in range(ROUNDS)]
    models = {device: network().to(device) for device in (CPU, DEVICE)}
    for device, model in models.items():
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for batch in batches:
            if device == DEVICE:
                step(model, optimizer, batch)
            else:
                model(batch).pow(2).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
    torch.accelerator.synchronize(DEVICE)
    for one, other in zip(*(model.parameters() for model in models.values()), strict=True):
        pairs.append((other.detach(), one.detach()))
    return pairs


@program
def consumer_waits_for_the_producers_stream(hold: Hold) -> Pairs:
    x, side = on_device(SIZE), torch.Stream(DEVICE)
    with hold(side):
        with side:
            y = x.exp()
        current().wait_stream(side)
        z = y + 1
    return [(z, numbers(SIZE).exp() + 1)]


@program
def consumer_waits_for_an_event(hold: Hold) -> Pairs:
    x, side = on_device(SIZE), torch.Stream(DEVICE)
    with hold(side):
        with side:
            y = x.exp()
            done = side.record_event()
            x.zero_()  # work after the event may run at any time
        current().wait_event(done)
        z = y + 1
    return [(z, numbers(SIZE).exp() + 1)]


@program
def event_recorded_again_orders_by_its_last_record(hold: Hold) -> Pairs:
    x, side, event = on_device(SIZE), torch.Stream(DEVICE), torch.Event(DEVICE)
    event.record(current())
    with hold(side):
        with side:
            y = x.exp()
        event.record(side)
        current().wait_event(event)
        z = y + 1
    return [(z, numbers(SIZE).exp() + 1)]


@program
def recorded_memory_is_not_given_to_others_too_early(hold: Hold) -> Pairs:
    x, side = on_device(SIZE), torch.Stream(DEVICE)
    with hold(side):
        with side:
            y = x.exp()
        x.record_stream(side)
        del x
        others = litter()
    side.synchronize()
    return [(y, numbers(SIZE).exp()), *((one, torch.full((SIZE,), 7.0)) for one in others)]


@program
def memory_is_free_once_its_stream_has_waited(hold: Hold) -> Pairs:
    x, side = on_device(SIZE), torch.Stream(DEVICE)
    with hold(side):
        with side:
            y = x.exp()
        current().wait_stream(side)
        del x
        others = litter()
    torch.accelerator.synchronize(DEVICE)
    return [(y, numbers(SIZE).exp()), *((one, torch.full((SIZE,), 7.0)) for one in others)]


@program
def memory_of_a_side_stream_is_freed_while_the_current_one_reads_it(hold: Hold) -> Pairs:
    """No allocation on the side stream comes before the side stream waits for the reader."""
    side = torch.Stream(DEVICE)
    with side:
        g = torch.ones(SIZE, device=DEVICE)
    current().wait_stream(side)
    with hold(current()):
        y = g + 1
        del g
        side.wait_stream(current())
        with side:
            others = litter()
    torch.accelerator.synchronize(DEVICE)
    return [(y, torch.full((SIZE,), 2.0)), *((one, torch.full((SIZE,), 7.0)) for one in others)]


@program
def parts_on_four_streams_are_joined(hold: Hold) -> Pairs:
    x = on_device(4, SIZE)
    streams = [torch.Stream(DEVICE) for _ in range(4)]
    with hold(streams[2]):
        parts = []
        for row, stream in zip(x, streams, strict=True):
            stream.wait_stream(current())
            with stream:
                parts.append(row.cumsum(0) * 2)
        for stream in streams:
            current().wait_stream(stream)
        joined = torch.cat(parts)
    return [(joined, torch.cat([row.cumsum(0) * 2 for row in numbers(4, SIZE)]))]


@program
def two_streams_take_turns(hold: Hold) -> Pairs:
    x = on_device(SIZE)
    streams = [torch.Stream(DEVICE), torch.Stream(DEVICE)]
    expected = numbers(SIZE)
    with hold(streams[0]):
        for turn in range(20):
            mine, others = streams[turn % 2], streams[1 - turn % 2]
            mine.wait_stream(others)
            with mine:
                x.mul_(0.5).add_(turn)
            expected.mul_(0.5).add_(turn)
        current().wait_stream(streams[1])
        y = x.clone()
    return [(y, expected)]


@program
def prefetched_batches_of_pinned_memory(hold: Hold) -> Pairs:
    """The copy of the next batch overlaps with the work on this one."""
    copies = torch.Stream(DEVICE)
    weight = on_device(16, 16)
    batches = [numbers(64, 16) + number for number in range(ROUNDS)]
    results = []

    def fetch(number: int) -> torch.Tensor:
        with copies:
            return batches[number].pin_memory().to(DEVICE, non_blocking=True)

    with hold(copies):
        following = fetch(0)
        for number in range(ROUNDS):
            current().wait_stream(copies)
            batch = following
            batch.record_stream(current())
            if number + 1 < ROUNDS:
                following = fetch(number + 1)
            results.append(torch.relu(batch @ weight))
            del batch
    expected = [torch.relu(batch @ numbers(16, 16)) for batch in batches]
    torch.accelerator.synchronize(DEVICE)
    return list(zip(results, expected, strict=True))


@program
def one_pinned_buffer_is_refilled_after_an_event(hold: Hold) -> Pairs:
    buffer, copied = torch.empty(SIZE, pin_memory=True), torch.Event(DEVICE)
    copies, results = torch.Stream(DEVICE), []
    for number in range(ROUNDS):
        copied.synchronize()
        buffer.fill_(number)
        with copies:
            results.append(buffer.to(DEVICE, non_blocking=True))
        copied.record(copies)
    copies.synchronize()
    return [(one, torch.full((SIZE,), float(number))) for number, one in enumerate(results)]


@program
def pinned_memory_is_freed_while_it_is_copied(hold: Hold) -> Pairs:
    with hold(current()):
        x = torch.full((SIZE,), 3.0).pin_memory().to(DEVICE, non_blocking=True)
        others = [torch.full((SIZE,), 5.0).pin_memory() for _ in range(4)]
    return [(x, torch.full((SIZE,), 3.0)), *((one, torch.full((SIZE,), 5.0)) for one in others)]


@program
def results_come_back_to_pinned_memory(hold: Hold) -> Pairs:
    x, side, done = on_device(SIZE), torch.Stream(DEVICE), torch.Event(DEVICE)
    target = torch.zeros(SIZE, pin_memory=True)
    with hold(current()):
        y = x.exp()
        side.wait_stream(current())
        with side:
            target.copy_(y, non_blocking=True)
            done.record()
        y.record_stream(side)
        del y
        others = litter()
    done.synchronize()
    return [(target.clone(), numbers(SIZE).exp()), (others[0], torch.full((SIZE,), 7.0))]


@program
def pageable_memory_is_overwritten_after_its_copy(hold: Hold) -> Pairs:
    """Copies from pageable memory have read it when they return, non_blocking or not."""
    pairs = []
    for size in (SIZE, 100 * SIZE):
        source = torch.ones(size)
        with hold(current()):
            x = source.to(DEVICE, non_blocking=True)
            source.zero_()
        pairs.append((x, torch.ones(size)))
    return pairs


@program
def blocking_copies_from_the_host_are_done_when_they_return(hold: Hold) -> Pairs:
    side, pairs = torch.Stream(DEVICE), []
    copies: list[Callable[[], torch.Tensor]] = [
        lambda: torch.tensor([1.0, 2.0], device=DEVICE),
        lambda: torch.as_tensor([1.0, 2.0]).to(DEVICE),
        lambda: torch.empty(2, device=DEVICE).copy_(torch.tensor([1.0, 2.0])),
        lambda: torch.tensor([1, 2]).to(DEVICE, torch.float32),
        lambda: torch.tensor([1.0, 2.0]).pin_memory().to(DEVICE),
    ]
    for copy in copies:
        with hold(current()):
            x = copy()
            with side:
                y = x * 1
            side.synchronize()
            pairs.append((y.clone(), torch.tensor([1.0, 2.0])))
    return pairs


@program
def host_reads_after_it_synchronized_an_event(hold: Hold) -> Pairs:
    x, side = on_device(SIZE), torch.Stream(DEVICE)
    with hold(side), side:
        y = x.exp()
        done = side.record_event()
    wait_until(done.query, "an event of work that nothing holds was not done")
    return [(y.cpu(), numbers(SIZE).exp())]


@program
def forward_on_a_side_stream_and_backward_on_the_current_one(hold: Hold) -> Pairs:
    side = torch.Stream(DEVICE)

    def step(model, optimizer, batch):
        x = batch.to(DEVICE)
        side.wait_stream(current())
        with hold(side):
            with side:
                loss = model(x).pow(2).mean()
            current().wait_stream(side)
            x.record_stream(side)
            loss.backward()
        current().wait_stream(side)
        optimizer.step()
        optimizer.zero_grad()
        side.wait_stream(current())

    return trained(step)


@program
def forward_and_backward_on_a_side_stream_and_the_step_on_the_current_one(hold: Hold) -> Pairs:
    side = torch.Stream(DEVICE)

    def step(model, optimizer, batch):
        x = batch.to(DEVICE)
        side.wait_stream(current())
        with hold(side):
            with side:
                model(x).pow(2).mean().backward()
            x.record_stream(side)
            current().wait_stream(side)
        with hold(current()):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            side.wait_stream(current())

    return trained(step)


@program
def whole_training_steps_on_a_side_stream(hold: Hold) -> Pairs:
    side = torch.Stream(DEVICE)
    side.wait_stream(current())

    def step(model, optimizer, batch):
        with hold(side), side:
            model(batch.pin_memory().to(DEVICE, non_blocking=True)).pow(2).mean().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e6)
            optimizer.step()
            optimizer.zero_grad()

    return trained(step)


@program
def gradients_of_one_parameter_come_from_two_streams(hold: Hold) -> Pairs:
    parameter = on_device(SIZE).requires_grad_()
    streams = [torch.Stream(DEVICE), torch.Stream(DEVICE)]
    with hold(streams[1]):
        losses = []
        for stream, factor in zip(streams, (2.0, 3.0), strict=True):
            with stream:
                losses.append((parameter * factor).exp().sum())
            current().wait_stream(stream)
        (losses[0] + losses[1]).backward()
    expected = numbers(SIZE).requires_grad_()
    ((expected * 2).exp().sum() + (expected * 3).exp().sum()).backward()
    return [(parameter.grad.clone(), expected.grad)]


@program
def random_numbers_are_drawn_in_the_order_of_the_calls(hold: Hold) -> Pairs:
    where = CPU if target().gives_the_cpus_random_numbers else DEVICE
    side = torch.Stream(DEVICE)
    torch.manual_seed(3)
    with hold(side):
        with side:
            first = torch.rand(SIZE, device=DEVICE)
        second = torch.nn.functional.dropout(torch.ones(SIZE, device=DEVICE), 0.5)
    torch.accelerator.synchronize(DEVICE)
    torch.manual_seed(3)
    return [
        (first, torch.rand(SIZE, device=where).cpu()),
        (second, torch.nn.functional.dropout(torch.ones(SIZE, device=where), 0.5).cpu()),
    ]


@program
def tensors_go_from_thread_to_thread_with_events(hold: Hold) -> Pairs:
    channel: queue.Queue[tuple[torch.Tensor, torch.Event] | None] = queue.Queue(maxsize=2)
    x, results = on_device(SIZE), []

    def produce() -> None:
        stream = torch.Stream(DEVICE)
        try:
            with stream:
                for number in range(ROUNDS):
                    y = x * number
                    channel.put((y, stream.record_event()), timeout=PATIENCE_S)
        finally:
            channel.put(None, timeout=PATIENCE_S)

    def consume() -> None:
        stream = torch.Stream(DEVICE)
        with stream:
            while (item := channel.get(timeout=PATIENCE_S)) is not None:
                y, done = item
                stream.wait_event(done)
                y.record_stream(stream)
                results.append(y.exp())
        stream.synchronize()

    call_in_threads(produce, consume)
    expected = [(numbers(SIZE) * number).exp() for number in range(ROUNDS)]
    return list(zip(results, expected, strict=True))


@program
def lists_of_tensors_gather_what_streams_made(hold: Hold) -> Pairs:
    x = on_device(SIZE)
    streams = [torch.Stream(DEVICE) for _ in range(3)]
    with hold(streams[1]):
        made = []
        for number, stream in enumerate(streams):
            with stream:
                made.append(x + number)
        for stream in streams:
            current().wait_stream(stream)
        torch._foreach_mul_(made, 2.0)
        norm = torch.nn.utils.get_total_norm(made)
    torch.accelerator.synchronize(DEVICE)
    expected = [(numbers(SIZE) + number) * 2 for number in range(3)]
    return [
        (norm, torch.nn.utils.get_total_norm(expected)),
        *zip(made, expected, strict=True),
    ]


@program
def workspaces_of_one_stream_are_reused_in_its_order(hold: Hold) -> Pairs:
    x, results = on_device(64, 64), []
    with hold(current()):
        for number in range(ROUNDS):
            temporary = x @ x + number
            results.append(temporary.softmax(-1))
            del temporary
    expected = numbers(64, 64)
    return [(one, (expected @ expected + number).softmax(-1)) for number, one in enumerate(results)]


@program
def indices_are_read_when_the_kernel_runs(hold: Hold) -> Pairs:
    """An index that is overwritten on the same stream after its use."""
    x, index = on_device(SIZE), torch.arange(SIZE, device=DEVICE)
    torch.accelerator.synchronize(DEVICE)
    with hold(current()):
        y = x[index]
        index.zero_()
        z = x.index_select(0, index)
    return [(y, numbers(SIZE)), (z, numbers(SIZE)[:1].expand(SIZE))]


def across_devices(hold: Hold) -> Pairs:
    x, side = on_device(SIZE), torch.Stream(OTHER)
    with hold(current()):
        y = x.exp()
        side.wait_event(current().record_event())
        with side:
            z = y.to(OTHER, non_blocking=True) + 1
        y.record_stream(side)
        del y
        others = litter()
    side.synchronize()
    return [(z, numbers(SIZE).exp() + 1), (others[0], torch.full((SIZE,), 7.0))]


@needs("streams", "events")
class TestStreamPrograms(SweepTestCase):
    def check_program(self, run: Program, is_held: bool) -> None:
        rounds = 1 if is_held else 5
        record = Record(run.__name__, f"stream programs, {'held' if is_held else 'free'}")
        try:
            for _ in range(rounds):
                pairs = run(target().hold if is_held else lambda _: contextlib.nullcontext())
                torch.accelerator.synchronize(DEVICE)
                for actual, expected in pairs:
                    self.assert_agrees(actual, expected)
                record.samples += 1
            record.passed = 1
        finally:
            record.failed = 1 - record.passed
            record.asynchronous = record.samples
            write_record(record)

    @parametrize("run", [subtest(one, name=one.__name__) for one in PROGRAMS])
    @parametrize("is_held", [False, True], name_fn=lambda value: "held" if value else "free")
    def test_program(self, run: Any, is_held: Any) -> None:
        self.check_program(run, is_held)

    @needs("two devices")
    @parametrize("is_held", [False, True], name_fn=lambda value: "held" if value else "free")
    def test_across_devices(self, is_held: Any) -> None:
        self.check_program(across_devices, is_held)


instantiate_parametrized_tests(TestStreamPrograms)
