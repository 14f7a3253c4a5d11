"""Groups of the backend ``fake``, whose collectives do nothing: for tests of one process."""

import torch
import torch.distributed as dist
from common import DEVICE_TYPE, OpenRegTestCase, run_tests
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore


class TestFake(OpenRegTestCase):
    def setUp(self):
        super().setUp()
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)

    def tearDown(self):
        dist.destroy_process_group()
        super().tearDown()

    def test_collectives_take_tensors_of_the_device(self):
        x = torch.ones(4, device=DEVICE_TYPE)
        dist.all_reduce(x)
        dist.broadcast(x, 0)
        gathered = torch.empty(16, device=DEVICE_TYPE)
        dist.all_gather_into_tensor(gathered, x)
        dist.barrier()
        self.assertEqual(x.tolist(), [1, 1, 1, 1])

    def test_sharded_module_is_trained(self):
        model = torch.nn.Linear(8, 8).to(DEVICE_TYPE)
        fully_shard(model, mesh=init_device_mesh(DEVICE_TYPE, (4,)))
        model(torch.ones(2, 8, device=DEVICE_TYPE)).sum().backward()
        self.assertEqual(model.weight.grad.to_local().shape, (2, 8))

    def test_module_is_split(self):
        mesh = init_device_mesh(DEVICE_TYPE, (4,))
        model = parallelize_module(torch.nn.Linear(8, 8).to(DEVICE_TYPE), mesh, ColwiseParallel())
        self.assertEqual(model(torch.ones(2, 8, device=DEVICE_TYPE)).shape, (2, 2))


if __name__ == "__main__":
    run_tests()
