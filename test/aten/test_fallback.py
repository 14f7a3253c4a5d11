"""The boxed fallback: what an operator without a kernel for the device does.

The operators are the test's own, with kernels for the CPU only, so that the device never has
kernels for them.
"""

import concurrent.futures
import contextlib
import itertools
import sys
import warnings
from pathlib import Path

import pytest
import torch
from common import (
    DEVICE_TYPE,
    INDEX_ERROR,
    OpenRegTestCase,
    StreamGate,
    call_in_thread,
    instantiate_parametrized_tests,
    parametrize,
    requires_two_devices,
    run_child,
    run_program,
    run_tests,
    subtest,
)
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import torch_openreg

_CODEGEN = Path(__file__).resolve().parents[2] / "csrc" / "aten" / "structured" / "codegen"
sys.path.insert(0, str(_CODEGEN))
from facts import load_facts  # noqa: E402

pytestmark = pytest.mark.sample(0.03)

LIBRARY = torch.library.Library("openreg_test", "DEF")
OPS = torch.ops.openreg_test


def operator(schema):
    """Defines an operator whose only kernel is the decorated one, for the CPU."""
    name = schema.partition("(")[0]
    LIBRARY.define(schema)

    def register(kernel):
        LIBRARY.impl(name, kernel, "CPU")
        return kernel

    return register


@operator("twice(Tensor x) -> Tensor")
def twice(x):
    return x * 2


@operator("twice_(Tensor(a!) x) -> Tensor(a!)")
def twice_(x):
    return x.mul_(2)


@operator("twice.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)")
def twice_out(x, out):
    return torch.mul(x, 2, out=out)


@operator("shrink_(Tensor(a!) x, int size) -> Tensor(a!)")
def shrink_(x, size):
    return x.resize_(size)


@operator("parts(Tensor x) -> (Tensor, Tensor, int)")
def parts(x):
    return x + 1, x.sum(), x.numel()


@operator("chunks(Tensor x) -> Tensor[]")
def chunks(x):
    return [x + 1, x + 2]


@operator("tail(Tensor(a) x) -> Tensor(a)")
def tail(x):
    return x[1:]


@operator("transposed(Tensor x) -> Tensor")
def transposed(x):
    return (x + 1).t()


@operator("conjugate(Tensor x) -> Tensor")
def conjugate(x):
    return (x + 1).conj()


@operator("expanded(Tensor x) -> Tensor")
def expanded(x):
    return (x + 1).expand(3, -1)


@operator("add_all(Tensor[] xs) -> Tensor")
def add_all(xs):
    return sum(xs)


@operator("twice_all_(Tensor(a!)[] xs) -> ()")
def twice_all_(xs):
    for x in xs:
        x.mul_(2)


@operator("add_optional(Tensor x, Tensor? y=None) -> Tensor")
def add_optional(x, y=None):
    return x + 1 if y is None else x + y


@operator("add_optionals(Tensor?[] xs) -> Tensor")
def add_optionals(xs):
    return sum(x for x in xs if x is not None)


@operator("is_same(Tensor x, Tensor y) -> bool")
def is_same(x, y):
    return x is y or x.data_ptr() == y.data_ptr()


@operator("draw(Tensor x, *, Generator? generator=None) -> Tensor")
def draw(x, generator=None):
    return torch.empty_like(x).normal_(generator=generator)


@operator("device_type(Tensor x, *, Device device) -> bool")
def device_type(x, device):
    return device.type == "cpu" and x.device.type == "cpu"


@operator("fail(Tensor x) -> Tensor")
def fail(x):
    raise IndexError("the kernel's own text")


LIBRARY.define("kernelless(Tensor x) -> Tensor")


class FallbackTestCase(OpenRegTestCase):
    def setUp(self):
        super().setUp()
        mode = torch.openreg.get_fallback_mode()
        self.addCleanup(torch.openreg.set_fallback_mode, mode)
        torch.openreg.set_fallback_mode("silent")
        torch.openreg.reset_fallback_stats()


class TestCounts(FallbackTestCase):
    def test_each_call_counts_for_its_overload(self):
        x = torch.ones(3, device=DEVICE_TYPE)
        OPS.twice(x)
        OPS.twice(x)
        OPS.twice.out(x, out=torch.empty(3, device=DEVICE_TYPE))
        self.assertEqual(
            torch.openreg.fallback_stats(), {"openreg_test::twice": 2, "openreg_test::twice.out": 1}
        )

    def test_reset_forgets_all_counts(self):
        OPS.twice(torch.ones(3, device=DEVICE_TYPE))
        torch.openreg.reset_fallback_stats()
        self.assertEqual(torch.openreg.fallback_stats(), {})
        self.assertEqual(torch.openreg.fallback_copied_bytes(), {})

    def test_copied_bytes_are_those_of_results_that_are_not_computed_in_place(self):
        x = torch.ones(3, device=DEVICE_TYPE)
        OPS.twice(x)  # on the host: the result is copied
        OPS.twice.out(x, out=torch.empty(3, device=DEVICE_TYPE))
        self.assertEqual(
            torch.openreg.fallback_copied_bytes(),
            {"openreg_test::twice": 12, "openreg_test::twice.out": 0},
        )

    def test_operator_with_a_kernel_does_not_count(self):
        x = torch.ones(3, device=DEVICE_TYPE)
        x.fill_(2)
        x.view(3, 1)
        x.copy_(torch.ones(3))
        self.assertEqual(torch.openreg.fallback_stats(), {})

    def test_cpu_tensors_do_not_count(self):
        OPS.twice(torch.ones(3))
        self.assertEqual(torch.openreg.fallback_stats(), {})

    def test_calls_of_all_threads_count(self):
        x = torch.ones(3, device=DEVICE_TYPE)
        call_in_thread(lambda: OPS.twice(x))
        self.assertEqual(torch.openreg.fallback_stats()["openreg_test::twice"], 1)


