"""NVML's Python module for emulated devices: the functions that programs call most.

Names, constants and results are those of ``nvidia-ml-py``. A device is known by its number without
``CUDA_VISIBLE_DEVICES``, as in NVML. Its memory in use is what processes of this machine hold: of
this process what its allocator has reserved, of others the pages that they have touched. There are
no sensors, so temperature, power and clocks raise ``NVMLError_NotSupported``.

The module is loaded without torch: it calls the runtime's library.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).resolve().parents[3]

NVML_SUCCESS = 0
NVML_ERROR_UNINITIALIZED = 1
NVML_ERROR_INVALID_ARGUMENT = 2
NVML_ERROR_NOT_SUPPORTED = 3
NVML_ERROR_NOT_FOUND = 6
NVML_ERROR_DRIVER_NOT_LOADED = 9
NVML_ERROR_UNKNOWN = 999
NVML_TEMPERATURE_GPU = 0
NVML_CLOCK_GRAPHICS = 0
NVML_CLOCK_SM = 1
NVML_CLOCK_MEM = 2
NVML_CLOCK_VIDEO = 3
NVML_COMPUTEMODE_DEFAULT = 0
NVML_FEATURE_DISABLED = 0
NVML_FEATURE_ENABLED = 1

_ERRORS = {
    NVML_ERROR_UNINITIALIZED: ("Uninitialized", "Uninitialized"),
    NVML_ERROR_INVALID_ARGUMENT: ("InvalidArgument", "Invalid Argument"),
    NVML_ERROR_NOT_SUPPORTED: ("NotSupported", "Not Supported"),
    NVML_ERROR_NOT_FOUND: ("NotFound", "Not Found"),
    NVML_ERROR_DRIVER_NOT_LOADED: ("DriverNotLoaded", "Driver Not Loaded"),
    NVML_ERROR_UNKNOWN: ("Unknown", "Unknown Error"),
}


class NVMLError(Exception):
    """An error of NVML: ``value`` is its number."""

    value: int = NVML_ERROR_UNKNOWN

    def __new__(cls, value: int = NVML_ERROR_UNKNOWN) -> NVMLError:
        """Makes an instance of the class of the number."""
        kind = _CLASSES.get(value, cls) if cls is NVMLError else cls
        return super().__new__(kind, value)

    def __init__(self, value: int | None = None) -> None:
        """Keeps the number; that of the class, if there is none."""
        super().__init__(value)
        if value is not None:
            self.value = value

    def __str__(self) -> str:
        """Returns NVML's text."""
        return _ERRORS.get(self.value, ("", f"NVML Error with code {self.value}"))[1]


_CLASSES: dict[int, type[NVMLError]] = {
    number: type(f"NVMLError_{name}", (NVMLError,), {"value": number, "__doc__": text})
    for number, (name, text) in _ERRORS.items()
}
NVMLError_Uninitialized = _CLASSES[NVML_ERROR_UNINITIALIZED]
NVMLError_InvalidArgument = _CLASSES[NVML_ERROR_INVALID_ARGUMENT]
NVMLError_NotSupported = _CLASSES[NVML_ERROR_NOT_SUPPORTED]
NVMLError_NotFound = _CLASSES[NVML_ERROR_NOT_FOUND]
NVMLError_DriverNotLoaded = _CLASSES[NVML_ERROR_DRIVER_NOT_LOADED]
NVMLError_Unknown = _CLASSES[NVML_ERROR_UNKNOWN]


@dataclass(frozen=True)
class c_nvmlMemory_t:
    """Bytes of a device."""

    total: int
    free: int
    used: int


@dataclass(frozen=True)
class c_nvmlUtilization_t:
    """Percentages of time: with a kernel that runs, and with one that uses the memory."""

    gpu: int
    memory: int


@dataclass(frozen=True)
class c_nvmlProcessInfo_t:
    """A process that uses a device."""

    pid: int
    usedGpuMemory: int


@dataclass(frozen=True)
class nvmlPciInfo_t:
    """Where a device is on the bus."""

    busId: str
    domain: int
    bus: int
    device: int


@dataclass(frozen=True)
class _Handle:
    index: int


