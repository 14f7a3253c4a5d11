"""A process that has imported what most test files import, and forks for each file.

Importing pytest, torch and torch's test utilities takes longer than the tests of most files. A
server imports them once. A child of it is what ``python -m pytest`` is after these imports: no
device has been used, and it runs the exit handlers of Python and of torch_openreg at its end.

:class:`ForkServer` starts ``python test/fork_server.py MODULE ...``, and sends it requests through
a pipe. The protocol, in lines of text:

- the client sends the arguments of pytest and the file for its output, as JSON;
- the server answers with the ID of the child, which leads a process group of its own;
- when the child has ended, with its exit code, which is negative for a signal, as that of
  :class:`subprocess.Popen`.

A server whose client has been killed kills its child, and ends.
"""

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

__all__ = ["ForkServer"]

_ROOT = Path(__file__).resolve().parent.parent


class ForkServer:
    """A server, which runs one request at a time.

    Args:
        modules: What it imports.
        environment: The environment of the server and of its children.
    """

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, *modules],
            cwd=_ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # so that `select` sees what has not been read
            start_new_session=True,
        )
        self._child: int | None = None

    def run(self, arguments: Sequence[str], output: Path, timeout_s: float) -> int | None:
        """Runs pytest in a child, and returns its exit code, or None if the time was not enough.

        Args:
            arguments: The arguments of pytest.
            output: The file for what the child prints.
            timeout_s: A limit, in seconds, at which the child and its process group are killed.

        Raises:
            ChildProcessError: The server has ended.
        """
        request = json.dumps({"arguments": list(arguments), "output": str(output)})
        try:
            self._requests.write(f"{request}\n".encode())
        except BrokenPipeError:
            raise self._error() from None
        self._child = self._answer()
        is_ended = bool(select.select([self._answers], [], [], timeout_s)[0])
        if not is_ended:
            self.kill_child()
        exit_code = self._answer()
        self.kill_child()  # processes that it has left
        self._child = None
        return exit_code if is_ended else None

    def kill_child(self) -> None:
        """Kills the process group of the child that runs, if there is one."""
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):  # the whole group has ended
                os.killpg(self._child, signal.SIGKILL)

    def close(self) -> None:
        """Ends the server, which must have no child."""
        self._requests.close()
        self._process.wait()
        self._answers.close()

    @property
    def _requests(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def _answers(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    def _answer(self) -> int:
        line = self._answers.readline()
        if not line:
            raise self._error()
        return int(line)

    def _error(self) -> ChildProcessError:
        return ChildProcessError(f"the fork server ended with exit code {self._process.wait()}")


def _serve(modules: Sequence[str]) -> list[str]:
    """Forks for each request; returns in the children, with the arguments of pytest."""
    sys.path[0] = os.getcwd()  # that of `python -m pytest`
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for module in modules:
        importlib.import_module(module)
    # A child that looks for garbage among the imports, as each does at its end, copies their pages.
    gc.freeze()
    for line in sys.stdin.buffer:
        request = json.loads(line)
        with warnings.catch_warnings():
            # Of Python 3.12 and later: OpenBLAS, of numpy, has threads, and is prepared for a fork.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            os.close(answers)
            _lead(os.getpid())
            _print_to(request["output"])
            arguments: list[str] = request["arguments"]
            return arguments
        _lead(child)
        try:
            os.write(answers, f"{child}\n".encode())
            _wait_for_end(child)
            _, status = os.waitpid(child, 0)
            os.write(answers, f"{os.waitstatus_to_exitcode(status)}\n".encode())
        except BrokenPipeError:  # the client has been killed
            with contextlib.suppress(ProcessLookupError):  # the whole group has ended
                os.killpg(child, signal.SIGKILL)
            sys.exit(1)
    sys.exit(0)


def _wait_for_end(child: int) -> None:
    """Waits for the child's end.

    Raises:
        BrokenPipeError: The client has ended before.
    """
    try:
        end = os.pidfd_open(child)
    except OSError:  # the kernel is older than this function; `waitpid` waits
        return
    client = sys.stdin.fileno()
    poll = select.poll()
    poll.register(end, select.POLLIN)
    poll.register(client, 0)  # reports only its end
    ended = {file for file, _ in poll.poll()}
    os.close(end)
    if ended == {client}:
        raise BrokenPipeError


def _lead(child: int) -> None:
    """Makes the child the leader of a process group, in the server and in the child."""
    with contextlib.suppress(ProcessLookupError):  # it has ended, and was the leader
        os.setpgid(child, child)


def _print_to(path: str) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for source, target in ((nothing, 0), (file, 1), (file, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(file)


def _main() -> int:
    arguments = _serve(sys.argv[1:])
    import pytest

    # Plug-ins of pytest are among what has been imported.
    ignored = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"
    return pytest.main(["-W", ignored, *arguments])


if __name__ == "__main__":
    sys.exit(_main())
