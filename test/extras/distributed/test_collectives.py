"""Every collective against the same one of Gloo on the CPU, and against its definition."""

import functools
import itertools
import os
import unittest
import zlib

import pytest
import torch
import torch.distributed as dist
from common import (
    DEVICE_TYPE,
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_tests,
)
from extras.distributed.ranks import NAME, Ranks, device_of
from torch.distributed import ReduceOp

pytestmark = pytest.mark.sample(0.067)

# With the device type CUDA, the kernels are the same: two ranks, and a type of each kind.
SIZES = (2,) if DEVICE_TYPE == "cuda" else (2, 4)

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64)
COMPLEX = (torch.complex64, torch.complex128)
FLOAT8 = (
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
)
REDUCED = (*FLOATS, *INTEGERS, torch.bool, *COMPLEX)
CARRIED = (*REDUCED, *FLOAT8)
NOT_TAKEN = (torch.int16, torch.uint16, torch.uint32)

ARITHMETIC = ("SUM", "AVG", "PRODUCT", "MIN", "MAX")
BITWISE = () if NAME == "nccl" else ("BAND", "BOR", "BXOR")

# Up to 1536 bytes are sent with the header.
SHAPES = ((3, 4), (), (0,), (384,), (40, 40))
LAYOUTS = ("contiguous", "transposed", "offset")
MODES = ("sync", "async", "coalesced")


def cases(name, *lists):
    """Returns one in four combinations, always the same ones for a name, or all in a full run."""
    combinations = list(itertools.product(*lists))
    if os.environ.get("OPENREG_TEST_FULL"):
        return combinations
    return combinations[zlib.crc32(name.encode()) % 4 :: 4]


def types_for_device(dtypes):
    """Returns those to test on the device type; see SIZES."""
    kinds = (torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn)
    return dtypes if DEVICE_TYPE != "cuda" else tuple(each for each in dtypes if each in kinds)


def ops_of(dtype):
    """Returns the names of the reductions that a dtype has."""
    if dtype.is_complex:
        return ("SUM", "AVG")
    if dtype is torch.bool:
        return ("SUM", "PRODUCT", "MIN", "MAX", *BITWISE)
    return ARITHMETIC if dtype.is_floating_point else (*ARITHMETIC, *BITWISE)


def values(rank, shape, dtype, salt=0):
    """Returns small whole numbers that differ by rank and place; sums of them are exact."""
    count = torch.Size(shape).numel()
    numbers = (torch.arange(count) * 7 + rank * 3 + salt * 5) % 4 + 1
    if dtype is torch.bool:
        numbers = numbers % 2
    return numbers.reshape(shape).to(dtype)


def laid_out(tensor, layout):
    """Returns a tensor with the same elements, of another layout."""
    if layout == "transposed" and tensor.dim() == 2:
        return tensor.t().contiguous().t()
    if layout == "offset":
        whole = torch.empty(tensor.numel() + 3, dtype=tensor.dtype, device=tensor.device)
        part = whole[3:].view(tensor.shape)
        part.copy_(tensor)
        return part
    return tensor


def on_device(rank, tensor, layout="contiguous"):
    return laid_out(tensor.to(device_of(rank)), layout)


def same_bits(actual, expected):
    actual = actual.cpu().contiguous().reshape(-1).view(torch.uint8)
    expected = expected.contiguous().reshape(-1).view(torch.uint8)
    return torch.equal(actual, expected)


def reduced(op, inputs):
    """Returns a reduction by its definition."""
    stack = torch.stack(inputs)
    dtype = stack.dtype
    if dtype is torch.bool:
        stack = stack.to(torch.uint8)
        result = {
            "SUM": lambda: stack.amax(0),
            "MAX": lambda: stack.amax(0),
            "BOR": lambda: stack.amax(0),
            "PRODUCT": lambda: stack.amin(0),
            "MIN": lambda: stack.amin(0),
            "BAND": lambda: stack.amin(0),
            "BXOR": lambda: stack.sum(0) % 2,
        }[op]()
        return result.to(torch.bool)
    if op in BITWISE:
        function = {
            "BAND": torch.bitwise_and,
            "BOR": torch.bitwise_or,
            "BXOR": torch.bitwise_xor,
        }[op]
        result = inputs[0]
        for other in inputs[1:]:
            result = function(result, other)
        return result
    if op in ("SUM", "AVG"):
        total = stack.sum(0, dtype=dtype)
        if op == "SUM":
            return total
        if dtype.is_floating_point or dtype.is_complex:
            return total / len(inputs)
        return torch.div(total, len(inputs), rounding_mode="trunc")
    return {"PRODUCT": stack.prod, "MIN": stack.amin, "MAX": stack.amax}[op](0).to(dtype)


