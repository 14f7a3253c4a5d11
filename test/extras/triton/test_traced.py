"""What the sanitizer finds inside kernels of Triton: races between programs, and single bytes."""

import torch
from common import (
    DEVICE_TYPE,
    StreamGate,
    instantiate_parametrized_tests,
    parametrize,
    run_program,
    run_tests,
)
from extras.triton.kernels import HAS_TRITON, TritonTestCase, needs_triton

from torch_openreg.openreg import sanitizer as checker

if HAS_TRITON:
    import triton
    import triton.language as tl
    from extras.triton.kernels import add_kernel, matmul_kernel, row_softmax

    @triton.jit
    def overlapping(x_ptr, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * (BLOCK // 2) + tl.arange(0, BLOCK)
        tl.store(x_ptr + offsets, 1.0)  # writes of neighbours

    @triton.jit
    def sums_in_place(x_ptr):
        x = tl.load(x_ptr)  # read of all
        tl.store(x_ptr, x + 1.0)  # write of all

    @triton.jit
    def shifts(x_ptr, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offsets + 1)  # read of the next
        tl.store(x_ptr + offsets, x)  # write of its own

    @triton.jit
    def counts(x_ptr):
        tl.atomic_add(x_ptr, 1)

    @triton.jit
    def clears_and_counts(x_ptr):
        if tl.program_id(0) == 0:
            tl.store(x_ptr, 0)  # clears
        tl.atomic_add(x_ptr, 1)  # counts

    @triton.jit
    def locked(lock_ptr, x_ptr):
        while tl.atomic_cas(lock_ptr, 0, 1) == 1:
            pass
        tl.store(x_ptr, tl.load(x_ptr) + 1.0)
        tl.atomic_xchg(lock_ptr, 0)

    @triton.jit
    def last_one_sums(parts_ptr, count_ptr, out_ptr, N: tl.constexpr):
        pid = tl.program_id(0)
        tl.store(parts_ptr + pid, pid.to(tl.float32))
        if tl.atomic_add(count_ptr, 1) == N - 1:
            tl.store(out_ptr, tl.sum(tl.load(parts_ptr + tl.arange(0, N))))

    @triton.jit
    def chained(x_ptr, flags_ptr):
        pid = tl.program_id(0)
        if pid > 0:
            tl.atomic_add(flags_ptr + pid - 1, 1)
        tl.store(x_ptr, tl.load(x_ptr) + 1.0)
        tl.atomic_add(flags_ptr + pid, 1)

    @triton.jit
    def waits_for_a_flag(x_ptr, flag_ptr, out_ptr):
        if tl.program_id(0) == 0:
            tl.store(x_ptr, 1.0)
            tl.atomic_xchg(flag_ptr, 1)
        else:
            while tl.load(flag_ptr, volatile=True) == 0:
                pass
            tl.store(out_ptr, tl.load(x_ptr))

    @triton.jit
    def copies(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
        offsets = tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offsets, mask=offsets < n)  # copies from
        tl.store(out_ptr + offsets, x, mask=offsets < n)  # copies to

    @triton.jit
    def rereads(x_ptr, out_ptr, BLOCK: tl.constexpr):
        offsets = tl.arange(0, BLOCK)
        tl.store(x_ptr + offsets, 2.0)
        tl.debug_barrier()
        tl.store(out_ptr + offsets, tl.load(x_ptr + offsets))


def line_with(text):
    with open(__file__) as file:
        return next(number for number, line in enumerate(file, 1) if text in line)


@needs_triton
class TracedTestCase(TritonTestCase):
    def tearDown(self):
        torch.openreg.synchronize()
        checker.disable()
        checker.clear()
        super().tearDown()

    def zeros(self, *sizes, dtype=torch.float32):
        return torch.zeros(*sizes, dtype=dtype, device=DEVICE_TYPE)

    def found(self, run, **options):
        """Runs a function under the sanitizer; returns the findings."""
        with checker.check("collect", **options):
            run()
            torch.openreg.synchronize()
        return checker.findings()

    def assertLines(self, finding, later, earlier):
        lines = [access.lineno for access in finding.accesses]
        self.assertEqual(lines, [line_with(later), line_with(earlier)])


class TestPrograms(TracedTestCase):
    def test_two_programs_write_one_byte(self):
        x = self.zeros(24)
        (finding,) = self.found(lambda: overlapping[(2,)](x, BLOCK=16))
        self.assertEqual(finding.kind, "race")
        self.assertLines(finding, "writes of neighbours", "writes of neighbours")
        later, earlier = finding.accesses
        self.assertEqual((later.program, earlier.program), ((1, 0, 0), (0, 0, 0)))
        self.assertEqual((later.argument, later.offset, later.nbytes), ("x_ptr", 32, 64))
        self.assertIn(
            "program (1, 0, 0) of overlapping writes what program (0, 0, 0) writes, and nothing "
            "orders them",
            str(finding),
        )
        self.assertRegex(str(finding), r"launched at\n +test\S*test_traced.py:\d+ in <lambda>")

    def test_one_program_is_no_race(self):
        self.assertEqual(self.found(lambda: sums_in_place[(1,)](self.zeros(1))), [])

    def test_read_and_write_of_the_same_element(self):
        later, both = self.found(lambda: sums_in_place[(3,)](self.zeros(1)))
        self.assertLines(later, "# read of all", "# write of all")
        self.assertLines(both, "# write of all", "# write of all")

    def test_read_before_the_write_of_a_later_program(self):
        x = self.zeros(33)
        (finding,) = self.found(lambda: shifts[(2,)](x, BLOCK=16))
        self.assertLines(finding, "# write of its own", "# read of the next")

    def test_atomic_operations_are_exempt(self):
        x = self.zeros(1, dtype=torch.int32)
        self.assertEqual(self.found(lambda: counts[(5,)](x)), [])
        self.assertEqual(x.item(), 5)

    def test_write_beside_atomic_operations(self):
        x = self.zeros(1, dtype=torch.int32)
        (finding,) = self.found(lambda: clears_and_counts[(3,)](x))
        self.assertLines(finding, "# counts", "# clears")
        self.assertIn("updates what program (0, 0, 0) writes", finding.title)

    def test_what_atomic_operations_order_is_no_race(self):
        lock, x = self.zeros(1, dtype=torch.int32), self.zeros(1)
        self.assertEqual(self.found(lambda: locked[(4,)](lock, x)), [])
        count, parts = self.zeros(1, dtype=torch.int32), self.zeros(8)
        self.assertEqual(self.found(lambda: last_one_sums[(8,)](parts, count, x, N=8)), [])
        self.assertEqual(x.item(), 28)
        flags = self.zeros(8, dtype=torch.int32)
        self.assertEqual(self.found(lambda: chained[(8,)](x, flags)), [])
        flag = self.zeros(1, dtype=torch.int32)
        self.assertEqual(self.found(lambda: waits_for_a_flag[(2,)](self.zeros(1), flag, x)), [])

    def test_atomic_operations_on_other_bytes_order_nothing(self):
        x, flags = self.zeros(1), self.zeros(16, dtype=torch.int32)
        # Each program has a flag of its own: those of the neighbours are 2 apart.
        kinds = [one.kind for one in self.found(lambda: unrelated[(4,)](x, flags))]
        self.assertEqual(set(kinds), {"race"})

    def test_kernels_without_a_mistake(self):
        x = torch.randn(70, 50, device=DEVICE_TYPE)
        y, out = torch.randn(50, 70, device=DEVICE_TYPE), self.zeros(70, 70)

        def run():
            matmul_kernel[(3, 3)](x, y, out, 70, 70, 50, BM=32, BN=32, BK=16)
            row_softmax[(70,)](x, torch.empty_like(x), 50, BLOCK=64)
            add_kernel[(14,)](x, x, x, x.numel(), BLOCK=256)

        self.assertEqual(self.found(run, uninitialized=True), [])
        self.assertEqual(out.cpu(), (x.cpu() / 2) @ y.cpu(), atol=1e-4, rtol=1e-4)

    def test_same_lines_are_one_finding(self):
        x = self.zeros(200)
        (finding,) = self.found(lambda: [overlapping[(20,)](x, BLOCK=16) for _ in range(3)])
        self.assertEqual(finding.count, 3)

    def test_replays_of_a_graph(self):
        x = self.zeros(24)
        overlapping[(2,)](x, BLOCK=16)
        with checker.check("collect"):
            graph = torch.openreg.Graph()
            with torch.openreg.graph(graph):
                overlapping[(2,)](x, BLOCK=16)
            self.assertEqual(checker.findings(), [])
            graph.replay()
            torch.openreg.synchronize()
        self.assertEqual([one.kind for one in checker.findings()], ["race"])

    def test_the_error_is_raised_after_the_kernel_has_run(self):
        x = self.zeros(24)
        expected = self.assertRaisesRegex(checker.SanitizerError, "of overlapping writes")
        with expected, checker.check():
            overlapping[(2,)](x, BLOCK=16)
            torch.openreg.synchronize()

    def test_a_process_ends_with_the_status_of_findings(self):
        program = f"""
            import sys
            sys.path.insert(0, {str(__file__.rpartition("/")[0])!r})
            import test_traced, torch
            test_traced.overlapping[(2,)](torch.zeros(24, device={DEVICE_TYPE!r}), BLOCK=16)
            torch.openreg.synchronize()
        """
        settings = {"OPENREG_SANITIZER": "1", "OPENREG_DEVICE_TYPE": DEVICE_TYPE}
        result = run_program(program, settings, expect_success=False)
        self.assertEqual(result.returncode, 77)
        self.assertIn("race: program (1, 0, 0) of overlapping writes", result.stderr)


class TestExtents(TracedTestCase):
    """A kernel that leaves the view that it was given, within the storage."""

    def setUp(self):
        super().setUp()
        self.x, self.out = self.zeros(64), self.zeros(64)
        copies[(1,)](self.x, self.out, 64, BLOCK=64)
        torch.openreg.synchronize()
        self.side = torch.openreg.Stream()

    def leave(self, n=64):
        with torch.openreg.stream(self.side):
            copies[(1,)](self.x, self.out[:10], n, BLOCK=64)

    def test_write_behind_the_view_races_with_later_work(self):
        def run():
            self.leave()
            self.out[32:].add_(1)

        (finding,) = self.found(run)
        self.assertEqual(finding.kind, "race")
        self.assertIn("program (0, 0, 0) of copies writes", str(finding))
        self.assertIn(line_with("# copies to"), [one.lineno for one in finding.accesses])

    def test_write_behind_the_view_races_with_earlier_work(self):
        def run():
            self.out[32:].add_(1)
            self.leave()

        (finding,) = self.found(run)
        self.assertEqual(finding.accesses[0].lineno, line_with("# copies to"))

    def test_kernel_that_has_not_run_yet(self):
        def run():
            with StreamGate(stream=self.side) as gate:
                self.leave()
                self.out[32:].add_(1)
                event = self.side.record_event()
                gate.open()
            event.wait()
            self.out[32:].add_(1)  # ordered

        (finding,) = self.found(run)
        self.assertEqual(finding.kind, "race")

    def test_access_within_the_view(self):
        def run():
            self.leave(n=10)
            self.out[32:].add_(1)

        self.assertEqual(self.found(run), [])

    def test_ordered_work(self):
        def run():
            self.leave()
            torch.openreg.current_stream().wait_stream(self.side)
            self.out[32:].add_(1)

        self.assertEqual(self.found(run), [])


class TestUninitialized(TracedTestCase):
    def test_first_byte_that_was_not_written(self):
        def run():
            x = torch.empty(32, device=DEVICE_TYPE)
            x[:20] = 1
            copies[(1,)](x, self.zeros(32), 32, BLOCK=32)

        (finding,) = self.found(run, uninitialized=True)
        self.assertEqual(finding.kind, "uninitialized")
        reader, allocation = finding.accesses
        self.assertEqual((reader.lineno, reader.argument), (line_with("# copies from"), "x_ptr"))
        self.assertEqual(allocation.lineno, line_with("x = torch.empty(32"))
        self.assertIn("the first uninitialized byte: offset 80", str(finding))
        self.assertIn("program (0, 0, 0) of copies reads memory that was not written", str(finding))

    def test_elements_that_a_mask_leaves_out(self):
        def run():
            x = torch.empty(32, device=DEVICE_TYPE)
            x[:20] = 1
            copies[(1,)](x, self.zeros(32), 20, BLOCK=32)

        self.assertEqual(self.found(run, uninitialized=True), [])

    def test_what_the_kernel_has_written_itself(self):
        def run():
            rereads[(1,)](torch.empty(32, device=DEVICE_TYPE), self.zeros(32), BLOCK=32)

        self.assertEqual(self.found(run, uninitialized=True), [])

    @parametrize("written", (20, 32))
    def test_what_the_kernel_has_not_written(self, written):
        def run():
            x, out = self.zeros(32), torch.empty(32, device=DEVICE_TYPE)
            copies[(1,)](x, out, written, BLOCK=32)
            torch.openreg.synchronize()
            out.sum()

        kinds = [one.kind for one in self.found(run, uninitialized=True)]
        self.assertEqual(kinds, ["uninitialized"] if written < 32 else [])

    def test_work_before_the_kernel_has_run(self):
        def run():
            x, out = self.zeros(32), torch.empty(32, device=DEVICE_TYPE)
            with StreamGate() as gate:
                copies[(1,)](x, out, 20, BLOCK=32)
                out[20:] = 1
                out.sum()
                gate.open()
            torch.openreg.synchronize()
            out.sum()

        self.assertEqual(self.found(run, uninitialized=True), [])


if HAS_TRITON:

    @triton.jit
    def unrelated(x_ptr, flags_ptr):
        pid = tl.program_id(0)
        tl.atomic_add(flags_ptr + 2 * pid, 1)
        tl.store(x_ptr, 1.0)
        tl.atomic_add(flags_ptr + 2 * pid + 1, 1)


instantiate_parametrized_tests(TestUninitialized)

if __name__ == "__main__":
    run_tests()
