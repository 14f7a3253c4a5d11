"""Random numbers: one generator per device.

A generator draws as the CPU's does, so the same seed gives the same numbers on the CPU and on any
openreg device. Seeding and reading the state create no device. Reading the state waits for the
kernels that draw; seeding and setting the state wait for nothing.
"""

import copyreg
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from torch_openreg import _C
from torch_openreg.openreg._utils import DEVICE_TYPE, _checked_index, _integer, _named
from torch_openreg.openreg.initialization import _check_fork

__all__ = [
    "get_offset",
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_offset",
    "set_rng_state",
    "set_rng_state_all",
]

_DeviceArgument = int | str | torch.device


def _generator(operation: str, device: _DeviceArgument | None) -> torch.Generator:
    _check_fork()
    return _C._get_default_generator(_checked_index(operation, device))


def _seedable_devices() -> int:
    """How many devices can be seeded: none in a child that cannot use devices.

    Programs seed everything before anything else, also in DataLoader workers.
    """
    return 0 if _C._is_in_bad_fork() else _C._get_device_count()


class _DefaultGenerators(tuple[torch.Generator, ...]):
    """The default generators, one per device: they draw for operators without a generator argument.

    ``torch.openreg.default_generators[1]`` is that of ``openreg:1``, a :class:`torch.Generator`.
    """

    __slots__ = ()


def _get_default_generators() -> tuple[torch.Generator, ...]:
    return _DefaultGenerators(
        _C._get_default_generator(index) for index in range(_C._get_device_count())
    )


def _get_generator(device: torch.device) -> torch.Generator:
    """Returns the default generator of a device."""
    return _generator("torch.openreg._get_generator", device)


def get_rng_state(device: _DeviceArgument = DEVICE_TYPE) -> Tensor:
    """Returns the state of a device's generator: a uint8 tensor on the CPU.

    It has 5056 elements, as the CPU's; where the device type is CUDA, 16: the seed and the offset.
    Waits for the kernels that draw from the generator.

    Args:
        device: The device; without an index, the current one.

    Raises:
        RuntimeError: The device does not exist.
    """
    return _state_of(_generator("torch.openreg.get_rng_state", device))


def _state_of(generator: torch.Generator) -> Tensor:
    # get_state() would wait with the GIL.
    _C._wait_for_generator(generator)
    return generator.get_state()


def _reduce_generator(generator: torch.Generator) -> Any:
    """Decomposes a generator for ``pickle`` and ``copy``; torch's own function needs an offset."""
    if generator.device.type != DEVICE_TYPE:
        return generator.__reduce__()
    state = (generator.initial_seed(), None, _state_of(generator))
    return torch.Generator, (generator.device,), state


copyreg.pickle(torch.Generator, _reduce_generator)


def get_rng_state_all() -> list[Tensor]:
    """Returns the states of the generators of all devices, in order of their index.

    Each is as :func:`get_rng_state` returns it. Waits for the kernels that draw.
    """
    return [get_rng_state(index) for index in range(_C._get_device_count())]


def set_rng_state(new_state: Tensor, device: _DeviceArgument = DEVICE_TYPE) -> None:
    """Sets the state of a device's generator.

    Args:
        new_state: A state from :func:`get_rng_state`; unless the device type is CUDA, also one from
            ``torch.get_rng_state``.
        device: The device; without an index, the current one.

    Raises:
        TypeError: The state is not a uint8 tensor.
        RuntimeError: The state is not one of the algorithm, or the device does not exist.
    """
    operation = "torch.openreg.set_rng_state"
    if not isinstance(new_state, Tensor) or new_state.dtype != torch.uint8:
        got = new_state.dtype if isinstance(new_state, Tensor) else repr(new_state)
        raise TypeError(f"{_named(operation)}: expected a uint8 tensor as new_state, got {got}")
    _generator(operation, device).set_state(new_state)


def set_rng_state_all(new_states: Iterable[Tensor]) -> None:
    """Sets the states of the generators of all devices, in order of their index.

    Args:
        new_states: States from :func:`get_rng_state_all`; those of devices after the last one are
            not changed.

    Raises:
        TypeError: The argument is not iterable, or a state is not a uint8 tensor.
        RuntimeError: A state does not fit the algorithm, or there are more states than devices.
    """
    if not isinstance(new_states, Iterable):
        raise TypeError(
            f"{_named('torch.openreg.set_rng_state_all')}: expected states as new_states, got "
            f"{new_states!r}"
        )
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


# docs: manual-seed
def manual_seed(seed: int) -> None:
    """Sets the seed of the current device's generator.

    Has no effect if no device is available. ``torch.manual_seed`` seeds all devices.

    Args:
        seed: From -2**63 to 2**64 - 1; a negative seed means 2**64 + ``seed``.

    Raises:
        TypeError: The seed is not a number.
        ValueError: The seed is out of range.
    """
    seed = _checked_seed("torch.openreg.manual_seed", seed)
    if _seedable_devices() > 0:
        _C._get_default_generator(_C._get_device()).manual_seed(seed)


# docs: end


def _checked_seed(operation: str, seed: Any) -> int:
    try:
        number = int(seed)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{_named(operation)}: expected an int as seed, got {seed!r}") from None
    if not -(2**63) <= number < 2**64:
        raise ValueError(
            f"{_named(operation)}: expected seed from -2**63 to 2**64 - 1, got {number}"
        )
    return number


def manual_seed_all(seed: int) -> None:
    """Sets the seed of the generators of all devices. Does nothing if there are none.

    Args:
        seed: As for :func:`manual_seed`.

    Raises:
        TypeError: The seed is not a number.
        ValueError: The seed is out of range.
    """
    seed = _checked_seed("torch.openreg.manual_seed_all", seed)
    for index in range(_seedable_devices()):
        _C._get_default_generator(index).manual_seed(seed)


def seed() -> None:
    """Seeds the current device's generator with a random number."""
    if _seedable_devices() > 0:
        _C._get_default_generator(_C._get_device()).seed()


def seed_all() -> None:
    """Seeds the generators of all devices with one random number."""
    if _seedable_devices() > 0:
        manual_seed_all(_C._get_default_generator(0).seed())


def initial_seed() -> int:
    """Returns the seed of the current device's generator.

    Raises:
        RuntimeError: No device is available.
    """
    return _generator("torch.openreg.initial_seed", None).initial_seed()


def set_offset(offset: int, device: _DeviceArgument = DEVICE_TYPE) -> None:
    """Sets how many 32-bit numbers have been drawn since the seed; for the device type CUDA only.

    Args:
        offset: From 0 to 2**32.
        device: The device; without an index, the current one.

    Raises:
        TypeError: The offset is not an int.
        ValueError: The offset is out of range.
        RuntimeError: The device type is openreg, whose generators have no offset; use
            :func:`set_rng_state`.
    """
    operation = "torch.openreg.set_offset"
    offset = _integer(operation, "offset", offset, 0, 2**32)
    _generator(operation, device).set_offset(offset)


def get_offset(device: _DeviceArgument = DEVICE_TYPE) -> int:
    """Returns how many 32-bit numbers have been drawn since the seed; for the device type CUDA.

    Waits for the kernels that draw.

    Args:
        device: The device; without an index, the current one.

    Raises:
        RuntimeError: The device type is openreg, whose generators have no offset; use
            :func:`get_rng_state`.
    """
    generator = _generator("torch.openreg.get_offset", device)
    if DEVICE_TYPE == "cuda":
        _C._wait_for_generator(generator)
    return generator.get_offset()


_set_rng_state_offset = set_offset  # the name that torch looks up
