"""OPENREG_MEMORY_POISON: reads of uninitialized memory and uses after a free are detected."""

import gc

import pytest
import torch
from common import DEVICE_TYPE, OpenRegTestCase, run_program, run_tests

from torch_openreg.testing import schedule

pytestmark = pytest.mark.sample(0.085)


def run_poisoned(code, **settings):
    return run_program(code, {"OPENREG_MEMORY_POISON": "1", **settings})


class TestPoison(OpenRegTestCase):
    def test_memory_nobody_wrote_reads_as_nan(self):
        run_poisoned(
            """
            import torch
            for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
                for size in (1, 1000, 3_000_000):
                    x = torch.empty(size, dtype=dtype, device="openreg")
                    assert x.isnan().all(), (dtype, size)
            x = torch.empty(10, dtype=torch.int64, device="openreg")
            assert (x == -1).all()
            """
        )

    def test_freed_memory_reads_as_nan_again(self):
        run_poisoned(
            """
            import torch
            for size in (100, 3_000_000):
                x = torch.ones(size, device="openreg")
                address = x.data_ptr()
                del x
                y = torch.empty(size, device="openreg")
                assert y.data_ptr() == address
                assert y.isnan().all()
            """,
            OPENREG_MEMORY_QUARANTINE="0",
        )

    def test_use_after_free_on_another_stream_shows(self):
        # The program forgets record_stream: the side stream reads when the memory has a new owner.
        run_poisoned(
            """
            import torch
            from common import StreamGate
            x = torch.ones(1000, device="openreg")
            torch.openreg.synchronize()
            side = torch.openreg.Stream()
            with StreamGate(side) as gate:
                with side:
                    y = x + 1
                address = x.data_ptr()
                del x
                z = torch.empty(1000, device="openreg")
                assert z.data_ptr() == address
                torch.openreg.current_stream().synchronize()
                gate.open()
            side.synchronize()
            assert y.isnan().all()
            """
        )

    def test_memory_of_a_stream_that_is_joined_later_is_left_alone(self):
        # A right program: the memory is the side stream's, and that waits before it is reused.
        run_poisoned(
            """
            import torch
            from common import StreamGate
            side, current = torch.Stream("openreg"), torch.accelerator.current_stream()
            torch.zeros(1, device="openreg")
            torch.accelerator.synchronize()
            for write in (False, True):
                with side:
                    g = torch.ones(1000, device="openreg")
                current.wait_stream(side)
                with StreamGate() as gate:
                    if write:
                        g.add_(1)
                    y = g * 2
                    del g
                    side.synchronize()  # whatever freeing may have enqueued there has run
                    gate.open()
                side.wait_stream(current)
                assert (y == (4 if write else 2)).all(), (write, y)
                assert torch.openreg.memory.check() == []
            """
        )

    @pytest.mark.slow
    def test_recorded_memory_is_not_poisoned_before_its_time(self):
        run_poisoned(
            """
            import torch
            from common import StreamGate
            x = torch.ones(1000, device="openreg")
            torch.openreg.synchronize()
            side = torch.openreg.Stream()
            with StreamGate(side) as gate:
                with side:
                    y = x + 1
                x.record_stream(side)
                del x
                torch.openreg.current_stream().synchronize()
                gate.open()
            side.synchronize()
            assert (y == 2).all()
            """
        )

    def test_results_are_the_same(self):
        run_poisoned(
            """
            import torch
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.LayerNorm(30),
                                        torch.nn.ReLU(), torch.nn.Linear(30, 5))
            twin = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.LayerNorm(30),
                                       torch.nn.ReLU(), torch.nn.Linear(30, 5)).to("openreg")
            twin.load_state_dict(model.state_dict())
            data = torch.randn(8, 20)
            for m, x in ((model, data), (twin, data.to("openreg"))):
                optimizer = torch.optim.AdamW(m.parameters())
                for _ in range(3):
                    optimizer.zero_grad()
                    m(x).square().sum().backward()
                    optimizer.step()
            for a, b in zip(model.parameters(), twin.parameters()):
                assert torch.equal(a, b.cpu())
            assert torch.openreg.memory.check() == []
            """
        )


