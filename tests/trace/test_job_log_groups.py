"""Which group, and which group rank, the numbers in watchdog messages refer to."""

from __future__ import annotations

import pytest

from hangscope.diagnosis import diagnose

from .logs import RAN, counters, overdue, trace_of


def test_group_of_a_timeout_comes_from_the_status_line_beside_it() -> None:
    head = "[rank9]:[E816 12:00:00.000000001 ProcessGroupNCCL.cpp:1]"
    trace = trace_of(
        f"{head} [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=41, "
        f"OpType=_ALLGATHER_BASE, NumelIn=513, NumelOut=2052, Timeout(ms)=600000) {RAN}\n"
        f"{head} [PG ID 3 PG GUID 12(tp) Rank 1]  failure detected by watchdog at work sequence "
        "id: 41 PG status: last enqueued work: 44, last completed work: 40\n"
        f"{head} [PG ID 0 PG GUID 0(default_pg) Rank 9] Received a dump signal due to a collective"
        " timeout from  rank 8 and we will try our best to dump the debug info. Last enqueued NCCL"
        " work: 5, last completed NCCL work: 5.This is most likely caused by\n"
    )
    assert overdue(trace) == [(9, "12", "_all_gather_base", 41)]
    assert counters(trace) == {(9, "12"): (44, 40), (9, "0"): (5, 5)}
    assert next(g for g in trace.groups if g.name == "12").size == 4  # 2052 / 513


def test_members_follow_from_two_places_and_the_size() -> None:
    text = ""
    for rank, place in ((8, 0), (10, 2)):
        head = f"[rank{rank}]:[E816 12:00:00.000000001 ProcessGroupNCCL.cpp:1]"
        text += (
            f"{head} [PG ID 3 PG GUID 12(tp) Rank {place}] Process group watchdog thread terminated"
            f" with exception: [Rank {place}] Watchdog caught collective operation timeout: "
            "WorkNCCL(SeqNum=41, OpType=_ALLGATHER_BASE, NumelIn=513, NumelOut=2052, "
            f"Timeout(ms)=600000) {RAN}\n"
        )
    assert next(g for g in trace_of(text).groups if g.name == "12").ranks == (8, 9, 10, 11)


def test_distant_numbers_without_a_group_are_not_compared() -> None:
    old = (
        "[E ProcessGroupNCCL.cpp:828] [Rank {r}] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum={s}, OpType=ALLREDUCE, Timeout(ms)=1800000) " + RAN + "\n"
    )
    near = trace_of(old.format(r=0, s=118) + old.format(r=1, s=119))
    assert {g for _, g, _, _ in overdue(near)} == {"0"}
    far = trace_of(old.format(r=0, s=64088) + old.format(r=1, s=96120))
    assert len({g for _, g, _, _ in overdue(far)}) == 2


def overdue_at(place: int, ran_ms: int, seq: int = 77) -> str:
    return (
        f"[E ProcessGroupNCCL.cpp:475] [Rank {place}] Watchdog caught collective operation "
        f"timeout: WorkNCCL(SeqNum={seq}, OpType=_ALLGATHER_BASE, NumelIn=16, NumelOut=64, "
        f"Timeout(ms)=600000) ran for {ran_ms} milliseconds before timing out.\n"
    )


def test_number_printed_by_two_processes_is_no_rank() -> None:
    """Before torch 2.2 each prints its group rank: two groups of four, of which 2 is silent."""
    text = "".join(overdue_at(p, 600_000 + 10 * k + p) for k in (1, 2) for p in (0, 1, 3))
    found = diagnose(trace_of(text))
    assert (found.verdict.value, found.culprits) == ("inconclusive", ())
    assert "timed out" in found.summary


def test_one_process_may_repeat_a_message() -> None:
    text = "".join(overdue_at(p, 600_010 + p) for _ in (1, 2) for p in (0, 1, 3))
    assert diagnose(trace_of(text)).culprits == (2,)


