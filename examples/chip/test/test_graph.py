# Step 10: graphs, their memory and their random numbers.
import torch
from common import MODULE, NAME
from torch.testing._internal.common_utils import TestCase, run_tests

SIZE = 1 << 16


def capture(function, stream=None, **options):
    """Captures a function, on a new stream by default; returns the graph and the result."""
    graph = torch.accelerator.Graph(**options)
    with stream or torch.Stream(NAME), graph:
        result = function()
    return graph, result


class TestGraph(TestCase):
    def test_replay_computes_with_what_is_at_the_captured_addresses(self):
        x = torch.zeros(4, device=NAME)
        graph, y = capture(lambda: x + x)
        for value in (1.0, 2.0):
            x.copy_(torch.full((4,), value))
            graph.replay()
            self.assertEqual(y.cpu(), torch.full((4,), 2 * value))

    def test_numbers_are_captured(self):
        x = torch.ones(4, device=NAME)
        graph, y = capture(lambda: x * 2 + 1)
        graph.replay()
        self.assertEqual(y.cpu(), torch.full((4,), 3.0))

    def test_capture_spans_the_streams_that_join_it(self):
        x, side = torch.ones(4, device=NAME), torch.Stream(NAME)

        def fork():
            main = torch.accelerator.current_stream()
            side.wait_stream(main)
            with side:
                left = x + x
            right = x + x
            main.wait_stream(side)
            return left + right

        graph, y = capture(fork)
        graph.replay()
        self.assertEqual(y.cpu(), torch.full((4,), 4.0))

    def test_memory_of_a_graph_is_given_out_to_its_captures_only(self):
        x = torch.ones(SIZE, device=NAME)
        addresses, stream = set(), torch.Stream(NAME)

        def chain():
            y = x
            for _ in range(4):
                y = y + x
                addresses.add(y.data_ptr())
            return y

        graph, y = capture(chain, stream)
        self.assertEqual(len(addresses), 2)  # what is freed in the capture is used again there
        others = [torch.empty(SIZE, device=NAME) for _ in range(8)]
        self.assertFalse(addresses & {other.data_ptr() for other in others})
        shared, z = capture(lambda: (x + x).data_ptr(), stream, pool=graph.pool())
        addresses.add(z)
        self.assertEqual((len(addresses), shared.pool()), (2, graph.pool()))
        graph.replay()
        self.assertEqual(y.cpu(), torch.full((SIZE,), 5.0))

    def test_memory_is_free_when_neither_graph_nor_tensor_is_left(self):
        x = torch.ones(SIZE, device=NAME)
        torch.accelerator.synchronize()
        before = torch.accelerator.memory_allocated()
        graph, y = capture(lambda: x + x)
        self.assertEqual(torch.accelerator.memory_allocated(), before + 4 * SIZE)
        graph.reset()
        self.assertEqual(torch.accelerator.memory_allocated(), before + 4 * SIZE)
        del y
        self.assertEqual(torch.accelerator.memory_allocated(), before)

    def test_pinned_memory_of_a_capture_is_kept(self):
        x = torch.ones(SIZE, device=NAME)

        def read():
            host = torch.empty(SIZE, pin_memory=True)
            host.copy_(x, non_blocking=True)
            return host.data_ptr()

        graph, address = capture(read)  # the tensor is freed, and the graph writes to its memory
        self.assertNotIn(address, [torch.empty(SIZE, pin_memory=True).data_ptr() for _ in range(4)])
        graph.replay()
        torch.accelerator.synchronize()

    def test_replays_draw_new_numbers_that_the_seed_determines(self):
        graph, x = capture(lambda: torch.rand(100, device=NAME))

        def numbers():
            graph.replay()
            return x.cpu()

        MODULE.manual_seed(5)
        first, second = numbers(), numbers()
        self.assertNotEqual(first, second)
        MODULE.manual_seed(5)
        self.assertEqual((numbers(), numbers()), (first, second))

    def test_kernels_of_a_graph_draw_different_numbers(self):
        graph, (x, y) = capture(lambda: [torch.rand(100, device=NAME) for _ in range(2)])
        graph.replay()
        self.assertNotEqual(x.cpu(), y.cpu())

    def test_call_that_waits_ends_the_capture_with_an_error(self):
        x = torch.ones(4, device=NAME)
        graph = torch.accelerator.Graph()
        with self.assertRaisesRegex(RuntimeError, "Capture"), torch.Stream(NAME), graph:
            x.exp()  # goes through the fallback
        with torch.Stream(NAME), graph:
            y = x + x
        graph.replay()
        self.assertEqual(y.cpu(), torch.full((4,), 2.0))


class TestUniform(TestCase):
    def test_numbers_are_uniform_between_the_bounds(self):
        x = torch.empty(100_000, device=NAME).uniform_(2, 4).cpu()
        self.assertTrue(bool(((x >= 2) & (x < 4)).all()))
        self.assertEqual((x.mean().item(), x.std().item()), (3, 2 / 12**0.5), atol=0.01, rtol=0)


if __name__ == "__main__":
    run_tests()
