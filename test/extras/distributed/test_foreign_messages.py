"""Messages of another program instead of a rank's become an error of the group.

Rank 0 is a group of the backend. Rank 1 is a group of Gloo, which connects as the backend's own one
does and sends the bytes of the test. test/extras/ipc/test_altered_messages.py alters headers by the
thousand.
"""

import contextlib
import random
import re
import tempfile
import threading
from datetime import timedelta

import torch
import torch.distributed as dist
from common import (
    DEVICE_TYPE,
    INDEX_ERROR,
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)
from extras.distributed.ranks import NAME, Ranks, device_of
from extras.ipc.test_altered_messages import FAILED, LEAVING, SEED, make_header
from torch.distributed import DistBackendError

from torch_openreg import _C
from torch_openreg.distributed import ProcessGroupOCCL

LIMIT = timedelta(seconds=60)
HEADER_TAG, FIRST_FREE_TAG = 2, 4  # csrc/extras/distributed/transport/Transport.h
ROOM = 1536  # for data after a header


def prefixed(store):
    """Returns the store as the backend uses it."""
    return dist.PrefixStore("restart0", dist.PrefixStore("occl", store))


class Foreign:
    """A group of the backend as rank 0, and Gloo as rank 1."""

    def __enter__(self):
        store = dist.HashStore()
        prefixed(store).set("message_format1", _C._message_format())
        made = []
        thread = threading.Thread(
            target=lambda: made.append(ProcessGroupOCCL(store, 0, 2, ProcessGroupOCCL.Options()))
        )
        thread.start()
        self.gloo = dist.ProcessGroupGloo(prefixed(store), 1, 2, LIMIT)
        thread.join()
        (self.group,) = made
        return self

    def send(self, message, tag=HEADER_TAG):
        data = torch.frombuffer(bytearray(message), dtype=torch.uint8)
        return data, self.gloo.send([data], 0, tag)  # Gloo drops a send whose handle is freed

    def __exit__(self, *_):
        self.group.abort()
        del self.group, self.gloo


def failure_of(function):
    """Returns the text of the error that an operation of the group ends with."""
    try:
        function().wait(LIMIT)
    except DistBackendError as error:
        with contextlib.suppress(DistBackendError):
            torch.openreg.synchronize()
        return str(error)
    raise AssertionError("expected a DistBackendError, got none")


class TestForeignMessages(TestCase):
    def check_fails(self, message, pattern):
        with Foreign() as foreign:
            held = foreign.send(message)
            x = torch.ones(4, device=DEVICE_TYPE)
            text = failure_of(lambda: foreign.group.allreduce([x]))
            self.assertRegex(text, pattern)
            del held

    def test_a_header_without_the_end_of_its_text(self):
        self.check_fails(
            make_header(FAILED, b"x" * 432) + bytes(ROOM),
            r"all_reduce failed: rank 1 has failed: x{431}\n",
        )

    def test_a_header_whose_text_is_not_utf8(self):
        self.check_fails(
            make_header(FAILED, b"cause \xff\xfe") + bytes(ROOM),
            "all_reduce failed: rank 1 has failed: cause \ufffd\ufffd\n",
        )

    @parametrize("size", [1, 100, 511])
    def test_a_message_that_is_shorter_than_a_header(self, size):
        self.check_fails(make_header()[:size], "rank 1 sent an invalid header")

    def test_a_goodbye_in_place_of_a_header(self):
        self.check_fails(make_header(LEAVING) + bytes(ROOM), "rank 1 sent an invalid header")

    def test_bytes_of_anything(self):
        draw = random.Random(SEED)
        for _ in range(5):
            message = draw.randbytes(draw.randrange(1, 2049))
            self.check_fails(message, "rank 1 sent an invalid header")

    @parametrize("size", [1, 100, 512])
    def test_a_message_whose_header_is_none(self, size):
        with Foreign() as foreign:
            header = make_header(bytes_to=4, magic=0)[:size]
            held = foreign.send(header, FIRST_FREE_TAG)
            x = torch.ones(1, device=DEVICE_TYPE)
            text = failure_of(lambda: foreign.group.recv([x], 1, 0))
            self.assertIn("recv failed: rank 1 sent an invalid header with tag 0", text)
            del held


class TestMessageFormat(TestCase):
    def test_another_version_is_told_from_this_one_before_ranks_connect(self):
        for theirs in ("version 2: 4096 + 8192 bytes", "version 2", "\xff", "x" * 10_000):
            store = dist.HashStore()
            prefixed(store).set("message_format1", theirs)
            with self.assertRaisesRegex(
                DistBackendError,
                r"creating a process group: ranks disagree on the message format: "
                r"version 1: 512 \+ 1536 bytes on this rank, 0; "
                f"{re.escape(theirs[:200])} on rank 1. Use the same version",
            ):
                ProcessGroupOCCL(store, 0, 2, ProcessGroupOCCL.Options())

    def test_a_rank_that_says_nothing_is_named(self):
        options = ProcessGroupOCCL.Options()
        options._timeout = timedelta(milliseconds=200)
        store = dist.HashStore()
        prefixed(store).set("message_format2", _C._message_format())
        with self.assertRaisesRegex(
            DistBackendError, r"timed out after 200 ms waiting for ranks \[1, 3\] of 4"
        ):
            ProcessGroupOCCL(store, 0, 4, options)


def fail_in_words(rank, size, folder):
    """Rank 0 fails in groups whose descriptions are not ASCII; returns rank 1's error text."""
    dist.init_process_group(
        NAME,
        store=dist.FileStore(f"{folder}/words", size),
        rank=rank,
        world_size=size,
        timeout=LIMIT,
    )
    texts = []
    for count in range(8):
        # The text is cut within the description.
        group = dist.new_group(group_desc="x" * count + "Ökologie €uro 😀 " * 40)
        x = torch.ones(4, device=device_of(rank))
        if rank == 1:
            texts.append(
                failure_of(lambda x=x, g=group: dist.all_reduce(x, group=g, async_op=True))
            )
            continue
        x[torch.tensor([7], device=x.device)]  # fails, and so the collective is left out
        with contextlib.suppress(INDEX_ERROR, DistBackendError):
            dist.all_reduce(x, group=group, async_op=True).wait()
        with contextlib.suppress(INDEX_ERROR, DistBackendError):
            torch.openreg.synchronize()
    dist.destroy_process_group()
    return texts


class TestWords(TestCase):
    def test_a_failure_arrives_in_a_group_whose_description_is_not_ascii(self):
        with tempfile.TemporaryDirectory() as folder, Ranks(2, backend=None) as ranks:
            _, texts = ranks.run(fail_in_words, folder)
        self.assertEqual(len(texts), 8)
        for text in texts:
            self.assertIn("rank 0 has failed: all_reduce failed: skipped, because", text)
            self.assertIn("Ökologie €uro 😀", text)


instantiate_parametrized_tests(TestForeignMessages)

if __name__ == "__main__":
    run_tests()
