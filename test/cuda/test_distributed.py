"""nccl is the backend of this package; gloo accepts tensors on cuda, as in a build with CUDA."""

from common import OpenRegTestCase, run_program, run_tests

HEAD = """
import os, tempfile, torch
import torch.distributed as dist
file = os.path.join(tempfile.mkdtemp(), "store")
def begin(backend):
    dist.init_process_group(backend, init_method=f"file://{file}", rank=0, world_size=1)
"""


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
