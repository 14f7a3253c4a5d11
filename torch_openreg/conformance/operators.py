"""torch's database of operators, and what its samples need to be called on a device."""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.nn.modules.linear_cross_entropy_options import LinearCrossEntropyOptions
from torch.testing._internal.common_cuda import PLATFORM_SUPPORTS_FP8
from torch.testing._internal.common_methods_invocations import op_db

from torch_openreg.conformance.arguments import Arguments, HostTensor, tensors_in
from torch_openreg.conformance.cases import subtest
from torch_openreg.conformance.sweep import IS_FULL, seed
from torch_openreg.conformance.target import target

__all__ = [
    "MAX_UNPOOLS",
    "OPERATORS",
    "arguments_of",
    "call_of",
    "dtypes_under_test",
    "for_any_device",
    "gradients_of",
    "samples_of",
    "with_other_numbers_of",
]

OPERATORS = [subtest(info, name=info.formatted_name) for info in op_db]

# Arguments that have to be on the CPU for any device, by position.
_HOST_ARGUMENTS = {"tensor_split": 1}

# These do not initialize their results, or their CPU kernel reads uninitialized memory: the losses
# if there are no samples, circular padding if it removes more than the input has. They are compared
# in the mode that fills new memory.
_READS_NEW_MEMORY = {
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "linalg_lstsq",
    "linalg_lstsq_grad_oriented",
    "new_empty",
    "new_empty_strided",
    "nn_functional_multi_margin_loss",
    "nn_functional_multilabel_margin_loss",
    "nn_functional_pad_circular",
    "resize_",
}

# They write an element twice if two windows have one maximum: in any order, if the numbers differ.
MAX_UNPOOLS = {f"nn_functional_max_unpool{n}d{grad}" for n in (1, 2, 3) for grad in ("", "_grad")}

_FLOAT8_PRODUCTS = {"torch._scaled_mm", "torch._scaled_mm_v2"}

_BATCH_NORMS = {"native_batch_norm", "_native_batch_norm_legit"}


def dtypes_under_test(info: Any) -> list[torch.dtype]:
    """The dtypes that torch lists for the CPU and for the device type, in a fixed order."""
    device_type = target().device.type
    has_products = device_type != "cuda" or PLATFORM_SUPPORTS_FP8  # by the compute capability
    if info.name in _FLOAT8_PRODUCTS and not has_products:
        return []
    dtypes = set(info.supported_dtypes("cpu")) & set(info.supported_dtypes(device_type))
    return sorted(dtypes, key=str)


def samples_of(
    info: Any, dtype: torch.dtype, limit: int | None, requires_grad: bool = False
) -> Iterator[Any]:
    """The first SampleInputs of a dtype, on the CPU, always the same ones; all in a full run."""
    samples = iter(info.sample_inputs_func(info, "cpu", dtype, requires_grad))
    for _ in itertools.count() if IS_FULL or limit is None else range(limit):
        seed()
        sample = next(samples, None)
        if sample is None:
            return
        if not _is_evaluation(info, sample) and not _is_of_the_cpu(info, sample):
            yield sample


def _is_of_the_cpu(info: Any, sample: Any) -> bool:
    """Whether the sample names an algorithm of LAPACK that the CPU has, and CUDA refuses."""
    driver = sample.kwargs.get("driver") if info.name == "linalg.lstsq" else None
    return target().device.type == "cuda" and driver not in (None, "gels")


def _is_evaluation(info: Any, sample: Any) -> bool:
    """Whether batch norm's statistics are not the CPU's, which has none in evaluation.

    Accelerators return what torch's decomposition promises; test_operators.py checks that.
    """
    return info.name in _BATCH_NORMS and any(one is False for one in sample.args)


def arguments_of(info: Any, sample: Any) -> Arguments:
    """The arguments of a call with a sample of the database."""
    args = [sample.input, *sample.args]
    index = _HOST_ARGUMENTS.get(info.name)
    if index is not None and isinstance(args[index], torch.Tensor):
        args[index] = HostTensor(args[index])
    kwargs = {name: for_any_device(value) for name, value in sample.kwargs.items()}
    return Arguments(tuple(args), kwargs)


def with_other_numbers_of(info: Any, arguments: Arguments) -> Arguments:
    """The arguments with other contents, unless the operator then has no defined result."""
    is_defined = info.formatted_name not in MAX_UNPOOLS
    return arguments.with_other_numbers() if is_defined else arguments


def for_any_device(value: Any) -> Any:
    """The options of linear_cross_entropy, without what torch chooses by the name of the device."""
    if not isinstance(value, LinearCrossEntropyOptions):
        return value
    choices: dict[str, Any] = {}
    if value.acc_policy == "auto":
        choices["acc_policy"] = "accurate"
    if value.chunking_method == "auto" and value.batch_chunk_size is None:
        choices["chunking_method"] = "aspect_ratio"
    return dataclasses.replace(value, **choices)


def call_of(info: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, in the mode that the operator needs for a defined result."""
    if info.formatted_name not in _READS_NEW_MEMORY:
        return function

    def call(*args: Any, **kwargs: Any) -> Any:
        with _filled_memory():
            return function(*args, **kwargs)

    return call


@contextlib.contextmanager
def _filled_memory() -> Iterator[None]:
    was_enabled = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was_enabled)


def _directions(output: torch.Tensor, numbers: torch.Generator) -> torch.Tensor:
    """Random numbers with the metadata and device of a result."""
    drawn = torch.randn(output.shape, dtype=output.dtype, generator=numbers)
    return drawn if output.is_cpu else target().copy_of(drawn)


def gradients_of(
    function: Callable[..., Any],
    parameters: Sequence[torch.Tensor] = (),
    choose: Callable[[Any], Any] = lambda result: result,
) -> Callable[..., Any]:
    """Makes a call that returns a function's differentiable results and gradients.

    Args:
        function: What to differentiate.
        parameters: Tensors beside the arguments to differentiate by.
        choose: The part of the result to differentiate.

    Returns:
        A function that returns the results and the gradients of all arguments and parameters that
        require one.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        inputs = [one for one in (*tensors_in((args, kwargs)), *parameters) if one.requires_grad]
        results = tensors_in(choose(function(*args, **kwargs)))
        outputs = [one for one in results if one.requires_grad]
        numbers = torch.Generator().manual_seed(1)
        directions = [_directions(one, numbers) for one in outputs]
        if not outputs or not inputs:
            return results, ()
        gradients = torch.autograd.grad(outputs, inputs, directions, allow_unused=True)
        return [one.detach() for one in results], gradients

    return call
