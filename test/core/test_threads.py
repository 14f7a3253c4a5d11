"""Threads: many may use devices at once, each with its own current device and streams."""

import json
import subprocess
import tempfile
import threading
from pathlib import Path
from textwrap import dedent

import pytest
import torch
from common import (
    DEVICE_COUNT,
    DEVICE_TYPE,
    OpenRegTestCase,
    StreamGate,
    instantiate_parametrized_tests,
    parametrize,
    run_child,
    run_program,
    run_tests,
    subtest,
)

pytestmark = pytest.mark.sample(0.5)

THREADS = 8


def run_in_threads(function, count=THREADS):
    """Calls function(0), function(1), ... in threads that start together; returns the results."""
    barrier = threading.Barrier(count)
    results, errors = [None] * count, []

    def run(index):
        try:
            barrier.wait()
            results[index] = function(index)
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def work(device, value, rounds=30):
    """Something whose result depends on every kernel running once and in order."""
    x = torch.full((64,), float(value), dtype=torch.float64, device=device)
    for turn in range(rounds):
        x = x * 3 + turn
        x.remainder_(1000)
    return x


class TestThreads(OpenRegTestCase):
    def test_current_device_belongs_to_the_thread(self):
        def check(index):
            device = index % DEVICE_COUNT
            torch.openreg.set_device(device)
            return [torch.openreg.current_device() for _ in range(100)] == [device] * 100

        self.assertTrue(all(run_in_threads(check)))

    def test_current_stream_belongs_to_the_thread(self):
        def check(index):
            stream = torch.openreg.Stream(index % DEVICE_COUNT)
            with stream:
                return all(torch.openreg.current_stream() == stream for _ in range(100))

        self.assertTrue(all(run_in_threads(check)))

    @parametrize("where", ["default_stream", "own_stream"])
    def test_threads_compute_what_one_thread_computes(self, where):
        def compute(index):
            device = index % DEVICE_COUNT
            if where == "default_stream":
                return work(f"{DEVICE_TYPE}:{device}", index).cpu()
            with torch.openreg.Stream(device):
                return work(DEVICE_TYPE, index).cpu()

        for index, result in enumerate(run_in_threads(compute)):
            self.assert_bit_equal(result, work("cpu", index))

    def test_threads_may_submit_to_one_stream(self):
        stream = torch.openreg.Stream(0)
        with stream:
            x = torch.zeros(1, dtype=torch.int64, device=DEVICE_TYPE)
        stream.synchronize()

        def add(index):
            with torch.openreg.stream(stream):
                for _ in range(500):
                    x.add_(index)

        run_in_threads(add)
        stream.synchronize()
        self.assertEqual(x.item(), 500 * sum(range(THREADS)))

    def test_threads_may_train_on_their_own_devices(self):
        def train(device):
            model = torch.nn.Linear(8, 4, dtype=torch.float64)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.copy_(torch.arange(parameter.numel()).view_as(parameter) / 100)
            model.to(device)
            x = (torch.arange(24, dtype=torch.float64).view(3, 8) / 10).to(device)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            for _ in range(5):
                optimizer.zero_grad()
                model(x).pow(2).mean().backward()
                optimizer.step()
            return model.weight.detach().cpu()

        expected = train("cpu")
        for weight in run_in_threads(
            lambda index: train(f"{DEVICE_TYPE}:{index % DEVICE_COUNT}"), 4
        ):
            self.assert_bit_equal(weight, expected)

    def test_threads_may_allocate_and_free_at_once(self):
        def churn(index):
            with torch.openreg.device(index % DEVICE_COUNT):
                held = []
                for turn in range(200):
                    size = 1 + (turn * 7919 + index * 104729) % 300_000
                    held.append(torch.full((size,), index, dtype=torch.uint8, device=DEVICE_TYPE))
                    if len(held) > 5:
                        tensor = held.pop(turn % 5)
                        if turn % 20 == 0 and not bool((tensor == index).all()):
                            return False
            return True

        self.assertTrue(all(run_in_threads(churn)))

    def test_tensor_freed_by_another_thread_is_freed(self):
        torch.openreg.synchronize()
        before = torch.openreg.memory_allocated()
        tensors = run_in_threads(lambda _: torch.ones(1000, device=f"{DEVICE_TYPE}:0"))
        self.assertGreater(torch.openreg.memory_allocated(), before)
        tensors.clear()
        self.assertEqual(torch.openreg.memory_allocated(), before)

    def test_first_use_by_many_threads_at_once_creates_each_device_once(self):
        # In a separate process, since devices are in use in this one.
        run_child(
            """
            import torch
            from core.test_threads import run_in_threads
            def use(index):
                return torch.full((3,), float(index), device=f"openreg:{index % 2}").tolist()
            assert run_in_threads(use) == [[float(i)] * 3 for i in range(8)]
            """,
            {"OPENREG_DEVICE_COUNT": "2"},
        )

    def test_thread_that_waits_lets_others_work(self):
        def wait_or_work(index):
            if index == 0:
                with StreamGate(torch.openreg.Stream(0)) as gate:
                    others_done.wait()
                    gate.open()
                return True
            with torch.openreg.Stream(0):
                result = work(DEVICE_TYPE, index, rounds=3).cpu()
            with lock:
                done.append(index)
                if len(done) == THREADS - 1:
                    others_done.set()
            return bool((result == work("cpu", index, rounds=3)).all())

        lock, done, others_done = threading.Lock(), [], threading.Event()
        # The fallback mode belongs to the process and the gate sets it: no operator of the others
        # may fall back.
        self.assertTrue(all(run_in_threads(wait_or_work)))

    def test_failure_on_one_threads_stream_stays_there(self):
        def fail_or_work(index):
            with torch.openreg.Stream(0) as stream:
                x = torch.ones(4, device=DEVICE_TYPE)
                if index == 0:
                    x.gather(0, torch.tensor([9]).to(DEVICE_TYPE))
                    try:
                        stream.synchronize()
                    except RuntimeError:
                        return True
                    return False
                return (x + index).tolist() == [1.0 + index] * 4

        self.assertTrue(all(run_in_threads(fail_or_work)))

    def test_events_order_threads(self):
        x = torch.zeros(1, dtype=torch.int64, device=DEVICE_TYPE)
        torch.openreg.synchronize()
        events = [torch.openreg.Event() for _ in range(THREADS)]
        recorded = [threading.Event() for _ in range(THREADS)]

        def step(index):
            with torch.openreg.Stream(0):
                if index > 0:
                    recorded[index - 1].wait()
                    events[index - 1].wait()
                x.mul_(10).add_(index + 1)
                events[index].record()
                recorded[index].set()

        run_in_threads(step)
        torch.openreg.synchronize()
        self.assertEqual(x.item(), 12345678)


