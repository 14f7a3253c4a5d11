"""How a group ends in order: a rank that destroys it takes nothing from one that is late.

A late rank is held before its last operation, inside of it, at each of the stages of
csrc/extras/distributed/transport/StageGate.h, or all its threads are stopped. With
OPENREG_TEST_FULL=1, a rank is late 500 times at each of the stages.
"""

import contextlib
import itertools
import os
import tempfile
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from common import StreamGate, TestCase, instantiate_parametrized_tests, parametrize, run_tests
from extras.distributed.ranks import NAME, Ranks, device_of
from torch.distributed import DistBackendError
from torch.distributed.distributed_c10d import _get_default_group

from torch_openreg import _C
from torch_openreg.extras import distributed

pytestmark = pytest.mark.sample(0.05)

# More than any wait here needs on a busy machine.
LIMIT = timedelta(seconds=60)

# How long the tests check that a call keeps waiting. They pass whatever it is.
A_WHILE_S = 1.0

# In the queue, the operation has not begun: other ranks have heard nothing of it.
STAGES = ("queued", "announced", "heard", "agreed", "posted", "finished")
TIMES = 500 if os.environ.get("OPENREG_TEST_FULL") else 5
FEW, MANY = 8, 50_000  # int32: after a header, and not


def init(folder, rank, size, name="store", timeout=LIMIT, **arguments):
    dist.init_process_group(
        NAME,
        store=dist.FileStore(os.path.join(folder, name), size),
        rank=rank,
        world_size=size,
        timeout=timeout,
        **arguments,
    )


class Signals:
    """What ranks say to each other beside the group."""

    def __init__(self, folder, size, name="signals"):
        self._store = dist.FileStore(os.path.join(folder, name), size)

    def say(self, word, rank=0):
        self._store.set(f"{word}{rank}", "1")

    def hear(self, word, ranks=(0,), limit=LIMIT):
        self._store.wait([f"{word}{rank}" for rank in ranks], limit)


# --- The last operations. Each returns its works and a function that returns its result.


def all_reduce(rank, size, device, count):
    x = torch.full((count,), rank + 1, dtype=torch.int32, device=device)
    return [dist.all_reduce(x, async_op=True)], lambda: x


def broadcast(rank, size, device, count):
    x = torch.full((count,), rank + 1, dtype=torch.int32, device=device)
    return [dist.broadcast(x, 0, async_op=True)], lambda: x


def reduce(rank, size, device, count):
    x = torch.full((count,), rank + 1, dtype=torch.int32, device=device)
    work = dist.reduce(x, 0, async_op=True)
    return [work], lambda: x if rank == 0 else torch.zeros(0)


def all_gather(rank, size, device, count):
    x = torch.full((count,), rank + 1, dtype=torch.int32, device=device)
    outputs = [torch.zeros_like(x) for _ in range(size)]
    return [dist.all_gather(outputs, x, async_op=True)], lambda: torch.cat(outputs)


def gather(rank, size, device, count):
    x = torch.full((count,), rank + 1, dtype=torch.int32, device=device)
    outputs = [torch.zeros_like(x) for _ in range(size)] if rank == 0 else None
    work = dist.gather(x, outputs, 0, async_op=True)
    return [work], lambda: torch.cat(outputs or [torch.zeros(0)])


def scatter(rank, size, device, count):
    x = torch.zeros(count, dtype=torch.int32, device=device)
    inputs = [torch.full_like(x, other) for other in range(size)] if rank == 0 else None
    return [dist.scatter(x, inputs, 0, async_op=True)], lambda: x


def reduce_scatter(rank, size, device, count):
    x = torch.arange(size * count, dtype=torch.int32, device=device)
    y = torch.zeros(count, dtype=torch.int32, device=device)
    return [dist.reduce_scatter_tensor(y, x, async_op=True)], lambda: y


def all_to_all(rank, size, device, count):
    x = torch.full((size * count,), rank + 1, dtype=torch.int32, device=device)
    y = torch.zeros_like(x)
    return [dist.all_to_all_single(y, x, async_op=True)], lambda: y