class _Properties(ctypes.Structure):
    """``orDeviceProp`` of openreg/device.h."""

    _fields_ = (
        ("name", ctypes.c_char * 64),
        ("total_memory", ctypes.c_size_t),
        ("major", ctypes.c_int),
        ("minor", ctypes.c_int),
        ("processors", ctypes.c_int),
        ("physical_index", ctypes.c_int),
        ("clock_rate", ctypes.c_int),
        ("warp_size", ctypes.c_int),
        ("texture_alignment", ctypes.c_size_t),
        ("concurrent_kernels", ctypes.c_int),
        ("unified_addressing", ctypes.c_int),
        ("is_integrated", ctypes.c_int),
    )


_BadSetting = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p)
_runtime: Any = None
_uses = 0  # calls of nvmlInit that nvmlShutdown has not matched


def _check(error: int) -> None:
    if error != 0:
        raise NVMLError(NVML_ERROR_UNKNOWN)


def _library() -> Any:
    """Returns the runtime's library, which a process that uses torch has loaded already."""
    global _runtime
    if _runtime is None:
        path = _PACKAGE / "lib" / "libopenreg.so"
        try:
            _runtime = ctypes.CDLL(str(path))
        except OSError:
            raise NVMLError(NVML_ERROR_DRIVER_NOT_LOADED) from None
    return _runtime


def nvmlInit() -> None:
    """Begins the use of NVML.

    Raises:
        NVMLError_DriverNotLoaded: The runtime's library is missing, or a setting is bad that this
            module or the runtime reads, or in a process with torch any one.
    """
    global _uses
    if not re.fullmatch(r"[0-9]+\.[0-9]+", _capability()):
        raise NVMLError(NVML_ERROR_DRIVER_NOT_LOADED)
    texts: list[bytes] = []
    count = ctypes.c_int()
    report = _BadSetting(lambda _, text: texts.append(text))
    error = _library().orReviewSettings(ctypes.byref(count), report, None)
    if error != 0 or texts:
        raise NVMLError(NVML_ERROR_DRIVER_NOT_LOADED)
    _uses += 1


nvmlInit_v2 = nvmlInit


def nvmlInitWithFlags(flags: int) -> None:
    """As :func:`nvmlInit`."""
    del flags
    nvmlInit()


def nvmlShutdown() -> None:
    """Ends the use that :func:`nvmlInit` began."""
    global _uses
    _check_is_initialized()
    _uses -= 1


def _check_is_initialized() -> None:
    if _uses == 0:
        raise NVMLError(NVML_ERROR_UNINITIALIZED)


