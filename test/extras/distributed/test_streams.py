"""Order, overlap and lifetimes of collectives on streams."""

import threading
from datetime import timedelta

import torch
import torch.distributed as dist
from common import DEVICE_COUNT, DEVICE_TYPE, run_tests
from extras.distributed.ranks import RanksTestCase, device_of

from torch_openreg.testing import StreamGate


def ones(rank, count=4):
    return torch.ones(count, device=device_of(rank))


def returns_before_the_end(rank, size):
    """All ranks issue; none is done before the gates open, and no call has waited."""
    x = ones(rank)
    with StreamGate() as gate:
        x += rank
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        assert not work.is_completed()
        y = x * 2
        gate.open()
        result = y[0].item()
    assert work.is_completed() and work.is_success()
    return result


def overlaps(rank, size):
    """While a collective waits for rank 1, the current stream of rank 0 continues."""
    x = ones(rank)
    side = torch.Stream(device_of(rank))
    group = dist.distributed_c10d._get_default_group()
    if rank == 1:
        with StreamGate() as gate:
            work = dist.all_reduce(x, async_op=True)
            # Rank 0 signals over the CPU that it has computed.
            told = torch.zeros(1)
            dist.recv(told, 0)
            gate.open()
        work.wait()
    else:
        work = dist.all_reduce(x, async_op=True)
        y = torch.ones(100, device=device_of(rank)).cumsum(0)
        value = y[-1].item()
        assert not work.is_completed()
        dist.send(torch.tensor([value]), 1)
        work.wait()
    del side, group
    return x[0].item()


def keeps_the_order_of_issue(rank, size):
    """A collective on the current stream runs after one on the group's stream, on every rank."""
    x, y = ones(rank), torch.full((4,), 2.0, device=device_of(rank))
    side = torch.Stream(device_of(rank))
    with StreamGate() as gate:
        first = dist.all_reduce(x, async_op=True)
        with torch.openreg.stream(side):
            # On this stream, only the group's work waits for the gate.
            dist.all_reduce(y)
        assert not side.query()
        gate.open()
    first.wait()
    torch.openreg.current_stream().wait_stream(side)
    return x[0].item(), y[0].item()


def memory_is_kept(rank, size):
    """A tensor that is freed while its collective is in flight is not given to others."""
    group = dist.distributed_c10d._get_default_group()
    device = device_of(rank)
    out = torch.empty(size * 1000, device=device)
    comm_gate_stream = torch.Stream(device)
    with StreamGate(comm_gate_stream) as gate:
        x = torch.full((1000,), float(rank), device=device)
        with torch.openreg.stream(comm_gate_stream):
            torch.openreg.current_stream().wait_stream(torch.openreg.default_stream(device.index))
            work = dist.all_gather_into_tensor(out, x, async_op=True)
        address = x.data_ptr()
        del x
        others = [torch.full((1000,), -1.0, device=device) for _ in range(4)]
        assert all(other.data_ptr() != address for other in others)
        gate.open()
    work.wait()
    del group
    return out[::1000].cpu().tolist()


def futures(rank, size):
    x = ones(rank)
    with StreamGate() as gate:
        work = dist.all_reduce(x, async_op=True)
        # Callbacks run now, on a stream that waits for the collective.
        future = work.get_future().then(lambda done: done.value()[0] * 10)
        assert future.done()
        gate.open()
    return future.wait()[0].item()


def host_waits(rank, size):
    x = ones(rank)
    with StreamGate() as gate:
        work = dist.all_reduce(x, async_op=True)
        try:
            work.wait(timedelta(milliseconds=50))
        except dist.DistBackendError as error:
            assert "timed out after 50 ms" in str(error), error
        else:
            raise AssertionError("the wait did not end by its timeout")
        gate.open()
    assert work.wait(timedelta(seconds=60))
    assert work.is_completed()
    # A barrier of the device waits on the host.
    dist.barrier(device_ids=[x.device.index])
    return x[0].item()


def python_runs_meanwhile(rank, size):
    """No thread holds the GIL while ranks wait for each other."""
    x = ones(rank)
    reached = threading.Event()
    if rank == 1:
        with StreamGate() as gate:
            dist.all_reduce(x, async_op=True)
            dist.recv(torch.zeros(1), 0)
            gate.open()
        return True
    work = dist.all_reduce(x, async_op=True)
    waiter = threading.Thread(target=lambda: (work.wait(timedelta(seconds=60)), reached.set()))
    waiter.start()
    assert not reached.is_set()
    dist.send(torch.zeros(1), 1)
    waiter.join()
    return reached.is_set()


def replays(rank, size):
    """Collectives in a graph run with every replay, on the current contents of the tensors."""
    device = device_of(rank)
    static = torch.zeros(4, device=device)
    gathered = torch.empty(4 * size, device=device)
    dist.all_reduce(static)
    torch.openreg.synchronize()
    graph = torch.openreg.Graph()
    with torch.openreg.graph(graph):
        x = static * 2
        dist.all_reduce(x)
        work = dist.all_gather_into_tensor(gathered, x, async_op=True)
        work.wait()
        y = gathered + 1
    results = []
    for replay in range(3):
        static.fill_(replay + rank)
        graph.replay()
        results.append(y[-1].item())
        # Between replays, collectives go on as ever.
        z = ones(rank)
        dist.all_reduce(z)
        assert z[0].item() == size
    return results


