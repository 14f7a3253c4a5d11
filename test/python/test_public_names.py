"""The public names of torch.openreg: they exist, are documented, and reject wrong arguments.

The sweep calls each public function, class and method with one wrong value after another.
"""

import contextlib
import inspect
import operator
import pydoc
import re
import tempfile
import types
import warnings

import torch
from common import (
    DEVICE_COUNT,
    DEVICE_TYPE,
    OpenRegTestCase,
    run_tests,
    torch_openreg,
)

from torch_openreg import backends

MODULES = (
    torch.openreg,
    torch.openreg.amp,
    torch.openreg.comm,
    torch.openreg.memory,
    torch.openreg.meta,
    torch.openreg.nccl,
    torch.openreg.profiler,
    torch.openreg.random,
    torch.openreg.sanitizer,
    torch.openreg.sparse,
    backends,
)

# Meant to be used, though torch.cuda's names for them have an underscore.
PRIVATE = {
    "torch_openreg.openreg": ("_lazy_call", "_sleep"),
    "torch_openreg.openreg.memory": (
        "_dump_snapshot",
        "_record_memory_history",
        "_set_allocator_settings",
        "_snapshot",
    ),
}

# Names whose documentation is torch's or Python's.
FOREIGN = {"CaptureErrorMode", "PoolId"}


def public_callables():
    """Yields each public function, class and method of a class, with its name."""
    seen = set()
    for module in MODULES:
        for name in (*module.__all__, *PRIVATE.get(module.__name__, ())):
            value = getattr(module, name)
            if not callable(value) or name in FOREIGN or id(value) in seen:
                continue
            seen.add(id(value))
            yield f"{module.__name__}.{name}", value
            if inspect.isclass(value) and is_ours(value):
                for member, function in vars(value).items():
                    if not member.startswith("_") and callable(getattr(value, member)):
                        yield f"{module.__name__}.{name}.{member}", getattr(value, member)
                    elif isinstance(function, property) and not member.startswith("_"):
                        yield f"{module.__name__}.{name}.{member}", function


def is_ours(value):
    return str(getattr(value, "__module__", "")).startswith("torch_openreg")


def is_made_here(value):
    """Whether it is an error or a record, which programs do not create themselves."""
    return inspect.isclass(value) and (
        issubclass(value, (BaseException, tuple, torch.openreg.profiler.Activity))
        or hasattr(value, "__dataclass_fields__")
    )


# --- The sweep


class Thing:
    """What nothing accepts."""

    def __repr__(self):
        return "<Thing>"


WRONG = (None, "x", b"x", 1.5, Thing(), [], 2**31, 2**63, 2**65, -1)

# Texts that name a binding, which a caller has not called, or that come from pybind11.
FORBIDDEN = (
    r"incompatible (function|constructor) arguments|\b_C\b|\barg\d\b|supported:|Invoked with"
)

# Calls that would take the machine's time or memory, by the name of the parameter.
TOO_MUCH = {"cycles", "num_warmup_iters"}
TOO_LARGE = {"caching_allocator_alloc"}


def arguments():
    """A right argument for each parameter that has no default, and for some that have one."""
    return {
        "address": 0,
        "callable": lambda: None,
        "callables": torch.nn.ReLU(),
        "cycles": 1,
        "data_ptr": 1,
        "debug_mode": 0,
        "debug_path": "x.dot",
        "device": 0,
        "env": "",
        "event": torch.openreg.Event(),
        "fraction": 1.0,
        "input": torch.ones(1),
        "ipc_handle": b"",
        "message": "x",
        "mode": "silent",
        "new_state": torch.openreg.get_rng_state(),
        "new_states": [],
        "obj": torch.ones(1),
        "offset": 0,
        "openreg_graph": torch.openreg.Graph(),
        "other": torch.openreg.current_stream(),
        "peer_device": 0,
        "pool": torch.openreg.MemPool(),
        "range_id": 1,
        "sample_args": (torch.ones(1, device=DEVICE_TYPE),),
        "seed": 0,
        "size": 1,
        "stream": torch.openreg.current_stream(),
        "stream_ptr": 1,
        "backward": lambda context: None,
        "forward": lambda context: None,
    }


