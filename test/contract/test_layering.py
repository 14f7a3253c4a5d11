"""Arrows point one way: Python -> bindings -> backend -> runtime."""

import graphlib
import re
import subprocess
import sys
import unittest
from pathlib import Path

from source_tree import (
    BACKEND,
    INCLUDE,
    LIBRARIES,
    ROOT,
    RUNTIME,
    backend_files,
    code_of,
    includes_of,
    part_of,
    public_headers,
    relative,
    runtime_calls,
    runtime_sources,
    unit_of,
)
from torch.testing._internal.common_utils import TestCase, run_tests

sys.path.insert(0, str(ROOT / "tools" / "backend"))
from openreg_extras import EXTRAS, extra_of

C_STANDARD_HEADERS = {"<stddef.h>", "<stdint.h>"}
HEADERS_FOR_CPP = {"callable.h"}  # empty for C; they may include the C++ library
FOREIGN_TO_THE_RUNTIME = re.compile(r"[<\"](torch|ATen|c10|caffe2|pybind11|csrc|Python\.h)\b")
# Of torch/csrc, the pickler, the profiler, autograd's functions, c10d and what compiled programs
# call are parts of libtorch_cpu.
OF_PYTHON = re.compile(
    r"[<\"](Python\.h|pybind11/|torch/extension\.h|torch/python\.h"
    r"|torch/csrc/(?!jit/|inductor/aoti_(torch|runner|runtime)/|stable/c/"
    r"|autograd/(autograd|custom_function)\.h|profiler/(?!python/)"
    r"|distributed/c10d/(?![Pp]y)))"
)

# The parts of the backend that the files of each part may include, besides their own: the folders
# of csrc, of csrc/aten and of csrc/extras, each with the rule for its contents.
_KERNELS = {"core", "memory", "random", "aten/cpu", "aten/launch"}
_OPERATORS = {
    *_KERNELS,
    *("aten/facts", "aten/dtypes", "aten/refusals", "aten/structured", "aten/layouts"),
    "aten/fallback",
}
_CORE = {
    "core": set(),
    # The header of headers.
    "OpenReg.h": {"core", "random"},
    "memory": {"core"},
    "random": {"core", "memory"},
    # Makes a function of the CPU behave as a kernel. Uses no tensors of the device.
    "aten/cpu": {"core"},
    # torch calls them.
    "hooks": {"core", "memory", "random"},
    # One line: what surrounds the kernels of operators.
    "aten/wrapper": {"aten/cpu"},
    # Passes tensors and other arguments to kernels on streams, with what surrounds them.
    "aten/launch": {"core", "random", "aten/wrapper"},
    # States facts about single operators: the type of their tables, and the tables.
    "aten/facts": set(),
    # Depends on the dtypes that the CPU lacks.
    "aten/dtypes": {"core", "aten/launch", "aten/facts"},
    # States what CUDA refuses and the CPU computes.
    "aten/refusals": {"core", "aten/launch", "aten/facts", "aten/dtypes"},
    # Uses at::meta.
    "aten/structured": {*_KERNELS, "aten/dtypes", "aten/refusals"},
    # Takes tensors of other layouts apart.
    "aten/layouts": {"core"},
    # Handles boxed calls of any operator.
    "aten/fallback": {*_KERNELS, "aten/facts", "aten/dtypes", "aten/refusals", "aten/layouts"},
    # Is specific to one operator; in parity, to one that exists for bits or dtypes alone.
    "aten/ops": _OPERATORS,
    "aten/attention": _OPERATORS,
    "aten/parity": _OPERATORS,
    "serialization": {"core"},
    "precompiled": {*_KERNELS, "python"},
    "python": {
        *("core", "memory", "random", "hooks"),
        *("aten/facts", "aten/dtypes", "aten/fallback"),
    },
}
_EXTRAS = {
    "extras/autocast": set(),
    # Has the library serve the device type CUDA, and replaces the kernels of a build of torch with
    # CUDA. Gives Python the choice of attention. Has kernels of operators that only CUDA has.
    "extras/cuda": {
        *("core", "memory", "random", "hooks"),
        *("aten/cpu", "aten/launch", "aten/attention", "aten/fallback"),
    },
    "extras/custom": {"core", "aten/launch"},
    # Calls operators on kernel addresses, and none of the backend's operators.
    "extras/distributed": {"core", "aten/cpu", "aten/launch"},
    # An observer (core/Observer.h). Describes the results of calls that it has skipped.
    "extras/dry_run": {"core", "memory", "aten/cpu", "aten/launch", "aten/fallback"},
    "extras/graph": {"core", "memory", "random"},
    # Launches kernels that torch.compile has generated.
    "extras/inductor": {"core", "aten/launch"},
    "extras/ipc": {"core", "memory"},
    # The observer of blocks (memory/BlockObserver.h).
    "extras/poison": {"core", "memory"},
    "extras/profiler": {"core"},
    # An observer (core/Observer.h). Sees boxed arguments of the CPU's operators.
    "extras/sanitizer": {"core", "aten/facts", "aten/launch"},
    # Launches kernels that Triton has compiled.
    "extras/triton": {"core", "aten/launch"},
}
# The bindings of an extra are in its folder named python.
_BINDINGS_OF_EXTRAS = {
    f"{extra}/python": {*folders, extra, "python"}
    for extra, folders in _EXTRAS.items()
    if (BACKEND / extra / "python").is_dir()
}
ALLOWED_FOLDERS = _CORE | _EXTRAS | _BINDINGS_OF_EXTRAS

