"""Messages of other processes with altered bytes: each raises an error, or is harmless.

The messages are genuine ones with other numbers in some fields and checksums that fit, cut ones,
longer ones, and random bytes. The seed is fixed; OPENREG_TEST_SEED gives another one. With
OPENREG_TEST_FULL=1 there are 100,000 of each kind. The handles of the runtime by themselves are
altered in third_party/openreg_runtime/test/test_ipc.cpp, also under sanitizers.
"""

import os
import random
import struct

import pytest
import torch
from common import (
    DEVICE_COUNT,
    DEVICE_TYPE,
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_tests,
)
from extras.ipc.test_ipc import IpcTestCase

from torch_openreg import _C

pytestmark = pytest.mark.sample(0.5)

IS_FULL = os.environ.get("OPENREG_TEST_FULL") == "1"
SEED = int(os.environ.get("OPENREG_TEST_SEED", "34"))

STORAGE_MESSAGES = 100_000 if IS_FULL else 6_000
HEADERS = 100_000 if IS_FULL else 20_000


def fnv(data, size):
    """Returns the FNV-1a hash of a size in bits."""
    offset, prime = {32: (2166136261, 16777619), 64: (0xCBF29CE484222325, 0x100000001B3)}[size]
    mask = 2**size - 1
    for byte in data:
        offset = (offset ^ byte) * prime & mask
    return offset


def numbers(draw, bits, old, others):
    """Returns a number for a field: one that is at some limit, near the old one, or any."""
    mask = 2**bits - 1
    kind = draw.randrange(5)
    if kind == 0:
        number = draw.choice([0, 1, 2, mask, mask - 1, mask >> 1, (mask >> 1) + 1])
    elif kind == 1:
        number = old + draw.choice([-4096, -8, -1, 1, 2, 8, 256, 4096, 2**20])
    elif kind == 2:
        number = (1 << draw.randrange(bits)) + draw.choice([-1, 0, 1])
    elif kind == 3:
        number = draw.choice(others)
    else:
        number = draw.getrandbits(bits)
    return number & mask


# --- Messages of storages, as in csrc/extras/ipc/StorageMessage.h and the runtime's ipc.cpp

TICKET = struct.Struct("<iiQQQHHIQQQ")
TICKET_FIELDS = [
    # offset in the ticket, bits
    (0, 32),  # process
    (4, 32),  # file
    (8, 64),  # start
    (16, 64),  # key
    (24, 64),
    (32, 16),  # kind
    (34, 16),  # device
    (36, 32),  # checksum
    (40, 64),  # first: offset in the arena, slot, or lease
    (48, 64),  # second: size, or generation
    (56, 64),  # reserved
]
TICKETS = {"memory": 8, "event": 72, "lease": 136}
VERSION, OFFSET, SIZE, DEVICE, CHECKSUM = 0, 200, 208, 216, 224
MESSAGE_SIZE = 232
FIELDS = [
    *((start + offset, bits) for start in TICKETS.values() for offset, bits in TICKET_FIELDS),
    *((position, 64) for position in (VERSION, OFFSET, SIZE, DEVICE)),
]
# Altered as often as all others together: the fields that the backend itself reads.
OWN_FIELDS = [(OFFSET, 64), (SIZE, 64), (DEVICE, 64)]


