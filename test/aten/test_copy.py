"""Copies in all directions: every place, type and layout, blocking or not, against the CPU's."""

import itertools
import warnings

import pytest
import torch
from common import (
    DEVICE_COUNT,
    DEVICE_TYPE,
    OpenRegTestCase,
    StreamGate,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_program,
    run_tests,
    subtest,
)

LAST = DEVICE_COUNT - 1
LARGE = 300_000  # elements; more than a copy from the host stages

# Where a tensor may live. "pageable" and "pinned" are host memory.
DEVICES = [f"{DEVICE_TYPE}:0", f"{DEVICE_TYPE}:{LAST}"][: min(DEVICE_COUNT, 2)]
PLACES = ["pageable", "pinned", *DEVICES]
DIRECTIONS = [
    (source, target)
    for source, target in itertools.product(PLACES, PLACES)
    if DEVICE_TYPE in source + target
]

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex32,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]

# From a dense tensor of 2 x 3 x 4 x 5 elements to one of the same shape in another layout.
LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.transpose(0, 3).contiguous().transpose(0, 3),
    "sliced": lambda x: torch.cat([x, x], dim=3)[..., ::2],
    "offset": lambda x: torch.cat([x, x])[2:],
    "channels_last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "expanded": lambda x: x[:, :1].expand(2, 3, 4, 5),
    "negative": lambda x: torch._neg_view(x),
    "conjugate": lambda x: torch.complex(x, x + 1).conj(),
    "imaginary_of_conjugate": lambda x: torch.complex(x, x + 1).conj().imag,
}
WRITABLE_LAYOUTS = ["contiguous", "transposed", "sliced", "offset", "channels_last", "negative"]


def values(count, dtype):
    """Numbers that every type can hold, distinct as far as the type allows."""
    numbers = torch.arange(count, dtype=torch.float32) % 7
    return numbers.to(dtype)


def each(pairs):
    return [
        subtest(pair, name="_to_".join(part.replace(":", "_") for part in pair)) for pair in pairs
    ]


def named(dtype):
    return str(dtype).removeprefix("torch.")


def synchronize():
    for device in range(DEVICE_COUNT):
        torch.openreg.synchronize(device)


def host(shape, dtype, is_pinned):
    return torch.empty(shape, dtype=dtype, pin_memory=is_pinned)


def empty(shape, dtype, where):
    if where in ("pageable", "pinned"):
        return host(shape, dtype, where == "pinned")
    return torch.empty(shape, dtype=dtype, device=where)


class CopyTestCase(OpenRegTestCase):
    def setUp(self):
        super().setUp()
        # torch warns that float16's complex type is young, and of lost imaginary parts.
        scope = warnings.catch_warnings()
        scope.__enter__()
        self.addCleanup(scope.__exit__, None, None, None)
        warnings.simplefilter("ignore", UserWarning)

    def assert_same_bits(self, actual, expected):
        """Compares on the CPU; a NaN equals itself."""
        actual = actual.cpu()
        self.assertEqual(actual.dtype, expected.dtype)
        self.assertEqual(actual.shape, expected.shape)
        to_bytes = [
            x.resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8)
            for x in (actual, expected)
            if x.numel()
        ]
        if to_bytes:
            self.assertTrue(torch.equal(*to_bytes))


