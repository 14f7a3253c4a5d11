"""Operators with hand-written kernels, which neither the generator nor the fallback covers."""

import threading

import torch
from common import (
    DEVICE_TYPE,
    INDEX_ERROR,
    OpenRegTestCase,
    StreamGate,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import make_tensor
from torch.testing._internal.common_dtype import all_types_and_complex_and

PRODUCTS = {
    "dot": torch.dot,
    "vdot": torch.vdot,
    "inner": torch.inner,
    "matmul": torch.matmul,
    "vecdot": torch.linalg.vecdot,
}


class TestZeroTensors(OpenRegTestCase):
    @parametrize("name", list(PRODUCTS))
    @parametrize("dtype", [torch.float32, torch.complex64])
    @parametrize("place", [0, 1, 2])
    def test_forward_derivatives_of_products(self, name, dtype, place):
        product = PRODUCTS[name]
        x, y = torch.randn(2, 4, dtype=dtype)

        def derivative(device):
            one, other = x.to(device), y.to(device)
            if place == 0:
                return torch.func.jvp(lambda t: product(t, other), (one,), (other,))
            if place == 1:
                return torch.func.jvp(lambda t: product(other, t), (one,), (other,))
            return torch.func.jvp(lambda t: product(t, t.cos()), (one,), (other,))

        for _ in range(2):
            for actual, expected in zip(derivative(DEVICE_TYPE), derivative("cpu"), strict=True):
                self.assertEqual(actual.device.type, DEVICE_TYPE)
                self.assert_bit_equal(actual, expected)

    def test_every_operator_that_sees_zero_tensors_takes_them(self):
        # Of the operators that torch lets them through to, those that a backend computes.
        lets_through = {
            name.removeprefix("aten::")
            for name in torch._C._dispatch_get_all_op_names()
            if name.startswith("aten::")
            and any(
                line.startswith("ZeroTensor") and "fallthrough" in line
                for line in torch._C._dispatch_dump(name).splitlines()
            )
            and torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU")
            and not torch._C._dispatch_has_kernel_for_dispatch_key(
                name, "CompositeExplicitAutograd"
            )
        }
        without_memory = {
            "as_strided_",
            "empty_strided",
            "empty.memory_format",
            "unfold",
            "resize_",
        }
        zero = torch._efficientzerotensor(4, device=DEVICE_TYPE)
        other = torch.ones(4, device=DEVICE_TYPE)
        calls = {
            "dot": lambda: torch.dot(zero, other),
            "vdot": lambda: torch.vdot(other, zero),
            "view_as_real": lambda: torch.view_as_real(
                torch._efficientzerotensor(4, dtype=torch.complex64, device=DEVICE_TYPE)
            ),
        }
        self.assertEqual(lets_through - without_memory, set(calls))
        for call in calls.values():
            self.assertTrue(call()._is_zerotensor())
        self.assertEqual(torch.ones(4, device=DEVICE_TYPE).copy_(zero).cpu(), torch.zeros(4))
        self.assertEqual(zero.clone().cpu(), torch.zeros(4))
        self.assertEqual((zero * 2 + 1).cpu(), torch.ones(4))


class TestMedian(OpenRegTestCase):
    # The CPU's kernel reads outside of such inputs.
    @parametrize("function", [torch.median, torch.nanmedian])
    @parametrize("dim", [0, 1])
    def test_input_whose_elements_share_memory(self, function, dim):
        x = torch.tensor([[3.0, 1.0, 2.0, 5.0, 4.0]]).expand(3, 5)
        expected = function(x.contiguous(), dim)
        on_device = x[:1].to(DEVICE_TYPE).expand(3, 5)
        for _ in range(3):
            self.assertEqual(tuple(function(on_device, dim)), tuple(expected), exact_device=False)
            out = (
                torch.empty(0, device=DEVICE_TYPE),
                torch.empty(0, dtype=torch.int64, device=DEVICE_TYPE),
            )
            function(on_device, dim, out=out)
            self.assertEqual(out, tuple(expected), exact_device=False)


class TestMembership(OpenRegTestCase):
    @parametrize("element", [5, 4, 5.0, 2.5])
    @parametrize("invert", [False, True])
    @parametrize("dtype", [torch.int64, torch.float32, torch.uint8])
    def test_number_in_tensor(self, element, invert, dtype):
        numbers = torch.tensor([[1, 5], [3, 5]], dtype=dtype)
        expected = torch.isin(element, numbers, invert=invert)
        for _ in range(3):
            actual = torch.isin(element, numbers.to(DEVICE_TYPE), invert=invert)
            self.assert_bit_equal(actual, expected)
            out = torch.empty(0, dtype=torch.bool, device=DEVICE_TYPE)
            torch.isin(element, numbers.to(DEVICE_TYPE), invert=invert, out=out)
            self.assert_bit_equal(out, expected)

    def test_number_in_nothing(self):
        for _ in range(2):
            self.assertFalse(torch.isin(1, torch.zeros(0, device=DEVICE_TYPE)).item())


class TestWindows(OpenRegTestCase):
    @parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
    @parametrize(
        "arguments",
        [(7,), (7, True), (7, False), (7, True, 3.5), (1,), (0,), (6, False, 0.0)],
        name_fn=lambda one: "_".join(map(str, one)).replace(".", "_"),
    )
    def test_kaiser_window(self, dtype, arguments):
        expected = torch.kaiser_window(*arguments, dtype=dtype)
        for _ in range(3):
            actual = torch.kaiser_window(*arguments, dtype=dtype, device=DEVICE_TYPE)
            self.assertEqual(actual.device.type, DEVICE_TYPE)
            self.assert_bit_equal(actual, expected)

    @parametrize("overload", ["out", "periodic_out", "beta_out"])
    def test_kaiser_window_into_out(self, overload):
        arguments = {"out": (7,), "periodic_out": (7, True), "beta_out": (7, True, 3.5)}[overload]
        expected = torch.kaiser_window(*arguments)
        for _ in range(2):
            out = torch.empty(0, device=DEVICE_TYPE)
            getattr(torch.ops.aten.kaiser_window, overload)(*arguments, out=out)
            self.assert_bit_equal(out, expected)


class TestHistogram(OpenRegTestCase):
    @parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
    @parametrize("bins,lower,upper", [(4, 0, 7), (3, 0, 0), (10, 2, 40), (1, 5, 5), (7, -3, 20)])
    def test_integers_are_counted_as_on_cuda(self, dtype, bins, lower, upper):
        numbers = (torch.arange(60) * 7 % 31).to(dtype).reshape(5, 12)
        first, last = (lower, upper) if lower != upper else (0, int(numbers.max()))
        expected = [0] * bins
        for number in numbers.flatten().tolist():
            if first <= number <= last:
                expected[min((number - first) * bins // (last - first), bins - 1)] += 1
        for x in (numbers.to(DEVICE_TYPE), numbers.to(DEVICE_TYPE).t()):
            actual = torch.histc(x, bins, lower, upper)
            self.assertEqual(actual.dtype, dtype)
            self.assertEqual(actual.cpu(), torch.tensor(expected, dtype=dtype))
            out = torch.empty(0, dtype=dtype, device=DEVICE_TYPE)
            self.assertIs(torch.histc(x, bins, lower, upper, out=out), out)
            self.assertEqual(out.cpu(), torch.tensor(expected, dtype=dtype))

    def test_equal_integers_and_no_integers(self):
        same = torch.full((4,), 3, device=DEVICE_TYPE)
        self.assertEqual(torch.histc(same, 3).tolist(), [0, 4, 0])
        nothing = torch.zeros(0, dtype=torch.int64, device=DEVICE_TYPE)
        self.assertEqual(torch.histc(nothing, 3).tolist(), [0, 0, 0])

    @parametrize("number", [-(2**63), 2**63 - 1])
    def test_equal_integers_at_the_ends_of_their_type_are_in_the_middle(self, number):
        same = torch.full((4,), number, device=DEVICE_TYPE)
        self.assertEqual(torch.histc(same, 3).tolist(), [0, 4, 0])
        both = torch.tensor([-(2**63), 0, 2**63 - 1], device=DEVICE_TYPE)
        self.assertEqual(torch.histc(both, 3).tolist(), [1, 1, 1])

    def test_counting_experts_does_not_wait(self):
        experts = torch.tensor([0, 3, 3, 1, 0], device=DEVICE_TYPE)
        with StreamGate():
            counts = torch.histc(experts.int(), bins=4, min=0, max=3)
        self.assertEqual(counts.tolist(), [2, 1, 0, 2])

    def test_bounds_in_the_wrong_order_are_refused(self):
        with self.assertRaisesRegex(RuntimeError, "histc: expected max not to be less than min"):
            torch.histc(torch.ones(3, dtype=torch.int64, device=DEVICE_TYPE), 3, 2, 1)

    def test_floating_point_numbers_are_the_cpu_s(self):
        x = torch.randn(50)
        for _ in range(2):
            self.assert_bit_equal(torch.histc(x.to(DEVICE_TYPE), 7), torch.histc(x, 7))


class TestBatchNorm(OpenRegTestCase):
    @parametrize("name", ["native_batch_norm", "_native_batch_norm_legit"])
    @parametrize(
        "dtype,statistics",
        [
            (torch.float32, torch.float32),
            (torch.float64, torch.float64),
            (torch.bfloat16, torch.float32),
            (torch.float16, torch.float16),
        ],
    )
    @parametrize("is_training", [False, True])
    def test_results_are_as_fake_tensors_have_them(self, name, dtype, statistics, is_training):
        def call(device):
            x = torch.linspace(-1, 1, 24).reshape(2, 3, 4).to(device, dtype)
            mean, var = torch.ones(2, 3).to(device, statistics) * 0.5
            return getattr(torch.ops.aten, name)(x, None, None, mean, var, is_training, 0.1, 1e-5)

        with FakeTensorMode():
            fake = call(DEVICE_TYPE)
        expected = call("cpu")
        for _ in range(2):
            actual = call(DEVICE_TYPE)
            self.assert_bit_equal(actual[0], expected[0])
            if is_training and dtype != statistics:
                continue  # the CPU saves statistics of another type than torch's decomposition
            for real, promised in zip(actual, fake, strict=True):
                self.assertEqual(real.shape, promised.shape)
            if not is_training:
                self.assertEqual(actual[1].dtype, fake[1].dtype)
                self.assertEqual(actual[1].cpu(), torch.full((3,), 0.5, dtype=actual[1].dtype))
                inverse = (torch.full((3,), 0.5, dtype=actual[2].dtype) + 1e-5).sqrt().reciprocal()
                self.assert_bit_equal(actual[2], inverse)

    def test_evaluation_does_not_wait(self):
        module = torch.nn.BatchNorm2d(3).eval()
        x = torch.randn(2, 3, 4, 4)
        expected = module(x)
        module.to(DEVICE_TYPE)
        on_device = x.to(DEVICE_TYPE)
        with torch.no_grad():
            module(on_device)
            with StreamGate():
                actual = module(on_device)
        self.assert_bit_equal(actual, expected.detach())


class TestTensorsWithoutDimensions(OpenRegTestCase):
    def test_norm_does_not_depend_on_the_kernel_before(self):
        """The CPU's kernel reads a first size, which no tensor here has."""
        x = torch.tensor(8.478373527526855)
        expected = torch.linalg.vector_norm(x, 6, dim=-1)
        # A size of 1 would make it the absolute value.
        self.assertTrue(expected.item() != x.item())
        on_device = x.to(DEVICE_TYPE)
        for shape in ((1,), (2, 2), (1, 1, 1, 1, 1, 1, 1), (1,)):
            other = torch.ones(shape, device=DEVICE_TYPE)
            for before in (lambda one: one + 1, lambda one: torch.linalg.vector_norm(one, 6)):
                before(other)
                self.assert_bit_equal(torch.linalg.vector_norm(on_device, 6, dim=-1), expected)


class TestItem(OpenRegTestCase):
    @parametrize("dtype", all_types_and_complex_and(torch.bool, torch.half, torch.bfloat16))
    def test_reads_the_tensor_s_element(self, dtype):
        values = make_tensor((4, 3), dtype=dtype, device="cpu")
        on_device = values.to(DEVICE_TYPE)
        views = [lambda x: x[2, 1], lambda x: x.t()[1:2, 3:4], lambda x: x[0, 0]]
        if dtype.is_complex:
            views += [lambda x: x[1, 1].conj(), lambda x: x[1, 1].conj().imag]
        for view in views:
            actual, expected = view(on_device).item(), view(values).item()
            self.assertIs(type(actual), type(expected))
            self.assertEqual(actual, expected, rtol=0, atol=0, equal_nan=True)

    def test_waits_for_the_stream(self):
        x = torch.ones((), device=DEVICE_TYPE)
        with StreamGate() as gate:
            x.add_(1)
            thread = threading.Thread(target=gate.open)
            thread.start()
            self.assertEqual(x.item(), 2)
            thread.join()
        self.assertEqual(x.item(), 2)

    def test_refuses_a_tensor_without_elements(self):
        for tensor in (torch.ones(0), torch.ones(0, device=DEVICE_TYPE)):
            with self.assertRaisesRegex(RuntimeError, "Empty tensor not supported"):
                torch.ops.aten._local_scalar_dense(tensor)


class TestRepeatInterleave(OpenRegTestCase):
    def repeat(self, x, repeats, size):
        return torch.repeat_interleave(x, repeats, dim=0, output_size=size)

    def test_with_a_given_size_it_does_not_wait(self):
        x = torch.arange(3.0)
        repeats = torch.tensor([1, 0, 2])
        expected = self.repeat(x, repeats, 3)
        on_device = x.to(DEVICE_TYPE), repeats.to(DEVICE_TYPE), 3
        self.assert_bit_equal(self.repeat(*on_device), expected)
        with StreamGate() as gate:
            result = self.repeat(*on_device)
            gate.open()
        self.assert_bit_equal(result, expected)

    def test_with_a_given_size_it_can_be_captured(self):
        x, repeats = (torch.tensor(one, device=DEVICE_TYPE) for one in ([5.0, 7.0], [2, 1]))
        self.repeat(x, repeats, 3)
        torch.openreg.synchronize()
        graph = torch.openreg.Graph()
        with torch.openreg.graph(graph):
            result = self.repeat(x, repeats, 3)
        repeats.copy_(torch.tensor([1, 2]))
        graph.replay()
        self.assertEqual(result.tolist(), [5.0, 7.0, 7.0])

    def test_without_one_it_waits(self):
        x, repeats = (torch.tensor(one, device=DEVICE_TYPE) for one in ([5.0, 7.0], [2, 1]))
        for _ in range(2):
            torch.repeat_interleave(x, repeats)
        with StreamGate() as gate:
            with self.assertRaisesRegex(NotImplementedError, "repeat_interleave"):
                torch.repeat_interleave(x, repeats)
            gate.open()

    def test_a_wrong_size_is_an_error_of_the_kernel(self):
        x, repeats = (torch.tensor(one, device=DEVICE_TYPE) for one in ([5.0, 7.0], [2, 1]))
        self.repeat(x, repeats, 3)
        repeats.fill_(3)
        self.repeat(x, repeats, 3)
        with self.assertRaisesRegex(RuntimeError, "size"):
            torch.openreg.synchronize()


class TestGroupNorm(OpenRegTestCase):
    """A channels_last input, for which torch's derivative asks whether the device is the CPU."""

    def gradients(self, device, order, wanted=(True, True, True)):
        torch.manual_seed(0)
        x = torch.randn(2, 4, 5, 6).contiguous(memory_format=torch.channels_last)
        given = [x, torch.randn(4), torch.randn(4)]
        leaves = [
            one.to(device).requires_grad_(is_wanted)
            for one, is_wanted in zip(given, wanted, strict=True)
        ]
        grad_out = torch.randn(2, 4, 5, 6).to(device)
        result = torch.nn.functional.group_norm(leaves[0], 2, leaves[1], leaves[2])
        inputs = [one for one in leaves if one.requires_grad]
        gradients = torch.autograd.grad(result, inputs, grad_out, create_graph=order == 2)
        if order == 2:
            gradients = torch.autograd.grad(sum(one.pow(2).sum() for one in gradients), inputs[0])
        return [result.detach(), *gradients]

    def test_gradients_are_the_cpu_s(self):
        for wanted in ((True, True, True), (True, False, False), (True, False, True)):
            expected = self.gradients("cpu", 1, wanted)
            for one, other in zip(self.gradients(DEVICE_TYPE, 1, wanted), expected, strict=True):
                self.assertEqual(one.stride(), other.stride())
                self.assert_bit_equal(one, other)

    def test_gradients_of_the_parameters_alone(self):
        # torch ends the process here on the CPU.
        expected = self.gradients(DEVICE_TYPE, 1)
        actual = self.gradients(DEVICE_TYPE, 1, (False, True, True))
        for one, other in zip(actual[1:], expected[2:], strict=True):
            self.assert_bit_equal(one, other)

    def test_second_gradients_are_the_cpu_s_within_rounding(self):
        for one, other in zip(
            self.gradients(DEVICE_TYPE, 2), self.gradients("cpu", 2), strict=True
        ):
            self.assertEqual(one.cpu(), other)

    def test_transforms_have_torch_s_derivative(self):
        x = torch.randn(2, 4, 5, 6).contiguous(memory_format=torch.channels_last)

        def norm(value):
            return torch.nn.functional.group_norm(value, 2).pow(3).sum()

        for transform in (torch.func.grad, torch.func.jacrev):
            self.assertEqual(transform(norm)(x.to(DEVICE_TYPE)).cpu(), transform(norm)(x))


INDICES = {
    "first": lambda d: (torch.tensor([1, 0, 2]).to(d),),
    "last": lambda d: (None, None, torch.tensor([1, 0, 2]).to(d)),
    "neighbors": lambda d: (None, torch.tensor([[1], [0]]).to(d), torch.tensor([1, 3]).to(d)),
    "apart": lambda d: (torch.tensor([1, 2]).to(d), None, torch.tensor([0, 3]).to(d)),
    "int32": lambda d: (torch.tensor([1, 2], dtype=torch.int32).to(d),),
    "negative": lambda d: (torch.tensor([-1, -2]).to(d),),
    "scalar": lambda d: (torch.tensor(1).to(d),),
    "nothing": lambda d: (torch.zeros(0, dtype=torch.long).to(d),),
    "host": lambda d: (torch.tensor([1, 2]),),
}


class TestIndexPut(OpenRegTestCase):
    @parametrize("indices", [subtest(one, name=name) for name, one in INDICES.items()])
    @parametrize("accumulate", [False, True])
    @parametrize("is_transposed", [False, True])
    def test_result_is_the_cpu_s(self, indices, accumulate, is_transposed):
        x = torch.randn(3, 4, 5)
        if is_transposed:
            x = x.transpose(0, 1).contiguous().transpose(0, 1)
        shape = torch.empty_like(x)[tuple(slice(None) if i is None else i for i in indices("cpu"))]
        values = torch.randn(shape.shape)
        expected = torch.ops.aten.index_put_(x.clone(), indices("cpu"), values, accumulate)
        for _ in range(2):
            actual = x.to(DEVICE_TYPE).clone()
            returned = torch.ops.aten.index_put_(
                actual, indices(DEVICE_TYPE), values.to(DEVICE_TYPE), accumulate
            )
            self.assertIs(returned, actual)
            self.assert_bit_equal(actual, expected)
            self.assertEqual(actual.stride(), expected.stride())

    def test_masks_and_numbers(self):
        x, mask = torch.randn(3, 4), torch.randn(3, 4) > 0
        for value in (2.0, torch.tensor(3.0)):
            expected, actual = x.clone(), x.to(DEVICE_TYPE)
            expected[mask] = value
            actual[mask.to(DEVICE_TYPE)] = value
            self.assert_bit_equal(actual, expected)
        values = torch.randn(int(mask.sum()))
        expected, actual = x.clone(), x.to(DEVICE_TYPE)
        expected[mask] = values
        actual[mask.to(DEVICE_TYPE)] = values.to(DEVICE_TYPE)
        self.assert_bit_equal(actual, expected)

    def test_values_on_the_host_are_refused_as_on_cuda(self):
        x, index = torch.zeros(3, device=DEVICE_TYPE), torch.tensor([0, 2])
        with self.assertRaisesRegex(RuntimeError, "on the same device"):
            x.index_put_((index,), torch.ones(2))

    def test_indices_of_new_sizes_do_not_wait(self):
        x = torch.zeros(50, 3, device=DEVICE_TYPE)
        indices = [torch.arange(size).to(DEVICE_TYPE) for size in (17, 23, 29)]
        values = [torch.ones(size, 3).to(DEVICE_TYPE) for size in (17, 23, 29)]
        with StreamGate():
            for index, value in zip(indices, values, strict=True):
                x[index] = value
                x.index_put_((index,), value, accumulate=True)
        self.assertEqual(x[:, 0].tolist(), [2.0] * 29 + [0.0] * 21)

    def test_index_out_of_bounds_is_an_error_of_the_stream(self):
        x = torch.zeros(3, device=DEVICE_TYPE)
        # Since 2.15, x[index] = 1.0 is index_fill_.
        x.index_put_((torch.tensor([7], device=DEVICE_TYPE),), torch.tensor(1.0))
        with self.assertRaisesRegex(INDEX_ERROR, "index 7 is out of bounds"):
            torch.accelerator.synchronize()


class TestRanges(OpenRegTestCase):
    def test_ranges_and_permutations_of_new_lengths_do_not_wait(self):
        lengths = (101, 211, 307)
        torch.manual_seed(3)
        with StreamGate():
            ranges = [torch.arange(length, device=DEVICE_TYPE) for length in lengths]
            permutations = [torch.randperm(length, device=DEVICE_TYPE) for length in lengths]
        torch.manual_seed(3)
        for length, one, other in zip(lengths, ranges, permutations, strict=True):
            self.assert_bit_equal(one, torch.arange(length))
            self.assert_bit_equal(other, torch.randperm(length))

    @parametrize(
        "arguments",
        [
            (5,),
            (True,),
            (False,),
            (0, True),
            (False, 3),
            (1.5, 7.25, 0.5),
            (7, 0, -2),
            (2**53, 2**53 + 3),
        ],
        name_fn=lambda one: "_".join(map(str, one)).replace(".", "_").replace("-", "minus"),
    )
    @parametrize("dtype", [None, torch.int32, torch.float32, torch.float16, torch.uint8])
    def test_arange(self, arguments, dtype):
        if dtype in (torch.int32, torch.float16, torch.uint8) and arguments[0] == 2**53:
            arguments = (3, 6)
        expected = torch.arange(*arguments, dtype=dtype)
        for _ in range(2):
            actual = torch.arange(*arguments, dtype=dtype, device=DEVICE_TYPE)
            self.assert_bit_equal(actual, expected)
            self.assertEqual(actual.dtype, expected.dtype)

    def test_arange_into_out_with_strides(self):
        out = torch.zeros(5, 2, device=DEVICE_TYPE)[:, 0]
        self.assertIs(torch.arange(5, out=out), out)
        self.assertEqual(out.tolist(), [0, 1, 2, 3, 4])
        self.assertEqual(out.stride(), (2,))

    def test_arange_into_out_of_other_size_warns_in_the_call(self):
        out = torch.zeros(2, device=DEVICE_TYPE)
        with self.assertWarnsRegex(UserWarning, "The number of elements in the out tensor"):
            torch.arange(3, out=out)
        self.assertEqual(out.tolist(), [0, 1, 2])


for case in (
    TestZeroTensors,
    TestMembership,
    TestMedian,
    TestWindows,
    TestHistogram,
    TestItem,
    TestBatchNorm,
    TestIndexPut,
    TestRanges,
):
    instantiate_parametrized_tests(case)

if __name__ == "__main__":
    run_tests()
