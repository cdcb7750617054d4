"""Final tracebacks of ranks that were interrupted, or that failed during cleanup."""

from __future__ import annotations

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Diagnosis
from tests.diagnosis.tracebacks import (
    BARRIER,
    CLOSED,
    REDUCE,
    TIMED_OUT,
    Frames,
    gave_up,
    in_finally,
    table,
)
from tests.trace.logs import trace_of

INTERRUPTED = "KeyboardInterrupt"

LOGGER = "/env/lib/python3.11/site-packages/torch/distributed/c10d_logger.py"

IN_REDUCE = (("/job/train.py", 40, "step"), (LOGGER, 85, "wrapper"))

IN_LOADER = (
    ("/job/train.py", 17, "epoch"),
    ("/env/lib/python3.11/site-packages/torch/utils/data/dataloader.py", 1300, "_try_get_data"),
    ("/usr/lib/python3.11/multiprocessing/connection.py", 947, "wait"),
)


def _pressed(waits: dict[int, Frames], error: str = INTERRUPTED, world: int = 4) -> Diagnosis:
    stopped = "Received 2 death signal, shutting down workers\n"
    text = "".join(gave_up(rank, frames, error) for rank, frames in waits.items())
    return diagnose(trace_of(f"world_size={world}\n{stopped}{text}"))


def test_ctrl_c_traceback_shows_the_rank_elsewhere() -> None:
    found = _pressed({0: IN_REDUCE, 1: IN_REDUCE, 2: IN_LOADER, 3: IN_REDUCE})
    assert (found.verdict.value, found.culprits) == ("missing_rank", (2,))
    assert found.confidence.value == "likely"
    assert "Rank 2 is at train.py:17 in epoch while ranks 0, 1, 3 wait" in found.summary


def test_ctrl_c_while_all_wait_or_few_print_names_no_rank() -> None:
    assert _pressed(dict.fromkeys(range(4), IN_REDUCE)).culprits == ()
    assert _pressed({0: IN_REDUCE, 1: IN_REDUCE, 2: IN_LOADER}, world=8).culprits == ()


def test_own_error_precedes_the_interrupts_of_the_others() -> None:
    text = gave_up(1, IN_LOADER, "ValueError: bad sample")
    text += "".join(gave_up(r, IN_REDUCE, INTERRUPTED) for r in (0, 2, 3))
    found = diagnose(trace_of("world_size=4\n" + text))
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (1,))


OWN = (("/job/train.py", 44, "step"), ("/job/data.py", 9, "decode"))


def test_if_all_end_in_a_cleanup_the_first_failure_is_named() -> None:
    text = in_finally(2, OWN, "ValueError: bad record")
    text += "".join(in_finally(r, REDUCE, TIMED_OUT) for r in (0, 1))
    found = diagnose(trace_of("world_size=3\n" + text + table(dict.fromkeys(range(3), 1))))
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (2,))
    assert "bad record" in found.summary


def test_if_all_end_in_a_cleanup_the_first_failed_wait_counts() -> None:
    """One rank waited in the ``finally`` barrier all the time, the others only later."""
    text = gave_up(0, BARRIER) + "".join(in_finally(r, REDUCE, TIMED_OUT) for r in (1, 2, 3))
    found = diagnose(trace_of("world_size=4\n" + text + table(dict.fromkeys(range(4), 1))))
    assert (found.verdict.value, found.culprits) == ("collective_mismatch", (0,))
    assert found.confidence.value == "likely"


def test_timeout_in_the_backward_pass_is_no_own_failure() -> None:
    backward = (("/job/train.py", 41, "step"), ("/env/torch/_tensor.py", 600, "backward"))
    text = gave_up(1, BARRIER) + "".join(in_finally(r, backward, CLOSED) for r in (0, 2, 3))
    found = diagnose(trace_of("world_size=4\n" + text + table(dict.fromkeys(range(4), 1))))
    assert (found.verdict.value, found.culprits) == ("collective_mismatch", (1,))


def test_handlers_that_run_on_all_ranks_accuse_none() -> None:
    """A lookup with a fallback to asking the other ranks is no failure."""
    text = "".join(in_finally(r, OWN, "KeyError: 'cached'") for r in range(3))
    found = diagnose(trace_of("world_size=3\n" + text + table(dict.fromkeys(range(3), 1))))
    assert "KeyError" not in found.summary


def test_wait_broken_by_an_interrupt_is_shown_by_its_callers() -> None:
    """The first traceback begins where the broken connection was caught, inside a library."""
    waits = "/env/lib/python3.11/site-packages/hangscope/recording/work_waits.py"
    callers = (*REDUCE, (waits, 45, "wait"))
    text = gave_up(1, IN_LOADER, INTERRUPTED)
    for rank in (0, 2):
        text += gave_up(rank, ((waits, 38, "wait"),), CLOSED) + f"\n[rank{rank}]: "
        text += "During handling of the above exception, another exception occurred:\n\n"
        text += gave_up(rank, callers, INTERRUPTED)
    found = diagnose(trace_of("world_size=3\n" + text))
    assert (found.verdict.value, found.culprits) == ("missing_rank", (1,))
    assert "ranks 0, 2 wait at train.py:40 in step" in found.summary
