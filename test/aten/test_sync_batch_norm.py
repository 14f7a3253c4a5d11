"""The operators of SyncBatchNorm, which the CPU lacks: held against formulas in float64."""

import torch
from common import (
    DEVICE_TYPE,
    OpenRegTestCase,
    StreamGate,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_tests,
)

EPS = 1e-5
MOMENTUM = 0.1
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]

# With float32 sums, results of these types are as good as the type itself.
TOLERANCES = {
    torch.float64: {"rtol": 1e-12, "atol": 1e-12},
    torch.float32: {"rtol": 1e-5, "atol": 1e-5},
    torch.float16: {"rtol": 2e-3, "atol": 2e-3},
    torch.bfloat16: {"rtol": 1e-2, "atol": 1e-2},
}
LAYOUTS = {
    "flat": lambda: torch.randn(16, 3),
    "contiguous": lambda: torch.randn(4, 3, 5, 2),
    "channels_last": lambda: torch.randn(4, 3, 5, 2).to(memory_format=torch.channels_last),
    "strided": lambda: torch.randn(3, 5, 8).transpose(0, 1)[::2],
}


def accumulated(dtype):
    return torch.float32 if dtype.itemsize == 2 else dtype


def others(x):
    """The dimensions that are not that of the channels."""
    return [0, *range(2, x.dim())]


def per_channel(numbers, x):
    return numbers.double().view(1, -1, *[1] * (x.dim() - 2))


def stats(x, eps=EPS):
    var, mean = torch.var_mean(x.double(), others(x), correction=0)
    return mean, (var + eps).rsqrt()


class SyncBatchNormTestCase(OpenRegTestCase):
    def setUp(self):
        super().setUp()
        torch.manual_seed(0)

    def assert_near(self, actual, expected, dtype, precision=None):
        """Compares with a result in float64, in the precision of a dtype: its own by default."""
        self.assertEqual((actual.device.type, actual.dtype), (DEVICE_TYPE, dtype))
        self.assertEqual(actual.shape, expected.shape)
        tolerance = TOLERANCES[precision or dtype]
        torch.testing.assert_close(actual.cpu().double(), expected.double(), **tolerance)


