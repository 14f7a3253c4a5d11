"""What is an error on the CPU is one of the same type on openreg, when the device is waited for."""

from collections.abc import Iterator

import torch
from common import instantiate_parametrized_tests, parametrize, run_tests
from operators import OPERATORS, arguments_of
from sweep import Call, SweepTestCase, seed

_WITH_ERRORS = [one for one in OPERATORS if one.arg_values.error_inputs_func is not None]


class TestErrors(SweepTestCase):
    @parametrize("info", _WITH_ERRORS)
    def test_errors(self, info):
        def calls(_: torch.dtype) -> Iterator[Call]:
            seed()
            for error_input in info.error_inputs_func(info, "cpu"):
                yield Call(info.op, arguments_of(info, error_input.sample_input))

        # The inputs of the database have dtypes of their own.
        self.sweep(info.formatted_name, "errors", [torch.float32], calls)


instantiate_parametrized_tests(TestErrors)

if __name__ == "__main__":
    run_tests()
