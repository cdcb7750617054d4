"""Watchdog lines in every version, with every prefix, and damaged."""

from __future__ import annotations

import pytest

from hangscope.diagnosis import diagnose
from hangscope.trace.model import Flag

from .logs import RAN, claims, counters, overdue, timeout, trace_of

CAUGHT = "[Rank 3] Watchdog caught collective operation timeout:"


@pytest.mark.parametrize(
    ("line", "op", "seq"),
    [
        (
            f"[E ProcessGroupNCCL.cpp:587] {CAUGHT} WorkNCCL(OpType=ALLREDUCE, "
            f"Timeout(ms)=1800000) {RAN}",
            "all_reduce",
            0,
        ),
        (
            f"[E ProcessGroupNCCL.cpp:821] {CAUGHT} WorkNCCL(SeqNum=12, OpType=BROADCAST, "
            f"Timeout(ms)=1800000) {RAN}",
            "broadcast",
            12,
        ),
        (
            f"[E ProcessGroupNCCL.cpp:828] {CAUGHT} WorkNCCL(SeqNum=12, OpType=_ALLGATHER_BASE, "
            f"TensorShape=[4, 8], Timeout(ms)=1800000) {RAN}",
            "_all_gather_base",
            12,
        ),
        (
            f"[E ProcessGroupNCCL.cpp:475] {CAUGHT} WorkNCCL(SeqNum=7, OpType=REDUCE_SCATTER, "
            f"NumelIn=64, NumelOut=16, Timeout(ms)=1800000) {RAN}",
            "reduce_scatter",
            7,
        ),
        (
            f"[rank3]:[E ProcessGroupNCCL.cpp:523] {CAUGHT} WorkNCCL(SeqNum=7, OpType=ALLTOALL, "
            f"NumelIn=64, NumelOut=16, Timeout(ms)=1800000) {RAN}",
            "all_to_all",
            7,
        ),
        (
            f"[rank3]:[E1003 01:02:03.123456789 ProcessGroupNCCL.cpp:683] {CAUGHT} "
            f"WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, "
            f"Timeout(ms)=1800000) {RAN}",
            "all_reduce",
            7,
        ),
        (
            f"[rank3]:[E compiler_depend.ts:444] {CAUGHT} WorkHCCL(SeqNum=7, OpType=ALLREDUCE, "
            f"NumelIn=1, NumelOut=1, Timeout(ms)=1800000) {RAN}",
            "all_reduce",
            7,
        ),
        (
            "[rank3]:[E ProcessGroupNCCL.cpp:9] [Rank 3] Work WorkNCCL(SeqNum=7, OpType=ALLREDUCE,"
            " NumelIn=1, NumelOut=1, Timeout(ms)=1800000) timed out in blocking wait.",
            "all_reduce",
            7,
        ),
        (
            "RuntimeError: [Rank 3] Caught collective operation timeout: WorkNCCL(SeqNum=9, "
            f"OpType=ALLREDUCE, TensorShape=[16], Timeout(ms)=1800000) {RAN}",
            "all_reduce",
            9,
        ),
    ],
)
def test_every_form_of_the_timeout_line(line: str, op: str, seq: int) -> None:
    trace = trace_of(line + "\n")
    assert [(r, o, s) for r, _, o, s in overdue(trace)] == [(3, op, seq)]
    assert trace.records["flags"][0] & Flag.TIMED_OUT
    assert trace.records["flags"][0] & Flag.SYNTHETIC


