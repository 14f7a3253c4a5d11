"""Ten steps of every optimizer, in every configuration, give the CPU's parameters and state."""

import contextlib
import sys
import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch.optim.optimizer import _get_capturable_supported_devices
from torch.testing._internal.common_optimizers import OptimizerErrorEnum, optim_db

from torch_openreg.conformance.arguments import Arguments, HostTensor
from torch_openreg.conformance.cases import instantiate_parametrized_tests, parametrize, subtest
from torch_openreg.conformance.layouts import LAYOUTS
from torch_openreg.conformance.sweep import DEVICE, Call, CallSequence, SweepTestCase, sampled, seed

_OPTIMIZERS = [subtest(info, name=info.name) for info in optim_db]
_WITH_ERRORS = [one for one in _OPTIMIZERS if one.arg_values.optim_error_inputs_func is not None]
_WITH_DENSE_GRADIENTS = [
    one for one in _OPTIMIZERS if not one.arg_values.only_supports_sparse_grads
]
_STEPS = 10
_CONFIGURATIONS = 6  # with other layouts
_SHAPES = [(5, 3), (4, 4), (2, 7)]  # Muon takes matrices only

_RELAID = [LAYOUTS[name] for name in ("transposed", "sliced", "offset")]

# The database has the configurations of devices that can capture graphs under this name.
_CAPTURING = "cuda"
_CAPTURABLE = "_get_capturable_supported_devices"


def _name_of_samples() -> str:
    """The device whose configurations the database has to give."""
    can_capture = DEVICE.type in _get_capturable_supported_devices()
    return _CAPTURING if can_capture else "cpu"


@contextlib.contextmanager
def _capturable_on_cpu() -> Iterator[None]:
    """Lets optimizers run on the CPU as they do where graphs can be captured."""
    modules = [one for name, one in sys.modules.items() if name.startswith("torch.optim.")]
    with contextlib.ExitStack() as patches:
        for module in modules:
            original = getattr(module, _CAPTURABLE, None)
            if original is not None:
                allowed = [*original(), "cpu"]
                patches.enter_context(
                    mock.patch.object(
                        module, _CAPTURABLE, lambda *_, allowed=allowed, **__: allowed
                    )
                )
        yield


def _configurations(info: Any) -> Iterator[dict[str, Any]]:
    """Keyword arguments of the optimizer: each of the database, with each implementation."""
    for sample in info.optim_inputs_func(_name_of_samples()):
        plain = sample.kwargs | dict.fromkeys(info.supported_impls, False)
        yield plain
        for implementation in info.supported_impls:
            yield plain | {implementation: True}


def _on_host(value: Any) -> Any:
    """Learning rates and similar numbers stay on the CPU."""
    if isinstance(value, torch.Tensor):
        return HostTensor(value)
    return tuple(_on_host(part) for part in value) if isinstance(value, tuple) else value


def _state_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The state of each parameter. Counts of steps may be on the CPU or not, and become numbers."""
    return [
        {
            name: value.item() if isinstance(value, torch.Tensor) and not value.dim() else value
            for name, value in state.items()
        }
        for state in optimizer.state_dict()["state"].values()
    ]


def _steps(info: Any, is_rate_changing: bool = False) -> Any:
    """A call that trains parameters and returns them and the optimizer's state."""

    def call(parameters, inputs, targets, **kwargs):
        optimizer = info.optim_cls(parameters, **kwargs)

        def closure():
            optimizer.zero_grad()
            losses = [
                torch.nn.functional.mse_loss(x @ parameter, target)
                for x, parameter, target in zip(inputs, parameters, targets, strict=True)
            ]
            loss = sum(losses)
            loss.backward()
            return loss.detach()

        losses = []
        for step in range(_STEPS):
            if is_rate_changing:
                for group in optimizer.param_groups:
                    group["lr"] = group["lr"] * (0.5 + step % 3)
            if info.step_requires_closure:
                losses.append(optimizer.step(closure))
            else:
                losses.append(closure())
                optimizer.step()
        return losses, _state_of(optimizer)

    return call


