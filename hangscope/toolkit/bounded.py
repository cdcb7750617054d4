"""Runs a call that may block for ever, with a limit on how long to wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class TookTooLong(Exception):  # noqa: N818 - reads as what happened
    """The call was still running when its time was up; its thread is abandoned."""


def bounded(call: Callable[[], T], timeout_s: float, name: str) -> T:
    """Run ``call`` in its own thread, and return its result or raise its exception.

    Some calls (creating or destroying a communicator) block in C++ without any timeout, so only
    another thread can go on. The thread is a daemon, so it does not keep the process alive.

    Raises
    ------
    TookTooLong
        ``timeout_s`` seconds passed.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # raised to the caller below
            errors.append(error)

    thread = threading.Thread(target=run, name=f"hangscope-{name}", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if thread.is_alive():
        raise TookTooLong(name)
    if errors:
        raise errors[0]
    return results[0]
