"""Observers, by a small extra of their own: what is reported, and work that they skip."""

import contextlib

import torch
from common import DEVICE_TYPE, OpenRegTestCase, StreamGate, run_tests
from interfaces import extension

READ, WRITTEN, UPDATED, UNKNOWN = range(4)


def ones(*sizes, **options):
    return torch.ones(*sizes, device=DEVICE_TYPE, **options)


class TestObserver(OpenRegTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.extra = extension("core/observer_test.cpp")

    @contextlib.contextmanager
    def watching(self, *skipped):
        self.extra.begin(set(skipped))
        try:
            yield
        finally:
            self.extra.end()

    def names(self):
        return [name for name, _ in self.extra.reports()]

    def test_operands_are_reported_with_their_bytes(self):
        x, y = ones(3), ones(3)
        with self.watching():
            z = x + y
        expected = [(z.data_ptr(), 12, "written"), *((t.data_ptr(), 12, "read") for t in (x, y))]
        self.assertEqual(self.extra.reports(), [("aten::add.Tensor", expected)])

    def test_skipped_kernels_of_each_kind_of_launch_write_nothing(self):
        calls = [
            lambda x: x.mul_(2),  # structured
            lambda x: x.relu_(),  # with a kernel of its own
            lambda x: x.zero_(),
            lambda x: x.copy_(-x),
            lambda x: x.lgamma_(),
            lambda x: torch.special.i1(x, out=x),
            lambda x: torch.linalg.inv_ex(x.view(1, 1), out=(x.view(1, 1), x.new_empty(1).int())),
        ]
        for call in calls:
            for _ in range(2):  # the first call of a fallback runs in any case
                x = torch.full((1,), -3.5).to(DEVICE_TYPE)
                with self.watching():
                    call(x)
            written = {
                name
                for name, accesses in self.extra.reports()
                if (x.data_ptr(), 4, "written") in accesses
            }
            self.assertEqual(len(written), 1)
            self.assertNotEqual(x.item(), -3.5)
            x = torch.full((1,), -3.5).to(DEVICE_TYPE)
            with self.watching(*written):
                call(x)
            self.assertEqual(x.item(), -3.5, str(written))

    def test_skipped_kernel_keeps_its_place_in_the_order(self):
        x = ones(3)
        event = torch.Event(DEVICE_TYPE)
        with StreamGate() as gate, self.watching("aten::add.Tensor"):
            x.add_(1)
            event.record()
            self.assertFalse(event.query())
            gate.open()
        event.synchronize()
        self.assertEqual(x.cpu(), torch.ones(3))

    def test_skipped_kernel_of_a_capture_is_skipped_by_replays(self):
        x = ones(3)
        graph = torch.openreg.Graph()
        with self.watching("aten::mul.Tensor"), torch.openreg.graph(graph):
            x.mul_(5)
            x.add_(1)
        graph.replay()
        graph.replay()
        self.assertEqual(x.cpu(), torch.full((3,), 3.0))

    def test_ranges_come_in_one_report(self):
        x, y = ones(4), ones(8)
        before = self.extra.ran()
        ranges = [(x.data_ptr(), 16, READ), (y.data_ptr(), 32, UPDATED), (y.data_ptr(), 4, UNKNOWN)]
        with self.watching():
            self.extra.launch_on_ranges(ranges)
        torch.openreg.synchronize()
        kinds = ("read", "updated", "unknown")
        accesses = [(*pair, kind) for (*pair, _), kind in zip(ranges, kinds, strict=True)]
        self.assertEqual(self.extra.reports(), [("own kernel", [tuple(one) for one in accesses])])
        self.assertEqual(self.extra.ran(), before + 1)
        with self.watching("own kernel"):
            self.extra.launch_on_ranges(ranges)
        torch.openreg.synchronize()
        self.assertEqual(self.extra.ran(), before + 1)

    def test_memory_is_taken_back_with_its_size(self):
        x = ones(1000)
        address = x.data_ptr()
        with self.watching():
            del x
        ((freed, size),) = self.extra.frees()
        self.assertEqual(freed, address)
        self.assertGreaterEqual(size, 4000)


class TestKernelErrors(OpenRegTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.extra = extension("core/observer_test.cpp")

    def test_error_of_a_kernel_has_its_record(self):
        for code in (700, 710, 719):
            self.extra.launch_failing(code, "load past the end", "add.py:12", 0x1000)
            kernel, found, location, address, text = self.extra.failure()
            self.assertEqual((kernel, found), ("failing kernel", code))
            self.assertEqual((location, address), ("add.py:12", 0x1000))
            self.assertIn("load past the end", text)
            torch.openreg.synchronize()

    def test_python_sees_code_kernel_place_and_address(self):
        self.extra.launch_failing(700, "load past the end", "add.py:12", 0x1000)
        text = "'failing kernel' on .* failed: load past the end, at add.py:12, address 0x1000"
        with self.assertRaisesRegex(torch.AcceleratorError, text) as raised:
            torch.openreg.synchronize()
        self.assertEqual(raised.exception.error_code, 700)

    def test_record_without_a_place_is_an_error_of_its_code(self):
        self.extra.launch_failing(700, "", "", 0)
        with self.assertRaises(torch.AcceleratorError) as raised:
            torch.openreg.synchronize()
        self.assertEqual(raised.exception.error_code, 700)
        self.extra.launch_failing(0, "no error", "add.py:1", 1)
        torch.openreg.synchronize()


class TestShortages(OpenRegTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.extra = extension("core/observer_test.cpp")

    @contextlib.contextmanager
    def keeping(self, *tensors, throws=False):
        self.extra.keep(list(tensors), throws)
        del tensors  # the extra has the only reference
        try:
            yield
        finally:
            self.extra.end_keeping()

    def test_observer_of_shortages_frees_memory_before_an_allocation_fails(self):
        torch.openreg.empty_cache()
        free = torch.openreg.mem_get_info()[0]
        kept = torch.empty(free // 2, dtype=torch.uint8, device=DEVICE_TYPE)
        with self.keeping(kept):
            del kept
            self.assertEqual(self.extra.shortages(), [])
            torch.empty(free - free // 4, dtype=torch.uint8, device=DEVICE_TYPE)
            self.assertEqual(self.extra.shortages(), [0])
            self.assertEqual(self.extra.failures(), [])
        torch.openreg.empty_cache()

    def test_caches_that_are_emptied_are_a_shortage_of_all_devices(self):
        with self.keeping():
            torch.openreg.empty_cache()
            self.assertEqual(self.extra.shortages(), [-1])

    def test_failed_allocation_is_reported_with_its_sizes(self):
        torch.openreg.empty_cache()
        free, total = torch.openreg.mem_get_info()
        with self.keeping(), self.assertRaises(torch.OutOfMemoryError):
            torch.empty(2 * total, dtype=torch.uint8, device=DEVICE_TYPE)
        self.assertEqual(self.extra.failures(), [(0, 2 * total, total, free)])

    def test_exception_of_an_observer_takes_the_place_of_the_error(self):
        total = torch.openreg.mem_get_info()[1]
        with (
            self.keeping(throws=True),
            self.assertRaisesRegex(RuntimeError, "the keeper has no room"),
        ):
            torch.empty(2 * total, dtype=torch.uint8, device=DEVICE_TYPE)

    def test_observer_of_shortages_costs_launches_nothing(self):
        with self.keeping():
            self.assertFalse(self.extra.is_observed())


class TestAddresses(OpenRegTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.extra = extension("core/observer_test.cpp")

    def test_kernel_goes_on_when_a_handler_has_dealt_with_its_fault(self):
        self.assertEqual(self.extra.launch_faulting(), 42)

    def test_memory_of_a_device_lies_in_its_range(self):
        for index in range(torch.openreg.device_count()):
            begin, size = self.extra.address_range(index)
            # Behind the addresses of its memory are those for expandable segments.
            self.assertGreaterEqual(size, torch.openreg.mem_get_info(index)[1])
            x = torch.ones(3, device=f"{DEVICE_TYPE}:{index}")
            self.assertTrue(begin <= x.data_ptr() < begin + size)
        with self.assertRaises(RuntimeError):
            self.extra.address_range(torch.openreg.device_count())


if __name__ == "__main__":
    run_tests()