@pytest.mark.parametrize(("seqs", "named"), [((4, 2), ()), ((4, 5), (1,))])
def test_overdue_collectives_with_a_gap_are_of_several_groups(
    seqs: tuple[int, int], named: tuple[int, ...]
) -> None:
    """Those old watchdogs print all that is overdue in a group: the same number is two places."""
    text = "".join(overdue_at(p, 600_010 + p, seqs[0]) for p in (0, 2, 3))
    text += overdue_at(1, 600_020, seqs[0]).replace("_ALLGATHER_BASE", "BROADCAST")
    text += "".join(overdue_at(p, 600_030 + p, seqs[1]) for p in (0, 2, 3))
    assert diagnose(trace_of(text)).culprits == named


def caught(rank: int, seq: int, size: int) -> str:
    return (
        f"[rank{rank}]:[E816 12:00:00.000000001 ProcessGroupNCCL.cpp:1] [Rank {rank}] Watchdog "
        f"caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, "
        f"NumelIn={size}, NumelOut={size}, Timeout(ms)=600000) {RAN}\n"
    )


def detected(rank: int, seq: int, name: str, *, last: int, done: int) -> str:
    return (
        f"[rank{rank}]:[E816 12:00:00.000000001 ProcessGroupNCCL.cpp:1] [PG ID 1 PG GUID {name} "
        f"Rank {rank}]  failure detected by watchdog at work sequence id: {seq} PG status: last "
        f"enqueued work: {last}, last started work: -1 (), last completed work: {done}\n"
    )


def placed(text: str) -> list[tuple[int, str, int | None]]:
    """(rank, group name, elements) of every overdue operation."""
    trace = trace_of(text)
    found = []
    for row in trace.records:
        size = trace.signatures[row["signature"]].input_numel
        found.append((int(row["rank"]), trace.groups[row["group"]].name, size))
    return sorted(found)


def test_equal_numbers_in_several_groups_stay_separate() -> None:
    """Each group's watchdog prints first its operation, then its group."""
    text = caught(2, 5, 69) + detected(2, 5, "1(even)", last=5, done=4)
    text += caught(2, 5, 64) + detected(2, 5, "0(default_pg)", last=5, done=4)
    assert placed(text) == [(2, "0", 64), (2, "1", 69)]


def test_group_is_found_by_the_other_members_if_watchdogs_print_at_once() -> None:
    text = caught(0, 5, 69) + detected(0, 5, "1(even)", last=5, done=4)
    text += caught(1, 5, 64) + detected(1, 5, "0(default_pg)", last=5, done=4)
    text += caught(4, 5, 64) + caught(4, 5, 69) + caught(4, 5, 70)
    text += detected(4, 5, "1(even)", last=5, done=4)
    groups = {size: name for rank, name, size in placed(text) if rank == 4}
    assert (groups[64], groups[69]) == ("0", "1")
    assert groups[70] not in ("0", "1"), "nobody says of which group that is"


def test_counters_that_complete_an_overdue_operation_count_sends_as_well() -> None:
    """A batch and a collective both had the number 5: the counter is that of the batch."""
    text = caught(1, 5, 64) + detected(1, 5, "0(default_pg)", last=5, done=5)
    text += caught(2, 5, 64) + detected(2, 5, "0(default_pg)", last=5, done=4)
    assert counters(trace_of(text)) == {(1, "0"): (5, -1), (2, "0"): (5, 4)}
    assert not diagnose(trace_of(caught(1, 5, 64) + detected(1, 5, "0", last=5, done=5))).culprits


def test_sizes_show_that_all_ranks_take_part() -> None:
    """Another line names a group, so those that name none are not of the default one for sure."""
    text = (
        "[rank2]:[E816 11:50:00.000000001 ProcessGroupNCCL.cpp:1] [PG ID 5 PG GUID 5 Rank 2] "
        "Process group watchdog thread terminated with exception: CUDA error: unspecified launch "
        "failure\n"
    )
    for rank in (0, 1, 3):
        text += (
            f"[rank{rank}]:[E816 12:00:00.000000001 ProcessGroupNCCL.cpp:1] [Rank {rank}] Watchdog "
            f"caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=_ALLGATHER_BASE, "
            f"NumelIn=96, NumelOut={{size}}, Timeout(ms)=600000) {RAN}\n"
        )
    of_all = trace_of(text.format(size=4 * 96))
    assert {name for _, name, _, _ in overdue(of_all)} == {"0"}
    found = diagnose(of_all)
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (2,))
    of_pairs = trace_of(text.format(size=2 * 96))
    assert len({name for _, name, _, _ in overdue(of_pairs)}) == 3