class TestFreeMemory(OpenRegTestCase):
    """What free memory has when a schedule begins; see Note [Contents of free memory]."""

    def setUp(self):
        super().setUp()
        gc.collect()
        torch.accelerator.synchronize()

    def assert_filled(self, tensor):
        self.assertTrue(tensor.cpu().isnan().all())

    def test_freed_memory_is_filled_when_a_schedule_begins(self):
        for size in (100, 3_000_000):
            x = torch.ones(size, device=DEVICE_TYPE)
            address = x.data_ptr()
            del x
            with schedule("free"):
                y = torch.empty(size, device=DEVICE_TYPE)
                self.assertEqual(y.data_ptr(), address)
                self.assert_filled(y)

    def test_memory_that_another_stream_has_used_is_filled(self):
        x, side = torch.ones(1000, device=DEVICE_TYPE), torch.Stream(DEVICE_TYPE)
        address = x.data_ptr()
        side.wait_stream(torch.accelerator.current_stream())
        with side:
            x.add_(1)
        x.record_stream(side)
        del x
        with schedule("free"):
            y = torch.empty(1000, device=DEVICE_TYPE)
            self.assertEqual(y.data_ptr(), address)
            self.assert_filled(y)

    def test_new_memory_is_filled(self):
        with schedule("lazy"):
            torch.accelerator.empty_cache()
            self.assert_filled(torch.empty(3_000_000, device=DEVICE_TYPE))
            self.assert_filled(torch.empty(100, device=DEVICE_TYPE))

    def test_pinned_memory_is_filled(self):
        for _ in range(2):
            torch.ones(1000).pin_memory()
            with schedule("free"):
                x = torch.empty(1000, pin_memory=True)
                self.assert_filled(x)
                x.fill_(1)

    def test_memory_of_a_programs_pool_is_filled(self):
        module = getattr(torch, DEVICE_TYPE)
        pool = module.MemPool()
        with module.use_mem_pool(pool):
            x = torch.ones(1000, device=DEVICE_TYPE)
        address = x.data_ptr()
        del x
        with schedule("free"), module.use_mem_pool(pool):
            y = torch.empty(1000, device=DEVICE_TYPE)
            self.assertEqual(y.data_ptr(), address)
            self.assert_filled(y)

    def test_tensors_keep_their_contents(self):
        whole = torch.arange(1000.0, device=DEVICE_TYPE)
        others = [torch.full((100,), float(n), device=DEVICE_TYPE) for n in range(50)]
        pinned = torch.arange(1000.0).pin_memory()
        del others[::2]
        for order in ("lazy", "3"):
            with schedule(order):
                self.assertEqual(whole.cpu(), torch.arange(1000.0))
                self.assertEqual(pinned, torch.arange(1000.0))
                for number, one in enumerate(others):
                    self.assertEqual(one.cpu(), torch.full((100,), 2.0 * number + 1))

    def test_graphs_keep_their_results(self):
        module = getattr(torch, DEVICE_TYPE)
        graph = module.CUDAGraph() if DEVICE_TYPE == "cuda" else module.Graph()
        x = torch.ones(1000, device=DEVICE_TYPE)
        with module.graph(graph):
            y = (x * 2 + 1) * (x + 3)  # its memory is partly free after the capture
        for order in ("lazy", "3"):
            with schedule(order):
                graph.replay()
                self.assertEqual(y.cpu(), torch.full((1000,), 12.0))

    def test_check_finds_writes_to_it(self):
        run_poisoned(
            """
            import ctypes, torch
            from torch_openreg.testing import schedule
            x = torch.zeros(1000, dtype=torch.uint8, device="openreg")
            address = x.data_ptr()
            graph = torch.openreg.Graph()
            with torch.openreg.graph(graph):
                y = x + x + x
            del x
            for order in ("lazy", "eager"):
                with schedule(order):
                    graph.replay()
                assert torch.openreg.memory.check() == []
            with schedule("free"):
                ctypes.c_uint8.from_address(address + 10).value = 7
            (found,) = torch.openreg.memory.check()
            assert found.kind == "free block" and found.address + found.offset == address + 10
            """,
            OPENREG_MEMORY_PROTECTION="0",
            OPENREG_MEMORY_QUARANTINE="0",
        )