def get(message, position, bits):
    return int.from_bytes(message[position : position + bits // 8], "little")


def put(message, position, bits, number):
    message[position : position + bits // 8] = (number % 2**bits).to_bytes(bits // 8, "little")


def seal(message, tickets=True):
    """Makes the checksums fit."""
    if tickets:
        for start in TICKETS.values():
            put(message, start + 36, 32, 0)
            put(message, start + 36, 32, fnv(message[start : start + TICKET.size], 32))
    put(message, CHECKSUM, 64, fnv(message[:CHECKSUM], 64))
    return bytes(message)


def with_fields(message, **values):
    """Returns the message with other values of offset, size or device."""
    altered = bytearray(message)
    for name, value in values.items():
        put(altered, {"offset": OFFSET, "size": SIZE, "device": DEVICE}[name], 64, value)
    return seal(altered)


def alter(draw, message, others):
    """Returns a message made of a genuine one, which is of some use to a program that cheats."""
    kind = draw.randrange(20)
    altered = bytearray(message)
    if kind == 0:
        return bytes(altered[: draw.randrange(len(altered))])
    if kind == 1:
        return bytes(altered) + draw.randbytes(draw.randrange(1, 64))
    if kind == 2:
        return draw.randbytes(len(altered))
    if kind == 3:
        altered[draw.randrange(len(altered))] ^= draw.randrange(1, 256)
        return bytes(altered)
    if kind == 4:  # a ticket in another one's place, or of another message
        source = draw.choice(others) if draw.random() < 0.5 else message
        start, end = draw.choice(list(TICKETS.values())), draw.choice(list(TICKETS.values()))
        altered[end : end + TICKET.size] = source[start : start + TICKET.size]
        return seal(altered, tickets=False)
    for _ in range(draw.randrange(1, 4)):
        position, bits = draw.choice(OWN_FIELDS if draw.random() < 0.5 else FIELDS)
        values = [get(other, position, bits) for other in others]
        put(altered, position, bits, numbers(draw, bits, get(altered, position, bits), values))
    return seal(altered, tickets=draw.random() < 0.9)


def make_messages(count, device=0):
    """Shares storages of several sizes; returns messages, whose leases keep the storages."""
    draw = random.Random(count)
    messages = []
    for i in range(count):
        size = draw.choice([1, 8, 100, 512, 4096, 100_000])
        index = i % DEVICE_COUNT if device is None else device
        tensor = torch.full((size,), i % 251, dtype=torch.uint8, device=f"{DEVICE_TYPE}:{index}")
        messages.append(_C._share_storage(tensor.untyped_storage()))
    torch.openreg.synchronize()
    return messages


def describe_error(message):
    """Receives a storage; returns the error's type and text, or None."""
    try:
        _C._receive_storage(message)
    except Exception as error:
        return type(error).__name__, str(error)
    return None


def is_inside(message, storage):
    """Returns whether a received storage lies in the memory that its message names.

    Of memory that is opened more than once, the largest size counts.
    """
    size = get(message, SIZE, 64)
    if size == 0:
        return storage.nbytes() == 0
    device = get(message, TICKETS["memory"] + 34, 16)
    return (
        storage.nbytes() == size
        and get(message, OFFSET, 64) + size <= OPENED[memory_of(message)]
        and storage.device.index == device == get(message, DEVICE, 64)
    )


def memory_of(message):
    """Returns what the ticket of the memory names, without its size."""
    start = TICKETS["memory"]
    return message[start : start + 36] + message[start + 40 : start + 48]


def note_opened(message):
    """Notes the size with which receiving a message opens memory, also if it is then refused."""
    memory, size = memory_of(message), get(message, TICKETS["memory"] + 48, 64)
    if size <= torch.openreg.mem_get_info()[1]:
        OPENED[memory] = max(OPENED.get(memory, 0), size)


def read_ends(storage):
    """Reads the first and the last byte, which ends the process if they are not there."""
    if storage.nbytes() == 0:
        return
    whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    whole[0].item()
    whole[-1].item()


# Of the receiver, by memory: the largest size with which it was opened. A stream releases memory
# when its work is done, so that memory of earlier calls may still be open, and a message that is
# refused for its event or lease opens it once more.
OPENED = {}


def receive_altered(seed, count, messages):
    """Receives altered messages; returns how many, how many were accepted, and what was wrong.

    A message that is accepted uses up its lease, so it ends early when few are left.
    """
    draw = random.Random(seed)
    unused, wrong, accepted = list(messages), [], 0
    for done in range(count):
        if len(unused) < len(messages) // 2:
            return done, accepted, wrong
        original = draw.choice(unused)
        message = alter(draw, original, messages)
        note_opened(message)
        try:
            storage = _C._receive_storage(message)
        except RuntimeError as error:
            if not str(error):
                wrong.append((message.hex(), "an error without a text"))
            continue
        except Exception as error:
            wrong.append((message.hex(), repr(error)))
            continue
        accepted += 1
        if not is_inside(message, storage):
            wrong.append((message.hex(), f"{storage.nbytes()} bytes on {storage.device}"))
            continue
        read_ends(storage)
        lease = message[TICKETS["lease"] : TICKETS["lease"] + TICKET.size]
        unused = [one for one in unused if one[136 : 136 + TICKET.size] != lease]
    return count, accepted, wrong


def receive_while_open(messages):
    """Receives messages, the first of which keeps its memory open; returns the errors' types."""
    errors, storages = [], []
    for message in messages:
        note_opened(message)
        try:
            storages.append(_C._receive_storage(message))
        except Exception as error:
            errors.append(type(error).__name__)
            continue
        errors.append(None if is_inside(message, storages[-1]) else "outside of the memory")
    return errors


class TestStorageMessages(IpcTestCase):
    def setUp(self):
        super().setUp()
        self.sender, self.receiver = self.start_peer(), self.start_peer()

    def error_of(self, message, **values):
        return self.receiver.call(describe_error, with_fields(message, **values))

    def assert_refused(self, message, pattern, **values):
        error = self.error_of(message, **values)
        self.assertIsNotNone(error, f"{values} was accepted")
        kind, text = error
        self.assertEqual(kind, "RuntimeError")
        self.assertRegex(text, f"receiving a storage: {pattern}")

    def test_a_storage_lies_in_the_memory_that_was_shared(self):
        (message,) = self.sender.call(make_messages, 1)
        size = get(message, SIZE, 64)
        allocation = get(message, TICKETS["memory"] + 48, 64)
        pattern = r"expected a part of the \d+ bytes that were shared, got \d+ bytes at \d+"
        for values in (
            {"size": 2**40},
            {"size": 2**64 - 1},
            {"size": allocation + 1, "offset": 0},
            {"size": allocation, "offset": 8},
            {"offset": 2**45},
            {"offset": -(2**30)},
            {"offset": -1},
            {"offset": allocation - size + 1},
            {"offset": allocation},
            {"offset": 2**63, "size": 2**63},
        ):
            self.assert_refused(message, pattern, **values)
        self.assertIsNone(self.error_of(message, offset=allocation - size))

    def test_the_whole_of_the_memory_can_be_named(self):
        (message,) = self.sender.call(make_messages, 1)
        allocation = get(message, TICKETS["memory"] + 48, 64)
        self.assertIsNone(self.error_of(message, offset=0, size=allocation))

    def test_a_storage_is_on_a_device_of_the_receiver(self):
        (message,) = self.sender.call(make_messages, 1)
        for device in (-1, -255, -256, DEVICE_COUNT, 256, 2**32, 2**63 - 1, -(2**63)):
            pattern = (
                f"the sender's device {device} does not exist here; this process has {DEVICE_COUNT}"
            )
            self.assert_refused(message, pattern, device=device)
            self.assert_refused(message, pattern, device=device, size=0)

    @requires_two_devices
    @parametrize("device", [0, 1])
    def test_a_storage_is_on_the_device_of_its_memory(self, device):
        (message,) = self.sender.call(make_messages, 1, device)
        pattern = f"expected memory of .*:{1 - device}, .*, got memory of .*:{device}$"
        self.assert_refused(message, pattern, device=1 - device)
        self.assertIsNone(self.error_of(message))

    def test_an_own_message_is_that_of_the_storage(self):
        storage = torch.ones(10, device=DEVICE_TYPE).untyped_storage()
        message = _C._share_storage(storage)
        for values in ({"size": 36}, {"size": 2**40}, {"offset": 2**45}, {"offset": 1}):
            with self.assertRaisesRegex(RuntimeError, "receiving a storage: .* this process sent"):
                _C._receive_storage(with_fields(message, **values))
        self.assertEqual(_C._receive_storage(message)._cdata, storage._cdata)

    @requires_two_devices
    def test_an_own_message_is_on_the_device_of_the_storage(self):
        storage = torch.ones(10, device=DEVICE_TYPE).untyped_storage()
        message = _C._share_storage(storage)
        with self.assertRaisesRegex(RuntimeError, "receiving a storage: .* this process sent"):
            _C._receive_storage(with_fields(message, device=1))
        self.assertEqual(_C._receive_storage(message)._cdata, storage._cdata)

    def test_a_refused_message_opens_its_memory_all_the_same(self):
        genuine, other = self.sender.call(make_messages, 2)
        size = get(genuine, TICKETS["memory"] + 48, 64)
        enlarged = bytearray(other)
        put(enlarged, TICKETS["memory"] + 48, 64, 2 * size)
        put(enlarged, TICKETS["lease"] + 40, 64, 0)
        messages = [genuine, seal(enlarged), with_fields(other, offset=size)]
        errors = self.receiver.call(receive_while_open, messages)
        self.assertEqual(errors, [None, "AcceleratorError", None])

    def test_altered_messages_are_refused_or_lie_in_the_memory_that_they_name(self):
        done = accepted = 0
        while done < STORAGE_MESSAGES:
            messages = self.sender.call(make_messages, 200, None)
            self.receiver.begin(receive_altered, SEED + done, STORAGE_MESSAGES - done, messages)
            tried, taken, wrong = self.receiver.result()
            self.assertFalse(wrong, str(wrong))
            self.assertGreater(tried, 0)
            done, accepted = done + tried, accepted + taken
        self.assertGreater(accepted, done // 100)
        self.assertLess(accepted, done // 2)
        # Both go on as before.
        (message,) = self.sender.call(make_messages, 1)
        self.assertIsNone(self.receiver.call(describe_error, message))


# --- Headers of the distributed backend, as in CollectiveSignature.h

HEADER = struct.Struct("<QIIiiiIQqqQQ432sQ")
HEADER_FIELDS = [
    *((position, 32) for position in range(8, 32, 4)),
    *((position, 64) for position in (0, *range(32, 72, 8), HEADER.size - 8)),
]
TEXT = 72
MAGIC = 0x6F63636C2D686431
READY, FAILED, LEAVING = 1, 2, 3


def make_header(state=READY, text=b"", end=MAGIC, **values):
    """Returns a header of an all_reduce of four numbers."""
    fields = {"magic": MAGIC, "state": state, "kind": 0, "dtype": 6, "reduce_op": 0, "root": -1}
    fields |= {"count": 1, "number": 5, "bytes_to": 16, "bytes_from": 16}
    fields |= {"digest_to": 77, "digest_from": 77}
    return HEADER.pack(*(fields | values).values(), text, end)


def expected_text(message):
    """Returns the text of a header, as Python reads it."""
    return message[TEXT : TEXT + 431].split(b"\0")[0].decode("utf-8", "replace")


class TestHeaders(TestCase):
    def test_a_header_that_fits_is_accepted(self):
        self.assertEqual(HEADER.size, 512)
        self.assertEqual(_C._find_header_fault(make_header(), make_header(), 1), "")

    def test_a_text_without_an_end_is_cut(self):
        message = make_header(FAILED, b"x" * 432)
        self.assertEqual(
            _C._find_header_fault(make_header(), message, 1), "rank 1 has failed: " + "x" * 431
        )

    def test_a_text_that_is_not_utf8_is_an_error_all_the_same(self):
        text = (
            bytes(range(1, 256)) + b"\xf0\x9f\x98 \xed\xa0\x80 \xe0\x80 \xf4\x90\x80\x80 \xe2\x82"
        )
        message = make_header(FAILED, text)
        self.assertEqual(
            _C._find_header_fault(make_header(), message, 1),
            "rank 1 has failed: " + text.decode("utf-8", "replace"),
        )

    def test_a_text_is_cut_at_the_end_of_a_character(self):
        for text in ("ä" * 300, "x" + "ä" * 300, "€" * 200, "xy" + "😀" * 200, "a" * 500, "short"):
            cut = _C._text_of_header(text)
            self.assertTrue(text.startswith(cut), text)
            self.assertLessEqual(len(cut.encode()), 431)
            self.assertTrue(cut == text or len(text[: len(cut) + 1].encode()) > 431, text)

    def test_what_is_not_a_header_is_told_from_one(self):
        own = make_header()
        fault = "rank 3 sent an invalid header"
        for message in (
            b"",
            own[:100],
            own[: HEADER.size - 1],
            make_header(end=0),
            make_header(magic=0),
            make_header(state=0),
            make_header(state=LEAVING),
            make_header(state=4),
        ):
            self.assertIn(fault, _C._find_header_fault(own, message, 3))

    def test_each_number_of_a_header_is_compared(self):
        for values in (
            {"kind": 1},
            {"kind": 99},
            {"dtype": 7},
            {"dtype": -1},
            {"dtype": 300},
            {"dtype": 2**31 - 1},
            {"reduce_op": 99},
            {"root": 3},
            {"count": 9},
            {"number": 6},
            {"bytes_to": 17},
            {"bytes_from": -1},
            {"digest_to": 1},
            {"digest_from": 1},
        ):
            fault = _C._find_header_fault(make_header(), make_header(**values), 1)
            self.assertIn("this rank", fault, values)
            self.assertIn("rank 1", fault + "rank 1" * ("digest_to" in values), values)

    def test_altered_headers_have_faults_in_words(self):
        draw = random.Random(SEED)
        own = make_header()
        states = {READY: 0, FAILED: 0}
        for _ in range(HEADERS):
            state = draw.choice([READY, READY, FAILED, LEAVING])
            text = draw.choice([b"", b"a cause", "eine Ursache für €😀".encode() * 40])
            message = bytearray(make_header(state, text[: draw.randrange(433)]))
            kind = draw.randrange(8)
            if kind == 0:
                message = message[: draw.randrange(len(message))]
            elif kind == 1:
                message += draw.randbytes(draw.randrange(1, 2000))
            elif kind == 2:
                message = bytearray(draw.randbytes(draw.randrange(2048)))
            elif kind == 3:
                start = TEXT + draw.randrange(432)
                message[start : HEADER.size - 8] = draw.randbytes(HEADER.size - 8 - start)
            else:
                for _ in range(draw.randrange(1, 4)):
                    position, bits = draw.choice(HEADER_FIELDS)
                    old = get(message, position, bits)
                    put(message, position, bits, numbers(draw, bits, old, [old]))
            message = bytes(message)
            fault = _C._find_header_fault(own, message, 1)
            if message[:TEXT] == own[:TEXT] and message[HEADER.size - 8 : HEADER.size] == own[-8:]:
                self.assertEqual(fault, "", message.hex())
                states[READY] += 1
                continue
            self.assertNotEqual(fault, "", message.hex())
            whole = message.ljust(HEADER.size, b"\0")
            if get(whole, 0, 64) == get(whole, HEADER.size - 8, 64) == MAGIC and (
                get(whole, 8, 32) == FAILED
            ):
                self.assertEqual(fault, "rank 1 has failed: " + expected_text(whole))
                states[FAILED] += 1
        self.assertGreater(min(states.values()), HEADERS // 100)


instantiate_parametrized_tests(TestStorageMessages)

if __name__ == "__main__":
    run_tests()