class TestDirections(CopyTestCase):
    @parametrize("source,target", each(DIRECTIONS))
    @parametrize("non_blocking", [False, True])
    @parametrize("count", [10, LARGE])
    def test_copy_arrives(self, source, target, non_blocking, count):
        expected = values(count, torch.float32) + 0.5
        x = empty(count, torch.float32, source).copy_(expected)
        y = empty(count, torch.float32, target).copy_(x, non_blocking=non_blocking)
        synchronize()
        self.assert_same_bits(y, expected)

    @parametrize("source,target", each(DIRECTIONS))
    def test_source_is_unchanged(self, source, target):
        expected = values(100, torch.int64)
        x = empty(100, torch.int64, source).copy_(expected)
        y = empty(100, torch.int64, target).copy_(x)
        y.zero_()
        self.assert_same_bits(x, expected)

    @parametrize("source,target", each(DIRECTIONS))
    def test_empty_tensors_are_copied(self, source, target):
        x, y = (empty((0, 3), torch.float32, where) for where in (source, target))
        self.assertIs(y.copy_(x), y)
        self.assertEqual(y.shape, (0, 3))

    @parametrize("source,target", each(DIRECTIONS))
    def test_scalar_tensors_are_copied(self, source, target):
        x = empty((), torch.float64, source).fill_(2.5)
        y = empty((), torch.float64, target).copy_(x)
        synchronize()
        self.assert_same_bits(y, torch.tensor(2.5, dtype=torch.float64))

    @parametrize("source,target", each(DIRECTIONS))
    def test_source_is_broadcast(self, source, target):
        x = empty((3, 1), torch.float32, source).copy_(values(3, torch.float32)[:, None])
        y = empty((2, 3, 4), torch.float32, target).copy_(x)
        synchronize()
        self.assert_same_bits(y, values(3, torch.float32)[:, None].expand(2, 3, 4))

    @parametrize("source,target", each(DIRECTIONS))
    def test_shapes_that_do_not_fit_are_refused_in_the_call(self, source, target):
        x = empty((3, 2), torch.float32, source)
        y = empty((2, 3), torch.float32, target)
        with self.assertRaises(RuntimeError) as on_cpu:
            torch.empty(2, 3).copy_(torch.empty(3, 2))
        with self.assertRaises(type(on_cpu.exception)):
            y.copy_(x)

    @parametrize("device", DEVICES)
    def test_to_the_same_place_copies_nothing(self, device):
        x = torch.ones(3, device=device)
        self.assertIs(x.to(device), x)
        self.assertIsNot(x.to(device, copy=True), x)

    @parametrize("device", DEVICES)
    def test_round_trip_through_to(self, device):
        expected = torch.randn(7, 11)
        self.assert_same_bits(expected.to(device).cpu(), expected)

    @parametrize("device", DEVICES)
    def test_copy_of_itself_changes_nothing(self, device):
        x = torch.arange(5, device=device)
        x.copy_(x)
        self.assertEqual(x.tolist(), list(range(5)))

    @parametrize("device", DEVICES)
    def test_copy_to_another_type_of_device_is_refused(self, device):
        with self.assertRaises((RuntimeError, NotImplementedError)):
            torch.ones(3, device=device).copy_(torch.empty(3, device="meta"))


class TestTypes(CopyTestCase):
    @parametrize("source,target", each(DIRECTIONS))
    @parametrize("dtype", [subtest(dtype, name=named(dtype)) for dtype in DTYPES])
    def test_type_is_copied(self, source, target, dtype):
        expected = values(24, dtype)
        x = empty(24, dtype, source).copy_(expected)
        y = empty(24, dtype, target).copy_(x)
        synchronize()
        self.assert_same_bits(y, expected)

    @parametrize("source", [subtest(dtype, name=f"from_{named(dtype)}") for dtype in DTYPES])
    def test_type_is_converted_to_all_others(self, source):
        x = values(24, source)
        for dtype in DTYPES:
            expected = x.to(dtype)
            self.assert_same_bits(x.to(DEVICE_TYPE).to(dtype), expected)
            self.assert_same_bits(
                torch.empty(24, dtype=dtype, device=DEVICE_TYPE).copy_(x), expected
            )
            self.assert_same_bits(torch.empty(24, dtype=dtype).copy_(x.to(DEVICE_TYPE)), expected)
            if DEVICE_COUNT > 1:
                other = torch.empty(24, dtype=dtype, device=f"{DEVICE_TYPE}:1")
                self.assert_same_bits(other.copy_(x.to(DEVICE_TYPE)), expected)

    def test_lost_imaginary_part_is_a_warning_of_python(self):
        # Torch gives the warning once in a process.
        run_program(
            """
            import warnings
            import torch
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                torch.empty(3, device="openreg").copy_(torch.ones(3, dtype=torch.complex64))
                torch.openreg.synchronize()
            texts = [str(warning.message) for warning in caught]
            assert any("discards the imaginary part" in text for text in texts), texts
            """
        )

    def test_special_numbers_are_converted_as_by_the_cpu(self):
        x = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-45, 3.4e38, 65520.0])
        for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.bool, torch.complex64):
            self.assert_same_bits(x.to(DEVICE_TYPE).to(dtype), x.to(dtype))
            self.assert_same_bits(x.to(DEVICE_TYPE, dtype), x.to(dtype))


