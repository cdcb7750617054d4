"""Sends and receives: who is waited for, and who waits for nobody."""

from __future__ import annotations

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.records.frontier import frontiers
from hangscope.diagnosis.records.pairing import pending_halves
from hangscope.trace.model import Flag
from tests.diagnosis.builder import NO_FLAG, Job, blame, stack_of


def test_cycle_of_receives_is_a_deadlock_of_all() -> None:
    job = Job(4)
    job.steps(2)
    for rank in range(4):
        job.op(rank, "recv", peer=(rank - 1) % 4, done=False)
    assert blame(diagnose(job.trace())) == ("deadlock_cycle", (0, 1, 2, 3))


def test_sender_that_proceeded_is_named() -> None:
    job = Job(3)
    job.steps(2)
    job.op(0, "recv", peer=1, done=False)
    for rank in (1, 2):
        job.op(rank, done=False)
    assert blame(diagnose(job.trace())) == ("p2p_unmatched", (1,))


def test_rank_that_left_out_the_first_collective_of_all_is_among_the_accused() -> None:
    """Three ranks wait for it, and it waits for a half of one of these."""
    job = Job(4)
    for rank in (1, 2, 3):
        job.op(rank, "barrier", done=False)
    pair, replicas = job.group(0, 1), job.group(0, 2)
    for half in ("send", "recv"):
        job.op(0, half, peer=1, group=pair, done=False)
    job.op(0, group=replicas, done=False)
    job.op(0, group=pair, done=False)
    found = diagnose(job.trace())
    assert 0 in found.culprits
    assert found.confidence is not Confidence.CERTAIN


def test_matched_pairs_are_not_accused() -> None:
    job = Job(4, live=True)
    for _ in range(5):
        job.op(0, "send", peer=1)
        job.op(1, "recv", peer=0)
    job.op(0, done=False)
    job.op(1, done=False)
    job.op(2, done=False)
    job.rank(3, threads=stack_of("evaluate"))
    assert blame(diagnose(job.trace())) == ("missing_rank", (3,))


def test_batched_p2p_is_judged_by_its_batch() -> None:
    job = Job(2)
    for rank in range(2):
        for op in ("send", "recv"):
            job.op(rank, op, peer=1 - rank, done=False, flags=Flag.COALESCED_MEMBER)
        job.op(rank, "coalesced", flags=Flag.COALESCED_BATCH)
    assert diagnose(job.trace()).verdict is Verdict.QUIESCENT


def test_pair_with_different_sizes() -> None:
    job = Job(2)
    for _ in range(4):
        job.op(0, "send", peer=1)
        job.op(1, "recv", peer=0)
    job.op(0, "send", peer=1, size=(7,), done=False)
    job.op(1, "recv", peer=0, done=False)
    assert blame(diagnose(job.trace())) == ("shape_mismatch", (0,))


def test_batches_are_compared_by_their_content() -> None:
    job = Job(3)
    for rank in range(3):
        for op in ("all_reduce", "all_gather" if rank == 1 else "all_reduce"):
            job.op(rank, op, flags=Flag.COALESCED_MEMBER, done=False)
        job.op(rank, "coalesced", flags=Flag.COALESCED_BATCH, done=False)
    assert blame(diagnose(job.trace())) == ("collective_mismatch", (1,))


def test_reduction_that_is_not_known_yet_does_not_make_batches_differ() -> None:
    job = Job(3)
    for rank in range(3):
        for size in (8, 4):
            how = None if rank == 1 else "SUM"
            job.op(rank, size=(size,), reduce_op=how, flags=Flag.COALESCED_MEMBER)
        job.op(rank, "coalesced", flags=Flag.COALESCED_BATCH)
    assert diagnose(job.trace()).verdict is Verdict.QUIESCENT


def test_two_partners_wait_for_one_that_proceeded() -> None:
    job = Job(4)
    job.steps(2)
    for rank in (1, 3):
        job.op(rank, "recv", peer=2, done=False)
    for rank in (0, 2):
        job.op(rank, "barrier", done=False)
    assert blame(diagnose(job.trace())) == ("p2p_unmatched", (2,))


def test_chain_of_receives_ends_at_the_rank_that_skipped_one() -> None:
    job = Job(4)
    job.steps(2)
    job.op(3, "recv", peer=2, done=False)
    job.op(2, "recv", peer=1, done=False)
    for rank in (0, 1):
        job.op(rank, "barrier", done=False)
    assert blame(diagnose(job.trace())) == ("p2p_unmatched", (1,))


def test_lost_neighbour_is_excused_by_a_rank_that_waits_for_nothing() -> None:
    job = Job(4)
    a, b = job.group(0, 1, desc="tp"), job.group(2, 3, desc="tp")
    c, d = job.group(0, 2, desc="dp"), job.group(1, 3, desc="dp")
    for group in (a, b, c, d):
        job.all(group=group)
    job.op(2, group=c, done=False)
    job.op(3, group=d)
    job.op(1, group=d)
    job.op(3, group=b)
    job.op(2, group=b)
    job.op(3, group=d, done=False)
    job.lose(0)
    found = diagnose(job.trace())
    assert found.culprits == (1,)
    assert found.confidence is Confidence.LIKELY


def test_neighbour_with_completed_operations_is_not_accused_for_a_lost_rank() -> None:
    job = Job(4)
    pairs = [job.group(0, 1, desc="tensor"), job.group(2, 3, desc="tensor")]
    across = [job.group(0, 2, desc="data"), job.group(1, 3, desc="data")]
    for _ in range(3):
        for group in (*pairs, *across):
            job.all(group=group)
    job.all(group=across[0])
    job.op(1, group=across[1], done=False)
    job.lose(3)
    found = diagnose(job.trace())
    assert (found.verdict, found.culprits) == (Verdict.RANK_LOST, (3,))


