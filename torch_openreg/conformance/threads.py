"""Calls in separate threads.

The threads are daemons, so that one that hangs does not keep the process from ending.
"""

import threading
from collections.abc import Callable

__all__ = ["call_in_thread", "call_in_threads"]


def call_in_thread(function: Callable[[], object]) -> object:
    """Calls a function in a new thread; returns its result or raises its exception."""
    return call_in_threads(function)[0]


def call_in_threads(*functions: Callable[[], object]) -> list[object]:
    """Calls functions in new threads, at the same time.

    Returns:
        Their results.

    Raises:
        BaseException: The first exception, after all threads have ended.
    """
    results: list[object] = [None] * len(functions)
    errors: list[BaseException] = []

    def run(index: int) -> None:
        try:
            results[index] = functions[index]()
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(functions))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results