def nvmlSystemGetDriverVersion() -> str:
    """Returns a number that means "no driver", and the version of this package."""
    _check_is_initialized()
    text = (_PACKAGE / "_version.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(.*)"$', text, re.MULTILINE)
    return f"0.{found[1] if found else '0'}"


nvmlSystemGetNVMLVersion = nvmlSystemGetDriverVersion


def nvmlSystemGetCudaDriverVersion() -> int:
    """Returns the version in OPENREG_CUDA_VERSION as CUDA writes it, 12080 of 12.8; 0 if none."""
    _check_is_initialized()
    major, _, minor = os.environ.get("OPENREG_CUDA_VERSION", "").partition(".")
    is_given = major.isdigit() and minor.isdigit()
    return int(major) * 1000 + int(minor) * 10 if is_given else 0


nvmlSystemGetCudaDriverVersion_v2 = nvmlSystemGetCudaDriverVersion


def _visible() -> list[_Properties]:
    """Returns the properties of the visible devices, in the order of this process."""
    _check_is_initialized()
    count = ctypes.c_int()
    _check(_library().orGetDeviceCount(ctypes.byref(count)))
    all_properties = []
    for index in range(count.value):
        properties = _Properties()
        _check(_library().orGetDeviceProperties(ctypes.byref(properties), index))
        all_properties.append(properties)
    return all_properties


def nvmlDeviceGetCount() -> int:
    """Returns how many devices there are, visible or not."""
    _check_is_initialized()
    return int(os.environ.get("OPENREG_DEVICE_COUNT", "2"))


nvmlDeviceGetCount_v2 = nvmlDeviceGetCount


def nvmlDeviceGetHandleByIndex(index: int) -> _Handle:
    """Returns the handle of a device."""
    if not 0 <= index < nvmlDeviceGetCount():
        raise NVMLError(NVML_ERROR_INVALID_ARGUMENT)
    return _Handle(index)


nvmlDeviceGetHandleByIndex_v2 = nvmlDeviceGetHandleByIndex


def nvmlDeviceGetHandleByUUID(uuid: str | bytes) -> _Handle:
    """Returns the handle of the device with a UUID."""
    text = uuid.decode() if isinstance(uuid, bytes) else uuid
    return _found(nvmlDeviceGetUUID, text)


def nvmlDeviceGetHandleByPciBusId(bus_id: str | bytes) -> _Handle:
    """Returns the handle of the device at a place of the bus."""
    text = bus_id.decode() if isinstance(bus_id, bytes) else bus_id
    return _found(lambda handle: nvmlDeviceGetPciInfo(handle).busId, text)


nvmlDeviceGetHandleByPciBusId_v2 = nvmlDeviceGetHandleByPciBusId


def _found(name_of: Any, name: str) -> _Handle:
    for index in range(nvmlDeviceGetCount()):
        if name_of(_Handle(index)) == name:
            return _Handle(index)
    raise NVMLError(NVML_ERROR_NOT_FOUND)


def _properties(handle: _Handle) -> _Properties:
    """Returns the runtime's properties of a device; for a hidden device, those of another one.

    They differ in nothing but their number.
    """
    visible = _visible()
    if not visible:
        raise NVMLError(NVML_ERROR_NOT_FOUND)
    return next((one for one in visible if one.physical_index == handle.index), visible[0])


def nvmlDeviceGetName(handle: _Handle) -> str:
    """Returns the name of a device, as ``torch.cuda.get_device_name``."""
    name: bytes = _properties(handle).name
    return name.decode()


def nvmlDeviceGetIndex(handle: _Handle) -> int:
    """Returns the number of a device."""
    return handle.index


def nvmlDeviceGetMinorNumber(handle: _Handle) -> int:
    """Returns the number of a device."""
    return handle.index


def nvmlDeviceGetUUID(handle: _Handle) -> str:
    """Returns the UUID of a device, as ``torch.cuda.get_device_properties`` has it."""
    return f"GPU-00000000-0000-0000-0000-{handle.index:012x}"


def nvmlDeviceGetPciInfo(handle: _Handle) -> nvmlPciInfo_t:
    """Returns where a device is on the bus."""
    return nvmlPciInfo_t(f"00000000:{handle.index:02X}:00.0", 0, handle.index, 0)


nvmlDeviceGetPciInfo_v3 = nvmlDeviceGetPciInfo


def nvmlDeviceGetCudaComputeCapability(handle: _Handle) -> tuple[int, int]:
    """Returns the compute capability: the setting OPENREG_CUDA_CAPABILITY."""
    del handle
    major, minor = _capability().split(".")
    return int(major), int(minor)


def _capability() -> str:
    return os.environ.get("OPENREG_CUDA_CAPABILITY", "8.0")


def nvmlDeviceGetComputeMode(handle: _Handle) -> int:
    """Returns that processes share the device."""
    del handle
    return NVML_COMPUTEMODE_DEFAULT


def nvmlDeviceGetPersistenceMode(handle: _Handle) -> int:
    """Returns that persistence mode is off: no driver is installed."""
    del handle
    return NVML_FEATURE_DISABLED


# --- Memory and processes


def _own_memory(handle: _Handle) -> int | None:
    """Returns how much this process has of a device; None if it does not use it."""
    runtime = _library()
    for index, properties in enumerate(_visible()):
        if properties.physical_index != handle.index:
            continue
        is_active = ctypes.c_int()
        _check(runtime.orDeviceIsActive(index, ctypes.byref(is_active)))
        if not is_active.value:
            return None
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        _check(runtime.orMemGetInfo(ctypes.byref(free), ctypes.byref(total), index))
        return total.value - free.value
    return None


def _others_memory(handle: _Handle) -> Iterator[tuple[int, int]]:
    """Yields each other process that uses a device, and how much of it."""
    for folder in Path("/proc").glob("[0-9]*"):
        if int(folder.name) == os.getpid():
            continue
        try:
            used = _touched_memory(folder, handle.index)
        except OSError:  # the process has ended, or is another user's
            continue
        if used is not None:
            yield int(folder.name), used


def _touched_memory(process: Path, index: int) -> int | None:
    """Returns the size of the allocated pages of a device's memory file in another process."""
    used = None
    for file in (process / "fd").iterdir():
        name = os.readlink(file)
        # As the runtime names its files.
        if name.startswith("/memfd:openreg-device-"):
            number = int(name.removeprefix("/memfd:openreg-device-").split()[0])
            if _number_in(process, number) == index:
                used = (used or 0) + file.stat().st_blocks * 512
    return used


def _number_in(process: Path, visible_index: int) -> int:
    """Returns the index of a device that has another index in another process."""
    entries = (process / "environ").read_bytes().split(b"\0")
    variables = dict(entry.decode(errors="replace").partition("=")[::2] for entry in entries)
    for name in ("OPENREG_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        numbers = [one.strip() for one in variables.get(name, "").split(",")]
        if name in variables and visible_index < len(numbers) and numbers[visible_index].isdigit():
            return int(numbers[visible_index])
    return visible_index


def nvmlDeviceGetComputeRunningProcesses(handle: _Handle) -> list[c_nvmlProcessInfo_t]:
    """Returns the processes that use a device, in order of their numbers."""
    found = dict(_others_memory(handle))
    own = _own_memory(handle)
    if own is not None:
        found[os.getpid()] = own
    return [c_nvmlProcessInfo_t(pid, found[pid]) for pid in sorted(found)]


nvmlDeviceGetComputeRunningProcesses_v2 = nvmlDeviceGetComputeRunningProcesses
nvmlDeviceGetComputeRunningProcesses_v3 = nvmlDeviceGetComputeRunningProcesses


def nvmlDeviceGetGraphicsRunningProcesses(handle: _Handle) -> list[c_nvmlProcessInfo_t]:
    """Returns no process: none draws."""
    del handle
    _check_is_initialized()
    return []


def nvmlDeviceGetMemoryInfo(handle: _Handle, version: int | None = None) -> c_nvmlMemory_t:
    """Returns how much memory a device has, and how much of it processes hold.

    Each process has the whole capacity for itself, so that all together may hold more.
    """
    del version
    total: int = _properties(handle).total_memory
    used = sum(one.usedGpuMemory for one in nvmlDeviceGetComputeRunningProcesses(handle))
    return c_nvmlMemory_t(total, max(total - used, 0), used)


def nvmlDeviceGetUtilizationRates(handle: _Handle) -> c_nvmlUtilization_t:
    """Returns 100 if work of this process is under way on a device at this moment, else 0."""
    for index, properties in enumerate(_visible()):
        if properties.physical_index == handle.index:
            is_busy = ctypes.c_int()
            _check(_library().orDeviceIsBusy(index, ctypes.byref(is_busy)))
            return c_nvmlUtilization_t(100 * is_busy.value, 100 * is_busy.value)
    return c_nvmlUtilization_t(0, 0)


# --- There are no sensors


def _not_supported(handle: _Handle) -> int:
    del handle
    _check_is_initialized()
    raise NVMLError(NVML_ERROR_NOT_SUPPORTED)


def nvmlDeviceGetTemperature(handle: _Handle, sensor: int) -> int:
    """Raises NVMLError_NotSupported."""
    del sensor
    return _not_supported(handle)


def nvmlDeviceGetPowerUsage(handle: _Handle) -> int:
    """Raises NVMLError_NotSupported."""
    return _not_supported(handle)


def nvmlDeviceGetEnforcedPowerLimit(handle: _Handle) -> int:
    """Raises NVMLError_NotSupported."""
    return _not_supported(handle)


def nvmlDeviceGetPowerManagementLimit(handle: _Handle) -> int:
    """Raises NVMLError_NotSupported."""
    return _not_supported(handle)


def nvmlDeviceGetFanSpeed(handle: _Handle) -> int:
    """Raises NVMLError_NotSupported."""
    return _not_supported(handle)


def nvmlDeviceGetClockInfo(handle: _Handle, kind: int) -> int:
    """Returns the clock of the processors in MHz; raises NVMLError_NotSupported if not known."""
    rate: int = _properties(handle).clock_rate
    if kind not in (NVML_CLOCK_GRAPHICS, NVML_CLOCK_SM) or rate == 0:
        return _not_supported(handle)
    return rate // 1000


nvmlDeviceGetMaxClockInfo = nvmlDeviceGetClockInfo