class Checker:
    """Collects what differs."""

    def __init__(self):
        self.count = 0
        self.wrong = []

    def check(self, what, actual, expected):
        self.count += 1
        if not same_bits(actual, expected):
            self.wrong.append(f"{what}: got {actual.cpu()}, not {expected}")

    def result(self):
        return self.count, self.wrong[:10]


def issue(mode, collective):
    """Calls a collective in a mode, and waits for it as the mode has it."""
    if mode == "sync":
        collective(False)
    elif mode == "async":
        collective(True).wait()
    else:
        device = torch.device(device_of(0).type)
        with dist._coalescing_manager(device=device, async_ops=True) as manager:
            collective(True)
        manager.wait()


def compare_reductions(rank, size, dtype):
    checker = Checker()
    for op, shape, layout, mode in cases(
        f"reductions of {dtype}", ops_of(dtype), SHAPES, LAYOUTS, MODES
    ):
        inputs = [values(peer, shape, dtype) for peer in range(size)]
        expected = reduced(op, inputs)
        what = (op, dtype, shape, layout, mode)
        reduce_op = getattr(ReduceOp, op)

        x = on_device(rank, inputs[rank], layout)
        issue(mode, lambda a: dist.all_reduce(x, reduce_op, async_op=a))  # noqa: B023
        checker.check(("all_reduce", *what), x, expected)

        root = size - 1
        x = on_device(rank, inputs[rank], layout)
        issue(mode, lambda a: dist.reduce(x, root, reduce_op, async_op=a))  # noqa: B023
        checker.check(("reduce", *what), x, expected if rank == root else inputs[rank])

        lists = [[values(peer, shape, dtype, salt) for salt in range(size)] for peer in range(size)]
        expected = reduced(op, [each[rank] for each in lists])
        out = laid_out(torch.empty(shape, dtype=dtype, device=device_of(rank)), layout)
        parts = [on_device(rank, part, layout) for part in lists[rank]]
        issue(mode, lambda a: dist.reduce_scatter(out, parts, reduce_op, async_op=a))  # noqa: B023
        checker.check(("reduce_scatter", *what), out, expected)

        out = laid_out(torch.empty(shape, dtype=dtype, device=device_of(rank)), layout)
        whole = torch.stack(lists[rank]).reshape(
            (size * shape[0], *shape[1:]) if shape else (size,)
        )
        source = on_device(rank, whole, layout)
        issue(
            mode,
            lambda a: dist.reduce_scatter_tensor(out, source, reduce_op, async_op=a),  # noqa: B023
        )
        checker.check(("reduce_scatter_tensor", *what), out, expected)
        checker.check(("reduce_scatter_tensor's input", *what), source, whole)
    return checker.result()


def compare_with_gloo(rank, size, dtype):
    """Sums of numbers that are not whole, in the bits that Gloo gives on the CPU."""
    checker = Checker()
    for op, count in itertools.product(("SUM", "PRODUCT", "AVG"), (1, 17, 1000)):
        if op != "SUM" and dtype.is_complex:
            continue
        generator = torch.Generator().manual_seed(rank)
        x = torch.rand(count, generator=generator, dtype=torch.float64).to(dtype)
        reduce_op = getattr(ReduceOp, op)
        mine, theirs = x.to(device_of(rank)), x.clone()
        dist.all_reduce(mine, reduce_op)
        dist.all_reduce(theirs, reduce_op)
        checker.check(("all_reduce", op, dtype, count), mine, theirs)
    return checker.result()


