"""Dtypes that only a few kernels have: a call that no kernel supports raises at the call.

The operators of torch's database run on tensors of zeros. What the CPU refuses has the same class
of error here, and no error is left for a call that waits.
"""

import contextlib
import itertools
import re
import warnings

import pytest
import torch
from common import (
    DEVICE_TYPE,
    OpenRegTestCase,
    comparable_error,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

from torch_openreg import _C

pytestmark = pytest.mark.sample(0.3)

DTYPES = [
    "uint16",
    "uint64",
    "float8_e5m2",
    "float8_e8m0fnu",
    "float4_e2m1fn_x2",
    "int4",
    "uint1",
    "bits8",
]
BYTES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Samples of the database are made in the first of these dtypes that the operator has.
MADE_IN = [torch.float32, torch.int64, torch.complex64, torch.bool]
SAMPLES = 3
MAX_ELEMENTS = 5000
# These samples have an index tensor, which is to be on the CPU.
INDICES_ON_THE_CPU = {"tensor_split"}
# The CPU's kernel cannot copy these, not even as they are. Devices copy their bytes, so that
# tensors of these dtypes can be moved.
SUB_BYTE = {"int4", "uint1"}
# What the device type cuda refuses as CUDA does, whatever the CPU says; see test_refusals.
REFUSED_AS_ON_CUDA = re.compile(
    r"\" not implemented for |^getCudnnDataTypeFromScalarType\(\) not supported for "
    r"|^expected probabilities tensor to have floating type"
    r"|not supported for Float8|arguments from the 'CUDA' backend"
)

# What CUDA has and the CPU lacks.
WIDENED = {
    (family, dtype.lower()) for family, key, dtype in _C._dtypes_to_widen() if key == "Dense"
}


def zeros(shape, dtype):
    return torch.zeros(shape, dtype=BYTES[dtype.itemsize]).view(dtype)


def samples_of(op):
    dtype = next((one for one in MADE_IN if one in op.supported_dtypes("cpu")), None)
    if dtype is None or op.name in INDICES_ON_THE_CPU:
        return dtype, []
    try:
        samples = list(itertools.islice(op.sample_inputs("cpu", dtype), SAMPLES))
    except Exception:
        return dtype, []
    return dtype, [
        arguments
        for arguments in ((one.input, one.args, one.kwargs) for one in samples)
        if all(
            one.numel() <= MAX_ELEMENTS
            for one in tree_leaves(arguments)
            if isinstance(one, torch.Tensor)
        )
    ]


def converted(value, made_in, dtype, device):
    if isinstance(value, torch.Tensor):
        if value.dtype == made_in and value.layout == torch.strided:
            return zeros(value.shape, dtype).to(device)
        return value.detach().clone().to(device)
    if value is made_in:
        return dtype
    return device if isinstance(value, torch.device) or value == "cpu" else value


def error_of(op, arguments, made_in, dtype, device):
    try:
        first, others, named = tree_map(
            lambda value: converted(value, made_in, dtype, device), arguments
        )
        op(first, *others, **named)
    except Exception as error:
        return error
    return None


class TestRareDtypes(OpenRegTestCase):
    @parametrize("name", DTYPES)
    def test_errors_come_at_the_call_and_are_the_cpu_s(self, name):
        dtype = getattr(torch, name)
        wrong = []
        for op in op_db:
            made_in, samples = samples_of(op)
            for index, arguments in enumerate(samples):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    expected = error_of(op, arguments, made_in, dtype, "cpu")
                    actual = error_of(op, arguments, made_in, dtype, DEVICE_TYPE)
                what = f"{op.formatted_name} {index}"
                try:
                    torch.openreg.synchronize()
                except Exception as late:
                    wrong.append(f"{what}: late: {late}")
                if actual is None and (op.name, name) in WIDENED:
                    continue
                if self.differ(name, actual, expected):
                    wrong.append(f"{what}: {actual!r}, on the CPU: {expected!r}")
        self.assertFalse(wrong, "\n".join(wrong))

    def differ(self, name, actual, expected):
        if actual is None and expected is not None:
            # CUDA and devices have more than the CPU: see SUB_BYTE.
            return name not in SUB_BYTE
        if DEVICE_TYPE == "cuda" and REFUSED_AS_ON_CUDA.search(str(actual)):
            return False
        if actual is None or expected is None:
            return actual is not expected
        # Asserts of torch itself are no interface: the CPU fails with some, after other checks.
        if "INTERNAL ASSERT" in str(expected) or name in SUB_BYTE:
            return False
        return not isinstance(actual, type(expected))

    @parametrize("name", ["neg", "relu", "sort", "random_"])
    def test_a_call_without_elements_says_nothing_about_others(self, name):
        call = getattr(torch.Tensor, name)
        with contextlib.suppress(NotImplementedError):
            call(zeros(0, torch.float8_e5m2).to(DEVICE_TYPE))
        expected = error_of(call, (zeros(3, torch.float8_e5m2), (), {}), None, None, "cpu")
        with self.assertRaises(NotImplementedError) as raised:
            call(zeros(3, torch.float8_e5m2).to(DEVICE_TYPE))
        actual = str(raised.exception)
        self.assertEqual(comparable_error(actual), comparable_error(str(expected)))


instantiate_parametrized_tests(TestRareDtypes)

if __name__ == "__main__":
    run_tests()
