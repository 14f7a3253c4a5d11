"""Settings that a kernel of the CPU reads, and calls between whose start and run one changes."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from common import StreamGate

from torch_openreg.conformance.arguments import CPU, Arguments
from torch_openreg.conformance.mutations import scaled
from torch_openreg.conformance.sweep import (
    DEVICE,
    CallSequence,
    Outcome,
    outcome,
    outcome_difference,
)

__all__ = ["SETTINGS", "Setting", "SettingChange", "changes_of"]

# After this time, a call that has not returned is believed to wait for the stream that the gate
# holds, though it did not say so, and the gate opens.
_PATIENCE_S = 5

_Scene = Callable[[], contextlib.AbstractContextManager[Any]]


@dataclass(frozen=True)
class Setting:
    """A setting with two values.

    Attributes:
        name: of the setting.
        values: two contexts, each of which gives it one of the values.
        is_for_cpu: whether it may change results of the device. Otherwise, the device's result has
            to be the CPU's without the setting.
        dtypes: of samples that it is for; empty for all.
        scale: what to multiply floating-point arguments by.
        is_of_thread: whether it is the thread's, and that of threads of OpenMP that start under it.
            The CPU's result is that of a new thread, whose kernels have it in all their threads.
    """

    name: str
    values: tuple[_Scene, _Scene]
    is_for_cpu: bool = True
    dtypes: tuple[torch.dtype, ...] = ()
    scale: float = 1.0
    is_of_thread: bool = False


def _property(read: Callable[[], Any], write: Callable[[Any], object], value: Any) -> _Scene:
    @contextlib.contextmanager
    def scene() -> Iterator[None]:
        before = read()
        write(value)
        try:
            yield
        finally:
            write(before)

    return scene


def _setting(
    name: str,
    read: Callable[[], Any],
    write: Callable[[Any], object],
    values: tuple[Any, Any],
    **options: Any,
) -> Setting:
    return Setting(
        name,
        (_property(read, write, values[0]), _property(read, write, values[1])),
        **options,
    )


def _fp32_precision(backend: str, operators: str) -> Setting:
    return _setting(
        f"{backend} {operators} fp32_precision",
        lambda: torch._C._get_fp32_precision_getter(backend, operators),
        lambda value: torch._C._set_fp32_precision_setter(backend, operators, value),
        ("ieee", "bf16"),
        dtypes=(torch.float32,),
    )


def _matmul_precision(value: str) -> _Scene:
    """Also restores what the function sets of each backend, which is not what it was by default."""

    @contextlib.contextmanager
    def scene() -> Iterator[None]:
        before = torch.get_float32_matmul_precision()
        of_backends = {
            backend: torch._C._get_fp32_precision_getter(backend, "matmul")
            for backend in ("cuda", "mkldnn")
        }
        torch.set_float32_matmul_precision(value)
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)
            for backend, precision in of_backends.items():
                torch._C._set_fp32_precision_setter(backend, "matmul", precision)

    return scene


def _flushes_denormals() -> bool:
    return (torch.tensor(2e-38) * torch.tensor(0.1)).item() == 0


def _set_mode(is_deterministic: bool) -> None:
    torch.use_deterministic_algorithms(is_deterministic, warn_only=False)


def _has_float16_arithmetic() -> bool:
    """Whether the processor supports the arithmetic of a setting."""
    before = torch._C._get_cpu_allow_fp16_reduced_precision_reduction()
    try:
        torch._C._set_cpu_allow_fp16_reduced_precision_reduction(True)
    except RuntimeError:
        return False
    torch._C._set_cpu_allow_fp16_reduced_precision_reduction(before)
    return True


_FLOAT16_REDUCTIONS = [
    _setting(
        "reduced precision of float16 reductions",
        torch._C._get_cpu_allow_fp16_reduced_precision_reduction,
        torch._C._set_cpu_allow_fp16_reduced_precision_reduction,
        (False, True),
        dtypes=(torch.float16,),
    )
]

SETTINGS = [
    _setting(
        "default dtype",
        torch.get_default_dtype,
        torch.set_default_dtype,
        (torch.float32, torch.float64),
    ),
    Setting(
        "float32 matmul precision",
        (_matmul_precision("highest"), _matmul_precision("medium")),
        dtypes=(torch.float32,),
    ),
    *(_fp32_precision("mkldnn", operators) for operators in ("conv", "matmul", "rnn")),
    _setting(
        "mkldnn",
        torch._C._get_mkldnn_enabled,
        torch._C._set_mkldnn_enabled,
        (True, False),
    ),
    _setting(
        "mkldnn deterministic",
        torch._C._get_mkldnn_deterministic,
        torch._C._set_mkldnn_deterministic,
        (False, True),
    ),
    _setting(
        "nnpack",
        torch._C._get_nnpack_enabled,
        torch._C._set_nnpack_enabled,
        (True, False),
    ),
    *(_FLOAT16_REDUCTIONS if _has_float16_arithmetic() else []),
    _setting(
        "deterministic algorithms",
        torch.are_deterministic_algorithms_enabled,
        _set_mode,
        (False, True),
    ),
    _setting(
        "flush-denormal",
        _flushes_denormals,
        torch.set_flush_denormal,
        (False, True),
        dtypes=(torch.float32, torch.float64),
        scale=1e-38,
        is_of_thread=True,
    ),
    _setting("number of threads", torch.get_num_threads, torch.set_num_threads, (1, 2)),
    _setting(
        "flash attention",
        torch._C._get_flash_sdp_enabled,
        torch._C._set_sdp_use_flash,
        (True, False),
    ),
    _setting(
        "fast path of multi-head attention",
        torch.backends.mha.get_fastpath_enabled,
        torch.backends.mha.set_fastpath_enabled,
        (True, False),
    ),
    Setting(
        "autocast of the CPU",
        (contextlib.nullcontext, lambda: torch.autocast("cpu")),
        is_for_cpu=False,
    ),
    Setting("grad mode", (torch.enable_grad, torch.no_grad)),
    Setting("inference mode", (contextlib.nullcontext, torch.inference_mode)),
]


def _is_refused_on_cuda(one: Outcome) -> bool:
    """Whether an operator that is nondeterministic on CUDA was refused, at the call."""
    text = "does not have a deterministic implementation"
    return DEVICE.type == "cuda" and text in str(one.result) and not one.is_late


class _WaitsError(Exception):
    """A call waits for the stream."""


@dataclass(frozen=True)
class SettingChange(CallSequence):
    """A call after which a setting changes before the kernel runs: the gate holds the stream.

    Attributes:
        setting: The setting.
        order: The values at the call and afterwards.
        waits: The calls for which the host has waited, in these or other changes around the same
            call. Such a call cannot return before its kernel has run, and is not made again.
    """

    setting: Setting
    order: tuple[int, int]
    waits: set[str]

    def difference(self) -> tuple[str | None, frozenset[str]]:
        """Describes how the result differs from the CPU's with the setting at the time of the call.

        Returns:
            The description, or None if there is no difference; and the waits of the host.
        """
        if self.waits:
            return None, frozenset(self.waits)
        (arguments,) = self.steps
        if self.setting.scale != 1:
            arguments = scaled(arguments, self.setting.scale)
        at_call, afterwards = (self.setting.values[index] for index in self.order)
        text = f"{self.setting.name}, value {self.order[0]} at the call"
        function = self._under(at_call)
        expected = self._expected(at_call, arguments)
        first = outcome(function, arguments, DEVICE)
        if _is_refused_on_cuda(first) and not isinstance(expected.result, Exception):
            return None, frozenset()
        difference = outcome_difference(first, expected)
        if difference is not None:
            return f"{text}: first call with {arguments}: {difference}", frozenset()
        actual = self._gated(arguments, at_call, afterwards)
        if isinstance(actual.result, _WaitsError):
            self.waits.add(str(actual.result))
            return None, frozenset(self.waits)
        difference = outcome_difference(actual, expected)
        if difference is not None:
            return (
                f"{text} and the other before the run, with {arguments}: {difference}",
                frozenset(),
            )
        return None, frozenset()

    def _expected(self, at_call: _Scene, arguments: Arguments) -> Outcome:
        if not self.setting.is_for_cpu:
            return outcome(self.function, arguments, CPU)
        function = self._under(at_call)
        if not self.setting.is_of_thread:
            return outcome(function, arguments, CPU)
        with ThreadPoolExecutor(max_workers=1) as executor:
            return executor.submit(outcome, function, arguments, CPU).result()

    def _under(self, scene: _Scene) -> Callable[..., Any]:
        """The function with a setting in force; its arguments are made without."""

        def call(*args: Any, **kwargs: Any) -> Any:
            with scene():
                return self.function(*args, **kwargs)

        return call

    def _gated(self, arguments: Arguments, at_call: _Scene, afterwards: _Scene) -> Outcome:
        # What comes afterwards has to hold until the kernel has run.
        with contextlib.ExitStack() as until_done:

            def call(*args: Any, **kwargs: Any) -> Any:
                torch.accelerator.synchronize(DEVICE)
                with StreamGate() as gate:
                    has_waited = threading.Event()

                    def give_up() -> None:
                        has_waited.set()
                        gate.open()

                    watchdog = threading.Timer(_PATIENCE_S, give_up)
                    watchdog.start()
                    torch.openreg.set_sync_debug_mode("error")
                    try:
                        with at_call():
                            result = self.function(*args, **kwargs)
                    except NotImplementedError as error:
                        if "fallback mode" in str(error):
                            raise _WaitsError("the fallback") from None
                        raise
                    except RuntimeError as error:
                        if "called a synchronizing" in str(error):
                            raise _WaitsError("the stream") from None
                        raise
                    finally:
                        torch.openreg.set_sync_debug_mode("default")
                        watchdog.cancel()
                        watchdog.join()
                    if has_waited.is_set():
                        raise _WaitsError("the stream, in silence")
                    until_done.enter_context(afterwards())
                return result

            return outcome(call, arguments, DEVICE)


def changes_of(
    function: Callable[..., Any], arguments: Arguments, settings: Sequence[Setting]
) -> Iterator[SettingChange]:
    """Calls with each setting and each order of its values."""
    waits: set[str] = set()
    for setting in settings:
        for order in ((0, 1), (1, 0)):
            yield SettingChange(function, (arguments,), setting, order, waits)