def compare_moves(rank, size, dtype):
    checker = Checker()
    device = device_of(rank)
    for shape, layout, mode in cases(f"moves of {dtype}", SHAPES, LAYOUTS, MODES):
        what = (dtype, shape, layout, mode)
        inputs = [values(peer, shape, dtype) for peer in range(size)]
        flat_shape = (size * shape[0], *shape[1:]) if shape else (size,)
        all_inputs = torch.stack(inputs).reshape(flat_shape)

        def empty(shape=shape, layout=layout):
            return laid_out(torch.empty(shape, dtype=dtype, device=device), layout)

        for root in range(size):
            x = on_device(rank, inputs[rank], layout)
            issue(mode, lambda a: dist.broadcast(x, root, async_op=a))  # noqa: B023
            checker.check(("broadcast", *what), x, inputs[root])

        root = size - 1
        x = on_device(rank, inputs[rank], layout)
        outs = [empty() for _ in range(size)]
        issue(mode, lambda a: dist.all_gather(outs, x, async_op=a))  # noqa: B023
        for peer in range(size):
            checker.check(("all_gather", *what), outs[peer], inputs[peer])

        out = empty(flat_shape)
        issue(mode, lambda a: dist.all_gather_into_tensor(out, x, async_op=a))  # noqa: B023
        checker.check(("all_gather_into_tensor", *what), out, all_inputs)

        outs = [empty() for _ in range(size)] if rank == root else None
        issue(mode, lambda a: dist.gather(x, outs, root, async_op=a))  # noqa: B023
        for peer in range(size if rank == root else 0):
            checker.check(("gather", *what), outs[peer], inputs[peer])

        out = empty()
        parts = [on_device(rank, part, layout) for part in inputs] if rank == root else None
        issue(mode, lambda a: dist.scatter(out, parts, root, async_op=a))  # noqa: B023
        checker.check(("scatter", *what), out, inputs[rank])

        lists = [[values(peer, shape, dtype, salt) for salt in range(size)] for peer in range(size)]
        parts = [on_device(rank, part, layout) for part in lists[rank]]
        outs = [empty() for _ in range(size)]
        issue(mode, lambda a: dist.all_to_all(outs, parts, async_op=a))  # noqa: B023
        for peer in range(size):
            checker.check(("all_to_all", *what), outs[peer], lists[peer][rank])

        out = empty(flat_shape)
        source = on_device(rank, torch.stack(lists[rank]).reshape(flat_shape), layout)
        issue(mode, lambda a: dist.all_to_all_single(out, source, async_op=a))  # noqa: B023
        expected = torch.stack([lists[peer][rank] for peer in range(size)]).reshape(flat_shape)
        checker.check(("all_to_all_single", *what), out, expected)
    return checker.result()


def compare_unequal(rank, size):
    checker = Checker()
    device = device_of(rank)
    # Rank r has r + 1 rows, or none.
    for first in (1, 0):
        rows = [peer + first for peer in range(size)]
        inputs = [values(peer, (rows[peer], 3), torch.float32) for peer in range(size)]
        outs = [torch.empty(count, 3, device=device) for count in rows]
        dist.all_gather(outs, inputs[rank].to(device))
        for peer in range(size):
            checker.check(("all_gather", first, peer), outs[peer], inputs[peer])

        lists = [
            [values(peer, (count, 3), torch.float32, salt) for salt, count in enumerate(rows)]
            for peer in range(size)
        ]
        out = torch.empty(rows[rank], 3, device=device)
        dist.reduce_scatter(out, [part.to(device) for part in lists[rank]])
        checker.check(("reduce_scatter", first), out, sum(each[rank] for each in lists))

        # Rank p sends p + q + first rows to rank q.
        def block(peer, to, first=first):
            return values(peer, (peer + to + first, 2), torch.int64, to)

        outs = [torch.empty_like(block(peer, rank), device=device) for peer in range(size)]
        dist.all_to_all(outs, [block(rank, to).to(device) for to in range(size)])
        for peer in range(size):
            checker.check(("all_to_all", first, peer), outs[peer], block(peer, rank))

        source = torch.cat([block(rank, to) for to in range(size)]).to(device)
        expected = torch.cat([block(peer, rank) for peer in range(size)])
        out = torch.empty_like(expected, device=device)
        splits = [rank + peer + first for peer in range(size)]
        dist.all_to_all_single(out, source, splits, splits)
        checker.check(("all_to_all_single", first), out, expected)
    return checker.result()


