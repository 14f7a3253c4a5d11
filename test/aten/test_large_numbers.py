"""Integers from 2^63 on, which fit uint64 alone: as on the CPU, also where that refuses them."""

import torch
from common import (
    DEVICE_TYPE,
    OpenRegTestCase,
    comparable_error,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)

NUMBERS = (2**63 - 1, 2**63, 2**64 - 1)
MASK = torch.tensor([True, False])
INDEX = torch.tensor([1])


def of(dtype, device):
    return torch.tensor([3, 5], dtype=dtype, device=device)


CALLS = {
    "full": lambda d, n: torch.full((2,), n, dtype=torch.uint64, device=d),
    "full_float": lambda d, n: torch.full((2,), n, dtype=torch.float32, device=d),
    "full_int": lambda d, n: torch.full((2,), n, dtype=torch.int64, device=d),
    "scalar_tensor": lambda d, n: torch.scalar_tensor(n, dtype=torch.uint64, device=d),
    "fill": lambda d, n: of(torch.uint64, d).fill_(n),
    "fill_float": lambda d, n: of(torch.float32, d).fill_(n),
    "eq": lambda d, n: of(torch.uint64, d) == n,
    "ne_float": lambda d, n: of(torch.float32, d) != n,
    "where": lambda d, n: torch.where(MASK.to(d), of(torch.uint64, d), n),
    "gt": lambda d, n: of(torch.uint64, d) > n,
    "gt_float": lambda d, n: of(torch.float32, d) > n,
    "clamp": lambda d, n: of(torch.float32, d).clamp(max=n),
    "add": lambda d, n: of(torch.float32, d) + n,
    "scatter": lambda d, n: of(torch.uint64, d).scatter_(0, INDEX.to(d), n),
    "masked_fill": lambda d, n: of(torch.uint64, d).masked_fill_(MASK.to(d), n),
    "index_fill": lambda d, n: of(torch.uint64, d).index_fill_(0, INDEX.to(d), n),
    "pow": lambda d, n: of(torch.float32, d) ** n,
}


def outcome(call, device, number):
    try:
        return call(device, number).cpu()
    except Exception as error:
        return type(error), comparable_error(str(error).splitlines()[0])


class TestLargeNumbers(OpenRegTestCase):
    @parametrize("call", [subtest(one, name=name) for name, one in CALLS.items()])
    def test_result_or_error_is_the_cpu_s(self, call):
        # Downwards, too: what passed for one number is not assumed of another.
        for number in (*NUMBERS, *reversed(NUMBERS)):
            expected, actual = outcome(call, "cpu", number), outcome(call, DEVICE_TYPE, number)
            self.assertEqual(type(actual), type(expected), f"{number}: {actual}, {expected}")
            if isinstance(expected, tuple):
                self.assertEqual(actual, expected)
            else:
                self.assertEqual(actual.dtype, expected.dtype)
                self.assertEqual(actual.tolist(), expected.tolist())

    @parametrize("dtype", [torch.uint8, torch.uint16, torch.int8, torch.float16])
    def test_negative_numbers_fit_where_they_fit_on_the_cpu(self, dtype):
        def fill(device, number):
            return torch.full((2,), number, dtype=dtype, device=device)

        for number in (1, 1.5, -1, -1.5, -128, -129.0):
            expected, actual = (outcome(fill, one, number) for one in ("cpu", DEVICE_TYPE))
            self.assertEqual(actual, expected)

    def test_deterministic_memory_of_uint64_is_filled(self):
        torch.use_deterministic_algorithms(True)
        self.addCleanup(torch.use_deterministic_algorithms, False)
        x = torch.empty(3, dtype=torch.uint64, device=DEVICE_TYPE)
        self.assertEqual(x.tolist(), [2**64 - 1] * 3)


instantiate_parametrized_tests(TestLargeNumbers)

if __name__ == "__main__":
    run_tests()
