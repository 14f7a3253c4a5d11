"""torch._refs, operators in Python composed of others, give the CPU's results on openreg.

By default some of them run.
"""

from openreg_target import TARGET

# isort: split
from collections.abc import Iterator
from typing import Any

import torch
from common import instantiate_parametrized_tests, parametrize, run_tests, subtest
from torch.testing._internal.common_methods_invocations import python_ref_db

from torch_openreg.conformance.operators import arguments_of, call_of, dtypes_under_test, samples_of
from torch_openreg.conformance.sweep import Call, SweepTestCase, sampled

__all__ = ["TARGET"]

_FUNCTIONS = 40
_SAMPLES = 4  # of each dtype
_DTYPES = (torch.float32, torch.int64)

_ALL = [subtest(info, name=info.formatted_name) for info in python_ref_db]


class TestRefs(SweepTestCase):
    @parametrize("info", sampled("refs", _ALL, _FUNCTIONS))
    def test_forward(self, info: Any) -> None:
        function = call_of(info.torch_opinfo, info.op)

        def calls(dtype: torch.dtype) -> Iterator[Call]:
            for sample in samples_of(info, dtype, _SAMPLES):
                yield Call(function, arguments_of(info.torch_opinfo, sample))

        dtypes = [one for one in dtypes_under_test(info) if one in _DTYPES]
        self.sweep(info.formatted_name, "refs", dtypes or dtypes_under_test(info)[:1], calls)


instantiate_parametrized_tests(TestRefs)

if __name__ == "__main__":
    run_tests()