def barrier(rank, size, device, count):
    work = dist.barrier(async_op=True, device_ids=[device.index])
    return [work], lambda: torch.zeros(0)


def coalesced(rank, size, device, count):
    x = torch.full((count,), rank + 1, dtype=torch.int32, device=device)
    y = x.clone()
    with dist._coalescing_manager(device=device, async_ops=True) as manager:
        dist.all_reduce(x)
        dist.all_reduce(y)
    return manager.works, lambda: torch.cat([x, y])


def message(sender, receiver, rank, device, count):
    x = torch.full((count,), rank + 1, dtype=torch.int32, device=device)
    if rank == sender:
        return [dist.isend(x, receiver)], lambda: x
    if rank == receiver:
        return [dist.irecv(x, sender)], lambda: x
    return [], lambda: x


def message_to_the_late(rank, size, device, count):
    return message(0, size - 1, rank, device, count)


def message_from_the_late(rank, size, device, count):
    return message(size - 1, 0, rank, device, count)


COLLECTIVES = (
    all_reduce,
    broadcast,
    reduce,
    all_gather,
    gather,
    scatter,
    reduce_scatter,
    all_to_all,
    coalesced,
)
# Their data is sent after the headers. All others end where the late rank has made its calls.
EAGER = {(all_reduce, FEW), (broadcast, FEW), (all_gather, FEW), (barrier, 0)}


def cases():
    """Yields operation, count, stage, and whether the others end while the late rank is there."""
    for stage in STAGES:
        for call in COLLECTIVES:
            for count in (FEW, MANY):
                ends = stage != "queued" and (
                    (call, count) in EAGER or stage in ("posted", "finished")
                )
                if not ((call, count) in EAGER and stage == "posted"):
                    yield call, count, stage, ends
        if stage != "posted":
            yield barrier, 0, stage, stage != "queued"
        if stage in ("queued", "posted", "heard", "finished"):
            for count in (0, FEW, MANY):
                # Gloo sends the bytes when the receiver has posted its receive.
                ends = stage == "finished" or (count == 0 and stage != "queued")
                yield message_to_the_late, count, stage, ends
        if stage in ("queued", "posted", "finished"):
            for count in (0, FEW, MANY):
                yield message_from_the_late, count, stage, stage != "queued"


def expected_sum(call, count, rank, size):
    """Returns the sum of the result of an operation."""
    ranks = sum(range(1, size + 1))
    return {
        all_reduce: ranks * count,
        broadcast: count,
        reduce: ranks * count if rank == 0 else 0,
        all_gather: ranks * count,
        gather: ranks * count if rank == 0 else 0,
        scatter: rank * count,
        reduce_scatter: size * sum(range(rank * count, (rank + 1) * count)),
        all_to_all: ranks * count,
        barrier: 0,
        coalesced: 2 * ranks * count,
        message_to_the_late: count if rank in (0, size - 1) else (rank + 1) * count,
        message_from_the_late: size * count if rank in (0, size - 1) else (rank + 1) * count,
    }[call]


@contextlib.contextmanager
def held_at(stage):
    """Holds the operations that are issued; yields what lets go of them, once one is held."""
    if stage == "queued":
        with StreamGate() as gate:
            yield gate.open
        return
    _C._hold_operations(stage)

    def release():
        assert _C._wait_until_held(LIMIT)
        _C._release_operations()

    yield release


def late_at(rank, size, folder, index, call, count, stage, others_end):
    """Makes a group and ends it. The last rank is late in its last operation."""
    name = f"{index}_{call.__name__}_{count}_{stage}"
    init(folder, rank, size, f"store_{name}")
    signals = Signals(folder, size, f"signals_{name}")
    device = device_of(rank)
    others = range(size - 1)
    if rank == size - 1:
        with held_at(stage) as release:
            works, result = call(rank, size, device, count)
            signals.hear("destroyed" if others_end else "destroying", others)
            release()
        for work in works:
            work.wait()
        torch.openreg.synchronize()
        dist.destroy_process_group()
    else:
        works, result = call(rank, size, device, count)
        if others_end:
            for work in works:
                work.wait()
            torch.openreg.synchronize()
        signals.say("destroying", rank)
        dist.destroy_process_group()
        signals.say("destroyed", rank)
    return result().sum().item() - expected_sum(call, count, rank, size)


