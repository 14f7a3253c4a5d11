"""Exits with collectives pending: a process ends, quickly and with the exit code of its program.

There are about seventy exits; with OPENREG_TEST_FULL=1, each is tried ten times, as the order in
which threads and destructors meet differs.
"""

import os
import tempfile

import pytest
from common import (
    DEVICE_TYPE,
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_children,
    run_tests,
)
from extras.distributed.ranks import BACKEND

pytestmark = pytest.mark.sample(0.5)

REPEATS = 10 if os.environ.get("OPENREG_TEST_FULL") else 1

# Most of them wait for something. Ranks start one after the other, so two are enough not to hang.
JOBS = 6

# A child that hangs ends by SIGALRM: a negative exit code.
PRELUDE = f"""
import os, signal, sys, threading
from datetime import timedelta
import torch
import torch.distributed as dist
from torch_openreg.testing import StreamGate

rank, size, folder = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["FOLDER"]
torch.set_num_threads(1)
torch.openreg.set_device(rank % torch.openreg.device_count())
store = dist.FileStore(folder + "/store", size)
dist.init_process_group("{BACKEND}", store=store, rank=rank, world_size=size,
                        timeout=timedelta(seconds=60))
x = torch.ones(1000, device="{DEVICE_TYPE}")
dist.all_reduce(x)
torch.openreg.synchronize()

def hold():
    # Keeps the current stream from ever going on.
    gate = StreamGate()
    gate.__enter__()
    return gate

def issue(count=5):
    return [dist.all_reduce(x, async_op=True) for _ in range(count)]

def say(name):
    store.set(name, "1")

def hear(name):
    store.wait([name])
"""

# What holds the collectives when the program ends.
HOLDS = {
    "gate": "gate = hold(); works = issue()",
    # Rank 1 has no part in them; with one rank, nothing holds them.
    "late_peer": "works = issue() if rank == 0 else []",
    "late_peer_on_the_current_stream": "[dist.all_reduce(x) for _ in range(3 * (rank == 0))]",
    "messages": "y = x.clone(); works = [dist.irecv(y, 1 - rank)] if size > 1 else issue()",
    "a_wait": "works = issue() if rank == 0 else []; [work.wait() for work in works]; x += 1",
}

# name -> (the program's last action, exit code)
ENDS = {
    "nothing_more": ("", 0),
    "exception": ('raise KeyError("on purpose")', 1),
    "sys_exit": ("sys.exit(3)", 3),
}

# The other rank has ended when this one ends. What holds the collectives is its death.
KILLED = {
    "nothing_more": "",
    "destroyed": "dist.destroy_process_group()",
    "exception": 'raise KeyError("on purpose")',
}

# The end of a group waits for pending work, so another thread has to release it.
DESTROYED = {
    "gate_that_opens": """
gate = hold()
works = issue()
threading.Timer(0, gate.open).start()
dist.destroy_process_group()
""",
    "late_peer_that_comes": """
if rank == 0:
    works = issue()
    say("issued")
else:
    hear("issued")
    works = issue()
dist.destroy_process_group()
""",
    "late_peer_that_destroys": """
works = issue() if rank == 0 else []
dist.destroy_process_group()
""",
    "abort": """
works = issue() if rank == 0 else []
dist.distributed_c10d._get_default_group().abort()
dist.destroy_process_group()
""",
    "exception": """
works = issue()
try:
    raise KeyError("on purpose")
finally:
    dist.destroy_process_group()
""",
}


def programs():
    """Returns the cases: name -> (program, size, exit code of each rank)."""
    cases = {}
    for size in (1, 2):
        for hold, holding in HOLDS.items():
            for end, (ending, code) in ENDS.items():
                cases[f"{hold}_{end}_{size}"] = (f"{holding}\n{ending}", size, [code] * size)
        for name, program in DESTROYED.items():
            code = 1 if name == "exception" else 0
            if size > 1 or name != "late_peer_that_comes":
                cases[f"destroyed_{name}_{size}"] = (program, size, [code] * size)
    for name, ending in KILLED.items():
        program = f"""
if rank == 1:
    hear("issued")
    os.kill(os.getpid(), signal.SIGKILL)
works = issue()
say("issued")
{ending}
"""
        cases[f"killed_{name}_2"] = (program, 2, [1 if name == "exception" else 0, -9])
    return cases


CASES = programs()


class TestExits(TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        with tempfile.TemporaryDirectory() as folder:
            children, cls.endings = [], {name: [] for name in CASES}
            names = []
            for repeat in range(REPEATS):
                for name, (program, size, codes) in CASES.items():
                    own = os.path.join(folder, f"{name}_{repeat}")
                    os.mkdir(own)
                    for rank in range(size):
                        settings = {"RANK": str(rank), "WORLD_SIZE": str(size), "FOLDER": own}
                        children.append((PRELUDE + program, settings))
                        names.append((name, codes[rank]))
            for (name, code), child in zip(names, run_children(children, JOBS), strict=True):
                cls.endings[name].append((code, child))

    @parametrize("case", list(CASES))
    def test_process_ends_with(self, case):
        self.assertEqual(len(self.endings[case]), REPEATS * CASES[case][1])
        for code, child in self.endings[case]:
            self.assertEqual(child.returncode, code, child.output)
            self.assertNotIn("terminate called", child.output)
            if code == 0:
                self.assertEqual(child.output, "")


instantiate_parametrized_tests(TestExits)

if __name__ == "__main__":
    run_tests()