INSTANCES = {
    "Event": lambda: torch.openreg.Event(),
    "ExternalStream": lambda: torch.openreg.Stream(),
    "Graph": lambda: torch.openreg.Graph(),
    "MemPool": lambda: torch.openreg.MemPool(),
    "Stream": lambda: torch.openreg.Stream(),
}


def calls():
    """Yields what to call, by name, with the parameter and the names of those before it."""
    for name, value in public_callables():
        if not is_ours(value) or is_made_here(value) or isinstance(value, property):
            continue
        owner, method = name.split(".")[-2:]
        is_method = owner in INSTANCES and not isinstance(value, type)
        function = value
        if isinstance(value, type):
            function = value.__init__ if "__init__" in vars(value) else value.__new__
        parameters = [
            one
            for one in inspect.signature(function).parameters.values()
            if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
            and one.name not in ("self", "cls")
        ]
        for parameter in parameters:
            yield name, (method if is_method else value), owner, parameters, parameter


def call(function, owner, parameters, parameter, wrong):
    values = arguments()
    if owner == "Event" and "other" in values:
        values["other"] = torch.openreg.Event()
    keywords = {one.name: values[one.name] for one in parameters if one.default is one.empty}
    keywords[parameter.name] = wrong
    if isinstance(function, str):
        function = getattr(INSTANCES[owner](), function)
    result = function(**keywords)
    if isinstance(getattr(type(result), "__enter__", None), types.FunctionType):
        with result:
            pass
    return result


NAME = {"openreg": "OpenReg", "cuda": "CUDA"}[DEVICE_TYPE]

# Errors with a different text: the beginning of the text, by the function's name.
OTHERS = {
    # The runtime's, of a number that could have been one.
    "ExternalStream": f"{NAME} error: invalid resource handle",
    "get_stream_from_external": rf"{NAME} error: invalid resource handle|"
    rf"torch.{DEVICE_TYPE}.ExternalS|ExternalStream:",
    "range_end": f"{NAME} error: invalid argument",
    "from_ipc_handle": "opening an event: expected a handle of 64 bytes",
    # torch's.
    "_set_allocator_settings": "Unrecognized key",
    # Of the method that begins the capture.
    "graph": r"Graph\.capture_begin: ",
    # Of the function that is captured.
    "make_graphed_callables": r"ReLU\.forward\(\) missing",
}


INVALID_DEVICE = 101


def names_the_other_module(text):
    """Whether a program for CUDA would find "OpenReg", or torch.openreg's name of its function."""
    if DEVICE_TYPE != "cuda":
        return False
    found = re.findall(r"torch\.openreg\.((?:\w+\.)*\w+)", text)
    return "OpenReg error" in text or any(hasattr_path(torch.cuda, path) for path in found)


def hasattr_path(value, path):
    try:
        operator.attrgetter(path)(value)
    except AttributeError:
        return False
    return True


def says_what_was_called(name, owner, error):
    text = str(error)
    if re.search(FORBIDDEN, text) or names_the_other_module(text):
        return False
    short = name.rpartition(".")[2]
    if getattr(error, "error_code", 0) == INVALID_DEVICE:
        return text.startswith("CUDA error: invalid device ordinal\n")
    # Those of torch.amp are torch's own.
    return (
        short in text
        or f"{DEVICE_TYPE if owner == 'openreg' else owner}." in text
        or ".amp." in name
        or re.match(OTHERS.get(short, "(?!)"), text)
    )


