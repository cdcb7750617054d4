"""The pytest plugin: fixtures as tests, and a guard that turns a hung test into a failure.

Collected: every folder with ``expected.toml`` and ``dumps/``, as one test.

Guarded: a test with the fixture ``hang_guard`` or ``@pytest.mark.hang_guard(timeout=60)``. The
processes it starts record; when they hang, they are ended and the test fails with the verdict
instead of running into the CI's timeout. Nothing heavy is imported, and nothing is changed, for
tests that use neither.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from hangscope.pytest_guard import Guard
    from hangscope.replay.verify import Outcome

MARKER = "hang_guard"
DEFAULT_TIMEOUT_S = 60.0
_GUARD = "_hangscope_guard"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--hang-timeout`` and the corresponding ini option."""
    group = parser.getgroup("hangscope")
    group.addoption(
        "--hang-timeout",
        type=float,
        metavar="SECONDS",
        help="how long a guarded test's collectives may wait (default: hang_timeout, or 60)",
    )
    parser.addini("hang_timeout", "seconds a guarded test's collectives may wait", default="")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(timeout=60): end the processes of this test when they hang, and fail with the "
        "verdict of HangScope",
    )


# -- fixtures as tests -----------------------------------------------------------------------


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect a folder with ``expected.toml`` and ``dumps/`` as one test."""
    if file_path.name != "expected.toml" or not (file_path.parent / "dumps").is_dir():
        return None
    return FixtureFile.from_parent(parent, path=file_path)


class FixtureFile(pytest.File):
    """An ``expected.toml``."""

    def collect(self) -> Iterable[pytest.Item]:
        """The only test in it."""
        yield FixtureItem.from_parent(self, name=self.path.parent.name)


class FixtureDiffers(Exception):  # noqa: N818
    """A fixture that does not get its expected verdict; the text tells the differences."""


class FixtureItem(pytest.Item):
    """Replays one fixture."""

    def runtest(self) -> None:
        """Read, diagnose, compare."""
        from hangscope.replay.fixture import FixtureError, load_fixture
        from hangscope.replay.verify import verify

        try:
            outcome = verify(load_fixture(self.path.parent))
        except FixtureError as error:
            raise FixtureDiffers(str(error)) from error
        if not outcome.passed:
            raise FixtureDiffers(_explain(outcome))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The differences, without a traceback through HangScope."""
        if isinstance(excinfo.value, FixtureDiffers):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        """The location that pytest shows for the test."""
        return self.path, 0, f"fixture {self.name}"


def _explain(outcome: Outcome) -> str:
    lines = [str(outcome.fixture.path)]
    lines += [f"  {d.what}: expected {d.expected!r}, got {d.got!r}" for d in outcome.differences]
    if outcome.fixture.expected.story:
        lines.append(f"  story: {outcome.fixture.expected.story}")
    return "\n".join([*lines, "", outcome.report])


# -- the guard -------------------------------------------------------------------------------


@pytest.fixture
def hang_guard(request: pytest.FixtureRequest) -> Guard:
    """The guard of this test: its ``directory``, ``environment`` and ``timeout_s``.

    The environment is set in this process, so children inherit it; a test that gives its children
    an environment of its own passes ``hang_guard.environment`` on.
    """
    guard: Guard = getattr(request.node, _GUARD)
    return guard


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Start the guard before the test's fixtures are set up."""
    marker = item.get_closest_marker(MARKER)
    if marker is None and MARKER not in getattr(item, "fixturenames", ()):
        return
    from hangscope.pytest_guard import Guard

    guard = Guard(_timeout_s(item, marker))
    setattr(item, _GUARD, guard)
    guard.start()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, None]:
    """If the test's processes hung, fail it with the verdict, whatever its own outcome."""
    outcome = yield
    guard: Guard | None = getattr(item, _GUARD, None)
    report = guard.report if guard is not None else None
    if report is not None:
        outcome.force_exception(_failed(report))


def _failed(report: str) -> BaseException:
    try:
        pytest.fail(report, pytrace=False)
    except BaseException as error:  # pytest's own Failed, created in the documented way
        return error


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Restore the environment; a run without a hang leaves nothing behind."""
    guard: Guard | None = getattr(item, _GUARD, None)
    if guard is not None:
        guard.stop()


def _timeout_s(item: pytest.Item, marker: pytest.Mark | None) -> float:
    if marker is not None and (marker.kwargs.keys() - {"timeout"} or len(marker.args) > 1):
        said = ", ".join(
            [*map(repr, marker.args), *(f"{k}={v!r}" for k, v in marker.kwargs.items())]
        )
        pytest.fail(f"hang_guard({said}): write hang_guard(timeout=SECONDS)", pytrace=False)
    given: Any = item.config.getoption("--hang-timeout")
    if given is None and marker is not None:
        given = marker.kwargs.get("timeout", marker.args[0] if marker.args else None)
    if given is None:
        given = item.config.getini("hang_timeout") or DEFAULT_TIMEOUT_S
    try:
        value = float(given)
    except (TypeError, ValueError):
        pytest.fail(f"hang_guard: {given!r} is not a number of seconds", pytrace=False)
    if not value > 0:
        pytest.fail("hang_guard: the timeout must be more than 0 seconds", pytrace=False)
    return value