@pytest.mark.parametrize(
    ("line", "group", "expected"),
    [
        (
            "[PG 2 Rank 1] Timeout at NCCL work: 8, last enqueued NCCL work: 9, last completed "
            "NCCL work: 7.",
            "2",
            (9, 7),
        ),
        (
            "[PG 1 (tp) Rank 1] Exception (either an error or timeout) detected by watchdog at "
            "work: 8, last enqueued NCCL work: 9, last completed NCCL work: 7.",
            "1",
            (9, 7),
        ),
        (
            "[PG ID 1 PG GUID 17(EXPERT_MODEL_PARALLEL_GROUP) Rank 1]  failure detected by "
            "watchdog at work sequence id: 8 PG status: last enqueued work: 9, last completed "
            "work: 7",
            "17",
            (9, 7),
        ),
        (
            "[PG ID 1 PG GUID 17 Rank 1]  failure detected by watchdog at work sequence id: 8 PG "
            "status: last enqueued work: 9, last started work: -1, last completed work: 7",
            "17",
            (9, 7),
        ),
        (  # torch 2.13 names what was started
            "[PG ID 1 PG GUID 17(tp) Rank 1]  failure detected by watchdog at work sequence id: 8 "
            "PG status: last enqueued work: 9, last started work: -1 (), last completed work: 7",
            "17",
            (9, 7),
        ),
        (
            "[PG 0 Rank 1] Timeout at NCCL work: 1, last enqueued NCCL work: 1, last completed "
            "NCCL work: 18446744073709551615.",
            "0",
            (1, 0),
        ),
    ],
)
def test_every_form_of_the_status_line(line: str, group: str, expected: tuple[int, int]) -> None:
    trace = trace_of(f"[rank5]:[E816 12:00:00.000000001 ProcessGroupNCCL.cpp:1] {line}\n")
    assert counters(trace) == {(5, group): expected}


def test_rank_of_the_prefix_overrides_the_one_in_the_message() -> None:
    trace = trace_of(
        "[rank97]:[E ProcessGroupNCCL.cpp:563] [Rank 6] Watchdog caught collective operation "
        f"timeout: WorkNCCL(SeqNum=4, OpType=REDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1) {RAN}\n"
    )
    assert list(trace.ranks) == [97]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda s: s.replace("NumelOut=4096", "NumelOut=40\n96"),
        lambda s: s.replace("OpType", "OpTy\npe"),
        lambda s: s.replace("timeout: WorkNCCL", "timeout: \nWorkNCCL"),
        lambda s: s.replace("WorkNCCL(SeqNum", "WorkNCCL(    \nSeqNum"),
        lambda s: s.replace("[Rank 1] Watchdog", "[Rank 1\n] Watchdog"),
        lambda s: s.replace("ran for 600030", "ran for\n600030"),
        lambda s: s.replace("600030 milliseconds before", "600030 millise\nconds be\nfore"),
        lambda s: s.replace("[rank1]:[E816", "loss=2.590, v_num=0][rank1]:[E816"),
        lambda s: s.replace(
            "[rank1]:[E816", "\x1b[36m(Worker pid=7, ip=10.0.0.1)\x1b[0m [rank1]:[E816"
        ),
        lambda s: "> " + s.replace("\n", "\n> ").rstrip("> "),
        lambda s: s.replace("[rank1]:[E816", "[default1]:[rank1]:[E816"),
        lambda s: s.replace("[rank1]:[E816", "node-7: [rank1]:[E816"),
        lambda s: s.replace("[rank1]:[E816", "[rank1[]:[E816"),
        lambda s: s.replace("[rank1]:[E816", "Epoch 1: 50%\r[rank1]:[E816"),
        lambda s: s.replace(
            "[rank1]:[E816", "2025-08-16T12:10:01.123456789Z stderr F [rank1]:[E816"
        ),
        lambda s: s.replace("[rank1]:[E816", "[dlc1mtq58q0821ib-master-0] [rank1]:[E816"),
        lambda s: s.replace("(", "（").replace(")", "）"),
        lambda s: s.replace("\n", "\r\n"),
    ],
)
def test_damage_is_repaired(wrap) -> None:  # type: ignore[no-untyped-def]
    trace = trace_of(wrap(timeout(1, 118)))
    assert overdue(trace) == [(1, "0", "all_reduce", 118)]
    assert counters(trace)[1, "0"] == (118, 117)
    assert {s.input_numel for s in trace.signatures} == {4096}


def test_two_events_on_one_physical_line() -> None:
    trace = trace_of((timeout(1, 118) + timeout(2, 118)).replace("\n", ""))
    assert overdue(trace) == [(1, "0", "all_reduce", 118), (2, "0", "all_reduce", 118)]


