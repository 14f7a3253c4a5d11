"""The sanitizer finds buffers that are used while their collective is in flight."""

import linecache

import torch
import torch.distributed as dist
from common import TestCase, instantiate_parametrized_tests, parametrize, run_tests
from extras.distributed.ranks import Ranks, device_of

from torch_openreg.extras.sanitizer import sanitizer

# Each program issues collectives, and waits too late unless it is right.


def result_is_changed(device, rank, size, right):
    x = torch.ones(4, device=device)
    work = dist.all_reduce(x, async_op=True)  # <1>
    if right:
        work.wait()
    x.add_(1)  # <2>
    work.wait()


def result_is_read(device, rank, size, right):
    x, out = torch.ones(4, device=device), torch.empty(4 * size, device=device)
    work = dist.all_gather_into_tensor(out, x, async_op=True)  # <1>
    if right:
        work.wait()
    out.sum()  # <2>
    work.wait()


def input_is_changed(device, rank, size, right):
    x, out = torch.ones(4 * size, device=device), torch.empty(4, device=device)
    work = dist.reduce_scatter_tensor(out, x, async_op=True)  # <1>
    if right:
        work.wait()
    x.zero_()  # <2>
    work.wait()


def bucket_is_refilled(device, rank, size, right):
    bucket = torch.ones(8, device=device)
    with dist._coalescing_manager(async_ops=True) as batch:
        for part in bucket.chunk(2):
            dist.all_reduce(part)
    # A batch is issued where it ends, and the line of its last frame is in torch.
    if right:
        batch.wait()
    bucket[2:6].fill_(2)  # <2>
    batch.wait()


def message_is_changed(device, rank, size, right):
    x, y = torch.ones(4, device=device), torch.empty(4, device=device)
    sent = dist.isend(x, (rank + 1) % size)  # <1>
    received = dist.irecv(y, (rank - 1) % size)
    if right:
        sent.wait()
    x.zero_()  # <2>
    sent.wait()
    received.wait()


def input_is_read(device, rank, size, right):
    """Right in any case: both only read."""
    x, out = torch.ones(4, device=device), torch.empty(4 * size, device=device)
    work = dist.all_gather_into_tensor(out, x, async_op=True)
    x.sum()
    work.wait()
    out.sum()


MISTAKES = (
    result_is_changed,
    result_is_read,
    input_is_changed,
    bucket_is_refilled,
    message_is_changed,
)


def findings_of(rank, size, name, right):
    """Returns of each finding its kind, the comments of the lines that it names, and its fix."""
    sanitizer.clear()
    with sanitizer.check("collect"):
        globals()[name](device_of(rank), rank, size, right)
        torch.accelerator.synchronize()
    marks = []
    for finding in sanitizer.findings():
        later, earlier = finding.accesses
        lines = [linecache.getline(one.filename, one.lineno) for one in (earlier, later)]
        comments = [line.partition("# ")[2].strip() for line in lines]
        marks.append((finding.kind, *comments, finding.fix))
    return marks


class TestSanitizer(TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.ranks = Ranks(2)

    @classmethod
    def tearDownClass(cls):
        cls.ranks.close()
        super().tearDownClass()

    @parametrize("program", MISTAKES, name_fn=lambda program: program.__name__)
    def test_a_buffer_that_is_used_too_early_is_a_race_and_the_right_program_is_silent(
        self, program
    ):
        name = program.__name__
        self.assertEqual(self.ranks.run(findings_of, name, True), [[], []])
        for marks in self.ranks.run(findings_of, name, False):
            self.assertGreater(len(marks), 0)
            for kind, earlier, later, fix in marks:
                self.assertEqual(kind, "race")
                self.assertIn("work.wait()", fix)
                self.assertEqual(later, "<2>")
                if program is not bucket_is_refilled:
                    self.assertEqual(earlier, "<1>")

    def test_reading_what_a_collective_reads_is_right(self):
        self.assertEqual(self.ranks.run(findings_of, "input_is_read", False), [[], []])


instantiate_parametrized_tests(TestSanitizer)

if __name__ == "__main__":
    run_tests()