def test_rank_that_skipped_a_collective_and_proceeded_to_a_pair() -> None:
    """Rank 3 skips the last all_reduce and waits for the next round of its pipeline already."""
    job = Job(4)
    pipes = [job.group(0, 2, desc="pipe"), job.group(1, 3, desc="pipe")]
    for _ in range(3):
        for first, last, group in ((0, 2, pipes[0]), (1, 3, pipes[1])):
            job.op(first, "send", group=group, peer=last)
            job.op(last, "recv", group=group, peer=first)
        job.all()
    for first, last, group in ((0, 2, pipes[0]), (1, 3, pipes[1])):
        job.op(first, "send", group=group, peer=last)
        job.op(last, "recv", group=group, peer=first)
    for rank in (0, 1, 2):
        job.op(rank, done=False)
    job.op(3, "recv", group=pipes[1], peer=1, done=False)
    assert blame(diagnose(job.trace())) == ("deadlock_cycle", (3,))


def test_rank_that_skipped_a_p2p_operation_before_the_collective() -> None:
    """The same situation, but the waiting operation is one that its counterpart has had."""
    job = Job(4)
    pipes = [job.group(0, 2, desc="pipe"), job.group(1, 3, desc="pipe")]
    for _ in range(3):
        for first, last, group in ((0, 2, pipes[0]), (1, 3, pipes[1])):
            job.op(first, "send", group=group, peer=last)
            job.op(last, "recv", group=group, peer=first)
        job.all()
    job.op(0, "send", group=pipes[0], peer=2)
    job.op(2, "recv", group=pipes[0], peer=0)
    job.op(3, "recv", group=pipes[1], peer=1, done=False)
    for rank in (0, 1, 2):
        job.op(rank, done=False)
    assert blame(diagnose(job.trace())) == ("p2p_unmatched", (1,))


@pytest.mark.parametrize(("flags", "met"), [(Flag.SYNTHETIC, True), (NO_FLAG, False)])
def test_p2p_operation_in_a_log_is_not_counted_from_the_first(flags: Flag, met: bool) -> None:
    """A log shows the receive that is overdue and none before it: it is the third."""
    job = Job(2)
    for number in range(3):
        job.op(0, "send", peer=1, done=number < 2)
    job.op(1, "recv", peer=0, done=False, flags=flags)
    trace = job.trace()
    halves = pending_halves(trace, frontiers(trace), frozenset())
    assert [half.matched for half in halves if half.is_send] == [met]


def test_send_may_be_for_any_source_receiver() -> None:
    job = Job(3)
    job.op(0, "send", peer=1, done=False)
    job.op(1, "recv", peer=-1, done=False)
    trace = job.trace()
    send, receive = pending_halves(trace, frontiers(trace), frozenset())
    assert (send.matched, send.partner_row) == (True, receive.row)
    assert (receive.matched, receive.partner_row) == (None, -1)


def _sent_before_a_collective(*sends: tuple[int, int]) -> Job:
    """Ranks that sent what nobody received, and then came to a collective with all others."""
    job = Job(6)
    job.steps(3)
    for rank, peer in sends:
        job.op(rank, "send", peer=peer, done=False)
    job.all(done=False)
    return job


@pytest.mark.parametrize("sends", [((0, 1),), ((0, 1), (2, 3))])
def test_first_send_of_all_may_be_one_too_many_or_lack_its_receive(
    sends: tuple[tuple[int, int], ...],
) -> None:
    found = diagnose(_sent_before_a_collective(*sends).trace())
    assert set(found.culprits) == {rank for pair in sends for rank in pair}
    assert found.confidence is Confidence.AMBIGUOUS


def test_ranks_that_leave_out_what_most_of_their_kind_did_are_named() -> None:
    found = diagnose(_sent_before_a_collective((4, 5), (0, 1), (2, 3)).trace())
    assert blame(found) == ("p2p_unmatched", (1, 3, 5))
    assert found.confidence is Confidence.LIKELY


def test_ring_of_unreceived_sends_names_no_single_rank() -> None:
    sends = [(rank, (rank + 1) % 6) for rank in range(6)]
    found = diagnose(_sent_before_a_collective(*sends).trace())
    assert blame(found) == ("deadlock_cycle", tuple(range(6)))


@pytest.mark.parametrize("sent", [False, True])
def test_collective_after_a_complete_ring_is_stuck_unless_sends_block(sent: bool) -> None:
    job = Job(4)
    job.steps(3)
    for rank in range(4):
        job.op(rank, "send", peer=(rank + 1) % 4, done=sent)
    for rank in range(4):
        job.op(rank, "recv", peer=(rank - 1) % 4, done=sent)
    job.all(done=False)
    found = diagnose(job.trace())
    assert blame(found) == ("stuck_collective", ())
    doubts = "; ".join(found.findings[0].unknowns)
    assert ("may wait in a cycle" in doubts) is not sent
    assert found.confidence is (Confidence.CERTAIN if sent else Confidence.LIKELY)


def test_earlier_sends_of_the_accused_are_shown_with_their_lines() -> None:
    job = Job(2)
    for line in (20, 30):
        job.op(1, "send", peer=0, line=line)
        job.op(0, "recv", peer=1)
    job.op(0, "recv", peer=1, done=False)
    job.rank(1, threads=stack_of("evaluate"))
    (finding,) = diagnose(job.trace()).findings
    assert finding.culprits == (1,)
    sent = (
        "rank 1: it sent to rank 0 before: #1 at train.py:20 in train, #2 at train.py:30 in train"
    )
    assert sent in finding.evidence