def many_threads(rank, size):
    """Threads of one rank use separate groups at the same time."""
    groups = [dist.new_group() for _ in range(3)]
    results = [None] * len(groups)

    def use(index):
        torch.openreg.set_device(device_of(rank).index)
        # On one stream, the groups would wait for each other: ranks issue them in any order.
        with torch.openreg.stream(torch.openreg.Stream(device_of(rank))):
            x = torch.full((10,), float(index), device=device_of(rank))
            for _ in range(20):
                dist.all_reduce(x, group=groups[index])
                x /= size
            results[index] = x[0].item()

    threads = [threading.Thread(target=use, args=(index,)) for index in range(len(groups))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def one_group_in_many_threads(rank, size):
    """Threads of one rank may share a group; calls of one kind pair in any order."""
    totals = [torch.ones(10, device=device_of(rank)) for _ in range(4)]

    def use(index):
        torch.openreg.set_device(device_of(rank).index)
        for _ in range(10):
            dist.all_reduce(totals[index])
            totals[index] /= size
        torch.openreg.synchronize()

    threads = [threading.Thread(target=use, args=(index,)) for index in range(len(totals))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [total[0].item() for total in totals]


def two_devices(rank, size):
    """A rank may use the group on each of its devices."""
    results = []
    for step in range(DEVICE_COUNT):
        device = torch.device(DEVICE_TYPE, (rank + step) % DEVICE_COUNT)
        x = torch.full((3,), float(step + 1), device=device)
        dist.all_reduce(x)
        results.append(x[0].item())
    return results


def barrier_elsewhere(rank, size):
    """All ranks begin on one device, and go on each on its own."""
    dist.barrier(device_ids=[0])
    x = torch.full((3,), float(rank), device=device_of(rank))
    dist.all_reduce(x)
    return x[0].item()


def messages_of_some(rank, size):
    """Two ranks exchange messages on devices that the group has not used, without the others."""
    group = dist.new_group()
    dist.all_reduce(torch.ones(2, device=torch.device(DEVICE_TYPE, 0)), group=group)
    if rank not in (1, 2):
        return None
    device = torch.device(DEVICE_TYPE, DEVICE_COUNT - 1)
    received = torch.empty(2, device=device)
    peer = 3 - rank
    batch = [
        dist.P2POp(dist.isend, torch.full((2,), float(rank), device=device), peer, group),
        dist.P2POp(dist.irecv, received, peer, group),
    ]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    return received.tolist()


def messages_of_two_devices(rank, size):
    """Messages keep their order, be they of one device or of another."""
    devices = [torch.device(DEVICE_TYPE, index) for index in range(DEVICE_COUNT)]
    if rank == 0:
        with StreamGate() as gate:
            works = [
                dist.isend(torch.full((1,), float(step), device=devices[step % DEVICE_COUNT]), 1)
                for step in range(6)
            ]
            gate.open()
        for work in works:
            work.wait()
        return None
    received = [torch.empty(1, device=devices[-1 - step % DEVICE_COUNT]) for step in range(6)]
    for work in [dist.irecv(x, 0) for x in received]:
        work.wait()
    return [x.item() for x in received]


class TestStreams(RanksTestCase):
    def test_calls_return_before_the_end_and_streams_wait(self):
        self.assertEqual(self.run_ranks(returns_before_the_end), [6.0, 6.0])

    def test_computation_goes_on_while_a_collective_waits(self):
        self.assertEqual(self.run_ranks(overlaps), [2.0, 2.0])

    def test_collectives_keep_the_order_of_issue_across_streams(self):
        self.assertEqual(self.run_ranks(keeps_the_order_of_issue), [(2.0, 4.0)] * 2)

    def test_memory_in_flight_is_kept(self):
        self.assertEqual(self.run_ranks(memory_is_kept), [[0.0, 1.0]] * 2)

    def test_callbacks_of_futures_run_on_streams_that_wait(self):
        self.assertEqual(self.run_ranks(futures), [20.0, 20.0])

    def test_waits_of_the_host(self):
        self.assertEqual(self.run_ranks(host_waits), [2.0, 2.0])

    def test_python_runs_while_ranks_wait(self):
        self.assertEqual(self.run_ranks(python_runs_meanwhile), [True, True])

    def test_collectives_in_graphs(self):
        expected = [2.0 * (replay + replay + 1) + 1 for replay in range(3)]
        self.assertEqual(self.run_ranks(replays), [expected] * 2)

    def test_threads_with_groups_of_their_own(self):
        self.assertEqual(self.run_ranks(many_threads), [[0.0, 1.0, 2.0]] * 2)

    def test_threads_that_share_a_group(self):
        self.assertEqual(self.run_ranks(one_group_in_many_threads), [[1.0] * 4] * 2)

    def test_several_devices_of_one_rank(self):
        expected = [2.0 * (step + 1) for step in range(DEVICE_COUNT)]
        self.assertEqual(self.run_ranks(two_devices), [expected] * 2)

    def test_a_group_that_began_on_one_device_goes_on_on_others(self):
        self.assertEqual(self.run_ranks(barrier_elsewhere), [1.0, 1.0])

    def test_messages_keep_their_order_across_devices(self):
        expected = [float(step) for step in range(6)]
        self.assertEqual(self.run_ranks(messages_of_two_devices), [None, expected])


class TestFourRanks(RanksTestCase):
    SIZE = 4

    def test_messages_on_another_device_are_of_two_ranks_alone(self):
        expected = [None, [2.0, 2.0], [1.0, 1.0], None]
        self.assertEqual(self.run_ranks(messages_of_some), expected)


if __name__ == "__main__":
    run_tests()
