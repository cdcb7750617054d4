"""Halves left over from a step that all ranks have finished: who issued too few, or too many?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Confidence, Diagnosis, Verdict
from hangscope.trace.model import NONE, Flag, Trace
from tests.diagnosis.builder import Job, judged


def exchange(
    job: Job, group: int, sends: int, receives: int, *, ends: tuple[int, int] = (0, 1)
) -> None:
    """One rank sends to the other so many times; a send without a receive stays unfinished."""
    source, target = ends
    for index in range(max(sends, receives)):
        met = index < min(sends, receives)
        if index < sends:
            job.op(source, "send", peer=target, group=group, line=10, done=met)
        if index < receives:
            job.op(target, "recv", peer=source, group=group, line=20, done=met)


def a_step_later(job: Job, group: int) -> None:
    """Rank 0 does not come to the next step; rank 1 sends to it and would receive; 2 and 3 wait."""
    job.op(1, "send", peer=0, group=group, line=30, done=False)
    job.op(1, "recv", peer=0, group=group, line=20, done=False)
    for rank in (2, 3):
        job.op(rank, done=False)


def on_devices(trace: Trace) -> Trace:
    return replace(trace, signatures=tuple(replace(s, backend="nccl") for s in trace.signatures))


def left_over(usual: int, *, before: int = 2, sends: int, receives: int) -> Trace:
    """After some even steps the last one is uneven, and rank 0 goes no further."""
    job = Job(4)
    pair = job.group(0, 1, desc="PIPELINE")
    for _ in range(before):
        exchange(job, pair, usual, usual)
        job.all()
    exchange(job, pair, sends, receives)
    job.all()
    a_step_later(job, pair)
    return on_devices(job.trace())


def test_rank_that_received_less_than_in_every_earlier_step_is_named() -> None:
    found = diagnose(left_over(3, sends=3, receives=2))
    assert (found.verdict, found.culprits) == (Verdict.P2P_UNMATCHED, (1,))
    assert found.confidence is Confidence.LIKELY
    before = "in PIPELINE before collective #3 of default"
    assert f"Rank 0 issued 3 sends to rank 1 {before}" in found.summary
    assert "rank 1 issued 2 receives (3 of each otherwise)" in found.summary


def test_rank_that_sent_more_than_in_every_earlier_step_is_named() -> None:
    assert judged(left_over(2, sends=3, receives=2)) == (
        Verdict.P2P_UNMATCHED,
        (0,),
        Confidence.LIKELY,
    )


def test_one_earlier_step_shows_no_habit() -> None:
    trace = left_over(3, before=1, sends=3, receives=2)
    assert judged(trace)[1:] == ((0, 1), Confidence.AMBIGUOUS)


def test_steps_of_different_lengths_show_no_habit() -> None:
    job = Job(4)
    pair = job.group(0, 1, desc="PIPELINE")
    for count in (2, 4, 3):
        exchange(job, pair, count, count)
        job.all()
    exchange(job, pair, 3, 2)
    job.all()
    a_step_later(job, pair)
    assert judged(on_devices(job.trace()))[1:] == ((0, 1), Confidence.AMBIGUOUS)


def test_sibling_group_shows_what_the_step_takes() -> None:
    job = Job(4)
    pairs = [job.group(i, i + 1, desc="PIPELINE") for i in (0, 2)]
    for receives in (3, 2):
        exchange(job, pairs[0], 3, receives)
        exchange(job, pairs[1], 3, 3, ends=(2, 3))
        job.all()
    a_step_later(job, pairs[0])
    assert judged(on_devices(job.trace()))[1:] == ((1,), Confidence.LIKELY)


def test_siblings_show_it_also_where_each_ends_the_stretch_in_a_group_of_its_own() -> None:
    """As pipelines do whose first and last stage share the gradients of embeddings."""
    job = Job(6)
    pairs = [job.group(i, i + 1, desc="PIPELINE") for i in (0, 2, 4)]
    ends = [job.group(i, i + 1, desc="EMBEDDING") for i in (0, 2, 4)]
    for receives in (3, 2):
        for pair, end in zip(pairs, ends, strict=True):
            source, target = job.groups[pair].ranks
            exchange(job, pair, 3, 3 if source else receives, ends=(source, target))
            job.all(group=end)
        job.all()
    a_step_later(job, pairs[0])
    for rank in (4, 5):
        job.op(rank, done=False)
    assert judged(on_devices(job.trace()))[1:] == ((1,), Confidence.LIKELY)


def test_receives_always_posted_a_step_ahead_are_not_left_over() -> None:
    job = Job(4)
    pair = job.group(0, 1, desc="PIPELINE")
    job.op(1, "recv", peer=0, group=pair, line=20)
    for step in range(3):
        job.op(0, "send", peer=1, group=pair, line=10)
        job.op(1, "recv", peer=0, group=pair, line=20, flags=Flag.ASYNC, done=step < 2)
        job.all()
    for rank in (1, 2, 3):
        job.op(rank, done=False)
    assert judged(on_devices(job.trace()))[1] == (0,)


def test_rank_seen_in_its_own_code_is_not_excused_by_what_is_left_over() -> None:
    job_trace = left_over(3, sends=3, receives=2)
    ranks = {**job_trace.ranks, 0: replace(job_trace.ranks[0], process_state="sleeping")}
    assert diagnose(replace(job_trace, ranks=ranks)).culprits == (0,)


def wrapped(trace: Trace, ranks: tuple[int, ...], kept: int) -> Trace:
    """Only the newest records of these ranks are left."""
    keep = np.ones(len(trace.records), bool)
    facts = dict(trace.ranks)
    for rank in ranks:
        rows = np.flatnonzero(trace.records["rank"] == rank)
        keep[rows[:-kept]] = False
        oldest = int(trace.records["record_id"][rows[-kept]])
        facts[rank] = replace(facts[rank], oldest_record_id=oldest)
    return replace(trace, records=trace.records[keep], ranks=facts)


def test_unfinished_half_whose_partner_comes_a_step_later_needs_no_past() -> None:
    trace = wrapped(left_over(3, sends=3, receives=2), (0, 1), 4)
    assert judged(trace)[1:] == ((0, 1), Confidence.AMBIGUOUS)


def cycle_behind_a_collective(sends: int, receives: int) -> Diagnosis:
    """Hosts run ahead: all have issued the collective that the sender's device does not reach."""
    job = Job(4)
    pair = job.group(0, 1, desc="PIPELINE")
    for _ in range(3):
        exchange(job, pair, 3, 3)
        job.all()
    exchange(job, pair, sends, receives)
    job.all(done=False)
    return diagnose(on_devices(job.trace()))


