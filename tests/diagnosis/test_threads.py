"""A group served by a separate thread hangs while the rank trains on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Diagnosis
from hangscope.trace.model import ExceptionFacts, Frame, ThreadStack
from tests.diagnosis.builder import SECOND, START, Job

MAIN, SIDE = 4711, 4712


def _job(*, thread: int = SIDE) -> Job:
    """All ranks wait for rank 1 in the group that a second thread uses; the main thread goes on."""
    job = Job(3, live=True)
    side = job.group(0, 1, 2, desc="heartbeat")
    for _ in range(3):
        job.all()
        job.all(group=side)
    for rank in (0, 2):
        job.op(rank, group=side, done=False)
    for _ in range(4):
        job.all(at=job.now + 20)
    for row in job.rows:
        row["thread"] = thread if row["group"] == side else MAIN
    main = (Frame("train", "/home/me/train.py", 88),)
    beat = (Frame("read_sensor", "/home/me/beat.py", 12), Frame("beat", "/home/me/beat.py", 30))
    threads = (
        ThreadStack("MainThread", True, main, START + 5, native_id=MAIN),
        ThreadStack("beat", False, beat, START + 5, native_id=SIDE),
    )
    for rank in range(3):
        job.rank(rank, pid=MAIN, threads=threads, observed_ns=START + int(90e9))
    return job


def test_reported_line_is_that_of_the_groups_own_thread() -> None:
    found = diagnose(_job().trace())
    assert (found.verdict.value, found.culprits) == ("missing_rank", (1,))
    (side,) = [s for s in found.findings[0].sides if s.ranks == (1,)]
    assert side.stack[0].name == "read_sensor"
    assert "beat.py:12" in found.findings[0].fix
    assert "read_sensor" in found.findings[0].why


def test_main_threads_own_group_shows_the_main_thread() -> None:
    found = diagnose(_job(thread=MAIN).trace())
    (side,) = [s for s in found.findings[0].sides if s.ranks == (1,)]
    assert side.stack[0].name == "train"


def _dead(message: str = "'loss'", *, native_id: int = SIDE) -> Job:
    """As above, but rank 1's thread has died, and the main threads stand still after some steps:
    rank 0's waits for its own thread, the others in the next collective of the world.
    """
    job = _job()
    for rank in (1, 2):
        job.op(rank, done=False)
    for row in job.rows:
        row["thread"] = row.get("thread", MAIN)
    error = ExceptionFacts(
        "KeyError",
        message,
        (Frame("report", "/home/me/metrics.py", 14),),
        START + 5,
        "metrics",
        is_main_thread=False,
        native_id=native_id,
    )
    threads = tuple(t for t in job.facts[1].threads if t.is_main)
    for rank in range(3):
        job.rank(rank, observed_ns=START + int(200e9))
    job.rank(1, exception=error, threads=threads)
    return job


def test_operation_owed_by_a_dead_thread_is_the_cause() -> None:
    found = diagnose(_dead().trace())
    assert (found.verdict.value, found.culprits) == ("missing_rank", (1,))
    first = found.findings[0]
    assert "its thread metrics ended with KeyError: 'loss'" in first.summary
    assert "metrics.py:14 in report" in first.fix
    (side,) = [s for s in first.sides if s.ranks == (1,)]
    assert side.stack[0].name == "report"


@pytest.mark.parametrize(
    "job",
    [
        _dead(native_id=MAIN + 7),  # another thread than the one that issued the operations
        _dead("Connection closed by peer [127.0.0.1]:5535"),  # a victim itself
    ],
)
def test_end_of_another_thread_or_of_a_victims_explains_nothing(job: Job) -> None:
    found = diagnose(job.trace())
    assert found.verdict.value == "deadlock_cycle"
    assert "its thread" not in found.summary


def _race(*, started: bool = True, shared: bool = True, everywhere: bool = True) -> Job:
    """A thread of ranks 0 and 1 gathers in the default group while rank 2's main thread reduces.

    ``everywhere``: that of rank 2 has done so before.
    """
    job = Job(3, live=True)
    job.steps(4)
    if everywhere:
        job.all("all_gather", size=(1,), line=8, function="save")
    if not shared:
        job.rows.clear()
    for rank in (0, 1):
        job.op(rank, "all_gather", size=(1,), done=False, line=8, function="save")
    job.op(2, done=False)
    stack = [Frame("run", "/usr/lib/python3.11/threading.py", 982)] if started else []
    save = next(i for i, s in enumerate(job.stacks) if s[0].name == "save")
    job.stacks[save] = (job.stacks[save][0], *stack)
    for row in job.rows:
        row["thread"] = SIDE + row["rank"] if row["stack"] == save else MAIN
    for rank in range(3):
        job.rank(rank, pid=MAIN)
    return job


def test_two_threads_in_one_group_are_a_race() -> None:
    found = diagnose(_race().trace())
    assert "two threads issue operations in this group" in found.findings[0].fix
    told = (found.culprits, found.confidence.value)
    assert told == ((0, 1, 2), "ambiguous"), "no rank has done anything wrong"
    for job in (_race(started=False), _race(shared=False), _race(everywhere=False)):
        assert "two threads" not in diagnose(job.trace()).findings[0].fix


def _checkpoint(job: Job, group: int, rank: int, thread: int) -> None:
    """What a save in the background issues, from a thread of its own."""
    for line, op in enumerate(("all_gather", "gather", "broadcast", "scatter", "broadcast")):
        job.op(rank, op, group=group, line=10 + line)
        job.rows[-1]["thread"] = thread


def _saving(*, first: bool) -> Job:
    """Rank 1 left no record in the middle of a second save; the others wait in both threads."""
    job = Job(3)
    saves = job.group(0, 1, 2, desc="saves")
    for step in range(4):
        job.all()
        if step == 1:
            for rank in range(3):
                _checkpoint(job, saves, rank, SIDE)
    for rank in (0, 2):
        ahead = first is (rank == 0)
        for main in (ahead, not ahead):
            job.op(rank, "all_reduce" if main else "all_gather", group=0 if main else saves,
                   line=88 if main else 10, done=False)  # fmt: skip
            job.rows[-1]["thread"] = MAIN if main else SIDE + 1
    for row in job.rows:
        row.setdefault("thread", MAIN)
    job.groups = [replace(group, backend="gloo") for group in job.groups]
    job.lose(1)
    return job


@pytest.mark.parametrize("first", [True, False])
def test_threads_in_separate_groups_do_not_block_each_other(first: bool) -> None:
    found = diagnose(_saving(first=first).trace())
    assert (found.verdict.value, found.culprits) == ("rank_lost", (1,))


def test_order_of_two_threads_on_a_device_is_fixed() -> None:
    job = _saving(first=True)
    job.groups = [replace(group, backend="nccl") for group in job.groups]
    assert set(diagnose(job.trace()).culprits) == {0, 2}


POOL = (
    Frame("all_reduce", "/x/site-packages/torch/distributed/distributed_c10d.py", 3245),
    Frame("run", "/usr/lib/python3.11/concurrent/futures/thread.py", 58),
    Frame("_bootstrap", "/usr/lib/python3.11/threading.py", 1002),
)


def _pool(threads: tuple[int, ...], by: str = "") -> str:
    """The advice, where pools issue all operations and rank 2 another one than the others.

    ``by``: the file of the function that a pool was given; the collective itself without one.
    """
    job = Job(3, live=True)
    job.steps(len(threads) - 1)
    for rank in range(3):
        job.op(rank, size=(3 if rank == 2 else 256,), done=False)
    own = (Frame("sync", by, 88),) if by else ()
    job.stacks[:] = [(POOL[0], *own, *POOL[1:])] * len(job.stacks)
    for index, row in enumerate(job.rows):
        row["thread"] = threads[index // 3]
    for rank in range(3):
        job.rank(rank, pid=MAIN)
    return diagnose(job.trace()).findings[0].fix


def test_pool_threads_that_take_turns_are_a_race() -> None:
    assert "two threads issue" in _pool((SIDE, 9, SIDE, 9), "/home/me/train.py")
    assert "two threads" not in _pool((SIDE, SIDE, 9, 9), "/home/me/train.py")


def _started(function: str) -> tuple[Frame, ...]:
    """The stack of a thread that was started with a function of the user's."""
    return (
        Frame("all_reduce", "/x/site-packages/torch/distributed/distributed_c10d.py", 3245),
        Frame(function, "/home/me/train.py", 88),
        Frame("run", "/usr/lib/python3.11/threading.py", 982),
        Frame("_bootstrap", "/usr/lib/python3.11/threading.py", 1002),
    )