# The namespace of a folder is that of the lowest library of torch on which it can be built:
# c10::openreg for what needs c10 alone, at::openreg for all else.
_NAMESPACES = dict.fromkeys(
    ("aten/facts", "core", "memory", "extras/sanitizer", "extras/ipc", "extras/poison"),
    "c10::openreg",
)
_NAMESPACE = re.compile(r"^namespace ((?:c10|at|torch)\b[\w:]*) \{", re.MULTILINE)

# Files in the other namespace than their folder, with the reason.
OTHER_NAMESPACE = {
    "csrc/aten/attention/AttentionChoice.cpp": "stubs of ATen are registered in its own namespace",
    "csrc/aten/ops/SparseOperators.cpp": "stubs of ATen are registered in its own namespace",
    "include/torch_openreg/core/Observer.h": "it declares a class of c10",
    "include/torch_openreg/OpenReg.h": "PyTorch's pages have all names in one namespace",
    "include/torch_openreg/inductor/masks.h": "it specializes functions of at::vec",
    "csrc/extras/dry_run/MemoryRecord.cpp": "it needs c10 alone",
    "csrc/extras/dry_run/MemoryRecord.h": "it needs c10 alone",
    "csrc/extras/dry_run/TemporaryMemory.cpp": "it needs c10 alone",
    "csrc/extras/dry_run/TemporaryMemory.h": "it needs c10 alone",
    "csrc/extras/dry_run/Workspaces.cpp": "it needs c10 alone",
    "csrc/extras/dry_run/Workspaces.h": "it needs c10 alone",
    "csrc/extras/sanitizer/host/HostOperators.cpp": "it observes operators of ATen",
    "csrc/extras/sanitizer/host/HostOperators.h": "it observes operators of ATen",
    "csrc/memory/PinnedAllocator.h": "its base class, the cache of pinned memory, is of ATen",
    "csrc/memory/PinnedAllocator.cpp": "its base class, the cache of pinned memory, is of ATen",
}

# Folders that wrap the runtime for the others.
WRAPPING_FOLDERS = {
    *("core", "memory", "random", "hooks"),
    *("extras/cuda", "extras/graph", "extras/ipc"),
}

