"""Loads, stores and atomic operations of Triton kernels, and what checks them."""

import ctypes
import threading
import unittest

import torch
import triton
import triton.language as tl
from launcher import Access, KernelError, launch, lowered, ttir
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

from torch_openreg.extras.triton._lowered import Options

DTYPES = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e5m2),
    *(torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
)


@triton.jit
def copy_rows(x_ptr, out_ptr, rows, columns, by_row, by_column, R: tl.constexpr, C: tl.constexpr):
    i = tl.program_id(0) * R + tl.arange(0, R)
    j = tl.program_id(1) * C + tl.arange(0, C)
    mask = (i < rows)[:, None] & (j < columns)[None, :]
    x = tl.load(x_ptr + i[:, None] * by_row + j[None, :] * by_column, mask=mask, other=0.0)
    tl.store(out_ptr + i[:, None] * columns + j[None, :], x, mask=mask)


@triton.jit
def transpose(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i[:, None] * N + i[None, :])
    tl.store(out_ptr + i[:, None] + i[None, :] * N, x)
    tl.store(out_ptr + N * N + i[:, None] * N + i[None, :], tl.trans(x))


@triton.jit
def hinted(x_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.arange(0, N)
    at = i[:, None] * n + i[None, :]
    at = tl.max_contiguous(tl.multiple_of(at, [1, 4]), [1, 4])
    tl.store(out_ptr + at, tl.load(x_ptr + at))


@triton.jit
def permuted(x_ptr, at_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    at = tl.load(at_ptr + i)
    tl.store(out_ptr + i, tl.load(x_ptr + at))
    tl.store(out_ptr + N + at, tl.load(x_ptr + i))
    tl.store(out_ptr + 2 * N + i, tl.load(x_ptr + at, mask=at % 2 == 0, other=-1.0))


@triton.jit
def moved_in_place(x_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    tl.store(x_ptr + i + 1, x)


@triton.jit
def moved_between(x_ptr, y_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    tl.store(y_ptr + i, x * 2)


@triton.jit
def loaded_before_a_store(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    before = tl.load(x_ptr + i)
    tl.store(x_ptr + i, before + 1)
    after = tl.load(x_ptr + i)
    tl.store(out_ptr + i, before * 100 + after)


@triton.jit
def scalars(x_ptr, out_ptr, n, f):
    if n > 0:
        tl.store(out_ptr, tl.load(x_ptr + n) * f)
    tl.store(out_ptr + 1, tl.load(x_ptr + 100, mask=n < 0, other=7.0))
    tl.store(out_ptr + 2, 1.0, mask=n < 0)


@triton.jit
def through_table(table_ptr, out_ptr, N: tl.constexpr):
    base = tl.load(table_ptr + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    i = tl.arange(0, N)
    tl.store(out_ptr + tl.program_id(0) * N + i, tl.load(base + i))


@triton.jit
def read_from(x_ptr, out_ptr, start, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + start + i))


@triton.jit
def read_with_holes(x_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=(i < n) | (i == N - 1), other=0.0))


@triton.jit
def write_from(x_ptr, start, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(x_ptr + start + i, 1.0 + i)


@triton.jit
def gather_at(x_ptr, at_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + tl.load(at_ptr + i)))


@triton.jit
def scatter_at(x_ptr, at_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(x_ptr + tl.load(at_ptr + i), 1.0)


@triton.jit
def add_at(x_ptr, start):
    tl.atomic_add(x_ptr + start, 1.0)


@triton.jit
def inner_read(x_ptr):
    return tl.load(x_ptr + 1000)


@triton.jit
def outer_read(x_ptr, out_ptr):
    tl.store(out_ptr, inner_read(x_ptr))


@triton.jit
def atomics(x_ptr, out_ptr, v_ptr, N: tl.constexpr, IS_FLOAT: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.load(v_ptr + i)
    tl.store(out_ptr + i, tl.atomic_add(x_ptr + i, v))
    tl.store(out_ptr + N + i, tl.atomic_max(x_ptr + N + i, v))
    tl.store(out_ptr + 2 * N + i, tl.atomic_min(x_ptr + 2 * N + i, v))
    tl.store(out_ptr + 3 * N + i, tl.atomic_xchg(x_ptr + 3 * N + i, v, mask=i % 2 == 0))
    if not IS_FLOAT:
        tl.store(out_ptr + 4 * N + i, tl.atomic_and(x_ptr + 4 * N + i, v))
        tl.store(out_ptr + 5 * N + i, tl.atomic_or(x_ptr + 5 * N + i, v))
        tl.store(out_ptr + 6 * N + i, tl.atomic_xor(x_ptr + 6 * N + i, v))
        tl.store(out_ptr + 7 * N + i, tl.atomic_cas(x_ptr + 7 * N + i, v, v + 1))


@triton.jit
def count(x_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.atomic_add(x_ptr + i * 0, 1)


@triton.jit
def locked(lock_ptr, x_ptr, turns):
    for _ in range(turns):
        while tl.atomic_cas(lock_ptr, 0, 1) == 1:
            pass
        tl.store(x_ptr, tl.load(x_ptr) + 1)
        tl.atomic_xchg(lock_ptr, 0)


@triton.jit
def waits(x_ptr):
    while tl.atomic_add(x_ptr, 0) == 0:
        pass


@triton.jit
def waits_for_the_last(x_ptr):
    if tl.program_id(0) == tl.num_programs(0) - 1:
        tl.atomic_xchg(x_ptr, 1)
    else:
        while tl.load(x_ptr, volatile=True) == 0:
            pass


@triton.jit
def atomic_copy(x_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.atomic_load(x_ptr + i, mask=i < n)
    tl.atomic_store(out_ptr + i, x, mask=i < n)
    tl.atomic_store(out_ptr + N, tl.atomic_load(x_ptr + 1, sem="relaxed"), sem="relaxed")


@triton.jit
def atomic_load_at(x_ptr, out_ptr, offset):
    tl.store(out_ptr, tl.atomic_load(x_ptr + offset))


@triton.jit
def atomic_store_at(x_ptr, offset):
    tl.atomic_store(x_ptr + offset, 1.0)


@triton.jit
def polls(flags_ptr, x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    if tl.program_id(0) == 0:
        tl.store(x_ptr + i, i)
        tl.atomic_store(flags_ptr + i, 1)
    else:
        before = tl.load(x_ptr + i)
        found = tl.atomic_poll(flags_ptr + i, 1)
        tl.store(out_ptr + i, tl.where(found, tl.load(x_ptr + i), -1))
        tl.store(out_ptr + N + i, before)


@triton.jit
def polls_for_a_time(x_ptr, out_ptr, timeout, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.atomic_poll(x_ptr + i, 1, timeout_ns=timeout))


@triton.jit
def polls_once(x_ptr, out_ptr):
    tl.store(out_ptr, tl.atomic_poll(x_ptr, 1))


def values(dtype, *shape):
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randint(-100, 100, shape, generator=generator)
    return (numbers > 0) if dtype == torch.bool else numbers.float().to(dtype)


class TestMemory(TestCase):
    @parametrize("dtype", DTYPES)
    def test_tiles_of_any_layout(self, dtype):
        whole = values(dtype, 20, 64)
        for x in (whole, whole.t(), whole[::2], whole[:, ::3], whole[3:17, 5:50]):
            rows, columns = x.shape
            out = torch.empty(rows, columns, dtype=dtype)
            grid = (-(-rows // 8), -(-columns // 16))
            launch(copy_rows, grid, x, out, rows, columns, *x.stride(), R=8, C=16)
            self.assertEqual(out.float(), x.float())

    def test_hints_for_each_dimension_have_no_effect(self):
        x, out = torch.randn(16, 16), torch.zeros(16, 16)
        self.assertIn("dense<[1, 4]>", ttir(hinted, x, out, 16, N=16))
        launch(hinted, (1,), x, out, 16, N=16)
        self.assertEqual(out, x)

    def test_stores_and_tiles_are_transposed(self):
        x = torch.randn(16, 16)
        out = torch.empty(2, 16, 16)
        launch(transpose, (1,), x, out, N=16)
        self.assertEqual(out, torch.stack([x.t(), x.t()]))

    @parametrize("kind", ("random", "consecutive", "reversed"))
    def test_addresses_from_memory(self, kind):
        x = torch.randn(64)
        at = {
            "random": torch.randperm(64, generator=torch.Generator().manual_seed(1)),
            "consecutive": torch.arange(64),
            "reversed": torch.arange(63, -1, -1),
        }[kind]
        out = torch.empty(3, 64)
        launch(permuted, (1,), x, at, out, N=64)
        inverse = torch.empty(64).index_put((at,), x)
        self.assertEqual(out, torch.stack([x[at], inverse, x[at].where(at % 2 == 0, -1.0)]))

    def test_loads_come_before_stores_behind_them(self):
        x = torch.arange(129.0)
        launch(moved_in_place, (1,), x, N=128)
        self.assertEqual(x, torch.cat([torch.zeros(1), torch.arange(128.0)]))
        for shift in (-1, 0, 1, 17):
            both = torch.arange(256.0)
            launch(moved_between, (1,), both[32:160], both[32 + shift :], N=128)
            expected = torch.arange(256.0)
            expected[32 + shift : 160 + shift] = torch.arange(32.0, 160.0) * 2
            self.assertEqual(both, expected)

    def test_a_load_behind_a_store_sees_it(self):
        x = torch.arange(32.0)
        out = torch.empty(32)
        launch(loaded_before_a_store, (1,), x, out, N=32)
        before = torch.arange(32.0)
        self.assertEqual(out, before * 100 + before + 1)

    def test_scalars(self):
        x = torch.arange(4.0)
        out = torch.zeros(3)
        launch(scalars, (1,), x, out, 3, 0.5)
        self.assertEqual(out.tolist(), [1.5, 7.0, 0.0])

    def test_what_is_read_and_what_is_written_is_known(self):
        x = torch.arange(64.0)
        out = torch.zeros(64)
        result = lowered(read_from, x, out, 0, N=64)
        self.assertEqual([one.is_read for one in result.arguments], [True, False, False])
        self.assertEqual([one.is_written for one in result.arguments], [False, True, False])

    def test_pointers_from_memory_are_looked_up(self):
        rows = [torch.randn(16) for _ in range(3)]
        table = torch.tensor([row.data_ptr() for row in rows])
        out = torch.empty(3, 16)
        asked = []

        def is_allocated(context, address, size):
            asked.append((address, size))
            return any(row.data_ptr() <= address < row.data_ptr() + 64 for row in rows)

        launch(through_table, (3,), table, out, N=16, is_allocated=is_allocated)
        self.assertEqual(out, torch.stack(rows))
        self.assertEqual(asked, [(row.data_ptr(), 64) for row in rows])
        with self.assertRaises(KernelError) as caught:
            launch(through_table, (3,), table, out, N=16)
        self.assertEqual(caught.exception.status, "illegal read")
        self.assertIsNone(caught.exception.argument)
        # The first element of the first row.
        self.assertEqual(caught.exception.address, rows[0].data_ptr())

    def test_a_kernel_uses_device_addresses(self):
        whole = torch.arange(200.0)
        x, out = torch.arange(100.0), torch.zeros(100)
        # Both ranges are those of other memory, as far from this as the offset says.
        offset = whole.data_ptr() - x.data_ptr()
        result = torch.from_numpy(whole.numpy())
        launch(moved_between, (1,), x, x[64:], N=32, offset=offset)
        self.assertEqual(x, torch.arange(100.0))
        self.assertEqual(result[64:96], torch.arange(32.0) * 2)
        self.assertEqual(out, torch.zeros(100))

    def test_what_may_be_written_through_unknown_pointers_is_known(self):
        table = torch.zeros(1, dtype=torch.int64)
        result = lowered(through_table, table, torch.empty(16), N=16)
        self.assertEqual([one.is_read for one in result.arguments], [True, True])


class TestChecks(TestCase):
    def failure(self, kernel, grid, *args, **kwargs):
        with self.assertRaises(KernelError) as caught:
            launch(kernel, grid, *args, **kwargs)
        return caught.exception

    def line(self, error):
        with open(__file__) as file:
            lines = file.readlines()
        return [lines[frame.line - 1].strip() for frame in error.location.frames]

    def test_a_read_behind_the_end_names_the_first_byte(self):
        x, out = torch.zeros(100), torch.zeros(128)
        error = self.failure(read_from, (1,), x, out, 0, N=128)
        self.assertEqual((error.status, error.argument), ("illegal read", "x_ptr"))
        self.assertEqual((error.address - x.data_ptr(), error.size), (400, 4))
        self.assertEqual(error.program, (0, 0, 0))
        self.assertEqual(self.line(error), ["tl.store(out_ptr + i, tl.load(x_ptr + start + i))"])

    def test_a_read_before_the_begin(self):
        x, out = torch.zeros(100), torch.zeros(128)
        error = self.failure(read_from, (1,), x, out, -3, N=64)
        self.assertEqual(error.address - x.data_ptr(), -12)

    def test_a_write_behind_the_end_leaves_neighbours_intact(self):
        whole = torch.zeros(200)
        x = torch.frombuffer(memoryview(whole.numpy())[:100], dtype=torch.float32)
        error = self.failure(write_from, (1,), x, 40, N=128)
        self.assertEqual((error.status, error.argument), ("illegal write", "x_ptr"))
        self.assertEqual(error.address - x.data_ptr(), 400)
        self.assertEqual(whole[100:], torch.zeros(100))

    def test_gathers_and_scatters(self):
        at = torch.tensor([0, 1, 2, 5])
        x, out = torch.zeros(4), torch.zeros(4)
        error = self.failure(gather_at, (1,), x, at, out, N=4)
        self.assertEqual((error.status, error.address - x.data_ptr()), ("illegal read", 20))
        error = self.failure(scatter_at, (1,), x, at, N=4)
        self.assertEqual((error.status, error.address - x.data_ptr()), ("illegal write", 20))
        error = self.failure(scatter_at, (1,), x, at - 2, N=4)
        self.assertEqual(error.address - x.data_ptr(), -8)

    def test_masked_elements_may_lie_anywhere(self):
        x, out = torch.ones(100), torch.zeros(128)
        with self.assertRaises(KernelError) as caught:
            launch(read_with_holes, (1,), x, out, 90, N=128)
        self.assertEqual(caught.exception.address - x.data_ptr(), 508)
        x = torch.ones(128)
        launch(read_with_holes, (1,), x, out, 90, N=128)
        self.assertEqual(out.sum().item(), 91)

    def test_atomic_operations(self):
        x = torch.zeros(4)
        error = self.failure(add_at, (1,), x, 4)
        self.assertEqual((error.status, error.address - x.data_ptr()), ("illegal atomic", 16))
        raw = torch.zeros(17, dtype=torch.uint8)
        odd = torch.frombuffer(memoryview(raw.numpy())[1:], dtype=torch.float32)
        error = self.failure(add_at, (1,), odd, 0)
        self.assertEqual((error.status, error.argument), ("misaligned atomic", "x_ptr"))

    def test_places_are_those_of_the_function_and_its_callers(self):
        error = self.failure(outer_read, (1,), torch.zeros(1), torch.zeros(1))
        self.assertEqual(
            self.line(error),
            ["return tl.load(x_ptr + 1000)", "tl.store(out_ptr, inner_read(x_ptr))"],
        )

    def test_the_failing_program_is_named(self):
        x, out = torch.zeros(100), torch.zeros(128)
        error = self.failure(copy_rows, (2, 3), x, out, 20, 10, 10, 1, R=8, C=4)
        self.assertEqual(error.program[0], 1)

    def test_checks_can_be_left_out(self):
        x = torch.arange(200.0)
        part = torch.frombuffer(memoryview(x.numpy())[:100], dtype=torch.float32)
        out = torch.zeros(128)
        launch(read_from, (1,), part, out, 0, N=128, options=Options(checks=False))
        self.assertEqual(out, x[:128])

    def test_each_access_can_be_observed(self):
        x, at, out = torch.arange(4.0), torch.tensor([3, 1, 0, 2]), torch.zeros(4)
        seen = []

        def observe(context, access):
            one: Access = access.contents
            name = ("read", "write", "atomic")[one.kind]
            seen.append((name, one.argument, one.address, one.size * one.count))

        options = Options(observed=True)
        launch(gather_at, (1,), x, at, out, N=4, observe=observe, options=options)
        offsets = {0: x.data_ptr(), 1: at.data_ptr(), 2: out.data_ptr()}
        rows = [(kind, arg, address - offsets[arg], size) for kind, arg, address, size in seen]
        self.assertEqual(rows[0], ("read", 1, 0, 32))
        self.assertEqual(rows[1:5], [("read", 0, 4 * i, 4) for i in (3, 1, 0, 2)])
        self.assertEqual(rows[5:], [("write", 2, 0, 16)])


class TestAtomics(TestCase):
    @parametrize("dtype", (torch.int32, torch.int64, torch.uint32, torch.float32, torch.float64))
    def test_each_operation(self, dtype):
        size = 16
        x = torch.arange(8 * size).reshape(8, size).to(dtype)
        v = (torch.arange(size) * 5 % 40).to(dtype)
        before, out = x.clone(), torch.zeros(8, size, dtype=dtype)
        is_float = dtype.is_floating_point
        launch(atomics, (1,), x, out, v, N=size, IS_FLOAT=is_float)
        old, new = before.long(), x.long()
        operand = v.long()
        even = torch.arange(size) % 2 == 0
        rows = [old[0] + operand, old[1].maximum(operand), old[2].minimum(operand)]
        rows.append(operand.where(even, old[3]))
        if not is_float:
            rows += [old[4] & operand, old[5] | operand, old[6] ^ operand]
            rows.append((operand + 1).where(old[7] == operand, old[7]))
        self.assertEqual(new[: len(rows)], torch.stack(rows))
        returned = old.clone()
        returned[3] = old[3].where(even, 0)
        self.assertEqual(out.long()[: len(rows)], returned[: len(rows)])

    def test_half_precision(self):
        for dtype in (torch.float16, torch.bfloat16):
            x = torch.ones(2, dtype=dtype)
            launch(add_at, (8,), x, 1)
            self.assertEqual(x.tolist(), [1.0, 9.0])

    def test_programs_of_all_threads_are_counted(self):
        x = torch.zeros(1, dtype=torch.int32)
        launch(count, (50,), x, N=64, threads=4)
        self.assertEqual(x.item(), 3200)

    def test_locks_exclude_programs(self):
        lock, x = torch.zeros(1, dtype=torch.int32), torch.zeros(1)
        launch(locked, (8,), lock, x, 50, threads=4)
        self.assertEqual(x.item(), 400)

    def test_a_wait_without_an_end_is_an_error(self):
        x = torch.zeros(1, dtype=torch.int32)
        with self.assertRaises(KernelError) as caught:
            launch(waits, (1,), x, wait_limit_ns=20_000_000)
        self.assertEqual(caught.exception.status, "wait")
        with open(__file__) as file:
            line = file.readlines()[caught.exception.location.frames[-1].line - 1]
        self.assertIn("while tl.atomic_add", line)

    def test_a_wait_ends_when_memory_changes(self):
        x = torch.zeros(1, dtype=torch.int32)
        address = x.data_ptr()
        timer = threading.Timer(
            0.05, lambda: ctypes.c_int32.from_address(address).__setattr__("value", 1)
        )
        timer.start()
        launch(waits, (1,), x, wait_limit_ns=20_000_000_000)
        timer.join()
        self.assertTrue(lowered(waits, x).may_wait)

    def test_a_failure_ends_other_programs_that_wait(self):
        x = torch.zeros(1, dtype=torch.int32)
        with self.assertRaises(KernelError) as caught:
            launch(waits_for_the_last, (3,), x, wait_limit_ns=20_000_000)
        self.assertEqual(caught.exception.status, "wait")
        launch(waits_for_the_last, (2,), torch.zeros(1, dtype=torch.int32), threads=2)


@unittest.skipUnless(hasattr(tl, "atomic_poll"), "this release of Triton has no atomic loads")
class TestAtomicLoads(TestCase):
    @parametrize("dtype", (torch.int8, torch.float16, torch.int32, torch.float32, torch.int64))
    def test_elements_are_loaded_and_stored_but_those_that_are_masked(self, dtype):
        x = torch.arange(1, 17).to(dtype)
        out = torch.zeros(17, dtype=dtype)
        launch(atomic_copy, (1,), x, out, 11, N=16)
        self.assertEqual(out.tolist(), [*range(1, 12), *[0] * 5, 2])

    def test_addresses_are_checked(self):
        x = torch.zeros(4)
        for kernel, args, status in (
            (atomic_load_at, (x, torch.zeros(1), 4), "illegal read"),
            (atomic_store_at, (x, 4), "illegal atomic"),
        ):
            with self.assertRaises(KernelError) as caught:
                launch(kernel, (1,), *args)
            error = caught.exception
            self.assertEqual((error.status, error.address - x.data_ptr()), (status, 16))
        raw = torch.zeros(17, dtype=torch.uint8)
        odd = torch.frombuffer(memoryview(raw.numpy())[1:], dtype=torch.float32)
        for kernel, args in ((atomic_load_at, (odd, x, 0)), (atomic_store_at, (odd, 0))):
            with self.assertRaises(KernelError) as caught:
                launch(kernel, (1,), *args)
            self.assertEqual(caught.exception.status, "misaligned atomic")

    def test_observers_are_told_of_atomic_reads_and_updates(self):
        seen = []

        def observe(context, access):
            seen.append((access.contents.kind, access.contents.argument))

        x, out, options = torch.ones(2), torch.zeros(3), Options(observed=True)
        launch(atomic_copy, (1,), x, out, 2, N=2, observe=observe, options=options)
        atomic, volatile_read = 2, 3
        each = [(volatile_read, 0), (volatile_read, 0), (atomic, 1), (atomic, 1)]
        self.assertEqual(seen, [*each, (volatile_read, 0), (atomic, 1)])

    def test_programs_poll_what_others_store(self):
        flags, x = torch.zeros(8, dtype=torch.int32), torch.full((8,), -5, dtype=torch.int32)
        out = torch.zeros(16, dtype=torch.int32)
        launch(polls, (2,), flags, x, out, N=8, threads=2, wait_limit_ns=20_000_000_000)
        self.assertEqual(out[:8].tolist(), list(range(8)))
        self.assertTrue(lowered(polls, flags, x, out, N=8).may_wait)

    def test_a_load_before_a_poll_is_not_delayed_behind_it(self):
        source = lowered(polls, *[torch.zeros(16, dtype=torch.int32)] * 3, N=8).source
        poll, load = source.index("atomic_poll<"), source.index("load_row<")
        self.assertLess(load, poll)

    def test_a_poll_ends_in_time(self):
        x, out = torch.tensor([1, 2, 1, 0], dtype=torch.int64), torch.zeros(4, dtype=torch.int32)
        launch(polls_for_a_time, (1,), x, out, 1_000_000, N=4)
        self.assertEqual(out.tolist(), [1, 0, 1, 0])

    def test_a_poll_without_an_end_is_an_error(self):
        x = torch.zeros(1, dtype=torch.int32)
        with self.assertRaises(KernelError) as caught:
            launch(polls_once, (1,), x, torch.zeros_like(x), wait_limit_ns=20_000_000)
        self.assertEqual(caught.exception.status, "wait")


instantiate_parametrized_tests(TestMemory)
instantiate_parametrized_tests(TestAtomicLoads)
instantiate_parametrized_tests(TestAtomics)

if __name__ == "__main__":
    run_tests()
