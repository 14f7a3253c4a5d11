"""gloo does not crash on tensors of cuda: it is refused."""

from common import OpenRegTestCase, run_program, run_tests

HEAD = """
import os, tempfile, torch
import torch.distributed as dist
file = os.path.join(tempfile.mkdtemp(), "store")
def begin(backend):
    dist.init_process_group(backend, init_method=f"file://{file}", rank=0, world_size=1)
"""


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

    def test_tensors_on_cuda_raise(self):
        output = self.output_of(
            """
begin("gloo")
for call in (dist.all_reduce, lambda x: dist.broadcast(x, 0), lambda x: dist.all_gather([x], x)):
    try:
        call(torch.ones(2, device="cuda"))
    except RuntimeError as error:
        print(error)
"""
        )
        self.assertEqual(output.count("No backend type associated with device type cuda"), 3)

    def test_gloo_for_cuda_by_name_is_refused(self):
        output = self.output_of(
            """
try:
    begin("cpu:gloo,cuda:gloo")
except ValueError as error:
    print(error)
"""
        )
        self.assertIn("expected another backend than gloo for cuda", output)


if __name__ == "__main__":
    run_tests()