class TestOperators(SyncBatchNormTestCase):
    @parametrize("dtype", DTYPES)
    @parametrize("layout", list(LAYOUTS))
    def test_stats_are_mean_and_inverse_deviation(self, dtype, layout):
        x = LAYOUTS[layout]().mul(3).add(1).to(dtype)
        for _ in range(2):
            mean, invstd = torch.batch_norm_stats(x.to(DEVICE_TYPE), EPS)
            for actual, expected in zip((mean, invstd), stats(x), strict=True):
                self.assert_near(actual, expected, accumulated(dtype))

    def test_stats_of_halves_are_summed_in_float32(self):
        x = torch.full((70000, 1), 1.0, dtype=torch.float16)  # more than float16 can count to
        mean, _ = torch.batch_norm_stats(x.to(DEVICE_TYPE), EPS)
        self.assertEqual(mean.item(), 1.0)

    def test_channel_without_deviation_and_eps_has_none(self):
        x = torch.ones(4, 2)
        x[0, 1] = 5
        _, invstd = torch.batch_norm_stats(x.to(DEVICE_TYPE), 0.0)
        self.assert_near(invstd, torch.tensor([0.0, 3**-0.5]), torch.float32)

    @parametrize("dtype", DTYPES)
    @parametrize("layout", list(LAYOUTS))
    @parametrize("is_affine", [False, True])
    def test_elements_are_normalized(self, dtype, layout, is_affine):
        x = LAYOUTS[layout]().to(dtype)
        mean, invstd = (one.to(accumulated(dtype)) for one in stats(x))
        weight = torch.tensor([0.5, 1.5, -2.0]) if is_affine else None
        bias = torch.tensor([0.25, 0.0, 1.0]) if is_affine else None
        expected = (x.double() - per_channel(mean, x)) * per_channel(invstd, x)
        if is_affine:
            expected = expected * per_channel(weight, x) + per_channel(bias, x)
            weight, bias = (
                one.to(dtype if dtype.itemsize == 8 else torch.float32).to(DEVICE_TYPE)
                for one in (weight, bias)
            )
        arguments = (
            x.to(DEVICE_TYPE),
            weight,
            bias,
            mean.to(DEVICE_TYPE),
            invstd.to(DEVICE_TYPE),
            EPS,
        )
        actual = torch.batch_norm_elemt(*arguments)
        self.assert_near(actual, expected, dtype)
        self.assertEqual(actual.stride(), torch.empty_like(x).stride())
        out = torch.empty(0, dtype=dtype, device=DEVICE_TYPE)
        self.assertIs(torch.batch_norm_elemt(*arguments, out=out), out)
        self.assert_bit_equal(out, actual)

    @parametrize("dtype", DTYPES)
    @parametrize("with_counts", [False, True])
    def test_stats_of_parts_are_gathered(self, dtype, with_counts):
        x = torch.randn(24, 3, 4).mul(2).add(0.5).to(dtype)
        parts = x.split([3, 13, 8] if with_counts else [8, 8, 8])
        counts = torch.tensor([part[:, 0].numel() for part in parts])
        rows = [torch.batch_norm_stats(part.to(DEVICE_TYPE), EPS) for part in parts]
        mean, invstd = (torch.stack(column) for column in zip(*rows, strict=True))
        running_mean, running_var = torch.randn(3).to(dtype), torch.rand(3).to(dtype)
        running = [one.to(DEVICE_TYPE) for one in (running_mean, running_var)]
        arguments = (x.to(DEVICE_TYPE), mean, invstd, *running, MOMENTUM, EPS)
        if with_counts:
            results = torch.batch_norm_gather_stats_with_counts(
                *arguments, counts.to(dtype).to(DEVICE_TYPE)
            )
        else:
            results = torch.batch_norm_gather_stats(*arguments, int(counts[0]))
        for actual, expected in zip(results, stats(x), strict=True):
            self.assert_near(actual, expected, accumulated(dtype))
        var, mean = torch.var_mean(x.double(), others(x), correction=1)
        self.assert_near(running[0], 0.9 * running_mean.double() + 0.1 * mean, dtype)
        self.assert_near(running[1], 0.9 * running_var.double() + 0.1 * var, dtype)

    def test_stats_are_gathered_without_running_statistics(self):
        x = torch.randn(8, 3)
        rows = [torch.batch_norm_stats(part.to(DEVICE_TYPE), EPS) for part in x.split(4)]
        mean, invstd = (torch.stack(column) for column in zip(*rows, strict=True))
        results = torch.batch_norm_gather_stats(
            x.to(DEVICE_TYPE), mean, invstd, None, None, MOMENTUM, EPS, 4
        )
        for actual, expected in zip(results, stats(x), strict=True):
            self.assert_near(actual, expected, torch.float32)

    @parametrize("dtype", DTYPES)
    @parametrize("layout", list(LAYOUTS))
    def test_gradients_are_reduced(self, dtype, layout):
        x = LAYOUTS[layout]().to(dtype)
        grad = torch.randn(x.shape).to(dtype)
        mean, invstd = (one.to(accumulated(dtype)) for one in stats(x))
        weight = torch.ones(3, dtype=accumulated(dtype))
        results = torch.batch_norm_backward_reduce(
            *(one.to(DEVICE_TYPE) for one in (grad, x, mean, invstd, weight)), True, True, True
        )
        sum_dy = grad.double().sum(others(x))
        sum_dy_xmu = (grad.double() * (x.double() - per_channel(mean, x))).sum(others(x))
        expected = (sum_dy, sum_dy_xmu, sum_dy_xmu * invstd, sum_dy)
        for actual, one in zip(results, expected, strict=True):
            self.assert_near(actual, one, accumulated(dtype))

    def test_only_the_gradients_asked_for_are_reduced(self):
        x = torch.randn(4, 3, device=DEVICE_TYPE)
        mean, invstd = torch.batch_norm_stats(x, EPS)
        reduce = torch.ops.aten.batch_norm_backward_reduce
        for wanted in ((True, False, False), (False, True, False), (False, False, True)):
            weight = None if wanted[0] else torch.ones(3, dtype=torch.float64, device=DEVICE_TYPE)
            results = reduce(x, x, mean, invstd, weight, *wanted)
            given = [one is not None for one in results]
            self.assertEqual(given, [wanted[0], wanted[0], wanted[1], wanted[2]])
            for one in results[2:]:
                self.assertIn(one if one is None else one.dtype, (None, torch.float64))

    @parametrize("dtype", DTYPES)
    @parametrize("layout", list(LAYOUTS))
    @parametrize("is_affine", [False, True])
    def test_gradient_of_the_elements(self, dtype, layout, is_affine):
        x = LAYOUTS[layout]().to(dtype)
        grad = torch.randn(x.shape).to(dtype)
        wide = accumulated(dtype)
        mean, invstd = (one.to(wide) for one in stats(x))
        weight = torch.tensor([0.5, 1.5, -2.0], dtype=wide) if is_affine else None
        sum_dy, sum_dy_xmu = torch.randn(3, dtype=wide), torch.randn(3, dtype=wide)
        count = torch.tensor([7, 12], dtype=torch.int32)
        expected = grad.double() - per_channel(sum_dy, x) / 19
        slope = per_channel(sum_dy_xmu, x) / 19 * per_channel(invstd, x) ** 2
        expected = (expected - (x.double() - per_channel(mean, x)) * slope) * per_channel(invstd, x)
        if weight is not None:
            expected = expected * per_channel(weight, x)
        actual = torch.batch_norm_backward_elemt(
            *(
                None if one is None else one.to(DEVICE_TYPE)
                for one in (grad, x, mean, invstd, weight, sum_dy, sum_dy_xmu, count)
            )
        )
        self.assert_near(actual, expected, dtype)
        self.assertEqual(actual.stride(), torch.empty_like(x).stride())

    @parametrize("dtype", [torch.float32, torch.float64])
    def test_updated_stats_are_the_cpu_s(self, dtype):
        x = torch.randn(6, 3, 4, dtype=dtype)
        results = []
        for device in ("cpu", DEVICE_TYPE, DEVICE_TYPE):
            running = [torch.zeros(3, dtype=dtype), torch.ones(3, dtype=dtype)]
            running = [one.to(device) for one in running]
            results.append([*torch.batch_norm_update_stats(x.to(device), *running, 0.1), *running])
        for actual in results[1:]:
            for one, other in zip(actual, results[0], strict=True):
                self.assert_bit_equal(one, other)


