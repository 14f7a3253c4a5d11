"""Calls in threads of their own."""

import threading
from collections.abc import Callable

__all__ = ["call_in_thread"]


def call_in_thread(function: Callable[[], object]) -> object:
    """Calls a function in a new thread; returns its result or raises its exception."""
    result: list[object] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            result.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return result[0]
