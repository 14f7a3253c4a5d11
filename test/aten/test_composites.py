"""Composite operators of torch: none of them reads the device's memory on the host.

A composite kernel of ATen is composed of other operators and so runs on every device, unless it
dereferences a tensor's memory. Then it ends the process, or misses a kernel that ATen registers for
its own devices only. The search calls all of them, in processes that may end.
"""

import subprocess
import sys

import pytest
import torch
from common import (
    DEVICE_TYPE,
    OpenRegTestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)

# Ends the process on the CPU as well, with arguments such as these: name -> why.
CRASHES_EVERYWHERE = {
    "aten::_nnpack_spatial_convolution": "reads sizes that the arguments lack",
    "aten::_nnpack_spatial_convolution.out": "reads sizes that the arguments lack",
    "aten::_thnn_differentiable_gru_cell_backward": "takes tensors that may be missing as given",
    "aten::_thnn_differentiable_lstm_cell_backward": "takes tensors that may be missing as given",
    "aten::_transform_bias_rescale_qkv.out": "divides by the number of heads, which may be 0",
}

# Reports a missing kernel for the device: name -> reason.
LACKS_A_KERNEL: dict[str, str] = {}

_SEARCH = r"""
import itertools, sys, warnings
import torch

warnings.filterwarnings("ignore")
DEVICE, KEY = sys.argv[1:3]
SHAPES = [(), (3,), (2, 3), (3, 3), (1, 2, 3), (2, 3, 4, 4), (1, 2, 3, 4, 4)]
KINDS = {
    "float": lambda shape: torch.linspace(0.1, 0.9, max(1, torch.Size(shape).numel()))
    .reshape(shape),
    "long": lambda shape: torch.zeros(shape, dtype=torch.long),
    "byte": lambda shape: torch.zeros(shape, dtype=torch.uint8),
    "char": lambda shape: torch.zeros(shape, dtype=torch.int8),
    "half": lambda shape: torch.ones(shape, dtype=torch.half),
    "bool": lambda shape: torch.ones(shape, dtype=torch.bool),
}
COMPOSITE = (
    "CompositeImplicitAutograd",
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
)


class NoArgument(Exception):
    pass


def value_for(argument, shape, kind, number):
    text = str(argument.type)
    if text in ("Tensor", "Optional[Tensor]"):
        return KINDS[kind](shape).to(DEVICE)
    if "List[Optional[Tensor]]" in text:
        return [KINDS["long"](shape).to(DEVICE)]
    if "List[Tensor]" in text:
        return [KINDS[kind](shape).to(DEVICE) for _ in range(2)]
    if argument.name == "device":
        return torch.device(DEVICE)
    if argument.name == "dtype":
        return torch.float32
    if argument.name == "layout":
        return torch.strided
    if argument.name == "memory_format":
        return torch.contiguous_format
    if "List[bool]" in text:
        return [True, True, True]
    if "List[float]" in text:
        return [float(number)]
    if "List[" in text:
        return [number] * (max(1, len(shape)) if len(shape) < 4 else len(shape) - 2)
    if "Generator" in text:
        return None
    if "bool" in text:
        return True
    if "int" in text.lower() or "number" in text:
        return number
    if "float" in text:
        return float(number)
    if "str" in text:
        return "sum"
    raise NoArgument


def calls(schema):
    for shape, kind, number, with_defaults in itertools.product(
        SHAPES, KINDS, (1, 2, 0), (False, True)
    ):
        positional, named = [], {}
        for argument in schema.arguments:
            is_device = argument.name == "device"
            is_optional_tensor = str(argument.type) == "Optional[Tensor]"
            if argument.has_default_value() and not is_device:
                if not (with_defaults and is_optional_tensor and argument.kwarg_only):
                    continue
            value = value_for(argument, shape, kind, number)
            if argument.kwarg_only or is_device:
                named[argument.name] = value
            else:
                positional.append(value)
        yield positional, named


def main():
    names = sorted(
        name
        for name in set(torch._C._dispatch_get_all_op_names())
        if name.startswith("aten::")
        and not torch._C._dispatch_has_kernel_for_dispatch_key(name, KEY)
        and any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in COMPOSITE)
    )
    for name in names[names.index(sys.argv[3]) + 1 if len(sys.argv) > 3 else 0 :]:
        print("call", name, flush=True)
        packet, _, overload = name.removeprefix("aten::").partition(".")
        schema = torch._C._get_schema("aten::" + packet, overload)
        operator = getattr(torch.ops.aten, packet, None)
        operator = getattr(operator, overload or "default", None)
        if operator is None:
            continue  # not for Python
        try:
            for positional, named in calls(schema):
                try:
                    with torch.no_grad():
                        operator(*positional, **named)
                    torch.accelerator.synchronize()
                except Exception as error:
                    if "missing kernel" in str(error):
                        print("lacks", name, flush=True)
                    try:
                        torch.accelerator.synchronize()
                    except Exception:
                        pass  # it belongs to the call before
        except NoArgument:
            continue
    print("done", len(names), flush=True)


main()
"""

_KEY = {"openreg": "PrivateUse1", "cuda": "CUDA"}[DEVICE_TYPE]
_COMPOSITE_COUNT = 1500  # torch 2.13 has 1580


