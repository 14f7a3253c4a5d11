"""Streams, events and graphs, in the words of programs for CUDA."""

import ctypes

import torch
from common import (
    OpenRegTestCase,
    StreamGate,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

from torch_openreg import _C


class TestStreams(OpenRegTestCase):
    def test_classes_are_torch_s_own_python_over_ours(self):
        for kind in (torch.cuda.Stream, torch.cuda.Event, torch.cuda.CUDAGraph, torch.cuda.MemPool):
            self.assertTrue(kind.__module__.startswith("torch.cuda."), kind)
        self.assertTrue(issubclass(torch.cuda.Stream, torch.Stream))
        self.assertTrue(issubclass(torch.cuda.Event, torch.Event))
        self.assertIs(torch.cuda.Stream, torch.cuda.streams.Stream)
        self.assertIs(torch.cuda.graph, torch.cuda.graphs.graph)

    def test_default_stream_has_the_handle_0(self):
        self.assertEqual(torch.cuda.default_stream().cuda_stream, 0)
        self.assertEqual(torch.cuda.current_stream(), torch.cuda.default_stream())
        self.assertNotEqual(torch.cuda.Stream().cuda_stream, 0)

    def test_stream_of_another_device(self):
        stream = torch.cuda.Stream(device="cuda:1")
        self.assertEqual(stream.device, torch.device("cuda:1"))
        with torch.cuda.stream(stream):
            self.assertEqual(torch.cuda.current_device(), 1)
            self.assertEqual(torch.cuda.current_stream(), stream)
        self.assertEqual(torch.cuda.current_device(), 0)

    def test_priorities(self):
        least, greatest = torch.cuda.Stream.priority_range()
        self.assertEqual(torch.cuda.Stream(priority=greatest).priority, greatest)
        self.assertEqual(torch.cuda.Stream(priority=least).priority, least)

    def test_stream_as_context_and_as_key(self):
        stream = torch.cuda.Stream()
        same = torch.cuda.Stream(
            stream_id=stream.stream_id,
            device_index=stream.device_index,
            device_type=stream.device_type,
        )
        self.assertEqual(stream, same)
        self.assertEqual({stream: 1}[same], 1)
        with stream:
            self.assertEqual(torch.cuda.current_stream(), stream)

    def test_wait_stream_orders(self):
        side = torch.cuda.Stream()
        x = torch.zeros(4, device="cuda")
        torch.cuda.synchronize()
        with StreamGate() as gate:
            x += 1
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                y = x * 10
            self.assertFalse(side.query())
            gate.open()
            side.synchronize()
        self.assertEqual(y.cpu(), torch.full((4,), 10.0))

    def test_external_stream(self):
        handle = _C._create_external_stream(0, 0)
        stream = torch.cuda.ExternalStream(handle)
        self.assertEqual(stream.cuda_stream, handle)
        self.assertEqual(stream._as_parameter_.value, handle)
        self.assertEqual(stream.__cuda_stream__(), (0, handle))
        with torch.cuda.stream(stream):
            x = torch.ones(3, device="cuda") * 2
            self.assertEqual(torch.cuda.get_stream_from_external(handle, 0), stream)
        stream.synchronize()
        self.assertEqual(x.sum().item(), 6)
        del x
        torch.cuda.synchronize()
        _C._destroy_external_stream(handle)

    def test_record_stream_keeps_memory(self):
        side = torch.cuda.Stream()
        x = torch.ones(1 << 18, device="cuda")
        address = x.data_ptr()
        torch.cuda.synchronize()
        with StreamGate(side) as gate:
            x.record_stream(side)
            del x
            other = torch.ones(1 << 18, device="cuda")
            self.assertNotEqual(other.data_ptr(), address)
            gate.open()
            side.synchronize()

    def test_sleep_is_work(self):
        torch.cuda.synchronize()
        torch.cuda._sleep(50_000_000)
        event = torch.cuda.Event()
        event.record()
        self.assertFalse(event.query())
        event.synchronize()
        self.assertTrue(event.query())


class TestEvents(OpenRegTestCase):
    def test_elapsed_time(self):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        torch.cuda._sleep(2_000_000)
        end.record()
        end.synchronize()
        self.assertGreaterEqual(start.elapsed_time(end), 2.0)

    def test_repr_and_handle(self):
        event = torch.cuda.Event()
        self.assertEqual(repr(event), "<torch.cuda.Event uninitialized>")
        event.record()
        self.assertNotEqual(event.cuda_event, 0)
        self.assertIsInstance(event._as_parameter_, ctypes.c_void_p)
        torch.cuda.synchronize()

    def test_wait_on_a_stream_of_another_device(self):
        x = torch.zeros(1, device="cuda:0")
        event = torch.cuda.Event()
        with StreamGate() as gate:
            x += 1
            event.record()
            other = torch.cuda.current_stream("cuda:1")
            other.wait_event(event)
            self.assertFalse(other.query())
            gate.open()
        torch.cuda.synchronize("cuda:1")

    def test_external_event_in_a_capture_is_refused(self):
        event = torch.cuda.Event(external=True)
        event.record()  # outside of the capture, it works like other events
        event.synchronize()
        x = torch.ones(2, device="cuda")
        with (
            self.assertRaisesRegex(NotImplementedError, "expected external=False in a capture"),
            torch.cuda.graph(torch.cuda.CUDAGraph()),
        ):
            x + 1
            event.record()


class TestGraphs(OpenRegTestCase):
    def capture(self, function, **arguments):
        function()  # a graph's first call must be warm
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, **arguments):
            result = function()
        return graph, result

    def test_errors_begin_with_cuda_s_words(self):
        graph = torch.cuda.CUDAGraph()
        with self.assertRaisesRegex(
            RuntimeError, "^CUDA graphs must be captured on a non-default stream"
        ):
            graph.capture_begin()
        with torch.cuda.stream(torch.cuda.Stream()):
            graph.capture_begin()
            with self.assertWarnsRegex(UserWarning, "^The CUDA Graph is empty"):
                graph.capture_end()

    def test_replay_computes_with_new_inputs(self):
        x = torch.ones(4, device="cuda")
        graph, y = self.capture(lambda: x * 2 + 1)
        for value in (3.0, 5.0):
            x.fill_(value)
            graph.replay()
            self.assertEqual(y.cpu(), torch.full((4,), value * 2 + 1))

    def test_shared_pool(self):
        x = torch.ones(4, device="cuda")
        pool = torch.cuda.graph_pool_handle()
        first, y = self.capture(lambda: x + 1, pool=pool)
        second, z = self.capture(lambda: y * 3, pool=first.pool())
        self.assertEqual(first.pool(), second.pool())
        first.replay()
        second.replay()
        self.assertEqual(z.cpu(), torch.full((4,), 6.0))

    def test_is_current_stream_capturing(self):
        self.assertFalse(torch.cuda.is_current_stream_capturing())
        x = torch.ones(4, device="cuda")
        _, is_capturing = self.capture(lambda: (x + 1, torch.cuda.is_current_stream_capturing()))
        self.assertTrue(is_capturing[1])

    def test_input_that_died_is_told(self):
        inputs = [torch.ones(4, device="cuda")]
        graph, _ = self.capture(lambda: inputs[0] + 1, check_input_liveness=True)
        graph.replay()
        inputs.clear()
        with self.assertRaisesRegex(RuntimeError, "dead tensor"):
            graph.replay()

    def test_programs_instantiate_graphs_that_are_kept(self):
        x = torch.ones(4, device="cuda")
        graph, _ = self.capture(lambda: x.add_(1))
        text = r"instantiate\(\) is intended to be called by the user only when keep_graph=true"
        for _ in range(2):
            with self.assertRaisesRegex(RuntimeError, text):
                graph.instantiate()
        x.fill_(1)
        graph.replay()
        self.assertEqual(x.cpu(), torch.full((4,), 2.0))
        with self.assertRaisesRegex(RuntimeError, "expected a graph that has captured"):
            torch.cuda.CUDAGraph().instantiate()

    @parametrize("method", ["raw_cuda_graph", "raw_cuda_graph_exec"])
    def test_handles_of_cuda_s_driver_are_refused(self, method):
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with self.assertRaisesRegex(NotImplementedError, "expected a graph of CUDA's driver"):
            getattr(graph, method)()

    def test_handle_of_a_graph_that_is_not_kept_is_an_error_of_cuda_too(self):
        with self.assertRaisesRegex(
            RuntimeError, "^You cannot access the raw cudaGraph_t instance unless CUDAGraph was "
        ) as context:
            torch.cuda.CUDAGraph().raw_cuda_graph()
        self.assertNotIsInstance(context.exception, NotImplementedError)

    def test_make_graphed_callables_trains_as_without(self):
        def train(graphs: bool) -> list[float]:
            torch.manual_seed(0)
            model = torch.nn.Sequential(
                torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)
            ).cuda()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            x, y = torch.randn(4, 8, device="cuda"), torch.randn(4, 1, device="cuda")
            call = torch.cuda.make_graphed_callables(model, (x,)) if graphs else model
            losses = []
            for _ in range(4):
                optimizer.zero_grad(set_to_none=True)
                loss = torch.nn.functional.mse_loss(call(x), y)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            return losses

        self.assertEqual(train(graphs=True), train(graphs=False), rtol=0, atol=0)


instantiate_parametrized_tests(TestGraphs)

if __name__ == "__main__":
    run_tests()
