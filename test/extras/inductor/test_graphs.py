"""mode="reduce-overhead": compiled functions that are replayed, and right as long as they live."""

import threading
from unittest import mock

import pytest
import torch
from common import (
    DEVICE_TYPE,
    StreamGate,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_tests,
    subtest,
)
from extras.inductor.compiled import CompiledTestCase
from torch._dynamo.utils import counters
from torch.multiprocessing.reductions import StorageWeakRef

from torch_openreg.extras.inductor import _graphs

pytestmark = pytest.mark.sample(0.053)


def compiled(function, **options):
    return torch.compile(function, mode="reduce-overhead", **options)


def on_device(*sizes):
    return torch.randn(*sizes).to(DEVICE_TYPE)


class GraphsTestCase(CompiledTestCase):
    def setUp(self):
        super().setUp()
        torch.manual_seed(0)
        counters.clear()

    def assert_counts(self, **expected):
        self.assertEqual(dict(counters["openreg_graphs"]), expected)

    def assert_skipped(self, reason):
        (name,) = counters["openreg_graphs"]
        self.assertRegex(name, f"^skipped: {reason}")


def two_results(x):
    return (x + 1).relu() * 2, x.sum(-1)


class TestReplays(GraphsTestCase):
    def test_results_stay_right_as_long_as_they_live(self):
        function = compiled(two_results)
        inputs = [torch.randn(6, 8) for _ in range(5)]
        results = [function(x.to(DEVICE_TYPE)) for x in inputs]
        self.assert_counts(captured=1)
        for x, actual in zip(inputs, results, strict=True):
            torch._dynamo.reset()
            for one, other in zip(actual, torch.compile(two_results)(x), strict=True):
                self.assert_bit_equal(one, other)

    def test_call_returns_before_its_kernels_have_run(self):
        function = compiled(two_results)
        x = torch.randn(6, 8)
        given = x.to(DEVICE_TYPE)
        for _ in range(2):
            function(given)
        torch.openreg.synchronize()
        with StreamGate() as gate:
            result, _ = function(given)
            self.assertFalse(torch.openreg.current_stream().query())
            gate.open()
        self.assertEqual(result.cpu(), two_results(x)[0])

    def test_memory_does_not_grow_with_calls(self):
        function = compiled(two_results)
        x = on_device(6, 8)
        for _ in range(3):
            function(x)
        before = torch.openreg.memory_allocated()
        for _ in range(3):
            function(x)
        self.assertEqual(torch.openreg.memory_allocated(), before)

    def test_random_numbers_are_new_in_each_replay_and_those_of_the_default_mode(self):
        def draw(x):
            return torch.nn.functional.dropout(x, 0.5) + torch.rand_like(x)

        x = on_device(64)
        results = []
        for function in (compiled(draw), torch.compile(draw)):
            torch.manual_seed(5)
            results.append([function(x).cpu() for _ in range(4)])
            torch._dynamo.reset()
        self.assert_counts(captured=1)
        for one, other in zip(*results, strict=True):
            self.assert_bit_equal(one, other)
        self.assertNotEqual(results[0][2], results[0][3])

    def test_operator_that_learns_from_its_first_call(self):
        function = compiled(lambda x: torch.kthvalue(x + 1, 3).values * 2)
        for _ in range(4):
            x = torch.randn(5, 9)
            self.assertEqual(function(x.to(DEVICE_TYPE)).cpu(), torch.kthvalue(x + 1, 3).values * 2)
        self.assert_counts(captured=1)

    def test_sizes_that_change_have_a_capture_each(self):
        function = compiled(lambda x: (x * 2).sum(-1), dynamic=True)
        for size in (3, 4, 5) * 3:
            x = torch.randn(2, size)
            self.assertEqual(function(x.to(DEVICE_TYPE)).cpu(), (x * 2).sum(-1))
        self.assert_counts(captured=3)

    def test_number_of_captures_is_limited(self):
        function = compiled(lambda x: (x * 2).sum(-1), dynamic=True)
        with mock.patch.object(_graphs, "_MAX_CAPTURES", 2):
            for size in (3, 4, 5) * 3:
                x = torch.randn(2, size)
                self.assertEqual(function(x.to(DEVICE_TYPE)).cpu(), (x * 2).sum(-1))
        self.assert_counts(
            captured=2,
            **{"called without a capture: it has 2, for other sizes or addresses": 3},
        )

    def test_functions_of_the_cpu_are_left_to_inductor(self):
        function = compiled(two_results)
        x = torch.randn(6, 8)
        for _ in range(3):
            self.assertEqual(function(x), two_results(x))
        self.assert_counts()

    @requires_two_devices
    def test_second_device(self):
        function = compiled(two_results)
        for _ in range(3):
            x = torch.randn(6, 8)
            result, _ = function(x.to(f"{DEVICE_TYPE}:1"))
            self.assertEqual(result.device.index, 1)
            self.assertEqual(result.cpu(), two_results(x)[0])
        self.assert_counts(captured=1)