class TestSearch(OpenRegTestCase):
    @pytest.mark.slow
    def test_no_composite_operator_ends_the_process_or_lacks_a_kernel(self):
        crashed, lacking, last, count = set(), set(), None, None
        while count is None:
            child = subprocess.run(
                [sys.executable, "-c", _SEARCH, DEVICE_TYPE, _KEY, *([last] if last else [])],
                capture_output=True,
                text=True,
                check=False,
                timeout=900,
            )
            lines = [
                line.split()
                for line in child.stdout.splitlines()
                if line.startswith(("call aten::", "lacks aten::", "done "))  # operators print, too
            ]
            lacking.update(words[1] for words in lines if words[0] == "lacks")
            self.assertTrue(lines, child.stderr)
            if lines[-1][0] == "done":
                count = int(lines[-1][1])
            else:
                # By a signal, and not by an exception, which every operator would raise again.
                self.assertLess(child.returncode, 0, child.stderr)
                last = lines[-1][1]
                crashed.add(last)
        self.assertGreater(count, _COMPOSITE_COUNT)
        self.assertEqual(crashed, set(CRASHES_EVERYWHERE))
        self.assertEqual(lacking, set(LACKS_A_KERNEL))


def sobol(device, operation):
    quasi = torch.zeros(3, dtype=torch.long)
    state = torch.zeros(3, 30, dtype=torch.long)
    torch._sobol_engine_initialize_state_(state, 3)
    quasi, state = quasi.to(device), state.to(device)
    if operation == "initialize":
        return torch._sobol_engine_initialize_state_(torch.zeros_like(state), 3)
    if operation == "draw":
        return torch._sobol_engine_draw(quasi, 4, state, 3, 0, torch.float32)
    if operation == "forward":
        return torch._sobol_engine_ff_(quasi, 4, state, 3, 0)
    triangles = torch.ones(3, 30, 30, dtype=torch.long).tril().to(device)
    return torch._sobol_engine_scramble_(state.clone(), triangles, 3)


HOST_READERS = {
    "saturate": lambda d: torch.ops.aten._saturate_weight_to_fp16(torch.full((2, 3), 1e6).to(d)),
    "reshape": lambda d: torch.ops.aten._reshape_from_tensor(
        torch.arange(6.0).to(d), torch.tensor([2, 3]).to(d)
    ),
    "choose": lambda d: torch.ops.aten.choose_qparams_optimized(
        torch.linspace(-1, 1, 16).to(d), 16, 200, 0.16, 8
    ),
    "choose_per_tensor": lambda d: torch.ops.aten._choose_qparams_per_tensor(
        torch.linspace(-1, 1, 16).to(d)
    ),
    "range": lambda d: torch.ops.aten.range.out_(0, 3, out=torch.zeros(4, device=d)),
    **{
        f"sobol_{operation}": lambda d, operation=operation: sobol(d, operation)
        for operation in ("initialize", "draw", "forward", "scramble")
    },
}


class TestHostReaders(OpenRegTestCase):
    @parametrize("call", [subtest(call, name=name) for name, call in HOST_READERS.items()])
    def test_result_is_the_cpu_s(self, call):
        expected = call("cpu")
        for _ in range(3):
            actual = call(DEVICE_TYPE)
            for one, other in zip(
                *(x if isinstance(x, tuple) else (x,) for x in (actual, expected)), strict=True
            ):
                if isinstance(one, torch.Tensor):
                    self.assertEqual(one.device.type, DEVICE_TYPE)
                    self.assert_bit_equal(one, other)
                else:
                    self.assertEqual(one, other)

    def test_fbgemm_s_products_of_device_tensors_are_refused_and_not_a_crash(self):
        if "fbgemm" not in torch.backends.quantized.supported_engines:
            self.skipTest("this build of torch has no FBGEMM")
        packed = torch.fbgemm_pack_gemm_matrix_fp16(torch.randn(4, 5))
        x, bias = torch.randn(3, 5, device=DEVICE_TYPE), torch.randn(4, device=DEVICE_TYPE)
        with self.assertRaises(RuntimeError):
            torch.fbgemm_linear_fp16_weight(x, packed, bias)


class TestPowers(OpenRegTestCase):
    """ldexp is one kernel on the CPU. Its composition multiplies by a power, which may overflow."""

    @parametrize("dtype", [torch.int32, torch.int64, torch.float32])
    def test_product_with_a_power_beyond_the_range_is_the_cpu_s(self, dtype):
        values = torch.linspace(0.1, 0.9, 4), torch.tensor([-140, 3, 128, 140], dtype=dtype)
        expected = torch.ldexp(*values)
        x, exponents = (one.to(DEVICE_TYPE) for one in values)
        out = torch.empty_like(x)
        torch.ldexp(x, exponents, out=out)
        for _ in range(3):
            self.assert_bit_equal(torch.ldexp(x, exponents), expected)
        self.assert_bit_equal(out, expected)
        self.assert_bit_equal(x.ldexp_(exponents), expected)


instantiate_parametrized_tests(TestHostReaders)
instantiate_parametrized_tests(TestPowers)

if __name__ == "__main__":
    run_tests()
