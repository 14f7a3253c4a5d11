"""Common code of the tests: a test case that checks for leftovers, and separate programs.

Importing this module registers the device, which has to happen before anything of
``torch.testing._internal`` is imported: that package lists the devices once, at its import.

Each folder of tests has a link to this file, so that a test file can be run by its path: Python
searches the folder of a program, and this module adds the one above.
"""

import atexit
import functools
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import unittest
from collections.abc import Mapping, Sequence
from typing import NamedTuple

sys.path.insert(1, os.path.dirname(os.path.realpath(__file__)))

import torch

import torch_openreg
from torch_openreg import _C, testing

# isort: split
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)

from torch_openreg.conformance.threads import call_in_thread

__all__ = [
    "A_DEVICE",
    "BUILD_HAS_CUDA",
    "DEVICE_COUNT",
    "DEVICE_TYPE",
    "ERROR_PREFIX",
    "FORK_TEXT",
    "INDEX_ERROR",
    "OUT_OF_RANGE_TEXT",
    "OpenRegTestCase",
    "StreamGate",
    "TestCase",
    "call_in_thread",
    "check_leftovers",
    "instantiate_parametrized_tests",
    "make_cuda_driver",
    "needs",
    "parametrize",
    "requires_two_devices",
    "run_child",
    "run_children",
    "run_program",
    "run_tests",
    "subtest",
    "torch_openreg",
]

# pip puts ninja beside Python, in a folder that is on the path only of activated environments.
# A system may have another ninja.
if shutil.which("ninja") is None:
    os.environ["PATH"] = os.pathsep.join(
        [os.environ.get("PATH", os.defpath), os.path.dirname(sys.executable)]
    )

# The device type that the tests are about: "openreg", or "cuda" with OPENREG_DEVICE_TYPE=cuda.
# Functions without a counterpart in torch.cuda are in torch.openreg, in both modes.
DEVICE_TYPE = "cuda" if _C._serves_cuda() else "openreg"
DEVICE_COUNT = torch.openreg.device_count()
# Whether torch was built with CUDA; torch.version.cuda may be a setting of ours.
BUILD_HAS_CUDA = os.path.exists(
    os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cuda.so")
)
OUT_OF_RANGE_TEXT = {
    "openreg": "The device index is out of range",
    "cuda": "^CUDA error: invalid device ordinal\n",
}[DEVICE_TYPE]
# The exception of a kernel that finds an index out of range.
INDEX_ERROR = {"openreg": IndexError, "cuda": torch.AcceleratorError}[DEVICE_TYPE]
# How the names of the runtime's errors begin in error texts.
ERROR_PREFIX = {"openreg": "orError", "cuda": "cudaError"}[DEVICE_TYPE]
# As error texts call a device of this type.
A_DEVICE = {"openreg": "an openreg device", "cuda": "a cuda device"}[DEVICE_TYPE]
_NAME = {"openreg": "OpenReg", "cuda": "CUDA"}[DEVICE_TYPE]
FORK_TEXT = (
    f"Cannot re-initialize {_NAME} in forked subprocess. To use {_NAME} with multiprocessing, "
    "you must use the 'spawn' start method"
)

# A hung program is stopped after this time, far more than any of them needs on a busy machine.
PROGRAM_TIMEOUT_S = 240


def comparable_error(text: str) -> str:
    """Returns the text of an error without the name of the kernel, if CUDA's have other names."""
    return re.sub(r'^"\w+" not', '"..." not', text) if DEVICE_TYPE == "cuda" else text


def needs(*libraries: str):
    """Skips a test class if one of the libraries is not installed."""
    missing = [name for name in libraries if importlib.util.find_spec(name) is None]
    return unittest.skipIf(
        bool(missing), f"needs {', '.join(missing)}: pip install torch_openreg[integration]"
    )


requires_two_devices = unittest.skipIf(DEVICE_COUNT < 2, "needs two devices")


class StreamGate(testing.StreamGate):
    """A gate under which an operator that falls back fails, instead of waiting forever.

    The fallback waits for the stream that the gate holds.
    """

    def __enter__(self):
        super().__enter__()
        self._fallback_mode = torch.openreg.get_fallback_mode()
        torch.openreg.set_fallback_mode("error")
        return self

    def open(self) -> None:
        torch.openreg.set_fallback_mode(self._fallback_mode)
        super().open()


def check_leftovers(case: unittest.TestCase) -> None:
    """Fails a test after which not everything is as it was; see OpenRegTestCase."""
    _C._device_synchronize_all()
    case.assertEqual(torch.openreg.current_device(), 0, "the test left another device current")
    for device in range(DEVICE_COUNT):
        case.assertEqual(
            torch.openreg.current_stream(device),
            torch.openreg.default_stream(device),
            "the test left another stream current",
        )
        case.assertTrue(_C._is_allocator_valid(device))


class OpenRegTestCase(TestCase):
    """A test that has to leave everything as it was.

    After each test: no work failed unnoticed, the current device is 0, every current stream is the
    default one, and the allocators' books are in order.
    """

    def tearDown(self) -> None:
        check_leftovers(self)
        super().tearDown()

    def assert_bit_equal(self, actual: torch.Tensor, expected: torch.Tensor) -> None:
        """Compares on the CPU, so that no operator of the device takes part."""
        self.assertEqual(actual.cpu(), expected.cpu(), rtol=0, atol=0)