def compare_premultiplied(rank, size):
    """Each rank multiplies its inputs by its own factor; the sums are exact."""
    checker = Checker()
    device = device_of(rank)
    factors = [2.0 + peer for peer in range(size)]
    dtypes = (*FLOATS, *COMPLEX)
    for dtype, is_tensor, layout, mode in cases(
        "premultiplied", dtypes, (False, True), LAYOUTS, MODES
    ):
        what = (dtype, is_tensor, layout, mode)
        factor = torch.tensor(factors[rank], device=device) if is_tensor else factors[rank]
        op = dist._make_nccl_premul_sum(factor)
        lists = [[values(peer, (3, 4), dtype, to) for to in range(size)] for peer in range(size)]
        inputs = [each[0] for each in lists]
        scattered = sum(f * each[rank] for f, each in zip(factors, lists, strict=True))
        total = sum(f * x for f, x in zip(factors, inputs, strict=True))

        x = on_device(rank, inputs[rank], layout)
        issue(mode, lambda a: dist.all_reduce(x, op, async_op=a))  # noqa: B023
        checker.check(("all_reduce", *what), x, total)

        root = size - 1
        x = on_device(rank, inputs[rank], layout)
        issue(mode, lambda a: dist.reduce(x, root, op, async_op=a))  # noqa: B023
        checker.check(("reduce", *what), x, total if rank == root else inputs[rank])

        parts = [on_device(rank, part, layout) for part in lists[rank]]
        out = laid_out(torch.empty(3, 4, dtype=dtype, device=device), layout)
        issue(mode, lambda a: dist.reduce_scatter(out, parts, op, async_op=a))  # noqa: B023
        checker.check(("reduce_scatter", *what), out, scattered)
        for part, expected in zip(parts, lists[rank], strict=True):
            checker.check(("reduce_scatter's input", *what), part, expected)

        whole = torch.cat(lists[rank])
        source = on_device(rank, whole, layout)
        out = laid_out(torch.empty(3, 4, dtype=dtype, device=device), layout)
        issue(mode, lambda a: dist.reduce_scatter_tensor(out, source, op, async_op=a))  # noqa: B023
        checker.check(("reduce_scatter_tensor", *what), out, scattered)
        checker.check(("reduce_scatter_tensor's input", *what), source, whole)
    return checker.result()


def compare_coalesced(rank, size):
    checker = Checker()
    device = device_of(rank)
    xs = [values(rank, (count,), torch.float32).to(device) for count in (1, 7, 100)]
    before = operation_count()
    with dist._coalescing_manager() as manager:
        for x in xs:
            dist.all_reduce(x)
    del manager
    for x in xs:
        inputs = [values(peer, x.shape, torch.float32) for peer in range(size)]
        checker.check("all_reduce", x, sum(inputs))
    assert operation_count() == before + 1, "a batch is one operation"

    inputs = [values(rank, (count,), torch.float32).to(device) for count in (2, 5)]
    outs = [torch.empty(size * x.numel(), device=device) for x in inputs]
    with dist._coalescing_manager(async_ops=True) as manager:
        for out, x in zip(outs, inputs, strict=True):
            dist.all_gather_into_tensor(out, x)
    manager.wait()
    for out, x in zip(outs, inputs, strict=True):
        expected = [values(peer, x.shape, torch.float32) for peer in range(size)]
        checker.check("all_gather_into_tensor", out, torch.cat(expected))

    # Several kinds in one batch, launched as one.
    x, y = values(rank, (3,), torch.float32).to(device), torch.full((2,), rank, device=device)
    before = operation_count()
    with dist._coalescing_manager(device=torch.device(device.type), async_ops=True) as manager:
        dist.all_reduce(x, async_op=True)
        dist.broadcast(y, 1, async_op=True)
    manager.wait()
    checker.check("mixed", x, sum(values(peer, (3,), torch.float32) for peer in range(size)))
    checker.check("mixed", y, torch.full((2,), 1))
    assert operation_count() == before + 1, "a batch is one operation"
    return checker.result()


QUANTIZED = (torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4)


# torch hands complex numbers over as pairs, so these as pairs of 16 bits each.
PAIRS = {torch.complex32: torch.float16}
if hasattr(torch, "bcomplex32"):  # since 2.15
    PAIRS[torch.bcomplex32] = torch.bfloat16


def every_dtype(rank, size):
    """Returns, for each dtype of torch, what comes of it: right bits, or an error of the call."""
    device = device_of(rank)

    def sample(peer, dtype):
        if dtype in REDUCED:
            return values(peer, (8,), dtype)
        if dtype in PAIRS:
            return values(peer, (16,), PAIRS[dtype]).view(dtype)
        return values(peer, (8 * dtype.itemsize,), torch.uint8).view(dtype)

    def outcome(collective, results, expected):
        try:
            collective()
        except (RuntimeError, TypeError, ValueError) as error:
            return type(error).__name__
        is_right = all(same_bits(x, y) for x, y in zip(results, expected, strict=True))
        return "right" if is_right else "wrong"

    def outcomes(dtype):
        # Quantized tensors cannot be copied: any error is accepted for them, torch's included.
        if dtype in QUANTIZED:
            x = torch.empty(8, dtype=dtype, device=device)
            inputs, outs, copies = [x] * size, [x] * size, [x, x, x]
        else:
            inputs = [sample(peer, dtype) for peer in range(size)]
            outs = [torch.empty(8, dtype=dtype, device=device) for _ in range(size)]
            copies = [inputs[rank].to(device) for _ in range(3)]
        x, total, maximum = copies
        gathered = outcome(lambda: dist.all_gather(outs, x), outs, inputs)
        is_summed = dtype in REDUCED
        has_maximum = is_summed and not dtype.is_complex
        if dtype in PAIRS:
            parts = reduced("SUM", [each.view(PAIRS[dtype]) for each in inputs])
            expected_sum = parts.view(dtype)
        else:
            expected_sum = reduced("SUM", inputs) if is_summed else inputs[rank]
        return {
            "all_gather": gathered,
            "broadcast": outcome(lambda: dist.broadcast(x, 1), [x], [inputs[1]]),
            "SUM": outcome(
                lambda: dist.all_reduce(total),
                [total],
                [expected_sum],
            ),
            "MAX": outcome(
                lambda: dist.all_reduce(maximum, ReduceOp.MAX),
                [maximum],
                [reduced("MAX", inputs) if has_maximum else inputs[rank]],
            ),
        }

    return {str(each): outcomes(each) for each in sorted(every_dtype_of_torch(), key=str)}


