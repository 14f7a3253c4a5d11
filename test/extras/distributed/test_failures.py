"""A failure on one rank becomes one clear error on all, never a hang or a wrong number."""

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from contextlib import suppress
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from common import DEVICE_TYPE, TestCase, run_tests
from extras.distributed.ranks import BACKEND, LIMIT_S, NAME, Ranks, device_of
from torch.distributed import DistBackendError

from torch_openreg.distributed import monitored_barrier
from torch_openreg.testing import StreamGate

pytestmark = pytest.mark.sample(0.03)


def failure_of(function):
    """Returns the text of the error of the group that a function ends with."""
    try:
        function()
        torch.openreg.synchronize()
    except DistBackendError as error:
        return str(error)
    raise AssertionError("expected a DistBackendError, got none")


def fail_kernel(device):
    """Enqueues a kernel that fails."""
    torch.ones(3, device=device)[torch.tensor([7], device=device)]


# --- A collective that one rank loses


def lose_a_collective(rank, size):
    device = device_of(rank)
    x = torch.full((2,), 10.0**rank, device=device)
    if rank == 0:
        # Its first collective never runs, as an index is out of range before it. The program
        # catches that, and continues with the second.
        fail_kernel(device)
        # Whether the group has received it by then depends on timing.
        with suppress(IndexError, DistBackendError):
            dist.all_reduce(x, async_op=True).wait()
        with suppress(IndexError, DistBackendError):
            torch.openreg.synchronize()
        y = torch.full((2,), 5.0, device=device)
        return failure_of(lambda: dist.all_reduce(y)), y.cpu().tolist()
    return failure_of(lambda: dist.all_reduce(x)), None


def lose_a_collective_on_the_current_stream(rank, size):
    device = device_of(rank)
    x = torch.ones(2, device=device)
    if rank == 0:
        fail_kernel(device)
        with suppress(IndexError, DistBackendError):
            dist.all_reduce(x)
        with suppress(IndexError, DistBackendError):
            torch.openreg.synchronize()
    return failure_of(lambda: dist.all_reduce(x))


# --- Ranks that do not come, or not with the same


def come_late(rank, size, is_async):
    device = device_of(rank)
    x = torch.ones(2, device=device)
    dist.all_reduce(x)
    torch.openreg.synchronize()
    if rank == size - 1:
        return "late"
    return failure_of(lambda: dist.all_reduce(x, async_op=is_async))


def message_alone(rank, size, what):
    x = torch.ones(2, device=device_of(rank))
    dist.all_reduce(x)
    torch.openreg.synchronize()
    if rank == 1:
        return None
    calls = {
        "send": lambda: dist.send(x, 1, tag=5),
        "receive": lambda: dist.recv(x, 1, tag=5),
        "receive from any rank": lambda: dist.recv(x, tag=5),
    }
    return failure_of(calls[what])


def wait_in_queue(rank, size):
    """The time of a collective counts from its start on the stream."""
    x = torch.ones(2, device=device_of(rank))
    with StreamGate() as gate:
        work = dist.all_reduce(x, async_op=True)
        try:
            work.wait(timedelta(seconds=2.5))
        except DistBackendError as error:
            assert "wait: timed out after 2500 ms waiting for operation" in str(error), error
        gate.open()
    work.wait()
    return x[0].item()


def extend(rank, size, is_used):
    """The operations until the first of them is over may take longer."""
    device = device_of(rank)
    dist.distributed_c10d._get_default_group()._get_backend(device)._add_ephemeral_timeout(
        timedelta(seconds=30)
    )
    if is_used:
        dist.all_reduce(torch.ones(2, device=device))
        torch.openreg.synchronize()
    return failure_of(lambda: dist.all_reduce(torch.ones(2 + rank, device=device)))


