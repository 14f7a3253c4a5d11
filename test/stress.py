"""Stress: threads, streams, frees, fallback, generators, graphs, copies and errors at once.

``python test/stress.py [--seconds S] [--seed N]``. Every result is compared with the CPU's, bit by
bit; a sanitizer, with which tools/sanitize.py runs this program, finds other errors. With
OPENREG_SANITIZER=collect the package's sanitizer checks each launch, too: it must have no findings,
and otherwise the process ends with status 77. The process ends with work pending and tensors alive.
"""

import argparse
import contextlib
import faulthandler
import queue
import random
import sys
import threading
import time
from collections.abc import Callable

import torch

import torch_openreg

__all__ = ["main"]

DEVICES = [torch.device("openreg", index) for index in range(torch.openreg.device_count())]


def expect_equal(what: str, actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Ends the calling thread's work with an error unless both have the same bits."""
    if not torch.equal(actual.cpu(), expected):
        raise AssertionError(f"{what}: expected {expected}, got {actual.cpu()}")


def cpu_tensor(seed: random.Random, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed.getrandbits(32))
    return torch.randn(shape, generator=generator)


class Frees:
    """Tensors that one thread makes and another one drops."""

    def __init__(self) -> None:
        self.queue: queue.Queue[tuple[torch.Tensor, torch.Tensor]] = queue.Queue(maxsize=64)

    def make(self, seed: random.Random) -> None:
        device = seed.choice(DEVICES)
        host = cpu_tensor(seed, seed.randrange(1, 2000))
        with torch.openreg.Stream(device) as stream:
            x = host.to(device, non_blocking=True)
            y = x * 2
            x.record_stream(stream)
            stream.synchronize()
        with contextlib.suppress(queue.Full):
            self.queue.put((y, host * 2), timeout=0.05)

    def drop(self, seed: random.Random) -> None:
        try:
            y, expected = self.queue.get(timeout=0.05)
        except queue.Empty:
            return
        side = torch.openreg.Stream(y.device)
        with side:
            z = y + 1
        y.record_stream(side)
        del y
        side.synchronize()
        expect_equal("a tensor of another thread", z, expected + 1)


def use_streams(seed: random.Random) -> None:
    """A chain of kernels that changes its stream, ordered by events."""
    device = seed.choice(DEVICES)
    host = cpu_tensor(seed, 64, 64)
    x, expected = host.to(device), host
    for _ in range(seed.randrange(1, 6)):
        before = torch.openreg.current_stream(device)
        side = torch.openreg.Stream(device, priority=seed.choice((-1, 0)))
        side.wait_stream(before)
        with side:
            y = (x @ x).relu() - x
        before.wait_stream(side)
        x.record_stream(side)
        y.record_stream(before)
        x, expected = y, (expected @ expected).relu() - expected
    expect_equal("a chain of streams", x, expected)


def use_fallback(seed: random.Random) -> None:
    """Planned calls, whose memory the next call reuses."""
    device = seed.choice(DEVICES)
    host = cpu_tensor(seed, seed.choice((3, 5)), seed.choice((4, 6)))
    x = host.to(device)
    calls: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda t: torch.cdist(t, t),
        lambda t: torch.nn.functional.layer_norm(t, t.shape[-1:]),
        lambda t: torch.nn.functional.huber_loss(t, t * 0),
        lambda t: torch.logcumsumexp(t, 0),
        lambda t: torch.kthvalue(t, 2).values,
        lambda t: torch.linalg.matrix_norm(t),
        lambda t: torch.nn.functional.pad(t[None], (1, 1), mode="reflect"),
    ]
    call = seed.choice(calls)
    results = [call(x) for _ in range(seed.randrange(1, 8))]
    expected = call(host)
    for result in results:
        expect_equal("a fallback", result, expected)


def use_generator(seed: random.Random) -> None:
    """Random numbers of a generator of the thread's own, and of the one that all share."""
    device, number = seed.choice(DEVICES), seed.getrandbits(32)
    generator = torch.Generator(device).manual_seed(number)
    x = torch.randn(100, generator=generator, device=device)
    state = generator.get_state()
    y = torch.rand(50, generator=generator, device=device)
    generator.set_state(state)
    again = torch.rand(50, generator=generator, device=device)
    expected = torch.randn(100, generator=torch.Generator().manual_seed(number))
    expect_equal("randn", x, expected)
    expect_equal("a state set again", again, y.cpu())
    torch.nn.functional.dropout(x, 0.5)  # by the shared one: any numbers


