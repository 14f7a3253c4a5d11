"""Graphs: captures, replays, their contents, and their effect on other work."""

import gc
import itertools
import os
import re
import shutil
import subprocess
import tempfile
import threading
import warnings
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from common import (
    DEVICE_TYPE,
    ERROR_PREFIX,
    FORK_TEXT,
    OpenRegTestCase,
    StreamGate,
    call_in_thread,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_child,
    run_tests,
    subtest,
)
from interfaces import overrides, virtuals
from torch import nn

pytestmark = pytest.mark.sample(0.24)

MODES = ("default", "global", "thread_local", "relaxed")
UNSUPPORTED = f"{ERROR_PREFIX}StreamCaptureUnsupported"
INVALIDATED = f"{ERROR_PREFIX}StreamCaptureInvalidated"


def tensor(*values):
    return torch.tensor(values, dtype=torch.float32).to(DEVICE_TYPE)


def capture(function, **arguments):
    """Runs a function once, then captures it. Returns the graph and the function's result."""
    stream = torch.openreg.Stream()
    torch.openreg.synchronize()
    with torch.openreg.stream(stream):
        function()
    torch.openreg.synchronize()
    graph = torch.openreg.Graph(arguments.pop("keep_graph", False))
    with torch.openreg.graph(graph, stream=stream, **arguments):
        result = function()
    return graph, result


class GraphTestCase(OpenRegTestCase):
    def setUp(self):
        super().setUp()
        warnings.simplefilter("error")
        self.addCleanup(warnings.resetwarnings)

    def assert_usable(self):
        """Checks that nothing captures any more and a capture works."""
        x = tensor(1.0, 2.0)
        self.assertFalse(torch.openreg.is_current_stream_capturing())
        graph, y = capture(lambda: x + 1)
        x.fill_(5)
        graph.replay()
        self.assertEqual(y.tolist(), [6.0, 6.0])