class TestLayouts(CopyTestCase):
    def dense(self):
        return torch.randn(2, 3, 4, 5)

    @parametrize("layout", list(LAYOUTS))
    def test_layout_is_copied_to_the_device(self, layout):
        x = LAYOUTS[layout](self.dense())
        y = torch.empty(x.shape, dtype=x.dtype, device=DEVICE_TYPE).copy_(x)
        self.assert_same_bits(y, x)

    @parametrize("layout", list(LAYOUTS))
    def test_layout_is_copied_to_the_host(self, layout):
        x = self.dense()
        expected = LAYOUTS[layout](x)
        on_device = LAYOUTS[layout](x.to(DEVICE_TYPE))
        y = torch.empty(expected.shape, dtype=expected.dtype).copy_(on_device)
        self.assert_same_bits(y, expected)

    @parametrize("layout", list(LAYOUTS))
    def test_layout_is_copied_on_the_device(self, layout):
        x = self.dense()
        expected = LAYOUTS[layout](x)
        on_device = LAYOUTS[layout](x.to(DEVICE_TYPE))
        y = torch.empty(expected.shape, dtype=expected.dtype, device=DEVICE_TYPE).copy_(on_device)
        self.assert_same_bits(y, expected)

    @requires_two_devices
    @parametrize("layout", list(LAYOUTS))
    def test_layout_is_copied_between_devices(self, layout):
        x = self.dense()
        expected = LAYOUTS[layout](x)
        on_device = LAYOUTS[layout](x.to(f"{DEVICE_TYPE}:0"))
        y = torch.empty(expected.shape, dtype=expected.dtype, device=f"{DEVICE_TYPE}:1").copy_(
            on_device
        )
        self.assert_same_bits(y, expected)

    @parametrize("layout", WRITABLE_LAYOUTS)
    @parametrize("source", ["cpu", *DEVICES])
    def test_layout_of_the_device_is_written(self, layout, source):
        x = self.dense()
        target = LAYOUTS[layout](torch.zeros(2, 3, 4, 5, device=DEVICE_TYPE))
        target.copy_(x.to(source))
        self.assert_same_bits(target, x)

    @parametrize("layout", WRITABLE_LAYOUTS)
    def test_layout_of_the_host_is_written(self, layout):
        x = self.dense()
        target = LAYOUTS[layout](torch.zeros(2, 3, 4, 5))
        target.copy_(x.to(DEVICE_TYPE))
        self.assert_same_bits(target, x)

    def test_memory_between_the_elements_of_a_sliced_target_stays(self):
        for device, source in itertools.product(["cpu", DEVICE_TYPE], repeat=2):
            memory = torch.zeros(10, device=device)
            memory[::2].copy_(torch.ones(5, device=source))
            self.assertEqual(memory.tolist(), [1.0, 0.0] * 5)

    @parametrize("layout", ["contiguous", "transposed", "channels_last"])
    def test_dense_layout_keeps_its_strides(self, layout):
        x = LAYOUTS[layout](self.dense())
        self.assertEqual(x.to(DEVICE_TYPE).stride(), x.to("cpu", copy=True).stride())
        self.assertEqual(x.to(DEVICE_TYPE).cpu().stride(), x.stride())

    def test_memory_format_is_applied(self):
        x = self.dense().to(DEVICE_TYPE, memory_format=torch.channels_last)
        self.assertTrue(x.is_contiguous(memory_format=torch.channels_last))

    def test_conjugate_view_stays_lazy_on_the_device(self):
        x = torch.randn(3, dtype=torch.complex64)
        y = x.to(DEVICE_TYPE).conj()
        self.assertTrue(y.is_conj())
        self.assert_same_bits(y, x.conj().resolve_conj())

    def test_conjugate_target_is_written(self):
        x = torch.randn(3, dtype=torch.complex64)
        y = torch.zeros(3, dtype=torch.complex64, device=DEVICE_TYPE)
        y.conj().copy_(x)
        self.assert_same_bits(y, x.conj().resolve_conj())