def use_copies(seed: random.Random) -> None:
    """Copies from and to pinned and pageable memory, and between devices."""
    source, destination = seed.choice(DEVICES), seed.choice(DEVICES)
    host = cpu_tensor(seed, seed.choice((1, 1000, 100_000)))
    if seed.random() < 0.5:
        host = host.pin_memory()
    there = host.to(source, non_blocking=True).to(destination, non_blocking=True)
    back = torch.empty_like(host, pin_memory=host.is_pinned())
    back.copy_(there, non_blocking=True)
    torch.openreg.current_stream(destination).synchronize()
    if not torch.equal(back, host):
        raise AssertionError("a copy: expected the same numbers")


def use_autograd(seed: random.Random) -> None:
    """A backward pass, on the threads of torch's engine."""
    device = seed.choice(DEVICES)
    host = cpu_tensor(seed, 8, 8).requires_grad_()
    x = host.detach().to(device).requires_grad_()
    for t in (host, x):
        torch.nn.functional.layer_norm(t @ t, (8,)).square().sum().backward()
    assert x.grad is not None and host.grad is not None
    expect_equal("a gradient", x.grad, host.grad)


def use_graph(seed: random.Random) -> None:
    """A graph, replayed between launches of its stream."""
    device = seed.choice(DEVICES)
    with device:
        stream, graph = torch.openreg.Stream(device), torch.openreg.Graph()
        with stream:
            x = torch.ones(64, device=device)
            stream.synchronize()
            with torch.openreg.graph(graph, stream=stream, capture_error_mode="thread_local"):
                x.mul_(2)
                y = x + 1
            replays = seed.randrange(1, 8)
            for _ in range(replays):
                graph.replay()
            stream.synchronize()
            expect_equal("a replay", y, torch.full((64,), 2.0**replays + 1, device="cpu"))
            del x, y
            graph.reset()


def raise_in_kernels(seed: random.Random) -> None:
    """Kernels that fail: the error comes out once, at the next call that waits."""
    with torch.openreg.Stream(DEVICES[-1]) as stream:
        table = torch.zeros(4, 2, device=DEVICES[-1])
        stream.synchronize()
        indices = torch.tensor([seed.randrange(10, 20)], device=DEVICES[-1])
        try:
            table.index_select(0, indices)
            stream.synchronize()
        except (torch.AcceleratorError, IndexError, RuntimeError):
            return
    raise AssertionError("an index out of range: expected an error, got none")


def run(tasks: list[Callable[[random.Random], None]], seconds: float, number: int) -> None:
    """Runs each task in a separate thread until the time is over; raises the first error."""
    end = time.monotonic() + seconds
    errors: list[BaseException] = []
    counts = [0] * len(tasks)

    def repeat(index: int) -> None:
        seed = random.Random(number * 1000 + index)
        try:
            while time.monotonic() < end and not errors:
                tasks[index](seed)
                counts[index] += 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=repeat, args=(index,)) for index in range(len(tasks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    if 0 in counts:
        raise AssertionError(f"stress: expected every task to run, got {counts}")


def main() -> int:
    """Runs the program and returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options = parser.parse_args()
    faulthandler.dump_traceback_later(options.seconds * 10 + 60, exit=True)
    print(f"stress: {torch_openreg.__file__}, --seed {options.seed}", flush=True)
    frees = Frees()
    tasks = [use_streams, use_fallback, use_generator, use_copies, use_autograd]
    run([*tasks, *tasks, frees.make, frees.drop], options.seconds / 2, options.seed)
    # Alone: any thread that waits for the device raises a kernel's error, and a capture refuses
    # calls of other threads.
    run([use_graph], options.seconds / 4, options.seed)
    run([raise_in_kernels], options.seconds / 8, options.seed)
    torch.openreg.empty_cache()
    run([use_streams, use_fallback, frees.make, frees.drop], options.seconds / 8, options.seed)
    alive = [torch.ones(256, 256, device=device) for device in DEVICES]
    pending = [x @ x for x in alive for _ in range(20)]
    print(f"stress: ends with {len(pending)} products pending", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
