"""Operators that torch handles differently on CUDA."""

import warnings

import torch
import torch.cuda.comm
import torch.nn.functional as F
from common import (
    OpenRegTestCase,
    StreamGate,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)

WAITS = [
    subtest(lambda x: x.item(), name="item"),
    subtest(lambda x: x.cpu(), name="cpu"),
    subtest(lambda x: x.nonzero(), name="nonzero"),
    subtest(lambda x: torch.equal(x, x), name="equal"),
    subtest(lambda x: bool(x > 0), name="bool"),
]


class TestPlanCache(OpenRegTestCase):
    def test_is_empty_and_takes_a_size(self):
        cache = torch.backends.cuda.cufft_plan_cache
        before = cache[1].max_size
        cache[0].max_size = 5
        try:
            torch.fft.fft(torch.ones(8, device="cuda"))
            self.assertEqual((cache.size, cache.max_size, cache[1].max_size), (0, 5, before))
            cache.clear()
            with self.assertRaisesRegex(RuntimeError, "expected 0 or more, got -1"):
                cache.max_size = -1
            with self.assertRaisesRegex(torch.AcceleratorError, "invalid device ordinal"):
                torch._cufft_get_plan_cache_max_size(99)
        finally:
            cache[0].max_size = before


class TestLibraries(OpenRegTestCase):
    @parametrize("name", ["cusolver", "magma", "default"])
    def test_preferred_library_of_linear_algebra(self, name):
        preferred = torch.backends.cuda.preferred_linalg_library
        self.addCleanup(preferred, preferred())
        self.assertEqual(preferred(name), getattr(torch._C._LinalgBackend, name.capitalize()))
        self.assertEqual(preferred(), preferred(preferred()))
        torch.linalg.inv(torch.eye(2, device="cuda"))

    @parametrize(
        "name,backend", [("cublas", "Cublas"), ("cublaslt", "Cublaslt"), ("default", "Cublas")]
    )
    def test_preferred_library_of_products(self, name, backend):
        preferred = torch.backends.cuda.preferred_blas_library
        self.addCleanup(preferred, preferred())
        self.assertEqual(preferred(name), getattr(torch._C._BlasBackend, backend))
        self.assertEqual(preferred(), preferred(preferred()))

    def test_unknown_library_is_refused(self):
        with self.assertRaisesRegex(RuntimeError, "Unknown input value"):
            torch.backends.cuda.preferred_linalg_library("lapack")


class TestCpuNumbers(OpenRegTestCase):
    def test_addcmul_takes_one_as_the_last_factor_only(self):
        x, number = torch.ones(2, device="cuda"), torch.tensor(2.0)
        self.assertEqual(torch.addcmul(x, x, number).tolist(), [3.0, 3.0])
        with self.assertRaisesRegex(RuntimeError, "CPU Scalar support for self argument"):
            torch.addcmul(number, x, x)
        for call in (torch.addcmul, torch.Tensor.addcmul_):
            with self.assertRaisesRegex(RuntimeError, "CPU Scalar support for tensor1 argument"):
                call(x, number, x)


class TestLeastSquares(OpenRegTestCase):
    def test_gels_is_the_driver(self):
        torch.manual_seed(0)
        matrix, numbers = torch.randn(4, 3), torch.randn(4, 2)
        expected = torch.linalg.lstsq(matrix, numbers, driver="gels")
        for driver in (None, "gels", "GELS"):
            actual = torch.linalg.lstsq(matrix.cuda(), numbers.cuda(), driver=driver)
            for one, other in zip(actual, expected, strict=True):
                self.assertEqual(one.shape, other.shape)
                self.assert_bit_equal(one, other)

    @parametrize("driver", ["gelsy", "gelsd", "gelss", "other"])
    def test_other_drivers_are_refused(self, driver):
        x = torch.eye(2, device="cuda")
        text = "torch.linalg.lstsq: `driver` other than `gels` is not supported on CUDA"
        with self.assertRaisesRegex(RuntimeError, text):
            torch.linalg.lstsq(x, x, driver=driver)