class TestTeams(OpenRegTestCase):
    """Threads that do not use their OpenMP teams release them."""

    def run_child(self, code):
        """Runs a program that has two threads per team, and functions that inspect them."""
        prelude = """
            import os, torch

            def threads():
                return set(os.listdir("/proc/self/task"))

            def new_threads(function):
                before = threads()
                function()
                torch.openreg.synchronize()
                return threads() - before

            def wait_for_end_of(team):
                while team & threads():
                    os.sched_yield()

            def make():
                return torch.full((1 << 18,), 2e-38)
            """
        return run_child(dedent(prelude) + dedent(code), {"OMP_NUM_THREADS": "2"})

    def test_team_of_a_thread_that_launches_is_given_up(self):
        output = self.run_child(
            """
            team = new_threads(make)
            torch.ones(1, device="openreg").add_(1)
            wait_for_end_of(team)
            print(len(team), len(new_threads(make)))
            """
        )
        self.assertEqual(output, "1 1\n")

    def test_team_stays_if_another_one_would_compute_otherwise(self):
        output = self.run_child(
            """
            team = new_threads(make)
            torch.set_flush_denormal(True)
            x = torch.ones(1, device="openreg")
            for _ in range(100):
                x.add_(1)
            torch.openreg.synchronize()
            print(len(team), team <= threads())
            """
        )
        self.assertEqual(output, "1 True\n")

    def test_team_of_an_idle_stream_is_given_up_and_the_next_one_has_the_same_mode(self):
        output = self.run_child(
            """
            on_device = make().to("openreg")
            results = []

            def work():
                results.append(on_device * 0.1)

            on_device[:1] * 2  # starts the worker
            torch.set_flush_denormal(True)
            team = new_threads(work)
            wait_for_end_of(team)
            again = new_threads(work)
            torch.set_flush_denormal(False)
            print(len(team), len(again), [one.count_nonzero().item() for one in results])
            """
        )
        self.assertEqual(output, "1 1 [0, 0]\n")


