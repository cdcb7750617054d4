"""An exception that ends a process is recorded, even if no hook is called for it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hangscope.diagnosis.processes.stacks import calls_exit, user_frames
from hangscope.trace.rings.read import read_ring
from tests.real_jobs import environment, run
from tests.recording.launcher import JOBS


def facts_after(how: str, directory: Path) -> object:
    env = environment(HANGSCOPE_DIR=str(directory), HANGSCOPE_MONITOR="0", HOW=how)
    run([sys.executable, str(JOBS / "ending_job.py")], env)
    (path,) = directory.glob("*.ring")
    return read_ring(path).facts


@pytest.mark.parametrize(
    "how",
    [
        "caught",
        "caught_and_left_hard",
        "spawn",
        pytest.param("process-spawn", marks=pytest.mark.slow),
        "process-fork",
    ],
)
def test_fatal_exception_is_recorded(tmp_path: Path, how: str) -> None:
    facts = facts_after(how, tmp_path)
    assert facts.exception is not None  # type: ignore[attr-defined]
    assert facts.exception.type_name == "ValueError"  # type: ignore[attr-defined]
    assert "below its minimum" in facts.exception.message  # type: ignore[attr-defined]
    assert facts.exception.is_main_thread  # type: ignore[attr-defined]
    assert facts.exception.stack[0].name == "fail"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "how", ["printed_and_left", "printed_at_once_and_left", "printed_and_left_hard"]
)
def test_exit_status_after_a_failed_operation_has_its_exception(tmp_path: Path, how: str) -> None:
    facts = facts_after(how, tmp_path)
    assert facts.exception is not None  # type: ignore[attr-defined]
    assert facts.exception.message.count("by peer")  # type: ignore[attr-defined]
    assert facts.exception.is_main_thread  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("how", "function"),
    [
        pytest.param("with_last_words", "with_last_words", id="a program"),
        pytest.param(
            "words-fork",
            "raises_last_words",
            id="a process of multiprocessing",
            marks=pytest.mark.skipif(
                sys.version_info >= (3, 13),
                reason="its finalizers run when the exception is gone",
            ),
        ),
    ],
)
def test_exit_message_is_recorded_with_its_line(tmp_path: Path, how: str, function: str) -> None:
    """For a raised SystemExit, unlike ``sys.exit``, multiprocessing loses the place."""
    facts = facts_after(how, tmp_path)
    assert facts.exception is not None  # type: ignore[attr-defined]
    assert facts.exception.type_name == "SystemExit"  # type: ignore[attr-defined]
    assert "no such data set" in facts.exception.message  # type: ignore[attr-defined]
    assert facts.exception.stack[0].name == function  # type: ignore[attr-defined]


@pytest.mark.parametrize(("how", "status"), [("later", 5), ("went_on_and_left", 6)])
def test_handled_exception_is_not_recorded_as_fatal(tmp_path: Path, how: str, status: int) -> None:
    """The last sample is the call of ``sys.exit``."""
    facts = facts_after(how, tmp_path)
    assert facts.exception is None  # type: ignore[attr-defined]
    assert facts.exit is not None  # type: ignore[attr-defined]
    assert facts.exit.code == status  # type: ignore[attr-defined]
    assert facts.is_seen_leaving  # type: ignore[attr-defined]
    stack = facts.main_stack  # type: ignore[attr-defined]
    assert calls_exit(stack)
    assert user_frames(stack)[0].name == how


def test_ctrl_c_while_waiting_for_a_thread_at_exit(tmp_path: Path) -> None:
    """Its status stays 0, and it has not failed."""
    facts = facts_after("freed", tmp_path)
    assert facts.exception is None  # type: ignore[attr-defined]
    assert facts.exit is not None  # type: ignore[attr-defined]
    assert facts.exit.kind == "clean"  # type: ignore[attr-defined]
    assert facts.freed_ns >= facts.leaving.since_ns > 0  # type: ignore[attr-defined]


def test_cause_of_an_exception_is_recorded(tmp_path: Path) -> None:
    facts = facts_after("wrapped", tmp_path)
    assert facts.exception is not None  # type: ignore[attr-defined]
    lines = facts.exception.message.splitlines()  # type: ignore[attr-defined]
    assert lines[0] == "failed to run a stage:"
    assert lines[-1] == "caused by ConnectionError: connection closed by peer"


def test_signal_handler_raising_in_the_excepthook_hides_nothing(tmp_path: Path) -> None:
    env = environment(HANGSCOPE_DIR=str(tmp_path), HANGSCOPE_MONITOR="0", HOW="interrupted")
    done = run([sys.executable, str(JOBS / "ending_job.py")], env)
    (path,) = tmp_path.glob("*.ring")
    exception = read_ring(path).facts.exception
    assert exception is not None
    assert exception.message == "the scale went below its minimum"
    assert exception.stack[0].name == "interrupted"
    assert "ScaleError: the scale went below its minimum" in done.output
    assert "a worker was killed" in done.output  # the job's own exception is printed as well
    assert "recording stopped" not in done.output


def test_forked_rank_records_completions_before_it_ends(tmp_path: Path) -> None:
    """It ends by ``os._exit``, before anybody has polled its asynchronous work."""
    env = environment(HANGSCOPE_DIR=str(tmp_path), HANGSCOPE_MONITOR="0", HOW="forked")
    run([sys.executable, str(JOBS / "ending_job.py")], env)
    (path,) = tmp_path.glob("*.ring")
    records = read_ring(path).records
    assert len(records) == 1
    assert records["completed_ns"][0] > 0