def _sparse_steps(info: Any) -> Any:
    """The same with gradients that are sparse."""

    def call(parameters, inputs, targets, **kwargs):
        optimizer = info.optim_cls(parameters, **kwargs)
        for _ in range(_STEPS):
            optimizer.zero_grad()
            for parameter in parameters:
                rows = torch.tensor([1, 0, 1], device=parameter.device)
                torch.nn.functional.embedding(rows, parameter, sparse=True).pow(2).sum().backward()
            optimizer.step()
        return _state_of(optimizer)

    return call


class TestOptimizers(SweepTestCase):
    @parametrize("info", _OPTIMIZERS)
    def test_optimizer(self, info: Any) -> None:
        function = (_sparse_steps if info.only_supports_sparse_grads else _steps)(info)

        def calls(dtype: torch.dtype) -> Iterator[Call]:
            for kwargs in _configurations(info):
                seed()
                parameters = [torch.nn.Parameter(torch.randn(s, dtype=dtype)) for s in _SHAPES]
                inputs = [torch.randn(6, s[0], dtype=dtype) for s in _SHAPES]
                targets = [torch.randn(6, s[1], dtype=dtype) for s in _SHAPES]
                arguments = Arguments(
                    (parameters, inputs, targets),
                    {name: _on_host(value) for name, value in kwargs.items()},
                )
                with _capturable_on_cpu():
                    yield Call(function, arguments)

        self.sweep(info.name, "steps", (torch.float32,), calls)

    @parametrize("info", _WITH_DENSE_GRADIENTS)
    def test_layouts_and_schedules(self, info: Any) -> None:
        """Parameters in other layouts, alternating with plain ones; rates change every step."""

        def calls(dtype: torch.dtype) -> Iterator[CallSequence]:
            seed()
            plain = [torch.nn.Parameter(torch.randn(s, dtype=dtype)) for s in _SHAPES]
            inputs = [torch.randn(6, s[0], dtype=dtype) for s in _SHAPES]
            targets = [torch.randn(6, s[1], dtype=dtype) for s in _SHAPES]
            others = [
                torch.nn.Parameter(_RELAID[index % len(_RELAID)](one.detach()))
                for index, one in enumerate(plain)
            ]
            configurations = list(_configurations(info))
            for kwargs in sampled(info.name, configurations, _CONFIGURATIONS):
                steps = [
                    Arguments(
                        (parameters, inputs, targets),
                        {name: _on_host(value) for name, value in kwargs.items()},
                    )
                    for parameters in (plain, others)
                ]
                with _capturable_on_cpu():
                    yield CallSequence(_steps(info, is_rate_changing=True), (*steps, *steps))

        self.sweep(info.name, "steps, layouts", (torch.float32,), calls)

    @parametrize("info", _WITH_ERRORS)
    def test_errors(self, info: Any) -> None:
        def call(parameters, is_stepping, **kwargs):
            with warnings.catch_warnings():
                warnings.simplefilter("error", UserWarning)
                optimizer = info.optim_cls(parameters, **kwargs)
            if is_stepping:
                optimizer.step()

        def calls(dtype: torch.dtype) -> Iterator[Call]:
            for error_input in info.optim_error_inputs_func("cpu", dtype):
                sample = error_input.optimizer_error_input
                parameters = sample.params
                if parameters is None:
                    parameters = [torch.nn.Parameter(torch.randn(2, 3, dtype=dtype))]
                is_stepping = error_input.error_on == OptimizerErrorEnum.STEP_ERROR
                yield Call(call, Arguments((parameters, is_stepping), sample.kwargs))

        self.sweep(info.name, "errors", (torch.float32,), calls)


instantiate_parametrized_tests(TestOptimizers)