class TestOverlap(CopyTestCase):
    @parametrize("device", ["cpu", DEVICE_TYPE])
    @parametrize("source", ["cpu", DEVICE_TYPE])
    def test_target_whose_elements_overlap_is_refused(self, device, source):
        target = torch.zeros(1, device=device).expand(3)
        with self.assertRaisesRegex(RuntimeError, "unsupported operation"):
            target.copy_(torch.ones(3, device=source))

    @parametrize("device", ["cpu", DEVICE_TYPE])
    def test_target_that_overlaps_its_source_is_refused(self, device):
        x = torch.arange(10, device=device)
        with self.assertRaisesRegex(RuntimeError, "unsupported operation"):
            x[1:].copy_(x[:-1])

    def test_target_beside_its_source_in_the_same_memory_is_written(self):
        x = torch.arange(10, device=DEVICE_TYPE)
        x[5:].copy_(x[:5])
        self.assertEqual(x.tolist(), [*range(5), *range(5)])


class TestOrder(CopyTestCase):
    def test_pageable_source_may_change_after_the_call(self):
        for count in (10, LARGE):
            x = torch.ones(count)
            y = x.to(DEVICE_TYPE, non_blocking=True)
            x.zero_()
            self.assert_same_bits(y, torch.ones(count))

    def test_small_non_blocking_copy_from_pageable_memory_does_not_wait(self):
        with StreamGate():
            y = torch.ones(10).to(DEVICE_TYPE, non_blocking=True)
            self.assertFalse(torch.openreg.current_stream().query())
        self.assertEqual(y.tolist(), [1.0] * 10)

    @pytest.mark.openreg_sanitizer(expect="host")  # the caller's mistake below
    def test_non_blocking_copy_from_pinned_memory_reads_when_it_runs(self):
        x = torch.ones(LARGE, pin_memory=True)
        with StreamGate():
            y = x.to(DEVICE_TYPE, non_blocking=True)
            x.fill_(2)  # a mistake of the caller's, which shows that the copy has not run
        self.assert_same_bits(y, torch.full((LARGE,), 2.0))

    def test_copy_to_pageable_memory_is_done_when_the_call_returns(self):
        x = torch.ones(LARGE, device=DEVICE_TYPE)
        y = torch.zeros(LARGE)
        y.copy_(x, non_blocking=True)
        self.assertTrue(torch.openreg.current_stream().query())
        self.assert_same_bits(y, torch.ones(LARGE))

    @parametrize("target", ["pageable", "pinned"])
    def test_blocking_copy_to_the_host_is_done_when_the_call_returns(self, target):
        x = torch.ones(LARGE, device=DEVICE_TYPE)
        y = host(LARGE, torch.float32, target == "pinned").copy_(x)
        self.assertTrue(torch.openreg.current_stream().query())
        self.assertEqual(float(y.sum()), LARGE)

    @pytest.mark.openreg_sanitizer(expect="host")  # the mistake shows that the copy is late
    def test_non_blocking_copy_to_pinned_memory_has_not_run_when_the_call_returns(self):
        x = torch.ones(10, device=DEVICE_TYPE)
        y = torch.zeros(10, pin_memory=True)
        torch.openreg.synchronize()
        with StreamGate():
            y.copy_(x, non_blocking=True)
            self.assertEqual(y.tolist(), [0.0] * 10)
        torch.openreg.synchronize()
        self.assertEqual(y.tolist(), [1.0] * 10)

    def test_copy_is_made_on_the_current_stream(self):
        side = torch.openreg.Stream()
        x = torch.ones(10, device=DEVICE_TYPE)
        torch.openreg.synchronize()
        with StreamGate(side):
            with side:
                y = torch.zeros(10, device=DEVICE_TYPE).copy_(x)
            self.assertTrue(torch.openreg.default_stream().query())
            self.assertFalse(side.query())
        side.synchronize()
        self.assertEqual(y.tolist(), [1.0] * 10)

    @requires_two_devices
    def test_copy_between_devices_waits_for_the_source_stream(self):
        x = torch.zeros(10, device=f"{DEVICE_TYPE}:0")
        torch.openreg.synchronize(0)
        with StreamGate(torch.openreg.current_stream(0)):
            x.fill_(3)
            y = x.to(f"{DEVICE_TYPE}:1")
            self.assertFalse(torch.openreg.current_stream(1).query())
        self.assertEqual(y.tolist(), [3.0] * 10)

    @requires_two_devices
    def test_copy_between_devices_waits_for_the_target_stream(self):
        x = torch.ones(10, device=f"{DEVICE_TYPE}:0")
        y = torch.zeros(10, device=f"{DEVICE_TYPE}:1")
        z = torch.empty(10, device=f"{DEVICE_TYPE}:1")
        synchronize()
        with StreamGate(torch.openreg.current_stream(1)):
            z.copy_(y)
            y.copy_(x)
            self.assertFalse(torch.openreg.current_stream(0).query())
        self.assertEqual(z.tolist(), [0.0] * 10)
        self.assertEqual(y.tolist(), [1.0] * 10)

    @requires_two_devices
    def test_later_work_on_the_target_device_sees_the_copy(self):
        x = torch.zeros(10, device=f"{DEVICE_TYPE}:0")
        torch.openreg.synchronize(0)
        with StreamGate(torch.openreg.current_stream(0)):
            y = (x + 1).to(f"{DEVICE_TYPE}:1") + 1
            z = y * 2
        self.assertEqual(z.tolist(), [4.0] * 10)

    @requires_two_devices
    def test_later_work_on_the_source_device_does_not_disturb_the_copy(self):
        x = torch.ones(10, device=f"{DEVICE_TYPE}:0")
        synchronize()
        with StreamGate(torch.openreg.current_stream(1)):
            y = x.to(f"{DEVICE_TYPE}:1")
            x.fill_(9)
        self.assertEqual(y.tolist(), [1.0] * 10)

    @requires_two_devices
    def test_source_may_be_freed_while_the_copy_is_pending(self):
        x = torch.ones(LARGE, device=f"{DEVICE_TYPE}:0")
        synchronize()
        with StreamGate(torch.openreg.current_stream(1)):
            y = x.to(f"{DEVICE_TYPE}:1")
            del x
            z = torch.zeros(LARGE, device=f"{DEVICE_TYPE}:0")
        self.assertEqual(float(y.sum()), LARGE)
        self.assertEqual(float(z.sum()), 0)

    @requires_two_devices
    def test_copy_between_devices_leaves_the_current_device(self):
        torch.ones(10, device=f"{DEVICE_TYPE}:1").to(f"{DEVICE_TYPE}:0")
        self.assertEqual(torch.openreg.current_device(), 0)