class TestQuarantine(OpenRegTestCase):
    def test_freed_memory_is_not_reused_and_reads_as_nan(self):
        run_poisoned(
            """
            import ctypes, torch
            x = torch.ones(100, device="openreg")
            address = x.data_ptr()
            x += 1
            del x  # the work that uses it has not run yet, perhaps
            others = [torch.zeros(100, device="openreg") for _ in range(50)]
            assert address not in [y.data_ptr() for y in others]
            torch.openreg.synchronize()
            values = torch.tensor(list((ctypes.c_float * 100).from_address(address)))
            assert values.isnan().all(), values
            assert torch.openreg.memory.check() == []
            """,
            OPENREG_MEMORY_PROTECTION="0",
        )

    def test_graph_with_a_freed_input_computes_nan(self):
        run_poisoned(
            """
            import torch
            graph = torch.openreg.Graph()
            x = torch.ones(100, device="openreg")
            torch.openreg.synchronize()
            with torch.openreg.graph(graph):
                y = x + 1
            graph.replay()
            assert (y == 2).all()
            del x
            graph.replay()
            assert y.isnan().all()
            """
        )

    def test_oldest_goes_first(self):
        run_poisoned(
            """
            import torch
            size = 1 << 18  # floats, a megabyte
            blocks = [torch.ones(size, device="openreg") for _ in range(6)]
            addresses = [x.data_ptr() for x in blocks]
            torch.openreg.synchronize()
            while blocks:
                del blocks[0]
            # Four megabytes and their guards: three of the blocks stay.
            more = [torch.ones(size, device="openreg") for _ in range(3)]
            assert {x.data_ptr() for x in more} == set(addresses[:3]), (more, addresses)
            assert torch.openreg.memory.check() == []
            """,
            OPENREG_MEMORY_QUARANTINE="4MiB",
            PYTORCH_ALLOC_CONF="max_split_size_mb:20",
        )

    def test_statistics_count_it_as_active_until_the_cache_is_emptied(self):
        run_poisoned(
            """
            import torch
            def now(name):
                return torch.openreg.memory_stats()[name + ".all.current"]
            x = torch.ones(1000, device="openreg")
            active = now("active_bytes")
            assert active > 0
            torch.openreg.synchronize()
            del x
            assert now("allocated_bytes") == 0 and now("active_bytes") == active
            states = [b["state"] for s in torch.openreg.memory_snapshot() for b in s["blocks"]]
            assert sorted(states) == ["active_awaiting_free", "inactive"], states
            assert torch.openreg.memory.check() == []
            torch.openreg.empty_cache()
            assert now("active_bytes") == now("reserved_bytes") == 0
            assert torch.openreg.memory_snapshot() == []
            assert torch.openreg.memory.check() == []
            """
        )

    def test_it_ends_before_an_allocation_fails(self):
        run_poisoned(
            """
            import torch
            for size in (2_000_000, 6_000_000, 1_000, 7_000_000):
                for _ in range(5):
                    x = torch.ones(size, device="openreg")
                    assert x.sum().item() == size
                    del x
            assert torch.openreg.memory_stats()["num_ooms"] == 0
            try:
                torch.ones(10_000_000, device="openreg")
            except torch.OutOfMemoryError:
                pass
            else:
                raise AssertionError
            assert torch.openreg.memory.check() == []
            """,
            OPENREG_DEVICE_MEMORY="32MiB",
        )

    def test_memory_that_another_stream_still_reads_is_left_alone(self):
        # As test_memory_of_a_stream_that_is_joined_later_is_left_alone, with the streams exchanged
        # and more work of others: the program waits before it allocates again.
        run_poisoned(
            """
            import torch
            from common import StreamGate
            side = torch.openreg.Stream()
            for _ in range(3):
                x = torch.ones(1000, device="openreg")
                torch.openreg.synchronize()
                with StreamGate(side) as gate:
                    with side:
                        y = x * 2
                    del x
                    torch.openreg.current_stream().synchronize()
                    gate.open()
                torch.openreg.current_stream().wait_stream(side)
                assert (y == 2).all(), y
                assert torch.openreg.memory.check() == []
            """
        )

    def test_write_to_it_is_found(self):
        run_poisoned(
            """
            import ctypes, torch
            x = torch.zeros(1000, dtype=torch.uint8, device="openreg")
            torch.openreg.synchronize()
            address = x.data_ptr()
            del x
            torch.openreg.synchronize()
            ctypes.c_uint8.from_address(address + 10).value = 7
            (found,) = torch.openreg.memory.check()  # the first
            assert found.kind == "free block" and found.requested_size == 0
            assert (found.address, found.offset, found.length) == (address, 10, 1)
            """,
            OPENREG_MEMORY_PROTECTION="0",
        )

    def test_results_are_the_same_with_several_streams(self):
        run_poisoned(
            """
            import torch
            from torch_openreg.testing import schedule
            def run():
                torch.manual_seed(0)
                total, sides = torch.zeros(500, device="openreg"), [torch.openreg.Stream()] * 3
                for step in range(40):
                    side = sides[step % 3]
                    part = torch.randn(500 + step, device="openreg")
                    side.wait_stream(torch.openreg.current_stream())
                    with side:
                        half = part[:500] * 0.5
                    part.record_stream(side)
                    del part
                    torch.openreg.current_stream().wait_stream(side)
                    half.record_stream(torch.openreg.current_stream())
                    total += half
                assert torch.openreg.memory.check() == []
                return total.cpu()
            expected = run()
            assert not expected.isnan().any()
            for order in ("lazy", "eager", *range(5)):
                with schedule(order):
                    assert torch.equal(run(), expected), order
            """
        )

    def test_bad_size_is_refused(self):
        run_program(
            """
            import torch
            try:
                torch.ones(1, device="openreg")
            except torch.AcceleratorError as error:
                assert "OPENREG_MEMORY_QUARANTINE is 'much'; allowed: a size" in str(error)
            else:
                raise AssertionError
            """,
            {"OPENREG_MEMORY_QUARANTINE": "much"},
        )


