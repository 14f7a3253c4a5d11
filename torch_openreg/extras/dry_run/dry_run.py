"""Dry runs: whether a program fits a GPU, and which line does not.

In a dry run, kernels on large tensors do not run: a device's memory is address space, and what
allocates, frees and asks is the program itself. ``python -m torch_openreg.cuda --dry-run --gpu
h100 train.py`` runs a program so, and prints a report when it ends.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from torch_openreg import _C
from torch_openreg._torch_release import HAS_CUBLAS_WORKSPACES
from torch_openreg.extras import explain, has
from torch_openreg.openreg._utils import _named, _setting

if TYPE_CHECKING:
    from torch_openreg.extras.dry_run._profiles import Profile
    from torch_openreg.extras.dry_run._report import Failure, Report, Use

__all__ = ["is_on", "picture", "report"]

_GIB = 2**30

_RANK = "OPENREG_DRY_RUN_RANK"
_RANKS = "OPENREG_DRY_RUN_RANKS"
_STORE = "OPENREG_DRY_RUN_STORE"
_WORLD_SIZE = "OPENREG_DRY_RUN_WORLD_SIZE"

_FILES = ("OPENREG_DRY_RUN_REPORT", "OPENREG_DRY_RUN_PICTURE")

_C._declare_setting(
    "OPENREG_DRY_RUN_BEYOND",
    "0",
    "0 1",
    "1: a dry run goes on beyond the memory of the GPU, and says how much it takes.",
)
_C._declare_setting(
    "OPENREG_DRY_RUN_GPU",
    "none",
    "none v100-16gb v100-32gb t4 a10g l4 a100-40gb a100-80gb rtx3090 "
    "rtx4090 a6000 l40s h100 h100-pcie h200 b200",
    "The GPU whose memory and properties the devices of a dry run have.",
)
_C._declare_setting(
    "OPENREG_DRY_RUN_PICTURE",
    "none",
    "<text>",
    "Where a dry run draws the memory of its fullest device over time, as SVG.",
    allowed="the name of a file",
)
_C._declare_setting(
    "OPENREG_DRY_RUN_RANK",
    "0",
    "<number>",
    "The rank of this process in a dry run whose other ranks are absent.",
    allowed="a rank of OPENREG_DRY_RUN_WORLD_SIZE",
)
_C._declare_setting(
    "OPENREG_DRY_RUN_RANKS",
    "none",
    "<text>",
    "The ranks of a dry run that run, each in its own process, and send each other messages.",
    allowed="ranks with commas between them, such as 0,8",
)
_C._declare_setting(
    "OPENREG_DRY_RUN_REPORT",
    "none",
    "<text>",
    "Where a dry run writes its report when the process ends, as JSON; %p is the process's id, %r "
    "its rank.",
    allowed="the name of a file",
)
_C._declare_setting(
    "OPENREG_DRY_RUN_STORE",
    "none",
    "<text>",
    "The TCPStore through which the ranks of OPENREG_DRY_RUN_RANKS send each other messages.",
    allowed="host:port",
)

_C._declare_setting(
    "OPENREG_DRY_RUN_SUMMARY",
    "1",
    "0 1",
    "1: a dry run writes its report to stderr when the process ends.",
)

_C._declare_setting(
    "OPENREG_DRY_RUN_WORLD_SIZE",
    "1",
    "<number>",
    "The number of ranks of a dry run; more than 1: all but OPENREG_DRY_RUN_RANK are absent.",
    allowed="a number from 1",
)

_started = time.monotonic()


def is_on() -> bool:
    """Returns whether this process is a dry run."""
    return bool(_C._dry_run_is_on())


def report() -> Report:
    """Returns the report of the dry run so far.

    Raises:
        RuntimeError: The process is no dry run.
    """
    if not is_on():
        raise RuntimeError(
            f"{_named('torch.openreg.dry_run.report')}: expected a dry run, got a process without "
            "one; start it with python -m torch_openreg.cuda --dry-run, or set OPENREG_DRY_RUN to 1"
        )
    from torch_openreg.extras.dry_run import _record
    from torch_openreg.extras.dry_run._report import Guess, Report, device_report

    _record.note_parameters()
    used = _C._memory_record_devices()
    context = context_bytes()
    chosen = chosen_profile()
    return Report(
        profile=chosen,
        torch=torch.__version__.partition("+")[0],
        seconds=time.monotonic() - _started,
        total_memory=_total_memory(chosen, used),
        rank=int(_setting(_RANK)),
        world_size=int(_setting(_WORLD_SIZE)),
        devices=[device_report(index, _C._memory_record_peak(index), context) for index in used],
        outside=_outside(chosen) if used else [],
        failure=_failure(),
        made_up=[Guess(*one) for one in _C._dry_run_made_up_reads()],
        guessed_sizes=[Guess(*one) for one in _C._dry_run_guessed_sizes()],
    )


def picture(found: Report) -> str:
    """Returns the memory of the fullest device over time, by category, as SVG.

    Args:
        found: The report of the dry run.
    """
    from torch_openreg.extras.dry_run import _picture

    if not found.devices:
        return _picture.draw([], [], found.total_memory, "no device was used")
    device = max(found.devices, key=lambda one: one.allocated)
    blocks, stacks = _C._memory_record_spans(device.index)
    title = f"allocations and frees of device {device.index}, in their order"
    return _picture.draw(blocks, stacks, found.total_memory, title)


def context_bytes() -> int:
    """Returns the bytes of each device that CUDA itself takes, of the chosen GPU."""
    chosen = chosen_profile()
    return 0 if chosen is None else chosen.context[0]


def take_profile() -> None:
    """Gives the devices the chosen GPU's memory and capability, unless the environment has others.

    Called while torch is imported, when the settings are still unread.
    """
    from torch_openreg.extras.dry_run import _profiles

    name = os.environ.get("OPENREG_DRY_RUN_GPU", "none")
    if name not in _profiles.names():
        return  # none, or a value that is reported with those of the other settings
    chosen = _profiles.profile(name)
    beyond = os.environ.get("OPENREG_DRY_RUN_BEYOND", "0") == "1"
    memory = "1TiB" if beyond else str(chosen.total_memory)
    os.environ.setdefault("OPENREG_DEVICE_MEMORY", memory)
    os.environ.setdefault("OPENREG_CUDA_CAPABILITY", chosen.capability)


def start() -> None:
    """Begins the record, and registers the report at the end. Called when torch is imported."""
    from torch_openreg.extras.dry_run import _record

    _record.start()
    _C._memory_record_set_context(context_bytes())
    if (chosen := chosen_profile()) is not None:
        if _setting("OPENREG_DRY_RUN_BEYOND") == "1":
            _C._memory_record_watch(chosen.total_memory)
        cublas_bytes = chosen.cublas_workspace if HAS_CUBLAS_WORKSPACES else 0
        _C._memory_record_start_workspaces(cublas_bytes, chosen.multi_processor_count)
        if HAS_CUBLAS_WORKSPACES:
            torch._C._cuda_clearCublasWorkspaces = _C._memory_record_clear_workspaces
    for variable in _FILES:
        _check_writable(variable)
    _begin_ranks(int(_setting(_RANK)), int(_setting(_WORLD_SIZE)))
    # The program's functions for the end, which are registered later, are called before.
    atexit.register(_tell)


def _begin_ranks(rank: int, size: int) -> None:
    if size == 1 and rank == 0:
        return
    if not 0 <= rank < size:
        sys.exit(f"{_RANK}: expected a rank below {_WORLD_SIZE}, {size}, got {rank}")
    if not has("distributed"):
        sys.exit(explain(_WORLD_SIZE, "distributed"))
    from torch_openreg.extras.dry_run import _ranks

    running, place = _running_ranks(rank, size)
    _ranks.begin(rank, size, _C._get_device_count(), running, place)


def _running_ranks(rank: int, size: int) -> tuple[list[int], tuple[str, int] | None]:
    """Returns the ranks that run, and where they send each other messages."""
    text, store = _setting(_RANKS), _setting(_STORE)
    if text == "none":
        return [rank], None
    running = ranks_in(text, size)
    if running is None or rank not in running:
        sys.exit(
            f"{_RANKS}: expected ranks below {_WORLD_SIZE}, {size}, among them {rank}, got {text!r}"
        )
    if len(running) == 1:
        return running, None
    host, _, port = store.rpartition(":")
    if not host or not port.isdecimal():
        sys.exit(f"{_STORE}: expected host:port, since several ranks run, got {store!r}")
    return running, (host, int(port))


def ranks_in(text: str, size: int) -> list[int] | None:
    """Returns the ranks of a text such as "0,8"; None if it has anything but ranks, each once.

    Args:
        text: The text.
        size: The number of ranks.
    """
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) < size for part in parts):
        return None
    ranks = sorted(int(part) for part in parts)
    return ranks if len(set(ranks)) == len(ranks) else None


def chosen_profile() -> Profile | None:
    """Returns the GPU whose place the devices take; None without one."""
    if not is_on():
        return None
    from torch_openreg.extras.dry_run import _profiles

    name = _setting("OPENREG_DRY_RUN_GPU")
    return None if name == "none" else _profiles.profile(name)


def _total_memory(chosen: Profile | None, used: list[int]) -> int:
    if chosen is not None and _setting("OPENREG_DRY_RUN_BEYOND") == "1":
        return chosen.total_memory
    total: int = _C._device_properties(used[0] if used else 0).total_memory
    return total


def _failure() -> Failure | None:
    from torch_openreg.extras.dry_run._report import Failure, place_of

    found = _C._memory_record_failure() or _C._memory_record_passing()
    if found is None:
        return None
    return Failure(
        device=found["device"],
        requested=found["requested"],
        allocated=found["allocated"],
        step=found["step"],
        phase=found["phase"],
        place=place_of(found["stack"]),
    )


def _outside(chosen: Profile | None) -> list[Use]:
    """What a GPU's memory holds besides the allocator's, by what the program has used."""
    from torch_openreg.extras.dry_run._report import Use

    if chosen is None:
        return []
    uses = [Use("context", *chosen.context, "CUDA's own, with lazy loading", is_reserved=True)]
    kernels = _C._memory_record_kernels()
    of_cudnn = ("convolution", "conv2d", "cudnn_attention")
    if any(part in name for name in kernels for part in of_cudnn):
        uses.append(Use("cuDNN", 0, _GIB, "workspaces of convolutions and of attention"))
    if count := _communicators():
        reason = f"{count} communicators, 0.1 to 1 GiB each"
        uses.append(Use("NCCL", count * _GIB // 10, count * _GIB, reason))
    return uses


def _communicators() -> int:
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return 0
    groups = torch.distributed.distributed_c10d._world.pg_map
    return sum(one.size() > 1 for one in groups)


def _check_writable(variable: str) -> None:
    path = _setting(variable)
    if path != "none" and not Path(path).absolute().parent.is_dir():
        sys.exit(f"{variable}: expected a file in an existing folder, got {path!r}")


def _tell() -> None:
    found = report()
    if _setting("OPENREG_DRY_RUN_SUMMARY") == "1":
        print(found, file=sys.stderr)
    _write("OPENREG_DRY_RUN_REPORT", found.to_json)
    _write("OPENREG_DRY_RUN_PICTURE", lambda: picture(found))


def _write(variable: str, make: Callable[[], str]) -> None:
    if (path := _setting(variable)) != "none":
        name = path.replace("%p", str(os.getpid())).replace("%r", _setting(_RANK))
        Path(name).write_text(make(), encoding="utf-8")
