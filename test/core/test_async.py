"""Asynchrony itself: calls return before kernels run, streams overlap, and nothing is lost.

While a gate is closed, work that was submitted after it has not run.
"""

import functools
import inspect
import threading
from unittest import mock

import torch
from common import (
    DEVICE_COUNT,
    DEVICE_TYPE,
    OpenRegTestCase,
    StreamGate,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_tests,
    subtest,
)

from torch_openreg import testing

LAST = DEVICE_COUNT - 1
STREAMS = parametrize(
    "device,is_default",
    [
        subtest((device, is_default), name=f"device{device}_{'default' if is_default else 'pool'}")
        for device in sorted({0, LAST})
        for is_default in (True, False)
    ],
)


def select(device, is_default):
    """A context that selects a stream, and with it the device."""
    stream = torch.openreg.default_stream if is_default else torch.openreg.Stream
    return torch.openreg.stream(stream(device))


def training_step(device):
    """One step of a small network, from a fixed state; returns its parameters."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(16, 4)
    ).to(device)
    x, target = torch.randn(5, 8).to(device), torch.tensor([0, 1, 2, 3, 0]).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(1)  # the CPU's generator made the parameters, the device's is still fresh
    for _ in range(3):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), target).backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


class TestAsync(OpenRegTestCase):
    @STREAMS
    @parametrize(
        "operate,expected",
        [
            subtest((lambda x: x + 1, 3.0), name="add"),
            subtest((lambda x: x.add_(1), 3.0), name="add_"),
            subtest((lambda x: x.clone(), 2.0), name="clone"),
            subtest((lambda x: x.fill_(5), 5.0), name="fill_"),
            subtest((lambda x: x.zero_(), 0.0), name="zero_"),
            subtest((lambda x: x @ x, 16.0), name="matmul"),
            subtest((lambda x: x.relu(), 2.0), name="relu"),
            subtest((lambda x: x.t() * 2, 4.0), name="view_and_mul"),
            subtest((lambda x: x.sum(dim=1), 8.0), name="sum"),
            subtest((lambda x: torch.nn.functional.linear(x, x), 16.0), name="linear"),
            subtest((lambda x: x.to(torch.float64), 2.0), name="conversion"),
        ],
    )
    def test_call_returns_before_the_kernel_ran(self, device, is_default, operate, expected):
        with select(device, is_default):
            x = torch.full((4, 4), 2.0, device=DEVICE_TYPE)
            torch.openreg.synchronize()
            with StreamGate() as gate:
                y = operate(x)
                self.assertFalse(torch.openreg.current_stream().query())
                gate.open()
                self.assert_bit_equal(y, torch.full_like(y, expected, device="cpu"))

    @STREAMS
    def test_kernels_of_a_stream_run_in_order(self, device, is_default):
        with select(device, is_default):
            x = torch.zeros(1, dtype=torch.int64, device=DEVICE_TYPE)
            torch.openreg.synchronize()
            with StreamGate():
                for digit in range(1, 10):
                    x.mul_(10).add_(digit)
            self.assertEqual(x.item(), 123456789)

    @STREAMS
    def test_operand_may_be_changed_after_the_call(self, device, is_default):
        with select(device, is_default):
            x = torch.full((3,), 2.0, device=DEVICE_TYPE)
            torch.openreg.synchronize()
            with StreamGate():
                y = x + 1
                x.fill_(100)
            self.assertEqual(y.tolist(), [3.0] * 3)

    @STREAMS
    def test_operands_may_be_freed_after_the_call(self, device, is_default):
        with select(device, is_default):
            x, y = (torch.full((1000,), value, device=DEVICE_TYPE) for value in (2.0, 3.0))
            torch.openreg.synchronize()
            with StreamGate():
                z = x * y
                del x, y
                others = [torch.full((1000,), 9.0, device=DEVICE_TYPE) for _ in range(4)]
            self.assertEqual(z.cpu(), torch.full((1000,), 6.0))
            del others

    def test_cpu_scalar_may_be_changed_after_the_call(self):
        x, scalar = torch.ones(3, device=DEVICE_TYPE), torch.tensor(5.0)
        torch.openreg.synchronize()
        with StreamGate():
            y = x * scalar
            scalar.fill_(0)
        self.assertEqual(y.tolist(), [5.0] * 3)

    def test_training_runs_ahead_of_the_device(self):
        model = torch.nn.Linear(4, 2).to(DEVICE_TYPE)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.ones(3, 4, device=DEVICE_TYPE)

        def step():
            optimizer.zero_grad()
            model(x).relu().sum().backward()
            optimizer.step()

        step()  # the first one waits where it falls back
        torch.openreg.synchronize()
        with StreamGate():
            for _ in range(3):
                step()
            self.assertFalse(torch.openreg.current_stream().query())

    def test_training_gives_the_cpus_bits(self):
        for actual, expected in zip(training_step(DEVICE_TYPE), training_step("cpu"), strict=True):
            self.assert_bit_equal(actual, expected)

    @STREAMS
    def test_training_on_any_stream_gives_the_same_bits(self, device, is_default):
        with select(device, is_default):
            actual = training_step(DEVICE_TYPE)
            torch.openreg.synchronize()
        for one, other in zip(actual, training_step("cpu"), strict=True):
            self.assert_bit_equal(one, other)

    def test_kernels_know_nothing_of_the_tensors_before_theirs(self):
        # The worker uses its tensors again. These calls leave as much as possible on them: bits,
        # wrapped numbers, other dtypes, many sizes, gaps, shared and empty memory.
        generator = torch.Generator().manual_seed(0)
        random = functools.partial(torch.randn, generator=generator)
        a, b, wide = random(3, 4), random(4, 3), random(2, 1, 3, 1, 2, 1, 2)
        z, w = random(3, 4, dtype=torch.complex64), random(4, 3, dtype=torch.complex64)
        half, counts = random(12).half(), torch.arange(12)
        calls = [
            lambda a: a[0] * 2,
            lambda a: a + 1.5,
            lambda a: a.t() - a.reshape(4, 3),
            lambda a: a[:, ::2].mul(a[:, 1::2]),
            lambda a, b: torch.mm(a, b),
            lambda a, b: torch.mm(a, b, out=a.new_empty(3, 6)[:, ::2]),
            lambda a: torch.add(a, 1, out=torch.empty_like(a).t().reshape(3, 4)),
            lambda wide: wide.sum((0, 2)) / wide.abs().amax(),
            lambda wide: wide.neg().permute(6, 0, 5, 1, 4, 2, 3).exp(),
            lambda z: z.conj() + z,
            lambda z: z.conj().imag.neg() * 2,
            lambda z, w: torch.mm(z.conj(), w),
            lambda z, w: torch.mm(z, w),
            lambda z, w: torch.mm(w.mH, z.mH),
            lambda z: torch.view_as_real(z).sin(),
            lambda half: half.mul(2).floor(),
            lambda half, counts: torch.where(counts > 5, half, 0.5),
            lambda counts: counts.cumsum(0) % 7,
            lambda counts: counts.bool().logical_not(),
            lambda counts: counts[:0] + counts[:0],
            lambda a: a.clone().mul_(a).add_(a[0]),
            lambda a: torch.sum(a) * a.argmax(),
        ]
        inputs = {"a": a, "b": b, "wide": wide, "z": z, "w": w, "half": half, "counts": counts}
        on_device = {name: tensor.to(DEVICE_TYPE) for name, tensor in inputs.items()}

        def run(call, tensors):
            return call(*(tensors[name] for name in inspect.signature(call).parameters))

        for call in calls:
            run(call, on_device)  # the first of a kind may wait
        order = torch.randint(len(calls), (300,), generator=generator).tolist()
        with StreamGate():
            results = [run(calls[i], on_device) for i in order]
        for i, result in zip(order, results, strict=True):
            expected = run(calls[i], inputs)
            self.assertEqual(result.stride(), expected.stride(), calls[i])
            self.assert_bit_equal(result.cpu(), expected)

    def test_deep_queue_loses_nothing(self):
        x = torch.zeros(1, dtype=torch.int64, device=DEVICE_TYPE)
        torch.openreg.synchronize()
        for _ in range(20_000):
            x.add_(1)
        self.assertEqual(x.item(), 20_000)


class TestOverlap(OpenRegTestCase):
    def test_streams_of_a_device_run_side_by_side(self):
        first, second = torch.openreg.Stream(0), torch.openreg.Stream(0)
        x = torch.ones(3, device=DEVICE_TYPE)
        torch.openreg.synchronize()
        with StreamGate(first) as gate:
            gate.wait_until_reached()
            with second:
                self.assertEqual((x + 1).tolist(), [2.0] * 3)
            self.assertFalse(first.query())

    def test_two_streams_stand_at_gates_at_the_same_time(self):
        with (
            StreamGate(torch.openreg.Stream(0)) as first,
            StreamGate(torch.openreg.Stream(0)) as second,
        ):
            first.wait_until_reached()
            second.wait_until_reached()

    def test_default_stream_does_not_hold_other_streams(self):
        x = torch.ones(3, device=DEVICE_TYPE)
        torch.openreg.synchronize()
        with StreamGate(torch.openreg.default_stream()), torch.openreg.Stream():
            self.assertEqual((x + 1).tolist(), [2.0] * 3)

    @requires_two_devices
    def test_devices_run_side_by_side(self):
        x = torch.ones(3, device=f"{DEVICE_TYPE}:1")
        torch.openreg.synchronize(1)
        with StreamGate(torch.openreg.default_stream(0)):
            self.assertEqual((x + 1).tolist(), [2.0] * 3)

    def test_event_orders_two_streams(self):
        producer, consumer = torch.openreg.Stream(0), torch.openreg.Stream(0)
        x = torch.zeros(3, device=DEVICE_TYPE)
        torch.openreg.synchronize()
        with StreamGate(producer) as gate:
            with producer:
                x.fill_(7)
            event = producer.record_event()
            with consumer:
                consumer.wait_event(event)
                y = x + 1
            self.assertFalse(consumer.query())
            gate.open()
        consumer.synchronize()
        self.assertEqual(y.tolist(), [8.0] * 3)

    @requires_two_devices
    def test_event_orders_two_devices(self):
        x = torch.zeros(3, device=f"{DEVICE_TYPE}:0")
        torch.openreg.synchronize()
        with StreamGate(torch.openreg.default_stream(0)) as gate:
            x.fill_(7)
            event = torch.openreg.current_stream(0).record_event()
            event.wait(torch.openreg.current_stream(1))
            self.assertFalse(torch.openreg.current_stream(1).query())
            gate.open()
            torch.openreg.synchronize(1)
            self.assertTrue(event.query())

    @requires_two_devices
    def test_copy_between_devices_waits_for_the_source(self):
        x = torch.zeros(3, device=f"{DEVICE_TYPE}:0")
        torch.openreg.synchronize()
        with StreamGate(torch.openreg.default_stream(0)):
            x.fill_(7)
            y = x.to(f"{DEVICE_TYPE}:1", non_blocking=True)
        self.assertEqual(y.tolist(), [7.0] * 3)

    @requires_two_devices
    def test_copy_between_devices_waits_for_the_destination(self):
        x, y = torch.ones(3, device=f"{DEVICE_TYPE}:0"), torch.zeros(3, device=f"{DEVICE_TYPE}:1")
        torch.openreg.synchronize(0)
        torch.openreg.synchronize(1)
        with StreamGate(torch.openreg.default_stream(1)):
            y.fill_(5)
            y.copy_(x, non_blocking=True)
        self.assertEqual(y.tolist(), [1.0] * 3)

    def test_chain_of_events_through_many_streams_keeps_the_order(self):
        x = torch.ones(1, dtype=torch.int64, device=DEVICE_TYPE)
        streams = [torch.openreg.Stream(index % DEVICE_COUNT) for index in range(8)]
        on_device_0 = [stream for stream in streams if stream.device_index == 0]
        torch.openreg.synchronize()
        with StreamGate(on_device_0[0]):
            for turn in range(3):
                for index, stream in enumerate(on_device_0):
                    with stream:
                        x.mul_(3).add_(turn + index)
                    on_device_0[(index + 1) % len(on_device_0)].wait_stream(stream)
        torch.openreg.synchronize()
        expected = 1
        for turn in range(3):
            for index in range(len(on_device_0)):
                expected = expected * 3 + turn + index
        self.assertEqual(x.item(), expected)


class TestGate(OpenRegTestCase):
    def test_gate_lets_earlier_work_run(self):
        x = torch.ones(3, device=DEVICE_TYPE)
        y = x + 1
        with StreamGate() as gate:
            gate.wait_until_reached()
            with torch.openreg.Stream():
                self.assertEqual(y.tolist(), [2.0] * 3)

    def test_gate_opens_at_the_end_and_after_an_exception(self):
        with self.assertRaises(KeyError), StreamGate() as gate:
            self.assertFalse(gate.is_open())
            raise KeyError
        torch.openreg.synchronize()

    def test_gate_can_be_used_again(self):
        gate = StreamGate()
        for _ in range(2):
            with gate:
                self.assertFalse(torch.openreg.current_stream().query())
            torch.openreg.synchronize()

    def test_gate_in_use_is_refused(self):
        with StreamGate() as gate, self.assertRaisesRegex(RuntimeError, "already in use"), gate:
            self.fail("the gate was entered twice")

    def test_gate_outside_the_block_is_refused(self):
        with self.assertRaisesRegex(RuntimeError, "inside the 'with' block"):
            StreamGate().wait_until_reached()

    def test_gate_behind_a_gate_is_not_reached(self):
        with StreamGate(), StreamGate() as second, self.assertRaises(TimeoutError):
            second.wait_until_reached(timeout=0.01)

    def test_gate_can_be_opened_by_another_thread(self):
        with StreamGate() as gate:
            opener = threading.Thread(target=gate.open)
            opener.start()
            torch.openreg.synchronize()
            opener.join()
            self.assertTrue(gate.is_open())

    def test_thread_that_waits_for_what_its_own_gate_holds_is_told_so(self):
        messages = []
        gate = StreamGate()

        def tell(message):
            messages.append(message)
            gate.open()

        with (
            mock.patch.object(testing, "_PATIENCE_S", 0.01),
            mock.patch.object(testing, "_tell", tell),
            gate,
        ):
            torch.openreg.synchronize()
        (message,) = messages
        stream = torch.openreg.current_stream()
        self.assertIn(f"holds stream 0 of {stream.device}, and", message)
        self.assertRegex(message, r"MainThread.*test_async.py:\d+: torch.openreg.synchronize\(\)\n")

    def test_gate_that_was_opened_is_not_watched(self):
        # Watchers of gates that other tests opened may not have ended.
        earlier = set(threading.enumerate())

        def watchers():
            return [one for one in threading.enumerate() if one not in earlier]

        with (
            mock.patch.object(testing, "_PATIENCE_S", 3600.0),
            mock.patch.object(testing, "_tell", self.fail),
        ):
            with StreamGate() as gate:
                (watcher,) = watchers()
                self.assertEqual(watcher.name, "StreamGate")
                gate.open()
                watcher.join()
            with StreamGate():
                (watcher,) = watchers()
            watcher.join()

    def test_gate_refuses_what_is_no_stream(self):
        with self.assertRaisesRegex(TypeError, "StreamGate: expected a stream"):
            StreamGate(5)


instantiate_parametrized_tests(TestAsync)

if __name__ == "__main__":
    run_tests()
