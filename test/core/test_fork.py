"""Fork and spawn: a child forked after a first use gets an error; all others work."""

import pytest
import torch
from common import (
    DEVICE_TYPE,
    FORK_TEXT,
    OpenRegTestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_child,
    run_tests,
)

pytestmark = pytest.mark.sample(0.067)

# Runs `child` in a forked process and prints its result or exception.
FORK = """
import os, sys
import torch

def fork(child):
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            print(child())
        except Exception as error:
            print(f"{type(error).__name__}: {error}")
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
"""
USE = "x = torch.ones(3, device='openreg'); torch.openreg.synchronize()\n"


USES = {
    "factory": "torch.ones(1, device='openreg')",
    "copy": "torch.ones(1).to('openreg')",
    "operator": "x + 1",
    "copy_to_host": "x.cpu()",
    "item": "x[0].item()",
    "init": "torch.openreg.init()",
    "current_device": "torch.openreg.current_device()",
    "set_device": "torch.openreg.set_device(0)",
    "synchronize": "torch.openreg.synchronize()",
    "current_stream": "torch.openreg.current_stream()",
    "new_stream": "torch.openreg.Stream()",
    "record": "torch.openreg.Event().record()",
    "properties": "torch.openreg.get_device_properties()",
    "rng_state": "torch.openreg.get_rng_state()",
    "mem_get_info": "torch.openreg.mem_get_info()",
    "pin_memory": "torch.ones(3).pin_memory()",
    "accelerator_synchronize": "torch.accelerator.synchronize()",
}
# Queries of a parent that do not prevent its children from using devices.
QUESTIONS = {
    "device_count": "torch.openreg.device_count()",
    "is_available": "torch.openreg.is_available()",
    "is_initialized": "torch.openreg.is_initialized()",
    "current_accelerator": "torch.accelerator.current_accelerator(True)",
    "accelerator_device_count": "torch.accelerator.device_count()",
    "manual_seed": "torch.manual_seed(3)",
    "memory_allocated": "torch.openreg.memory_allocated()",
    "amp": "torch.openreg.get_amp_supported_dtype()",
    "rng_state": "torch.openreg.get_rng_state()",
}


def output_of(code):
    return run_child(FORK + code, {"OPENREG_DEVICE_COUNT": "2"}).strip()


class TestForkAfterUse(OpenRegTestCase):
    @parametrize("use", list(USES))
    def test_child_gets_the_error_from(self, use):
        output = output_of(USE + f"fork(lambda: {USES[use]})")
        self.assertTrue(output.startswith("RuntimeError: " + FORK_TEXT), output)

    def test_child_may_ask_and_seed(self):
        output = output_of(
            USE
            + """
o = torch.openreg
fork(lambda: (o._is_in_bad_fork(), o.is_initialized(), o._initialized, o.is_available(),
              o.device_count()))
fork(lambda: (torch.manual_seed(1).initial_seed(), o.manual_seed(1), o.manual_seed_all(1),
              o.seed(), o.seed_all()))
fork(lambda: (o.memory_allocated(), o.empty_cache(), o.is_current_stream_capturing()))
fork(lambda: torch.accelerator.is_available())
"""
        )
        self.assertEqual(
            output.splitlines(),
            [
                "(True, False, False, True, 2)",
                "(1, None, None, None, None)",
                "(0, None, False)",
                "True",
            ],
        )

    def test_child_works_on_the_cpu(self):
        output = output_of(USE + "fork(lambda: torch.arange(4).sum().item())")
        self.assertEqual(output, "6")

    def test_child_may_drop_what_it_inherited(self):
        output = output_of(
            USE
            + """
held = [torch.ones(3, device="openreg") for _ in range(3)]
event, stream = torch.openreg.Event(), torch.openreg.Stream()
event.record()
pinned = torch.ones(3).pin_memory()
def drop():
    global x, event, stream, pinned
    held.clear()
    x = event = stream = pinned = None
    return "dropped"
fork(drop)
"""
        )
        self.assertEqual(output, "dropped")

    def test_child_may_exit_as_programs_do(self):
        output = output_of(
            USE
            + """
pid = os.fork()
if pid:
    sys.exit(os.waitpid(pid, 0)[1])
"""
        )
        self.assertEqual(output, "")

    def test_parent_works_after_the_child(self):
        output = output_of(USE + "fork(lambda: 1)\nprint((x + 1).tolist())")
        self.assertEqual(output.splitlines(), ["1", "[2.0, 2.0, 2.0]"])

    def test_parent_with_pending_work_may_fork(self):
        output = output_of(
            USE
            + """
from torch_openreg.testing import StreamGate
with StreamGate():
    x.fill_(5)
    fork(lambda: "child")
print(x.tolist())
"""
        )
        self.assertEqual(output.splitlines(), ["child", "[5.0, 5.0, 5.0]"])


class TestForkBeforeUse(OpenRegTestCase):
    @parametrize("question", list(QUESTIONS))
    def test_child_may_use_devices_after_the_parent_asked_for(self, question):
        output = output_of(
            f"{QUESTIONS[question]}\nfork(lambda: (torch.ones(3, device='openreg') + 1).tolist())"
        )
        self.assertEqual(output, "[2.0, 2.0, 2.0]")

    def test_parent_may_use_devices_after_the_child_did(self):
        output = output_of(
            """
work = lambda: (torch.ones(2, device="openreg") * 3).tolist()
fork(work)
print(work())
"""
        )
        self.assertEqual(output.splitlines(), ["[3.0, 3.0]"] * 2)

    def test_children_of_one_parent_do_not_share_memory(self):
        output = output_of(
            """
fork(lambda: torch.full((2,), 1.0, device="openreg").tolist())
fork(lambda: torch.zeros(2, device="openreg").tolist())
"""
        )
        self.assertEqual(output.splitlines(), ["[1.0, 1.0]", "[0.0, 0.0]"])


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        # Workers seed themselves and build CPU tensors; neither may touch the device.
        return torch.tensor([float(index * index)])


class TestMultiprocessing(OpenRegTestCase):
    @parametrize("method", ["fork", "spawn"])
    @parametrize("pin_memory", [False, True])
    def test_data_loader_works_with_workers(self, method, pin_memory):
        torch.ones(1, device=DEVICE_TYPE)
        loader = torch.utils.data.DataLoader(
            Squares(),
            batch_size=4,
            num_workers=2 if method == "fork" else 1,
            multiprocessing_context=method,
            pin_memory=pin_memory,
        )
        batches = []
        for batch in loader:
            self.assertEqual(batch.is_pinned(), pin_memory)
            batches.append(batch.to(DEVICE_TYPE, non_blocking=True))
        self.assertEqual(
            torch.cat(batches).cpu().flatten().tolist(), [float(i * i) for i in range(12)]
        )

    def test_spawned_child_may_use_devices(self):
        context = torch.multiprocessing.get_context("spawn")
        torch.ones(1, device=DEVICE_TYPE)
        with context.Pool(1) as pool:
            self.assertEqual(pool.apply(use_device), [4.0, 4.0])


def use_device():
    return (torch.full((2,), 2.0, device=DEVICE_TYPE) * 2).tolist()


instantiate_parametrized_tests(TestForkAfterUse)
instantiate_parametrized_tests(TestForkBeforeUse)
instantiate_parametrized_tests(TestMultiprocessing)

if __name__ == "__main__":
    run_tests()
