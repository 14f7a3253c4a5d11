"""nccl is the backend of this package; gloo accepts tensors on cuda, as in a build with CUDA."""

import pytest
import torch
import torch.distributed as dist
from common import (
    OpenRegTestCase,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_program,
    run_tests,
    subtest,
)
from extras.distributed.ranks import Ranks

pytestmark = pytest.mark.sample(0.27)

HEAD = """
import os, tempfile, torch
import torch.distributed as dist
file = os.path.join(tempfile.mkdtemp(), "store")
def begin(backend):
    dist.init_process_group(backend, init_method=f"file://{file}", rank=0, world_size=1)
"""


BITWISE = ("BAND", "BOR", "BXOR")
ONE_HOST = {"NCCL_HOSTID": "one"}


def error_of(call):
    """The type and the text of what the call, or the wait for it, raises."""
    try:
        call()
        for device in range(torch.cuda.device_count()):
            torch.cuda.synchronize(device)
    except Exception as error:
        return type(error).__name__, str(error)
    return "none", ""


def reduce_on_device(rank, size, indexes):
    return error_of(lambda: dist.all_reduce(torch.ones(2, device=f"cuda:{indexes[rank]}")))


def exchange_on_device(rank, size, indexes):
    x = torch.ones(2, device=f"cuda:{indexes[rank]}")
    return error_of(lambda: dist.send(x, 1) if rank == 0 else dist.recv(x, 0))


def reduce_on_devices_in_turn(rank, size):
    for step in range(4):
        index = (rank + step) % size
        error = reduce_on_device(rank, size, [index] * size)
        if error[0] != "none":
            return error
    return "none", ""


def meet_at_a_barrier(rank, size):
    torch.cuda.set_device(0)
    return error_of(dist.barrier)


def call_what_nccl_lacks(rank, size):
    x = torch.ones(2, dtype=torch.int32, device=f"cuda:{rank}")
    calls = [
        *(lambda op=op: dist.all_reduce(x, getattr(dist.ReduceOp, op)) for op in BITWISE),
        lambda: dist.recv(x),
        lambda: dist.irecv(x),
        lambda: dist.all_reduce(x.to(torch.int16)),
    ]
    return [error_of(call) for call in calls]


FUNCTIONS = [subtest(one, name=one.__name__) for one in (reduce_on_device, exchange_on_device)]


@instantiate_parametrized_tests
class TestRulesOfNccl(OpenRegTestCase):
    """What NCCL refuses, by its texts."""

    def run_ranks(self, function, *arguments, environment=ONE_HOST):
        ranks = Ranks(2, environment=environment)
        self.addCleanup(ranks.close)
        return ranks.run(function, *arguments)

    @parametrize("function", FUNCTIONS)
    def test_two_ranks_on_one_device_are_refused(self, function):
        errors = [one for one in self.run_ranks(function, [0, 0]) if one != ("none", "")]
        # A message that has left is no operation of its sender any more.
        self.assertGreaterEqual(len(errors), 2 if function is reduce_on_device else 1)
        for kind, text in errors:
            self.assertEqual(kind, "DistBackendError")
            self.assertIn("ncclInvalidUsage: ", text)
            self.assertRegex(
                text, r"Duplicate GPU detected : rank \d and rank \d both on CUDA device"
            )

    @requires_two_devices
    @parametrize("function", FUNCTIONS)
    def test_ranks_on_different_devices_are_not_refused(self, function):
        self.assertEqual(self.run_ranks(function, [1, 0]), 2 * [("none", "")])

    @requires_two_devices
    def test_ranks_may_use_the_same_devices_in_turn(self):
        self.assertEqual(self.run_ranks(reduce_on_devices_in_turn), 2 * [("none", "")])

    @requires_two_devices
    def test_a_barrier_before_all_else_is_on_the_device_of_the_rank(self):
        self.assertEqual(self.run_ranks(meet_at_a_barrier), 2 * [("none", "")])

    def test_ranks_on_two_hosts_may_have_the_same_index(self):
        results = self.run_ranks(reduce_on_device, [0, 0], environment=None)
        self.assertEqual(results, 2 * [("none", "")])

    def test_calls_that_nccl_lacks_are_refused(self):
        expected = [
            ("ValueError", "Cannot use ReduceOp.BAND with NCCL"),
            ("ValueError", "Cannot use ReduceOp.BOR with NCCL"),
            ("ValueError", "Cannot use ReduceOp.BXOR with NCCL"),
            *2 * [("RuntimeError", "Backend nccl does not support recvAnysource")],
            ("TypeError", "Input tensor data type is not supported for NCCL process group: Short"),
        ]
        for results in self.run_ranks(call_what_nccl_lacks):
            self.assertEqual([(kind, text.splitlines()[0]) for kind, text in results], expected)


