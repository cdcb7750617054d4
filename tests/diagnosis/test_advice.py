"""Advice where the verdict alone would give the wrong hint."""

from __future__ import annotations

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.ring.layout import LEAVING_PHASE
from hangscope.trace.model import (
    ExceptionFacts,
    ExitFacts,
    Flag,
    Frame,
    Group,
    Phase,
    ThreadStack,
)
from tests.diagnosis.builder import SECOND, START, Job

MAIN = (Frame("next_batch", "/home/me/data.py", 13), Frame("<module>", "/home/me/train.py", 1))


def test_advice_against_padding_for_sizes_from_two_lines() -> None:
    job = Job(3, live=True)
    job.steps(4)
    for rank, line, size in ((0, 14, 769), (1, 15, 1), (2, 14, 769)):
        job.op(rank, size=(size,), line=line, done=False)
    fix = diagnose(job.trace()).findings[0].fix
    assert "same operations in the same order" in fix
    assert "train.py:15" in fix
    assert "pad" not in fix


def test_advice_to_pad_for_sizes_from_one_line() -> None:
    job = Job(3, live=True)
    job.steps(4)
    for rank, size in ((0, 64), (1, 40), (2, 64)):
        job.op(rank, size=(size,), line=14, done=False)
    assert "pad" in diagnose(job.trace()).findings[0].fix


def test_advice_for_one_line_in_two_groups_with_same_members() -> None:
    """The groups were made in another order on rank 3, or are taken in another order there."""
    job = Job(4, live=True)
    dense = job.group(0, 1, 2, 3, desc="dense")
    expert = job.group(0, 1, 2, 3, desc="expert")
    job.steps(3)
    for rank in range(4):
        job.op(rank, group=expert if rank == 3 else dense, done=False)
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("deadlock_cycle", (3,))
    fix = found.findings[0].fix
    assert "create the groups in the same order" in fix
    assert "take them in the same order at that line" in fix


def test_advice_shows_other_threads_of_an_absent_rank() -> None:
    job = Job(2, live=True)
    job.steps(3)
    job.op(0, done=False)
    waiting = (Frame("wait", "/usr/lib/python3.11/threading.py", 320),)
    other = (Frame("prefetch", "/home/me/data.py", 8), *waiting)
    pool = tuple(
        Frame(name, "/usr/lib/python3.11/concurrent/futures/thread.py", 83)
        for name in ("run", "_worker")
    )
    opens = Frame("open", "/usr/lib/python3.11/pathlib.py", 1044)
    writes = Frame("write", "/x/site-packages/torch/distributed/checkpoint/filesystem.py", 300)
    job.rank(
        1,
        threads=(
            ThreadStack("MainThread", True, MAIN, START),
            ThreadStack("prefetcher", False, other, START),
            ThreadStack("heartbeat", False, waiting, START),
            ThreadStack("idle", False, pool[1:], START),
            ThreadStack("saver", False, (opens, writes, *pool), START),
        ),
    )
    evidence = diagnose(job.trace()).findings[0].evidence
    assert "rank 1: its thread prefetcher is at data.py:8 in prefetch" in evidence
    assert "rank 1: its thread saver is at filesystem.py:300 in write" in evidence
    assert not any("heartbeat" in line or "idle" in line for line in evidence)


def test_advice_for_a_full_queue_differs_from_an_empty_one() -> None:
    for name, words in (("put", "is full"), ("get", "puts anything"), ("join", "marked as done")):
        job = Job(2, live=True)
        job.steps(3)
        job.op(0, done=False)
        below = (Frame(name, "/usr/lib/python3.11/queue.py", 140),)
        job.rank(1, threads=(ThreadStack("MainThread", True, (*below, *MAIN), START),))
        assert words in diagnose(job.trace()).findings[0].fix, name