class TestModes(FallbackTestCase):
    def test_silent_mode_says_nothing(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            OPS.twice(torch.ones(3, device=DEVICE_TYPE))

    def test_warn_mode_warns_once_per_operator_and_runs_it(self):
        result = run_program(
            """
            import torch
            library = torch.library.Library("program", "DEF")
            for name in ("first", "second"):
                library.define(f"{name}(Tensor x) -> Tensor")
                library.impl(name, lambda x: x * 2, "CPU")
            x = torch.ones(3, device="openreg")
            torch.openreg.set_fallback_mode("warn")
            for _ in range(3):
                assert torch.ops.program.first(x).tolist() == [2.0] * 3
                torch.ops.program.second(x)
            """
        )
        for name in ("first", "second"):
            text = f"program::{name}: the host waits for {DEVICE_TYPE} and runs the CPU kernel"
            self.assertEqual(result.stderr.count(text), 1, msg=result.stderr)

    def test_warn_mode_gives_a_warning_of_python(self):
        torch.openreg.set_fallback_mode("warn")
        x = torch.ones(3, device=DEVICE_TYPE)
        text = f"aten::histc: the host waits for {DEVICE_TYPE} and runs the CPU kernel"
        with self.assertWarnsRegex(UserWarning, text):
            torch.histc(x)

    def test_error_mode_names_the_operator_and_what_to_do(self):
        x = torch.ones(3, device=DEVICE_TYPE)
        torch.openreg.set_fallback_mode("error")
        with self.assertRaisesRegex(
            NotImplementedError, "openreg_test::twice: .*set_fallback_mode"
        ):
            OPS.twice(x)

    def test_error_mode_leaves_operators_with_a_kernel(self):
        torch.openreg.set_fallback_mode("error")
        x = torch.zeros(3, device=DEVICE_TYPE)
        self.assert_bit_equal(x.fill_(2), torch.full((3,), 2.0))

    @parametrize("mode", ["silent", "warn", "error"])
    def test_mode_can_be_read_back(self, mode):
        torch.openreg.set_fallback_mode(mode)
        self.assertEqual(torch.openreg.get_fallback_mode(), mode)

    def test_unknown_mode_is_refused_and_the_mode_stays(self):
        with self.assertRaisesRegex(
            (RuntimeError, ValueError), 'expected "silent", "warn" or "error", got "loud"'
        ):
            torch.openreg.set_fallback_mode("loud")
        self.assertEqual(torch.openreg.get_fallback_mode(), "silent")

    @parametrize("mode", ["silent", "warn", "error"])
    def test_environment_sets_the_mode(self, mode):
        result = run_program(
            "import torch; print(torch.openreg.get_fallback_mode())", {"OPENREG_FALLBACK": mode}
        )
        self.assertEqual(result.stdout.strip(), mode)

    def test_bad_environment_is_an_error_of_the_first_use_of_the_device(self):
        result = run_program(
            """
            import torch
            for use in (lambda: torch.ones(3, device="openreg"), torch.openreg.get_fallback_mode):
                try:
                    use()  # neither falls back
                except torch.AcceleratorError as error:
                    print(error)
            """,
            {"OPENREG_FALLBACK": "loud"},
        )
        text = "OPENREG_FALLBACK is 'loud'; allowed: silent, warn or error"
        self.assertEqual(result.stdout.count(text), 2)


class TestArguments(FallbackTestCase):
    def setUp(self):
        super().setUp()
        self.x = torch.randn(4)
        self.on_device = self.x.to(DEVICE_TYPE)

    def test_result_is_new_and_on_the_device(self):
        y = OPS.twice(self.on_device)
        self.assertEqual(y.device, torch.device(f"{DEVICE_TYPE}:0"))
        self.assertNotEqual(y.data_ptr(), self.on_device.data_ptr())
        self.assert_bit_equal(y, self.x * 2)
        self.assert_bit_equal(self.on_device, self.x)

    def test_all_results_are_on_the_device_and_numbers_are_numbers(self):
        first, second, count = OPS.parts(self.on_device)
        self.assertEqual((first.device.type, second.device.type), (DEVICE_TYPE, DEVICE_TYPE))
        self.assert_bit_equal(first, self.x + 1)
        self.assert_bit_equal(second, self.x.sum())
        self.assertEqual(count, 4)

    def test_results_in_a_list_are_on_the_device(self):
        for i, y in enumerate(OPS.chunks(self.on_device)):
            self.assertEqual(y.device.type, DEVICE_TYPE)
            self.assert_bit_equal(y, self.x + i + 1)

    def test_in_place_operator_returns_its_argument(self):
        self.assertIs(OPS.twice_(self.on_device), self.on_device)
        self.assert_bit_equal(self.on_device, self.x * 2)

    def test_in_place_operator_on_a_view_writes_the_base(self):
        OPS.twice_(self.on_device[::2])
        expected = self.x.clone()
        expected[::2] *= 2
        self.assert_bit_equal(self.on_device, expected)

    def test_out_argument_is_written_and_returned(self):
        out = torch.empty(4, device=DEVICE_TYPE)
        address = out.data_ptr()
        self.assertIs(OPS.twice.out(self.on_device, out=out), out)
        self.assertEqual(out.data_ptr(), address)
        self.assert_bit_equal(out, self.x * 2)

    @parametrize("size", [0, 1])
    def test_out_argument_that_is_too_small_grows(self, size):
        out = torch.empty(size, device=DEVICE_TYPE)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns if it was not empty
            OPS.twice.out(self.on_device, out=out)
        self.assertEqual(out.device.type, DEVICE_TYPE)
        self.assert_bit_equal(out, self.x * 2)

    def test_out_argument_that_is_an_input_is_written(self):
        OPS.twice.out(self.on_device, out=self.on_device)
        self.assert_bit_equal(self.on_device, self.x * 2)

    def test_argument_can_shrink_and_keeps_its_memory(self):
        address = self.on_device.data_ptr()
        OPS.shrink_(self.on_device, 2)
        self.assertEqual(self.on_device.data_ptr(), address)
        self.assert_bit_equal(self.on_device, self.x[:2])

    def test_argument_can_grow_and_keeps_its_contents(self):
        OPS.shrink_(self.on_device, 1000)
        self.assertEqual(self.on_device.shape, (1000,))
        self.assert_bit_equal(self.on_device[:4], self.x)

    def test_returned_view_shares_the_memory_of_the_argument(self):
        y = OPS.tail(self.on_device)
        self.assertEqual(y.data_ptr(), self.on_device.data_ptr() + 4)
        y.fill_(7)
        self.assertEqual(self.on_device[1:].tolist(), [7.0] * 3)
        self.assert_bit_equal(self.on_device[0], self.x[0])

    def test_strides_of_the_result_are_the_cpu_s(self):
        x = torch.randn(2, 3)
        y = OPS.transposed(x.to(DEVICE_TYPE))
        self.assertEqual(y.stride(), OPS.transposed(x).stride())
        self.assert_bit_equal(y, (x + 1).t())

    def test_lazily_conjugated_result_is_right(self):
        x = torch.randn(3, dtype=torch.complex64)
        self.assert_bit_equal(OPS.conjugate(x.to(DEVICE_TYPE)), (x + 1).conj().resolve_conj())

    def test_expanded_result_is_right(self):
        self.assert_bit_equal(OPS.expanded(self.on_device), (self.x + 1).expand(3, -1))

    def test_list_of_tensors_is_passed(self):
        y = OPS.add_all([self.on_device, self.on_device, self.on_device * 3])
        self.assert_bit_equal(y, self.x + self.x + self.x * 3)

    def test_list_of_tensors_is_written(self):
        tensors = [self.on_device, torch.ones(2, device=DEVICE_TYPE)]
        OPS.twice_all_(tensors)
        self.assert_bit_equal(tensors[0], self.x * 2)
        self.assert_bit_equal(tensors[1], torch.full((2,), 2.0))

    def test_optional_tensor_may_be_missing(self):
        self.assert_bit_equal(OPS.add_optional(self.on_device), self.x + 1)
        self.assert_bit_equal(OPS.add_optional(self.on_device, None), self.x + 1)
        self.assert_bit_equal(OPS.add_optional(self.on_device, self.on_device), self.x + self.x)

    def test_list_of_optional_tensors_may_have_gaps(self):
        y = OPS.add_optionals([None, self.on_device, None, self.on_device])
        self.assert_bit_equal(y, self.x + self.x)

    def test_tensor_that_is_passed_twice_is_the_same_for_the_kernel(self):
        self.assertTrue(OPS.is_same(self.on_device, self.on_device))
        self.assertFalse(OPS.is_same(self.on_device, self.on_device.clone()))

    def test_conjugate_and_negative_views_are_read_rightly(self):
        z = torch.randn(3, dtype=torch.complex64)
        self.assert_bit_equal(OPS.twice(z.to(DEVICE_TYPE).conj()), (z.conj() * 2).resolve_conj())
        imaginary = z.to(DEVICE_TYPE).conj().imag
        self.assert_bit_equal(OPS.twice(imaginary), (z.conj().imag * 2).resolve_neg())

    def test_non_contiguous_argument_is_read_rightly(self):
        x = torch.randn(4, 6)
        self.assert_bit_equal(OPS.twice(x.to(DEVICE_TYPE).t()[::2, 1:]), x.t()[::2, 1:] * 2)

    def test_empty_argument_gives_an_empty_result(self):
        y = OPS.twice(torch.empty(0, 3, device=DEVICE_TYPE))
        self.assertEqual((y.shape, y.device.type), ((0, 3), DEVICE_TYPE))

    def test_cpu_scalar_tensor_is_taken(self):
        y = OPS.add_optional(self.on_device, torch.tensor(2.0))
        self.assert_bit_equal(y, self.x + 2)

    def test_device_argument_becomes_the_cpu(self):
        self.assertTrue(OPS.device_type(self.on_device, device=torch.device(DEVICE_TYPE)))

    def test_kernel_sees_work_that_was_enqueued_before(self):
        torch.openreg.synchronize()
        with StreamGate() as gate:
            self.on_device.fill_(5)
            gate.open()
            y = OPS.twice(self.on_device)
        self.assertEqual(y.tolist(), [10.0] * 4)

    def test_work_that_is_enqueued_afterwards_sees_the_result(self):
        y = OPS.twice(self.on_device)
        y.add_(1)
        self.assert_bit_equal(y, self.x * 2 + 1)

    @requires_two_devices
    def test_fallback_runs_on_the_device_of_its_tensors(self):
        y = OPS.twice(self.x.to(f"{DEVICE_TYPE}:1"))
        self.assertEqual(y.device, torch.device(f"{DEVICE_TYPE}:1"))
        self.assertEqual(torch.openreg.current_device(), 0)

    @requires_two_devices
    def test_fallback_does_not_wait_for_other_devices(self):
        x = self.x.to(f"{DEVICE_TYPE}:1")
        torch.openreg.synchronize()
        with StreamGate(torch.openreg.current_stream(0)):
            torch.openreg.set_fallback_mode("silent")  # a closed gate forbids fallbacks
            self.assert_bit_equal(OPS.twice(x), self.x * 2)


class TestGenerators(FallbackTestCase):
    def test_default_generator_gives_the_cpu_s_numbers(self):
        torch.manual_seed(11)
        expected = OPS.draw(torch.empty(5))
        torch.openreg.manual_seed(11)
        self.assert_bit_equal(OPS.draw(torch.empty(5, device=DEVICE_TYPE)), expected)

    def test_given_generator_gives_the_cpu_s_numbers(self):
        expected = OPS.draw(torch.empty(5), generator=torch.Generator().manual_seed(3))
        generator = torch.Generator(DEVICE_TYPE).manual_seed(3)
        self.assert_bit_equal(
            OPS.draw(torch.empty(5, device=DEVICE_TYPE), generator=generator), expected
        )

    def test_fallbacks_and_kernels_draw_from_one_sequence(self):
        torch.manual_seed(4)
        expected = [torch.randn(20), OPS.draw(torch.empty(5)), torch.randn(20)]
        torch.openreg.manual_seed(4)
        actual = [
            torch.empty(20, device=DEVICE_TYPE).normal_(),
            OPS.draw(torch.empty(5, device=DEVICE_TYPE)),
            torch.empty(20, device=DEVICE_TYPE).normal_(),
        ]
        for x, y in zip(actual, expected, strict=True):
            self.assert_bit_equal(x, y)

    def test_cpu_generator_stays_as_it_was(self):
        state = torch.get_rng_state()
        OPS.draw(torch.empty(5, device=DEVICE_TYPE))
        self.assertEqual(torch.get_rng_state(), state)

    @parametrize(
        "sample",
        [
            subtest(lambda p: torch.multinomial(p, 20, replacement=True), name="multinomial"),
            subtest(lambda p: torch.normal(p, p), name="normal"),
            subtest(lambda p: torch.bernoulli(p), name="bernoulli"),
            subtest(lambda p: torch.poisson(p * 5), name="poisson"),
            subtest(lambda p: torch.binomial(p * 0 + 10, p), name="binomial"),
            subtest(lambda p: torch._standard_gamma(p + 1), name="gamma"),
            subtest(lambda p: torch.randperm(30, device=p.device), name="randperm"),
            subtest(lambda p: torch.nn.functional.rrelu(p - 0.5, training=True), name="rrelu"),
        ],
    )
    def test_cpu_s_numbers_of(self, sample):
        p = torch.rand(3, 4)
        torch.manual_seed(8)
        expected = sample(p)
        torch.openreg.manual_seed(8)
        self.assert_bit_equal(sample(p.to(DEVICE_TYPE)), expected)


class TestErrors(FallbackTestCase):
    def test_operator_without_a_cpu_kernel_names_itself_and_the_device(self):
        with self.assertRaisesRegex(
            NotImplementedError,
            f"(?s)openreg_test::kernelless.*{DEVICE_TYPE}:0.* neither {DEVICE_TYPE} nor the CPU "
            f'has a kernel.*kernelless", "{DEVICE_TYPE}"',
        ):
            OPS.kernelless(torch.ones(3, device=DEVICE_TYPE))

    def test_exception_of_the_kernel_comes_from_the_call(self):
        with self.assertRaisesRegex(IndexError, "the kernel's own text"):
            OPS.fail(torch.ones(3, device=DEVICE_TYPE))

    def test_program_goes_on_after_an_exception(self):
        x = torch.ones(3, device=DEVICE_TYPE)
        with self.assertRaises(IndexError):
            OPS.fail(x)
        self.assert_bit_equal(OPS.twice(x), torch.full((3,), 2.0))

    def test_cpu_tensor_beside_an_openreg_tensor_is_refused(self):
        x = torch.ones(3, device=DEVICE_TYPE)
        with self.assertRaisesRegex(RuntimeError, f"same device.*{DEVICE_TYPE}:0 and cpu"):
            OPS.add_all([x, torch.ones(3)])
        with self.assertRaisesRegex(RuntimeError, f"same device.*{DEVICE_TYPE}:0 and cpu"):
            OPS.twice.out(torch.ones(3), out=x)

    @requires_two_devices
    def test_tensors_of_two_devices_are_refused(self):
        x, y = (torch.ones(3, device=f"{DEVICE_TYPE}:{index}") for index in range(2))
        with self.assertRaisesRegex(
            RuntimeError, f"same device.*{DEVICE_TYPE}:0 and {DEVICE_TYPE}:1"
        ):
            OPS.add_all([x, y])

    def test_cpu_tensors_are_taken_as_indices_only(self):
        index, values = torch.tensor([0, 2]), torch.tensor([5.0, 6.0])
        for _ in range(2):
            x = torch.zeros(3, device=DEVICE_TYPE)
            x.index_put_((index,), values.to(DEVICE_TYPE))
            x.index_put_((torch.tensor([1]),), torch.tensor(7.0))
            self.assertEqual(x.tolist(), [5.0, 7.0, 6.0])
            for call in (torch.index_put_, torch.index_put, torch.ops.aten._unsafe_index_put):
                with self.assertRaisesRegex(RuntimeError, f"same device.*{DEVICE_TYPE}:0 and cpu"):
                    call(x, (index,), values)
            with self.assertRaisesRegex(RuntimeError, f"same device.*{DEVICE_TYPE}:0 and cpu"):
                x[index] = values
            self.assertEqual(x.tolist(), [5.0, 7.0, 6.0])

    @parametrize(
        "call",
        [
            subtest(lambda h, x: h.masked_fill_(x[0] > 0, 9.0), name="masked_fill_"),
            subtest(lambda h, x: h.masked_fill_(x[0] > 0, x[1]), name="masked_fill_tensor_"),
            subtest(lambda h, x: h.masked_scatter_(x[0] > 0, x), name="masked_scatter_"),
            subtest(lambda h, x: h.put_(x[:1].long() * 0, x[:1]), name="put_"),
            subtest(lambda h, x: h.index_fill_(0, x[:1].long() * 0, 2.0), name="index_fill_"),
            subtest(lambda h, x: h.addcmul_(x[0], x[1]), name="addcmul_"),
            subtest(lambda h, x: h.copysign_(x[0]), name="copysign_"),
            subtest(lambda h, x: OPS.twice_all_([x, h]), name="list"),
            subtest(lambda h, x: torch._foreach_add_([h], [x[0]]), name="foreach_add_"),
            subtest(lambda h, x: torch._foreach_lerp_([h], [x[0]], 0.5), name="foreach_lerp_"),
            subtest(lambda h, x: torch.nan_to_num(x[0], out=h), name="nan_to_num"),
            subtest(lambda h, x: torch.nansum(x, dim=0, out=h), name="nansum"),
            subtest(lambda h, x: torch.logsumexp(x, 0, out=h), name="logsumexp"),
            subtest(lambda h, x: torch.nonzero(x, out=h.long()), name="nonzero"),
            subtest(lambda h, x: torch.dot(x, x, out=h), name="dot"),
            subtest(lambda h, x: torch.where(x[0] > 0, x[0], x[1], out=h), name="where"),
            subtest(lambda h, x: torch.median(x, 0, out=(h, h.long())), name="median"),
            subtest(lambda h, x: torch.mode(x, 0, out=(h, h.long())), name="mode"),
            subtest(lambda h, x: torch.kthvalue(x, 1, 0, out=(h, h.long())), name="kthvalue"),
            subtest(
                lambda h, x: torch.median(x, 0, out=(x[0].clone(), h.long())), name="median_index"
            ),
            subtest(
                lambda h, x: torch._fused_sgd_(
                    [h],
                    [x[0]],
                    [],
                    weight_decay=0,
                    momentum=0,
                    lr=0.1,
                    dampening=0,
                    nesterov=False,
                    maximize=False,
                    is_first_step=True,
                ),
                name="fused_sgd_",
            ),
            subtest(
                lambda h, x: torch._amp_foreach_non_finite_check_and_unscale_([x], h, x[0]),
                name="amp_found_inf",
            ),
            subtest(
                lambda h, x: torch._amp_foreach_non_finite_check_and_unscale_([h], x[:1], x[0]),
                name="amp_gradient",
            ),
            subtest(
                lambda h, x: torch._amp_update_scale_(h, x[0].int(), x[0], 2.0, 0.5, 1),
                name="amp_scale",
            ),
        ],
    )
    def test_cpu_number_that_is_written_is_refused_each_time(self, call):
        x = torch.tensor([1.0, 2.0, 3.0], device=DEVICE_TYPE)
        for _ in range(3):
            number = torch.tensor(1.0)
            with self.assertRaisesRegex(
                RuntimeError,
                f"on the same device|to have device {DEVICE_TYPE}:0|expected device",
            ):
                call(number, x)
            self.assertEqual(number.item(), 1.0)
            self.assertEqual(x.tolist(), [1.0, 2.0, 3.0])

    def test_cpu_number_that_is_read_is_taken_each_time(self):
        x = torch.tensor([1.0, 2.0, 3.0], device=DEVICE_TYPE)
        for value in (5.0, 6.0, 7.0):
            number = torch.tensor(value)
            self.assertEqual(x.masked_fill(x > 2, number).tolist(), [1.0, 2.0, value])
            self.assertEqual(x.index_fill(0, x[:1].long(), number).tolist(), [1.0, value, 3.0])
            self.assertEqual(torch.where(x > 2, x, number).tolist(), [value, value, 3.0])
            self.assertEqual(
                torch._foreach_mul([x], number)[0].tolist(), [value, 2 * value, 3 * value]
            )

    def test_result_of_another_layout_is_refused_by_name(self):
        text = {"openreg": "aten::to_mkldnn.*layout", "cuda": "'aten::to_mkldnn' with .*'CUDA'"}
        with self.assertRaisesRegex(NotImplementedError, text[DEVICE_TYPE]):
            torch.ones(3, device=DEVICE_TYPE).to_mkldnn()

    def test_cpu_generator_is_refused(self):
        with self.assertRaisesRegex(RuntimeError, "device type for generator"):
            OPS.draw(torch.ones(3, device=DEVICE_TYPE), generator=torch.Generator())


def padded(x):
    packed = torch.nn.utils.rnn.pack_padded_sequence(x[:, :3, None], torch.tensor([4, 3, 2]))
    return torch.nn.utils.rnn.pad_packed_sequence(packed)[0]


class TestOperatorsOfTorch(FallbackTestCase):
    """Operators with shapes, results or arguments out of the ordinary give the CPU's bits."""

    @parametrize(
        "call",
        [
            subtest(lambda x: torch.histc(x, 5), name="histc"),
            subtest(lambda x: torch.bincount(x.flatten().abs().long()), name="bincount"),
            subtest(lambda x: torch.kthvalue(x, 2), name="kthvalue"),
            subtest(lambda x: torch.median(x, dim=0), name="median"),
            subtest(lambda x: torch.mode(x.round(), dim=0), name="mode"),
            subtest(lambda x: torch.unique(x.round(), return_counts=True), name="unique"),
            subtest(lambda x: torch.nonzero(x > 0), name="nonzero"),
            subtest(lambda x: torch.nonzero(x > 9), name="nonzero_of_nothing"),
            subtest(lambda x: torch.masked_select(x, x > 0), name="masked_select"),
            subtest(lambda x: torch.linalg.svd(x), name="svd"),
            subtest(lambda x: torch.linalg.qr(x), name="qr"),
            subtest(
                lambda x: torch.linalg.cholesky(x @ x.T + 9 * torch.eye(4, device=x.device)),
                name="cholesky",
            ),
            subtest(lambda x: torch.linalg.eigvals(x[:, :4]), name="eigvals"),
            subtest(lambda x: torch.fft.rfft(x), name="rfft"),
            subtest(lambda x: torch.fft.ifft(torch.fft.fft(x)), name="fft"),
            subtest(lambda x: torch.cdist(x, x), name="cdist"),
            subtest(lambda x: torch.searchsorted(x.sort().values, x), name="searchsorted"),
            subtest(lambda x: torch.polar(x.abs(), x), name="polar"),
            subtest(lambda x: torch.isfinite(x[:0]), name="isfinite_of_nothing"),
            subtest(lambda x: torch.cummax(x, 0), name="cummax"),
            subtest(lambda x: torch.tril_indices(3, 3, device=x.device), name="tril_indices"),
            subtest(lambda x: torch.aminmax(x), name="aminmax"),
            subtest(lambda x: torch.std_mean(x), name="std_mean"),
            subtest(lambda x: x.index_put((torch.tensor([0, 1]),), x[0]), name="index_put"),
            subtest(lambda x: x[torch.tensor([0, 2])], name="index_with_a_cpu_tensor"),
            subtest(lambda x: torch.block_diag(x, x), name="block_diag"),
            subtest(lambda x: torch._foreach_add([x, x[0]], 1.5), name="foreach_add"),
            subtest(
                lambda x: torch.stft(
                    x.flatten(), 8, window=torch.ones(8, device=x.device), return_complex=True
                ),
                name="stft",
            ),
            subtest(
                lambda x: torch.nn.functional.grid_sample(
                    x[None, None], x.view(1, 5, 2, 2), align_corners=False
                ),
                name="grid_sample",
            ),
            subtest(
                lambda x: torch.nn.functional.embedding_bag(
                    torch.tensor([[0, 1], [2, 3]], device=x.device), x
                ),
                name="embedding_bag",
            ),
            subtest(padded, name="packed_sequence"),
        ],
    )
    def test_result_equals_the_cpu_s_of(self, call):
        torch.manual_seed(0)
        x = torch.randn(4, 5)
        expected, actual = call(x), call(x.to(DEVICE_TYPE))
        if isinstance(expected, torch.Tensor):
            expected, actual = [expected], [actual]
        self.assertEqual(len(actual), len(expected))
        for one, other in zip(actual, expected, strict=True):
            self.assertEqual(one.device.type, DEVICE_TYPE)
            self.assertEqual(one.dtype, other.dtype)
            self.assert_bit_equal(one, other)


class TestLists(FallbackTestCase):
    """Operators on lists: one kernel on one device, tensor by tensor on several, as on CUDA."""

    def setUp(self):
        super().setUp()
        self.x = torch.randn(3)
        self.on_device = self.x.to(DEVICE_TYPE)

    def test_tensors_are_copied_between_devices(self):
        for _ in range(3):
            targets = [torch.zeros(3), torch.zeros(3, device=DEVICE_TYPE), torch.tensor(0.0)]
            sources = [self.on_device, self.x + 1, self.on_device[0]]
            torch._foreach_copy_(targets, sources)
            for target, source in zip(targets, sources, strict=True):
                self.assert_bit_equal(target, source)

    def test_host_number_in_a_list_stays_on_the_host(self):
        for _ in range(3):
            results = torch._foreach_mul([self.on_device, torch.tensor(2.0)], 3)
            self.assertEqual([one.device.type for one in results], [DEVICE_TYPE, "cpu"])
            self.assertEqual(results[1].item(), 6.0)
            numbers = [self.on_device.clone(), torch.tensor(2.0)]
            torch._foreach_add_(numbers, 1)
            self.assertEqual(numbers[1].item(), 3.0)

    @requires_two_devices
    def test_gradients_reach_all_devices(self):
        devices = ("cpu", f"{DEVICE_TYPE}:0", f"{DEVICE_TYPE}:1")
        xs = [self.x.to(device, copy=True).requires_grad_() for device in devices]
        sum(y.sum().cpu() for y in torch._foreach_exp(xs)).backward()
        for x in xs:
            self.assertEqual(x.grad.device, x.device)
            self.assert_bit_equal(x.grad, self.x.exp())

    def test_pairs_on_two_devices_are_refused(self):
        for call in (torch._foreach_add, torch._foreach_add_, torch._foreach_div_):
            for pair in ((self.on_device, self.x), (self.x, self.on_device)):
                with self.assertRaisesRegex(RuntimeError, "on the same device"):
                    call([pair[0].clone()], [pair[1]])
        with self.assertRaisesRegex(RuntimeError, "on the same device"):
            torch._foreach_addcmul([self.on_device], [self.on_device], [self.x])
        self.assert_bit_equal(self.on_device, self.x)

    def test_lists_of_two_lengths_are_refused(self):
        with self.assertRaisesRegex(RuntimeError, "same number of tensors, got 2 and 1"):
            torch._foreach_copy_([self.x, self.on_device], [self.on_device])

    @parametrize("name", ["addcmul", "addcdiv"])
    def test_numbers_may_be_in_a_cpu_tensor(self, name):
        functional, in_place = (getattr(torch, f"_foreach_{name}{end}") for end in ("", "_"))
        for numbers in (torch.tensor([2.0, 3.0]), torch.tensor([4.0, 5.0])):
            expected = functional([self.x, self.x], [self.x] * 2, [self.x] * 2, numbers)
            xs = [self.on_device] * 2
            for actual, one in zip(functional(xs, xs, xs, numbers), expected, strict=True):
                self.assert_bit_equal(actual, one)
            written = [self.on_device.clone(), self.on_device.clone()]
            in_place(written, xs, xs, numbers)
            for actual, one in zip(written, expected, strict=True):
                self.assert_bit_equal(actual, one)
            with self.assertRaisesRegex(
                RuntimeError, f"Expected scalars to be on CPU, got {DEVICE_TYPE}"
            ):
                functional(xs, xs, xs, numbers.to(DEVICE_TYPE))
            with self.assertRaisesRegex(RuntimeError, "Expected length of scalars to match"):
                functional(xs, xs, xs, numbers[:1])

    def test_lists_on_one_device_are_one_kernel(self):
        xs = [self.on_device, self.on_device.clone()]
        torch._foreach_mul(xs, 2)
        torch.openreg.reset_fallback_stats()
        torch._foreach_mul(xs, 2)
        self.assertEqual(torch.openreg.fallback_stats(), {"aten::_foreach_mul.Scalar": 1})


class TestCallsOnTheStream(FallbackTestCase):
    """The results of a call are described before its kernel runs, in the first call, too."""

    def setUp(self):
        super().setUp()
        torch.manual_seed(0)
        self.x = torch.randn(6, 7)
        self.on_device = self.x.to(DEVICE_TYPE)

    def synchronous_calls(self):
        return torch.openreg.fallback_stats(synchronous_only=True)

    def assert_no_call_waits(self, call, *inputs):
        on_device = [tensor.to(DEVICE_TYPE) for tensor in inputs]
        torch.openreg.synchronize()
        with StreamGate() as gate:  # in which a call that waits fails
            results = [call(*on_device) for _ in range(2)]
            gate.open()
        for actual in results:
            self.assert_bit_equal(actual, call(*inputs))
            if DEVICE_TYPE != "cuda":  # which has other operators of attention
                self.assertEqual(actual.stride(), call(*inputs).stride())

    def assert_repeated_calls_equal_the_cpus(self, call):
        expected = call("cpu")
        for _ in range(3):
            for actual, one in zip(call(DEVICE_TYPE), expected, strict=True):
                self.assertEqual(actual.stride(), one.stride())
                self.assert_bit_equal(actual, one)

    @parametrize(
        "call",
        [
            subtest(lambda x: torch.cdist(x, x[:5], 1.0), name="cdist"),
            subtest(lambda x: torch.where(x > 0, x, 0.5), name="where"),
            subtest(lambda x: x.masked_fill(x > 0, 2), name="masked_fill"),
            subtest(lambda x: x.abs(), name="out_that_is_resized"),
            subtest(lambda x: torch.arange(1, 4.5, 0.5, device=x.device), name="arange"),
            subtest(lambda x: torch._foreach_mul([x, x[0]], [2.0, 3.0])[1], name="lists"),
            subtest(
                lambda x: x.clone().index_put_((x[:, 0].long().abs(),), x[0]), name="index_put"
            ),
            subtest(lambda x: torch.nn.functional.conv1d(x[None], x[None, :, :3]), name="conv1d"),
            subtest(
                lambda x: torch.nn.functional.scaled_dot_product_attention(
                    *[x[None, None, :, :4]] * 3
                ),
                name="attention",
            ),
            subtest(lambda x: torch.nn.functional.layer_norm(x, (7,)), name="layer_norm"),
            subtest(
                lambda x: torch.nn.functional.embedding(torch.zeros_like(x).long(), x),
                name="embedding",
            ),
        ],
    )
    @parametrize("is_large", [False, True])
    def test_neither_the_first_call_nor_the_second_waits(self, call, is_large):
        # The results of calls with large tensors are described by Meta kernels.
        x = torch.randn(700, 7) if is_large else torch.randn(5, 7)
        self.assert_no_call_waits(call, x)

    @parametrize(
        "call",
        [
            subtest(lambda x: torch.nn.functional.conv2d(x, x[:2]), name="convolution"),
            subtest(lambda x: torch.nn.functional.layer_norm(x, (9,)), name="layer_norm"),
            subtest(
                lambda x: torch.nn.functional.scaled_dot_product_attention(*[x[..., :8]] * 3),
                name="attention",
            ),
            subtest(lambda x: torch.fft.fft(x), name="fft"),
            subtest(lambda x: torch.linalg.svd(x).Vh, name="several_results"),
        ],
    )
    def test_results_are_computed_in_place(self, call):
        x = torch.randn(3, 4, 9, 9)
        on_device = x.to(DEVICE_TYPE)
        for _ in range(2):
            call(on_device)
        torch.openreg.synchronize()
        before = torch_openreg._C._copied_result_count()
        result = call(on_device)
        torch.openreg.synchronize()
        self.assertEqual(torch_openreg._C._copied_result_count(), before)
        self.assert_bit_equal(result, call(x))

    def test_result_where_another_belongs_is_copied(self):
        # Their memory has one size, and the kernels' own order of allocation is their business.
        for call in (torch.var_mean, torch.linalg.qr, torch.linalg.svd, torch.linalg.lu):
            x = torch.randn(8, 8)
            x = x + x.T
            on_device = x.to(DEVICE_TYPE)
            for _ in range(3):
                for actual, expected in zip(call(on_device), call(x), strict=True):
                    self.assert_bit_equal(actual, expected)

    def test_bytes_of_results_that_the_stream_copies_count(self):
        x = torch.randn(8, 8, device=DEVICE_TYPE)
        before = torch_openreg._C._copied_result_count()
        for _ in range(2):
            torch.linalg.matrix_exp(x)
        torch.openreg.synchronize()
        copies = torch_openreg._C._copied_result_count() - before
        self.assertGreater(copies, 0)
        self.assertEqual(
            torch.openreg.fallback_copied_bytes(), {"aten::linalg_matrix_exp": copies * x.nbytes}
        )

    def test_other_sizes_do_not_wait(self):
        for size in (2, 3, 2, 3):
            torch.fft.fft(self.on_device[:size])
        self.assertEqual(self.synchronous_calls(), {})

    def test_numbers_of_one_type_share_a_plan(self):
        before = torch_openreg._C._fallback_memory()["made"]
        x = self.x[:, :5].contiguous()
        on_device = x.to(DEVICE_TYPE)
        for value in (0.5, 0.25, float("nan")):
            actual = torch.where(on_device > 0, on_device, value)
            self.assert_bit_equal(actual, torch.where(x > 0, x, value))
        self.assertEqual(torch_openreg._C._fallback_memory()["made"] - before, 1)

    def test_numbers_that_count_are_told_apart(self):
        for end in (3.5, 4.5, 3.5):
            actual = torch.arange(0.5, end, device=DEVICE_TYPE)
            self.assert_bit_equal(actual, torch.arange(0.5, end))

    def test_default_dtype_is_told_apart(self):
        for dtype in (torch.float32, torch.float64):
            default = torch.get_default_dtype()
            torch.set_default_dtype(dtype)
            try:
                actual = torch.linspace(0, 1, 5, device=DEVICE_TYPE)
            finally:
                torch.set_default_dtype(default)
            self.assertEqual(actual.dtype, dtype)

    def test_sizes_that_depend_on_data_are_never_planned(self):
        for bound in (-9, 0, 9):
            actual = (self.on_device > bound).nonzero()
            self.assert_bit_equal(actual, (self.x > bound).nonzero())
        self.assertEqual(self.synchronous_calls()["aten::nonzero"], 3)

    def test_operators_of_other_libraries_are_never_planned(self):
        for _ in range(3):
            OPS.twice(self.on_device)
        self.assertEqual(self.synchronous_calls(), {"openreg_test::twice": 3})

    def test_strides_of_planned_results_are_the_cpu_s(self):
        x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
        weight = torch.randn(4, 3, 3, 3)
        expected = torch.nn.functional.conv2d(x, weight)
        for _ in range(2):
            actual = torch.nn.functional.conv2d(x.to(DEVICE_TYPE), weight.to(DEVICE_TYPE))
            self.assertEqual(actual.stride(), expected.stride())
            self.assert_bit_equal(actual, expected)

    def test_lazily_conjugated_results_are_right(self):
        a = torch.randn(3, 3, dtype=torch.complex64)
        for _ in range(2):
            actual = torch.linalg.pinv(a.to(DEVICE_TYPE))
            self.assert_bit_equal(actual, torch.linalg.pinv(a))

    def test_error_in_the_data_comes_out_at_the_next_synchronization(self):
        weight = torch.randn(5, 3, device=DEVICE_TYPE)
        good, bad = torch.tensor([1, 2]).to(DEVICE_TYPE), torch.tensor([1, 7]).to(DEVICE_TYPE)
        torch.nn.functional.embedding(good, weight)
        torch.nn.functional.embedding(bad, weight)
        with self.assertRaisesRegex(INDEX_ERROR, "index out of range"):
            torch.openreg.synchronize()

    def test_error_in_the_arguments_comes_out_at_each_call(self):
        for _ in range(2):
            with self.assertRaisesRegex(RuntimeError, "Given groups=1, weight of size"):
                torch.nn.functional.conv2d(
                    torch.zeros(1, 3, 4, 4, device=DEVICE_TYPE),
                    torch.zeros(1, 2, 3, 3, device=DEVICE_TYPE),
                )

    def test_in_place_operator_returns_its_argument(self):
        index = torch.tensor([0, 1]).to(DEVICE_TYPE)
        for _ in range(2):
            y = self.on_device.clone()
            self.assertIs(y.index_fill_(0, index, 3.0), y)
            self.assert_bit_equal(y, self.x.index_fill(0, index.cpu(), 3.0))

    def test_generator_draws_the_cpu_s_numbers(self):
        weights = torch.rand(10)
        torch.manual_seed(7)
        expected = [torch.multinomial(weights, 5) for _ in range(3)]
        torch.manual_seed(7)
        on_device = weights.to(DEVICE_TYPE)
        for one in expected:
            self.assert_bit_equal(torch.multinomial(on_device, 5), one)

    @parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
    @parametrize("has_weight,has_bias", [(True, True), (True, False), (False, False)])
    def test_layer_norm_and_its_gradients(self, dtype, has_weight, has_bias):
        # Contiguous, strided, of no rows, and with weights of another type.
        inputs = [torch.randn(4, 5, 6), torch.randn(6, 5, 4).mT.transpose(0, 1), torch.zeros(0, 6)]
        has_mixed = dtype.itemsize == 2 and DEVICE_TYPE != "cuda"  # which refuses them
        others = (dtype, torch.float32) if has_mixed else (dtype,)
        for x, other in itertools.product(inputs, others):
            weight = torch.randn(x.shape[-1], dtype=other) if has_weight else None
            bias = torch.randn(x.shape[-1], dtype=other) if has_bias else None
            parameters = [x.to(dtype), weight, bias]
            grad = torch.randn(x.shape).to(dtype).flip(0)

            def call(device, parameters=parameters, grad=grad):
                x, weight, bias = (
                    None if one is None else one.detach().to(device).requires_grad_()
                    for one in parameters
                )
                output = torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias)
                wanted = [one for one in (x, weight, bias) if one is not None]
                return output.detach(), *torch.autograd.grad(output, wanted, grad.to(device))

            self.assert_repeated_calls_equal_the_cpus(call)

    @parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
    @parametrize(
        "is_causal,has_mask,scale", [(False, False, None), (True, False, 0.3), (False, True, None)]
    )
    def test_attention_and_its_gradients(self, dtype, is_causal, has_mask, scale):
        shapes = [(2, 3, 9, 8), (2, 3, 7, 8), (2, 3, 7, 8)]
        for is_transposed in (False, True):
            tensors = [torch.randn(shape).to(dtype) for shape in shapes]
            if is_transposed:
                tensors = [one.transpose(1, 2).contiguous().transpose(1, 2) for one in tensors]
            mask = torch.randn(9, 7).to(dtype) if has_mask else None
            grad = torch.randn(shapes[0]).to(dtype)

            def call(device, tensors=tensors, mask=mask, grad=grad):
                inputs = [one.detach().to(device).requires_grad_() for one in tensors]
                output = torch.nn.functional.scaled_dot_product_attention(
                    *inputs,
                    None if mask is None else mask.to(device),
                    is_causal=is_causal,
                    scale=scale,
                )
                results = output.detach(), *torch.autograd.grad(output, inputs, grad.to(device))
                # CUDA's operators have results of other strides, see test/cuda/test_attention.py.
                is_cuda = DEVICE_TYPE == "cuda"
                return tuple(one.contiguous() for one in results) if is_cuda else results

            # CUDA composes float64.
            is_composed = DEVICE_TYPE == "cuda" and dtype == torch.float64
            with sdpa_kernel(SDPBackend.MATH) if is_composed else contextlib.nullcontext():
                self.assert_repeated_calls_equal_the_cpus(call)

    # Calls that use each other's memory: few and many tensors, lists with gaps, several results.
    MIXED_CALLS = (
        lambda x: x.index_select(1, torch.arange(0, 6, 2, device=x.device)),
        lambda x: torch.fft.fft(x),
        lambda x: torch.stack(torch._foreach_add([x] * 5 + [x[i % 6] for i in range(200)], 1)[:5]),
        lambda x: torch.ops.aten.index_put(x, [None, x[0].abs().long() % 7], x[:, :1]),
        lambda x: torch.nn.functional.layer_norm(x, (7,)),
        lambda x: torch.ops.aten.constant_pad_nd(x, [1, 2, 0, 1], 0.5),
        lambda x: torch.linspace(0, x.size(0), 5, device=x.device),
        lambda x: torch.ops.aten.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5)[0],
    )

    def test_calls_of_all_kinds_follow_each_other(self):
        for call in self.MIXED_CALLS:
            call(self.on_device)
        order = torch.randint(len(self.MIXED_CALLS), (200,)).tolist()
        torch.openreg.synchronize()
        with StreamGate():
            queued = [self.MIXED_CALLS[i](self.on_device) for i in order[:50]]
        running = [self.MIXED_CALLS[i](self.on_device) for i in order[50:]]
        for i, actual in zip(order, queued + running, strict=True):
            self.assert_bit_equal(actual, self.MIXED_CALLS[i](self.x))

    def test_calls_of_threads_that_end_follow_each_other(self):
        def work():
            results = [call(self.on_device) for call in self.MIXED_CALLS * 5]
            return [result.cpu() for result in results]

        expected = [call(self.x) for call in self.MIXED_CALLS] * 5
        for _ in range(3):
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                for future in [pool.submit(work) for _ in range(8)]:
                    for actual, one in zip(future.result(), expected, strict=True):
                        self.assert_bit_equal(actual, one)

    def test_finished_and_refused_calls_hold_no_memory_of_the_device(self):
        torch.openreg.synchronize()
        before = torch.openreg.memory_allocated()
        for _ in range(2):
            x = self.on_device.clone()
            results = [call(x) for call in self.MIXED_CALLS * 3]
            with self.assertRaises(RuntimeError):
                torch.stack([x, x[0]])
            del results
            torch.ops.aten.constant_pad_nd(x, [0, 1 << 20], 0.5)
            torch.openreg.empty_cache()
            torch.openreg.set_per_process_memory_fraction(0.0)
            try:
                with self.assertRaises(torch.OutOfMemoryError):
                    torch.ops.aten.constant_pad_nd(x, [0, 1 << 20], 0.5)
            finally:
                torch.openreg.set_per_process_memory_fraction(1.0)
            del x
            torch.openreg.synchronize()
            self.assertEqual(torch.openreg.memory_allocated(), before)

    @requires_two_devices
    def test_repeated_call_runs_on_the_device_of_its_tensors(self):
        for device in (f"{DEVICE_TYPE}:0", f"{DEVICE_TYPE}:1", f"{DEVICE_TYPE}:1"):
            actual = torch.fft.fft(self.x.to(device))
            self.assertEqual(actual.device, torch.device(device))
            self.assert_bit_equal(actual, torch.fft.fft(self.x))


