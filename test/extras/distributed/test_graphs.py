"""Collectives in graphs: each replay runs them again, with the bits of eager ones."""

import re
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from common import instantiate_parametrized_tests, parametrize, run_tests
from extras.distributed.ranks import Ranks, RanksTestCase, device_of
from torch.distributed import DistBackendError

pytestmark = pytest.mark.sample(0.18)

REPLAYS = 4
COUNT = 6  # elements for each rank

# Each takes an input of COUNT elements for each rank, and returns tensors.


def all_gather_into_tensor(x, rank, size):
    out = torch.empty(size * x.numel(), device=x.device)
    dist.all_gather_into_tensor(out, x)
    return [out]


def all_gather(x, rank, size):
    outs = [torch.empty_like(x) for _ in range(size)]
    dist.all_gather(outs, x)
    return outs


def reduce_scatter_tensor(x, rank, size):
    out = torch.empty(x.numel() // size, device=x.device)
    dist.reduce_scatter_tensor(out, x)
    return [out]


def reduce_scatter_avg(x, rank, size):
    out = torch.empty(x.numel() // size, device=x.device)
    dist.reduce_scatter(out, list(x.chunk(size)), dist.ReduceOp.AVG)
    return [out]


def broadcast(x, rank, size):
    out = x * 2
    dist.broadcast(out, size - 1)
    return [out]


def reduce(x, rank, size):
    out = x * 2
    dist.reduce(out, 0)
    return [out]


def gather_and_scatter(x, rank, size):
    outs = [torch.empty_like(x) for _ in range(size)]
    dist.gather(x, outs if rank == 0 else None, 0)
    back = torch.empty_like(x)
    dist.scatter(back, [out + 1 for out in outs] if rank == 0 else None, 0)
    return [back]


def all_to_all_single(x, rank, size):
    out = torch.empty_like(x)
    dist.all_to_all_single(out, x)
    return [out]


def all_to_all(x, rank, size):
    parts = list(x.chunk(size))
    outs = [torch.empty_like(part) for part in parts]
    dist.all_to_all(outs, parts)
    return outs


def coalesced(x, rank, size):
    parts = [part.clone() for part in x.chunk(2)]
    with dist._coalescing_manager(device=torch.device(x.device.type), async_ops=True) as manager:
        dist.all_reduce(parts[0], async_op=True)
        dist.broadcast(parts[1], 1, async_op=True)
    manager.wait()
    return [part + 1 for part in parts]


def messages(x, rank, size):
    out = torch.empty_like(x)
    works = [dist.isend(x, (rank + 1) % size), dist.irecv(out, (rank - 1) % size)]
    for work in works:
        work.wait()
    return [out + 1]


def batch_of_messages(x, rank, size):
    out = torch.empty_like(x)
    batch = [
        dist.P2POp(dist.isend, x, (rank + 1) % size),
        dist.P2POp(dist.irecv, out, (rank - 1) % size),
    ]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    return [out + 1]


def several(x, rank, size):
    """One after the other and concurrently, sync and async."""
    total = x.clone()
    first = dist.all_reduce(total, async_op=True)
    moved = all_to_all_single(x + 1, rank, size)[0]
    first.wait()
    return [*all_gather_into_tensor(total * moved, rank, size), moved]


COLLECTIVES = {
    function.__name__: function
    for function in (
        all_gather_into_tensor,
        all_gather,
        reduce_scatter_tensor,
        reduce_scatter_avg,
        broadcast,
        reduce,
        gather_and_scatter,
        all_to_all_single,
        all_to_all,
        coalesced,
        messages,
        batch_of_messages,
        several,
    )
}


def numbers(rank, size, replay):
    generator = torch.Generator().manual_seed(100 * replay + rank)
    return torch.rand(size * COUNT, generator=generator)


def capture(function, *args):
    graph = torch.openreg.Graph()
    with torch.openreg.graph(graph):
        result = function(*args)
    return graph, result


def replay_with_new_data(rank, size, name):
    """Returns how many results of replays differ from those of eager calls, and how many are."""
    function = COLLECTIVES[name]
    static = torch.zeros(size * COUNT, device=device_of(rank))
    function(static, rank, size)  # so that the group has streams that a capture finds in use
    graph, captured = capture(function, static, rank, size)
    replayed = []
    for replay in range(REPLAYS):
        static.copy_(numbers(rank, size, replay))
        graph.replay()
        replayed.append([tensor.clone() for tensor in captured])
    differing = count = 0
    for replay, results in enumerate(replayed):
        eager = function(numbers(rank, size, replay).to(static.device), rank, size)
        for mine, expected in zip(results, eager, strict=True):
            count += 1
            differing += not torch.equal(mine, expected)
    # New data means new results: those of two replays are not the same.
    assert not all(map(torch.equal, replayed[0], replayed[1])), name
    return differing, count


def replay_in_another_order(rank, size, is_shifted):
    """Ranks replay two graphs in different orders, or one of them calls eagerly in between."""
    device = device_of(rank)
    x = torch.ones(size * COUNT, device=device)
    dist.all_reduce(x)
    first, _ = capture(all_gather_into_tensor, x, rank, size)
    second, _ = capture(all_to_all_single, x, rank, size)
    texts = []
    try:
        if is_shifted:
            if rank == 0:
                dist.all_reduce(x[:2])
            first.replay()
        else:
            for graph in (first, second) if rank == 0 else (second, first):
                graph.replay()
        torch.openreg.synchronize()
    except DistBackendError as error:
        texts.append(str(error))
    # Permanently: neither a replay nor a call succeeds.
    for again in (first.replay, lambda: dist.all_reduce(x)):
        try:
            again()
            torch.openreg.synchronize()
        except DistBackendError as error:
            texts.append(str(error))
    return texts


def wait_on_the_host(rank, size):
    """Calls that cannot be captured raise errors, and the group still works."""
    x = torch.ones(4, device=device_of(rank))
    texts = []

    def wait():
        dist.all_reduce(x, async_op=True).wait(timedelta(seconds=5))

    for function in (wait, lambda: dist.barrier(device_ids=[x.device.index])):
        try:
            capture(function)
        except RuntimeError as error:
            texts.append(str(error))
    torch.openreg.synchronize()
    dist.all_reduce(x)
    return texts, x[0].item()


class TestGraphs(RanksTestCase):
    @parametrize("name", list(COLLECTIVES))
    def test_replays_have_the_bits_of_eager_calls(self, name):
        for differing, count in self.run_ranks(replay_with_new_data, name):
            self.assertGreaterEqual(count, REPLAYS)
            self.assertEqual(differing, 0)

    def test_waits_of_the_host_are_refused(self):
        for texts, value in self.run_ranks(wait_on_the_host):
            self.assertEqual(len(texts), 2, texts)
            self.assertIn("no wait on the host during a capture", texts[0])
            self.assertIn("barrier", texts[1])
            self.assertEqual(value, 2.0)

    @parametrize("is_shifted", [False, True])
    def test_replays_in_another_order_fail_on_all_ranks(self, is_shifted):
        with Ranks(2, timeout_s=30) as ranks:
            results = ranks.run(replay_in_another_order, is_shifted)
        for texts in results:
            self.assertEqual(len(texts), 3, texts)
            for text in texts:
                self.assertRegex(text, re.compile("failed: |expected a working group"))
        # Which difference it is, in the text of one rank at least.
        self.assertRegex(" ".join(results[0] + results[1]), "all_gather")


class TestFourRanks(RanksTestCase):
    SIZE = 4

    @parametrize("name", ["several", "batch_of_messages", "coalesced"])
    def test_replays_have_the_bits_of_eager_calls(self, name):
        for differing, _ in self.run_ranks(replay_with_new_data, name):
            self.assertEqual(differing, 0)


instantiate_parametrized_tests(TestGraphs)
instantiate_parametrized_tests(TestFourRanks)

if __name__ == "__main__":
    run_tests()