def every_dtype_of_torch():
    return {each for each in vars(torch).values() if isinstance(each, torch.dtype)}


def operation_count():
    """Returns how many operations this rank has issued."""
    backend = dist.distributed_c10d._get_default_group()._get_backend(device_of(0))
    return backend._get_sequence_number_for_group()


def exchange_messages(rank, size):
    checker = Checker()
    device = device_of(rank)
    left, right = (rank - 1) % size, (rank + 1) % size
    for dtype, shape in itertools.product(CARRIED, ((3, 4), (), (0,))):
        # Both directions at once, which would wait for each other on one stream.
        x = values(rank, shape, dtype).to(device)
        y = torch.empty(shape, dtype=dtype, device=device)
        works = [dist.isend(x, right), dist.irecv(y, left)]
        for work in works:
            work.wait()
        checker.check(("isend", dtype, shape), y, values(left, shape, dtype))
        y = torch.empty(shape, dtype=dtype, device=device)
        batch = [dist.P2POp(dist.isend, x, right), dist.P2POp(dist.irecv, y, left)]
        for work in dist.batch_isend_irecv(batch):
            work.wait()
        checker.check(("batch", dtype, shape), y, values(left, shape, dtype))
    # Tags distinguish messages, and messages with one tag keep their order.
    first, second, third = (torch.empty(2, device=device) for _ in range(3))
    works = [
        dist.isend(torch.full((2,), 10.0 + rank, device=device), right, tag=1),
        dist.isend(torch.full((2,), 20.0 + rank, device=device), right, tag=2),
        dist.isend(torch.full((2,), 30.0 + rank, device=device), right, tag=1),
        dist.irecv(second, left, tag=2),
        dist.irecv(first, left, tag=1),
        dist.irecv(third, left, tag=1),
    ]
    for work in works:
        work.wait()
    for tensor, value in ((first, 10.0), (second, 20.0), (third, 30.0)):
        checker.check("tags", tensor, torch.full((2,), value + left))
    # From anybody.
    dist.barrier()
    if NAME == "nccl":
        pass  # refused, as cuda/test_distributed.py expects
    elif rank == 0:
        sources = []
        for _ in range(size - 1):
            x = torch.empty(3, device=device)
            source = dist.recv(x)
            sources.append(source)
            checker.check("any source", x, torch.full((3,), float(source)))
        assert sorted(sources) == list(range(1, size)), sources
    else:
        dist.send(torch.full((3,), float(rank), device=device), 0)
    return checker.result()


def receive_from_anybody(rank, size):
    """Asynchronous receives without a source, posted before there is anything to receive."""
    checker = Checker()
    device = device_of(rank)
    count = 3
    if rank == 0:
        tags = [tag for tag in (1, 2) for _ in range(count * (size - 1))]
        received = [torch.zeros(5, dtype=torch.int64, device=device) for _ in tags]
        works = [dist.irecv(x, tag=tag) for x, tag in zip(received, tags, strict=True)]
        assert not any(work.is_completed() for work in works)
        dist.barrier(group=_cpu_group())
        seen = []
        for work, x, tag in zip(works, received, tags, strict=True):
            work.wait()
            source = work._source_rank()
            number = int(x[1].item())
            seen.append((tag, source, number))
            checker.check("any source", x, torch.tensor([source, number, tag, 7, 7]))
        # A receive with a source works after those.
        last = torch.zeros(5, dtype=torch.int64, device=device)
        work = dist.irecv(last, 1, tag=1)
        dist.barrier(group=_cpu_group())
        work.wait()
        checker.check("with a source", last, torch.tensor([1, count, 1, 7, 7]))
        # All have come, and those of a sender and a tag in order.
        for tag in (1, 2):
            for source in range(1, size):
                numbers = [n for t, s, n in seen if (t, s) == (tag, source)]
                assert numbers == list(range(count)), seen
    else:
        dist.barrier(group=_cpu_group())
        works = []
        for tag in (2, 1):
            for number in range(count):
                x = torch.tensor([rank, number, tag, 7, 7], device=device)
                works.append(dist.isend(x, 0, tag=tag))
        for work in works:
            work.wait()
        # Any-source receives would take it from the one that is meant.
        dist.barrier(group=_cpu_group())
        if rank == 1:
            dist.send(torch.tensor([rank, count, 1, 7, 7], device=device), 0, tag=1)
    torch.openreg.synchronize()
    return checker.count or 1, checker.wrong