class TestSoftmax(OpenRegTestCase):
    @parametrize("name", ["softmax", "log_softmax"])
    def test_half_with_a_result_in_float(self, name):
        x = torch.randn(4, 9, dtype=torch.half)
        function = getattr(torch, name)
        expected = function(x.float(), 1)
        on_device = x.cuda().requires_grad_()
        result = function(on_device, 1, dtype=torch.float32)
        self.assertEqual(result.dtype, torch.float32)
        self.assert_bit_equal(result.detach(), expected)
        # The gradient is computed in float and rounded once.
        grad = torch.randn_like(expected)
        (actual,) = torch.autograd.grad(result, on_device, grad.cuda())
        leaf = x.float().requires_grad_()
        (wide,) = torch.autograd.grad(function(leaf, 1), leaf, grad)
        self.assertEqual(actual.dtype, torch.half)
        self.assert_bit_equal(actual, wide.half())

    @parametrize("name", ["_softmax", "_log_softmax"])
    def test_half_to_float_into_out(self, name):
        x = torch.randn(3, 5, dtype=torch.half)
        function = getattr(torch, name)
        out = torch.empty(0, device="cuda")
        self.assertIs(function(x.cuda(), 1, True, out=out), out)
        self.assert_bit_equal(out, function(x.float(), 1, False))

    def test_does_not_wait(self):
        x = torch.randn(3, 5, device="cuda").half()
        torch.softmax(x, 1, dtype=torch.float32)
        torch.cuda.synchronize()
        with StreamGate() as gate:
            y = torch.softmax(x, 1, dtype=torch.float32)
            self.assertFalse(torch.cuda.current_stream().query())
            gate.open()
        self.assertEqual(y.dtype, torch.float32)

    def test_cross_entropy_under_autocast(self):
        model = torch.nn.Linear(4, 3).cuda()
        x, target = torch.randn(5, 4, device="cuda"), torch.tensor([0, 1, 2, 0, 1], device="cuda")
        scaler = torch.amp.GradScaler("cuda")
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        losses = []
        for _ in range(4):
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = F.cross_entropy(model(x), target)
            self.assertEqual(loss.dtype, torch.float32)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
        self.assertLess(losses[-1], losses[0])


class TestLosses(OpenRegTestCase):
    @parametrize("as_tensors", [False, True])
    def test_ctc_loss(self, as_tensors):
        torch.manual_seed(0)
        log_probs = torch.randn(6, 2, 5).log_softmax(2)
        targets, inputs, lengths = torch.tensor([[1, 2], [3, 1]]), [6, 5], [2, 1]
        if as_tensors:
            inputs, lengths = torch.tensor(inputs), torch.tensor(lengths)
        expected = F.ctc_loss(log_probs, targets, inputs, lengths)
        leaf = log_probs.cuda().requires_grad_()
        loss = F.ctc_loss(leaf, targets.cuda(), inputs, lengths)
        loss.backward()
        self.assert_bit_equal(loss.detach(), expected)
        self.assertTrue(torch.isfinite(leaf.grad).all())


def rms_norm_on(device, dtype, shape, normalized, has_weight, eps=None):
    """The result and the gradients of the input and the weight."""
    torch.manual_seed(0)
    tensors = [torch.randn(shape), torch.randn(normalized), torch.randn(shape)]
    x, weight, gradient = (tensor.to(dtype).to(device) for tensor in tensors)
    inputs = [x.requires_grad_(), weight.requires_grad_()][: 1 + has_weight]
    result = F.rms_norm(x, normalized, weight if has_weight else None, eps)
    return [result, *torch.autograd.grad(result, inputs, gradient)]