class TestTraining(GraphsTestCase):
    def train(self, mode):
        torch._dynamo.reset()
        torch.manual_seed(1)
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 16),
            torch.nn.GELU(),
            torch.nn.BatchNorm1d(16),
            torch.nn.Dropout(0.2),
            torch.nn.Linear(16, 4),
        ).to(DEVICE_TYPE)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        function = torch.compile(model, mode=mode)
        results = []
        for step in range(5):
            torch.manual_seed(step)
            loss = function(torch.randn(6, 8).to(DEVICE_TYPE)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            results.append(loss.detach().cpu())
        return results + [one.detach().cpu() for one in model.state_dict().values()]

    @pytest.mark.slow
    def test_steps_are_those_of_the_default_mode(self):
        expected = self.train(None)
        self.assert_counts()
        actual = self.train("reduce-overhead")
        self.assert_counts(captured=2)
        for one, other in zip(actual, expected, strict=True):
            self.assert_bit_equal(one, other)

    def test_two_forwards_before_their_backwards(self):
        weight = torch.randn(8, 8)
        inputs = [torch.randn(4, 8) for _ in range(2)]

        def gradients(device, **options):
            torch._dynamo.reset()
            parameter = torch.nn.Parameter(weight.to(device))
            function = torch.compile(lambda x: (x @ parameter).tanh().sin(), **options)
            results = []
            for _ in range(3):
                parameter.grad = None
                outputs = [function(x.to(device)) for x in inputs]
                for index in (1, 0):
                    outputs[index].sum().backward()
                results.append(parameter.grad.cpu())
            return results

        expected = gradients("cpu")
        actual = gradients(DEVICE_TYPE, mode="reduce-overhead")
        self.assert_counts(captured=2)
        for one, other in zip(actual, expected, strict=True):
            self.assert_bit_equal(one, other)

    def test_parameter_with_other_memory(self):
        layer = torch.nn.Linear(8, 4).to(DEVICE_TYPE)
        function = compiled(layer)
        x = on_device(3, 8)
        with torch.no_grad():
            for _ in range(3):
                function(x)
            layer.weight.data = on_device(4, 8)
            for _ in range(3):
                self.assertEqual(function(x), torch.nn.functional.linear(x, *layer.parameters()))
        self.assert_counts(captured=2)


class TestFailuresAndLifetimes(GraphsTestCase):
    """Functions as Inductor hands them over, with inputs in a list."""

    def graphed(self, function, static=(), is_backward=False):
        return _graphs.GraphedFunction(function, 0, static, (), is_backward)

    @parametrize("failing_call", [0, 1])
    def test_call_that_fails_is_made_again(self, failing_call):
        calls = []

        def function(inputs):
            calls.append(None)
            if len(calls) == failing_call + 1:
                raise ValueError("a call that fails")
            return [inputs[0] * 2]

        graphed = self.graphed(function)
        x = on_device(8)
        for call in range(5):
            if call == failing_call:
                with self.assertRaisesRegex(ValueError, "a call that fails"):
                    graphed([x])
            else:
                self.assertEqual(graphed([x])[0], x * 2)
        self.assert_counts(captured=1)

    def test_memory_of_a_parameter_that_is_replaced_is_freed(self):
        weight = torch.nn.Parameter(on_device(4, 8))
        graphed = self.graphed(lambda inputs: [inputs[0].t(), inputs[0] * 2], static=[0])
        with torch.no_grad():
            for _ in range(3):
                graphed([weight])
            old = StorageWeakRef(weight.untyped_storage())
            weight.data = on_device(4, 8)
            self.assertTrue(old.expired())
            for _ in range(3):
                transposed, doubled = graphed([weight])
        self.assertEqual(transposed.data_ptr(), weight.data_ptr())
        self.assertEqual(doubled, weight * 2)
        self.assert_counts(captured=2)

    def test_address_of_a_parameter_that_has_gone_is_no_parameters(self):
        parameter = on_device(64)
        address = parameter.data_ptr()
        self.graphed(lambda inputs: [inputs[0] * 2], static=[0])([parameter])
        del parameter
        backward = self.graphed(lambda inputs: [inputs[0] * 2], static=[0], is_backward=True)
        saved = [on_device(64) for _ in range(4)]
        self.assertIn(address, [one.data_ptr() for one in saved])
        saved.sort(key=lambda one: one.data_ptr() != address)
        for one in saved:
            self.assertEqual(backward([one])[0], one * 2)
        self.assert_counts(captured=1)

    def test_allocation_that_fails_changes_and_draws_nothing(self):
        graphed = self.graphed(lambda inputs: [torch.rand_like(inputs[0].add_(1))], static=[0])
        x = torch.zeros(64, device=DEVICE_TYPE)
        for _ in range(3):
            graphed([x])
        before, state = x.cpu(), torch.openreg.get_rng_state()
        error = torch.OutOfMemoryError("none left")
        with (
            mock.patch.object(_graphs, "empty_strided", side_effect=error),
            self.assertRaises(torch.OutOfMemoryError),
        ):
            graphed([x])
        self.assert_bit_equal(x, before)
        self.assertEqual(torch.openreg.get_rng_state(), state)

    @requires_two_devices
    def test_call_in_a_capture_of_a_device_that_is_not_current(self):
        graphed = _graphs.GraphedFunction(lambda inputs: [inputs[0] * 2], 1, (), (), False)
        x = torch.ones(8, device=f"{DEVICE_TYPE}:1")
        for _ in range(3):
            graphed([x])
        graph = torch.openreg.Graph()
        with torch.openreg.device(1), torch.openreg.graph(graph), torch.openreg.device(0):
            (result,) = graphed([x])
        x.fill_(3)
        graph.replay()
        self.assertEqual(result.cpu(), torch.full((8,), 6.0))

    def test_threads_that_capture_at_once_share_one_capture(self):
        is_entered, may_go_on = threading.Event(), threading.Event()

        def function(inputs):
            if torch.openreg.is_current_stream_capturing():
                is_entered.set()
                may_go_on.wait()
            return [inputs[0] * 2]

        graphed = self.graphed(function)
        x = on_device(8)
        graphed([x])
        results = []
        threads = [
            threading.Thread(target=lambda: results.append(graphed([x])[0])) for _ in range(2)
        ]
        threads[0].start()
        is_entered.wait()
        threads[1].start()
        may_go_on.set()
        for thread in threads:
            thread.join()
        for result in results:
            self.assertEqual(result, x * 2)
        self.assertEqual(len(results), 2)
        self.assert_counts(captured=1)


def same_and_views(x):
    y = x + 1
    return x, x.view(-1)[2:], y, y.t(), y[1], y.sum().expand(3)


def add_in_place(x):
    x.add_(1)
    return x * 2


class TestInputsAndResults(GraphsTestCase):
    def check(self, function, make):
        graphed = compiled(function)
        for _ in range(4):
            x = make()
            given = x.to(DEVICE_TYPE)
            if 0 in x.stride():
                given = x[:1].to(DEVICE_TYPE).expand(x.shape)
            actual, expected = graphed(given), function(x)
            torch.testing.assert_close(given.cpu(), x)
            torch.testing.assert_close(
                torch.utils._pytree.tree_map(torch.Tensor.cpu, actual), expected
            )
        return given, actual

    def test_results_that_share_memory(self):
        given, actual = self.check(same_and_views, lambda: torch.randn(4, 4))
        self.assert_counts(captured=1)
        self.assertEqual(actual[1].data_ptr(), given.data_ptr() + 8)
        self.assertEqual(actual[3].data_ptr(), actual[2].data_ptr())
        self.assertNotEqual(actual[2].data_ptr(), given.data_ptr())

    def test_input_that_is_written(self):
        self.check(add_in_place, lambda: torch.randn(5))
        self.assert_counts(captured=1)

    def test_input_that_repeats_its_elements(self):
        self.check(lambda x: x * 2, lambda: torch.randn(1, 5).expand(3, 5))
        self.assert_counts(captured=1)

    def test_input_that_is_a_part_of_another_tensor(self):
        self.check(lambda x: x * 2, lambda: torch.randn(4, 6)[1:, ::2])
        self.assert_counts(captured=1)


class TestSkips(GraphsTestCase):
    @parametrize(
        "reason, function, arguments",
        [
            subtest(
                (
                    "it uses the CPU",
                    lambda x, s: x * s,
                    lambda: (on_device(5), torch.tensor(torch.rand(()).item())),
                ),
                name="scalar_of_the_cpu",
            ),
            subtest(
                ("it uses the CPU", lambda x: (x * 2).cpu() + 1, lambda: (on_device(5),)),
                name="result_on_the_cpu",
            ),
            subtest(
                (
                    "it cannot be captured: .*",
                    lambda x: x[x > 0] * 2,
                    lambda: (on_device(5).fill_(1),),
                ),
                name="size_that_depends_on_data",
            ),
            subtest(
                (
                    "it uses 2 devices",
                    lambda x: (x * 2, torch.ones(3, device=f"{DEVICE_TYPE}:1") * 3),
                    lambda: (on_device(5),),
                ),
                name="two_devices",
                decorators=[requires_two_devices],
            ),
        ],
    )
    @torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
    def test_reason_is_counted_and_results_are_right(self, reason, function, arguments):
        graphed = compiled(function)
        for _ in range(4):
            given = arguments()
            self.assertEqual(graphed(*given), function(*given))
        self.assert_skipped(reason)

    def test_call_in_a_capture_is_captured_with_it(self):
        function = compiled(two_results)
        x = on_device(6, 8)
        for _ in range(3):
            function(x)
        graph = torch.openreg.Graph()
        with torch.openreg.graph(graph):
            result, _ = function(x)
        x.fill_(2)
        graph.replay()
        self.assertEqual(result.cpu(), torch.full((6, 8), 6.0))

    def test_error_of_earlier_work_is_raised_and_is_no_reason(self):
        divide = torch.compile(lambda x, y: x // y)
        zeros = torch.zeros(4, dtype=torch.int64).to(DEVICE_TYPE)
        function = compiled(two_results)
        x = on_device(6, 8)
        function(x)
        divide(zeros, zeros)
        with self.assertRaises(torch.AcceleratorError):
            function(x)
        self.assertEqual(function(x)[0], two_results(x)[0])
        self.assert_counts(captured=1)


class TestStreamsAndThreads(GraphsTestCase):
    def test_replays_on_several_streams_run_one_after_the_other(self):
        function = compiled(two_results)
        inputs = [torch.randn(6, 8) for _ in range(6)]
        given = [x.to(DEVICE_TYPE) for x in inputs]
        for x in given[:2]:
            function(x)
        side = torch.openreg.Stream()
        torch.openreg.synchronize()
        results = []
        with StreamGate() as gate:
            for index, x in enumerate(given):
                with torch.openreg.stream(side if index % 2 else None):
                    results.append(function(x)[0])
            self.assertFalse(side.query())  # it waits for the previous replay, after the gate
            gate.open()
        torch.openreg.synchronize()
        for x, result in zip(inputs, results, strict=True):
            self.assertEqual(result.cpu(), two_results(x)[0])

    def test_two_threads(self):
        function = compiled(two_results)
        for _ in range(2):
            function(on_device(6, 8))
        failures = []

        def call(seed):
            generator = torch.Generator().manual_seed(seed)
            with torch.openreg.stream(torch.openreg.Stream()):
                for _ in range(20):
                    x = torch.randn(6, 8, generator=generator)
                    result = function(x.to(DEVICE_TYPE))[0].cpu()
                    if not torch.allclose(result, two_results(x)[0]):
                        failures.append(seed)

        threads = [threading.Thread(target=call, args=(seed,)) for seed in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])
        self.assert_counts(captured=1)


instantiate_parametrized_tests(TestFailuresAndLifetimes)
instantiate_parametrized_tests(TestSkips)

if __name__ == "__main__":
    run_tests()