class TestPredictions(FallbackTestCase):
    """What the first call of a kind does with its arguments before its kernel runs."""

    # Elements of a tensor that is small, and of one whose results the Meta kernel describes.
    SIZES = (12, 12_000)

    def test_quantized_tensors_are_not_predicted_as_dense_ones(self):
        for dtype in (torch.qint8, torch.quint8, torch.qint32):
            with self.subTest(dtype=dtype):
                self.assertTrue(torch.empty(7, dtype=dtype, device=DEVICE_TYPE).is_quantized)

    @parametrize("size", SIZES)
    def test_error_of_data_comes_out_when_a_call_waits(self, size):
        x = torch.ones(size, device=DEVICE_TYPE)
        bad = torch.tensor([1, size]).to(DEVICE_TYPE)
        torch.index_select(x, 0, bad)
        with self.assertRaisesRegex(INDEX_ERROR, "index out of range"):
            torch.openreg.synchronize()

    @parametrize("size", SIZES)
    def test_error_of_dtypes_comes_from_the_call(self, size):
        x = torch.ones(size // 4, 4, dtype=torch.float16, device=DEVICE_TYPE)
        with StreamGate() as gate:
            gate.open()  # the call waits, as its results cannot be predicted
            with self.assertRaisesRegex(RuntimeError, "not implemented for 'Half'"):
                torch.cdist(x, x[:3], 1.0)

    @parametrize("size", SIZES)
    def test_modes_of_the_program_see_the_call_only(self, size):
        seen = []

        class Functions(TorchFunctionMode):
            def __torch_function__(self, function, types, args=(), kwargs=None):
                seen.append(function.__name__)
                return function(*args, **(kwargs or {}))

        class Operators(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                seen.append(str(function))
                return function(*args, **(kwargs or {}))

        x = torch.randn(size // 4, 4)
        on_device = x.to(DEVICE_TYPE)
        calls = []
        with Functions(), Operators(), torch.device(DEVICE_TYPE):
            for _ in range(2):
                seen.clear()
                actual = torch.roll(on_device, 1, 0)
                calls.append(seen.copy())
        self.assertIn("aten.roll.default", calls[0])
        self.assertEqual(*calls)  # the second is not predicted
        self.assert_bit_equal(actual, torch.roll(x, 1, 0))
        self.assertEqual(torch.openreg.fallback_stats(synchronous_only=True), {})

    @parametrize("size", SIZES)
    def test_profiler_sees_the_call_only(self, size):
        on_device = torch.randn(size // 4, 4).to(DEVICE_TYPE)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            torch.cdist(on_device, on_device[:3], 1.0)
        names = {event.name for event in profile.events() if event.name.startswith("aten::")}
        self.assertLessEqual(
            names, {"aten::cdist", "aten::_cdist_forward", "aten::slice", "aten::as_strided"}
        )

    def test_numbers_on_the_host_are_those_of_the_call(self):
        # A kernel on dummies would otherwise reject a zero.
        x = torch.rand(5, 5)
        for call in (
            lambda x: torch.histc(x, 3, 0.25, 0.5),
            lambda x: torch.index_fill(x, 0, torch.tensor([0], device=x.device), torch.tensor(2.0)),
        ):
            self.assert_bit_equal(call(x.to(DEVICE_TYPE)), call(x))

    @parametrize("is_conj", [False, True])
    def test_conjugated_arguments(self, is_conj):
        x = torch.randn(4, 4, dtype=torch.complex64)
        on_device = x.to(DEVICE_TYPE)
        x, on_device = (one.conj() if is_conj else one for one in (x, on_device))
        for _ in range(2):
            self.assert_bit_equal(torch.trace(on_device), torch.trace(x))

    def test_warnings_of_a_first_call_are_given_once(self):
        x = torch.ones(4, 4, device=DEVICE_TYPE)
        for _ in range(3):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                torch.qr(x)
            texts = [
                str(one.message) for one in caught if "torch.qr is deprecated" in str(one.message)
            ]
            self.assertLessEqual(len(texts), 1)

    def test_plan_that_cannot_be_predicted_is_learned(self):
        # Neither zeros nor ones have this sum.
        repeats = torch.tensor([1, 2, 3]).to(DEVICE_TYPE)
        for _ in range(2):
            actual = torch.repeat_interleave(repeats, output_size=6)
            self.assert_bit_equal(actual, torch.tensor([0, 1, 1, 2, 2, 2]))
        self.assertEqual(
            torch.openreg.fallback_stats(synchronous_only=True),
            {"aten::repeat_interleave.Tensor": 1},
        )

    def test_operator_that_needs_data_runs_on_its_own(self):
        networks = [torch.nn.LSTM(4, 3) for _ in range(2)]
        networks[1].load_state_dict(networks[0].state_dict())
        networks[1].to(DEVICE_TYPE)
        x = torch.randn(2, 2, 4)
        for network, one in zip(networks, (x, x.to(DEVICE_TYPE)), strict=True):
            network(one)[0].sum().backward()
        for one, other in zip(networks[0].parameters(), networks[1].parameters(), strict=True):
            self.assert_bit_equal(other.grad, one.grad)


def _metadata(results):
    results = results if isinstance(results, (tuple, list)) else [results]
    return [(one.shape, one.stride(), one.dtype) for one in results if one is not None]


class TestOtherMetadata(FallbackTestCase):
    """Of each entry of the fact, a call of which the Meta kernel says something else."""

    @staticmethod
    def calls(device):
        x = torch.rand(2, 3, 4, 5, device=device)
        low, three = x.bfloat16(), torch.rand(3, device=device)
        frequencies = torch.rand(7, 6, 5, dtype=torch.complex64, device=device).transpose(0, 2)
        index = torch.tensor([0, 1], device=device)
        unpooled = [one.to(memory_format=torch.channels_last) for one in (x, x.long())]
        images, flat = unpooled[0], torch.rand(2, 1, 1, 2, device=device)
        flat = flat.expand(2, 3, 1, 2).contiguous(memory_format=torch.channels_last)
        deep = torch.rand(1, 3, 4, 4, 4, device=device).to(memory_format=torch.channels_last_3d)
        filters = torch.rand(3, 3, 3, 3, 3, device=device).to(memory_format=torch.channels_last_3d)
        many = torch.rand(2, 12, 4, 4, device=device).to(memory_format=torch.channels_last)
        square, target = torch.rand(4, 4, device=device), torch.zeros(4, device=device).long()
        state, weights = torch.rand(1, 3, device=device), torch.rand(12, 5, device=device)
        lstm = [weights, weights[:, :3].contiguous(), weights[:, 0], weights[:, 0], state, state]
        window = [[1, 1], [0, 0], [1, 1], False, [0, 0], 1]
        deep_window = [[1] * 3, [0] * 3, [1] * 3, False, [0] * 3, 1]
        statistics = [three] * 5
        return {
            "_batch_norm_with_update": lambda op: op(low, *[low[0, :, 0, 0]] * 4, 0.1, 1e-5),
            "_convolution": lambda op: op(images, images, None, *window, *[False] * 3, True),
            "_embedding_bag": lambda op: op(x.view(-1, 5), index, index),
            "_embedding_bag_forward_only": lambda op: op(x.view(-1, 5), index, index),
            "_fft_c2r": lambda op: op(frequencies, [2], 0, 12),
            "_fft_r2c": lambda op: op(x[0], [0, 1, 2], 0, True),
            "_native_batch_norm_legit": lambda op: op(x, *[three] * 4, False, 0.1, 1e-5),
            "abs.out": lambda op: op(flat, out=x.new_empty(0)),
            "batch_norm_backward": lambda op: op(
                x, images, *statistics, True, 1e-5, [True] * 3, x.new_empty(0)
            ),
            "channel_shuffle": lambda op: op(many, 3),
            "conj_physical.out": lambda op: op(frequencies[0], out=frequencies.new_empty(0)),
            "convolution_backward": lambda op: op(
                deep[..., :2, :2, :2], deep, filters, [3], *deep_window, [True] * 3
            ),
            "glu_backward": lambda op: op(many[:, :6], many, 1),
            "linalg_householder_product.out": lambda op: op(
                square, square[0], out=square.new_empty(0)
            ),
            "logical_and.out": lambda op: op(flat, flat, out=x.new_empty(0)),
            "logical_not.out": lambda op: op(flat, out=x.new_empty(0)),
            "logical_or.out": lambda op: op(flat, flat, out=x.new_empty(0)),
            "logical_xor.out": lambda op: op(flat, flat, out=x.new_empty(0)),
            "max_unpool2d": lambda op: op(*unpooled, [8, 8]),
            "mkldnn_rnn_layer": lambda op: op(
                x[:, 0, :1], *lstm, False, [], 2, 3, 1, True, False, False, True
            ),
            "mse_loss_backward": lambda op: op(images, images, images, 0),
            "multilabel_margin_loss_forward": lambda op: op(square[0], target, 0),
            "native_batch_norm": lambda op: op(x, *[three] * 4, False, 0.1, 1e-5),
            "native_batch_norm_backward": lambda op: op(
                x, images, *statistics, True, 1e-5, [True] * 3
            ),
            "native_layer_norm": lambda op: op(low, [5], *[low[0, 0, 0]] * 2, 1e-5),
            "nonzero_static": lambda op: op(square, size=3),
            "ormqr.out": lambda op: op(square, square[0], square, out=square.new_empty(0)),
            "pixel_shuffle": lambda op: op(many, 2),
            "reflection_pad2d": lambda op: op(images, [1, 1, 1, 1]),
            "reflection_pad2d_backward": lambda op: op(
                many, many[..., :2, :2].to(memory_format=torch.channels_last), [1, 1, 1, 1]
            ),
            "replication_pad2d_backward": lambda op: op(
                many, many[..., :2, :2].to(memory_format=torch.channels_last), [1, 1, 1, 1]
            ),
            "replication_pad3d_backward": lambda op: op(
                deep, deep[..., :2, :2, :2].to(memory_format=torch.channels_last_3d), [1] * 6
            ),
            "roll": lambda op: op(images, [1], [1]),
        }

    def test_each_entry_differs(self):
        entries = [entry.name for entry in load_facts()["other_metadata"].entries]
        self.assertLess(len(entries), 100)
        on_host, on_meta = self.calls("cpu"), self.calls("meta")
        self.assertEqual(list(on_host), entries)
        for name in entries:
            packet, _, overload = name.partition(".")
            op = getattr(getattr(torch.ops.aten, packet), overload or "default")
            with self.subTest(name):
                self.assertNotEqual(_metadata(on_host[name](op)), _metadata(on_meta[name](op)))


class TestChannelsLast(FallbackTestCase):
    """Large channels-last operands: results have the strides that the CPU's have."""

    @parametrize("of_images, of_filters", [(True, False), (False, True), (True, True)])
    @parametrize("groups", [1, 16])
    @parametrize("transposed", [False, True])
    def test_convolutions_do_not_wait(self, of_images, of_filters, groups, transposed):
        name = f"conv{'_transpose' if transposed else ''}2d"
        images, filters = torch.randn(2, 16, 24, 25), torch.randn(16, 16 // groups, 3, 3)
        if of_images:
            images = images.to(memory_format=torch.channels_last)
        if of_filters:
            filters = filters.to(memory_format=torch.channels_last)
        convolve = getattr(torch.nn.functional, name)
        on_device = [one.to(DEVICE_TYPE) for one in (images, filters)]
        torch.openreg.reset_fallback_stats()
        result = convolve(*on_device, groups=groups)
        waits = torch.openreg.fallback_stats(synchronous_only=True)
        expected = convolve(images, filters, groups=groups)
        self.assertEqual(result.stride(), expected.stride())
        self.assertEqual(result.cpu(), expected, rtol=0, atol=0)
        self.assertEqual(waits, {})

    def test_other_operators(self):
        functional = torch.nn.functional
        images = torch.randn(2, 16, 32, 32).to(memory_format=torch.channels_last)
        for function in (
            lambda x: functional.pad(x, (1, 1, 1, 1), mode="reflect"),
            lambda x: functional.pad(x, (1, 1, 1, 1), mode="replicate"),
            lambda x: functional.pixel_shuffle(x, 2),
            lambda x: functional.pixel_unshuffle(x, 2),
            lambda x: functional.channel_shuffle(x, 4),
            lambda x: functional.glu(x, 1),
            lambda x: functional.mse_loss(x, x * 2, reduction="none"),
            lambda x: functional.batch_norm(x, None, None, training=True),
            lambda x: x.roll(1, 1),
        ):
            for gradient in (torch.preserve_format, torch.contiguous_format):
                strides = []
                for device in ("cpu", DEVICE_TYPE):
                    x = images.to(device).detach().requires_grad_()
                    y = function(x)
                    y.backward(torch.ones_like(y, memory_format=gradient))
                    strides.append((y.stride(), x.grad.stride()))
                self.assertEqual(strides[1], strides[0])


# Replaces the CPU's kernel of an operator while a block runs.
_REPLACE = """
import contextlib, warnings
import torch
from torch.library import _scoped_library

@contextlib.contextmanager
def replaced(name, kernel):
    with _scoped_library("aten", "IMPL") as library, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is told that there was a kernel before
        library.impl(name, kernel, "CPU", allow_override=True)
        yield

def synchronous_calls(name):
    return torch.openreg.fallback_stats(synchronous_only=True).get(name, 0)
"""


class TestWrongPlans(FallbackTestCase):
    """Plans are checked: kernels whose results no longer match are detected."""

    @parametrize("size", [6, 6000])
    def test_result_of_other_sizes_is_an_error_and_the_next_plan_is_learned(self, size):
        output = run_child(
            _REPLACE
            + f"""
x = torch.arange({size}.0).to("openreg")

def call():
    return torch.roll(x, 1).tolist()

right = [call(), call()]
assert synchronous_calls("aten::roll") == 0
with replaced("roll", lambda x, shifts, dims=(): torch.ones(3)):
    try:
        call()
    except RuntimeError as error:
        print("expected a result of sizes [{size}]" in str(error), "got" in str(error))
print([call(), call()] == right, synchronous_calls("aten::roll"))
"""
        )
        self.assertEqual(output.splitlines(), ["True True", "True 1"])

    @parametrize("is_verifying", [False, True])
    def test_result_of_other_bits_is_found_when_verifying(self, is_verifying):
        output = run_child(
            _REPLACE
            + """
x = torch.arange(6.0).to("openreg")
index = torch.tensor([1, 2]).to("openreg")

def call():
    return torch.index_select(x, 0, index).tolist()

call(), call()
runs = []

def of_other_bits_in_each_run(x, dim, index):
    runs.append(None)
    return torch.full((2,), float(len(runs)))

with replaced("index_select", of_other_bits_in_each_run):
    try:
        print(call())
    except RuntimeError as error:
        print("expected result 0 of aten::index_select to be bit-identical" in str(error))
print(call(), call(), synchronous_calls("aten::index_select"))
""",
            {"OPENREG_FALLBACK_VERIFY": str(int(is_verifying))},
        )
        expected = ["True", "[1.0, 2.0] [1.0, 2.0] 1"]
        if not is_verifying:
            expected = ["[1.0, 1.0]", "[1.0, 2.0] [1.0, 2.0] 0"]
        self.assertEqual(output.splitlines(), expected)

    def test_bytes_that_the_operator_leaves_unwritten_are_not_compared(self):
        output = run_child(
            """
            import torch

            network = torch.nn.LSTM(8, 16, 2, batch_first=True).to("openreg")
            x = torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(0)).to("openreg")
            for _ in range(4):
                result, _ = network(x)
                result.sum().backward()
            torch.accelerator.synchronize()
            print(torch.openreg.fallback_stats()["aten::mkldnn_rnn_layer"] > 0)
            """,
            {"OPENREG_FALLBACK_VERIFY": "1"},
        )
        self.assertEqual(output.splitlines()[-1], "True")  # cuda: after a warning about cuDNN

    def test_results_are_those_of_the_operator_and_not_of_its_out_variant(self):
        output = run_child(
            _REPLACE
            + """
x = torch.arange(6.0).to("openreg")
index = torch.tensor([1, 2]).to("openreg")

def of_other_bits(x, dim, index, *, out):
    return out.fill_(7)

with replaced("index_select.out", of_other_bits):
    print([torch.index_select(x, 0, index).tolist() for _ in range(3)])
"""
        )
        self.assertEqual(output.strip(), str([[1.0, 2.0]] * 3))


class TestMemoryOfCalls(FallbackTestCase):
    """The fallback's memory is bounded; each case is measured in a separate process."""

    def test_plans_are_bounded_and_those_in_use_stay(self):
        output = run_child(
            """
            import torch
            from torch_openreg import _C

            MAX_WORDS = 2 << 21
            x = torch.ones(1, device="openreg")
            some = [torch.ones(1, device="openreg") for _ in range(1500)]
            most = dropped = fewer = 0
            before = _C._fallback_memory()["made"]
            for count in range(700, 1500):
                torch._foreach_sqrt(some[:count])
                torch.fft.fft(x)  # in use all the time
                memory = _C._fallback_memory()
                dropped += memory["plans"] < fewer
                fewer, most = memory["plans"], max(most, memory["words"])
            print(0 < most < MAX_WORDS * 1.1, dropped > 0)
            print(_C._fallback_memory()["made"] - before)
            """
        )
        self.assertEqual(output.splitlines(), ["True True", "801"])  # one of fft

    def test_threads_that_end_leave_nothing(self):
        output = run_child(
            """
            import threading
            import torch
            from torch_openreg import _C

            THREADS, CALLS = 8, 5
            x = torch.ones(3, device="openreg")

            def work():
                for _ in range(CALLS):
                    torch.ops.aten.constant_pad_nd(x, [1, 1], 0.5)
                torch.accelerator.synchronize()

            counts = []
            for _ in range(60):
                threads = [threading.Thread(target=work) for _ in range(THREADS)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                counts.append(_C._fallback_memory()["calls"])
            print(0 < max(counts) <= 2 * THREADS * CALLS, counts)
            """
        )
        self.assertTrue(output.startswith("True"), output)

    def test_kept_calls_are_as_many_as_were_unfinished(self):
        output = run_child(
            """
            import torch
            from torch_openreg import _C
            from torch_openreg.testing import StreamGate

            x = torch.ones(3, device="openreg")
            torch.ops.aten.constant_pad_nd(x, [1, 1], 0.5)
            torch.accelerator.synchronize()
            for _ in range(3):
                for _ in range(20):
                    torch.ops.aten.constant_pad_nd(x, [1, 1], 0.5)
                    torch.accelerator.synchronize()
            print(_C._fallback_memory()["calls"])
            for _ in range(3):
                with StreamGate():
                    for _ in range(20):
                        torch.ops.aten.constant_pad_nd(x, [1, 1], 0.5)
                torch.accelerator.synchronize()
            print(_C._fallback_memory()["calls"])
            """
        )
        self.assertEqual(output.split(), ["1", "20"])


class TestPythonDispatcher(FallbackTestCase):
    def test_call_of_a_compiler_that_dispatches_in_python_finds_the_kernel_of_the_cpu(self):
        from torch._dispatch.python import enable_python_dispatcher

        x = torch.randn(3, 3)
        with enable_python_dispatcher():
            actual = torch.geqrf(x.to(DEVICE_TYPE))
        for one, other in zip(actual, torch.geqrf(x), strict=True):
            self.assert_bit_equal(one, other)


instantiate_parametrized_tests(TestCallsOnTheStream)
instantiate_parametrized_tests(TestPredictions)
instantiate_parametrized_tests(TestChannelsLast)
instantiate_parametrized_tests(TestWrongPlans)
instantiate_parametrized_tests(TestModes)
instantiate_parametrized_tests(TestErrors)
instantiate_parametrized_tests(TestArguments)
instantiate_parametrized_tests(TestGenerators)
instantiate_parametrized_tests(TestLists)
instantiate_parametrized_tests(TestOperatorsOfTorch)

if __name__ == "__main__":
    run_tests()
