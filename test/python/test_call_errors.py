"""Errors of arguments are raised by each call, and later work still runs."""

import itertools
import math

import torch
from common import (
    DEVICE_TYPE,
    OpenRegTestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)

from torch_openreg._torch_release import HAS_CHOLESKY

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
OTHERS = (torch.complex64, torch.complex32, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16)
NUMBERS = (0, 1, -1, 127, -127, 128, 255, 256, -300, 70000, 1e5, 3.5e38, -1e300, 2**63 - 1, 1 + 2j)
NOT_FINITE = (float("nan"), float("inf"), -float("inf"))


def overlapping(device, *shape):
    """A tensor whose elements are one, in a storage that would hold all of them."""
    return torch.zeros(64, device=device).as_strided(shape, (0,) * len(shape))


def ones(device, *shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype).to(device)


def byte(device):
    return ones(device, 3, dtype=torch.uint8)


# Calls that the CPU rejects, as functions of a device.
REFUSED = {
    "bernoulli_": lambda d: overlapping(d, 6).bernoulli_(0.5),
    "bernoulli_of_tensor": lambda d: overlapping(d, 6).bernoulli_(ones(d, 6)),
    "bernoulli_of_other_shape": lambda d: torch.zeros(6, device=d).bernoulli_(ones(d, 5)),
    "uniform_": lambda d: overlapping(d, 6).uniform_(),
    "normal_": lambda d: overlapping(d, 6).normal_(),
    "random_": lambda d: overlapping(d, 6).random_(),
    "random_to": lambda d: overlapping(d, 6).random_(5),
    "random_from": lambda d: overlapping(d, 6).random_(3, 5),
    "exponential_": lambda d: overlapping(d, 6).exponential_(),
    "cauchy_": lambda d: overlapping(d, 6).cauchy_(),
    "log_normal_": lambda d: overlapping(d, 6).log_normal_(),
    "geometric_": lambda d: overlapping(d, 6).geometric_(0.5),
    "randn_of_integers": lambda d: torch.randn(2, dtype=torch.long, device=d),
    "normal_of_integers": lambda d: torch.zeros(2, dtype=torch.int, device=d).normal_(),
    "log_normal_of_integers": lambda d: torch.zeros(2, dtype=torch.int, device=d).log_normal_(),
    "exponential_of_integers": lambda d: torch.zeros(2, dtype=torch.int, device=d).exponential_(),
    "geometric_of_complex": lambda d: torch.zeros(2, dtype=torch.cfloat, device=d).geometric_(0.5),
    "bernoulli_of_complex": lambda d: torch.zeros(2, dtype=torch.cfloat, device=d).bernoulli_(0.5),
    "random_of_complex": lambda d: torch.zeros(2, dtype=torch.cfloat, device=d).random_(),
    "randperm_of_negative": lambda d: torch.randperm(-1, device=d),
    "randperm_beyond_the_type": lambda d: torch.randperm(300, dtype=torch.uint8, device=d),
    "randperm_of_complex": lambda d: torch.randperm(3, dtype=torch.cfloat, device=d),
    "fill_": lambda d: torch.zeros(3, dtype=torch.uint8, device=d).fill_(300),
    "full": lambda d: torch.full((3,), 1e300, dtype=torch.float32, device=d),
    "where": lambda d: torch.where(ones(d, 1).bool(), ones(d, 1, dtype=torch.uint8), 300),
    "renorm": lambda d: ones(d, 3, 3).renorm(2, 7, 1.0),
    "renorm_": lambda d: overlapping(d, 3, 3).renorm_(2, 0, 1.0),
    "fractional_max_pool2d": lambda d: torch.nn.functional.fractional_max_pool2d(
        ones(d, 2, 3, 4, 4), 2, output_size=2, _random_samples=ones(d, 1, 3, 2)
    ),
    "fractional_max_pool3d": lambda d: torch.nn.functional.fractional_max_pool3d(
        ones(d, 1, 3, 4, 4, 4),
        2,
        output_size=2,
        _random_samples=ones(d, 1, 3, 3, dtype=torch.float64),
    ),
    "addmm_": lambda d: overlapping(d, 3, 3).addmm_(ones(d, 3, 3), ones(d, 3, 3)),
    "addmm_out": lambda d: torch.mm(ones(d, 3, 3), ones(d, 3, 3), out=overlapping(d, 3, 3)),
    "cumsum_": lambda d: overlapping(d, 3, 3).cumsum_(0),
    "cumsum_out": lambda d: torch.cumsum(ones(d, 3, 3), 0, out=overlapping(d, 3, 3)),
    "cumprod_": lambda d: overlapping(d, 3, 3).cumprod_(0),
    "mean_out": lambda d: torch.mean(ones(d, 3, 3), 0, out=overlapping(d, 3)),
    "scatter_": lambda d: overlapping(d, 3).scatter_(0, ones(d, 3, dtype=torch.long), ones(d, 3)),
    "cat_out": lambda d: torch.cat([ones(d, 2), ones(d, 2)], out=overlapping(d, 4)),
    "lu_solve_out": lambda d: torch.linalg.lu_solve(
        torch.eye(2).to(d), ones(d, 2, dtype=torch.int32), ones(d, 2, 2), out=overlapping(d, 2, 2)
    ),
    "arange_without_end": lambda d: torch.arange(0, float("inf"), device=d),
    "arange_backwards": lambda d: torch.arange(3, 0, device=d),
    "arange_with_a_large_step": lambda d: torch.arange(0, 5, 1e300, dtype=torch.int32, device=d),
    "arange_with_a_large_start": lambda d: torch.arange(1e39, 1e39, dtype=torch.half, device=d),
    "histc_without_bins": lambda d: torch.histc(ones(d, 3), bins=0),
    "index_put_of_other_type": lambda d: ones(d, 3).index_put_(
        (ones(d, 2, dtype=torch.long),), ones(d, 2, dtype=torch.double)
    ),
    "index_put_of_other_shape": lambda d: ones(d, 3).index_put_(
        (ones(d, 2, dtype=torch.long),), ones(d, 3)
    ),
    "index_put_with_too_many": lambda d: ones(d, 3).index_put_(
        (ones(d, 2, dtype=torch.long),) * 2, ones(d, 2)
    ),
    "index_put_with_floats": lambda d: ones(d, 3).index_put_((ones(d, 2),), ones(d, 2)),
    "index_put_onto_itself": lambda d: (
        lambda x: x.index_put_((ones(d, 3, dtype=torch.long),), x[:3])
    )(ones(d, 4)),
    "index_put_into_nothing": lambda d: torch.zeros(0, 2, device=d).index_put_(
        (ones(d, 2, dtype=torch.long),), ones(d, 2, 2)
    ),
    "cross_onto_an_input": lambda d: (lambda x: torch.linalg.cross(x, ones(d, 5, 3), out=x))(
        ones(d, 5, 3)
    ),
    "cross_onto_the_other_input": lambda d: (lambda x: torch.linalg.cross(ones(d, 5, 3), x, out=x))(
        ones(d, 5, 3)
    ),
    "full_beyond_the_type": lambda d: torch.full((3,), 300, dtype=torch.uint8, device=d),
    "full_like_beyond_the_type": lambda d: torch.full_like(ones(d, 3, dtype=torch.int8), 1000),
    "new_full_beyond_the_type": lambda d: ones(d, 2, dtype=torch.half).new_full((3,), 1e300),
    "linspace_backwards": lambda d: torch.linspace(0, 1, -1, device=d),
    "dot_of_other_sizes": lambda d: torch.dot(
        torch._efficientzerotensor(3, device=d), torch.ones(4, device=d)
    ),
}