class TestDocumentation(OpenRegTestCase):
    def test_every_public_callable_says_what_it_does(self):
        count = 0
        for name, value in public_callables():
            text = inspect.getdoc(value) or ""
            self.assertGreaterEqual(len(text.split()), 4, name)
            # Not what Python or pybind11 writes of a class or a function without a text.
            self.assertNotRegex(text, r"^(\w+\(self: |Initialize self|Create and return)", name)
            count += 1
        self.assertGreater(count, 180)

    def test_every_module_says_what_it_is_for(self):
        for module in MODULES:
            self.assertGreater(len(module.__doc__.split()), 5, module.__name__)

    def test_arguments_are_described_under_their_names(self):
        for name, value in public_callables():
            if not is_ours(value) or is_made_here(value) or isinstance(value, property):
                continue
            text = inspect.getdoc(value)
            if re.match("Deprecated, as in|Raises RuntimeError: the generator", text):
                continue
            function = value
            if inspect.isclass(value) and "__init__" in vars(value):
                function = value.__init__
            section = re.search(r"^Args:\n((?:(?: .*)?\n)+)", text + "\n", re.MULTILINE)
            described = re.findall(r"^    (\w+):", section[1] if section else "", re.MULTILINE)
            actual = [one for one in inspect.signature(function).parameters if one != "self"]
            self.assertEqual(described, actual, name)

    def test_sizes_have_a_unit(self):
        for name in (
            "memory_allocated",
            "max_memory_allocated",
            "memory_reserved",
            "max_memory_reserved",
            "memory_cached",
            "max_memory_cached",
            "mem_get_info",
            "memory_stats",
            "caching_allocator_alloc",
        ):
            self.assertIn("bytes", getattr(torch.openreg, name).__doc__, name)
        for name in ("submit_ns", "start_ns", "end_ns"):
            activity = torch.openreg.profiler.Activity
            self.assertIn("nanoseconds", inspect.getdoc(getattr(activity, name)), name)

    def test_help_shows_every_public_name(self):
        text = pydoc.plain(pydoc.render_doc(torch.openreg))
        for name in torch.openreg.__all__:
            if not isinstance(getattr(torch.openreg, name), types.ModuleType):
                self.assertRegex(text, rf"\b{name}\b")
        self.assertIn("sizes are in bytes", text)

    def test_help_on_default_generators_is_about_generators(self):
        text = pydoc.plain(pydoc.render_doc(torch.openreg.default_generators))
        self.assertIn("one per device", text)
        self.assertNotIn("immutable sequence", text)
        self.assertEqual(len(torch.openreg.default_generators), DEVICE_COUNT)

    def test_dir_shows_every_public_name_and_no_import(self):
        shown = dir(torch.openreg)
        self.assertEqual(set(torch.openreg.__all__) - set(shown), set())
        self.assertEqual({"torch", "TYPE_CHECKING"} & set(shown), set())

    def test_group_of_processes_is_documented(self):
        group = torch_openreg.distributed.ProcessGroupOCCL
        self.assertIn("Args:", group.__doc__)
        self.assertIn("is_high_priority_stream", group.Options.__doc__)

    def test_device_that_can_be_left_out_may_be_none(self):
        parameters = inspect.signature(torch.openreg.set_device).parameters
        self.assertNotIn("None", str(parameters["device"]))
        with self.assertRaisesRegex(ValueError, "set_device: expected a device with an index"):
            torch.openreg.set_device(None)