def test_advice_for_a_ring_that_receives_first() -> None:
    job = Job(4, live=True)
    job.steps(3)
    for rank in range(4):
        job.op(rank, "recv", peer=(rank - 1) % 4, done=False, flags=Flag.BLOCKING)
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("deadlock_cycle", (0, 1, 2, 3))
    assert "waits in recv before it does its other half" in found.findings[0].fix


def test_advice_for_a_rank_that_destroyed_its_groups() -> None:
    job = Job(3, live=True)
    job.steps(4)
    for rank in (0, 1):
        job.op(rank, done=False)
    job.rank(2, finalized=True, threads=(ThreadStack("MainThread", True, MAIN, START),))
    why = diagnose(job.trace()).findings[0].why
    assert "rank 2 has already called destroy_process_group and is in next_batch" in why


def test_healthy_partial_evidence_lists_what_is_missing() -> None:
    job = Job(3)
    job.steps(4)
    job.rank(1, alive=False, exit=ExitFacts("clean", 0, at_ns=START + SECOND))
    job.lose(0, 2)
    found = diagnose(job.trace())
    assert found.verdict.value == "healthy"
    assert "ranks 0, 2 left no record: nothing is known of them" in found.notes


def _fix_of(job: Job) -> str:
    return diagnose(job.trace()).findings[0].fix


def _parted(line: int, function: str, *, usual: tuple[int, ...] = ()) -> str:
    """The advice if rank 1 is there and the others are at the usual line of a step."""
    job = Job(3, live=True)
    for _ in range(4):
        job.all(line=14)
        for known in usual:
            job.all("barrier", line=known, function=function)
    for rank in (0, 2):
        job.op(rank, line=14, done=False)
    job.op(1, "barrier", line=line, function=function, done=False)
    return _fix_of(job)


def test_absent_rank_at_a_shared_line_skipped_or_repeated_a_call() -> None:
    fix = _parted(20, "save", usual=(20,))
    assert fix.startswith("compare train.py:20 in save with train.py:14 in train; all ranks run ")
    assert "look for what made rank 1 repeat or skip an operation" in fix


def test_absent_rank_at_a_line_new_to_all_may_have_left_a_loop_early() -> None:
    fix = _parted(20, "train")
    assert "`if rank == 0`; if it comes after a loop, rank 1 left that loop early" in fix


def test_absent_rank_at_an_earlier_line_has_left_no_loop() -> None:
    fix = _parted(10, "train")
    assert "loop" not in fix
    assert fix.startswith("compare train.py:10 in train with train.py:14 in train; ")


@pytest.mark.parametrize("parted", [0, 1])
@pytest.mark.parametrize("usual", [False, True])
def test_advice_for_two_ambiguous_ranks_names_neither_alone(parted: int, usual: bool) -> None:
    job = Job(2, live=True)
    for _ in range(4):
        job.all(line=14)
        if usual:
            job.all("barrier", line=20)
    job.op(1 - parted, line=14, done=False)
    job.op(parted, "barrier", line=20, done=False)
    found = diagnose(job.trace())
    assert (found.culprits, found.confidence.value) == ((0, 1), "ambiguous")
    told = "what made one of ranks 0, 1 repeat" if usual else f"rank {parted} left that loop early"
    assert told in found.findings[0].fix


def test_advice_for_an_exception_points_to_the_end_of_its_block() -> None:
    job = Job(3, live=True)
    job.steps(4)
    for rank in (0, 2):
        job.op(rank, done=False)
    job.op(1, "barrier", line=20, done=False)
    stack = job.stacks[-1]
    job.stacks[-1] = (Frame("__exit__", "/home/me/timer.py", 9), *stack)
    fix = _fix_of(job)
    assert "an exception that ended the `with` block on rank 1 alone" in fix