@functools.cache
def _cpu_group():
    return dist.new_group(backend="gloo")


def batch_from_anybody(rank, size):
    """In a batch, torch rejects it at the call."""
    x = torch.ones(3, device=device_of(rank))
    before = operation_count()
    texts = []
    try:
        dist.batch_isend_irecv([dist.P2POp(dist.irecv, x)])
    except ValueError as error:
        texts.append(str(error))
    assert operation_count() == before
    return texts


def exchange_with_itself(rank, size):
    """Messages of a rank to itself, among others, in one batch."""
    device = device_of(rank)
    checker = Checker()
    received = [torch.empty(3, 2, device=device) for _ in range(size)]
    again = torch.empty(2, 3, device=device).t()
    operations = []
    for peer in range(size):
        sent = torch.full((3, 2), 10.0 * rank + peer, device=device)
        operations.append(dist.P2POp(dist.irecv, received[peer], peer))
        operations.append(dist.P2POp(dist.isend, sent, peer))
    second = torch.arange(6.0, device=device).view(3, 2)
    operations.append(dist.P2POp(dist.isend, second, rank, tag=4))
    operations.append(dist.P2POp(dist.irecv, again, rank, tag=4))
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    for peer in range(size):
        checker.check(f"from {peer}", received[peer], torch.full((3, 2), 10.0 * peer + rank))
    checker.check("another tag", again, torch.arange(6.0).view(3, 2))
    return checker.result()


def exchange_objects(rank, size):
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * (10 * rank)})
    assert [each["rank"] for each in objects] == list(range(size)), objects
    shared = ["a", rank] if rank == 0 else [None, None]
    dist.broadcast_object_list(shared, 0, device=device_of(rank))
    assert shared == ["a", 0], shared
    mine = [None]
    dist.scatter_object_list(mine, list(range(size)) if rank == 0 else None, 0)
    assert mine == [rank], mine
    gathered = [None] * size if rank == 0 else None
    dist.gather_object((rank,), gathered, 0)
    assert rank != 0 or gathered == [(peer,) for peer in range(size)], gathered


def refused_calls(rank, size):
    """Returns the types of the errors that calls raise before they enqueue work."""
    device = device_of(rank)
    x = torch.ones(4, device=device)
    wide = torch.ones(4, 4, device=device)
    group = dist.distributed_c10d._get_default_group()
    calls = {
        "dtype": [
            *(
                lambda dtype=dtype: dist.broadcast(torch.empty(2, dtype=dtype, device=device), 0)
                for dtype in NOT_TAKEN
            ),
            *(
                lambda dtype=dtype: dist.all_reduce(torch.ones(2, device=device).to(dtype))
                for dtype in FLOAT8
            ),
            lambda: dist.all_reduce(x.bool(), ReduceOp.AVG),
            lambda: dist.all_reduce(x.int(), dist._make_nccl_premul_sum(2.0)),
            lambda: group._allgather_base(torch.empty(4 * size, device=device), x.int()),
        ],
        "value": [
            lambda: dist.all_reduce(wide[:, ::2]),
            lambda: dist.broadcast(x.expand(2, 4), 0),
            lambda: dist.all_gather_into_tensor(torch.empty(3, device=device), x),
            lambda: dist.reduce_scatter_tensor(torch.empty(3, device=device), x),
            lambda: dist.all_gather([torch.empty(4, device=device)] * (size + 1), x),
            lambda: dist.all_to_all_single(x.clone(), x, [9] * size, [9] * size),
            lambda: dist.all_to_all_single(x.clone(), x, [4] * (size + 1), [4] * (size + 1)),
            lambda: dist.isend(x, (rank + 1) % size, tag=2**31 - 1),
        ],
    }
    # NCCL has none, whatever the dtype.
    kind_of_bitwise = "value" if NAME == "nccl" else "dtype"
    calls[kind_of_bitwise].append(lambda: dist.all_reduce(x, ReduceOp.BAND))
    sparse = torch.eye(4, device=device).to_sparse()
    calls["layout"] = [lambda: dist.all_reduce(sparse), lambda: dist.broadcast(sparse, 0)]
    alone = dist.P2POp(dist.isend, x, rank)
    wrong_size = dist.P2POp(dist.irecv, torch.empty(3, device=device), rank)
    calls["value"] += [
        lambda: dist.batch_isend_irecv([alone]),
        lambda: dist.batch_isend_irecv([alone, wrong_size]),
    ]
    # torch itself rejects collectives on CUDA: RuntimeError.
    kinds = {"dtype": TypeError, "value": ValueError, "layout": RuntimeError}
    before = operation_count()
    for kind, functions in calls.items():
        for index, function in enumerate(functions):
            try:
                function()
            except kinds[kind] as error:
                is_of_nccl = "NCCL" in str(error)
                assert kind == "layout" or is_of_nccl or ": expected " in str(error), error
            else:
                raise AssertionError(f"{kind} {index} was not refused")
    assert operation_count() == before
    dist.all_reduce(x)
    return x[0].item()


