"""Groups of the backend gloo serve tensors of the device: the results are those of the CPU."""

import threading

import torch
import torch.distributed as dist
from common import (
    DEVICE_TYPE,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_tests,
)
from extras.distributed.ranks import NAME, Ranks, RanksTestCase, device_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from torch_openreg.testing import StreamGate

COUNTS = (3, 50_000)


def values(rank, count, device, salt=0.0):
    return torch.arange(count, dtype=torch.float32, device=device) * (rank + 1) + salt


def collectives(device, rank, size):
    """Returns the results of each collective that Gloo has."""
    results = []
    for count in COUNTS:
        x = values(rank, count, device)
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
            y = x.clone()
            dist.all_reduce(y, op)
            results.append(y)
        y = x.clone()
        dist.broadcast(y, 1)
        results.append(y)
        y = x.clone()
        dist.reduce(y, 0)
        results.append(y if rank == 0 else x)
        outputs = [torch.zeros_like(x) for _ in range(size)]
        dist.all_gather(outputs, x)
        results += outputs
        y = torch.zeros(size * count, device=device)
        dist.all_gather_into_tensor(y, x)
        results.append(y)
        outputs = [torch.zeros_like(x) for _ in range(size)] if rank == 0 else None
        dist.gather(x, outputs, 0)
        results += outputs or []
        y = torch.zeros_like(x)
        dist.scatter(y, [x + i for i in range(size)] if rank == 0 else None, 0)
        results.append(y)
        y = torch.zeros_like(x)
        dist.reduce_scatter(y, [x + i for i in range(size)])
        results.append(y)
        y = torch.zeros_like(x)
        dist.reduce_scatter_tensor(y, values(rank, size * count, device))
        results.append(y)
        y = torch.zeros(size * count, device=device)
        dist.all_to_all_single(y, values(rank, size * count, device))
        results.append(y)
        y, z = x.clone(), x + 1
        dist.all_reduce_coalesced([y, z])
        results += [y, z]
        results += coalesced(device, rank, size, count)
    return [each.cpu() for each in results]


def coalesced(device, rank, size, count):
    """Returns the results of operations on lists, which torch's Python has no functions for."""
    group = dist.distributed_c10d._get_default_group()
    x, wide = values(rank, count, device), values(rank, size * count, device)
    lists = [[torch.zeros_like(x), torch.zeros_like(wide)] for _ in range(size)]
    dist.all_gather_coalesced(lists, [x, wide])
    gathered = torch.zeros(2, size * count, device=device)
    group.allgather_into_tensor_coalesced([gathered[0], gathered[1]], [x, x + 1]).wait()
    reduced = torch.zeros(2, count, device=device)
    group.reduce_scatter_tensor_coalesced([reduced[0], reduced[1]], [wide, wide + 1]).wait()
    return [each for one in lists for each in one] + [gathered, reduced]


def messages(device, rank, size):
    """Returns what each rank receives from the previous one, with every function."""
    results = []
    following, before = (rank + 1) % size, (rank - 1) % size
    for count in COUNTS:
        x, y, z = values(rank, count, device), *torch.zeros(2, count, device=device)
        sent = dist.isend(x, following)
        dist.recv(y, before)
        sent.wait()
        sent = dist.isend(x + 1, following, tag=3)
        dist.irecv(z, tag=3).wait()
        sent.wait()
        results += [y, z]
        y = torch.zeros(count, device=device)
        for work in dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, x, following), dist.P2POp(dist.irecv, y, before)]
        ):
            work.wait()
        results.append(y)
    return [each.cpu() for each in results]


def asynchronous(device, rank, size):
    """Returns the results of operations that are under way together, and what follows them."""
    tensors = [values(rank, 1000, device, salt) for salt in range(5)]
    works = [dist.all_reduce(x, async_op=True) for x in tensors]
    futures = [work.get_future() for work in works]
    for work in works[:3]:
        work.wait()
    sums = [future.wait()[0] for future in futures]
    for work in works[3:]:
        work.wait()  # Gloo completes the future first
    assert all(work.is_completed() and work.is_success() for work in works)
    return [(x * 2).cpu() for x in tensors] + [x.cpu() for x in sums]


def train(device, rank, size):
    """Returns the parameters after three steps, which DDP has averaged."""
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).to(device)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(3):
        x = values(rank, 20, device, step).view(5, 4) / 20
        model(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [each.detach().cpu() for each in model.state_dict().values()]


def wait_for_pending_work(rank, size):
    """The input is written by work that has not run at the call, and read by work after it."""
    device = device_of(rank)
    x = torch.zeros(4, device=device)
    stream = torch.openreg.Stream(device)
    with torch.openreg.stream(stream), StreamGate() as gate:
        x.fill_(rank + 1)
        opener = threading.Timer(0.2, gate.open)
        opener.start()
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        y = x * 2
        opener.join()
    stream.synchronize()
    return y.tolist()


def meet_the_cpu(rank, size):
    """Rank 0 comes with a tensor of the CPU."""
    x = torch.full((4,), rank + 1.0, device="cpu" if rank == 0 else device_of(rank))
    dist.all_reduce(x)
    dist.barrier()
    dist.monitored_barrier()
    objects = [None] * size
    dist.all_gather_object(objects, rank)
    return x.tolist(), objects, dist.get_backend()


def refuse_two_devices(rank, size):
    x = torch.ones(4, device=f"{DEVICE_TYPE}:0")
    y = torch.ones(4 * size, device=f"{DEVICE_TYPE}:1")
    try:
        dist.all_gather_into_tensor(y, x)
    except ValueError as error:
        return str(error)
    return None


def make_groups(rank, size):
    """Returns the sums of groups that are made in other ways."""
    device = device_of(rank)
    sums = []
    for backend in ("gloo", f"cpu:gloo,{DEVICE_TYPE}:gloo", f"{DEVICE_TYPE}:gloo", NAME):
        group = dist.new_group(backend=backend)
        x = torch.full((4,), rank + 1.0, device=device)
        dist.all_reduce(x, group=group)
        sums.append(x[0].item())
        dist.destroy_process_group(group)
    return sums


class TestGloo(RanksTestCase):
    SIZE = 3

    def run_ranks(self, function, *args):
        cls = type(self)
        if cls.ranks is None or not cls.ranks.is_alive():
            cls.ranks = Ranks(cls.SIZE, backend="gloo")
        return cls.ranks.run(function, *args)

    @parametrize("function", [collectives, messages, asynchronous, train])
    def test_results_are_those_of_the_cpu(self, function):
        self.compare(function)

    def test_pending_work_of_the_current_stream_comes_before(self):
        self.assertEqual(self.run_ranks(wait_for_pending_work), [[12.0] * 4] * 3)

    def test_tensors_of_the_cpu_and_the_device_meet(self):
        expected = ([6.0] * 4, [0, 1, 2], "gloo")
        self.assertEqual(self.run_ranks(meet_the_cpu), [expected] * 3)

    @requires_two_devices
    def test_tensors_of_two_devices_are_refused(self):
        for text in self.run_ranks(refuse_two_devices):
            self.assertIn("gloo: expected tensors on one device", text)

    def test_groups_are_made_by_each_of_their_names(self):
        self.assertEqual(self.run_ranks(make_groups), [[6.0] * 4] * 3)

    def test_the_detailed_log_takes_them(self):
        with Ranks(2, "gloo", environment={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}) as ranks:
            results = ranks.run(meet_the_cpu)
        self.assertEqual(results, [([3.0] * 4, [0, 1], "gloo")] * 2)


instantiate_parametrized_tests(TestGloo)

if __name__ == "__main__":
    run_tests()