class TestNccl(OpenRegTestCase):
    def output_of(self, code: str) -> str:
        return run_program(HEAD + code).stdout

    def test_torch_finds_what_builds_with_nccl_have(self):
        output = self.output_of(
            """
from datetime import timedelta
begin("nccl")
c10d = dist.distributed_c10d
group = c10d._get_default_group()
backend = group._get_backend(torch.device("cuda"))
print(dist.is_nccl_available(), dist.get_backend(), group.name(), backend.name())
print(isinstance(backend, dist.ProcessGroupNCCL), type(backend.options).__name__)
print(backend.options._timeout)
dist.all_reduce(torch.ones(2, device="cuda"))
print(group._get_sequence_number_for_group(), c10d._get_process_group_uid(group) > 0)
options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
part = dist.new_group([0], timeout=timedelta(seconds=5), pg_options=options)
c10d._set_pg_timeout(timedelta(seconds=9), part)
backend = part._get_backend(torch.device("cuda"))
print(backend.options._timeout, backend.options.is_high_priority_stream)
c10d._abort_process_group()
print(dist.is_initialized())
"""
        )
        self.assertEqual(
            output.splitlines(),
            [
                "True nccl nccl nccl",
                "True Options",
                "0:10:00",
                "1 True",
                "0:00:09 True",
                "False",
            ],
        )

    def test_there_is_a_version_of_nccl_which_profilers_write_down(self):
        output = self.output_of(
            """
import json
begin("nccl")
with torch.profiler.profile() as profiler:
    dist.all_reduce(torch.ones(2, device="cuda"))
profiler.export_chrome_trace(file + ".json")
trace = json.load(open(file + ".json"))
print(torch.cuda.nccl.version(), trace["distributedInfo"]["nccl_version"])
"""
        )
        self.assertEqual(output, "(2, 23, 4) 2.23.4\n")

    def test_objects_are_hashed_for_the_detailed_log(self):
        output = self.output_of(
            """
dist.set_debug_level(dist.DebugLevel.DETAIL)
begin("nccl")
objects = [None]
dist.all_gather_object(objects, {"a": 1})
hash_tensors = torch._C._distributed_c10d._hash_tensors
x = torch.arange(3.0, device="cuda")
print(objects, hash_tensors([x]) == hash_tensors([x + 0]), hash_tensors([x]) == hash_tensors([-x]))
"""
        )
        self.assertEqual(output, "[{'a': 1}] True False\n")

    def test_what_only_nccl_has_is_refused(self):
        output = self.output_of(
            """
begin("nccl")
backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cuda"))
for call in (
    lambda: dist.ProcessGroupNCCL.Options().config,
    lambda: backend.register_mem_pool(torch.cuda.MemPool()),
):
    try:
        call()
    except NotImplementedError as error:
        print(error)
dist.destroy_process_group()
"""
        )
        self.assertEqual(output.count("not available on emulated CUDA: "), 2, output)


class TestGloo(OpenRegTestCase):
    def output_of(self, code: str) -> str:
        return run_program(HEAD + code).stdout

    def test_tensors_on_the_cpu_are_served(self):
        self.assertEqual(
            self.output_of(
                "begin('gloo'); x = torch.ones(2); dist.all_reduce(x); print(x.tolist())"
            ).strip(),
            "[1.0, 1.0]",
        )

    def test_tensors_on_cuda_are_served(self):
        output = self.output_of(
            """
begin("gloo")
for call in (dist.all_reduce, lambda x: dist.broadcast(x, 0), lambda x: dist.all_gather([x], x)):
    x = torch.ones(2, device="cuda")
    call(x)
    print(x.tolist(), dist.get_backend())
"""
        )
        self.assertEqual(output, 3 * "[1.0, 1.0] gloo\n")

    def test_gloo_for_cuda_can_be_named(self):
        output = self.output_of(
            """
begin("cpu:gloo,cuda:gloo")
x = torch.ones(2, device="cuda")
dist.all_reduce(x)
print(x.tolist())
"""
        )
        self.assertEqual(output, "[1.0, 1.0]\n")


if __name__ == "__main__":
    run_tests()
