"""Settings for all tests, and the limits that make a run end, whatever a test does.

A test has ``timeout`` seconds (pyproject.toml), its fixtures included; then pytest-timeout raises
in it, once. What does not heed that (a teardown that waits in turn, a second try, a call that holds
the GIL) is ended with its worker some time later, by a thread in C that prints all stacks. The run
then ends with an error, because no worker is started again (``--max-worker-restart 0``): with
``--dist loadgroup``, xdist (3.8) gives the same test to the next worker, and never ends when that
one is the last.
"""

from __future__ import annotations

import faulthandler
import os
import subprocess
import time
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.depth import examples

# Tests share their machine: how long one example takes says nothing.
settings.register_profile(
    "shared",
    deadline=None,
    max_examples=examples(200),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("shared")

# Whatever `hangscope compile` may have left here, tests see the recorder in Python, unless they ask
# for the other one. ``HANGSCOPE_COMPILED=1`` runs all of them with that.
os.environ.setdefault("HANGSCOPE_COMPILED", "0")


def _leave(child: subprocess.Popen[Any], kind: Any, value: Any, trace: Any) -> None:
    if kind is not None:
        child.kill()
    _wait(child, kind, value, trace)


# An assertion that fails in ``with subprocess.Popen(...)`` would wait for the end of a process that
# has none. This is what once kept a whole run from ending.
_wait = subprocess.Popen.__exit__
subprocess.Popen.__exit__ = _leave  # type: ignore[method-assign]

_GRACE_S = 90.0
_END_S = 180.0

_stderr = pytest.StashKey[Any]()
_running: dict[str, float] = {}


def pytest_configure(config: pytest.Config) -> None:
    """Keep stderr as it is outside of tests."""
    config.stash[_stderr] = open(os.dup(2), "w")  # noqa: SIM115


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Only what watches the time may be tried again; each time is counted and printed."""
    for item in items:
        if item.get_closest_marker("timed"):
            item.add_marker(pytest.mark.flaky(reruns=2))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """Bound the fixtures of a test."""
    return (yield from _bounded(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Bound the test itself."""
    return (yield from _bounded(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Bound the ends of the fixtures, those of its module and of the session included."""
    return (yield from _bounded(item))


def _bounded(item: pytest.Item) -> Generator[None, object, object]:
    marker = item.get_closest_marker("timeout")
    limit_s = float(marker.args[0] if marker else item.config.getini("timeout"))
    _end_after(item.config, limit_s + _GRACE_S)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """End the run although its threads or workers do not; an idle worker waits for the others."""
    if not hasattr(session.config, "workerinput"):
        _end_after(session.config, _END_S)


def _end_after(config: pytest.Config, seconds: float) -> None:
    faulthandler.dump_traceback_later(seconds, exit=True, file=config.stash[_stderr])


def pytest_runtest_logstart(nodeid: str) -> None:
    """Remember what runs (with xdist: in the workers)."""
    _running[nodeid] = time.monotonic()


def pytest_runtest_logfinish(nodeid: str) -> None:
    """Forget it."""
    _running.pop(nodeid, None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the tests that were running when the run was interrupted, or their worker ended."""
    for nodeid, start in _running.items():
        terminalreporter.write_line(f"not done after {time.monotonic() - start:.0f} s: {nodeid}")