def mismatch(rank, size, what):
    device = device_of(rank)
    is_odd = rank == 1

    def call():
        if what.startswith("size"):
            counts = {"size": (4000, 5000), "size, eager": (4, 5), "size, one eager": (4, 4000)}
            dist.all_reduce(torch.ones(counts[what][is_odd], device=device))
        elif what == "dtype":
            dist.all_reduce(torch.ones(4, device=device).to(torch.int32 if is_odd else torch.float))
        elif what == "reduction":
            op = dist.ReduceOp.MAX if is_odd else dist.ReduceOp.SUM
            dist.all_reduce(torch.ones(4, device=device), op)
        elif what == "root":
            dist.broadcast(torch.ones(4, device=device), 1 if is_odd else 0)
        elif what == "kind":
            x = torch.ones(4, device=device)
            dist.broadcast(x, 0) if is_odd else dist.all_reduce(x)
        elif what == "splits":
            sizes = [3] * size if is_odd else [2] * size
            out = torch.empty(sum(sizes), device=device)
            dist.all_to_all_single(out, torch.ones(2 * size, device=device), sizes, [2] * size)
        elif what == "count":
            with dist._coalescing_manager():
                for _ in range(3 if is_odd else 2):
                    dist.all_reduce(torch.ones(4, device=device))
        elif what == "order in a batch":
            with dist._coalescing_manager():
                for count in (4, 5) if is_odd else (5, 4):
                    dist.all_reduce(torch.ones(count, device=device))
        elif what == "message":
            if rank == 0:
                dist.send(torch.ones(4, device=device), 1)
            elif rank == 1:
                dist.recv(torch.ones(2, device=device), 0)
            else:
                dist.barrier()

    return failure_of(call)


# --- Ends


def be_aborted(rank, size):
    """Rank 1 waits, and rank 0 aborts."""
    x = torch.ones(2, device=device_of(rank))
    dist.all_reduce(x)
    torch.openreg.synchronize()
    if rank == 0:
        dist.distributed_c10d._get_default_group().abort()
        return None
    return failure_of(lambda: dist.all_reduce(x))


def abort_alone(rank, size):
    """Rank 0 waits for ranks that never come, and is freed by abort()."""
    x = torch.ones(2, device=device_of(rank))
    group = dist.distributed_c10d._get_default_group()
    if rank == 0:
        work = dist.all_reduce(x, async_op=True)
        group.abort()
        first = failure_of(work.wait)
        return first, failure_of(lambda: dist.all_reduce(x))
    return None


def call_after_failure(rank, size):
    first = mismatch(rank, size, "size")
    x = torch.ones(2, device=device_of(rank))
    again = [
        failure_of(lambda: dist.all_reduce(x)),
        failure_of(lambda: dist.barrier(device_ids=[x.device.index])),
    ]
    # Work outside of the group continues, and so does a new group.
    assert (x + 1).sum().item() == 4
    group = dist.new_group(timeout=timedelta(seconds=60))
    dist.all_reduce(x, group=group)
    return first, again, x[0].item()


def monitored(rank, size):
    if rank == 0:
        return failure_of(lambda: monitored_barrier(timeout=timedelta(seconds=2)))
    return None


def receive_from_the_dead(rank, size):
    x = torch.ones(2, device=device_of(rank))
    dist.all_reduce(x)
    torch.openreg.synchronize()
    if rank == 1:
        return "ready to die"
    return failure_of(lambda: dist.recv(x, 1))


def wait_for_the_dead(rank, size):
    x = torch.ones(2, device=device_of(rank))
    dist.all_reduce(x)
    torch.openreg.synchronize()
    if rank == 1:
        return "ready to die"
    return failure_of(lambda: dist.all_reduce(x))


def fork_child(rank, size):
    x = torch.ones(2, device=device_of(rank))
    dist.all_reduce(x)
    torch.openreg.synchronize()
    process = os.fork()
    if process == 0:
        try:
            dist.all_reduce(x)
        except RuntimeError as error:
            os._exit(3 if "forked subprocess" in str(error) else 4)
        os._exit(5)
    status = os.waitpid(process, 0)[1]
    dist.all_reduce(x)
    return os.waitstatus_to_exitcode(status), x[0].item()