def all_cases(rank, size, folder, stage):
    """Returns what went wrong: the cases, with the error or the difference of the result."""
    return some_cases(rank, size, folder, stage, 0, sum(case[2] == stage for case in cases()))


def some_cases(rank, size, folder, stage, first, last):
    """The same of a range of the cases, which come again and again."""
    of_stage = itertools.cycle(case for case in cases() if case[2] == stage)
    wrong = []
    for index, case in enumerate(itertools.islice(of_stage, first, last), first):
        call, count, at, others_end = case
        try:
            outcome = late_at(rank, size, folder, index, call, count, at, others_end)
        except Exception as error:
            outcome = str(error)
            _C._release_operations()
            if dist.is_initialized():
                dist.destroy_process_group()
        if outcome != 0:
            wrong.append((call.__name__, count, outcome))
    return wrong


# --- Ranks that are stopped


def reduce_once(rank, size, folder, timeout=LIMIT):
    """Makes a group and uses it."""
    init(folder, rank, size, timeout=timeout)
    return use_group(rank, size)


def use_group(rank, size):
    x = torch.full((FEW,), rank + 1, dtype=torch.int32, device=device_of(rank))
    dist.all_reduce(x)
    return x[0].item()


def destroy(rank, size):
    """Returns how long it takes."""
    start = time.monotonic()
    dist.destroy_process_group()
    return time.monotonic() - start


def destroy_first(rank, size):
    return destroy(rank, size) if rank == 0 else None


def destroy_others(rank, size):
    return None if rank == 0 else destroy(rank, size)


class _Destruction:
    thread = None  # that destroys the group of this process
    group = None


def begin_to_destroy(rank, size):
    """Rank 0 destroys the group on a thread; returns whether it is still running after a while."""
    if rank != 0:
        return None
    _Destruction.group = _get_default_group()
    _Destruction.thread = threading.Thread(target=dist.destroy_process_group)
    _Destruction.thread.start()
    _Destruction.thread.join(A_WHILE_S)
    return _Destruction.thread.is_alive()


def use_while_destroyed(rank, size):
    """Returns the error of a new operation."""
    if rank != 0:
        return None
    try:
        _Destruction.group.allreduce([torch.ones(FEW, device=device_of(rank))])
    except DistBackendError as error:
        return str(error)
    return None


def end_of_destruction(rank, size):
    if rank != 0:
        return destroy(rank, size)
    _Destruction.thread.join(LIMIT.total_seconds())
    _Destruction.group = None
    return _Destruction.thread.is_alive()


def hold_before_the_data(rank, size, folder):
    """Rank 1 has announced a broadcast, whose data then follows the header of rank 0."""
    init(folder, rank, size)
    _Destruction.x = torch.full((FEW,), rank + 1, dtype=torch.int32, device=device_of(rank))
    if rank == 0:
        return True
    _C._hold_operations("announced")
    _Destruction.work = dist.broadcast(_Destruction.x, 0, async_op=True)
    return _C._wait_until_held(LIMIT)


def send_and_begin_to_destroy(rank, size):
    _C._release_operations()
    if rank == 0:
        _Destruction.work = dist.broadcast(_Destruction.x, 0, async_op=True)
        _Destruction.work.wait()
        torch.openreg.synchronize()
    return begin_to_destroy(rank, size)


def receive(rank, size):
    _Destruction.work.wait()
    total = _Destruction.x.sum().item()
    _Destruction.work = _Destruction.x = None
    return total


