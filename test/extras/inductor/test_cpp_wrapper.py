"""Wrappers in C++: as those in Python, and as on the CPU.

Compiling one takes seconds, so by default a few large graphs are used instead of many small ones.
"""

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
from extras.inductor.compiled import CompiledTestCase, requires_full, run_compiled, to_device
from extras.inductor.functions import CASES, normal, on_host, region
from torch._inductor import config

pytestmark = pytest.mark.sample(0.19)


@torch.library.custom_op("wrapped::new", mutates_args=())
def new(device: torch.device) -> torch.Tensor:
    return torch.zeros(3, device=device)


@new.register_fake
def _(device):
    return torch.empty(3, device=device)


def everything(x, weight, scale, index, values):
    """Kernels, operators with and without new results, random numbers, mutation."""
    product = torch.relu(x @ weight + 1) * scale
    ordered, order = torch.sort(product, -1)
    noise = torch.nn.functional.dropout(ordered, 0.5)
    x.add_(1)
    values.index_put_((index,), ordered.sum(-1)[:3], accumulate=True)
    return ordered[:, ::2], order.t(), noise, torch.cumsum(x, 0), torch.arange(3, device=x.device)


def arguments_of_everything(rows):
    return [
        normal(rows, 8),
        normal(8, 6),
        on_host(torch.tensor(2.5)),
        torch.tensor([1, 4, 2]),
        normal(5),
    ]


class TestWrapper(CompiledTestCase):
    def compare(self, function, arguments, device=DEVICE_TYPE, same_bits=True, **options):
        """Compiles for the CPU, with a wrapper in Python, and for the device, with one in C++."""
        expected = run_compiled(function, arguments, "cpu", **options)
        with config.patch(cpp_wrapper=True):
            actual = run_compiled(function, arguments, device, **options)
        self.assertEqual(actual.kernels, [])  # they are in the wrapper's own source
        for name in ("results", "tensors"):
            pairs = zip(getattr(actual, name), getattr(expected, name), strict=True)
            for index, pair in enumerate(pairs):
                self.assert_same(*pair, f"{name} {index}", same_bits)
        return actual

    @config.patch(cpp_wrapper=True)
    def test_graph_with_everything(self):
        device = f"{DEVICE_TYPE}:{torch.openreg.device_count() - 1}"
        with config.patch(cpp_wrapper=False):
            wanted = torch.compile(everything, dynamic=True)
            given, expected = [], []
            for rows in (4, 7):
                arguments = arguments_of_everything(rows)
                given.append([to_device(one, device) for one in arguments])
                torch.manual_seed(rows)
                expected.append((*wanted(*arguments), *arguments))
        compiled = torch.compile(everything, dynamic=True)
        for rows, arguments, tensors in zip((4, 7), given, expected, strict=True):
            torch.manual_seed(rows)
            results = compiled(*arguments)
            for index, pair in enumerate(zip((*results, *arguments), tensors, strict=True)):
                self.assert_same(*pair, f"{rows} rows, tensor {index}", same_bits=True)

    @config.patch(cpp_wrapper=True)
    def test_kernels_of_one_name_run_on_the_current_stream_and_take_scalars_at_the_call(self):
        one, other = torch.compile(lambda x: x + 1), torch.compile(lambda x, s: x + s)
        x, scalar = torch.randn(8), torch.tensor(2.0)
        on_device = x.to(DEVICE_TYPE)
        self.assert_bit_equal(one(on_device), x + 1)
        self.assert_bit_equal(other(on_device, scalar), x + 2)
        side = torch.openreg.Stream()
        with StreamGate() as gate:
            waiting = one(on_device), other(on_device, scalar)
            scalar.fill_(5.0)
            self.assertFalse(torch.openreg.current_stream().query())
            with torch.openreg.stream(side):
                result = other(on_device, scalar)
                side.synchronize()  # the gate holds the default stream alone
                on_host = result.cpu()
            gate.open()
        self.assertEqual(on_host, x + 5)
        self.assert_bit_equal(waiting[0], x + 1)
        self.assert_bit_equal(waiting[1], x + 2)

    @requires_full
    @config.patch(cpp_wrapper=True)
    def test_errors_have_their_text(self):
        compiled = torch.compile(lambda x, y, n: (x // y, x[:1].expand(n, n) + 1), dynamic=True)
        x = torch.arange(4, device=DEVICE_TYPE)
        compiled(x, x, 4)
        with self.assertRaisesRegex(torch.AcceleratorError, "cpp_fused_"):
            torch.openreg.synchronize()
        for text in (
            "in aoti_torch_empty_strided",
            r"out of memory(.|\n)*in aoti_torch_empty_strided",
        ):
            with self.assertRaisesRegex(RuntimeError, text):
                compiled(x, x + 1, 1 << 24)
        self.assert_bit_equal(compiled(x, x + 1, 4)[0], torch.zeros(4, dtype=torch.long))

    @requires_full
    @requires_two_devices
    @config.patch(cpp_wrapper=True)
    def test_graph_on_two_devices(self):
        def exchange(x, y):
            return x + 1 + y.to(x.device), y * 2 + x.to(y.device)

        x, y = normal(5), normal(5)
        a, b = torch.compile(exchange)(x.to(f"{DEVICE_TYPE}:0"), y.to(f"{DEVICE_TYPE}:1"))
        self.assertEqual((a.device.index, b.device.index), (0, 1))
        self.assert_bit_equal(a, x + 1 + y)
        self.assert_bit_equal(b, y * 2 + x)

    @config.patch(cpp_wrapper=True)
    def test_what_torch_has_no_wrapper_in_cpp_for(self):
        for device in ("cpu", DEVICE_TYPE):
            # What torch 2.15 generates does not compile.
            text = r"invoke_subgraph is not implemented|C\+\+ compile error"
            with self.assertRaisesRegex(Exception, text):
                torch.compile(lambda x: region(region(x)))(normal(5, device=device))

    @config.patch(cpp_wrapper=True)
    def test_operator_that_takes_a_device_and_has_no_c_function_is_refused(self):
        with self.assertRaisesRegex(Exception, "operators that take no device.* got wrapped.new"):
            torch.compile(lambda x: new(x.device) + x)(normal(3, device=DEVICE_TYPE))

    @requires_full
    @parametrize(
        "case",
        [
            subtest(case, name=name)
            for name, case in CASES.items()
            if name != "invoke_subgraph"  # see test_what_torch_has_no_wrapper_in_cpp_for
        ],
    )
    def test_results_and_gradients_are_those_of_the_cpu(self, case):
        torch.manual_seed(0)
        with torch._dynamo.config.patch(capture_scalar_outputs=case.captures_scalars):
            self.compare(case.function, case.arguments(), same_bits=case.same_bits, **case.options)


instantiate_parametrized_tests(TestWrapper)

if __name__ == "__main__":
    run_tests()