# The calls of the runtime from anywhere else: file, function, reason.
ALLOWED_CALLS = {
    ("aten/ops/Copy.cpp", "orMemcpyAsync"): "copies of bytes are the runtime's",
    ("aten/ops/Copy.cpp", "orMemcpyWithStream"): "copies of bytes are the runtime's",
    (
        "aten/launch/TensorAlias.cpp",
        "orGetKernelOffset",
    ): "aliases are the one user of kernel addresses",
    (
        "aten/launch/TensorAlias.cpp",
        "orHostGetKernelPointer",
    ): "aliases are the one user of kernel addresses",
    (
        "aten/launch/HostMemory.cpp",
        "orHostGetKernelPointer",
    ): "aliases are the one user of kernel addresses",
    (
        "aten/cpu/KernelEnvironment.cpp",
        "orSetIdleFunction",
    ): "a worker gives up what its kernels have made",
    (
        "extras/distributed/Engine.cpp",
        "orStreamCreateWithPriority",
    ): "streams of the pool come round again, and those of groups wait for other ranks",
    (
        "extras/distributed/Communicators.cpp",
        "orGetDeviceProperties",
    ): "ranks compare the devices of their machine, whatever each of them sees",
    (
        "python/DeviceBindings.cpp",
        "orSetDeviceCreatedFunction",
    ): "torch's Python side hears of devices; see Note [Initialization]",
    (
        "extras/distributed/Engine.cpp",
        "orStreamWaitEvent",
    ): "order that the sanitizer is not told of",
    ("extras/dry_run/MemoryRecord.cpp", "orMalloc"): "what CUDA itself takes of a GPU",
    ("extras/dry_run/MemoryRecord.cpp", "orMemGetInfo"): "the use of a device is recorded",
    (
        "extras/sanitizer/host/HostWatch.cpp",
        "orGetLastError",
    ): "errors of a forked child are dropped",
    (
        "extras/sanitizer/host/HostWatch.cpp",
        "orWatchStart",
    ): "the sanitizer is the one user of watches",
    (
        "extras/sanitizer/host/HostWatch.cpp",
        "orWatchStop",
    ): "the sanitizer is the one user of watches",
    (
        "extras/sanitizer/host/HostWatch.cpp",
        "orWatchAdd",
    ): "the sanitizer is the one user of watches",
    (
        "extras/sanitizer/host/HostWatch.cpp",
        "orWatchRemove",
    ): "the sanitizer is the one user of watches",
    (
        "extras/sanitizer/host/HostWatch.cpp",
        "orWatchRearm",
    ): "the sanitizer is the one user of watches",
    (
        "extras/sanitizer/host/HostWatch.cpp",
        "orWatchGetCounts",
    ): "the sanitizer is the one user of watches",
    (
        "extras/triton/TritonKernel.cpp",
        "orPointerGetAttributes",
    ): "kernels follow addresses that they find in memory",
    (
        "extras/poison/Poison.cpp",
        "orStreamIsAlone",
    ): "what other streams may still use is not filled",
    ("extras/poison/PoisonedRanges.cpp", "orGetKernelOffset"): "free memory is filled on the host",
    ("extras/profiler/Collection.cpp", "orTraceStart"): "the profiler is the one user of the trace",
    ("extras/profiler/Collection.cpp", "orTraceStop"): "the profiler is the one user of the trace",
    (
        "extras/profiler/Collection.cpp",
        "orTraceConsume",
    ): "the profiler is the one user of the trace",
    ("extras/profiler/ProfilerStubs.cpp", "orEventElapsedTime"): "torch.Event has the guard for it",
    ("extras/profiler/ProfilerStubs.cpp", "orMark"): "one line per function",
    ("extras/profiler/ProfilerStubs.cpp", "orRangePop"): "one line per function",
    ("extras/profiler/ProfilerStubs.cpp", "orRangePush"): "one line per function",
    ("extras/profiler/RangeObserver.cpp", "orRangePop"): "operators become ranges",
    ("extras/profiler/RangeObserver.cpp", "orRangePush"): "operators become ranges",
    ("extras/profiler/TraceClock.cpp", "orTraceGetTime"): "the clock of the trace",
    ("extras/profiler/TraceSession.cpp", "orGetDeviceCount"): "a trace names the devices",
    ("extras/profiler/TraceSession.cpp", "orGetDeviceProperties"): "a trace names the devices",
    ("extras/profiler/TraceSession.cpp", "orTracePopExternalId"): "torch numbers its operators",
    ("extras/profiler/TraceSession.cpp", "orTracePushExternalId"): "torch numbers its operators",
    ("python/DeviceBindings.cpp", "orGetDeviceProperties"): "a binding is one line per function",
    ("python/DeviceBindings.cpp", "orDeviceCanAccessPeer"): "a binding is one line per function",
    ("python/DeviceBindings.cpp", "orDeviceSynchronizeAll"): "a binding is one line per function",
    ("python/DeviceBindings.cpp", "orDeviceTakeErrorAll"): "a binding is one line per function",
    ("python/DeviceBindings.cpp", "orAreSettingsRead"): "the settings are the runtime's table",
    ("python/DeviceBindings.cpp", "orGetSettingCount"): "the settings are the runtime's table",
    ("python/DeviceBindings.cpp", "orGetSetting"): "the settings are the runtime's table",
    ("python/DeviceBindings.cpp", "orGetSettingName"): "the settings are the runtime's table",
    ("python/DeviceBindings.cpp", "orReviewSettings"): "the settings are the runtime's table",
    ("python/GateBindings.cpp", "orLaunchHostFunc"): "a gate is a host function in the stream",
    ("extras/profiler/python/ProfilerBindings.cpp", "orMark"): "one line per function",
    ("extras/profiler/python/ProfilerBindings.cpp", "orRangeEnd"): "one line per function",
    ("extras/profiler/python/ProfilerBindings.cpp", "orRangePop"): "one line per function",
    ("extras/profiler/python/ProfilerBindings.cpp", "orRangePush"): "one line per function",
    ("extras/profiler/python/ProfilerBindings.cpp", "orRangeStart"): "one line per function",
    ("python/StreamBindings.cpp", "orStreamCreateWithPriority"): "external streams, for tests",
    ("python/StreamBindings.cpp", "orStreamDestroy"): "external streams, for tests",
    ("python/StreamBindings.cpp", "orStreamValidate"): "external streams, for tests",
    ("python/StreamBindings.cpp", "orDeviceGetStreamPriorityRange"): "one line per function",
    ("python/StreamBindings.cpp", "orGetSchedule"): "one line per function",
    ("python/StreamBindings.cpp", "orSetSchedule"): "one line per function",
}