class TestFailures(TestCase):
    def texts(self, size, function, *args, timeout_s=LIMIT_S):
        with Ranks(size, timeout_s=timeout_s) as ranks:
            return ranks.run(function, *args)

    def test_a_lost_collective_does_not_pair_with_the_next(self):
        (text, values), (other, _) = self.texts(2, lose_a_collective)
        self.assertEqual(values, [5.0, 5.0])
        self.assertIn("all_reduce failed: skipped, because", text)
        self.assertIn("Operation 1 of group '", text)
        self.assertIn("rank 0 has failed: all_reduce failed: skipped, because", other)

    def test_a_lost_collective_on_the_current_stream_fails_all_ranks(self):
        for text in self.texts(4, lose_a_collective_on_the_current_stream):
            self.assertIn("skipped, because an earlier kernel on its stream failed", text)

    def test_ranks_that_come_late_are_named(self):
        for is_async in (False, True):
            first, second = self.texts(3, come_late, is_async, timeout_s=2)[:2]
            # One of the two may receive the other's failure before its own timeout.
            self.assertTrue(
                any("timed out waiting for ranks [2]" in text for text in (first, second))
            )
            for text in (first, second):
                self.assertIn("Operation 2 of group", text)
                self.assertIn("[2]", text)

    def test_messages_that_nobody_answers_are_named(self):
        expected = {
            "send": "send failed: timed out while sending the message with tag 5 to rank 1",
            "receive": "recv failed: timed out while waiting for the message with tag 5 from rank",
            "receive from any rank": (
                "recv failed: timed out while waiting for a message with tag 5 from any rank"
            ),
        }
        for what, words in expected.items():
            text, _ = self.texts(2, message_alone, what, timeout_s=2)
            self.assertIn(words, text)
            self.assertIn("Operation 2 of group", text)

    def test_time_in_the_queue_does_not_count(self):
        self.assertEqual(self.texts(2, wait_in_queue, timeout_s=2), [2.0, 2.0])

    def test_a_timeout_can_be_extended_for_once(self):
        for is_used, seconds in ((False, 40), (True, 10)):
            for text in self.texts(2, extend, is_used, timeout_s=10):
                self.assertIn(f", its timeout is {seconds}.0 s.", text)

    def test_mismatches_are_found_before_data_travels(self):
        expected = {
            "size": "bytes",
            "size, eager": "bytes",
            "size, one eager": "bytes",
            "dtype": "dtype",
            "reduction": "ranks disagree on the reduction: ",
            "root": "root",
            "kind": "ranks disagree on the operation: ",
            "splits": "bytes",
            "count": "ranks disagree on the number of coalesced operations: ",
            "order in a batch": "the coalesced operations of this rank differ from those of rank",
        }
        for what, words in expected.items():
            for size in (2, 4) if what in ("size", "splits") else (2,):
                with self.subTest(what=what, size=size):
                    for text in self.texts(size, mismatch, what):
                        self.assertIn(words, text)
                        self.assertIn("rank ", text)

    def test_messages_that_do_not_fit_are_refused(self):
        for text in self.texts(2, mismatch, "message"):
            self.assertIn("rank 0 sent 16 bytes with tag 0, but this rank expects 8", text)

    def test_a_dead_rank_is_reported(self):
        for size in (2, 4):
            with Ranks(size) as ranks:
                ranks.start(wait_for_the_dead)
                self.assertEqual(ranks.results([1]), ["ready to die"])
                ranks.kill(1)
                for text in ranks.results([rank for rank in range(size) if rank != 1]):
                    self.assertIn("failed: ", text)
                    self.assertRegex(text, "connection|rank")
                    self.assertIn("Operation 2 of group", text)

    def test_a_message_from_a_dead_rank_is_an_error(self):
        with Ranks(2) as ranks:
            ranks.start(receive_from_the_dead)
            self.assertEqual(ranks.results([1]), ["ready to die"])
            ranks.kill(1)
            (text,) = ranks.results([0])
            self.assertIn(
                "a connection was closed while waiting for the message with tag 0 from rank 1", text
            )

    def test_abort_frees_who_waits(self):
        (first, again), _ = self.texts(2, abort_alone)
        for text in (first, again):
            self.assertIn("abort() was called on rank 0", text)

    def test_abort_reaches_the_other_ranks(self):
        for text in self.texts(3, be_aborted)[1:]:
            self.assertRegex(text, "abort\\(\\) was called on rank 0|connection")

    def test_failures_are_for_good_and_new_groups_work(self):
        for first, again, value in self.texts(2, call_after_failure):
            for text in again:
                self.assertIn("expected a working group", text)
                self.assertIn(first.split("\n")[0].split("all_reduce failed: ")[1][:20], text)
            self.assertEqual(value, 2.0)

    def test_monitored_barrier_names_who_has_not_come(self):
        text = self.texts(3, monitored)[0]
        self.assertIn("monitored_barrier failed: timed out waiting for ranks [1, 2]", text)

    def test_a_fork_leaves_the_group_of_the_parent_as_it_is(self):
        self.assertEqual(self.texts(2, fork_child), [(3, 4.0), (3, 4.0)])


HEAD = f"""
import os, sys, torch, torch.distributed as dist
from contextlib import suppress
from datetime import timedelta
rank, size, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.openreg.set_device(rank % torch.openreg.device_count())
dist.init_process_group("{BACKEND}", store=dist.FileStore(store, size), rank=rank,
                        world_size=size, timeout=timedelta(seconds=60))
x = torch.ones(1000, device="{DEVICE_TYPE}")
dist.all_reduce(x)
torch.openreg.synchronize()
"""