# Calls with a number that the CPU checks, with a valid and an invalid number: the valid call comes
# first, and the invalid one has the same metadata.
NUMBERS_REFUSED = {
    "huber_loss": (
        lambda d, v: torch.nn.functional.huber_loss(ones(d, 1), ones(d, 1), delta=v), 1.0, -1.0
    ),
    "cdist": (lambda d, v: torch.cdist(ones(d, 2, 3), ones(d, 2, 3), p=v), 3.0, -3.0),
    "histc": (lambda d, v: torch.histc(ones(d, 3), bins=3, min=v, max=5), 0, 9),
    "normal_of_a_tensor": (lambda d, v: torch.normal(ones(d, 3), v), 1.0, -1.0),
    "normal_": (lambda d, v: ones(d, 3).normal_(0, v), 1.0, -1.0),
    "exponential_": (lambda d, v: ones(d, 3).exponential_(v), 1.0, -1.0),
    "uniform_": (lambda d, v: ones(d, 3).uniform_(v, 2), 1.0, 3.0),
    "masked_fill": (lambda d, v: byte(d).masked_fill(ones(d, 3).bool(), v), 3, 300),
    "masked_fill_": (lambda d, v: byte(d).masked_fill_(ones(d, 3).bool(), v), 3, 300),
    "index_fill_": (lambda d, v: byte(d).index_fill_(0, ones(d, 1, dtype=torch.long), v), 3, 300),
    "constant_pad_nd": (lambda d, v: torch.constant_pad_nd(byte(d), [1, 1], v), 3, 300),
    # Numbers of one class each: what exceeds the dtype is computed from several of them.
    "logspace_of_one_step": (lambda d, v: torch.logspace(v, -3, 1, 3.0, device=d), 50, 100),
    "logspace_of_bytes": (
        lambda d, v: torch.logspace(v, -3, 1, 2.0, dtype=torch.uint8, device=d), 7, 8
    ),
    "where": (lambda d, v: torch.where(ones(d, 3).bool(), byte(d), v), 3, 300),
    "fill_": (lambda d, v: byte(d).fill_(v), 3, 300),
    "foreach_clamp_min": (lambda d, v: torch._foreach_clamp_min([byte(d)], v), 3, 300),
    "foreach_pow": (lambda d, v: torch._foreach_pow([ones(d, 3, dtype=torch.long)], v), 2, -1),
    "pow": (lambda d, v: ones(d, 3, dtype=torch.long).pow(v), 2, -1),
    "renorm": (lambda d, v: ones(d, 3, 3).renorm(v, 0, 1.0), 2.0, -1.0),
    "dropout": (lambda d, v: torch.nn.functional.dropout(ones(d, 3), v), 0.5, 1.5),
    "celu": (lambda d, v: torch.celu(ones(d, 3), v), 1.0, 0.0),
    "smooth_l1": (
        lambda d, v: torch.nn.functional.smooth_l1_loss(ones(d, 3), ones(d, 3), beta=v), 1.0, -1.0
    ),
}  # fmt: skip