class TestWrongArguments(OpenRegTestCase):
    def tearDown(self):
        torch.openreg.memory._record_memory_history(None)
        torch.openreg.sanitizer.disable()
        torch.openreg.set_fallback_mode("silent")
        torch.openreg.set_sync_debug_mode(0)
        torch.manual_seed(0)
        super().tearDown()

    def test_errors_name_the_public_function_and_no_binding(self):
        count = 0
        failures = []
        with self.in_a_folder_of_its_own(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name, function, owner, parameters, parameter in calls():
                for wrong in WRONG:
                    is_large = isinstance(wrong, int) and wrong > 1
                    if is_large and (
                        parameter.name in TOO_MUCH or name.rpartition(".")[2] in TOO_LARGE
                    ):
                        continue
                    count += 1
                    try:
                        call(function, owner, parameters, parameter, wrong)
                    except Exception as error:
                        text = f"{type(error).__name__}: {error}"
                        if not says_what_was_called(name, owner, error):
                            failures.append(f"{name}({parameter.name}={wrong!r}): {text}")
        self.assertEqual(failures, [], "\n\n".join(failures))
        self.assertGreater(count, 1000)

    def test_priority_of_any_size_is_clamped(self):
        least, greatest = torch.openreg.Stream.priority_range()
        for priority in (2**31, 2**63, 2**65):
            self.assertEqual(torch.openreg.Stream(priority=priority).priority, least)
            self.assertEqual(torch.openreg.Stream(priority=-priority).priority, greatest)

    def test_error_names_the_function_the_argument_and_the_value(self):
        def enter(context):
            with context:
                pass

        # The rest is what torch.openreg.<function>: expected ... as <argument> says, in words.
        cases = [
            (lambda: torch.openreg.Stream(priority=None), "Stream: .*int as priority, got None"),
            (
                lambda: torch.openreg.ExternalStream(-1),
                "ExternalStream: expected stream_ptr from 0 to 18446744073709551615, got -1",
            ),
            (
                lambda: torch.openreg.set_fallback_mode(1),
                "set_fallback_mode: expected a string as mode, got 1",
            ),
            (
                lambda: torch.openreg.set_sync_debug_mode(1.0),
                "set_sync_debug_mode: expected an int as debug_mode, got 1.0",
            ),
            (
                lambda: torch.openreg.caching_allocator_delete("x"),
                "caching_allocator_delete: expected an int as address, got 'x'",
            ),
            (
                lambda: torch.openreg.caching_allocator_alloc(None),
                "caching_allocator_alloc: expected an int as size, got None",
            ),
            (
                lambda: torch.openreg.graph(None),
                "graph: expected a torch.openreg.Graph as openreg_graph, got None",
            ),
            (
                lambda: torch.openreg.graph(torch.openreg.Graph(), stream=1),
                "graph: expected a stream, got 1",
            ),
            (
                lambda: enter(torch.openreg.use_mem_pool(None)),
                "use_mem_pool: expected a MemPool, got None",
            ),
            (
                lambda: torch.openreg.device_of(None),
                "device_of: expected a tensor or a storage, got None",
            ),
            (lambda: torch.openreg._sleep(-1), "_sleep: expected cycles from 0 .*, got -1"),
            (
                lambda: torch.openreg.manual_seed("x"),
                "manual_seed: expected an int as seed, got 'x'",
            ),
            (
                lambda: torch.openreg.manual_seed_all(2**64),
                "manual_seed_all: expected seed from .*, got 18446744073709551616",
            ),
            (
                lambda: torch.openreg.current_stream("warp"),
                f"current_stream: expected .*, such as '{DEVICE_TYPE}:0', got 'warp'",
            ),
            (
                lambda: torch.openreg.profiler.mark(1),
                "mark: expected a string as message, got 1",
            ),
            (
                lambda: torch.openreg.set_rng_state(None),
                "set_rng_state: expected a uint8 tensor as new_state, got None",
            ),
        ]
        if DEVICE_TYPE == "openreg":  # those of CUDA have CUDA's text: cuda/test_errors.py
            cases += [
                (lambda: torch.openreg.get_device_name(99), "get_device_name: .* got 99"),
                (lambda: torch.openreg.memory_reserved(99), "memory_reserved: .* got 99"),
            ]
        for function, text in cases:
            with self.assertRaisesRegex(
                (TypeError, ValueError, RuntimeError), rf"^(torch\.\w+\.)?(\w+\.)?{text}"
            ):
                function()

    @contextlib.contextmanager
    def in_a_folder_of_its_own(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            yield


if __name__ == "__main__":
    run_tests()
