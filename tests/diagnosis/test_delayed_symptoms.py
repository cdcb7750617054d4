"""A skipped collective whose effect shows only later, when not all ranks can reach a common
operation."""

from __future__ import annotations

from dataclasses import replace

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.trace import formats
from hangscope.trace.model import ExitFacts, RankFacts, Source
from tests.diagnosis.builder import SECOND, START, Job

LEADERS = (0, 3)


def leaders(*, without: int = -1, twice: int = -1, past: int = 3) -> Job:
    """Two nodes of three: every step reduces on the node, between leaders, and tells the node.

    Leader ``without`` leaves the second out once, leader ``twice`` issues it twice; all meet in a
    barrier at the end.
    """
    job = Job(6)
    nodes = [job.group(0, 1, 2), job.group(3, 4, 5)]
    heads = job.group(*LEADERS)

    def step(node: int, done: bool = True, *, heads_too: bool = True, last: bool = False) -> None:
        ranks = (3 * node, 3 * node + 1, 3 * node + 2)
        for rank in ranks:
            job.op(rank, group=nodes[node], line=10)
        if heads_too:
            job.op(ranks[0], group=heads, line=11, size=(8,), done=done)
        for rank in ranks:
            if done or rank != ranks[0]:
                job.op(rank, "broadcast", group=nodes[node], root=ranks[0], line=12, done=done)

    for _ in range(past):
        for node in (0, 1):
            step(node)
    if without >= 0:
        odd = without // 3
        step(odd, heads_too=False)
        for node in (0, 1):  # they meet, and one of them is a step behind
            step(node)
        step(1 - odd, done=False)
        waiting = range(3 * odd, 3 * odd + 3)
    else:
        odd = twice // 3
        for node in (0, 1):
            for rank in range(3 * node, 3 * node + 3):
                job.op(rank, group=nodes[node], line=10)
        for rank in LEADERS:
            job.op(rank, group=heads, line=11, size=(8,))
        # What one issues for the second time is the next for the other.
        other = 1 - odd
        for rank in range(3 * other, 3 * other + 3):
            job.op(rank, "broadcast", group=nodes[other], root=3 * other, line=12)
            job.op(rank, group=nodes[other], line=10)
        for rank in LEADERS:
            job.op(rank, group=heads, line=11, size=(8,))
        for rank in range(3 * odd, 3 * odd + 3):
            job.op(rank, "broadcast", group=nodes[odd], root=3 * odd, line=12)
        for rank in range(3 * other, 3 * other + 3):
            job.op(rank, "broadcast", group=nodes[other], root=3 * other, line=12)
        step(odd, done=False)
        waiting = range(3 * other, 3 * other + 3)
    for rank in waiting:
        job.op(rank, "barrier", line=20, size=(), done=False)
    return job


def test_rank_that_skipped_the_leaders_operation_is_a_step_ahead() -> None:
    for guilty in LEADERS:
        found = diagnose(leaders(without=guilty).trace())
        assert (found.verdict, found.culprits) == (Verdict.DEADLOCK_CYCLE, (guilty,))
        assert found.confidence is Confidence.LIKELY


def test_rank_that_repeated_the_leaders_operation_is_a_step_behind() -> None:
    for guilty in LEADERS:
        found = diagnose(leaders(twice=guilty).trace())
        assert (found.culprits, found.confidence) == ((0, 3), Confidence.AMBIGUOUS)


def test_two_ranks_that_differ_only_from_each_other_are_both_suspect() -> None:
    """Only the node of the rank that waits alone is part of the cycle; that decides nothing."""
    found = diagnose(leaders(without=3, past=1).trace())
    assert (found.culprits, found.confidence) == ((0, 3), Confidence.AMBIGUOUS)


def test_leader_without_a_record_leaves_both_ranks_suspect() -> None:
    job = leaders(without=3)
    job.lose(0)
    found = diagnose(job.trace())
    assert (found.culprits, found.confidence) == ((0, 3), Confidence.AMBIGUOUS)