def module_with(weight):
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(weight, requires_grad=False)
    return module


def load(weight):
    module = module_with(torch.zeros_like(weight, device=DEVICE_TYPE))
    module.load_state_dict({"weight": weight})
    return module.weight


def assign_slice(x):
    target = torch.zeros(len(x) + 2, dtype=x.dtype, device=DEVICE_TYPE)
    target[1:-1] = x
    return target[1:-1]


# From a tensor on the CPU to a result on openreg, by a copy that the program does not call
# non_blocking.
BLOCKING = {
    "to": lambda x: x.to(DEVICE_TYPE),
    "to_float64": lambda x: x.to(DEVICE_TYPE, torch.float64),
    "tensor": lambda x: torch.tensor(x.tolist(), device=DEVICE_TYPE),
    "tensor_of_int64": lambda x: torch.tensor(x.tolist(), dtype=torch.int64, device=DEVICE_TYPE),
    "new_tensor": lambda x: torch.empty(0, device=DEVICE_TYPE).new_tensor(x.tolist()),
    "as_tensor": lambda x: torch.as_tensor(x.numpy(), device=DEVICE_TYPE),
    "asarray": lambda x: torch.asarray(x.numpy(), dtype=torch.float16, device=DEVICE_TYPE),
    "copy_": lambda x: torch.zeros(len(x), device=DEVICE_TYPE).copy_(x),
    "copy_to_bfloat16": lambda x: torch.zeros(
        len(x), dtype=torch.bfloat16, device=DEVICE_TYPE
    ).copy_(x),
    "copy_of_pinned": lambda x: torch.zeros(len(x), device=DEVICE_TYPE).copy_(x.pin_memory()),
    "copy_of_strided": lambda x: torch.zeros(len(x), device=DEVICE_TYPE).copy_(
        torch.stack([x, x], dim=1)[:, 0]
    ),
    "copy_of_expanded": lambda x: torch.zeros(len(x), device=DEVICE_TYPE).copy_(x[:1]),
    "assign_slice": assign_slice,
    "module_to": lambda x: module_with(x).to(DEVICE_TYPE).weight,
    "load_state_dict": load,
}