def test_advice_compares_diverging_lines_instead_of_a_shared_helper() -> None:
    job = Job(3, live=True)
    job.steps(4)
    for rank, size in ((0, 64), (1, 40), (2, 64)):
        job.op(rank, size=(size,), line=30 + rank % 2, done=False)
    helper = Frame("reduce_all", "/home/me/comm.py", 5)
    job.stacks[-2:] = [(helper, *stack) for stack in job.stacks[-2:]]
    assert _fix_of(job).startswith("compare train.py:31 in train with train.py:30 in train; ")


def test_advice_for_a_garbage_collected_object() -> None:
    job = Job(3, live=True)
    job.steps(4)
    for rank in (0, 2):
        job.op(rank, done=False)
    job.op(1, "barrier", line=20, function="__del__", done=False)
    assert "move the collective out of __del__" in _fix_of(job)


def test_advice_for_a_rank_that_initialised_again() -> None:
    job = Job(3, live=True)
    job.groups.append(Group("1", "default_pg", (0, 1, 2)))
    job.steps(4)
    for rank in range(3):
        job.op(rank, group=int(rank == 1), done=False)
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("deadlock_cycle", (1,))
    assert "uses a different group on one side" in found.findings[0].fix


def test_dead_thread_may_be_what_a_missing_rank_waits_for() -> None:
    job = Job(3, live=True)
    job.steps(4)
    for rank in (0, 2):
        job.op(rank, done=False)
    get = Frame("get", "/usr/lib/python3.11/queue.py", 171)
    died = ExceptionFacts(
        "OSError", "shard 7", (Frame("read", "/home/me/shards.py", 9),), START, "producer", False
    )
    thread = ThreadStack("MainThread", True, (get, *MAIN), START)
    job.rank(1, threads=(thread,), exception=died)
    fix = _fix_of(job)
    assert "anything into that queue" in fix
    assert fix.endswith("see what ended its thread producer, at shards.py:9 in read")


def test_dead_thread_may_have_owed_the_missing_p2p_operation() -> None:
    job = Job(3, live=True)
    job.steps(4)
    job.op(0, "recv", peer=1, done=False)
    job.op(1, "barrier", done=False)
    job.op(2, "recv", peer=0, done=False)
    died = ExceptionFacts(
        "KeyError", "'9'", (Frame("serve", "/home/me/serve.py", 9),), START, "server", False
    )
    job.rank(1, threads=(ThreadStack("MainThread", True, MAIN, START),), exception=died)
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("p2p_unmatched", (1,))
    assert found.findings[0].fix.endswith("its thread server, at serve.py:9 in serve")


@pytest.mark.parametrize("sampled", [True, False], ids=["as it left", "before it left"])
def test_advice_for_a_rank_that_exited_with_a_status(sampled: bool) -> None:
    job = Job(3)
    job.steps(4)
    for rank in (0, 2):
        job.op(rank, done=False)
    left_ns = START + 2 * SECOND
    hook = Frame("exit", "/lib/hangscope/recording/lifecycle.py", 150)
    stack = (hook, Frame("stop", "/home/me/train.py", 8)) if sampled else MAIN
    seen = ThreadStack("MainThread", True, stack, left_ns if sampled else START)
    job.rank(
        1,
        alive=False,
        phases=(Phase(LEAVING_PHASE, left_ns),),
        exit=ExitFacts("code", code=1, at_ns=left_ns),
        threads=(seen,),
    )
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (1,))
    why = found.findings[0].fix
    assert ("exited at train.py:8 in stop" in why) is sampled
    assert ("nothing on record says why" in why) is not sampled


def test_advice_for_a_rank_that_works_longer_than_the_timeout() -> None:
    for state, words in (("running", "raise the timeout"), ("sleeping", "if loaders differ")):
        job = Job(2, live=True)
        job.op(1, "barrier", done=False)
        at = (Frame("tokenize", "/home/me/data.py", 13), *MAIN[1:])
        thread = ThreadStack("MainThread", True, at, START)
        job.rank(0, process_state=state, threads=(thread,))
        assert words in _fix_of(job), state