def test_fact_printed_five_times_is_one_fact() -> None:
    again = (
        "[rank1]:[E816 12:10:02.0 ProcessGroupNCCL.cpp:1] [PG ID 0 PG GUID 0(default_pg) Rank 1] "
        "Process group watchdog thread terminated with exception: [Rank 1] Watchdog caught "
        "collective operation timeout: WorkNCCL(SeqNum=118, OpType=ALLREDUCE, NumelIn=4096, "
        f"NumelOut=4096, Timeout(ms)=600000) {RAN}\n"
    )
    what = again.split("exception: ", 1)[1]
    trace = trace_of(timeout(1, 118) + again + "  what():  [PG 0 Rank 1] x " + what)
    assert len(trace.records) == 1
    assert len(claims(trace, "timeout")) == 1


def test_rank_notified_of_a_timeout_is_found_by_its_counters() -> None:
    trace = trace_of(
        "".join(timeout(r, 78) for r in (1, 2, 3))
        + "[rank0]:[E816 12:10:02.000000001 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID "
        "0(default_pg) Rank 0] Observed flight recorder dump signal from another rank via "
        "TCPStore.\n"
        "[rank0]:[E816 12:10:02.000000001 ProcessGroupNCCL.cpp:1685] [PG ID 0 PG GUID "
        "0(default_pg) Rank 0] Received a dump signal due to a collective timeout from  rank 2 "
        "and we will try our best to dump the debug info. Last enqueued NCCL work: 77, last "
        "completed NCCL work: 77.This is most likely caused by incorrect usages\n"
    )
    assert counters(trace)[0, "0"] == (77, 77)
    assert 0 in {c.reporter for c in claims(trace, "dump_signal")}
    assert trace.world_size == 4


def test_pairs_and_batches_keep_their_own_counter() -> None:
    trace = trace_of(timeout(0, 5, "SEND") + timeout(1, 9, "COALESCED", 2**64 - 1))
    assert (trace.records["collective_seq"] == -1).all()
    assert trace.records["p2p_seq"].tolist() == [5, 9]
    assert (trace.records["flags"] & Flag.P2P).all()
    assert next(s for s in trace.signatures if s.op == "coalesced").input_numel is None
    assert counters(trace)[0, "0"] == (-1, -1)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("CUDA error: uncorrectable ECC error encountered", "device_error"),
        ("CUDA error: unspecified launch failure", "device_error"),
        (
            "NCCL error: remote process exited or there was a network error, NCCL version 2.18.3",
            "network_error",
        ),
    ],
)
def test_useful_part_of_the_watchdogs_last_message(message: str, kind: str) -> None:
    trace = trace_of(
        "[rank3]:[E816 12:00:00.000000001 ProcessGroupNCCL.cpp:1] [PG ID 0 PG GUID 0(default_pg) "
        f"Rank 3] Process group watchdog thread terminated with exception: {message}\n"
    )
    (claim,) = claims(trace, kind)
    assert claim.reporter == 3
    assert claim.accused == ((3,) if kind == "device_error" else ())


def test_month_and_day_are_not_padded() -> None:
    first = trace_of(timeout(0, 1)).claims[0].at_ns
    later = trace_of(timeout(0, 1).replace("E816", "E1003")).claims[0].at_ns
    assert later - first == 48 * 86400 * 10**9  # 16 August to 3 October


NINES = "9" * 30


@pytest.mark.parametrize(
    "line",
    [
        timeout(1, 18446744073709551615),
        timeout(99999999999999999999, 5),
        timeout(1, 5).replace("600000", NINES),
        timeout(1, 5).replace("Rank 1]", "Rank " + NINES + "]"),
        f"[rank0]: RuntimeError: [Rank 0]: Rank {NINES} failed to pass monitoredBarrier in 1 ms\n",
        f"\t     [2] finished collective #{NINES}, but didn't join collective #{NINES}\n",
        f"[2] joined but didn't finish collective #{NINES} (count from 1)\n",
    ],
)  # fmt: skip
def test_damaged_numbers_break_nothing(line: str) -> None:
    trace = trace_of(line + timeout(1, 7))
    assert set(trace.ranks) <= {0, 1, 2}
    diagnose(trace)