def _two_functions(*, both: bool = False, meanwhile: int = 0, host: bool = True) -> Diagnosis:
    """One thread of each rank issues all before; at the end rank 2's operation is another one's.

    ``both``: samples show that rank 0 runs both functions. ``meanwhile``: this thread of rank 0
    issues one more while the first waits.
    """
    job = Job(3, live=True)
    job.steps(3)
    for rank in range(3):
        job.op(rank, "broadcast" if rank == 2 else "all_reduce", done=False)
    if meanwhile:
        job.op(0, "broadcast", done=False)
    job.stacks[:] = [_started("train")] * len(job.stacks) + [_started("average")]
    for row in job.rows:
        row["thread"] = SIDE
    if meanwhile:
        job.rows[-1]["thread"] = meanwhile
    job.rows[11]["stack"] = len(job.stacks) - 1
    backend = "gloo" if host else "nccl"
    job.groups = [replace(group, backend=backend) for group in job.groups]
    job.signatures[:] = [replace(s, backend=backend) for s in job.signatures]
    for rank in range(3):
        job.rank(rank, pid=MAIN)
    functions = ("train", "average") if both else ("train",)
    job.rank(0, threads=tuple(ThreadStack(f, False, _started(f), START) for f in functions))
    return diagnose(job.trace())


