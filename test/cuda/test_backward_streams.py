"""The streams of a backward pass, as torch documents them for CUDA, and graphs with a backward."""

import torch
from common import OpenRegTestCase, StreamGate, run_tests


class TestStreamsOfBackward(OpenRegTestCase):
    def setUp(self):
        super().setUp()
        self.side = torch.cuda.Stream()

    def leaf(self, value=1.0):
        return torch.full((4,), value, device="cuda", requires_grad=True)

    def test_operator_runs_backward_on_the_stream_of_its_forward(self):
        seen = []

        class Twice(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, gradient):
                seen.append(torch.cuda.current_stream())
                return gradient * 2

        x, caller = self.leaf(), torch.cuda.current_stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(self.side):
            y = Twice.apply(x)
        with torch.cuda.stream(torch.cuda.Stream()):
            z = Twice.apply(x)
        torch.cuda.synchronize()
        (y + z).sum().backward()
        self.assertIn(self.side, seen)
        self.assertEqual(len(set(seen)), 2)
        self.assertNotIn(caller, seen)
        self.assertEqual(torch.cuda.current_stream(), caller)
        self.assertEqual(x.grad.cpu(), torch.full((4,), 4.0))

    def test_caller_s_stream_waits_for_gradients_of_other_streams(self):
        with torch.cuda.stream(self.side):
            x = self.leaf()
            y = (x * 2).sum()
        torch.cuda.synchronize()
        with StreamGate(self.side) as gate:
            y.backward()
            self.assertFalse(torch.cuda.current_stream().query())
            tripled = x.grad * 3  # without a wait of the program's own
            gate.open()
            self.assertEqual(tripled.cpu(), torch.full((4,), 6.0))

    def test_gradient_that_the_caller_gives_is_waited_for(self):
        x = self.leaf(3.0)
        torch.cuda.synchronize()
        with torch.cuda.stream(self.side):
            y = x * x
        torch.cuda.synchronize()
        with StreamGate() as gate:
            gradient = torch.full((4,), 5.0, device="cuda")
            y.backward(gradient)
            self.assertFalse(self.side.query())
            gate.open()
        self.assertEqual(x.grad.cpu(), torch.full((4,), 30.0))

    def test_callback_at_the_end_sees_all_gradients(self):
        a, b = self.leaf(2.0), self.leaf(3.0)
        torch.cuda.synchronize()
        with torch.cuda.stream(self.side):
            first = a * 2
        torch.cuda.current_stream().wait_stream(self.side)
        product = first.sum() * (b * 1).sum()
        copies = []

        def copy_gradients():
            copies.extend((a.grad.clone(), b.grad.clone()))

        product.register_hook(
            lambda _: torch.autograd.Variable._execution_engine.queue_callback(copy_gradients)
        )
        torch.cuda.synchronize()
        with StreamGate(self.side) as gate:
            product.backward()
            gate.open()
        self.assertEqual([copy[0].item() for copy in copies], [24.0, 16.0])

    def test_gradients_of_two_streams_are_added_in_order(self):
        other = torch.cuda.Stream()
        x = self.leaf()
        torch.cuda.synchronize()
        for stream, factor in ((self.side, 2), (other, 3)):
            with torch.cuda.stream(stream):
                y = (x * factor).sum()
            torch.cuda.current_stream().wait_stream(stream)
            with StreamGate(stream) as gate:
                y.backward()
                gate.open()
            del y
        self.assertEqual(x.grad.cpu(), torch.full((4,), 5.0))


class TestGraphsWithBackward(OpenRegTestCase):
    def test_scale_of_a_captured_loss_follows_overflows(self):
        scaler = torch.amp.GradScaler("cuda", init_scale=4.0)
        weight = torch.ones(100, device="cuda", requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        factor = torch.ones_like(weight).detach()

        def backward():
            scaler.scale((weight.half() * factor).sum()).backward()

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            backward()
        torch.cuda.current_stream().wait_stream(side)
        optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            backward()
        # At a scale of 4, 40,000 exceeds float16's range; a step with it is left out.
        for value, gradient, scale, good_steps in (
            (5.0, 20.0, 4.0, 1),
            (40000.0, torch.inf, 2.0, 0),
            (5.0, 10.0, 2.0, 1),
            (40000.0, torch.inf, 1.0, 0),
        ):
            factor.fill_(value)
            graph.replay()
            self.assertEqual(weight.grad.cpu(), torch.full((100,), gradient))
            scaler.step(optimizer)
            scaler.update()
            self.assertEqual(scaler.get_scale(), scale)
            self.assertEqual(scaler._growth_tracker.item(), good_steps)
        self.assertEqual(weight[0].item(), 1.0 - 2 * 0.1 * 5)

    def test_streams_of_one_capture_share_its_pool(self):
        known = {segment["segment_pool_id"] for segment in torch.cuda.memory_snapshot()}
        x = torch.ones(1 << 22, device="cuda")
        first, second = torch.cuda.Stream(), torch.cuda.Stream()
        first.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(first):
            graph.capture_begin()
            y = x + 1
        with torch.cuda.stream(second):
            second.wait_stream(first)
            z = y + 1
        first.wait_stream(second)
        with torch.cuda.stream(first):
            graph.capture_end()
        pools = [segment["segment_pool_id"] for segment in torch.cuda.memory_snapshot()]
        self.assertEqual([pool for pool in pools if pool not in known], [graph.pool()] * 2)
        graph.replay()
        self.assertEqual(z[-1].item(), 3.0)

    def test_live_tensors_of_a_pool_can_be_checked(self):
        pool = torch.cuda.graph_pool_handle()
        x = torch.ones(4, device="cuda")
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            y = x + 1

        def check(*addresses):
            return torch._C._cuda_checkPoolLiveAllocations(0, pool, set(addresses))

        self.assertTrue(check(y.data_ptr()))
        self.assertFalse(check())
        self.assertFalse(check(y.data_ptr(), x.data_ptr()))
        del y
        self.assertTrue(check())


class TestPreferences(OpenRegTestCase):
    """Settings for libraries that there are none of: programs set them and read them back."""

    def test_blas_library(self):
        cuda, kinds = torch.backends.cuda, torch._C._BlasBackend
        self.assertEqual(cuda.preferred_blas_library(), kinds.Cublas)
        self.assertEqual(cuda.preferred_blas_library("hipblas"), kinds.Cublas)
        self.assertNotEqual(cuda.preferred_blas_library("default"), kinds.Default)
        for value, text in (("other", "Unknown input value"), (1.0, "Unknown input value type")):
            with self.assertRaisesRegex(RuntimeError, text):
                cuda.preferred_blas_library(value)

    def test_reductions_of_lower_precision(self):
        matmul = torch.backends.cuda.matmul
        for kind in ("fp16", "bf16"):
            name = f"allow_{kind}_reduced_precision_reduction"
            before = getattr(matmul, name), getattr(matmul, f"{name}_split_k")
            self.addCleanup(setattr, matmul, name, before)
            setattr(matmul, name, (False, False))
            self.assertEqual(getattr(torch._C, f"_get_cublas_{name}")(), (False, False))
            with self.assertRaisesRegex(RuntimeError, "allow_splitk=False"):
                setattr(matmul, name, (True, False))


if __name__ == "__main__":
    run_tests()