class TestAcceleratorGraph(GraphTestCase):
    @parametrize("mode", MODES)
    def test_replay_runs_the_captured_work_on_new_data(self, mode):
        x = tensor(1.0, 2.0)
        graph = torch.accelerator.Graph(capture_error_mode=mode)
        with torch.Stream(), graph:
            y = x * 2
            y.add_(1)
        for value in (3.0, 4.0):
            x.fill_(value)
            graph.replay()
            self.assertEqual(y.tolist(), [2 * value + 1] * 2)

    def test_captured_work_does_not_run_before_the_replay(self):
        x = tensor(1.0)
        graph = torch.accelerator.Graph()
        with torch.Stream(), graph:
            x.add_(1)
        self.assertEqual(x.item(), 1.0)
        graph.replay()
        self.assertEqual(x.item(), 2.0)

    def test_a_kept_graph_is_instantiated_by_its_first_replay(self):
        x = tensor(1.0)
        graph = torch.accelerator.Graph(keep_graph=True)
        with torch.Stream(), graph:
            x.add_(1)
        graph.replay()
        self.assertEqual(x.item(), 2.0)
        graph.instantiate()
        graph.instantiate()
        graph.replay()
        self.assertEqual(x.item(), 3.0)

    def test_reset_allows_another_capture(self):
        x = tensor(1.0)
        graph = torch.accelerator.Graph()
        for factor in (2.0, 3.0):
            with torch.Stream(), graph:
                y = x * factor
            graph.replay()
            self.assertEqual(y.item(), factor)
            graph.reset()
        graph.reset()

    def test_reset_gives_up_a_capture_under_way(self):
        graph = torch.accelerator.Graph()
        with torch.Stream():
            graph.capture_begin()
            torch.empty(10, device=DEVICE_TYPE)
            graph.reset()
            self.assertFalse(torch.openreg.is_current_stream_capturing())
        self.assert_usable()

    def test_a_graph_dropped_while_capturing_frees_its_stream(self):
        stream = torch.Stream()
        with stream:
            graph = torch.accelerator.Graph()
            graph.capture_begin()
            del graph
            gc.collect()
            self.assertFalse(stream.is_capturing())
        self.assert_usable()

    def test_calls_in_the_wrong_order_raise(self):
        graph = torch.accelerator.Graph()
        for call in (graph.capture_end, graph.instantiate, graph.replay, graph.pool):
            with self.assertRaisesRegex(RuntimeError, r"Graph\.\w+: expected"):
                call()
        with self.assertRaisesRegex(RuntimeError, r"Graph\.debug_dump: expected"):
            graph.debug_dump("graph.dot")
        x = tensor(1.0)
        with torch.Stream(), graph:
            x.add_(1)
            with self.assertRaisesRegex(RuntimeError, "got one that is capturing"):
                graph.capture_begin()
        with (
            torch.Stream(),
            self.assertRaisesRegex(RuntimeError, r"has captured; call reset\(\)"),
        ):
            graph.capture_begin()
        # The second half is CUDA's text.
        text = (
            r"keep_graph=True; instantiate\(\) is intended to be called by the user only when keep_"
        )
        with self.assertRaisesRegex(RuntimeError, text):
            graph.instantiate()
        graph.replay()
        self.assertEqual(x.item(), 2.0)

    def test_default_streams_are_refused(self):
        graph = torch.accelerator.Graph()
        with self.assertRaisesRegex(RuntimeError, f"not the default stream of {DEVICE_TYPE}:0"):
            graph.capture_begin()
        self.assert_usable()

    def test_a_capture_ends_on_the_stream_where_it_began(self):
        x = tensor(1.0)
        graph = torch.openreg.Graph()
        stream = torch.openreg.Stream()
        with stream:
            graph.capture_begin()
            x.add_(1)
        with self.assertRaisesRegex(RuntimeError, "where the capture began"):
            graph.capture_end()
        with stream:
            graph.capture_end()
        graph.replay()
        self.assertEqual(x.item(), 2.0)

    def test_a_capture_ends_on_the_thread_that_began_it(self):
        x = tensor(1.0)
        graph = torch.openreg.Graph()
        stream = torch.openreg.Stream()

        def end():
            with stream:
                graph.capture_end()

        with stream:
            graph.capture_begin()
            x.add_(1)
            with self.assertRaisesRegex(RuntimeError, f"{ERROR_PREFIX}StreamCaptureWrongThread"):
                call_in_thread(end)
            graph.capture_end()
        graph.replay()
        self.assertEqual(x.item(), 2.0)

    def test_two_captures_on_one_stream_are_refused(self):
        first, second = torch.openreg.Graph(), torch.openreg.Graph()
        x = tensor(1.0)
        with torch.openreg.Stream():
            first.capture_begin()
            with self.assertRaisesRegex(RuntimeError, f"{ERROR_PREFIX}IllegalState"):
                second.capture_begin()
            x.add_(1)
            first.capture_end()
        first.replay()
        self.assertEqual(x.item(), 2.0)

    def test_an_empty_capture_warns(self):
        graph = torch.openreg.Graph()
        with (
            self.assertWarnsRegex(UserWarning, "nothing was captured"),
            torch.openreg.graph(graph),
        ):
            pass
        graph.replay()

    def test_unknown_modes_and_pools_are_refused(self):
        graph = torch.openreg.Graph()
        with torch.openreg.Stream():
            with self.assertRaisesRegex(ValueError, "expected a capture_error_mode"):
                graph.capture_begin(capture_error_mode="strict")
            with self.assertRaisesRegex(RuntimeError, "expected the id of a pool"):
                graph.capture_begin(pool=(1, 1))
        self.assert_usable()

    def test_every_virtual_of_the_interface_is_overridden(self):
        declared = virtuals("ATen/core/GraphImplInterface.h", "GraphImplInterface")
        header = Path(__file__).resolve().parents[3] / "csrc" / "extras" / "graph" / "Graph.h"
        self.assertEqual(len(declared), 8)
        self.assertEqual(declared, overrides(header, "OpenRegGraph"))

    @requires_two_devices
    def test_each_device_captures_on_its_own(self):
        inputs = [torch.ones(3, device=f"{DEVICE_TYPE}:{device}") for device in (0, 1)]
        graphs, results = [], []
        for device, x in enumerate(inputs):
            with torch.openreg.device(device):
                graph = torch.openreg.Graph()
                with torch.openreg.graph(graph):
                    self.assertEqual(torch.openreg.current_device(), device)
                    results.append(x + device)
                graphs.append(graph)
        for graph in graphs:
            graph.replay()
        torch.accelerator.synchronize(0)
        torch.accelerator.synchronize(1)
        self.assertEqual([one.tolist() for one in results], [[1.0] * 3, [2.0] * 3])
        self.assertEqual([one.device.index for one in results], [0, 1])

    def test_threads_capture_at_the_same_time(self):
        inputs = [torch.full((1000,), float(i), device=DEVICE_TYPE) for i in range(4)]
        outputs: dict[int, tuple[torch.openreg.Graph, torch.Tensor]] = {}
        barrier = threading.Barrier(len(inputs))

        def run(i):
            graph = torch.openreg.Graph()
            with torch.openreg.Stream():
                barrier.wait()
                graph.capture_begin(capture_error_mode="thread_local")
                y = inputs[i]
                for _ in range(20):
                    y = y + 1
                graph.capture_end()
                outputs[i] = graph, y

        threads = [threading.Thread(target=run, args=(i,)) for i in range(len(inputs))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for graph, _ in outputs.values():
            graph.replay()
        for i in range(len(inputs)):
            self.assertEqual(outputs[i][1].tolist(), [i + 20.0] * 1000)


class TestMemory(GraphTestCase):
    def test_replays_use_memory_that_nobody_else_gets(self):
        x = tensor(*range(1000))

        def work():
            y = x * 2  # freed in the capture: a temporary
            return y + 1

        graph, result = capture(work)
        junk = [torch.full((1000,), -1.0, device=DEVICE_TYPE) for _ in range(50)]
        torch.openreg.empty_cache()
        more_junk = [torch.full((1000,), -2.0, device=DEVICE_TYPE) for _ in range(50)]
        graph.replay()
        self.assert_bit_equal(result.cpu(), x.cpu() * 2 + 1)
        for one, value in ((junk, -1.0), (more_junk, -2.0)):
            self.assertTrue(all((t == value).all().item() for t in one))

    def test_pools_are_shared_by_id(self):
        pool = torch.openreg.graph_pool_handle()
        x = tensor(1.0)
        first, y = capture(lambda: x + 1, pool=pool)
        second, z = capture(lambda: y + 1, pool=first.pool())
        other, _ = capture(lambda: x + 1)
        self.assertEqual(first.pool(), pool)
        self.assertEqual(second.pool(), pool)
        self.assertNotEqual(other.pool(), pool)
        self.assertNotEqual(torch.openreg.graph_pool_handle(), pool)
        first.replay()
        second.replay()
        self.assertEqual(z.item(), 3.0)

    def test_a_pools_memory_goes_back_after_the_reset(self):
        torch.openreg.empty_cache()
        before = torch.openreg.memory_reserved()
        x = tensor(1.0)
        graph = capture(lambda: x.expand(5_000_000) + 1)[0]
        torch.openreg.empty_cache()
        self.assertGreater(torch.openreg.memory_reserved(), before)
        graph.replay()
        graph.reset()
        torch.openreg.empty_cache()
        self.assertLess(torch.openreg.memory_reserved() - before, 5_000_000)

    def test_tensors_of_a_capture_outlive_its_graph(self):
        x = tensor(1.0, 2.0)
        graph, y = capture(lambda: x + 1)
        graph.replay()
        del graph
        torch.openreg.empty_cache()
        self.assertEqual(y.tolist(), [2.0, 3.0])

    def test_tensors_that_other_streams_use_may_be_freed_in_a_capture(self):
        side = torch.openreg.Stream()
        x = torch.full((1000,), 1.0, device=DEVICE_TYPE)
        used = torch.full((1000,), 2.0, device=DEVICE_TYPE)
        side.wait_stream(torch.openreg.current_stream())
        with side:
            sum_of_used = used.sum()
        used.record_stream(side)
        graph = torch.openreg.Graph()
        with torch.openreg.graph(graph, capture_error_mode="relaxed"):
            del used
            y = x + 1
            y.record_stream(torch.openreg.Stream())
            z = y + 1
            del y
        graph.replay()
        self.assertEqual(z.sum().item(), 3000.0)
        self.assertEqual(sum_of_used.item(), 2000.0)

    def test_graph_keeps_the_memory_of_a_pool_that_is_gone(self):
        pool = torch.openreg.MemPool()
        x = torch.ones(1 << 20, device=DEVICE_TYPE)
        graph = torch.openreg.Graph()
        with torch.openreg.graph(graph, pool=pool.id):
            temporary = x + 1
            z = temporary.sum()
            del temporary
        self.assertEqual(pool.use_count(), 2)
        segments = len(pool.snapshot())
        identity = pool.id
        del pool
        torch.openreg.empty_cache()
        self.assertEqual(len(torch.openreg.memory_snapshot(identity)), segments)
        graph.replay()
        self.assertEqual(z.item(), 2 << 20)
        del z
        graph.reset()
        torch.openreg.empty_cache()
        self.assertEqual(torch.openreg.memory_snapshot(identity), [])

    def test_replays_check_on_request_that_inputs_are_alive(self):
        x, y = tensor(1.0), tensor(2.0)
        graph = torch.openreg.Graph()
        with torch.openreg.graph(graph, check_input_liveness=True):
            temporary = x * y
            z = temporary + 1
            del temporary
        graph.replay()
        self.assertEqual(z.item(), 3.0)
        del y
        with self.assertRaisesRegex(RuntimeError, r"got 1 whose .*\n.*float32 \[1\].*aten.mul"):
            graph.replay()
        graph.reset()
        with torch.openreg.graph(graph):
            z = x + 1
        graph.replay()
        self.assertEqual(z.item(), 2.0)

    def test_a_training_step_needs_its_parameters(self):
        model = nn.Linear(2, 2).to(DEVICE_TYPE)
        batch = torch.ones(3, 2, device=DEVICE_TYPE)
        graph = torch.openreg.Graph()
        torch.openreg.synchronize()
        with torch.openreg.Stream():
            model(batch).sum().backward()
        torch.openreg.synchronize()
        model.zero_grad(set_to_none=True)
        with torch.openreg.graph(graph, check_input_liveness=True):
            model(batch).sum().backward()
        graph.replay()
        del model
        gc.collect()
        with self.assertRaisesRegex(RuntimeError, r"float32 \[2, 2\]"):
            graph.replay()

    # Small operands and large ones, whose results are described in different ways.
    @parametrize("size", [4, 40_000])
    def test_a_capture_may_have_first_calls_of_the_fallback(self, size):
        x = torch.arange(float(size), device=DEVICE_TYPE)
        index = torch.tensor([size - 1, 1], device=DEVICE_TYPE)
        y = torch.empty(0, device=DEVICE_TYPE)
        graph = torch.openreg.Graph()
        with torch.openreg.graph(graph):
            x.add_(1)
            rolled = torch.roll(x, 1)
            torch.index_select(x, 0, index, out=y)
        for number in (1, 2):
            graph.replay()
            self.assertEqual(rolled[:2].tolist(), [size - 1 + number, number])
            self.assertEqual(y.tolist(), [size - 1 + number, 1 + number])

    def test_a_capture_may_take_memory_from_the_device(self):
        x = tensor(1.0)
        graph = torch.openreg.Graph()
        with torch.openreg.graph(graph):
            y = x.expand(3_000_000) + 1
        graph.replay()
        self.assertEqual(y.sum().item(), 6_000_000.0)

    def test_a_capture_that_runs_out_of_memory_leaves_nothing_behind(self):
        x = tensor(1.0, 2.0)
        before = torch.openreg.memory_allocated()
        ooms = torch.openreg.memory_stats()["num_ooms"]
        graph = torch.openreg.Graph()
        with (
            self.assertRaisesRegex(torch.OutOfMemoryError, "Tried to allocate"),
            torch.openreg.graph(graph),
        ):
            y = x + 1
            torch.empty(1 << 50, dtype=torch.uint8, device=DEVICE_TYPE)
        del y
        self.assertEqual(torch.openreg.memory_stats()["num_ooms"], ooms + 1)
        graph.reset()
        self.assertEqual(torch.openreg.memory_allocated(), before)
        with torch.openreg.graph(graph):
            y = x + 1
        graph.replay()
        self.assertEqual(y.tolist(), [2.0, 3.0])
        self.assert_usable()

    def test_a_capture_goes_on_after_a_request_that_was_too_large(self):
        x = tensor(1.0, 2.0)
        graph = torch.openreg.Graph()
        with torch.openreg.graph(graph):
            y = x + 1
            with self.assertRaises(torch.OutOfMemoryError):
                torch.empty(1 << 50, dtype=torch.uint8, device=DEVICE_TYPE)
            y.mul_(2)
        graph.replay()
        self.assertEqual(y.tolist(), [4.0, 6.0])

    @parametrize("mode", MODES[1:])
    def test_a_capture_gets_the_memory_that_others_have_freed(self, mode):
        # 64 MiB, of which 60 are in use. While it captures, 40 become free, and 40 are needed.
        run_child(
            f"""
            import torch
            MIB = 1 << 20
            new = lambda size: torch.empty(size * MIB, dtype=torch.uint8, device="openreg")
            x = torch.ones(4, device="openreg")
            kept, freed = new(20), new(20)
            side = torch.openreg.Stream()
            with side:
                used = new(20).zero_()
            graph = torch.openreg.Graph()
            with torch.openreg.graph(graph, capture_error_mode="{mode}"):
                y = x + 1
                del freed, used
                assert torch.openreg.memory_reserved() >= 60 * MIB
                z = new(40).fill_(7)
                try:
                    new(5)
                except torch.OutOfMemoryError as error:
                    assert "rivate pools" in str(error) and "42.00 MiB" in str(error)
                else:
                    raise AssertionError
            graph.replay()
            assert y.tolist() == [2.0] * 4 and z[::MIB].tolist() == [7] * 40
            del y, z
            graph.reset()
            new(40)
            """,
            {"OPENREG_DEVICE_MEMORY": "64MiB"},
        )

    def test_pinned_copies_are_captured(self):
        source = torch.ones(1000).pin_memory()
        target = torch.zeros(1000).pin_memory()
        x = torch.zeros(1000, device=DEVICE_TYPE)
        graph = torch.openreg.Graph()
        with torch.openreg.graph(graph):
            x.copy_(source, non_blocking=True)
            x.mul_(2)
            target.copy_(x, non_blocking=True)
        for value in (3.0, 4.0):
            source.fill_(value)
            graph.replay()
            torch.openreg.synchronize()
            self.assertEqual(target.tolist(), [2 * value] * 1000)


class TestNameOfCuda(GraphTestCase):
    def test_graph_is_captured_and_replayed_under_the_name_in_torch_cuda(self):
        module = torch.get_device_module(DEVICE_TYPE)
        x, y = tensor(1, 2), tensor(0, 0)
        graph = module.CUDAGraph()
        pool = module.graph_pool_handle()
        with module.graph(graph, pool=pool):
            y.copy_(x * 2)
        x.fill_(5)
        graph.replay()
        self.assertEqual(y.tolist(), [10, 10])
        self.assertEqual(graph.pool(), pool)
        graph.reset()
        self.assertIs(torch.openreg.CUDAGraph, torch.openreg.Graph)


class TestUnsafeCalls(GraphTestCase):
    # What to call, and part of the text of its error.
    CALLS: ClassVar = {
        "item": (lambda x: x[0].item(), "aten::_local_scalar_dense"),
        "bool": (lambda x: bool(x[0] > 0), "aten::_local_scalar_dense"),
        "equal": (lambda x: torch.equal(x, x), "aten::equal"),
        "nonzero": (lambda x: x.nonzero(), "aten::nonzero"),
        "masked_select": (lambda x: x[x > 0], "aten::"),
        "unique": (lambda x: x.unique(), "aten::"),
        "cpu": (lambda x: x.cpu(), "aten::copy_ (device to host)"),
        "pageable": (lambda x: x.copy_(torch.ones(4)), "aten::copy_ (host to device)"),
        "pageable, large": (
            lambda x: torch.ones(100_000).to(DEVICE_TYPE, non_blocking=True),
            "aten::copy_ (host to device)",
        ),
        "pinned, blocking": (
            lambda x: x.copy_(torch.ones(4).pin_memory()),
            "aten::copy_ (host to device)",
        ),
        "new tensor": (lambda x: torch.tensor([1.0], device=DEVICE_TYPE), "aten::copy_"),
        "first call": (
            lambda x: torch.repeat_interleave(x.long(), output_size=10),
            "make it once before the capture",
        ),
        "synchronize": (lambda x: torch.openreg.synchronize(), "orDeviceSynchronize"),
        "stream synchronize": (
            lambda x: torch.openreg.current_stream().synchronize(),
            "orStreamSynchronize",
        ),
        "stream query": (lambda x: torch.openreg.current_stream().query(), "orStreamQuery"),
        "other stream": (
            lambda x: torch.openreg.default_stream().synchronize(),
            "orStreamSynchronize",
        ),
    }

    @parametrize("name", [subtest(name, name=re.sub(r"\W+", "_", name)) for name in CALLS])
    @parametrize("mode", ["global", "relaxed"])
    def test_what_no_graph_can_repeat_raises_and_names_itself(self, name, mode):
        if name == "other stream" and mode == "relaxed":
            self.skipTest("allowed in this mode")
        call, text = self.CALLS[name]
        x = tensor(1.0, 2.0, 3.0, 4.0)
        graph = torch.openreg.Graph()
        with (
            self.assertRaises(torch.AcceleratorError) as caught,
            torch.openreg.graph(graph, capture_error_mode=mode),
        ):
            x.add_(1)
            call(x)
        self.assertIn(UNSUPPORTED, str(caught.exception))
        self.assertIn(text, str(caught.exception))
        self.assertEqual(caught.exception.error_code, 900)
        self.assertEqual(x.tolist(), [1.0, 2.0, 3.0, 4.0])
        self.assert_usable()
        with torch.openreg.graph(graph):
            x.add_(1)
        graph.replay()
        self.assertEqual(x.tolist(), [2.0, 3.0, 4.0, 5.0])

    def test_a_caught_error_still_invalidates_the_capture(self):
        x = tensor(1.0)
        graph = torch.openreg.Graph()
        stream = torch.openreg.Stream()
        with stream:
            graph.capture_begin()
            with self.assertRaisesRegex(RuntimeError, UNSUPPORTED):
                x.item()
            self.assertTrue(stream.is_capturing())
            with self.assertRaisesRegex(RuntimeError, INVALIDATED):
                x.add_(1)
            with self.assertRaisesRegex(RuntimeError, INVALIDATED):
                graph.capture_end()
            self.assertFalse(stream.is_capturing())
        with self.assertRaisesRegex(RuntimeError, "expected a graph that has captured"):
            graph.replay()
        self.assert_usable()

    def test_torch_accelerator_graph_reports_an_invalid_capture(self):
        x = tensor(1.0)
        graph = torch.accelerator.Graph()
        with self.assertRaisesRegex(RuntimeError, INVALIDATED), torch.Stream(), graph:
            x.item()
        self.assert_usable()

    def test_an_operator_that_has_run_before_is_captured(self):
        x = torch.randn(4, 4).to(DEVICE_TYPE)
        torch.openreg.reset_fallback_stats()
        graph, result = capture(lambda: x.histc(5, -3, 3))
        self.assertEqual(torch.openreg.fallback_stats(), {"aten::histc": 2})
        for _ in range(3):
            x.copy_(torch.randn(4, 4))
            graph.replay()
            self.assert_bit_equal(result.cpu(), x.cpu().histc(5, -3, 3))

    @parametrize("mode", ["global", "thread_local", "relaxed"])
    def test_modes_say_what_other_threads_may_do(self, mode):
        x = tensor(1.0)
        graph = torch.openreg.Graph()
        other = torch.openreg.Stream()

        def wait():
            try:
                other.synchronize()
            except RuntimeError as error:
                return str(error)
            return "waited"

        with torch.openreg.Stream():
            graph.capture_begin(capture_error_mode=mode)
            x.add_(1)
            answer = call_in_thread(wait)
            if mode == "global":
                self.assertIn(UNSUPPORTED, answer)
                with self.assertRaisesRegex(RuntimeError, INVALIDATED):
                    graph.capture_end()
            else:
                self.assertEqual(answer, "waited")
                graph.capture_end()
                graph.replay()
        self.assert_usable()

    # What another thread may not do during a capture in mode "global", with a tensor of the device.
    CALLS_OF_OTHERS: ClassVar = {
        "device memory": lambda x: torch.empty(5 * 2**20, dtype=torch.uint8, device=x.device),
        "pinned memory": lambda x: torch.empty(5 * 2**20, dtype=torch.uint8, pin_memory=True),
        "item": lambda x: x.item(),
        "event": lambda x: torch.openreg.current_stream().record_event().query(),
    }

    @parametrize(
        "name", [subtest(name, name=re.sub(r"\W+", "_", name)) for name in CALLS_OF_OTHERS]
    )
    @parametrize("mode", ["global", "thread_local", "relaxed"])
    def test_another_thread_that_takes_memory_or_waits_breaks_a_global_capture(self, name, mode):
        x, of_other = tensor(1.0), tensor(2.0)
        torch.openreg.synchronize()
        torch.openreg.empty_cache()
        torch.accelerator.empty_host_cache()
        graph = torch.openreg.Graph()

        def call():
            try:
                self.CALLS_OF_OTHERS[name](of_other)
            except torch.AcceleratorError as error:
                return error.error_code
            return 0

        with torch.openreg.Stream():
            graph.capture_begin(capture_error_mode=mode)
            x.add_(1)
            code = call_in_thread(call)
            if mode == "global":
                self.assertEqual(code, 900)
                with self.assertRaisesRegex(RuntimeError, INVALIDATED):
                    graph.capture_end()
            else:
                self.assertEqual(code, 0)
                graph.capture_end()
        self.assert_usable()

    def test_another_thread_takes_memory_for_the_stream_that_captures(self):
        x = tensor(1.0, 2.0)
        stream = torch.openreg.Stream()
        graph = torch.openreg.Graph()

        def work():
            with stream:
                return torch.ones(5 * 2**20, device=DEVICE_TYPE)[:2] + x

        torch.openreg.synchronize()
        torch.openreg.empty_cache()
        with stream:
            graph.capture_begin()
            result = call_in_thread(work)
            graph.capture_end()
        graph.replay()
        self.assertEqual(result.tolist(), [2.0, 3.0])

    def test_the_error_of_the_body_comes_out(self):
        graph = torch.openreg.Graph()
        with self.assertRaisesRegex(KeyError, "the body's"), torch.openreg.graph(graph):
            raise KeyError("the body's")
        self.assertFalse(torch.openreg.is_current_stream_capturing())
        self.assert_usable()


class TestStreams(GraphTestCase):
    def test_streams_know_that_they_capture(self):
        stream, other = torch.openreg.Stream(), torch.openreg.Stream()
        self.assertFalse(torch.openreg.is_current_stream_capturing())
        graph = torch.openreg.Graph()
        x = tensor(1.0)
        with torch.openreg.graph(graph, stream=stream):
            x.add_(1)
            self.assertTrue(torch.openreg.is_current_stream_capturing())
            self.assertTrue(stream.is_capturing())
            self.assertTrue(torch.accelerator.current_stream().is_capturing())
            self.assertFalse(other.is_capturing())
            other.wait_stream(stream)
            self.assertTrue(other.is_capturing())
            stream.wait_stream(other)
        self.assertFalse(stream.is_capturing() or other.is_capturing())

    def test_streams_fork_and_join_by_events(self):
        x = tensor(1.0, 2.0)
        side = torch.openreg.Stream()

        def work():
            main = torch.openreg.current_stream()
            y = x + 1
            side.wait_stream(main)
            with side:
                z = y * 10
            w = y * 100
            main.wait_stream(side)
            return z + w

        graph, result = capture(work)
        x.copy_(torch.tensor([3.0, 4.0]))
        graph.replay()
        self.assertEqual(result.tolist(), [440.0, 550.0])

    @requires_two_devices
    def test_streams_of_two_devices_are_captured_together(self):
        x = tensor(1.0, 2.0)
        y = torch.zeros(2, device=f"{DEVICE_TYPE}:1")
        torch.openreg.synchronize(1)
        side = torch.openreg.Stream(1)

        def work():
            main = torch.openreg.current_stream(0)
            doubled = x * 2
            side.wait_stream(main)
            with side:
                y.copy_(doubled)
                tripled = y * 3
            main.wait_stream(side)
            return tripled

        graph, result = capture(work)
        junk = [torch.full((2,), -1.0, device=f"{DEVICE_TYPE}:1") for _ in range(100)]
        x.copy_(torch.tensor([3.0, 4.0]))
        graph.replay()
        torch.accelerator.synchronize()
        self.assertEqual(result.tolist(), [18.0, 24.0])
        self.assertTrue(all(one.tolist() == [-1.0, -1.0] for one in junk))

    def test_branches_wait_for_what_they_follow(self):
        x = torch.zeros(1, device=DEVICE_TYPE)
        sides = [torch.openreg.Stream() for _ in range(3)]

        def work():
            main = torch.openreg.current_stream()
            total = x + 1
            for _ in range(10):
                parts = []
                for side in sides:
                    side.wait_stream(main)
                    with side:
                        parts.append(total * 2 + 1)
                for side in sides:
                    main.wait_stream(side)
                total = sum(parts)
                total = total / 3
            return total

        graph, result = capture(work)
        expected = torch.ones(1)
        for _ in range(10):
            expected = sum([expected * 2 + 1] * 3) / 3
        for _ in range(5):
            graph.replay()
            self.assert_bit_equal(result.cpu(), expected)

    def test_unjoined_work_raises(self):
        capturing, side = torch.openreg.Stream(), torch.openreg.Stream()  # two of the pool
        x = tensor(1.0)
        graph = torch.openreg.Graph()
        with (
            self.assertRaisesRegex(RuntimeError, f"{ERROR_PREFIX}StreamCaptureUnjoined"),
            torch.openreg.graph(graph, stream=capturing),
        ):
            side.wait_stream(torch.openreg.current_stream())
            with side:
                x.add_(1)
        self.assertEqual(x.item(), 1.0)
        self.assert_usable()

    def test_waiting_for_work_outside_raises(self):
        event = torch.openreg.default_stream().record_event()
        graph = torch.openreg.Graph()
        with (
            self.assertRaisesRegex(RuntimeError, f"{ERROR_PREFIX}StreamCaptureIsolation"),
            torch.openreg.graph(graph),
        ):
            torch.openreg.current_stream().wait_event(event)
        self.assert_usable()

    def test_a_captured_event_cannot_be_waited_for(self):
        graph = torch.openreg.Graph()
        with (
            self.assertRaisesRegex(RuntimeError, f"{ERROR_PREFIX}CapturedEvent"),
            torch.openreg.graph(graph, capture_error_mode="relaxed"),
        ):
            event = torch.openreg.current_stream().record_event()
            event.synchronize()
        self.assert_usable()

    def test_replays_follow_the_order_of_their_stream(self):
        x = tensor(1.0)
        graph, _ = capture(lambda: x.mul_(2))
        x.fill_(1)
        stream = torch.openreg.Stream()
        stream.wait_stream(torch.openreg.current_stream())
        with StreamGate(stream), stream:
            x.add_(1)
            graph.replay()
            x.add_(1)
            graph.replay()
        stream.synchronize()
        self.assertEqual(x.item(), 10.0)

    def test_replays_on_two_streams_follow_each_other(self):
        x = torch.zeros(1, device=DEVICE_TYPE)
        graph, _ = capture(lambda: x.add_(1))
        x.zero_()
        torch.openreg.synchronize()
        streams = [torch.openreg.Stream() for _ in range(3)]
        with StreamGate(streams[0]):
            for stream in itertools.islice(itertools.cycle(streams), 60):
                with stream:
                    graph.replay()
        torch.openreg.synchronize()
        self.assertEqual(x.item(), 60.0)

    def test_threads_replay_one_graph(self):
        x = torch.zeros(1, device=DEVICE_TYPE)
        graph, _ = capture(lambda: x.add_(1))
        x.zero_()
        torch.openreg.synchronize()

        def replay():
            with torch.openreg.Stream():
                for _ in range(50):
                    graph.replay()

        threads = [threading.Thread(target=replay) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        torch.openreg.synchronize()
        self.assertEqual(x.item(), 200.0)

    def test_a_graph_may_go_while_it_runs(self):
        x = torch.zeros(1000, device=DEVICE_TYPE)
        graph, _ = capture(lambda: x.add_(1).mul_(1))
        x.zero_()
        stream = torch.openreg.Stream()
        stream.wait_stream(torch.openreg.current_stream())
        with StreamGate(stream), stream:
            graph.replay()
            graph.replay()
            del graph
            gc.collect()
        stream.synchronize()
        self.assertEqual(x.sum().item(), 2000.0)

    def test_a_failed_kernel_of_a_replay_is_reported(self):
        x = tensor(*range(10))
        index = torch.zeros(3, dtype=torch.int64, device=DEVICE_TYPE)
        graph, y = capture(lambda: x.index_select(0, index))
        index.fill_(100)
        graph.replay()
        with self.assertRaisesRegex(Exception, "index_select"):
            torch.openreg.synchronize()
        index.fill_(2)
        graph.replay()
        self.assertEqual(y.tolist(), [2.0, 2.0, 2.0])


class TestRandomNumbers(GraphTestCase):
    def test_replays_go_on_where_the_generator_is(self):
        x = torch.empty(100, device=DEVICE_TYPE)
        graph, _ = capture(lambda: x.normal_())
        torch.manual_seed(1)
        numbers = []
        for _ in range(3):
            graph.replay()
            numbers.append(x.cpu())
            numbers.append(torch.randn(100, device=DEVICE_TYPE).cpu())
        torch.manual_seed(1)
        for one in numbers:
            self.assert_bit_equal(one, torch.randn(100))

    def test_a_capture_draws_nothing(self):
        x = torch.empty(100, device=DEVICE_TYPE)
        x.normal_()
        torch.manual_seed(1)
        graph = torch.openreg.Graph()
        with torch.openreg.graph(graph):
            x.normal_()
        torch.manual_seed(1)
        state = torch.openreg.get_rng_state()
        with torch.openreg.graph(torch.openreg.Graph()):
            x.normal_()
        self.assertEqual(torch.openreg.get_rng_state(), state)

    def test_states_are_those_after_the_replay(self):
        x = torch.empty(100, device=DEVICE_TYPE)
        graph, _ = capture(lambda: x.uniform_())
        torch.openreg.manual_seed(3)
        graph.replay()
        state = torch.openreg.get_rng_state()
        graph.replay()
        second = x.cpu()
        torch.openreg.set_rng_state(state)
        graph.replay()
        self.assert_bit_equal(x.cpu(), second)
        generator = torch.Generator().manual_seed(3)
        torch.rand(100, generator=generator)
        self.assert_bit_equal(second, torch.rand(100, generator=generator))

    def test_replays_on_other_streams_are_ordered_with_other_draws(self):
        x = torch.empty(1000, device=DEVICE_TYPE)
        graph, _ = capture(lambda: x.normal_())
        torch.manual_seed(5)
        side = torch.openreg.Stream()
        first = torch.randn(1000, device=DEVICE_TYPE)
        with side:
            graph.replay()
        third = torch.randn(1000, device=DEVICE_TYPE)
        torch.openreg.synchronize()
        torch.manual_seed(5)
        for one in (first, x, third):
            self.assert_bit_equal(one.cpu(), torch.randn(1000))

    def test_draws_on_forked_streams_keep_the_order_of_the_capture(self):
        x, y = torch.empty(1000, device=DEVICE_TYPE), torch.empty(1000, device=DEVICE_TYPE)
        side = torch.openreg.Stream()

        def work():
            main = torch.openreg.current_stream()
            side.wait_stream(main)
            x.normal_()
            with side:
                y.normal_()
            main.wait_stream(side)

        graph, _ = capture(work)
        torch.manual_seed(6)
        graph.replay()
        actual = (x.cpu(), y.cpu())
        torch.manual_seed(6)
        for one in actual:
            self.assert_bit_equal(one, torch.randn(1000))

    def test_a_generator_of_ones_own_lives_as_long_as_the_graph(self):
        generator = torch.Generator(DEVICE_TYPE).manual_seed(9)
        x = torch.empty(100, device=DEVICE_TYPE)
        x.normal_(generator=generator)
        graph = torch.openreg.Graph()
        with torch.openreg.graph(graph):
            x.normal_(generator=generator)
        del generator
        gc.collect()
        expected = torch.Generator().manual_seed(9)
        torch.randn(100, generator=expected)
        for _ in range(2):
            graph.replay()
            self.assert_bit_equal(x.cpu(), torch.randn(100, generator=expected))

    def test_draws_of_others_stay_out_of_a_capture(self):
        x = torch.empty(100, device=DEVICE_TYPE)
        stream = torch.openreg.Stream()
        with stream:
            x.normal_()
        torch.openreg.synchronize()
        torch.manual_seed(8)
        graph = torch.openreg.Graph()
        with torch.openreg.graph(graph, stream=stream, capture_error_mode="relaxed"):
            x.normal_()
            with torch.openreg.stream(torch.openreg.default_stream()):
                y = torch.randn(100, device=DEVICE_TYPE)
                self.assertFalse(torch.openreg.is_current_stream_capturing())
        torch.manual_seed(8)
        self.assert_bit_equal(y.cpu(), torch.randn(100))

    @parametrize(
        "call",
        [
            subtest(lambda: torch.openreg.manual_seed(1), name="manual_seed"),
            subtest(torch.openreg.get_rng_state, name="get_rng_state"),
            subtest(torch.openreg.initial_seed, name="initial_seed"),
            subtest(torch.openreg.seed, name="seed"),
        ],
    )
    def test_the_state_is_out_of_reach_in_a_capture(self, call):
        x = torch.empty(10, device=DEVICE_TYPE)
        x.normal_()
        graph = torch.openreg.Graph()
        with torch.openreg.graph(graph):
            x.normal_()
            with self.assertRaisesRegex(RuntimeError, "cannot be read or set while"):
                call()
        graph.replay()
        self.assert_usable()


def make_model(device):
    generator = torch.random.fork_rng(devices=[])
    with generator:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(20, 32),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.LayerNorm(32),
            nn.Linear(32, 32),
            nn.GELU(),
            nn.Dropout(0.1),
            nn.Linear(32, 5),
        )
    return model.to(device)


OPTIMIZERS = {
    f"{optimizer.__name__}_{form}": (optimizer, options | ({} if form == "loop" else {form: True}))
    for optimizer, options in (
        (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9}),
        (torch.optim.Adam, {"lr": 0.01, "capturable": True}),
        (torch.optim.AdamW, {"lr": 0.01, "capturable": True, "amsgrad": True}),
    )
    for form in ("loop", "foreach", "fused")
} | {
    "RMSprop_foreach": (torch.optim.RMSprop, {"lr": 0.01, "capturable": True, "foreach": True}),
    "NAdam_loop": (torch.optim.NAdam, {"lr": 0.01, "capturable": True, "foreach": False}),
}