def includes_that(matches, files: list[Path]) -> list[str]:
    return [
        f"{relative(path)} includes {include}"
        for path in files
        for include in includes_of(path)
        if matches(path, include)
    ]


def included(include: str) -> Path:
    """Returns the file that one of the backend means by an include such as "csrc/hooks/Hooks.h"."""
    name = include.strip('"')
    return INCLUDE.parent / name if name.startswith("torch_openreg/") else ROOT / name


def is_bindings(path: Path) -> bool:
    """Whether a file of the backend is a part of torch_openreg._C."""
    return path.parent.name == "python"


def first_circle(graph) -> str | None:
    """Returns a circle of nodes that lead to each other, such as "a.h -> b.h -> a.h"."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return " -> ".join(str(getattr(node, "name", node)) for node in error.args[1])
    return None


def unit_graph(files: list[Path]) -> dict[str, set[str]]:
    """Returns which units of the backend each unit needs, by the includes of all its files."""
    graph: dict[str, set[str]] = {}
    for path in files:
        others = {unit_of(included(name)) for name in includes_of(path) if name[0] == '"'}
        graph.setdefault(unit_of(path), set()).update(others - {unit_of(path)})
    return graph


class TestRuntime(TestCase):
    def test_runtime_includes_no_torch_and_no_python(self):
        files = [*public_headers(), *runtime_sources()]
        self.assertGreater(len(files), 20)
        self.assertFalse(
            includes_that(lambda _, include: FOREIGN_TO_THE_RUNTIME.match(include), files)
        )

    def test_public_headers_include_only_c_and_each_other(self):
        def is_foreign(_, include):
            return not (include in C_STANDARD_HEADERS or include.startswith("<openreg/"))

        for_c = [path for path in public_headers() if path.name not in HEADERS_FOR_CPP]
        self.assertFalse(includes_that(is_foreign, for_c))

    def test_public_headers_for_cpp_include_only_its_library_and_each_other(self):
        def is_foreign(_, include):
            return not re.fullmatch(r"<(openreg/)?\w+(\.h)?>", include) or re.match(
                FOREIGN_TO_THE_RUNTIME, include
            )

        for_cpp = [path for path in public_headers() if path.name in HEADERS_FOR_CPP]
        self.assertEqual({path.name for path in for_cpp}, HEADERS_FOR_CPP)
        self.assertFalse(includes_that(is_foreign, for_cpp))

    def test_public_headers_do_not_include_the_umbrella_header(self):
        headers = [path for path in public_headers() if path.name != "openreg.h"]
        self.assertFalse(
            includes_that(lambda _, include: include == "<openreg/openreg.h>", headers)
        )

    def test_umbrella_header_includes_every_public_header(self):
        umbrella = RUNTIME / "include" / "openreg" / "openreg.h"
        self.assertEqual(
            set(includes_of(umbrella)),
            {f"<openreg/{path.name}>" for path in public_headers() if path != umbrella},
        )

    def test_headers_of_the_runtime_do_not_include_each_other_in_a_circle(self):
        folder = RUNTIME / "src"
        graph = {
            path: [folder / name.strip('"') for name in includes_of(path) if name[0] == '"']
            for path in runtime_sources()
            if path.suffix == ".h"
        }
        self.assertIsNone(first_circle(graph))


class TestBackend(TestCase):
    def test_every_folder_of_csrc_has_its_rule(self):
        self.assertEqual({part_of(path) for path in backend_files()}, set(ALLOWED_FOLDERS))

    def test_extras_are_included_by_their_own_bindings_alone(self):
        users = {
            (part, extra)
            for part, folders in ALLOWED_FOLDERS.items()
            for extra in folders & set(_EXTRAS)
        }
        self.assertEqual(
            users, {(part, part.removesuffix("/python")) for part in _BINDINGS_OF_EXTRAS}
        )

    def test_folders_of_csrc_include_only_those_below_them(self):
        def is_upward(path, include):
            own = part_of(path)
            other = own if include[0] == "<" else part_of(included(include))
            return other != own and other not in ALLOWED_FOLDERS[own]

        self.assertFalse(includes_that(is_upward, backend_files()))

    def test_files_of_csrc_include_each_other_by_their_path_from_the_root(self):
        def is_bad(_, include):
            return include[0] == '"' and not included(include).is_file()

        self.assertFalse(includes_that(is_bad, backend_files()))

    def test_headers_of_csrc_do_not_include_each_other_in_a_circle(self):
        graph = {
            path: [included(name) for name in includes_of(path) if name[0] == '"']
            for path in backend_files(suffixes=(".h",))
        }
        self.assertIsNone(first_circle(graph))

    def test_rules_for_folders_allow_no_circle(self):
        self.assertIsNone(first_circle(ALLOWED_FOLDERS))

    def test_units_of_aten_do_not_need_each_other_in_a_circle(self):
        graph = unit_graph(backend_files("aten"))
        self.assertGreater(len(graph), 60)
        self.assertIsNone(first_circle(graph))

    def test_source_that_includes_a_header_above_its_own_is_a_circle_of_units(self):
        graph = unit_graph(backend_files("aten"))
        self.assertIn("aten/fallback/FallbackOperator", graph["aten/fallback/BoxedCall"])
        graph["aten/fallback/FallbackOperator"].add("aten/fallback/BoxedCall")
        self.assertRegex(
            first_circle(graph), "FallbackOperator -> .*BoxedCall|BoxedCall -> .*Fallb"
        )

    def test_core_includes_no_aten(self):
        self.assertFalse(
            includes_that(
                lambda _, include: re.match(r"<(ATen|torch)/(?!headeronly/)", include),
                backend_files("core"),
            )
        )

    def test_namespaces_follow_folders(self):
        namespaces = {path: set(_NAMESPACE.findall(code_of(path))) for path in backend_files()}
        misplaced = {
            relative(path): names
            for path, names in namespaces.items()
            if part_of(path) != "extras/autocast"
            and not is_bindings(path)
            and names - {_NAMESPACES.get(part_of(path), "at::openreg")}
            and relative(path) not in OTHER_NAMESPACE
        }
        self.assertEqual(misplaced, {})

    def test_what_is_in_c10_s_namespace_includes_no_aten(self):
        folders = [folder for folder, name in _NAMESPACES.items() if name == "c10::openreg"]
        files = [
            path
            for path in backend_files(*folders)
            if not is_bindings(path) and relative(path) not in OTHER_NAMESPACE
        ]
        self.assertGreater(len(files), 20)
        self.assertFalse(
            includes_that(
                lambda _, include: re.match(r"<(ATen|torch)/(?!headeronly/)", include), files
            )
        )

    def test_only_the_bindings_include_python(self):
        below = [path for path in backend_files() if not is_bindings(path)]
        self.assertFalse(includes_that(lambda _, include: OF_PYTHON.match(include), below))

    def test_backend_includes_no_private_header_of_the_runtime(self):
        private = {path.name for path in runtime_sources() if path.suffix == ".h"}

        def is_private(_, include):
            name = include.strip('<>"')
            return "openreg_runtime" in name or name in private

        self.assertFalse(includes_that(is_private, backend_files()))


class TestCallsOfTheRuntime(TestCase):
    def calls_from_above(self):
        return {
            (relative(path).removeprefix("csrc/"), function)
            for path in backend_files()
            if part_of(path) not in WRAPPING_FOLDERS
            for function in runtime_calls(path)
        }

    def test_calls_from_above_the_wrapping_folders_are_on_the_list(self):
        self.assertFalse(self.calls_from_above() - set(ALLOWED_CALLS))

    def test_list_of_allowed_calls_has_no_entry_that_nobody_uses(self):
        self.assertFalse(set(ALLOWED_CALLS) - self.calls_from_above())

    def test_kernels_reach_a_stream_through_the_launch_header_alone(self):
        callers = [
            relative(path) for path in backend_files() if "orLaunchKernel" in runtime_calls(path)
        ]
        self.assertEqual(callers, ["include/torch_openreg/core/Launch.h"])

    def test_device_memory_comes_and_goes_through_the_caching_allocator_alone(self):
        callers = {
            relative(path)
            for path in backend_files()
            if runtime_calls(path) & {"orMalloc", "orFree"}
        }
        self.assertEqual(
            callers,
            {
                "csrc/memory/BlockCache.cpp",
                "csrc/memory/DeviceCachingAllocator.cpp",
                # What CUDA itself takes of a GPU.
                "csrc/extras/dry_run/MemoryRecord.cpp",
            },
        )

    def test_operators_do_not_know_the_allocator_they_get_memory_from(self):
        users = [
            relative(path)
            for path in backend_files("aten")
            if re.search(r"\bDeviceCachingAllocator\b|\bBlockCache\b|\bBlockPool\b", code_of(path))
        ]
        self.assertFalse(users)


# Modules of the core that import an extra: programs import it by their names.
NAMES_OF_EXTRAS = {
    "torch_openreg/cuda.py": {"cuda"},
    "torch_openreg/distributed.py": {"distributed"},
}
# Extras that others need, see torch_openreg/extras/cuda/__init__.py, or use if they are there, as
# dry_run.
NEEDED_EXTRAS = {"cuda": {"distributed", "dry_run", "graph", "ipc", "profiler", "sanitizer"}}


def imported_extras(path: Path) -> set[str]:
    """Returns the extras from whose Python folders a module imports, in functions, too."""
    modules = re.findall(
        r"^\s*(?:from|import) torch_openreg\.extras(?:\.(\w+)| import (.*)$)",
        path.read_text(),
        re.MULTILINE,
    )
    names = {name for one, several in modules for name in [one, *several.split(", ")]}
    return names & set(EXTRAS)


class TestMutexes(TestCase):
    """All locks are of the classes that clang checks, but for those of torch."""

    def test_mutexes_are_of_the_checked_classes(self):
        of_torch = {
            *("csrc/aten/attention/AttentionKernels.cpp", "csrc/memory/PinnedAllocator.cpp"),
            *("csrc/random/Generator.cpp", "csrc/extras/cuda/CudaGenerator.cpp"),
            *("csrc/extras/dry_run/DryRunObserver.cpp", "csrc/extras/dry_run/HostFills.cpp"),
        }
        files = [
            path
            for path in [*runtime_sources(), *backend_files()]
            if path.name not in ("mutex.h", "Mutex.h")
            and re.search(r"std::(shared_)?mutex|std::lock_guard", code_of(path))
        ]
        self.assertEqual({relative(path) for path in files}, of_torch)


class TestPython(TestCase):
    def test_core_imports_no_extra(self):
        users = {
            relative(path): found
            for path in sorted((ROOT / "torch_openreg").rglob("*.py"))
            if extra_of(relative(path)) is None and (found := imported_extras(path))
        }
        self.assertEqual(users, NAMES_OF_EXTRAS)

    def test_extras_import_no_other_but_those_that_they_need(self):
        for path in sorted((ROOT / "torch_openreg" / "extras").glob("*/*.py")):
            own = path.parent.name
            allowed = {own} | NEEDED_EXTRAS.get(own, set())
            self.assertEqual(imported_extras(path) - allowed, set(), relative(path))

    def test_imports_of_extras_are_found(self):
        path = ROOT / "torch_openreg" / "extras" / "cuda" / "nccl.py"
        self.assertEqual(imported_extras(path), {"distributed"})

    def test_package_reaches_native_code_only_through_the_bindings(self):
        users = [
            relative(path)
            for path in sorted((ROOT / "torch_openreg").rglob("*.py"))
            if re.search(r"\b(CDLL|PyDLL|cdll|cffi)\b|load_library\(|\.so\b", path.read_text())
        ]
        # One asks CUDA's driver for GPUs, the next calls the runtime where there is no torch. The
        # last compiles kernels, which the bindings load.
        self.assertEqual(
            users,
            [
                "torch_openreg/extras/cuda/build.py",
                "torch_openreg/extras/cuda/tools/pynvml.py",
                "torch_openreg/extras/triton/_compile.py",
            ],
        )


class TestLinks(TestCase):
    def needed(self, name: str) -> set[str]:
        try:
            output = subprocess.run(
                ["readelf", "-d", LIBRARIES[name]], check=True, capture_output=True, text=True
            ).stdout
        except FileNotFoundError:
            raise unittest.SkipTest("readelf is not installed") from None
        return set(re.findall(r"\(NEEDED\).*\[(.+)\]", output))

    def test_runtime_links_no_torch_and_no_python(self):
        foreign = [
            library
            for library in self.needed("libopenreg.so")
            if re.search(r"torch|c10|python", library)
        ]
        self.assertFalse(foreign)

    def test_backend_links_the_runtime_and_no_python(self):
        needed = self.needed("libtorch_openreg.so")
        self.assertIn("libopenreg.so", needed)
        self.assertFalse([library for library in needed if "python" in library])

    def test_bindings_link_the_backend(self):
        self.assertIn("libtorch_openreg.so", self.needed("_C"))


if __name__ == "__main__":
    run_tests()