def test_damaged_world_size_is_ignored() -> None:
    trace = trace_of("world_size=999999\n" + timeout(1, 7) + timeout(999999, 7))
    assert (trace.world_size or 2) == 2
    assert list(trace.ranks) == [1]


def gave_up(rank: int, clock: str = "05:06:30") -> str:
    return (
        f"[rank{rank}]:[E626 {clock}.929096625 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog "
        "caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=4, "
        "NumelOut=4, Timeout(ms)=600000) ran for 600001 milliseconds before timing out.\n"
    )


def stuck(rank: int, clock: str) -> str:
    return (
        f"[rank{rank}]:[E626 {clock}.393067540 ProcessGroupNCCL.cpp:1743] [PG ID 0 PG GUID "
        f"0(default_pg) Rank {rank}] ProcessGroupNCCL's watchdog got stuck for 480 seconds without "
        "making progress in monitoring enqueued collectives.\n"
    )


def test_watchdog_stuck_in_its_abort_accuses_no_rank() -> None:
    text = "".join(gave_up(r) for r in (0, 1, 2)) + stuck(3, "05:14:36")
    assert diagnose(trace_of(text)).culprits == ()


def test_watchdog_stuck_before_the_timeouts_shows_the_missing_rank() -> None:
    text = "".join(gave_up(r) for r in (0, 1, 2)) + stuck(3, "05:07:30")
    assert diagnose(trace_of(text)).culprits == (3,)


def test_rank_unable_to_acquire_the_gil_during_exit_had_timed_out() -> None:
    text = "".join(gave_up(r) for r in (0, 1, 2))
    text += (
        "[rank3]:[E626 05:06:32.087674097 ProcessGroupNCCL.cpp:1935] [PG ID 0 PG GUID "
        "0(default_pg) Rank 3] Could not acquire GIL within 300 ms on exit, possible GIL induced "
        "hang\n"
    )
    assert diagnose(trace_of(text)).culprits == ()


def test_unused_counter_is_no_progress() -> None:
    text = "".join(
        f"[rank{r}]:[E ProcessGroupNCCL.cpp:1537] [PG 0 Rank {r}] Timeout at NCCL work: 4, last "
        f"enqueued NCCL work: 5, last completed NCCL work: 91034440{r}.\n"
        for r in range(3)
    )
    found = diagnose(trace_of(text))
    assert found.verdict.value != "quiescent"
    assert found.findings[0].seq == 4


def test_differently_worded_timeout_is_a_sign() -> None:
    found = diagnose(
        trace_of(
            "[E ProcessGroupNCCL.cpp:523] Watchdog caught collective operation timeout:\n"
            "WorkNCCL(OpType=ALLREDUCE, SeqNum=458) ran for 1800600 ms before timing out.\n"
        )
    )
    assert found.verdict.value == "inconclusive"
    assert "timed out" in found.summary


TORCHCOMMS = (
    "[rank{r}]:[E1122 10:07:56.387468530 WorkNCCL.cpp:372] [TC][rank={r}][name=0] Operation timed "
    "out after 10791 ms\n"
    "[rank{r}]:[E1122 10:07:56.398395359 ProcessGroupNCCL.cpp:638] [TC][rank={r}][name=0] Aborting "
    "process on rank {r} due to timeout - timeout watchdog detected operation timeout\n"
)


def test_watchdog_of_torch_2_15_shows_who_waited_but_not_in_what() -> None:
    trace = trace_of("".join(TORCHCOMMS.format(r=r) for r in (0, 1, 3)))
    assert trace.records["rank"].tolist() == [0, 1, 3]
    assert (trace.records["flags"] & int(Flag.TIMED_OUT)).all()
    assert {g.name for g in trace.groups} == {"0"}
    found = diagnose(trace)
    assert found.culprits == ()
    assert "ranks 0, 1, 3" in found.summary