def test_threads_with_different_functions_on_one_rank_are_a_race() -> None:
    assert _two_functions().culprits == (2,)
    found = _two_functions(both=True)
    assert (found.culprits, found.confidence.value) == ((0, 1, 2), "ambiguous")
    assert "two threads issue" in found.findings[0].fix


def _twins(*, native_id: int = 9, in_another_group: bool = False) -> Diagnosis:
    """Rank 2's thread reduces more than the others'; rank 0 runs the same function in a second one.

    ``native_id``: that thread's; ``in_another_group``: it has issued something, but not there.
    """
    job = Job(3, live=True)
    other = job.group(0, 1, 2, desc="other")
    job.steps(3)
    for rank in range(3):
        job.op(rank, size=(512 if rank == 2 else 256,), done=False)
    for row in job.rows:
        row["thread"] = MAIN if row["collective_seq"] < 4 else SIDE
    if in_another_group:
        job.all(group=other)
        for row in job.rows[-3:]:
            row["thread"] = native_id
    job.stacks[:] = [_started("reduce_shard")] * len(job.stacks)
    for rank in range(3):
        job.rank(rank, pid=MAIN)
    stack, sampled_ns = _started("reduce_shard")[1:], START + int(60e9)
    twin = ThreadStack("Thread-2", False, stack, sampled_ns, native_id=native_id)
    job.rank(0, threads=(twin,))
    return diagnose(job.trace())


def test_function_running_in_two_threads_of_one_rank_is_a_race() -> None:
    found = _twins()
    assert (found.culprits, found.confidence.value) == ((0, 1, 2), "ambiguous")
    assert "two threads issue" in found.findings[0].fix


def test_same_thread_or_thread_with_its_own_group_is_no_race() -> None:
    for found in (_twins(native_id=SIDE), _twins(in_another_group=True)):
        assert (found.culprits, found.confidence.value) == ((2,), "certain")


@pytest.mark.parametrize(
    ("before", "sampled_s", "sure"), [(3, None, "certain"), (0, None, "likely"), (0, 9, "certain")]
)
def test_first_operations_of_threads_are_certain_only_with_a_later_sample(
    before: int, sampled_s: int | None, sure: str
) -> None:
    """``before``: that many operations of theirs came before; ``sampled_s``: when rank 0's threads
    were seen, after the last operation."""
    job = Job(3)
    job.steps(3)
    for rank in range(3):
        job.op(rank, size=(512 if rank == 2 else 256,), done=False)
    for row in job.rows:
        row["thread"] = SIDE if row["collective_seq"] > 3 - before else MAIN
    job.stacks[:] = [_started("reduce_shard")] * len(job.stacks)
    for rank in range(3):
        job.rank(rank, pid=MAIN)
    if sampled_s is not None:
        last_ns = max(row["created_ns"] for row in job.rows)
        own = ThreadStack(
            "Thread-1", False, _started("reduce_shard"), last_ns + sampled_s, native_id=SIDE
        )
        job.rank(0, threads=(own,))
    found = diagnose(job.trace())
    assert (found.culprits, found.confidence.value) == ((2,), sure)


