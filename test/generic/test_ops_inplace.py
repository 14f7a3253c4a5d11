"""The in-place form of every operator gives the CPU's results."""

from collections.abc import Iterator

import torch
from common import instantiate_parametrized_tests, parametrize, run_tests
from operators import OPERATORS, arguments_of, call_of, cpu_dtypes, samples_of
from sweep import Call, SweepTestCase

_SAMPLES = 2  # of each dtype but float32

_WITH_INPLACE = [one for one in OPERATORS if one.arg_values.inplace_variant]


class TestInplace(SweepTestCase):
    @parametrize("info", _WITH_INPLACE)
    def test_inplace(self, info):
        function = call_of(info, info.inplace_variant)

        def calls(dtype: torch.dtype) -> Iterator[Call]:
            limit = None if dtype == torch.float32 else _SAMPLES
            for sample in samples_of(info, dtype, limit):
                if isinstance(sample.input, torch.Tensor):
                    yield Call(function, arguments_of(info, sample))

        self.sweep(info.formatted_name, "inplace", cpu_dtypes(info), calls)


instantiate_parametrized_tests(TestInplace)

if __name__ == "__main__":
    run_tests()
