"""Every module of torch's database gives the CPU's results and gradients, in all layouts."""

from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch.testing._internal.common_modules import module_db
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from torch_openreg.conformance.arguments import Arguments
from torch_openreg.conformance.cases import instantiate_parametrized_tests, parametrize, subtest
from torch_openreg.conformance.layouts import LAYOUTS, with_layout
from torch_openreg.conformance.operators import for_any_device, gradients_of
from torch_openreg.conformance.sweep import (
    IS_FULL,
    Call,
    CallSequence,
    Counts,
    SweepTestCase,
    crossed,
    seed,
)
from torch_openreg.conformance.target import target

_MODULES = [subtest(info, name=info.formatted_name) for info in module_db]
_WITH_ERRORS = [one for one in _MODULES if one.arg_values.module_error_inputs_func is not None]

_SAMPLES = 2  # of each dtype but float32
_LAYOUTS = Counts(usual=3, thorough=len(LAYOUTS) + 1, others=1)  # of each sample

# Cases in which the CPU itself is wrong.
_NOT_ON_CPU = {
    ("nn.CTCLoss", "expanded"): "reads behind concatenated targets that have no stride",
    ("nn.MultiLabelMarginLoss", "empty"): "leaves the loss as it finds the memory",
    ("nn.MultiMarginLoss", "empty"): "leaves the loss as it finds the memory",
}


def _arguments_of(sample: Any) -> Arguments:
    construction, call = sample.constructor_input, sample.forward_input
    kwargs = {name: for_any_device(value) for name, value in construction.kwargs.items()}
    return Arguments(
        (construction.args, kwargs, call and call.args, call and call.kwargs),
        {"device": "cpu"},
    )


def _module_of(info: Any, args: Any, kwargs: Any, device: torch.device) -> torch.nn.Module:
    """A module with the parameters that the CPU's generator gives it."""
    if target().gives_the_cpus_random_numbers:
        with torch.device(device):
            return cast(torch.nn.Module, info.module_cls(*args, **kwargs))
    # Made on the CPU, and unseen by the mode that finds out whether the calls draw numbers.
    with _disable_current_modes():
        host_args, host_kwargs = (
            pytree.tree_map_only(torch.Tensor, torch.Tensor.cpu, one) for one in (args, kwargs)
        )
        if "device" in host_kwargs:
            host_kwargs["device"] = "cpu"
        seed()
        module = info.module_cls(*host_args, **host_kwargs)
    return cast(torch.nn.Module, module.to(device))


def _step_of(
    info: Any, dtype: torch.dtype, is_training: bool, has_cudnn: bool
) -> Callable[..., Any]:
    """A call that makes a module and returns its results, gradients and buffers.

    cuDNN's recurrent networks refuse states that are not contiguous, and have no backward pass in
    evaluation.
    """

    def call(construction_args, construction_kwargs, args, kwargs, device):
        module = _module_of(info, construction_args, construction_kwargs, device)
        module.to(dtype).train(is_training)
        with torch.backends.cudnn.flags(enabled=has_cudnn):
            module(*args, **kwargs)  # a lazy module makes its parameters
            outputs, gradients = gradients_of(module, list(module.parameters()))(*args, **kwargs)
        return outputs, gradients, dict(module.named_buffers())

    return call


class TestModules(SweepTestCase):
    @parametrize("info", _MODULES)
    @parametrize("is_training", [True, False], name_fn=lambda value: "train" if value else "eval")
    def test_module(self, info: Any, is_training: Any) -> None:
        def calls(dtype: torch.dtype) -> Iterator[Call]:
            seed()
            samples = info.module_inputs_func(
                info, device="cpu", dtype=dtype, requires_grad=True, training=is_training
            )
            for sample in samples if IS_FULL or dtype == torch.float32 else samples[:_SAMPLES]:
                yield Call(_step_of(info, dtype, is_training, is_training), _arguments_of(sample))

        self.sweep(info.name, "train" if is_training else "eval", info.dtypes, calls)

    @parametrize("info", _MODULES)
    @parametrize("is_training", [True, False], name_fn=lambda value: "train" if value else "eval")
    def test_layouts(self, info: Any, is_training: Any) -> None:
        variant = f"modules, layouts, {'train' if is_training else 'eval'}"

        def calls(dtype: torch.dtype) -> Iterator[CallSequence]:
            seed()
            samples = info.module_inputs_func(
                info, device="cpu", dtype=dtype, requires_grad=True, training=is_training
            )
            function = _step_of(info, dtype, is_training, has_cudnn=False)

            def relaid(arguments: Arguments) -> list[Arguments]:
                layouts = [
                    with_layout(arguments, layout)
                    for layout in (*LAYOUTS, "mixed")
                    if (info.name, layout) not in _NOT_ON_CPU
                ]
                return [one for one in layouts if one is not None]

            name = f"{info.name} {variant}"
            arguments = [_arguments_of(sample) for sample in samples]
            for plain, other in crossed(name, arguments, _SAMPLES, relaid, _LAYOUTS):
                changed = other.with_other_numbers()
                yield CallSequence(function, (plain, other, changed, plain, other))

        self.sweep(info.name, variant, [torch.float32], calls)

    @parametrize("info", _WITH_ERRORS)
    def test_errors(self, info: Any) -> None:
        def call(construction_args, construction_kwargs, args, kwargs, device):
            with torch.device(device):
                module = info.module_cls(*construction_args, **construction_kwargs)
            if args is not None:
                return module(*args, **kwargs)
            return None

        def calls(dtype: torch.dtype) -> Iterator[Call]:
            seed()
            samples = info.module_error_inputs_func(
                info, device="cpu", dtype=dtype, requires_grad=False, training=True
            )
            for sample in samples:
                yield Call(call, _arguments_of(sample.module_error_input))

        self.sweep(info.name, "errors", (torch.float32,), calls)


instantiate_parametrized_tests(TestModules)
