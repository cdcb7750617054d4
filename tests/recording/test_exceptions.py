"""The frames of an exception go down to where its first cause was raised."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from hangscope.recording.exceptions import describe_exception


def look_up() -> None:
    raise KeyError("label")


def forward() -> None:
    try:
        look_up()
    except KeyError as error:
        raise ValueError("bad batch") from error


def stage() -> None:
    try:
        forward()
    except ValueError as error:
        raise RuntimeError("stage 1 failed") from error


def of_a_pool() -> None:
    with ThreadPoolExecutor(1) as pool:
        try:
            pool.submit(look_up).result()
        except KeyError as error:
            cause = error.with_traceback(None)
    raise RuntimeError("a worker failed") from cause


def unrelated() -> None:
    raise RuntimeError("no batch") from KeyError("never raised")


def _frames(program: Callable[[], None]) -> list[str]:
    try:
        program()
    except RuntimeError as error:
        described = json.loads(describe_exception(type(error), error, error.__traceback__, None))
        return [name for name, _, _ in described["frames"]]
    raise AssertionError("it has to fail")


def test_frames_go_down_to_the_first_cause() -> None:
    assert _frames(stage) == ["look_up", "forward", "stage", "_frames"]


def test_cause_from_another_thread_does_not_change_the_frames() -> None:
    assert _frames(of_a_pool) == ["of_a_pool", "_frames"]
    assert _frames(unrelated) == ["unrelated", "_frames"]
