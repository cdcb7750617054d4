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


def test_sizes_of_two_lines_were_never_meant_for_each_other() -> None:
    job = Job(3, live=True)
    job.steps(4)
    for rank, line, size in ((0, 14, 769), (1, 15, 1), (2, 14, 769)):
        job.op(rank, size=(size,), line=line, done=False)
    fix = diagnose(job.trace()).findings[0].fix
    assert "same operations in the same order" in fix
    assert "train.py:15" in fix
    assert "pad" not in fix


def test_sizes_of_one_line_are_to_be_padded() -> None:
    job = Job(3, live=True)
    job.steps(4)
    for rank, size in ((0, 64), (1, 40), (2, 64)):
        job.op(rank, size=(size,), line=14, done=False)
    assert "pad" in diagnose(job.trace()).findings[0].fix


def test_one_line_in_two_groups_of_the_same_members() -> None:
    """The groups were made in another order on rank 3."""
    job = Job(4, live=True)
    dense = job.group(0, 1, 2, 3, desc="dense")
    expert = job.group(0, 1, 2, 3, desc="expert")
    job.steps(3)
    for rank in range(4):
        job.op(rank, group=expert if rank == 3 else dense, done=False)
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("deadlock_cycle", (3,))
    assert "groups in the same order" in found.findings[0].fix


def test_where_the_other_threads_of_an_absent_rank_stand_is_told() -> None:
    job = Job(2, live=True)
    job.steps(3)
    job.op(0, done=False)
    waiting = (Frame("wait", "/usr/lib/python3.11/threading.py", 320),)
    other = (Frame("prefetch", "/home/me/data.py", 8), *waiting)
    job.rank(
        1,
        threads=(
            ThreadStack("MainThread", True, MAIN, START),
            ThreadStack("prefetcher", False, other, START),
            ThreadStack("heartbeat", False, waiting, START),
        ),
    )
    evidence = diagnose(job.trace()).findings[0].evidence
    assert "rank 1: its thread prefetcher is at data.py:8 in prefetch" in evidence
    assert not any("heartbeat" in line for line in evidence)


def test_a_full_queue_is_waited_for_otherwise_than_an_empty_one() -> None:
    for name, words in (("put", "is full"), ("get", "puts anything"), ("join", "marked as done")):
        job = Job(2, live=True)
        job.steps(3)
        job.op(0, done=False)
        below = (Frame(name, "/usr/lib/python3.11/queue.py", 140),)
        job.rank(1, threads=(ThreadStack("MainThread", True, (*below, *MAIN), START),))
        assert words in diagnose(job.trace()).findings[0].fix, name


def test_a_ring_in_which_everybody_receives_first() -> None:
    job = Job(4, live=True)
    job.steps(3)
    for rank in range(4):
        job.op(rank, "recv", peer=(rank - 1) % 4, done=False, flags=Flag.BLOCKING)
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("deadlock_cycle", (0, 1, 2, 3))
    assert "waits in recv before it does its other half" in found.findings[0].fix


def test_a_rank_that_has_torn_its_groups_down() -> None:
    job = Job(3, live=True)
    job.steps(4)
    for rank in (0, 1):
        job.op(rank, done=False)
    job.rank(2, finalized=True, threads=(ThreadStack("MainThread", True, MAIN, START),))
    why = diagnose(job.trace()).findings[0].why
    assert "rank 2 has already called destroy_process_group and is in next_batch" in why


def test_a_healthy_part_of_a_job_says_what_is_missing() -> None:
    job = Job(3)
    job.steps(4)
    job.rank(1, alive=False, exit=ExitFacts("clean", 0, at_ns=START + SECOND))
    job.lose(0, 2)
    found = diagnose(job.trace())
    assert found.verdict.value == "healthy"
    assert "ranks 0, 2 left no dump: nothing is known of them" in found.notes


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


def test_who_is_at_a_line_that_all_come_to_has_left_something_out_or_repeats_it() -> None:
    fix = _parted(20, "save", usual=(20,))
    assert fix.startswith("compare train.py:20 in save with train.py:14 in train; all ranks run ")
    assert "look for what made rank 1 repeat or skip an operation" in fix


def test_who_is_at_a_line_that_is_new_to_all_may_have_left_a_loop_early() -> None:
    fix = _parted(20, "train")
    assert "`if rank == 0`; if it comes after a loop, rank 1 left that loop early" in fix