class TestTraining(GraphTestCase):
    STEPS = 20

    def batches(self):
        generator = torch.Generator().manual_seed(1)
        for _ in range(self.STEPS):
            yield (
                torch.randn(16, 20, generator=generator),
                torch.randint(0, 5, (16,), generator=generator),
            )

    @parametrize("optimizer_class", [torch.optim.Adam, torch.optim.RMSprop])
    def test_optimizer_that_counts_its_steps_on_the_host_is_refused(self, optimizer_class):
        parameter = torch.nn.Parameter(torch.ones(3, device=DEVICE_TYPE))
        parameter.grad = torch.ones_like(parameter)
        optimizer = optimizer_class([parameter])
        optimizer.step()
        with (
            self.assertRaisesRegex(RuntimeError, "graph capture of step.*capturable is False"),
            torch.openreg.graph(torch.openreg.Graph()),
        ):
            optimizer.step()

    def train(self, name, is_graphed):
        """Trains and returns losses, parameters and the optimizer's state."""
        optimizer_class, options = OPTIMIZERS[name]
        model = make_model(DEVICE_TYPE)
        optimizer = optimizer_class(model.parameters(), **options)
        x = torch.zeros(16, 20, device=DEVICE_TYPE)
        target = torch.zeros(16, dtype=torch.int64, device=DEVICE_TYPE)

        def step():
            optimizer.zero_grad(set_to_none=True)
            loss = nn.functional.cross_entropy(model(x), target)
            loss.backward()
            optimizer.step()
            return loss.detach()

        torch.manual_seed(2)
        warnings.filterwarnings("ignore", message=".*capturable=True")
        side = torch.openreg.Stream()
        side.wait_stream(torch.openreg.current_stream())
        with side:
            for _ in range(2):
                step()
        torch.openreg.current_stream().wait_stream(side)
        torch.openreg.synchronize()
        graph = torch.openreg.Graph()
        if is_graphed:
            optimizer.zero_grad(set_to_none=True)
            with torch.openreg.graph(graph):
                captured_loss = step()
        losses = []
        for batch, labels in self.batches():
            x.copy_(batch)
            target.copy_(labels)
            if is_graphed:
                graph.replay()
                losses.append(captured_loss.clone())
            else:
                losses.append(step())
        torch.openreg.synchronize()
        state = [
            value
            for parameter in model.parameters()
            for _, value in sorted(optimizer.state[parameter].items())
            if isinstance(value, torch.Tensor)
        ]
        return losses, list(model.parameters()), state

    @parametrize("name", sorted(OPTIMIZERS))
    def test_a_captured_step_trains_to_the_same_bits(self, name):
        eager = self.train(name, is_graphed=False)
        graphed = self.train(name, is_graphed=True)
        for expected_list, actual_list in zip(eager, graphed, strict=True):
            self.assertEqual(len(actual_list), len(expected_list))
            for actual, expected in zip(actual_list, expected_list, strict=True):
                self.assert_bit_equal(actual.detach().cpu(), expected.detach().cpu())
        self.assertNotEqual(eager[0][0].item(), eager[0][-1].item())

    def test_a_convolutional_step_is_captured(self):
        def train(is_graphed):
            torch.manual_seed(0)
            model = nn.Sequential(
                nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
            ).to(DEVICE_TYPE)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            x = torch.randn(4, 1, 8, 8).to(DEVICE_TYPE)

            def step():
                optimizer.zero_grad(set_to_none=True)
                model(x).pow(2).mean().backward()
                optimizer.step()

            torch.openreg.synchronize()
            if is_graphed:
                with torch.openreg.Stream():
                    step()
                torch.openreg.synchronize()
                graph = torch.openreg.Graph()
                with torch.openreg.graph(graph):
                    step()
                step = graph.replay
            else:
                step()
            for _ in range(5):
                step()
            torch.openreg.synchronize()
            return [one.detach().cpu() for one in model.state_dict().values()]

        for actual, expected in zip(train(True), train(False), strict=True):
            self.assert_bit_equal(actual, expected)