class TestRmsNorm(OpenRegTestCase):
    """CUDA has a kernel, where others compose the norm of operators that save their operands."""

    @parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
    @parametrize("has_weight", [False, True])
    @parametrize(
        "shape,normalized",
        [((8, 64), [64]), ((4, 6, 10), [6, 10]), ((5,), [5]), ((0, 8), [8]), ((2000, 32), [32])],
    )
    def test_bits_are_those_of_the_composition(self, dtype, has_weight, shape, normalized):
        for eps in (None, 1e-5):
            expected = rms_norm_on("cpu", dtype, shape, normalized, has_weight, eps)
            actual = rms_norm_on("cuda", dtype, shape, normalized, has_weight, eps)
            for one, other in zip(actual, expected, strict=True):
                self.assert_bit_equal(one, other)

    def test_it_saves_a_number_for_each_row(self):
        x = torch.randn(64, 4096, device="cuda", requires_grad=True)
        before = torch.cuda.memory_allocated()
        result = F.rms_norm(x, [4096])
        self.assertEqual(torch.cuda.memory_allocated() - before, result.nbytes + 512)
        self.assertEqual(type(result.grad_fn).__name__, "FusedRmsNormBackward0")

    def test_derivatives_are_right(self):
        x = torch.randn(3, 8, device="cuda", dtype=torch.float64, requires_grad=True)
        weight = torch.randn(8, device="cuda", dtype=torch.float64, requires_grad=True)
        torch.autograd.gradcheck(lambda x, w: F.rms_norm(x, [8], w), (x, weight))
        torch.autograd.gradgradcheck(lambda x, w: F.rms_norm(x, [8], w), (x, weight))

    @parametrize("dtype", [torch.int32, torch.bool, torch.uint16, torch.float8_e5m2])
    def test_dtypes_that_cuda_lacks_are_refused_at_the_call(self, dtype):
        x = torch.zeros(2, 4).to(dtype).cuda()
        with self.assertRaisesRegex(NotImplementedError, '^"LayerNormKernelImpl" not implemented'):
            F.rms_norm(x, [4])
        torch.cuda.synchronize()

    def test_weight_of_another_dtype_is_refused(self):
        x, weight = torch.ones(2, 4, device="cuda"), torch.ones(4, device="cuda").double()
        with self.assertRaisesRegex(RuntimeError, "expected scalar type Float but found Double"):
            torch._fused_rms_norm(x, [4], weight, None)

    def test_result_of_a_transposed_input_is_contiguous(self):
        x = torch.randn(4, 8)
        result = F.rms_norm(x.cuda().t(), [4])
        self.assertTrue(result.is_contiguous())
        self.assert_bit_equal(result, F.rms_norm(x.t(), [4]))

    def test_sizes_and_devices_are_checked(self):
        x = torch.randn(4, 8, device="cuda")
        with self.assertRaisesRegex(RuntimeError, r"Given normalized_shape=\[7\]"):
            F.rms_norm(x, [7])
        with self.assertRaisesRegex(RuntimeError, "Expected weight to be of same shape"):
            F.rms_norm(x, [8], x[0, :7])
        with self.assertRaisesRegex(RuntimeError, "wrapper_CUDA___fused_rms_norm"):
            F.rms_norm(x, [8], torch.ones(8))


class TestSparseSums(OpenRegTestCase):
    """CUDA joins the elements of two sparse tensors. The CPU merges those of one place."""

    def tensors(self):
        x = torch.tensor([1.0, 2.0, 0.0, 0.0]).to_sparse()
        y = torch.tensor([1.0, 0.0, 3.0, 0.0]).to_sparse()
        return x.cuda(), y.cuda(), torch.tensor([0.0, 2.0, -3.0, 0.0])

    def test_the_sum_of_coalesced_tensors_is_not_coalesced(self):
        x, y, expected = self.tensors()
        actual = x - y
        self.assertFalse(actual.is_coalesced())
        self.assertEqual(actual._nnz(), 4)
        self.assertTrue(y.is_coalesced())
        with self.assertRaisesRegex(RuntimeError, "Cannot get indices on an uncoalesced tensor"):
            actual.indices()
        self.assert_bit_equal(actual.to_dense(), expected)

    def test_in_place_the_tensor_is_no_longer_coalesced(self):
        x, y, expected = self.tensors()
        x.sub_(y)
        self.assertFalse(x.is_coalesced())
        self.assert_bit_equal(x.to_dense(), expected)

    def test_a_sum_has_no_more_elements_than_the_tensor(self):
        x = torch.ones(3).to_sparse().cuda()
        self.assertEqual((x + x)._values(), torch.full((3,), 2.0))

    def test_a_sum_with_nothing_is_coalesced(self):
        x, _, _ = self.tensors()
        self.assertTrue((x + torch.zeros(4).to_sparse().cuda()).is_coalesced())


class TestSyncBatchNorm(OpenRegTestCase):
    def test_operators(self):
        x = torch.randn(4, 3, 5)
        mean, invstd = torch.batch_norm_stats(x.cuda(), 1e-5)
        self.assertEqual(mean.cpu(), x.mean((0, 2)))
        self.assertEqual(invstd.cpu(), (x.var((0, 2), unbiased=False) + 1e-5).rsqrt())
        counts = torch.full((1,), 20.0, device="cuda")
        all_mean, all_invstd = torch.batch_norm_gather_stats_with_counts(
            x.cuda(), mean[None], invstd[None], None, None, 0.1, 1e-5, counts
        )
        self.assertEqual(all_mean, mean)
        self.assertEqual(all_invstd, invstd)
        y = torch.batch_norm_elemt(x.cuda(), None, None, mean, invstd, 1e-5)
        self.assertEqual(y.cpu(), F.batch_norm(x, None, None, training=True))