def _environment(settings: Mapping[str, str] | None) -> dict[str, str]:
    """The environment with the device type and the given settings, but no others."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name == "OPENREG_DEVICE_TYPE"
        or (not name.startswith("OPENREG_") and name != "TORCH_DEVICE_BACKEND_AUTOLOAD")
    }
    return {"OPENREG_CUDA_NOTICE": "0"} | environment | dict(settings or {})


def _program(code: str) -> str:
    """A program, without common indentation and for the device type that the tests are about."""
    return re.sub(r"(?<![.\w])openreg(?=['\":])", DEVICE_TYPE, textwrap.dedent(code))


# Runs requests, one per line: programs for children, a few at a time. A child runs its program as
# a script would, to the end of the interpreter. torch is imported once, here; as the foreman uses
# no device, its children may.
_FOREMAN = """
import gc, json, os, signal, sys
import torch

gc.collect()
gc.freeze()  # torch's own objects: no child needs to look at them, and exits are faster
child, running, results = None, [], []

def collect():
    pid, output = running.pop(0)
    with os.fdopen(output, errors="replace") as pipe:
        text = pipe.read()
    results.append((os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), text))

def fork(case):
    global child
    output, pipe = os.pipe()
    pid = os.fork()
    if pid == 0:
        child = case
        for target in (1, 2):
            os.dup2(pipe, target)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.closerange(3, 100)
    else:
        os.close(pipe)
        running.append((pid, output))

while child is None:
    line = sys.stdin.readline()
    if not line:
        break
    timeout_s, jobs, cases = json.loads(line)
    for case in cases:
        if len(running) == jobs:
            collect()
        fork(case)
        if child is not None:
            break
    else:
        while running:
            collect()
        print(json.dumps(results), flush=True)
        results.clear()

if child is not None:
    code, settings = child
    os.environ.update(settings)
    signal.alarm(timeout_s)
    exec(compile(code, "<child>", "exec"), {"__name__": "__main__"})
"""


class Ended(NamedTuple):
    """How a child ended: the exit code, or the negative number of the signal; all it printed."""

    returncode: int
    output: str


@functools.cache
def _foreman() -> subprocess.Popen[str]:
    process = _start(["-c", _FOREMAN], None)
    atexit.register(process.communicate)
    return process


def run_children(cases: Sequence[tuple[str, Mapping[str, str]]], jobs: int = 2) -> list[Ended]:
    """Runs small programs, each in a separate process that has imported torch.

    Much faster than ``run_program``, whose processes import torch themselves.

    Args:
        cases: Code and environment variables of each. Common indentation of the code is removed.
            A hung program ends by SIGALRM.
        jobs: How many run at a time.
    """
    programs = [(_program(code), dict(settings)) for code, settings in cases]
    foreman = _foreman()
    assert foreman.stdin is not None and foreman.stdout is not None
    foreman.stdin.write(json.dumps([PROGRAM_TIMEOUT_S, jobs, programs]) + "\n")
    foreman.stdin.flush()
    line = foreman.stdout.readline()
    if not line:
        raise AssertionError(f"the foreman of the children has died: {foreman.poll()}")
    return [Ended(*result) for result in json.loads(line)]


def run_child(code: str, settings: Mapping[str, str] | None = None) -> str:
    """Runs one small program that has to succeed; returns its output. See run_children."""
    (child,) = run_children([(code, settings or {})])
    if child.returncode != 0:
        raise AssertionError(f"the child ended with {child.returncode}\n{child.output}")
    return child.output


def _start(arguments: Sequence[str], settings: Mapping[str, str] | None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        env=_environment(settings),
        # Not the source tree, whose package may lack the native library.
        cwd=os.path.dirname(os.path.realpath(__file__)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def make_cuda_driver(folder: str) -> dict[str, str]:
    """Makes a library that CUDA's programs take for a driver with three GPUs.

    Returns:
        The environment variables for processes that are to find it, and are to import
        torch_openreg themselves.
    """
    source = """
    extern "C" int cuInit(unsigned) { return 0; }
    extern "C" int cuDeviceGetCount(int* count) { *count = 3; return 0; }
    """
    library = os.path.join(folder, "libcuda.so.1")
    command = ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", library]
    subprocess.run(command, input=source, text=True, check=True)
    return {"LD_LIBRARY_PATH": folder, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


def run_program(
    code: str, settings: Mapping[str, str] | None = None, expect_success: bool = True
) -> subprocess.CompletedProcess[str]:
    """Runs a Python program in a process that imports all it needs itself.

    Args:
        code: The program; common indentation is removed.
        settings: Environment variables. Those of the device are unset otherwise.
        expect_success: Whether another exit code than 0 is an error here.
    """
    process = _start(["-c", _program(code)], settings)
    try:
        output, errors = process.communicate(timeout=PROGRAM_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    if expect_success and process.returncode != 0:
        raise AssertionError(f"the program ended with {process.returncode}\n{output}\n{errors}")
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)