class TestGraphedCallables(GraphTestCase):
    def test_a_function_replays_forward_and_backward(self):
        weight = torch.randn(4, 4).to(DEVICE_TYPE)

        def function(x, y):
            return (x @ weight).relu(), x * y

        sample = (
            torch.randn(3, 4).to(DEVICE_TYPE).requires_grad_(),
            torch.randn(3, 4).to(DEVICE_TYPE),
        )
        graphed = torch.openreg.make_graphed_callables(function, sample)
        for _ in range(3):
            values = torch.randn(3, 4), torch.randn(3, 4)
            results = []
            for call in (function, graphed):
                x = values[0].to(DEVICE_TYPE).requires_grad_()
                first, second = call(x, values[1].to(DEVICE_TYPE))
                (first.sum() + (second * second).sum()).backward()
                results.append([one.detach().clone() for one in (first, second, x.grad)])
            for actual, expected in zip(results[1], results[0], strict=True):
                self.assert_bit_equal(actual.cpu(), expected.cpu())

    def test_modules_train_as_without_graphs(self):
        # The outputs of a capture keep their part of autograd's graph, which is of its stream.
        torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
        self.addCleanup(torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch, True)

        def train(is_graphed):
            torch.manual_seed(0)
            first = nn.Sequential(nn.Linear(8, 16), nn.Tanh()).to(DEVICE_TYPE)
            second = nn.Linear(16, 2).to(DEVICE_TYPE)
            x = torch.randn(5, 8).to(DEVICE_TYPE)
            if is_graphed:
                hidden = torch.randn(5, 16).to(DEVICE_TYPE).requires_grad_()
                first, second = torch.openreg.make_graphed_callables(
                    (first, second), ((x,), (hidden,))
                )
            parameters = [*first.parameters(), *second.parameters()]
            optimizer = torch.optim.SGD(parameters, lr=0.1)
            generator = torch.Generator().manual_seed(4)
            for _ in range(5):
                optimizer.zero_grad(set_to_none=True)
                batch = torch.randn(5, 8, generator=generator).to(DEVICE_TYPE)
                second(first(batch)).pow(2).sum().backward()
                optimizer.step()
            return [one.detach().cpu() for one in parameters]

        for actual, expected in zip(train(True), train(False), strict=True):
            self.assert_bit_equal(actual, expected)

    def test_a_module_in_another_mode_runs_its_own_forward(self):
        module = nn.Dropout(0.5).to(DEVICE_TYPE)
        x = torch.ones(1000, device=DEVICE_TYPE)
        graphed = torch.openreg.make_graphed_callables(module, (x,))
        self.assertIs(graphed, module)
        self.assertLess(graphed(x).count_nonzero().item(), 1000)
        self.assertEqual(graphed.eval()(x).count_nonzero().item(), 1000)
        self.assertLess(graphed.train()(x).count_nonzero().item(), 1000)

    def test_outputs_keep_their_structure(self):
        x = torch.ones(3, device=DEVICE_TYPE)
        graphed = torch.openreg.make_graphed_callables(
            lambda a: {"sum": a + 1, "pair": (a * 2, [a * 3])}, (x,)
        )
        result = graphed(torch.full((3,), 2.0, device=DEVICE_TYPE))
        self.assertEqual(result["sum"].tolist(), [3.0] * 3)
        self.assertEqual(result["pair"][1][0].tolist(), [6.0] * 3)

    def test_unused_inputs_need_permission(self):
        def function(x, y):
            return x * 2

        def sample():
            return tuple(torch.ones(2, device=DEVICE_TYPE).requires_grad_() for _ in range(2))

        with self.assertRaisesRegex(RuntimeError, "unused"):
            torch.openreg.make_graphed_callables(function, sample())
        self.assert_usable()
        graphed = torch.openreg.make_graphed_callables(function, sample(), allow_unused_input=True)
        x, y = sample()
        graphed(x, y).sum().backward()
        self.assertEqual(x.grad.tolist(), [2.0, 2.0])
        self.assertIsNone(y.grad)

    def test_what_cannot_be_graphed_is_refused(self):
        graphed = torch.openreg.make_graphed_callables
        x = torch.ones(2, device=DEVICE_TYPE)
        hooked = nn.Linear(2, 2).to(DEVICE_TYPE)
        hooked.register_forward_hook(lambda *_: None)
        with self.assertRaisesRegex(RuntimeError, "without hooks"):
            graphed(hooked, (x,))
        with_buffer = nn.Linear(2, 2).to(DEVICE_TYPE)
        with_buffer.register_buffer("buffer", torch.ones(2, requires_grad=True))
        with self.assertRaisesRegex(RuntimeError, "buffers that do not require gradients"):
            graphed(with_buffer, (x,))
        with self.assertRaisesRegex(TypeError, "tensors only"):
            graphed(lambda a, b: a + b, (x, 1))
        with self.assertRaisesRegex(ValueError, "expected sample_args for 2 callables, got 1"):
            graphed((torch.relu, torch.relu), ((x,),))
        with (
            torch.autocast(DEVICE_TYPE),
            self.assertRaisesRegex(RuntimeError, "cache_enabled=False"),
        ):
            graphed(torch.relu, (x,))
        call = graphed(torch.relu, (x,))
        with self.assertRaisesRegex(RuntimeError, "expected 1 tensors as in sample_args, got 2"):
            call(x, x)