def grid() -> Job:
    """Two stages of four, in pairs and halves: rank 1 leaves the last operation of its pair out.

    Rank 0 waits for it there, rank 4 for what rank 0 would send, rank 5 for rank 4, and so on.
    """
    job = Job(8)
    pairs = [job.group(r, r + 1) for r in range(0, 8, 2)]
    halves = [job.group(*ranks) for ranks in ((0, 2), (1, 3), (4, 6), (5, 7))]

    def forward(*ranks: int) -> None:
        for rank in ranks:
            job.op(rank, group=pairs[rank // 2], line=10)
        for rank in ranks:
            job.op(rank, "send", peer=rank + 4, line=11)
            job.op(rank + 4, "recv", peer=rank, line=12)
        for rank in ranks:
            job.op(rank + 4, group=pairs[rank // 2 + 2], line=10)

    for _ in range(4):
        forward(0, 1, 2, 3)
        forward(0, 1, 2, 3)
        for half in halves:
            job.all(group=half, line=13)
        job.all(line=14, size=(1,))
    forward(0, 1, 2, 3)
    forward(2, 3)
    job.op(1, "send", peer=5, line=11)
    job.op(5, "recv", peer=1, line=12)
    job.op(0, group=pairs[0], line=10, done=False)
    job.op(4, "recv", peer=0, line=12, done=False)
    job.op(5, group=pairs[2], line=10, done=False)
    for rank, half in ((2, 0), (6, 2), (7, 3)):
        job.op(rank, group=halves[half], line=13, done=False)
    job.all(group=halves[1], line=13)
    for rank in (1, 3):
        job.op(rank, line=14, size=(1,), done=False)
    return job


def test_cycle_is_reported_without_a_rank_known_only_from_a_journal() -> None:
    """The monitor observed that it was stopped, which is no record of what it did."""
    job = grid()
    job.lose(4)
    ended_ns = START + int((job.now + 50) * SECOND)
    job.facts[4] = RankFacts(4, alive=False, exit=ExitFacts("signal", None, 15, ended_ns))
    for rank in sorted({*range(8)} - {4}):
        exit_ = ExitFacts("signal", None, 15, ended_ns)
        job.rank(rank, alive=False, exit=exit_)
    sources = [Source(f"rank_{r}.ring", "hangscope-ring", rank=r) for r in range(8) if r != 4]
    sources.append(Source("0.journal", "hangscope-journal"))
    found = diagnose(replace(job.trace(), sources=tuple(sources)))
    assert (found.verdict, found.culprits) == (Verdict.DEADLOCK_CYCLE, (1,))


def test_rank_that_departed_explains_more_than_a_lost_one() -> None:
    job = grid()
    job.lose(0)
    found = diagnose(job.trace())
    assert (found.culprits, found.confidence) == ((1,), Confidence.LIKELY)


def _chunks(newest: tuple[int, ...]) -> tuple[Verdict, tuple[int, ...], Confidence]:
    """Rank 1 sends a small and a large chunk to rank 2, which aborts and leaves no record."""
    job = Job(3)
    for _ in range(3):
        for size in (8, 32):
            job.op(1, "send", peer=2, size=(size,), line=9)
            job.op(2, "recv", peer=1, size=(size,), line=10)
        job.all()
    for size in newest:
        job.op(1, "send", peer=2, size=(size,), line=9, done=size != newest[-1])
    job.op(0, done=False)
    job.lose(2)
    ended_ns = START + int((job.now + 0.2) * SECOND)
    job.facts[2] = RankFacts(2, alive=False, exit=ExitFacts("signal", None, 6, ended_ns))
    for rank in (0, 1):
        exit_ = ExitFacts("signal", None, 15, ended_ns + SECOND // 10)
        job.rank(rank, alive=False, exit=exit_)
    sources = [Source(f"rank_{r}.ring", "hangscope-ring", rank=r) for r in (0, 1)]
    sources.append(Source("0.journal", "hangscope-journal"))
    found = diagnose(replace(job.trace(), sources=tuple(sources)))
    return found.verdict, found.culprits, found.confidence


def test_wrapped_ring_shows_that_a_group_was_never_used() -> None:
    """Two columns of three, and pairs: rank 2 skips its pair, and only it reaches the end."""
    job = Job(6)
    pairs = [job.group(r, r + 1) for r in (0, 2, 4)]
    columns = [job.group(0, 2, 4), job.group(1, 3, 5)]
    for step in range(6):
        for pair in pairs:
            for rank in job.groups[pair].ranks:
                if not (rank == 2 and step == 3):
                    job.op(rank, group=pair, line=10, done=rank != 3 or step < 5)
        for column in columns:
            for rank in job.groups[column].ranks:
                if rank != 3 or step < 5:
                    late = column == columns[1] and step == 5
                    job.op(rank, group=column, line=11, size=(24,), done=not late)
    for rank in (0, 2, 4):
        job.op(rank, "barrier", line=12, size=(), done=False)
    job.lose(1)
    for rank in (0, 2, 3, 4, 5):
        job.rank(rank, oldest_record_id=9)
    for rank in (3, 5):
        unused = {"rank": rank, "group": 0, "enqueued": 0, "started": 0, "completed": 0}
        job.members.append({**unused, "p2p_enqueued": 0})
    sources = tuple(Source(f"rank_{r}.ring", formats.RING, rank=r) for r in (0, 2, 3, 4, 5))
    found = diagnose(replace(job.trace(), sources=sources))
    assert (found.verdict, found.culprits) == (Verdict.DEADLOCK_CYCLE, (2, 3))


def test_beside_a_lost_member_neither_of_two_is_named_alone() -> None:
    """Rank 4 repeats its pair's operation; its counterparts are rank 5 in the columns and ranks 0
    and 2 in the pairs. Rank 5 differs from rank 4 alone."""
    job = Job(6)
    columns = [job.group(0, 2, 4), job.group(1, 3, 5)]
    pairs = [job.group(r, r + 1) for r in (0, 2, 4)]

    def column(index: int, *ranks: int) -> None:
        for rank in ranks:
            job.op(rank, group=columns[index], line=11, size=(24,))

    for _ in range(3):
        for pair in pairs:
            job.all(group=pair, line=10)
        column(0, 0, 2, 4)
        column(1, 1, 3, 5)
    for pair in pairs:
        job.all(group=pair, line=10)
    job.op(4, group=pairs[2], line=15)
    column(1, 1, 3, 5)
    job.op(5, group=pairs[2], line=10)
    for pair in pairs[:2]:
        job.all(group=pair, line=10)
    column(0, 0, 2, 4)
    column(1, 1, 3, 5)
    job.op(4, group=pairs[2], line=10, done=False)
    for rank in (0, 2):
        job.op(rank, group=columns[0], line=11, size=(24,), done=False)
    for rank in (1, 3, 5):
        job.op(rank, "barrier", line=12, size=(), done=False)
    job.lose(1)
    found = diagnose(job.trace())
    # With what the lost member did, rank 5 could be the one that left a step out.
    assert (found.verdict, found.culprits) == (Verdict.DEADLOCK_CYCLE, (4, 5))
    assert found.confidence is Confidence.AMBIGUOUS