def refused_devices(rank, size):
    """Calls with tensors of two devices; returns the texts of the errors, and a sum after them."""
    device = device_of(rank)
    other = torch.device(DEVICE_TYPE, 1 - device.index)
    group = dist.distributed_c10d._get_default_group()

    def ones(count, where=device):
        return torch.ones(count, device=where)

    def lists(where):
        return [ones(4, where)] + [ones(4) for _ in range(size - 1)]

    def batch():
        with dist._coalescing_manager():
            dist.all_gather_into_tensor(ones(4 * size, other), ones(4))

    def batch_of_two():
        with dist._coalescing_manager():
            dist.all_reduce(ones(4))
            dist.all_reduce(ones(4, other))

    is_root = rank == 0
    factor = dist._make_nccl_premul_sum(torch.tensor(2.0, device=other))
    calls = {
        "all_gather": [
            lambda: dist.all_gather_into_tensor(ones(4 * size, other), ones(4)),
            lambda: dist.all_gather_into_tensor(ones(4 * size), ones(4, other)),
            lambda: group.allgather_into_tensor_coalesced(
                [ones(4 * size), ones(4 * size, other)], [ones(4), ones(4)]
            ),
            lambda: group.allgather_into_tensor_coalesced(
                [ones(4 * size), ones(4 * size)], [ones(4), ones(4, other)]
            ),
            lambda: dist.all_gather(lists(other), ones(4)),
            batch,
        ],
        "reduce_scatter": [
            lambda: dist.reduce_scatter_tensor(ones(4), ones(4 * size, other)),
            lambda: dist.reduce_scatter_tensor(ones(4, other), ones(4 * size)),
            lambda: group.reduce_scatter_tensor_coalesced(
                [ones(4), ones(4)], [ones(4 * size), ones(4 * size, other)]
            ),
            lambda: dist.reduce_scatter(ones(4), lists(other)),
            lambda: dist.reduce_scatter_tensor(ones(4), ones(4 * size), factor),
        ],
        "all_to_all": [
            lambda: dist.all_to_all_single(ones(size), ones(size, other)),
            lambda: dist.all_to_all_single(ones(size, other), ones(size)),
            lambda: dist.all_to_all(lists(other), lists(device)),
            lambda: dist.all_to_all(lists(device), lists(other)),
        ],
        "all_reduce": [
            lambda: dist.all_reduce_coalesced([ones(4), ones(4, other)]),
            lambda: dist.all_reduce(ones(4), factor),
            batch_of_two,
        ],
        "reduce": [lambda: dist.reduce(ones(4), 0, factor)],
        "gather": [lambda: dist.gather(ones(4), lists(other))] * is_root,
        "scatter": [lambda: dist.scatter(ones(4), lists(other))] * is_root,
    }
    texts = []
    before = operation_count()
    for kind, functions in calls.items():
        for index, function in enumerate(functions):
            try:
                function()
            except ValueError as error:
                texts.append((kind, str(error)))
            else:
                raise AssertionError(f"{kind} {index} was not refused")
    assert operation_count() == before
    x = ones(4)
    dist.all_reduce(x)
    return texts, x[0].item()