class TestExit(TestCase):
    """Programs that end in the middle of things end in order."""

    def exits(self, code, size=2, environment=None):
        with tempfile.TemporaryDirectory() as folder:
            program = HEAD + textwrap.dedent(code)
            processes = [
                subprocess.Popen(
                    [sys.executable, "-c", program, str(rank), str(size), f"{folder}/store"],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    env=os.environ | (environment or {}),
                )
                for rank in range(size)
            ]
            results = []
            try:
                for process in processes:
                    output = process.communicate(timeout=LIMIT_S)[0]
                    results.append((process.returncode, output))
            finally:
                for process in processes:
                    process.kill()
            return results

    def assert_clean(self, results):
        for code, output in results:
            self.assertEqual(code, 0, output)
            self.assertNotIn("terminate", output)

    def test_with_collectives_that_are_over(self):
        self.assert_clean(self.exits("dist.all_reduce(x)"))

    def test_with_pending_collectives_and_no_end_of_the_group(self):
        self.assert_clean(self.exits("for _ in range(20): dist.all_reduce(x, async_op=True)"))

    def test_end_of_the_group_waits_for_pending_collectives(self):
        results = self.exits(
            """
            works = [dist.all_reduce(x, async_op=True) for _ in range(20)]
            dist.destroy_process_group()
            print(x[0].item())
            """
        )
        self.assert_clean(results)
        for _, output in results:
            self.assertIn(str(float(2**21)), output)

    def test_with_a_collective_that_never_ends(self):
        results = self.exits(
            """
            if rank == 0:
                work = dist.all_reduce(x, async_op=True)
            """
        )
        self.assert_clean(results)

    def test_with_an_exception(self):
        results = self.exits(
            """
            dist.all_reduce(x, async_op=True)
            raise SystemExit(7)
            """
        )
        self.assertEqual([code for code, _ in results], [7, 7], results)

    def test_a_failed_operation_ends_the_process_if_that_is_wanted(self):
        results = self.exits(
            """
            try:
                dist.all_reduce(torch.ones(4 + rank, device=x.device))
                torch.openreg.synchronize()
            finally:
                print("went on", flush=True)
            """,
            environment={"OPENREG_OCCL_ON_ERROR": "abort"},
        )
        for code, output in results:
            self.assertEqual(code, -signal.SIGABRT, output)
            self.assertIn("OPENREG_OCCL_ON_ERROR=abort: all_reduce failed: ", output)
            self.assertIn("\nOperation 2 of group '", output)
            self.assertNotIn("went on", output)

    def test_a_group_that_the_program_aborts_does_not_end_the_process(self):
        results = self.exits(
            """
            group = dist.distributed_c10d._get_default_group()
            group.abort()
            with suppress(dist.DistBackendError):
                dist.all_reduce(x)
            print("went on")
            """,
            environment={"OPENREG_OCCL_ON_ERROR": "abort"},
        )
        self.assert_clean(results)
        for _, output in results:
            self.assertIn("went on", output)

    def test_a_destroyed_group_says_so(self):
        results = self.exits(
            """
            group = dist.distributed_c10d._get_default_group()
            dist.destroy_process_group()
            try:
                group.allreduce([x])
            except dist.DistBackendError as error:
                print(error)
            """
        )
        self.assert_clean(results)
        for _, output in results:
            self.assertIn("which was destroyed", output)

    @pytest.mark.slow
    def test_torchrun_starts_ranks_again_after_one_has_died(self):
        # Without Gloo for the CPU, which may find the addresses of those before in the store.
        program = f"""
import os, torch, torch.distributed as dist
dist.init_process_group("{NAME}")
rank = dist.get_rank()
torch.openreg.set_device(rank % torch.openreg.device_count())
x = torch.full((1000,), rank + 1.0, device="{DEVICE_TYPE}")
dist.all_reduce(x)
torch.openreg.synchronize()
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if rank == 1:
        os._exit(1)
    dist.all_reduce(x)
    torch.openreg.synchronize()
dist.destroy_process_group()
os.write(1, f"sum {{x[0].item()}}\\n".encode())  # in one piece: ranks share the output
"""
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/program.py"
            with open(path, "w") as file:
                file.write(program)
            launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
            result = subprocess.run(
                [sys.executable, *launcher, "--max-restarts", "1", path],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=LIMIT_S,
            )
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertEqual(result.stdout.count("sum 3.0"), 2, result.stdout)


if __name__ == "__main__":
    run_tests()
