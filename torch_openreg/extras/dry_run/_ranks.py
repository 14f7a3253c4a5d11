"""Few ranks of many: the other ranks of a dry run are absent.

See Note [Absent peers] in csrc/extras/distributed/transport/AbsentPeers.h for what collectives do.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch

from torch_openreg import _C
from torch_openreg._imports import after_import

__all__ = ["begin"]


# Keys of messages begin so, behind the prefixes of their group; as in AbsentPeers.cpp.
_MESSAGE = "openreg_message/"

# Where the ranks that run send each other messages.
_message_place: list[tuple[str, int]] = []


def begin(
    rank: int, size: int, device_count: int, running: list[int], place: tuple[str, int] | None
) -> None:
    """Has the groups of this process consist of ranks that run and of absent ones.

    The environment says what a launcher such as torchrun says.

    Args:
        rank: The rank of this process.
        size: The number of ranks.
        device_count: The number of devices of a machine, which has a rank for each.
        running: The ranks that run, of which this is one.
        place: Host and port of the store through which they send each other messages; None if no
            other rank runs.
    """
    _C._set_running_ranks(running)
    if place is not None:
        _message_place.append(place)
    local_size = min(size, device_count)
    for name, number in (
        ("RANK", rank),
        ("WORLD_SIZE", size),
        ("LOCAL_RANK", rank % local_size),
        ("LOCAL_WORLD_SIZE", local_size),
        ("GROUP_RANK", rank // local_size),
    ):
        os.environ[name] = str(number)
    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", "29500")
    after_import("torch.distributed.rendezvous", _replace_rendezvous)
    after_import("torch.distributed.distributed_c10d", _replace_gloo)


def _replace_rendezvous() -> None:
    # torch.distributed has a function of the module's name.
    module: Any = sys.modules["torch.distributed.rendezvous"]
    handlers: dict[str, Any] = module._rendezvous_handlers
    for scheme in ("env", "tcp", "file"):
        handlers[scheme] = _rendezvous


def _rendezvous(url: str, **options: object) -> Iterator[tuple[Any, int, int]]:
    del url, options
    yield _make_store(), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    raise RuntimeError("a dry run with absent ranks cannot be joined again")


# torch holds its C++ side alone.
_stores: list[Any] = []


class _Messages:
    """The store of messages, for several threads.

    A client of TCPStore is locked while it waits for a key, so a thread that waits for a message
    would keep others from sending theirs, for which the other rank may wait first. So each call has
    a client of its own, of those that are idle.
    """

    def __init__(self, host: str, port: int) -> None:
        self._place = host, port
        self._idle: list[Any] = []

    @contextlib.contextmanager
    def client(self) -> Iterator[Any]:
        from torch._C._distributed_c10d import TCPStore

        try:
            one = self._idle.pop()
        except IndexError:
            one = TCPStore(*self._place, is_master=False)
        try:
            yield one
        finally:
            self._idle.append(one)


def _make_store() -> Any:
    base: Any = torch._C._distributed_c10d.Store
    messages = _Messages(*_message_place[0]) if _message_place else None

    class Store(base):  # type: ignore[misc]
        """A store of this process alone but for messages, by the names that torch's C++ calls."""

        def __init__(self) -> None:
            super().__init__()
            self._values: dict[str, bytes] = {}

        def set(self, key: str, value: bytes) -> None:
            if messages is not None and _MESSAGE in key:
                with messages.client() as one:
                    one.set(key, bytes(value))
            else:
                self._values[key] = bytes(value)

        def get(self, key: str) -> bytes:
            if messages is not None and _MESSAGE in key:
                with messages.client() as one:
                    message: bytes = one.get(key)
                return message
            self._expect([key])
            return self._values[key]

        def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
            current = self._values.get(key)
            if current is None and expected:
                return bytes(expected)
            if current is None or current == bytes(expected):
                self._values[key] = bytes(desired)
            return self._values[key]

        def add(self, key: str, amount: int) -> int:
            number = int(self._values.get(key, b"0")) + amount
            self._values[key] = str(number).encode()
            return number

        def append(self, key: str, value: bytes) -> None:
            self._values[key] = self._values.get(key, b"") + bytes(value)

        def check(self, keys: Sequence[str]) -> bool:
            return all(key in self._values for key in keys)

        def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
            del timeout  # nothing changes while this rank waits
            self._expect(keys)

        def delete_key(self, key: str) -> bool:
            if messages is not None and _MESSAGE in key:
                with messages.client() as one:
                    return bool(one.delete_key(key))
            return self._values.pop(key, None) is not None

        deleteKey = delete_key  # as C++ calls it

        def num_keys(self) -> int:
            return len(self._values)

        getNumKeys = num_keys

        def set_timeout(self, timeout: timedelta) -> None:
            del timeout

        def has_extended_api(self) -> bool:
            return False

        def _expect(self, keys: Sequence[str]) -> None:
            for key in keys:
                if key not in self._values:
                    raise torch.distributed.DistStoreError(
                        f"expected a key that this rank has set, got {key!r}, which only an absent "
                        f"rank would set: this is rank {os.environ['RANK']}"
                    )

    _stores.append(Store())
    return _stores[-1]


def _replace_gloo() -> None:
    import torch.distributed.distributed_c10d as c10d

    gloo: Any = c10d.ProcessGroupGloo

    class Kind(type(gloo)):  # type: ignore[misc]
        """Takes a group of absent ranks for one of Gloo, as torch checks what it has made."""

        def __instancecheck__(cls, one: object) -> bool:
            return isinstance(one, (gloo, _C._AbsentPeers))

    class ProcessGroupGloo(gloo, metaclass=Kind):  # type: ignore[misc]
        """Makes a group of absent ranks where torch makes one of Gloo."""

        def __new__(cls, store: Any, rank: int, size: int, *rest: object, **more: object) -> Any:
            """Takes what torch's class takes."""
            return _C._AbsentPeers(store, rank, size)

    setattr(c10d, "ProcessGroupGloo", ProcessGroupGloo)  # noqa: B010