class TestCases(TestCase):
    def test_cases_depend_on_their_name_alone(self):
        lists = range(3), "abcd", range(5)
        chosen = [cases(f"name {number}", *lists) for number in range(40)]
        self.assertEqual(chosen, [cases(f"name {number}", *lists) for number in range(40)])
        self.assertEqual(sorted(set(itertools.chain(*chosen))), list(itertools.product(*lists)))


class TestCollectives(TestCase):
    """What all ranks return is the number of comparisons and a list of what was wrong."""

    teams: dict[int, Ranks]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.teams = {}

    @classmethod
    def team(cls, size):
        """Returns the processes of a size; new ones if a test has lost those before."""
        if size not in cls.teams or not cls.teams[size].is_alive():
            cls.teams[size] = Ranks(size)
        return cls.teams[size]

    @classmethod
    def tearDownClass(cls):
        for team in cls.teams.values():
            if team.is_alive():
                team.close()
        super().tearDownClass()

    def compare(self, size, function, *args):
        for count, wrong in self.team(size).run(function, *args):
            self.assertGreater(count, 0)
            self.assertEqual(wrong, [])

    @parametrize("size", SIZES)
    @parametrize("dtype", types_for_device(REDUCED))
    def test_reductions(self, size, dtype):
        self.compare(size, compare_reductions, dtype)

    @parametrize("size", SIZES)
    @parametrize("dtype", types_for_device((*FLOATS, torch.complex64)))
    def test_sums_have_the_bits_of_gloo_on_the_cpu(self, size, dtype):
        self.compare(size, compare_with_gloo, dtype)

    @parametrize("size", SIZES)
    @parametrize("dtype", types_for_device(CARRIED))
    def test_collectives_that_move_data(self, size, dtype):
        self.compare(size, compare_moves, dtype)

    @parametrize("size", SIZES)
    def test_lists_of_unequal_sizes(self, size):
        self.compare(size, compare_unequal)

    @parametrize("size", SIZES)
    def test_sums_of_multiplied_inputs(self, size):
        self.compare(size, compare_premultiplied)

    @parametrize("size", SIZES)
    def test_a_batch_is_one_operation(self, size):
        self.compare(size, compare_coalesced)

    @parametrize("size", SIZES)
    def test_messages(self, size):
        self.compare(size, exchange_messages)

    @unittest.skipIf(NAME == "nccl", "refused, as cuda/test_distributed.py expects")
    @parametrize("size", SIZES)
    def test_receives_from_any_source(self, size):
        self.compare(size, receive_from_anybody)

    @parametrize("size", SIZES)
    def test_receives_from_any_source_have_no_place_in_a_batch(self, size):
        for texts in self.team(size).run(batch_from_anybody):
            self.assertEqual(len(texts), 1)
            self.assertIn("rank", texts[0])

    @parametrize("size", SIZES)
    def test_each_dtype_is_carried_or_refused(self, size):
        for table in self.team(size).run(every_dtype):
            for dtype in every_dtype_of_torch():
                is_pair = dtype in PAIRS
                moved = "right" if dtype in CARRIED or is_pair else "TypeError"
                summed = "right" if dtype in REDUCED or is_pair else "TypeError"
                # torch itself has no maximum of complex numbers.
                maximum = "ValueError" if dtype.is_complex else summed
                expected = {"all_gather": moved, "broadcast": moved, "SUM": summed, "MAX": maximum}
                if dtype in QUANTIZED:
                    # c10d's operators are not registered for them, as on CUDA.
                    expected = dict.fromkeys(expected, "NotImplementedError")
                self.assertEqual(table.pop(str(dtype)), expected, str(dtype))
            self.assertEqual(table, {})

    @parametrize("size", SIZES)
    def test_messages_to_itself(self, size):
        self.compare(size, exchange_with_itself)

    @parametrize("size", SIZES)
    def test_objects(self, size):
        self.team(size).run(exchange_objects)

    @parametrize("size", SIZES)
    def test_what_cannot_work_is_refused_at_the_call(self, size):
        self.assertEqual(self.team(size).run(refused_calls), [float(size)] * size)

    @requires_two_devices
    @parametrize("size", SIZES)
    def test_tensors_of_two_devices_are_refused_at_the_call(self, size):
        for texts, total in self.team(size).run(refused_devices):
            self.assertEqual(total, float(size))
            for kind, text in texts:
                self.assertRegex(text, f"^{kind}: expected tensors o[nf] one device")


instantiate_parametrized_tests(TestCollectives)

if __name__ == "__main__":
    run_tests()