def test_step_that_ends_with_an_unfinished_collective_counts_as_well() -> None:
    found = cycle_behind_a_collective(3, 2)
    assert (found.verdict, found.culprits) == (Verdict.P2P_UNMATCHED, (1,))
    assert cycle_behind_a_collective(4, 3).culprits == (0,)


def test_two_sends_that_meet_hold_both_ranks_up() -> None:
    """On a device, nothing between two ranks overtakes: neither send can go out."""
    job = Job(4)
    pair = job.group(0, 1, desc="PIPELINE")
    job.op(0, "send", peer=1, group=pair, done=False)
    job.op(1, "send", peer=0, group=pair, done=False)
    job.op(1, "recv", peer=0, group=pair, done=False)
    for rank in (2, 3):
        job.op(rank, done=False)
    for rank in range(4):
        job.rank(rank, only_active=True)
    found = diagnose(on_devices(job.trace()))
    assert (found.culprits, found.confidence) == ((0, 1), Confidence.AMBIGUOUS)
    # On a host both go out by themselves, so rank 0 has gone elsewhere.
    assert diagnose(job.trace()).culprits == (0,)


def test_more_ranks_than_wait_for_them_have_not_all_left_a_half_out() -> None:
    """One member of each ring has skipped a collective and stands a round ahead of its ring."""
    job = Job(8)
    rings = [job.group(*range(i, i + 4), desc="CONTEXT") for i in (0, 4)]
    for _ in range(2):
        for ring in rings:
            a_round(job, ring, job.groups[ring].ranks)
        job.all()
    for ring in rings:
        a_round(job, ring, job.groups[ring].ranks)
    for ring in rings:
        a_round(job, ring, job.groups[ring].ranks[:1], done=False)
    for rank in range(8):
        job.op(rank, done=False)
    found = diagnose(on_devices(job.trace()))
    assert set(found.culprits) >= {0, 4}
    assert found.culprits == (0, 4) or found.confidence is Confidence.AMBIGUOUS


def a_round(job: Job, ring: int, ranks: tuple[int, ...], *, done: bool = True) -> None:
    """These members send to the next one and receive from the one before, in one batch each."""
    members = job.groups[ring].ranks
    for rank in ranks:
        place = members.index(rank)
        after, before = members[(place + 1) % len(members)], members[place - 1]
        job.op(rank, "send", peer=after, group=ring, done=done, flags=Flag.COALESCED_MEMBER)
        job.op(rank, "recv", peer=before, group=ring, done=done, flags=Flag.COALESCED_MEMBER)
        job.op(rank, "send", peer=NONE, group=ring, done=done, flags=Flag.COALESCED_BATCH)
