"""Common code of the tests of torch.compile: a folder of kernels, and functions compiled twice."""

import contextlib
import os
import unittest
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
from common import DEVICE_TYPE, OpenRegTestCase, run_program
from environments import INDUCTOR, MODULES

# Before Inductor is imported.
os.environ.update(MODULES[INDUCTOR])

import torch
import torch._inductor.compile_fx  # registers the backend, before its modules
from torch._inductor import async_compile

from torch_openreg.extras.inductor import _kernels

__all__ = [
    "IS_FULL",
    "AbsenceTests",
    "CompiledTestCase",
    "Outcome",
    "kernel_sources",
    "requires_full",
    "run_compiled",
    "to_device",
]

IS_FULL = bool(os.environ.get("OPENREG_TEST_FULL"))
requires_full = unittest.skipUnless(IS_FULL, "compiles much; see test/run.py --full")


@contextlib.contextmanager
def kernel_sources() -> Iterator[list[str]]:
    """The sources of the kernels that are defined meanwhile, as Inductor generated them.

    Kernels for the CPU also have the function through which streams call a kernel: the two devices
    then share the compiled kernels, and a test that compares them compiles half as much. Those with
    masks are not shared, as the conversions of masks are others.
    """
    sources: list[str] = []
    compile_kernel = async_compile.AsyncCompile.cpp_pybinding

    def compile_and_keep(self: Any, argument_types: list[str], source: str) -> Any:
        begin = source.find(f"\n{_kernels._HEADER}")
        if begin < 0:
            parameters = _kernels.parameters_of("kernel", argument_types, source)
            whole = source + _kernels._entry_of(argument_types, parameters)
        else:
            whole, source = source, source[:begin].replace(_kernels._MASKS, "")
        sources.append(source)
        return compile_kernel(self, argument_types, whole)

    with mock.patch.object(async_compile.AsyncCompile, "cpp_pybinding", compile_and_keep):
        yield sources


def to_device(value: Any, device: str) -> Any:
    """Copies tensors, but those that are named as the host's; gradients are wanted as before."""
    if isinstance(value, torch.Tensor) and not getattr(value, "stays_on_host", False):
        copied = value.detach().clone().to(device)
        return copied.requires_grad_(value.requires_grad)
    return value


class Outcome:
    """All that a compiled function gave: results, arguments afterwards, gradients, kernels."""

    def __init__(self, results: list[Any], tensors: list[Any], kernels: list[str]) -> None:
        self.results = results
        self.tensors = tensors
        self.kernels = kernels


def flatten(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def run_compiled(
    function: Callable[..., Any], arguments: list[Any], device: str, **options: Any
) -> Outcome:
    """Compiles a function for a device, calls it, and its backward if it gives gradients."""
    torch._dynamo.reset()
    torch.manual_seed(3)
    copies = [to_device(argument, device) for argument in arguments]
    with kernel_sources() as kernels:
        results = flatten(torch.compile(function, **options)(*copies))
        with_gradient = [
            one for one in results if isinstance(one, torch.Tensor) and one.requires_grad
        ]
        if with_gradient:
            torch.autograd.backward(with_gradient, [torch.ones_like(one) for one in with_gradient])
    tensors = [one for one in copies if isinstance(one, torch.Tensor)]
    gradients = [one.grad for one in tensors if one.is_leaf]
    return Outcome(results, tensors + gradients, kernels)


class CompiledTestCase(OpenRegTestCase):
    """A test that compiles."""

    def tearDown(self) -> None:
        torch._dynamo.reset()
        super().tearDown()

    def assert_same(self, actual: Any, expected: Any, what: str, same_bits: bool) -> None:
        """Compares values, sizes, strides and dtypes; not devices."""
        if not isinstance(expected, torch.Tensor):
            self.assertEqual(actual, expected, msg=what)
            return
        self.assertEqual(
            (actual.shape, actual.stride(), actual.dtype),
            (expected.shape, expected.stride(), expected.dtype),
            msg=what,
        )
        exactly = {"rtol": 0, "atol": 0} if same_bits else {}
        self.assertEqual(actual.cpu(), expected, equal_nan=True, msg=what, **exactly)

    def compare_with_cpu(
        self,
        function: Callable[..., Any],
        arguments: list[Any],
        device: str = DEVICE_TYPE,
        same_kernels: bool = True,
        same_bits: bool = True,
        **options: Any,
    ) -> Outcome:
        """Compiles for the CPU and for the device; values and kernels have to be the same."""
        expected = run_compiled(function, arguments, "cpu", **options)
        actual = run_compiled(function, arguments, device, **options)
        if same_kernels:
            self.assertEqual(actual.kernels, expected.kernels)
        self.assertEqual(len(actual.results), len(expected.results))
        for index, pair in enumerate(zip(actual.results, expected.results, strict=True)):
            self.assert_same(*pair, f"result {index}", same_bits)
        for index, pair in enumerate(zip(actual.tensors, expected.tensors, strict=True)):
            self.assert_same(*pair, f"tensor {index}", same_bits)
        return actual


class AbsenceTests:
    """What programs that compile nothing for our devices must not notice: tests for a class."""

    def test_import_of_torch_imports_no_compiler(self):
        output = run_program(
            f"""
            import sys, torch

            torch.zeros(3, device="{DEVICE_TYPE}").add_(1).cpu()
            names = ("torch._inductor", "torch._dynamo")
            names += ("torch_openreg.extras.inductor", "torch_openreg.dynamo")
            # These wait for the imports of the others.
            waiting = {{"torch_openreg.dynamo", "torch_openreg.dynamo._inductor"}}
            waiting |= {{"torch_openreg.extras.inductor"}}
            print([name for name in sys.modules if name.startswith(names) and name not in waiting])
            """
        )
        self.assertEqual(output.stdout.strip(), "[]")

    @pytest.mark.slow
    def test_code_for_the_cpu_is_what_it_is_without_us(self):
        program = """
            import torch
            from torch._inductor.utils import run_and_get_code

            torch.manual_seed(0)
            model = torch.nn.Sequential(
                torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16)
            )

            def function(x):
                y = model(x)
                return (y.softmax(-1) + y.log_softmax(0)).sum()

            _, codes = run_and_get_code(torch.compile(function), torch.randn(4, 8))
            print("\\n".join(codes))
            """
        with_us = run_program(program).stdout
        without = run_program(
            program, {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OPENREG_DEVICE_TYPE": "openreg"}
        ).stdout
        self.assertIn("cpp_fused_", without)
        self.assertEqual(with_us, without)

    @pytest.mark.slow
    def test_torch_whose_inductor_is_another_refuses_our_graphs_and_no_others(self):
        output = run_program(
            f"""
            import torch
            from torch._inductor.graph import GraphLowering

            GraphLowering.constants_name = GraphLowering.constant_name
            del GraphLowering.constant_name
            x = torch.ones(3)
            print(torch.compile(lambda x: x.sin() + 1)(x).sum().item() > 0)
            try:
                torch.compile(lambda x: x + 1)(x.to("{DEVICE_TYPE}"))
            except Exception as error:
                print(error)
            """
        ).stdout
        self.assertRegex(output, "^True")
        self.assertIn(f"does not support {DEVICE_TYPE}: ", output)
        self.assertIn("to have GraphLowering.constant_name; use backend='aot_eager'", output)