def test_who_is_at_a_line_before_the_others_has_left_no_loop() -> None:
    fix = _parted(10, "train")
    assert "loop" not in fix
    assert fix.startswith("compare train.py:10 in train with train.py:14 in train; ")


@pytest.mark.parametrize("parted", [0, 1])
@pytest.mark.parametrize("usual", [False, True])
def test_of_two_ranks_nobody_decides_between_the_advice_names_none_alone_without_a_reason(
    parted: int, usual: bool
) -> None:
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


def test_the_end_of_a_block_is_where_an_exception_leads_to() -> None:
    job = Job(3, live=True)
    job.steps(4)
    for rank in (0, 2):
        job.op(rank, done=False)
    job.op(1, "barrier", line=20, done=False)
    stack = job.stacks[-1]
    job.stacks[-1] = (Frame("__exit__", "/home/me/timer.py", 9), *stack)
    fix = _fix_of(job)
    assert "an exception that ended the `with` block on rank 1 alone" in fix


def test_lines_are_compared_where_they_part_not_in_a_helper_that_both_call() -> None:
    job = Job(3, live=True)
    job.steps(4)
    for rank, size in ((0, 64), (1, 40), (2, 64)):
        job.op(rank, size=(size,), line=30 + rank % 2, done=False)
    helper = Frame("reduce_all", "/home/me/comm.py", 5)
    job.stacks[-2:] = [(helper, *stack) for stack in job.stacks[-2:]]
    assert _fix_of(job).startswith("compare train.py:31 in train with train.py:30 in train; ")


def test_python_throws_objects_away_when_it_likes() -> None:
    job = Job(3, live=True)
    job.steps(4)
    for rank in (0, 2):
        job.op(rank, done=False)
    job.op(1, "barrier", line=20, function="__del__", done=False)
    assert "move the collective out of __del__" in _fix_of(job)


def test_one_that_has_made_its_world_anew() -> None:
    job = Job(3, live=True)
    job.groups.append(Group("1", "default_pg", (0, 1, 2)))
    job.steps(4)
    for rank in range(3):
        job.op(rank, group=int(rank == 1), done=False)
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("deadlock_cycle", (1,))
    assert found.findings[0].fix.startswith("rank 1 and the others are in different worlds")


def test_a_thread_that_died_may_be_what_a_rank_waits_for() -> None:
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


def test_a_thread_that_died_may_have_owed_the_half_of_a_pair() -> None:
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
def test_where_a_rank_left_with_a_status(sampled: bool) -> None:
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


def test_who_works_for_longer_than_the_others_wait_may_do_so_before() -> None:
    for state, words in (("running", "raise the timeout"), ("sleeping", "if loaders differ")):
        job = Job(2, live=True)
        job.op(1, "barrier", done=False)
        at = (Frame("tokenize", "/home/me/data.py", 13), *MAIN[1:])
        thread = ThreadStack("MainThread", True, at, START)
        job.rank(0, process_state=state, threads=(thread,))
        assert words in _fix_of(job), state


@pytest.mark.parametrize("sizes", [(32, 64, 96), (96, 96, 96)])
def test_a_line_with_another_size_each_time_is_a_loop_that_left_one_out(
    sizes: tuple[int, ...],
) -> None:
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


def test_who_left_before_what_it_had_issued_was_done_is_told_to_wait_for_it() -> None:
    job = Job(3, live=True)
    job.steps(3)
    for rank in range(3):
        job.op(rank, done=False)
    job.rank(1, alive=False, exit=ExitFacts("clean", 0, at_ns=START + 9 * SECOND))
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("rank_exited", (1,))
    assert "let rank 1 wait for what it has issued" in found.findings[0].fix
    assert found.findings[0].why == "rank 1 issued it too, but left before it was done"


def test_whose_program_is_over_is_told_of_fewer_steps() -> None:
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


def test_who_left_its_half_out_is_compared_with_who_waits_for_it() -> None:
    job = Job(3, live=True)
    job.steps(2)
    job.op(0, "recv", peer=1, line=20, done=False)
    for rank in (1, 2):
        job.op(rank, line=22, done=False)
    fix = diagnose(job.trace()).findings[0].fix
    assert fix.startswith("compare train.py:22 in train with train.py:20 in train; ")


def test_threads_that_began_apart_are_compared_where_they_call() -> None:
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
def test_what_torch_issues_for_the_user_is_told_by_its_frames(
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