# The same with a number in a tensor of the host.
HOST_NUMBERS_REFUSED = {
    "masked_fill": lambda d, v: byte(d).masked_fill(ones(d, 3).bool(), torch.tensor(v)),
    "masked_fill_": lambda d, v: byte(d).masked_fill_(ones(d, 3).bool(), torch.tensor(v)),
    "masked_fill_out": lambda d, v: torch.ops.aten.masked_fill(
        byte(d), ones(d, 3).bool(), torch.tensor(v), out=byte(d)
    ),
    "index_fill": lambda d, v: byte(d).index_fill(0, ones(d, 1, dtype=torch.long), torch.tensor(v)),
    "index_fill_": lambda d, v: byte(d).index_fill_(
        0, ones(d, 1, dtype=torch.long), torch.tensor(v)
    ),
}

# The same for the contents of a tensor; the checks are in code that all devices share.
CONTENTS_REFUSED = {
    **(
        {"cholesky": (lambda d, v: torch.cholesky(v), torch.eye(3), -torch.eye(3))}
        if HAS_CHOLESKY
        else {}
    ),
    "linalg_cholesky": (lambda d, v: torch.linalg.cholesky(v), torch.eye(3), -torch.eye(3)),
    "cholesky_inverse": (lambda d, v: torch.cholesky_inverse(v), torch.eye(3), torch.zeros(3, 3)),
    "inv": (lambda d, v: torch.linalg.inv(v), torch.eye(3), torch.zeros(3, 3)),
    "solve": (lambda d, v: torch.linalg.solve(v, v), torch.eye(3), torch.zeros(3, 3)),
    "eig": (lambda d, v: torch.linalg.eig(v), torch.eye(3), torch.full((3, 3), math.inf)),
    "multinomial": (lambda d, v: v.multinomial(1), torch.ones(3), torch.full((3,), math.nan)),
    "multinomial_of_nothing": (lambda d, v: v.multinomial(1), torch.ones(3), torch.zeros(3)),
    "histc": (lambda d, v: torch.histc(v, bins=3), torch.ones(3), torch.full((3,), math.nan)),
    "histogram": (
        lambda d, v: torch.histogram(v, bins=3), torch.ones(3), torch.full((3,), math.nan)
    ),
    "segment_reduce": (
        lambda d, v: torch.segment_reduce(ones(d, 3), "sum", lengths=v),
        torch.tensor([1, 2]),
        torch.tensor([-1, 4]),
    ),
    "bincount": (lambda d, v: torch.bincount(v), torch.tensor([1, 2]), torch.tensor([1, -2])),
}  # fmt: skip

# Calls that the CPU accepts although the tensor overlaps itself.
ACCEPTED = {
    "amax_out": lambda d: torch.amax(ones(d, 3, 3), 0, out=overlapping(d, 3)),
    "fill_": lambda d: overlapping(d, 3).fill_(2.0),
    "sum_out": lambda d: torch.sum(ones(d, 3, 3), 0, out=overlapping(d, 3)),
}