def hold_the_late(rank, size, folder):
    """The last rank is held when it has heard from another one; the others are done."""
    init(folder, rank, size)
    if rank == size - 1:
        _C._hold_operations("heard")
    x = torch.full((FEW,), rank + 1, dtype=torch.int32, device=device_of(rank))
    _Destruction.work = dist.all_reduce(x, async_op=True)
    _Destruction.x = x
    if rank == size - 1:
        return _C._wait_until_held(LIMIT)
    _Destruction.work.wait()
    torch.openreg.synchronize()
    return x[0].item() == sum(range(1, size + 1))


def release_the_late(rank, size):
    """Returns the sum, and the error of the next operation."""
    _C._release_operations()
    total = receive(rank, size)
    try:
        use_group(rank, size)
    except DistBackendError as error:
        return total, str(error)
    return total, None


# --- Groups


def destroy_without_an_operation(rank, size, folder):
    """Rank 1 has connected and is about to post its receives when rank 0 destroys the group."""
    signals = Signals(folder, size)
    if rank == 0:
        init(folder, rank, size)
        dist.destroy_process_group()
        signals.say("destroyed")
        return True
    create = distributed._create_gloo

    def create_late(*args):
        gloo = create(*args)
        try:
            signals.hear("destroyed", limit=timedelta(seconds=A_WHILE_S))
        except RuntimeError as error:
            assert "timeout" in str(error), error
            return gloo
        raise AssertionError("rank 0 has not waited")

    _C._set_gloo_factory(create_late)
    try:
        init(folder, rank, size)
    finally:
        _C._set_gloo_factory(create)
    dist.destroy_process_group()
    return True


def destroy_several(rank, size, folder, stage):
    """The last rank is late in one operation of each of four groups."""
    device = device_of(rank)
    init(folder, rank, size, device_id=device)
    signals = Signals(folder, size)
    groups = [None, dist.new_group(), dist.new_group(list(range(size)), timeout=LIMIT)]
    groups.append(dist.split_group(split_ranks=[list(range(size))]))
    tensors = [torch.full((FEW,), rank + 1, dtype=torch.int32, device=device) for _ in groups]
    is_late = rank == size - 1
    if is_late:
        _C._hold_operations(stage)
    works = [
        dist.all_reduce(x, group=group, async_op=True)
        for x, group in zip(tensors, groups, strict=True)
    ]
    if is_late:
        assert _C._wait_until_held(LIMIT)
        signals.hear("destroyed", range(size - 1))
        _C._release_operations()
    for work in works:
        work.wait()
    torch.openreg.synchronize()
    dist.destroy_process_group()
    signals.say("destroyed", rank)
    return [x[0].item() for x in tensors]


def destroy_at_different_times(rank, size, folder):
    """Rank 0 destroys one group after the other while the others go on with the rest."""
    init(folder, rank, size)
    signals = Signals(folder, size)
    groups = [dist.new_group() for _ in range(3)]
    results = []
    for i, group in enumerate(groups):
        results.append(use_group_of(rank, group))
        if rank == 0:
            dist.destroy_process_group(group)
            signals.say(f"destroyed{i}")
        else:
            signals.hear(f"destroyed{i}")
    results.append(use_group(rank, size))
    for group in groups if rank != 0 else []:
        dist.destroy_process_group(group)
    dist.destroy_process_group()
    return results


def use_group_of(rank, group):
    x = torch.full((FEW,), rank + 1, dtype=torch.int32, device=device_of(rank))
    dist.all_reduce(x, group=group)
    return x[0].item()


def use_after_a_destruction(rank, size, folder):
    """Rank 0 destroys its group, and the others never do, but use it once more."""
    init(folder, rank, size)
    signals = Signals(folder, size)
    use_group(rank, size)
    torch.openreg.synchronize()
    if rank == 0:
        dist.destroy_process_group()
        signals.say("destroyed")
        return None
    signals.hear("destroyed")
    try:
        use_group(rank, size)
    except DistBackendError as error:
        return str(error)
    return None