class TestDebugging(GraphTestCase):
    def dump(self, graph):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "graph.dot"
            graph.debug_dump(str(path))
            if shutil.which("dot") is not None:
                subprocess.run(["dot", "-Tsvg", "-o", os.devnull, path], check=True)
            return path.read_text()

    def test_the_dump_names_kernels_streams_and_bytes(self):
        x = tensor(1.0)
        side = torch.openreg.Stream()
        graph = torch.accelerator.Graph()
        graph.enable_debug_mode()
        with torch.Stream() as stream, graph:
            y = x + 1
            side.wait_stream(torch.openreg.current_stream())
            with side:
                y.mul_(2)
            torch.openreg.current_stream().wait_stream(side)
        self.assertFalse(stream.is_capturing())
        text = self.dump(graph)
        self.assertRegex(
            text, r'n0 \[label="kernel\nopenreg_kernel<aten::add\S*>\nstream \d+ of device 0"\]'
        )
        self.assertRegex(
            text, r'n1 \[label="kernel\nopenreg_kernel<aten::mul\S*>\nstream \d+ of device 0"\]'
        )
        self.assertIn("n0 -> n1", text)
        graph.replay()
        self.assertEqual(y.item(), 4.0)

    def test_a_kept_graph_can_be_dumped(self):
        x = tensor(1.0)
        graph, _ = capture(lambda: x.add_(1), keep_graph=True)
        self.assertIn("aten::add", self.dump(graph))

    def test_a_graph_that_was_not_kept_is_not_dumped(self):
        x = tensor(1.0)
        graph, _ = capture(lambda: x.add_(1))
        with self.assertRaisesRegex(RuntimeError, "keep_graph=True, or enable_debug_mode"):
            self.dump(graph)

    def test_a_file_that_cannot_be_written_raises(self):
        x = tensor(1.0)
        graph, _ = capture(lambda: x.add_(1), keep_graph=True)
        with self.assertRaisesRegex(RuntimeError, "/nowhere/graph.dot"):
            graph.debug_dump("/nowhere/graph.dot")


