"""Plays several ranks of a program: a process for each, which send each other messages."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence

from torch._C._distributed_c10d import TCPStore

__all__ = ["play"]

_INTERVAL_S = 0.05

# A rank that waits for one that has failed ends by itself only after the store's timeout.
_GRACE_S = 5.0


def play(command: Sequence[str], ranks: Sequence[int]) -> int:
    """Runs a command once for each rank, and waits for all.

    Args:
        command: The program and its arguments.
        ranks: The ranks of OPENREG_DRY_RUN_WORLD_SIZE.

    Returns:
        0, or the exit code of a rank that failed. Then the others are ended.
    """
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    shared = {
        "OPENREG_DRY_RUN_RANKS": ",".join(str(rank) for rank in ranks),
        "OPENREG_DRY_RUN_STORE": f"localhost:{store.port}",
    }
    running = {
        rank: subprocess.Popen(
            command, env={**os.environ, **shared, "OPENREG_DRY_RUN_RANK": str(rank)}
        )
        for rank in ranks
    }
    try:
        return _wait(running)
    finally:
        for process in running.values():
            process.kill()
            process.wait()


def _wait(running: dict[int, subprocess.Popen[bytes]]) -> int:
    """Waits until all ranks have ended, or one has failed and the others have had their time."""
    failed: tuple[int, int] | None = None
    deadline = float("inf")
    while True:
        codes = [(rank, process.poll()) for rank, process in running.items()]
        if failed is None:
            failed = next(((rank, code) for rank, code in codes if code), None)
            deadline = float("inf") if failed is None else time.monotonic() + _GRACE_S
        if all(code is not None for _, code in codes) or time.monotonic() > deadline:
            break
        time.sleep(_INTERVAL_S)
    if failed is None:
        return 0
    print(f"dry run: rank {failed[0]} ended with {failed[1]}", file=sys.stderr)
    return failed[1] if failed[1] > 0 else 128 - failed[1]
