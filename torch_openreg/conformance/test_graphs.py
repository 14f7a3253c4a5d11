"""Graphs: captured work does not run, and each replay runs it with what memory then holds."""

from typing import Any

import torch

from torch_openreg.conformance.cases import ConformanceTestCase, needs
from torch_openreg.conformance.target import graph_type, target

DEVICE = target().device


@needs("graphs")
class TestGraphs(ConformanceTestCase):
    def captured(self, work: Any) -> Any:
        """A graph of work, captured on a separate stream; the capture ends even if work raises."""
        stream = torch.Stream(DEVICE)
        stream.wait_stream(torch.accelerator.current_stream(DEVICE))
        graph = graph_type(target())()
        with stream:
            work()
            stream.synchronize()
            with target().capture(graph):
                work()
        torch.accelerator.current_stream(DEVICE).wait_stream(stream)
        return graph

    def test_captured_work_runs_when_it_is_replayed(self) -> None:
        x = torch.zeros(10, device=DEVICE)
        graph = self.captured(lambda: x.add_(1))
        torch.accelerator.synchronize(DEVICE)
        self.assert_bit_equal(x, torch.ones(10))  # the call before the capture
        for _ in range(3):
            graph.replay()
        torch.accelerator.synchronize(DEVICE)
        self.assert_bit_equal(x, torch.full((10,), 4.0))

    def test_replay_reads_what_its_input_then_holds(self) -> None:
        x, y = torch.zeros(10, device=DEVICE), torch.zeros(10, device=DEVICE)
        graph = self.captured(lambda: torch.mul(x, 2, out=y))
        for number in range(3):
            x.fill_(number)
            graph.replay()
            self.assert_bit_equal(y, torch.full((10,), 2.0 * number))

    def test_memory_of_a_graph_is_not_given_to_others(self) -> None:
        x = torch.ones(1000, device=DEVICE)
        results = []
        graph = self.captured(lambda: results.append((x + 1) * 3))
        others = [torch.full((1000,), 7.0, device=DEVICE) for _ in range(8)]
        graph.replay()
        torch.accelerator.synchronize(DEVICE)
        self.assert_bit_equal(results[-1], torch.full((1000,), 6.0))
        for one in others:
            self.assert_bit_equal(one, torch.full((1000,), 7.0))