class TestOrder(SyncBatchNormTestCase):
    def test_no_call_waits(self):
        x = torch.randn(4, 3, device=DEVICE_TYPE)
        torch.openreg.synchronize()
        with StreamGate() as gate:
            mean, invstd = torch.batch_norm_stats(x, EPS)
            rows = mean.expand(2, -1), invstd.expand(2, -1)
            counts = torch.full((2,), 4.0, device=DEVICE_TYPE)
            joined = torch.batch_norm_gather_stats_with_counts(
                x, *rows, None, None, MOMENTUM, EPS, counts
            )
            y = torch.batch_norm_elemt(x, None, None, *joined, EPS)
            sums = torch.batch_norm_backward_reduce(x, x, *joined, None, True, False, False)[:2]
            count = torch.full((2,), 4, dtype=torch.int32, device=DEVICE_TYPE)
            grad = torch.batch_norm_backward_elemt(x, x, *joined, None, *sums, count)
            gate.open()
        self.assertEqual(y.sum(0).cpu(), torch.zeros(3), atol=1e-6, rtol=0)
        self.assertTrue(grad.isfinite().all().item())

    @requires_two_devices
    def test_results_are_on_the_device_of_the_input(self):
        x = torch.randn(4, 3)
        mean, invstd = torch.batch_norm_stats(x.to(f"{DEVICE_TYPE}:1"), EPS)
        y = torch.batch_norm_elemt(x.to(f"{DEVICE_TYPE}:1"), None, None, mean, invstd, EPS)
        for one in (mean, invstd, y):
            self.assertEqual(one.device, torch.device(f"{DEVICE_TYPE}:1"))


class TestErrors(SyncBatchNormTestCase):
    def setUp(self):
        super().setUp()
        self.x = torch.randn(4, 3, device=DEVICE_TYPE)
        self.mean, self.invstd = torch.batch_norm_stats(self.x, EPS)

    def test_input_needs_channels(self):
        with self.assertRaisesRegex(RuntimeError, "batch_norm_stats: expected .* 2 dimensions"):
            torch.batch_norm_stats(self.x[0], EPS)

    @parametrize("dtype", [torch.int32, torch.complex64, torch.float8_e5m2])
    def test_dtypes_that_cuda_lacks_are_refused_at_the_call(self, dtype):
        x, numbers = self.x.to(dtype), (self.mean, self.invstd)
        rows = [one[None] for one in numbers]
        sums, count = numbers, torch.ones(1, dtype=torch.int32, device=DEVICE_TYPE)
        for kernel, call in (
            ("batch_norm_stats_cuda", lambda: torch.batch_norm_stats(x, EPS)),
            (
                "batch_norm_elementwise_cuda",
                lambda: torch.batch_norm_elemt(x, None, None, *numbers, EPS),
            ),
            (
                "batch_norm_update_stats_cuda",
                lambda: torch.batch_norm_gather_stats(x, *rows, None, None, MOMENTUM, EPS, 4),
            ),
            (
                "batch_norm_backward_reduce",
                lambda: torch.batch_norm_backward_reduce(x, x, *numbers, None, True, False, False),
            ),
            (
                "batch_norm_backward_elemt",
                lambda: torch.batch_norm_backward_elemt(x, x, *numbers, None, *sums, count),
            ),
        ):
            with self.assertRaisesRegex(NotImplementedError, f'^"{kernel}" not implemented for'):
                call()
        torch.accelerator.synchronize()

    def test_statistics_have_a_number_for_each_channel(self):
        with self.assertRaisesRegex(RuntimeError, r"batch_norm_elemt: expected mean .*\[3\]"):
            torch.batch_norm_elemt(self.x, None, None, self.mean[:2], self.invstd, EPS)
        with self.assertRaisesRegex(
            RuntimeError, r"gather_stats.*expected mean and invstd .*, 3\]"
        ):
            torch.batch_norm_gather_stats(
                self.x, self.mean, self.invstd[None], None, None, MOMENTUM, EPS, 4
            )

    def test_tensors_of_other_devices_are_refused(self):
        with self.assertRaisesRegex(RuntimeError, "same device"):
            torch.batch_norm_elemt(self.x, None, None, self.mean.cpu(), self.invstd, EPS)

    def test_count_is_of_int32(self):
        with self.assertRaisesRegex(RuntimeError, "expected a count of type Int, got Float"):
            torch.batch_norm_backward_elemt(
                self.x, self.x, self.mean, self.invstd, None, self.mean, self.mean, self.mean
            )