# Waits for the device, through torch's bindings and this package's.
WAITS = {
    "item": "x[0].item()",
    "cpu": "x.cpu()",
    "tolist": "x.tolist()",
    "numpy": "x.numpy(force=True)",
    "equal": "torch.equal(x, x)",
    "print": "repr(x)",
    "nonzero": "x.nonzero()",
    "new_tensor": "torch.tensor(x)",
    "deepcopy_to_the_cpu": "copy.deepcopy(x).cpu()",
    "storage_to_the_cpu": "x.untyped_storage().cpu()",
    "storage_tolist": "x.untyped_storage().tolist()",
    "storage_element": "x.untyped_storage()[0]",
    "copy_from_a_storage": "torch.UntypedStorage(16).copy_(x.untyped_storage())",
    "save": "torch.save(x, io.BytesIO())",
    "save_of_a_storage": "torch.save(x.untyped_storage(), io.BytesIO())",
    "pickle": "pickle.dumps(x)",
    "event": "event.synchronize()",
    "stream": "torch.openreg.current_stream().synchronize()",
    "device": "torch.accelerator.synchronize()",
    "seed": "torch.manual_seed(1)",
    "random_state": "torch.openreg.get_rng_state()",
}


class TestWaits(OpenRegTestCase):
    @parametrize("call", [subtest(call, name=name) for name, call in WAITS.items()])
    def test_other_threads_run_during_a_wait(self, call):
        # The thread that opens the gate can take the GIL only during the wait.
        output = run_child(
            f"""
            import copy, faulthandler, io, pickle, sys, threading
            import torch
            from torch_openreg.testing import StreamGate

            faulthandler.dump_traceback_later(60, exit=True)
            x, event = torch.ones(4, device="openreg"), torch.Event("openreg")
            {call}
            torch.rand(4, device="openreg")
            may_open = threading.Event()
            with StreamGate() as gate:

                def open_gate():
                    may_open.wait()
                    gate.open()
                    print("opened")

                opener = threading.Thread(target=open_gate)
                opener.start()
                x.add_(1)
                torch.rand(4, device="openreg")
                event.record()
                sys.setswitchinterval(1000)
                may_open.set()
                {call}
                opener.join()
            """
        )
        self.assertIn("opened\n", output)  # one of the calls warns


instantiate_parametrized_tests(TestThreads)

# Counts how often the threads of a process take Python's lock after they have released it.
COUNTER = """
#include <dlfcn.h>
#include <atomic>

static std::atomic<long> count;

extern "C" long count_of_locks() { return count; }

extern "C" void PyEval_AcquireThread(void* thread) {
  using Function = void (*)(void*);
  static const auto original = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "PyEval_AcquireThread"));
  ++count;
  original(thread);
}
"""


class TestLock(OpenRegTestCase):
    def test_frequent_operators_take_the_lock_as_often_as_on_the_cpu(self):
        """A second reference to a tensor that Python has takes the lock, and so does its end."""
        with tempfile.TemporaryDirectory() as folder:
            library = str(Path(folder) / "counter.so")
            command = ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", library, "-ldl"]
            subprocess.run(command, input=COUNTER, text=True, check=True)
            program = """
                import ctypes, json, os
                import torch

                count = ctypes.CDLL(os.environ["LD_PRELOAD"]).count_of_locks
                count.restype = ctypes.c_long
                statements = [
                    "x + y", "x.add_(y)", "torch.add(x, y, out=out)", "x.fill_(1)", "x.zero_()",
                    "x.copy_(y)", "x.relu_()", "x.clone()", "x.sum(1)", "torch.sum(x, 1, out=row)",
                    "torch.mm(x, y, out=out)", "x[0, 0].item()", "torch._foreach_add_([x, y], 1)",
                ]
                counts = {}
                for device in ("cpu", "openreg:0"):
                    x, y, out = (torch.ones(8, 8, device=device) for _ in range(3))
                    row = torch.ones(8, device=device)
                    for statement in statements:
                        code = compile(statement, statement, "eval")
                        for _ in range(2):
                            eval(code)
                        torch.accelerator.synchronize()
                        before = count()
                        for _ in range(10):
                            eval(code)
                        counts.setdefault(statement, []).append(count() - before)
                print(json.dumps(counts))
            """
            counts = json.loads(run_program(program, {"LD_PRELOAD": library}).stdout)
        self.assertGreater(counts["x.add_(y)"][0], 0)
        more = {name: count for name, count in counts.items() if count[1] > count[0]}
        self.assertEqual(more, {})


instantiate_parametrized_tests(TestWaits)

if __name__ == "__main__":
    run_tests()