class TestSyncDebugMode(OpenRegTestCase):
    def tearDown(self):
        torch.cuda.set_sync_debug_mode("default")
        super().tearDown()

    @parametrize("wait", WAITS)
    def test_error(self, wait):
        x = torch.ones(1, device="cuda")
        torch.cuda.set_sync_debug_mode("error")
        self.assertEqual(torch.cuda.get_sync_debug_mode(), 2)
        with self.assertRaisesRegex(RuntimeError, "called a synchronizing CUDA operation: aten::"):
            wait(x)

    @parametrize("wait", WAITS)
    def test_warn(self, wait):
        x = torch.ones(1, device="cuda")
        torch.cuda.set_sync_debug_mode(1)
        with self.assertWarnsRegex(UserWarning, "called a synchronizing CUDA operation: aten::"):
            wait(x)

    def test_what_does_not_wait_is_silent(self):
        x = torch.ones(4, device="cuda")
        torch.cuda.set_sync_debug_mode("error")
        y = (x * 2).sum()
        y.to("cpu", non_blocking=True)
        torch.cuda.synchronize()
        torch.cuda.current_stream().synchronize()

    def test_default_is_silent(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            self.assertEqual(torch.ones(1, device="cuda").item(), 1)


class TestRandom(OpenRegTestCase):
    def test_seed_before_the_first_use_and_after(self):
        torch.manual_seed(3)
        expected = torch.rand(4)
        torch.cuda.manual_seed_all(3)
        self.assert_bit_equal(torch.rand(4, device="cuda"), expected)
        self.assertEqual(torch.cuda.initial_seed(), 3)

    def test_state_does_not_wait_with_the_lock_of_python(self):
        torch.cuda.manual_seed(1)
        state = torch.cuda.get_rng_state()
        first = torch.rand(3, device="cuda")
        torch.cuda.set_rng_state(state)
        self.assert_bit_equal(torch.rand(3, device="cuda"), first)
        self.assertEqual(len(torch.cuda.get_rng_state_all()), torch.cuda.device_count())

    def test_fork_rng(self):
        state = torch.cuda.get_rng_state()
        with torch.random.fork_rng():
            torch.rand(3, device="cuda")
        self.assertEqual(torch.cuda.get_rng_state(), state)


class TestComm(OpenRegTestCase):
    def test_broadcast_scatter_gather_reduce(self):
        x = torch.arange(4.0, device="cuda:0")
        copies = torch.cuda.comm.broadcast(x, (0, 1))
        self.assertEqual([str(y.device) for y in copies], ["cuda:0", "cuda:1"])
        parts = torch.cuda.comm.scatter(x, (0, 1))
        self.assertEqual(torch.cuda.comm.gather(parts, destination=1).cpu(), x.cpu())
        total = torch.cuda.comm.reduce_add([x, x.to("cuda:1")], destination=0)
        self.assertEqual(total.cpu(), 2 * x.cpu())

    def test_data_parallel(self):
        model = torch.nn.Linear(3, 2).cuda()
        x = torch.randn(6, 3, device="cuda")
        parallel = torch.nn.DataParallel(model, device_ids=[0, 1])
        self.assertEqual(parallel(x), model(x))


class TestRefusals(OpenRegTestCase):
    def test_jiterator(self):
        code = "template <typename T> T f(T x) { return x; }"
        function = torch.cuda.jiterator._create_jit_fn(code)
        with self.assertRaisesRegex(NotImplementedError, "no compiler for CUDA kernels"):
            function(torch.ones(2, device="cuda"))

    def test_handles_of_libraries(self):
        with self.assertRaisesRegex(NotImplementedError, "does not use CUDA.s libraries"):
            torch.cuda.current_blas_handle()

    def test_tunable_operators(self):
        self.assertFalse(torch.cuda.tunable.is_enabled())
        with self.assertRaisesRegex(NotImplementedError, "there are no CUDA kernels to tune"):
            torch.cuda.tunable.enable()
        torch.cuda.tunable.enable(False)

    def test_settings_of_tunable_operators_are_kept(self):
        tunable = torch.cuda.tunable
        self.assertTrue(tunable.tuning_is_enabled())
        self.assertEqual((tunable.get_results(), tunable.get_validators()), ((), ()))
        for name, value in {
            "max_tuning_duration": 7,
            "max_tuning_iterations": 3,
            "filename": "results.csv",
            "rotating_buffer_size": 2,
        }.items():
            before = getattr(tunable, f"get_{name}")()
            getattr(tunable, f"set_{name}")(value)
            self.assertEqual(getattr(tunable, f"get_{name}")(), value)
            getattr(tunable, f"set_{name}")(before)


instantiate_parametrized_tests(TestLibraries)
instantiate_parametrized_tests(TestLeastSquares)
instantiate_parametrized_tests(TestSoftmax)
instantiate_parametrized_tests(TestLosses)
instantiate_parametrized_tests(TestRmsNorm)
instantiate_parametrized_tests(TestSyncDebugMode)

if __name__ == "__main__":
    run_tests()