class TestCallErrors(OpenRegTestCase):
    @parametrize("call", [subtest(call, name=name) for name, call in REFUSED.items()])
    def test_error_comes_from_the_call_each_time_and_loses_nothing(self, call):
        with self.assertRaises(Exception) as of_cpu:
            call("cpu")
        for _ in range(3):
            with self.assertRaises(type(of_cpu.exception)):
                call(DEVICE_TYPE)
            behind = torch.ones(3, device=DEVICE_TYPE) + 1
            torch.accelerator.synchronize()
            self.assertEqual(behind.tolist(), [2, 2, 2])

    def assert_refuses_after_good_calls(self, call, good, bad):
        with self.assertRaises(Exception) as of_cpu:
            call("cpu", bad)

        def on_device(value):
            return value.to(DEVICE_TYPE) if isinstance(value, torch.Tensor) else value

        good, bad = on_device(good), on_device(bad)
        for _ in range(3):
            call(DEVICE_TYPE, good)
            call(DEVICE_TYPE, good)
            innocent = torch.zeros(3, device=DEVICE_TYPE).add_(1)
            with self.assertRaises(type(of_cpu.exception)):
                call(DEVICE_TYPE, bad)
            innocent.add_(1)
            torch.accelerator.synchronize()
            self.assertEqual(innocent.tolist(), [2, 2, 2])

    @parametrize(
        "call,good,bad", [subtest(case, name=name) for name, case in NUMBERS_REFUSED.items()]
    )
    def test_bad_number_after_good_calls_raises_in_the_call(self, call, good, bad):
        self.assert_refuses_after_good_calls(call, good, bad)

    @parametrize("call", [subtest(call, name=name) for name, call in HOST_NUMBERS_REFUSED.items()])
    @parametrize("bad", [300, -256, 1e300, math.inf, 2**63 - 1])
    def test_bad_number_of_the_host_after_good_calls_raises_in_the_call(self, call, bad):
        self.assert_refuses_after_good_calls(call, type(bad)(3), bad)

    def test_large_unsigned_numbers_of_the_host_have_a_class(self):
        for number in (1, 2**64 - 1, 2**64 - 1):
            value = torch.tensor(number, dtype=torch.uint64)
            mask = torch.tensor([True, False])
            expected = torch.where(mask, torch.zeros(2, dtype=torch.uint64), value)
            actual = torch.where(
                mask.to(DEVICE_TYPE), torch.zeros(2, dtype=torch.uint64, device=DEVICE_TYPE), value
            )
            self.assertEqual(actual.cpu().tolist(), expected.tolist())

    @parametrize("dtype", [*INTEGERS, *FLOATS, *OTHERS])
    def test_numbers_of_the_host_are_of_any_dtype(self, dtype):
        for number in (1, 2, 2):
            value = torch.tensor(number).to(dtype)
            mask = torch.tensor([True, False, True])
            expected = torch.zeros(3, dtype=dtype)
            try:
                expected.masked_fill_(mask, value)
            except NotImplementedError:
                with self.assertRaises(NotImplementedError):
                    torch.zeros(3, dtype=dtype, device=DEVICE_TYPE).masked_fill_(
                        mask.to(DEVICE_TYPE), value
                    )
                continue
            actual = torch.zeros(3, dtype=dtype, device=DEVICE_TYPE)
            actual.masked_fill_(mask.to(DEVICE_TYPE), value)
            self.assertEqual(actual.cpu().view(torch.uint8), expected.view(torch.uint8))

    @parametrize(
        "call,good,bad", [subtest(case, name=name) for name, case in CONTENTS_REFUSED.items()]
    )
    def test_bad_contents_after_good_calls_raise_in_the_call(self, call, good, bad):
        self.assert_refuses_after_good_calls(call, good, bad)

    @parametrize("call", [subtest(call, name=name) for name, call in ACCEPTED.items()])
    def test_what_the_cpu_accepts_is_accepted(self, call):
        self.assert_bit_equal(call(DEVICE_TYPE), call("cpu"))

    @parametrize("dtype", [*INTEGERS, *FLOATS, *OTHERS])
    def test_fill_refuses_the_numbers_that_the_cpu_refuses(self, dtype):
        for number, size in itertools.product((*NUMBERS, *NOT_FINITE), (0, 1, 3)):
            try:
                expected = torch.zeros(size, dtype=dtype).fill_(number)
            except RuntimeError as error:
                self.assertIn("cannot be converted", str(error))
                for _ in range(2):
                    with self.assertRaisesRegex(RuntimeError, "cannot be converted"):
                        torch.zeros(size, dtype=dtype, device=DEVICE_TYPE).fill_(number)
                continue
            actual = torch.zeros(size, dtype=dtype, device=DEVICE_TYPE).fill_(number)
            self.assertEqual(actual.cpu().view(torch.uint8), expected.view(torch.uint8))

    @parametrize("dtype", [torch.uint4, torch.bits8])
    def test_fill_of_a_type_without_a_kernel_is_refused_by_the_call(self, dtype):
        for _ in range(2):
            with self.assertRaises(NotImplementedError):
                torch.empty(3, dtype=dtype, device=DEVICE_TYPE).fill_(1)


instantiate_parametrized_tests(TestCallErrors)

if __name__ == "__main__":
    run_tests()
