"""What torch builds on collectives: each runs on the device and on the CPU, with the same bits."""

import contextlib
import os
import tempfile

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as checkpoint
from common import instantiate_parametrized_tests, parametrize, run_tests
from extras.distributed.ranks import RanksTestCase, device_of
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffload,
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.sample(0.085)

WIDTH = 8
BATCH = 4
STEPS = 3


class Net(nn.Module):
    """Two layers, and optionally one that is used in every other step."""

    def __init__(self, is_uneven=False):
        super().__init__()
        self.first = nn.Linear(WIDTH, 2 * WIDTH)
        self.norm = nn.LayerNorm(2 * WIDTH)
        self.second = nn.Linear(2 * WIDTH, WIDTH)
        self.sometimes = nn.Linear(WIDTH, WIDTH) if is_uneven else None

    def forward(self, x, step=0):
        y = self.second(self.norm(self.first(x)).relu())
        return self.sometimes(y) if self.sometimes is not None and step % 2 else y


def make(device, **options):
    torch.manual_seed(7)
    return Net(**options).to(device)


def batch(rank, step, device):
    """Returns a rank's input of a step; the same on each device."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(BATCH, WIDTH, generator=generator).to(device)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def plain(tensor):
    """Returns a copy of a tensor on the CPU, whole if it was distributed."""
    tensor = tensor.detach()
    # FSDP frees the memory that the parameters have now.
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).cpu().clone()


def train(model, optimizer, rank, device, steps=STEPS):
    """Trains; returns the losses and the parameters, on the CPU."""
    results = []
    for step in range(steps):
        loss = model(batch(rank, step, device), step).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        results.append(plain(loss))
    return results + [plain(parameter) for parameter in model.parameters()]


def compiled(function, **options):
    torch._dynamo.reset()
    return torch.compile(function, **options)


# --- DistributedDataParallel


def hooked(hook, state=None):
    return lambda model: model.register_comm_hook(state, hook)


def bf16_under_another_name(state, bucket):
    # torch requires NCCL for the hook, which it identifies by its name.
    return default_hooks.bf16_compress_hook(state, bucket)


def low_rank(model):
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=1
    )
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


DDP = {
    "plain": ({}, None),
    "views of buckets": ({"gradient_as_bucket_view": True}, None),
    "static graph": ({"static_graph": True}, None),
    "unused parameters": ({"find_unused_parameters": True}, None),
    "small buckets": ({"bucket_cap_mb": 0.0001}, None),
    "allreduce hook": ({}, hooked(default_hooks.allreduce_hook)),
    "fp16 hook": ({}, hooked(default_hooks.fp16_compress_hook)),
    "bf16 hook": ({}, hooked(bf16_under_another_name)),
    "PowerSGD": ({}, low_rank),
}


def train_ddp(device, rank, size, name, is_compiled=False):
    options, register = DDP[name]
    model = DistributedDataParallel(make(device, is_uneven=name == "unused parameters"), **options)
    if is_compiled:
        model = compiled(model)
    if register is not None:
        register(model)
    return train(model, sgd(model.parameters()), rank, device)


def accumulate(device, rank, size):
    model = DistributedDataParallel(make(device))
    optimizer = sgd(model.parameters())
    for step in range(4):
        with model.no_sync() if step % 2 == 0 else contextlib.nullcontext():
            model(batch(rank, step, device)).square().mean().backward()
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()
    return [plain(parameter) for parameter in model.parameters()]


def join_unevenly(device, rank, size):
    """Ranks have different numbers of batches."""
    model = DistributedDataParallel(make(device))
    optimizer = sgd(model.parameters())
    with model.join():
        for step in range(2 + rank):
            model(batch(rank, step, device)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return [plain(parameter) for parameter in model.parameters()]


def train_with_zero(device, rank, size):
    model = DistributedDataParallel(make(device))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    return train(model, optimizer, rank, device)


def ddp_log(rank, size):
    """The log of DistributedDataParallel has times that its timer measured on the device."""
    model = DistributedDataParallel(make(device_of(rank)))
    train(model, sgd(model.parameters()), rank, device_of(rank), steps=5)
    log = model._get_ddp_logging_data()
    return [
        log[f"avg_{what}_time"] > 0
        for what in ("forward_compute", "backward_compute", "backward_comm")
    ]


# --- Sharded models


FSDP1 = {
    "plain": {},
    "gradients": {"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP},
    "mixed precision": {
        "mixed_precision": MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    },
    "offload": {"cpu_offload": CPUOffload(offload_params=True)},
    "hybrid": {"sharding_strategy": ShardingStrategy.HYBRID_SHARD},
}


def train_fsdp1(device, rank, size, name):
    # On the CPU, torch waits for a stream that cannot be waited for.
    options = {} if name == "offload" and device.type == "cpu" else dict(FSDP1[name])
    if name == "hybrid":
        options["device_mesh"] = init_device_mesh(
            device.type, (2, size // 2), mesh_dim_names=("copies", "shards")
        )
    model = FullyShardedDataParallel(
        make(device), device_id=device, use_orig_params=True, **options
    )
    optimizer = sgd(model.parameters())
    losses = train(model, optimizer, rank, device)[:STEPS]
    with FullyShardedDataParallel.summon_full_params(model):
        return losses + [plain(parameter) for parameter in model.parameters()]


FSDP2 = {
    "plain": {},
    "mixed precision": {
        "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    },
    "offload": {"offload_policy": CPUOffloadPolicy()},
    "hybrid": {},
}


def shard(device, size, name="plain"):
    model = make(device)
    shape, names = ((2, size // 2), ("copies", "shards")) if name == "hybrid" else ((size,), None)
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=names)
    options = FSDP2[name]
    if name == "offload" and device.type == "cpu":
        options = {}
    for layer in (model.first, model.second):
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def whole(tensor, device):
    """As plain(), of parameters that may be offloaded: gathered on the device."""
    tensor = tensor.detach()
    return plain(tensor.to(device) if isinstance(tensor, DTensor) else tensor)


def train_fsdp2(device, rank, size, name, is_compiled=False):
    model = shard(device, size, name)
    if is_compiled:
        model = compiled(model)
    optimizer = sgd(model.parameters())
    results = []
    for step in range(STEPS):
        loss = model(batch(rank, step, device)).square().mean()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        results += [plain(loss), whole(norm, device)]
    return results + [whole(parameter, device) for parameter in model.parameters()]


# --- Parallel in other ways


def train_tensor_parallel(device, rank, size):
    model = make(device)
    mesh = init_device_mesh(device.type, (size,))
    model.norm = nn.Identity()  # it would need the output of the first layer whole
    parallelize_module(model, mesh, {"first": ColwiseParallel(), "second": RowwiseParallel()})
    return train(model, sgd(model.parameters()), 0, device)


SCHEDULES = {"GPipe": ScheduleGPipe, "1F1B": Schedule1F1B}


def train_pipeline(device, rank, size, name):
    torch.manual_seed(3)
    stages = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(size)]
    stage = PipelineStage(stages[rank].to(device), rank, size, device)
    schedule = SCHEDULES[name](stage, 4, loss_fn=lambda y, target: (y - target).square().mean())
    optimizer = sgd(stages[rank].parameters())
    losses = []
    for step in range(STEPS):
        if rank == 0:
            schedule.step(batch(0, step, device))
        elif rank == size - 1:
            schedule.step(target=batch(1, step, device), losses=losses)
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()
    return [plain(value) for value in (*losses, *stages[rank].parameters())]


# --- Checkpoints and functions


def save_and_load(device, rank, size, folder, is_async):
    """A sharded model is saved, and loaded into one that is not."""
    model = shard(device, size)
    state = {"model": model.state_dict()}
    if is_async:
        checkpoint.async_save(state, checkpoint_id=f"{folder}/{device.type}").result()
    else:
        checkpoint.save(state, checkpoint_id=f"{folder}/{device.type}")
    torch.manual_seed(1)
    other = Net().to(device)
    state = {"model": other.state_dict()}
    checkpoint.load(state, checkpoint_id=f"{folder}/{device.type}")
    other.load_state_dict(state["model"])
    for loaded, saved in zip(other.parameters(), make(device).parameters(), strict=True):
        assert torch.equal(loaded, saved)
    return [plain(parameter) for parameter in other.parameters()]


def reshard(device, rank, size, folder):
    """A tensor is saved in one layout, and loaded in others, also of another mesh."""
    flat = init_device_mesh(device.type, (size,))
    square = init_device_mesh(device.type, (2, size // 2))
    expected = torch.arange(6.0 * (2 * size + 1)).view(-1, 6)
    saved = distribute_tensor(expected.to(device), flat, [Shard(0)])
    checkpoint.save({"x": saved}, checkpoint_id=f"{folder}/{device.type}")
    results = []
    for mesh, placements in (
        (flat, [Shard(1)]),
        (flat, [Replicate()]),
        (square, [Shard(0), Shard(1)]),
        (square, [Replicate(), Shard(0)]),
    ):
        x = distribute_tensor(torch.zeros_like(expected, device=device), mesh, placements)
        checkpoint.load({"x": x}, checkpoint_id=f"{folder}/{device.type}")
        assert torch.equal(plain(x), expected)
        results.append(x.to_local().cpu())
    return results


def use_functions(device, rank, size, backend):
    """Collectives as functions of tensors, with gradients and compiled."""

    def function(x):
        total = functional.all_reduce(x * 2, "sum", dist.group.WORLD)
        parts = functional.reduce_scatter_tensor(total + 1, "sum", 0, dist.group.WORLD)
        return functional.all_gather_tensor(parts * 3, 0, dist.group.WORLD)

    if backend is not None:
        function = compiled(function, backend=backend, fullgraph=True)
    return [plain(function(batch(rank, step, device))) for step in range(2)]


def sync_batch_norm(rank, size):
    """Ranks with parts of a batch compute what one rank does with the whole."""
    device = device_of(rank)
    torch.manual_seed(5)
    one = nn.BatchNorm1d(WIDTH).to(device)
    many = nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(WIDTH).to(device))
    parts = [batch(each, 0, device) for each in range(size)]
    inputs = torch.cat(parts).requires_grad_()
    part = parts[rank].clone().requires_grad_()
    one(inputs).pow(3).sum().backward()
    model = DistributedDataParallel(many)
    model(part).pow(3).sum().backward()
    own = slice(rank * BATCH, (rank + 1) * BATCH)
    pairs = [
        (part.grad, inputs.grad[own]),
        (many.running_mean, one.running_mean),
        (many.running_var, one.running_var),
        (many.weight.grad * size, one.weight.grad),
    ]
    return max(((a - b).abs() / (1 + b.abs())).max().item() for a, b in pairs)


class TestTraining(RanksTestCase):
    @parametrize("name", DDP)
    def test_ddp(self, name):
        self.compare(train_ddp, name)

    def test_ddp_without_synchronization_of_some_steps(self):
        self.compare(accumulate)

    def test_ddp_with_uneven_inputs(self):
        self.compare(join_unevenly)

    def test_ddp_logs_times_of_the_device(self):
        self.assertEqual(self.run_ranks(ddp_log), [[True] * 3] * 2)

    def test_zero_redundancy_optimizer(self):
        self.compare(train_with_zero)

    @parametrize("name", [name for name in FSDP1 if name != "hybrid"])
    def test_fsdp1(self, name):
        self.compare(train_fsdp1, name)

    @parametrize("name", FSDP2)
    def test_fsdp2(self, name):
        self.compare(train_fsdp2, name)

    def test_tensor_parallel(self):
        self.compare(train_tensor_parallel)

    @parametrize("name", SCHEDULES)
    def test_pipeline(self, name):
        self.compare(train_pipeline, name)

    @parametrize("is_async", [False, True])
    def test_checkpoints(self, is_async):
        with tempfile.TemporaryDirectory() as folder:
            self.compare(save_and_load, folder, is_async)

    @parametrize("function", [train_ddp, train_fsdp2])
    def test_compiled_model(self, function):
        self.compare(function, "plain", True)

    @parametrize("backend", [None, "aot_eager", "inductor"])
    def test_functional_collectives(self, backend):
        self.compare(use_functions, backend)

    def test_sync_batch_norm(self):
        for difference in self.run_ranks(sync_batch_norm):
            self.assertLess(difference, 1e-5)


# The rest, which takes time, in a full run.
IS_FULL = bool(os.environ.get("OPENREG_TEST_FULL"))


class TestFourRanks(RanksTestCase):
    """Where more than one other rank makes a difference: sums in parts, meshes of two by two."""

    SIZE = 4

    @parametrize("name", DDP if IS_FULL else ["plain"])
    def test_ddp(self, name):
        self.compare(train_ddp, name)

    def test_ddp_with_uneven_inputs(self):
        self.compare(join_unevenly)

    @parametrize("name", FSDP2 if IS_FULL else ["hybrid"])
    def test_fsdp2(self, name):
        self.compare(train_fsdp2, name)

    @pytest.mark.slow("name_hybrid")
    @parametrize("name", FSDP1 if IS_FULL else ["hybrid"])
    def test_fsdp1(self, name):
        self.compare(train_fsdp1, name)

    def test_zero_redundancy_optimizer(self):
        self.compare(train_with_zero)

    def test_checkpoints_of_another_layout(self):
        with tempfile.TemporaryDirectory() as folder:
            self.compare(reshard, folder)

    @parametrize("name", SCHEDULES if IS_FULL else ["1F1B"])
    def test_pipeline(self, name):
        self.compare(train_pipeline, name)


instantiate_parametrized_tests(TestTraining)
instantiate_parametrized_tests(TestFourRanks)

if __name__ == "__main__":
    run_tests()