class TestCheck(OpenRegTestCase):
    def test_clean_program_has_no_findings(self):
        run_poisoned(
            """
            import torch
            assert torch.openreg.memory.check() == []
            tensors = [torch.ones(size, device="openreg") for size in (1, 100, 128, 3_000_000)]
            del tensors[1]
            assert torch.openreg.memory.check() == []
            del tensors
            torch.openreg.empty_cache()
            assert torch.openreg.memory.check() == []
            """
        )

    def test_write_past_the_end_is_found(self):
        run_poisoned(
            """
            import ctypes, torch
            memory = torch.openreg.memory
            memory._record_memory_history("state")
            def somebody():
                return torch.zeros(100, dtype=torch.uint8, device="openreg")
            x = somebody()
            torch.openreg.synchronize()
            # As a kernel would that counts one too far.
            (ctypes.c_uint8 * 103).from_address(x.data_ptr())[100:103] = b"abc"
            (found,) = memory.check()
            assert found.kind == "guard zone" and found.device == 0
            assert found.address == x.data_ptr() and found.requested_size == 100
            assert (found.offset, found.length, found.value) == (100, 3, ord("a"))
            assert "somebody" in [frame["name"] for frame in found.frames]
            assert "the guard zone of the block at" in str(found) and "3 bytes" in str(found)
            assert memory.check() == [found]
            """,
            OPENREG_MEMORY_PROTECTION="0",
        )

    def test_write_after_free_is_found(self):
        run_poisoned(
            """
            import ctypes, torch
            x = torch.zeros(1000, dtype=torch.uint8, device="openreg")
            address = x.data_ptr()
            del x
            assert torch.openreg.memory.check() == []
            ctypes.c_uint8.from_address(address + 10).value = 7
            (found,) = torch.openreg.memory.check()
            assert found.kind == "free block" and found.requested_size == 0
            assert found.address + found.offset == address + 10 and found.length == 1
            """,
            OPENREG_MEMORY_PROTECTION="0",
        )

    def test_write_after_free_is_found_whatever_happens_around_it(self):
        # Blocks are handed out, freed, cut and joined between the two checks.
        run_poisoned(
            """
            import ctypes, torch
            def allocate(size):
                return torch.zeros(size, dtype=torch.uint8, device="openreg")
            tensors = [allocate(3000) for _ in range(20)]
            addresses = [x.data_ptr() for x in tensors]
            del tensors[5:15]
            assert torch.openreg.memory.check() == []
            for address in addresses[6:14]:
                ctypes.c_uint8.from_address(address + 7).value = 1
            del tensors[3]
            more = [allocate(100) for _ in range(3)]  # of the first free block
            del tensors[-1], more[1]
            (found,) = torch.openreg.memory.check()
            assert found.kind == "free block" and found.value == 1, found
            last = found.address + found.offset + found.length - 1
            assert last == addresses[13] + 7, found
            """,
            OPENREG_MEMORY_PROTECTION="0",
            OPENREG_MEMORY_QUARANTINE="0",
        )

    def test_memory_freed_during_a_check_is_not_taken_for_damaged(self):
        run_poisoned(
            """
            import threading, torch
            stop = threading.Event()
            def churn():
                with torch.Stream("openreg"):
                    while not stop.is_set():
                        x = torch.ones(5000, device="openreg")
                        y = x + 1
                        del x
                        if not bool((y == 2).all()):
                            failures.append(y)
            failures = []
            threads = [threading.Thread(target=churn) for _ in range(2)]
            for thread in threads:
                thread.start()
            for _ in range(30):
                assert torch.openreg.memory.check() == []
            stop.set()
            for thread in threads:
                thread.join()
            assert not failures
            """
        )

    def test_a_failed_kernel_is_no_damage(self):
        # The failure drops the fills after it.
        run_poisoned(
            """
            import torch
            from common import StreamGate
            x = torch.zeros(4, device="openreg")
            index = torch.tensor([99], device="openreg")
            with StreamGate() as gate:
                x.gather(0, index)
                kept = torch.ones(100, device="openreg")
                freed = torch.ones(100, device="openreg")
                del freed
                gate.open()
            try:
                torch.accelerator.synchronize()
            except RuntimeError:
                pass
            else:
                raise AssertionError
            for _ in range(3):
                assert torch.openreg.memory.check() == []
            kept.fill_(1)
            y = torch.empty(100, device="openreg")
            assert y.isnan().all()
            assert torch.openreg.memory.check() == []
            """
        )

    def test_every_end_is_guarded(self):
        run_poisoned(
            """
            import ctypes, torch
            tensors = [torch.zeros(size, dtype=torch.uint8, device="openreg")
                       for size in (1, 511, 512, 513, 1 << 20, (1 << 20) + 1, 11 << 20)]
            torch.openreg.synchronize()
            assert torch.openreg.memory.check() == []
            for x in tensors:
                ctypes.c_uint8.from_address(x.data_ptr() + x.nbytes).value = 0
            found = torch.openreg.memory.check()
            assert {f.address for f in found} == {x.data_ptr() for x in tensors}
            """,
            OPENREG_MEMORY_PROTECTION="0",
        )

    def test_it_says_what_it_needs(self):
        with self.assertRaisesRegex(RuntimeError, "OPENREG_MEMORY_POISON to be 1"):
            torch.openreg.memory.check()

    def test_bad_value_is_refused(self):
        run_program(
            """
            import torch
            try:
                torch.ones(1, device="openreg")
            except torch.AcceleratorError as error:
                assert "OPENREG_MEMORY_POISON is 'yes'; allowed: 0 or 1" in str(error)
            else:
                raise AssertionError
            """,
            {"OPENREG_MEMORY_POISON": "yes"},
        )


if __name__ == "__main__":
    run_tests()
