"""Every module of torch's database gives the CPU's results, gradients and buffers."""

from collections.abc import Iterator
from typing import Any

import torch
from common import instantiate_parametrized_tests, parametrize, run_tests, subtest
from operators import gradients_of
from samples import Arguments
from sweep import IS_FULL, Call, SweepTestCase, seed
from torch.testing._internal.common_modules import module_db

_MODULES = [subtest(info, name=info.formatted_name) for info in module_db]
_WITH_ERRORS = [one for one in _MODULES if one.arg_values.module_error_inputs_func is not None]

_SAMPLES = 2  # of each dtype but float32


def _arguments_of(sample: Any) -> Arguments:
    construction, call = sample.constructor_input, sample.forward_input
    return Arguments(
        (construction.args, construction.kwargs, call and call.args, call and call.kwargs),
        {"device": "cpu"},
    )


class TestModules(SweepTestCase):
    @parametrize("info", _MODULES)
    @parametrize("is_training", [True, False], name_fn=lambda value: "train" if value else "eval")
    def test_module(self, info, is_training):
        def calls(dtype: torch.dtype) -> Iterator[Call]:
            def call(construction_args, construction_kwargs, args, kwargs, device):
                with torch.device(device):
                    module = info.module_cls(*construction_args, **construction_kwargs)
                    module.to(dtype).train(is_training)
                module(*args, **kwargs)  # a lazy module makes its parameters
                outputs, gradients = gradients_of(module, list(module.parameters()))(
                    *args, **kwargs
                )
                return outputs, gradients, dict(module.named_buffers())

            seed()
            samples = info.module_inputs_func(
                info, device="cpu", dtype=dtype, requires_grad=True, training=is_training
            )
            for sample in samples if IS_FULL or dtype == torch.float32 else samples[:_SAMPLES]:
                yield Call(call, _arguments_of(sample))

        self.sweep(info.name, "train" if is_training else "eval", info.dtypes, calls)

    @parametrize("info", _WITH_ERRORS)
    def test_errors(self, info):
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

if __name__ == "__main__":
    run_tests()
