"""Ranks that are threads of one process, as torch's own tests have them, on the device.

The group is torch's, in Python, and copies tensors from thread to thread; this backend is not used.
"""

import threading

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from common import DEVICE_COUNT, DEVICE_TYPE, run_tests
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.testing._internal.common_distributed import MultiThreadedTestCase

WIDTH = 8

# Threads share the CPU's generator.
_making_models = threading.Lock()


def train(device, size):
    """Trains two layers that share their work among the ranks."""
    with _making_models:
        torch.manual_seed(2)
        model = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))
    mesh = init_device_mesh(device.type, (size,))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(model.to(device), mesh, plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    results = []
    for step in range(2):
        x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(step))
        loss = model(x.to(device)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        results.append(loss.detach().cpu())
    return results + [parameter.detach().full_tensor().cpu() for parameter in model.parameters()]


# docs: distributed-threads
class TestThreadedRanks(MultiThreadedTestCase):
    @property
    def world_size(self):
        return 4

    @property
    def device(self):
        return torch.device(DEVICE_TYPE, self.rank % DEVICE_COUNT)

    def setUp(self):
        super().setUp()
        self._spawn_threads()

    def perThreadSetUp(self):
        super().perThreadSetUp()
        torch.openreg.set_device(self.device.index)

    # docs: end

    def share_one_device(self):
        # torch keeps for all threads what fake tensors say of a device without an index.
        torch.openreg.set_device(0)
        return torch.device(DEVICE_TYPE, 0)

    def assert_values(self, tensor, values):
        self.assertEqual(tensor.device, self.device)
        self.assertEqual(tensor.cpu().tolist(), values)

    def test_collectives(self):
        rank, size = self.rank, self.world_size
        everyone = [float(peer) for peer in range(size)]
        x = torch.tensor([float(rank)], device=self.device)

        total = x.clone()
        dist.all_reduce(total)
        self.assert_values(total, [sum(everyone)])

        outs = [torch.empty_like(x) for _ in range(size)]
        dist.all_gather(outs, x)
        self.assert_values(torch.cat(outs), everyone)

        out = torch.empty(size, device=self.device)
        dist.all_gather_into_tensor(out, x)
        self.assert_values(out, everyone)

        y = x.clone()
        dist.broadcast(y, size - 1)
        self.assert_values(y, [everyone[-1]])

        parts = out + rank
        y = torch.empty_like(x)
        dist.reduce_scatter_tensor(y, parts)
        self.assert_values(y, [float(size * rank) + sum(everyone)])

        y = torch.empty_like(x)
        dist.scatter(y, list(parts.split(1)) if rank == 1 else None, 1)
        self.assert_values(y, [rank + 1.0])

        outs = [torch.empty_like(x) for _ in range(size)] if rank == 2 else None
        dist.gather(x, outs, 2)
        if outs is not None:
            self.assert_values(torch.cat(outs), everyone)

        y = torch.empty_like(parts)
        dist.all_to_all_single(y, parts)
        self.assert_values(y, [rank + peer for peer in everyone])

        y = functional.all_reduce(x, "max", dist.group.WORLD)
        self.assert_values(y + 0, [everyone[-1]])

    def test_a_collective_reads_what_kernels_of_all_ranks_compute(self):
        x = torch.zeros(1000, device=self.device)
        for _ in range(20):
            x += 1
            y = x.clone()
            dist.all_reduce(y)
            x = y / self.world_size
        self.assert_values(x, [20.0] * 1000)

    def test_distributed_tensors(self):
        device = self.share_one_device()
        mesh = init_device_mesh(DEVICE_TYPE, (self.world_size,))
        whole = torch.arange(48.0).reshape(6, 8)
        x = distribute_tensor(whole.to(device), mesh, [Shard(0)])
        columns = x.redistribute(placements=[Shard(1)])
        self.assertEqual(columns.to_local().cpu(), whole.chunk(self.world_size, 1)[self.rank])
        y = x @ columns.t().redistribute(placements=[Replicate()])
        self.assertIsInstance(y, DTensor)
        self.assertEqual(y.full_tensor().cpu(), whole @ whole.t(), rtol=0, atol=0)

    def test_training_has_the_bits_of_the_cpu(self):
        expected = train(torch.device("cpu"), self.world_size)
        results = train(self.share_one_device(), self.world_size)
        self.assertEqual(results, expected, rtol=0, atol=0)


if __name__ == "__main__":
    run_tests()