@pytest.mark.parametrize("sizes", [(32, 64, 96), (96, 96, 96)])
def test_line_with_varying_sizes_is_a_loop_with_a_skipped_iteration(sizes: tuple[int, ...]) -> None:
    job = Job(4, live=True)
    job.steps(3)
    for size in sizes:
        for rank in range(4):
            job.op(rank, size=(size,), line=13)
    for rank in range(4):
        job.op(rank, size=(160 if rank == 2 else 128,), line=13, done=False)
    fix = diagnose(job.trace()).findings[0].fix
    assert ("what rank 2 skipped, repeated" in fix) == (len(set(sizes)) > 1)
    assert ("pad the last batch" in fix) == (len(set(sizes)) == 1)


def test_rank_that_exited_before_its_operations_completed_must_wait_for_them() -> None:
    job = Job(3, live=True)
    job.steps(3)
    for rank in range(3):
        job.op(rank, done=False)
    job.rank(1, alive=False, exit=ExitFacts("clean", 0, at_ns=START + 9 * SECOND))
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("rank_exited", (1,))
    assert "let rank 1 wait for what it has issued" in found.findings[0].fix
    assert found.findings[0].why == "rank 1 issued it too, but left before it was done"


def test_rank_whose_program_ended_had_fewer_steps() -> None:
    job = Job(3, live=True)
    job.steps(3)
    for rank in (0, 1):
        job.op(rank, done=False)
    over = (Frame("_shutdown", "/usr/lib/python3.11/threading.py", 1590),)
    job.rank(2, threads=(ThreadStack("MainThread", True, over, START),))
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("missing_rank", (2,))
    assert "its program is over" in found.findings[0].fix
    assert found.findings[0].why.startswith("rank 2 is at the end of its program; ")
    assert "equalise the number of batches" in found.findings[0].fix


def test_rank_that_skipped_a_p2p_operation_is_compared_with_its_partner() -> None:
    job = Job(3, live=True)
    job.steps(2)
    job.op(0, "recv", peer=1, line=20, done=False)
    for rank in (1, 2):
        job.op(rank, line=22, done=False)
    fix = diagnose(job.trace()).findings[0].fix
    assert fix.startswith("compare train.py:22 in train with train.py:20 in train; ")


def test_threads_with_different_start_functions_are_compared_at_their_calls() -> None:
    job = Job(3, live=True)
    job.steps(4)
    for rank in (0, 2):
        job.op(rank, "all_gather", line=14, function="save", done=False)
    job.op(1, "barrier", line=22, function="close", done=False)
    save = next(i for i, stack in enumerate(job.stacks) if stack[0].name == "save")
    job.stacks[save] = job.stacks[save][:1]
    fix = diagnose(job.trace()).findings[0].fix
    assert "compare train.py:22 in close with train.py:14 in save" in fix


@pytest.mark.parametrize(
    ("file", "function", "words"),
    [
        ("ddp_comm_hooks/powerSGD_hook.py", "powerSGD_hook", "a DDP communication hook"),
        ("join.py", "__exit__", "wait at the end of `with Join`"),
        ("join.py", "notify_join_context", ""),
    ],
)
def test_operations_issued_by_torch_are_recognised_by_frames(
    file: str, function: str, words: str
) -> None:
    job = Job(4, live=True)
    job.steps(3)
    for rank in range(4):
        job.op(rank, size=(96 if rank == 2 else 128,), done=False)
    inside = Frame(function, f"/x/site-packages/torch/distributed/algorithms/{file}", 7)
    job.stacks[:] = [(inside, *stack) for stack in job.stacks]
    found = diagnose(job.trace())
    assert found.culprits == (2,)
    fix = found.findings[0].fix
    assert words in fix
    told = ("a DDP communication hook" in fix, "wait at the end of `with Join`" in fix)
    assert told.count(True) == bool(words)