class TestLists(CopyTestCase):
    def test_first_call_does_not_wait(self):
        sources = [torch.arange(float(size)) for size in (3, 7, 11)]
        on_device = [source.to(DEVICE_TYPE) for source in sources]
        targets = [torch.zeros_like(source) for source in on_device]
        calls = torch.openreg.fallback_stats()
        with StreamGate() as gate:
            torch._foreach_copy_(targets, on_device)
            self.assertFalse(torch.openreg.current_stream().query())
            gate.open()
        self.assertEqual(torch.openreg.fallback_stats(), calls)
        for target, source in zip(targets, sources, strict=True):
            self.assert_bit_equal(target, source)

    def test_pairs_that_are_not_alike(self):
        def copied(device):
            base = torch.arange(6.0, device=device)
            ones = torch.ones(3, dtype=torch.complex64, device=device)
            targets = [torch.zeros(2, 3, device=device), base[:4], base[4:].to(torch.int64)]
            conjugated = torch.zeros(3, dtype=torch.complex64, device=device)
            sources = [base[3:], ones[:1].real, torch.full((2,), 2.5, device=device)]
            torch._foreach_copy_([*targets, conjugated], [*sources, (ones * 2j).conj()])
            return [*targets, conjugated]

        for actual, expected in zip(copied(DEVICE_TYPE), copied("cpu"), strict=True):
            self.assert_bit_equal(actual, expected)


class TestBlocking(CopyTestCase):
    @parametrize("api", list(BLOCKING))
    @parametrize("count", [1, 100, 16_384, 16_385, 100_000])
    def test_any_stream_may_use_what_a_blocking_copy_gave(self, api, count):
        first = list(BLOCKING).index(api) + 1  # memory of the case before holds other values
        x = (torch.arange(count) % 100 + first).to(torch.float32)
        expected = x[:1].expand(count) if api == "copy_of_expanded" else x
        side = torch.openreg.Stream()
        work = torch.ones(500, 500, device=DEVICE_TYPE)
        for _ in range(3):  # the stream is busy for longer than the calls below take
            work = work @ work
        y = BLOCKING[api](x)
        with side:
            z = y * 1
        side.synchronize()
        self.assertTrue(torch.openreg.current_stream().query())
        self.assert_same_bits(z, expected.to(z.dtype))

    def test_blocking_copy_raises_the_streams_error_and_copies_nothing(self):
        x = torch.zeros(4, device=DEVICE_TYPE)
        x.gather(0, torch.tensor([99], device=DEVICE_TYPE))
        with self.assertRaisesRegex(RuntimeError, "index 99 is out of bounds"):
            x.copy_(torch.ones(4))
        self.assertEqual(x.tolist(), [0.0] * 4)


instantiate_parametrized_tests(TestBlocking)
instantiate_parametrized_tests(TestDirections)
instantiate_parametrized_tests(TestTypes)
instantiate_parametrized_tests(TestLayouts)
instantiate_parametrized_tests(TestOverlap)
instantiate_parametrized_tests(TestOrder)

if __name__ == "__main__":
    run_tests()