PROGRAM = """
import torch

x = torch.zeros(1000, device="openreg")
x.add_(1)
torch.openreg.synchronize()
graph = torch.openreg.Graph()
with torch.openreg.graph(graph):
    x.add_(1)
"""


class TestProcesses(GraphTestCase):
    def run_code(self, code, **settings):
        run_child(PROGRAM + code, settings)

    def test_exit_with_replays_pending(self):
        self.run_code("for _ in range(1000): graph.replay()")

    def test_exit_within_a_capture(self):
        self.run_code(
            "with torch.openreg.Stream():\n"
            "    other = torch.openreg.Graph()\n"
            "    other.capture_begin()\n"
            "    y = x + 1"
        )

    def test_blocking_launches_run_replays_to_completion(self):
        self.run_code(
            "graph.replay()\nassert x.tolist() == [2.0] * 1000\n",
            OPENREG_LAUNCH_BLOCKING="1",
        )

    def test_a_forked_child_may_drop_a_graph(self):
        self.run_code(
            "import os\n"
            "child = os.fork()\n"
            "if child == 0:\n"
            "    try:\n"
            "        graph.replay()\n"
            "    except RuntimeError as error:\n"
            f"        assert {FORK_TEXT!r} in str(error)\n"
            "        del graph\n"
            "        os._exit(0)\n"
            "    os._exit(1)\n"
            "assert os.waitpid(child, 0)[1] == 0\n"
            "graph.replay()\n"
            "assert x.tolist() == [2.0] * 1000\n"
        )


instantiate_parametrized_tests(TestAcceleratorGraph)
instantiate_parametrized_tests(TestMemory)
instantiate_parametrized_tests(TestUnsafeCalls)
instantiate_parametrized_tests(TestRandomNumbers)
instantiate_parametrized_tests(TestTraining)

if __name__ == "__main__":
    run_tests()