def wait_after_the_end(rank, size, folder, is_waiting):
    """A thread waits for operations while another one destroys the group, or after that."""
    init(folder, rank, size)
    device = device_of(rank)
    works = [
        dist.all_reduce(torch.ones(FEW, dtype=torch.int32, device=device), async_op=True),
        dist.barrier(async_op=True, device_ids=[device.index]),
    ]
    outcomes = []

    def wait():
        outcomes.extend(work.wait(LIMIT) for work in works)

    if is_waiting:
        thread = threading.Thread(target=wait)
        _C._hold_operations("finished")
        works.append(dist.all_reduce(torch.ones(FEW, device=device), async_op=True))
        assert _C._wait_until_held(LIMIT)
        thread.start()
        destroyer = threading.Thread(target=dist.destroy_process_group)
        destroyer.start()
        _C._release_operations()
        destroyer.join()
        thread.join()
    else:
        dist.destroy_process_group()
        wait()
    return outcomes


class TestStages(TestCase):
    def test_a_stage_that_is_none_is_refused(self):
        with self.assertRaisesRegex(ValueError, "expected announced, heard, .*, got nowhere"):
            _C._hold_operations("nowhere")


class TestGoodbye(TestCase):
    def setUp(self):
        super().setUp()
        self._folder = tempfile.TemporaryDirectory()
        self.addCleanup(self._folder.cleanup)
        self.folder = self._folder.name

    def run_ranks(self, size, function, *args):
        with Ranks(size, backend=None) as ranks:
            return ranks.run(function, self.folder, *args)

    @pytest.mark.slow("size_4_stage_finished")
    @parametrize("size", [2, 4])
    @parametrize("stage", STAGES)
    def test_a_rank_may_be_late_in_its_last_operation(self, size, stage):
        self.assertEqual(self.run_ranks(size, all_cases, stage), [[]] * size)

    @parametrize("stage", STAGES)
    def test_a_rank_may_be_late_again_and_again(self, stage):
        with Ranks(2, backend=None) as ranks:
            for first in range(0, TIMES, 20):
                last = min(first + 20, TIMES)
                wrong = ranks.run(some_cases, self.folder, stage, first, last)
                self.assertEqual(wrong, [[], []])

    def test_destruction_waits_for_a_rank_that_has_not_read_everything(self):
        with Ranks(2, backend=None) as ranks:
            self.assertEqual(ranks.run(reduce_once, self.folder), [3, 3])
            ranks.stop(1)
            ranks.start(begin_to_destroy)
            # The querying thread has the GIL, which the waiting thread must not hold.
            self.assertEqual(ranks.results([0]), [True])
            ranks.start(use_while_destroyed)
            (text,) = ranks.results([0])
            self.assertIn("which was destroyed", text)
            ranks.go_on(1)
            self.assertEqual(ranks.results([1]), [None])
            self.assertEqual(ranks.results([1]), [None])
            self.assertEqual(ranks.run(end_of_destruction)[0], False)
            self.assertNotIn("destroy_process_group", ranks.output(0))

    def test_data_that_has_not_been_read_arrives(self):
        with Ranks(2, backend=None) as ranks:
            self.assertEqual(ranks.run(hold_before_the_data, self.folder), [True, True])
            ranks.stop(1)
            ranks.start(send_and_begin_to_destroy)
            self.assertEqual(ranks.results([0]), [True])
            ranks.go_on(1)
            self.assertEqual(ranks.results([1]), [None])
            self.assertEqual(ranks.run(receive), [FEW] * 2)
            self.assertEqual(ranks.run(end_of_destruction)[0], False)

    def test_destruction_gives_up_when_its_time_is_over(self):
        with Ranks(2, backend=None) as ranks:
            ranks.run(reduce_once, self.folder, timedelta(seconds=2))
            ranks.stop(1)
            ranks.start(destroy_first)
            (seconds,) = ranks.results([0])
            self.assertGreaterEqual(seconds, 2)
            self.assertRegex(
                ranks.output(0),
                r"destroy_process_group: group .*, rank 0 of 2 timed out after 2000 ms waiting for"
                r" ranks \[1\]",
            )
            ranks.go_on(1)
            self.assertEqual(ranks.results([1]), [None])
            ranks.run(destroy_others)
            self.assertNotIn("destroy_process_group", ranks.output(1))

    @parametrize("size", [2, 3])
    def test_destruction_does_not_wait_for_the_dead(self, size):
        with Ranks(size, backend=None) as ranks:
            ranks.run(reduce_once, self.folder)
            ranks.stop(1)
            ranks.start(begin_to_destroy)
            self.assertEqual(ranks.results([0]), [True])
            ranks.kill(1)
            ranks.start(end_of_destruction)
            others = [rank for rank in range(size) if rank != 1]
            self.assertEqual(ranks.results(others[1:]), [None] * (size - 2))
            results = ranks.results(others)
            self.assertEqual(results[0], False)
            self.assertNotIn("destroy_process_group", "".join(map(ranks.output, others)))

    @parametrize("size", [2, 4])
    def test_destruction_does_not_wait_for_ranks_that_go_on(self, size):
        """They are idle, in the interpreter, and do not destroy their groups."""
        with Ranks(size, backend=None) as ranks:
            ranks.run(reduce_once, self.folder)
            # Its time is LIMIT, and then it would warn.
            ranks.run(destroy_first)
            self.assertNotIn("destroy_process_group", ranks.output(0))

    @parametrize("size", [2, 4])
    def test_an_operation_that_has_its_data_survives_the_death_of_the_others(self, size):
        with Ranks(size, backend=None) as ranks:
            self.assertEqual(ranks.run(hold_the_late, self.folder), [True] * size)
            for rank in range(size - 1):
                ranks.kill(rank)
            ranks.start(release_the_late)
            ((total, text),) = ranks.results([size - 1])
            self.assertEqual(total, FEW * sum(range(1, size + 1)))
            self.assertRegex(text, r"all_reduce failed: the connection to rank \d was closed")

    def test_destruction_waits_for_a_rank_that_is_still_making_the_group(self):
        self.assertEqual(self.run_ranks(2, destroy_without_an_operation), [True, True])

    def test_a_group_without_an_operation_can_be_destroyed(self):
        for size in (1, 2, 4):
            with (
                self.subTest(size=size),
                tempfile.TemporaryDirectory() as folder,
                Ranks(size, backend=None) as ranks,
            ):
                ranks.run(make_and_destroy, folder)

    @parametrize("size", [2, 4])
    @parametrize("stage", ["announced", "heard", "agreed", "finished"])
    def test_several_groups_end_while_a_rank_is_late_in_all_of_them(self, size, stage):
        total = sum(range(1, size + 1))
        results = self.run_ranks(size, destroy_several, stage)
        self.assertEqual(results, [[total] * 4] * size)

    def test_ranks_may_destroy_groups_at_different_times(self):
        self.assertEqual(self.run_ranks(3, destroy_at_different_times), [[6] * 4] * 3)

    @parametrize("size", [2, 3])
    def test_an_operation_without_a_rank_that_has_left_says_so(self, size):
        with Ranks(size, backend=None) as ranks:
            ranks.start(use_after_a_destruction, self.folder)
            texts = ranks.results()[1:]
            # Of several ranks, one may receive the failure of another one first.
            for text in texts:
                self.assertIn("all_reduce failed: ", text)
                self.assertIn("rank 0 destroyed the group", text)

    @parametrize("is_waiting", [False, True])
    def test_an_operation_that_is_over_can_be_waited_for_after_the_end(self, is_waiting):
        count = 3 if is_waiting else 2
        results = self.run_ranks(2, wait_after_the_end, is_waiting)
        self.assertEqual(results, [[True] * count] * 2)


def make_and_destroy(rank, size, folder):
    init(folder, rank, size)
    dist.destroy_process_group()


instantiate_parametrized_tests(TestGoodbye)

if __name__ == "__main__":
    run_tests()
