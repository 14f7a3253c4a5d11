"""The functions of ``torch.cuda.tunable``: the settings of an optimization that is off.

There are no CUDA kernels to tune, so switching it on raises an error. Its settings are stored and
can be read, since programs set them even if it is off; there are no results.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["SUPPLIED"]


@dataclass
class _Settings:
    """The settings, with the defaults of builds with CUDA."""

    is_tuning: bool = True
    max_tuning_duration: int = 30  # ms
    max_tuning_iterations: int = 100
    filename: str = "tunableop_results.csv"
    rotating_buffer_size: int = 0  # MiB
    cublaslt_requested_algo_count: int = 1


_settings = _Settings()


def _getter(name: str) -> Callable[[], Any]:
    return lambda: getattr(_settings, name)


def _setter(name: str) -> Callable[..., None]:
    def set_value(value: Any, *_: object) -> None:
        setattr(_settings, name, value)

    return set_value


def _refuse_to_enable(function: str) -> Callable[[bool], None]:
    def enable(value: bool) -> None:
        if value:
            raise NotImplementedError(
                f"torch.cuda.tunable.{function}: expected False, got {value}; there are no CUDA "
                "kernels to tune"
            )

    return enable


def _read_file(filename: str = "") -> bool:
    del filename  # of another machine: there is nothing here that its results are of
    return False


SUPPLIED: dict[str, Any] = {
    "_cuda_record_untuned_enable": _refuse_to_enable("record_untuned_enable"),
    "_cuda_record_untuned_is_enabled": lambda: False,
    "_cuda_tunableop_clear_all": lambda: None,
    "_cuda_tunableop_enable": _refuse_to_enable("enable"),
    "_cuda_tunableop_get_cublaslt_requested_algo_count": _getter("cublaslt_requested_algo_count"),
    "_cuda_tunableop_get_filename": _getter("filename"),
    "_cuda_tunableop_get_max_tuning_duration": _getter("max_tuning_duration"),
    "_cuda_tunableop_get_max_tuning_iterations": _getter("max_tuning_iterations"),
    "_cuda_tunableop_get_results": tuple,
    "_cuda_tunableop_get_rotating_buffer_size": _getter("rotating_buffer_size"),
    "_cuda_tunableop_get_validators": tuple,
    "_cuda_tunableop_is_enabled": lambda: False,
    "_cuda_tunableop_read_file": _read_file,
    "_cuda_tunableop_set_cublaslt_requested_algo_count": _setter("cublaslt_requested_algo_count"),
    "_cuda_tunableop_set_filename": _setter("filename"),
    "_cuda_tunableop_set_max_tuning_duration": _setter("max_tuning_duration"),
    "_cuda_tunableop_set_max_tuning_iterations": _setter("max_tuning_iterations"),
    "_cuda_tunableop_set_numerical_check_tolerances": lambda *_: None,
    "_cuda_tunableop_set_rotating_buffer_size": _setter("rotating_buffer_size"),
    "_cuda_tunableop_tuning_enable": _setter("is_tuning"),
    "_cuda_tunableop_tuning_is_enabled": _getter("is_tuning"),
}
