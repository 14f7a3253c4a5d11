"""The base of the kit's tests: test cases and parameters."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

import torch
from torch.testing._internal import common_utils
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, subtest

from torch_openreg.conformance.target import needs, target
from torch_openreg.conformance.threads import call_in_thread, call_in_threads

__all__ = [
    "ConformanceTestCase",
    "call_in_thread",
    "call_in_threads",
    "instantiate_parametrized_tests",
    "needs",
    "parametrize",
    "subtest",
]

_Test = TypeVar("_Test", bound=Callable[..., Any])


def parametrize(
    names: str, values: Iterable[Any], name_fn: Callable[..., str] | None = None
) -> Callable[[_Test], _Test]:
    """Makes a test of each value; torch's decorator with types."""
    return cast(Callable[[_Test], _Test], common_utils.parametrize(names, values, name_fn=name_fn))


class ConformanceTestCase(TestCase):
    """A test that has to leave everything as it was; see Target.check_after_test."""

    @classmethod
    def setUpClass(cls) -> None:
        """Checks the requirements of the tests."""
        super().setUpClass()
        target().check_before_class()

    def tearDown(self) -> None:
        """Checks the state after the test."""
        target().check_after_test(self)
        super().tearDown()

    def assert_bit_equal(self, actual: torch.Tensor, expected: torch.Tensor) -> None:
        """Compares on the CPU, so that no operator of the device takes part."""
        self.assertEqual(actual.cpu(), expected.cpu(), rtol=0, atol=0)

    def assert_agrees(self, actual: torch.Tensor, expected: torch.Tensor) -> None:
        """Compares contents on the CPU, with the target's tolerance."""
        relative, absolute = target().tolerance.of(expected.dtype)
        self.assertEqual(actual.cpu(), expected.cpu(), rtol=relative, atol=absolute)