class TestAgainstBatchNorm(SyncBatchNormTestCase):
    """Two processes' shares of a batch, gathered by hand, are as one batch for nn.BatchNorm."""

    def synchronized(self, x, grad, weight, bias, running, split):
        """What two processes compute together: output, gradients of input, weight and bias."""
        parts, grads = x.split(split), grad.split(split)
        rows = [torch.batch_norm_stats(part, EPS) for part in parts]
        mean, invstd = (torch.stack(column) for column in zip(*rows, strict=True))
        counts = torch.tensor([part[:, 0].numel() for part in parts]).to(x.device)
        results = []
        for rank, part in enumerate(parts):
            # Each process has its own running statistics, with equal values.
            own = running if rank == 0 else [one.clone() for one in running]
            joined = torch.batch_norm_gather_stats_with_counts(
                part, mean, invstd, *own, MOMENTUM, EPS, counts.to(running[0].dtype)
            )
            output = torch.batch_norm_elemt(part, weight, bias, *joined, EPS)
            sums = torch.batch_norm_backward_reduce(
                grads[rank], part, *joined, weight, True, True, True
            )
            results.append((output, joined, sums))
        sum_dy, sum_dy_xmu, grad_weight, grad_bias = (
            torch.stack(column).sum(0)
            for column in zip(*(sums for _, _, sums in results), strict=True)
        )
        grad_input = [
            torch.batch_norm_backward_elemt(
                one, part, *joined, weight, sum_dy, sum_dy_xmu, counts.int()
            )
            for one, part, (_, joined, _) in zip(grads, parts, results, strict=True)
        ]
        outputs = torch.cat([output for output, _, _ in results])
        return outputs, torch.cat(grad_input), grad_weight, grad_bias

    @parametrize("dtype", [torch.float32, torch.float64])
    @parametrize("layout", list(LAYOUTS))
    def test_shares_of_a_batch_are_as_the_batch(self, dtype, layout):
        x = LAYOUTS[layout]().to(dtype)
        grad = torch.randn(x.shape, dtype=dtype)
        module = {2: torch.nn.BatchNorm1d, 3: torch.nn.BatchNorm1d, 4: torch.nn.BatchNorm2d}
        norm = module[x.dim()](3, eps=EPS, momentum=MOMENTUM, dtype=dtype)
        with torch.no_grad():
            norm.weight.uniform_(0.5, 2)
            norm.bias.uniform_(-1, 1)
        running = [norm.running_mean.to(DEVICE_TYPE), norm.running_var.to(DEVICE_TYPE)]
        reference = x.clone().requires_grad_()
        output = norm(reference)
        output.backward(grad)
        results = self.synchronized(
            *(one.detach().to(DEVICE_TYPE) for one in (x, grad, norm.weight, norm.bias)),
            running,
            [1, x.size(0) - 1],
        )
        expected = (output, reference.grad, norm.weight.grad, norm.bias.grad)
        for actual, one in zip(results, expected, strict=True):
            self.assert_near(actual, one.detach(), dtype)
        self.assert_near(running[0], norm.running_mean, dtype)
        self.assert_near(running[1], norm.running_var, dtype)


instantiate_parametrized_tests(TestOperators)
instantiate_parametrized_tests(TestAgainstBatchNorm)
instantiate_parametrized_tests(TestErrors)

if __name__ == "__main__":
    run_tests()
