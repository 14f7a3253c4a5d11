"""The program ``nvidia-smi`` for emulated devices.

It is loaded without torch, and beside :mod:`pynvml` of this folder.
"""

from __future__ import annotations

import argparse
import importlib
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["main"]

# Beside this file; as a name of the search path, where it is found without the package.
nvml: Any = importlib.import_module("pynvml")

_ABSENT = "[N/A]"
_MIB = 1 << 20


def _capability(handle: Any) -> str:
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return f"{major}.{minor}"


# The fields of --query-gpu: the name, its unit, and the source of the value.
_FIELDS: dict[str, tuple[str, Callable[[Any], object]]] = {
    "timestamp": ("", lambda _: time.strftime("%Y/%m/%d %H:%M:%S.000")),
    "driver_version": ("", lambda _: nvml.nvmlSystemGetDriverVersion()),
    "count": ("", lambda _: nvml.nvmlDeviceGetCount()),
    "index": ("", nvml.nvmlDeviceGetIndex),
    "name": ("", nvml.nvmlDeviceGetName),
    "uuid": ("", nvml.nvmlDeviceGetUUID),
    "pci.bus_id": ("", lambda handle: nvml.nvmlDeviceGetPciInfo(handle).busId),
    "compute_cap": ("", _capability),
    "compute_mode": ("", lambda _: "Default"),
    "persistence_mode": ("", lambda _: "Disabled"),
    "memory.total": ("MiB", lambda handle: nvml.nvmlDeviceGetMemoryInfo(handle).total // _MIB),
    "memory.used": ("MiB", lambda handle: nvml.nvmlDeviceGetMemoryInfo(handle).used // _MIB),
    "memory.free": ("MiB", lambda handle: nvml.nvmlDeviceGetMemoryInfo(handle).free // _MIB),
    # What other processes do at this moment is not known here.
    "utilization.gpu": ("%", lambda _: None),
    "utilization.memory": ("%", lambda _: None),
    "temperature.gpu": ("", lambda _: None),
    "fan.speed": ("%", lambda _: None),
    "power.draw": ("W", lambda _: None),
    "power.limit": ("W", lambda _: None),
    "clocks.sm": ("MHz", lambda handle: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
    "clocks.mem": ("MHz", lambda _: None),
    "pstate": ("", lambda _: None),
    "ecc.errors.corrected.volatile.total": ("", lambda _: None),
    "mig.mode.current": ("", lambda _: None),
}
_OTHER_NAMES = {
    "gpu_name": "name",
    "gpu_uuid": "uuid",
    "gpu_bus_id": "pci.bus_id",
    "clocks.current.sm": "clocks.sm",
    "clocks.gr": "clocks.sm",
    "clocks.current.graphics": "clocks.sm",
}

# The report of -q: the name of each part for -d, its title, and the labels of its fields.
_PARTS: tuple[tuple[str, str, dict[str, str]], ...] = (
    (
        "",
        "",
        {
            "Product Name": "name",
            "Persistence Mode": "persistence_mode",
            "GPU UUID": "uuid",
            "Minor Number": "index",
        },
    ),
    ("", "PCI", {"Bus Id": "pci.bus_id"}),
    (
        "MEMORY",
        "FB Memory Usage",
        {"Total": "memory.total", "Used": "memory.used", "Free": "memory.free"},
    ),
    ("COMPUTE", "", {"Compute Mode": "compute_mode"}),
    ("UTILIZATION", "Utilization", {"Gpu": "utilization.gpu", "Memory": "utilization.memory"}),
    ("TEMPERATURE", "Temperature", {"GPU Current Temp": "temperature.gpu"}),
    ("POWER", "Power Readings", {"Power Draw": "power.draw", "Power Limit": "power.limit"}),
    ("CLOCK", "Clocks", {"SM": "clocks.sm", "Memory": "clocks.mem"}),
)
_PROCESSES = "PIDS"  # the part with the processes
_PART_NAMES = [*dict.fromkeys(name for name, _, _ in _PARTS if name), _PROCESSES]

_PROCESS_FIELDS: dict[str, tuple[str, Callable[[Any, Any], object]]] = {
    "pid": ("", lambda handle, process: process.pid),
    "process_name": ("", lambda handle, process: _name_of(process.pid)),
    "gpu_uuid": ("", lambda handle, process: nvml.nvmlDeviceGetUUID(handle)),
    "gpu_name": ("", lambda handle, process: nvml.nvmlDeviceGetName(handle)),
    "used_memory": ("MiB", lambda handle, process: process.usedGpuMemory // _MIB),
}
_PROCESS_OTHER_NAMES = {"name": "process_name", "used_gpu_memory": "used_memory"}


def _name_of(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return _ABSENT


def main(arguments: Sequence[str]) -> int:
    """Runs the program.

    Args:
        arguments: The command line without the program's name.

    Returns:
        The exit status: 0; 2 for an invalid argument, 6 if the device does not exist, 9 if a
        setting is invalid or the library is missing.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.display is not None and not options.query:
        parser.error("-d: expected -q as well")
    # The program lists all devices, including those that are hidden from processes.
    for variable in ("CUDA_VISIBLE_DEVICES", "OPENREG_VISIBLE_DEVICES"):
        os.environ.pop(variable, None)
    try:
        nvml.nvmlInit()
    except nvml.NVMLError_DriverNotLoaded:
        print("nvidia-smi: a setting is invalid, or the library of torch_openreg is missing;")
        print("run python -m torch_openreg --settings to see the settings")
        return 9
    try:
        handles = _selected(options.id)
    except (nvml.NVMLError, ValueError):
        print(f"No devices were found: expected a number below {nvml.nvmlDeviceGetCount()}, a "
              f"UUID or a bus id as -i, got {options.id!r}")  # fmt: skip
        return 6
    if options.list_gpus:
        for handle in handles:
            name, uuid = nvml.nvmlDeviceGetName(handle), nvml.nvmlDeviceGetUUID(handle)
            print(f"GPU {handle.index}: {name} (UUID: {uuid})")
    elif options.query:
        _print_report(handles, _parts_of(parser, options.display))
    elif options.query_gpu is not None:
        devices = [(handle,) for handle in handles]
        _print_table(parser, options, options.query_gpu, _FIELDS, _OTHER_NAMES, devices)
    elif options.query_compute_apps is not None:
        processes = [
            (handle, process)
            for handle in handles
            for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        ]
        _print_table(
            parser,
            options,
            options.query_compute_apps,
            _PROCESS_FIELDS,
            _PROCESS_OTHER_NAMES,
            processes,
        )
    else:
        _print_summary(handles)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nvidia-smi", description="Lists the emulated devices of torch_openreg."
    )
    parser.add_argument("-L", "--list-gpus", action="store_true", help="one line for each device")
    parser.add_argument("-i", "--id", metavar="LIST", help="numbers, UUIDs or bus ids of devices")
    parser.add_argument("-q", "--query", action="store_true", help="all about each device")
    parser.add_argument(
        "-d", "--display", metavar="PARTS", help=f"with -q, only: {', '.join(_PART_NAMES)}"
    )
    known = ", ".join(_FIELDS)
    parser.add_argument("--query-gpu", metavar="FIELDS", help=f"with --format: {known}")
    known = ", ".join(_PROCESS_FIELDS)
    parser.add_argument("--query-compute-apps", metavar="FIELDS", help=f"with --format: {known}")
    parser.add_argument("--format", metavar="csv[,noheader][,nounits]", help="of a query")
    return parser


def _selected(names: str | None) -> list[Any]:
    if names is None:
        return [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    handles = []
    for name in names.split(","):
        if name.startswith("GPU-"):
            handles.append(nvml.nvmlDeviceGetHandleByUUID(name))
        elif ":" in name:
            handles.append(nvml.nvmlDeviceGetHandleByPciBusId(name))
        else:
            handles.append(nvml.nvmlDeviceGetHandleByIndex(int(name)))
    return handles


def _print_table(
    parser: argparse.ArgumentParser,
    options: argparse.Namespace,
    query: str,
    known: dict[str, tuple[str, Callable[..., object]]],
    other_names: dict[str, str],
    subjects: Sequence[tuple[Any, ...]],
) -> None:
    """Prints a row for each subject of a query."""
    style = (options.format or "").split(",")
    if style[0] != "csv" or not set(style[1:]) <= {"noheader", "nounits"}:
        parser.error(f"--format: expected csv[,noheader][,nounits], got {options.format!r}")
    asked = [name.strip() for name in query.split(",")]
    names = [other_names.get(name, name) for name in asked]
    for given, name in zip(asked, names, strict=True):
        if name not in known:
            parser.error(
                f'Field "{given}" is not a valid field to query; known: {", ".join(known)}'
            )
    has_units = "nounits" not in style
    if "noheader" not in style:
        units = [known[name][0] for name in names]
        heads = [f"{a} [{unit}]" if unit else a for a, unit in zip(asked, units, strict=True)]
        print(", ".join(heads))
    for subject in subjects:
        print(", ".join(_text(*known[name], subject, has_units) for name in names))


def _text(
    unit: str, value_of: Callable[..., object], subject: tuple[Any, ...], has_unit: bool
) -> str:
    try:
        value = value_of(*subject)
    except nvml.NVMLError_NotSupported:
        value = None
    if value is None:
        return _ABSENT
    return f"{value} {unit}" if unit and has_unit else str(value)


def _parts_of(parser: argparse.ArgumentParser, text: str | None) -> set[str]:
    """Returns the parts of the report that -d names; without it, all."""
    if text is None:
        return {"", *_PART_NAMES}
    names = {name.strip().upper() for name in text.split(",")}
    if not names <= set(_PART_NAMES):
        parser.error(f"-d: expected parts of {', '.join(_PART_NAMES)}, got {text!r}")
    return names


def _print_report(handles: Sequence[Any], shown: set[str]) -> None:
    print(f"\n{'=' * 14}NVSMI LOG{'=' * 14}\n")
    _print_value(0, "Timestamp", _now())
    _print_value(0, "Driver Version", nvml.nvmlSystemGetDriverVersion())
    _print_value(0, "CUDA Version", _cuda_version())
    print()
    _print_value(0, "Attached GPUs", nvml.nvmlDeviceGetCount())
    for handle in handles:
        print(f"GPU {nvml.nvmlDeviceGetPciInfo(handle).busId}")
        for name, title, fields in _PARTS:
            if name not in shown:
                continue
            if title:
                print(f"    {title}")
            for label, field in fields.items():
                value = _text(*_FIELDS[field], (handle,), has_unit=True)
                _print_value(8 if title else 4, label, value.strip("[]"))
        if _PROCESSES in shown:
            _print_processes(nvml.nvmlDeviceGetComputeRunningProcesses(handle))
    print()


def _print_processes(processes: Sequence[Any]) -> None:
    if not processes:
        _print_value(4, "Processes", "None")
        return
    print("    Processes")
    for process in processes:
        _print_value(8, "Process ID", process.pid)
        _print_value(12, "Type", "C")
        _print_value(12, "Name", _name_of(process.pid))
        _print_value(12, "Used GPU Memory", f"{process.usedGpuMemory // _MIB} MiB")


def _print_value(indentation: int, label: str, value: object) -> None:
    print(f"{' ' * indentation + label:<50} : {value}")


def _now() -> str:
    return time.strftime("%a %b %d %H:%M:%S %Y")


def _cuda_version() -> str:
    version = nvml.nvmlSystemGetCudaDriverVersion()
    return f"{version // 1000}.{version % 1000 // 10}" if version else "N/A"


_WIDTH = 77


def _print_summary(handles: Sequence[Any]) -> None:
    version, cuda = nvml.nvmlSystemGetDriverVersion(), _cuda_version()
    line = f"+{'-' * _WIDTH}+"
    print(_now())
    print(line)
    print(_row(f"torch_openreg  Driver Version: {version}  CUDA Version: {cuda}"))
    print(_row("Emulated devices: the memory is the machine's, and there are no sensors"))
    print(line)
    for handle in handles:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        bus = nvml.nvmlDeviceGetPciInfo(handle).busId
        print(_row(f"{handle.index:>3}  {nvml.nvmlDeviceGetName(handle)}"))
        sizes = f"{memory.used // _MIB}MiB / {memory.total // _MIB}MiB"
        print(_row(f"     {bus}   {sizes:>24}   capability {_capability(handle)}"))
    print(line)
    print()
    print(line)
    print(_row("Processes:"))
    print(_row(f"{'GPU':>3}  {'PID':>9}  {'GPU Memory':>12}  Process name"))
    has_process = False
    for handle in handles:
        for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle):
            has_process = True
            size = f"{process.usedGpuMemory // _MIB}MiB"
            name = _name_of(process.pid)
            print(_row(f"{handle.index:>3}  {process.pid:>9}  {size:>12}  {name}"))
    if not has_process:
        print(_row("No running processes found"))
    print(line)


def _row(text: str) -> str:
    return f"| {text[: _WIDTH - 2]:<{_WIDTH - 2}} |"