def test_thread_not_waiting_for_another_is_a_race_on_the_host() -> None:
    found = _two_functions(meanwhile=9)
    assert (found.culprits, found.confidence.value) == ((0, 1, 2), "ambiguous")
    assert _two_functions(meanwhile=SIDE).culprits == (2,), "the same thread"
    assert _two_functions(meanwhile=9, host=False).culprits == (2,), "a device has a queue"


def test_thread_that_handled_its_error_and_returned_is_as_missing_as_one_that_raised() -> None:
    """Rank 1's main thread waits for the others, and they wait for its thread."""
    job = _dead()
    seen_ns = START + int((job.now + 100) * SECOND)
    main = tuple(replace(thread, sampled_ns=seen_ns) for thread in job.facts[1].threads)
    job.rank(1, exception=None, threads=main)
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("missing_rank", (1,))
    ended = "rank 1: the thread that issued this group's operations has ended"
    assert ended in found.findings[0].evidence


def _gil_held(*, wakeups_hz: float, more: tuple[ThreadStack, ...] = ()) -> Diagnosis:
    """Rank 1, which the others wait for, runs nothing; its threads were asked for their stacks."""
    job = Job(3, live=True)
    for _ in range(3):
        job.all()
    for rank in (0, 2):
        job.op(rank, done=False)
    main = (Frame("train", "/home/me/train.py", 88),)
    wait = (
        Frame("wait", "/usr/lib/python3.12/threading.py", 359),
        Frame("beat", "/home/me/beat.py", 7),
    )
    threads = (
        ThreadStack("MainThread", True, main, START + 5),
        ThreadStack("a", False, (Frame("telemetry", "/home/me/tel.py", 6),), START + 5),
        ThreadStack("b", False, wait, START + 5),
        ThreadStack("a", False, (Frame("telemetry", "/home/me/tel.py", 5),), START + 1),
    )
    job.rank(
        1,
        threads=(*threads, *more),
        gil_blocked=True,
        wakeups_hz=wakeups_hz,
        process_state="sleeping",
    )
    return diagnose(job.trace())


def test_thread_that_holds_the_gil_is_shown_where_the_main_one_asks_for_it() -> None:
    found = _gil_held(wakeups_hz=195.0)
    assert found.culprits == (1,)
    assert "tel.py:6 in telemetry" in found.findings[0].fix


def test_main_thread_that_does_not_ask_for_the_gil_has_it() -> None:
    assert "train.py:88 in train" in _gil_held(wakeups_hz=0.1).findings[0].fix


def test_of_several_threads_none_is_said_to_hold_the_gil() -> None:
    other = ThreadStack("c", False, (Frame("feed", "/home/me/feed.py", 9),), START + 5)
    assert "train.py:88 in train" in _gil_held(wakeups_hz=195.0, more=(other,)).findings[0].fix


def _crossed(*, threads: bool) -> Diagnosis:
    """Rank 0 is in the metrics' first all-reduce, rank 1 in the next one of the training loop."""
    job = Job(2)
    side = job.group(0, 1, desc="metrics")
    for _ in range(4):
        job.all()
    job.op(0, group=side, done=False, line=10)
    job.op(1, done=False)
    for row in job.rows:
        row["thread"] = SIDE if threads and row["group"] == side else MAIN
    return diagnose(job.trace())


def test_order_of_two_threads_is_nobodys_mistake() -> None:
    found = _crossed(threads=True)
    assert (found.verdict.value, found.culprits) == ("deadlock_cycle", (0, 1))
    assert found.confidence.value == "ambiguous"
    assert "a lock that one thread holds" in found.findings[0].fix


def test_one_thread_keeps_to_an_order() -> None:
    assert "a lock that one thread holds" not in _crossed(threads=False).findings[0].fix
