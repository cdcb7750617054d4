"""Desync reports, monitored barriers and fingerprints: who came, and what each side issued."""

from __future__ import annotations

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.trace.model import State
from tests.diagnosis.builder import blame

from .logs import claims, counters, overdue, timeout, trace_of

MODEL = "ddp_model_mismatch"
DESYNC = """\
[rank1]:[E ProcessGroupNCCL.cpp:1] Rank 1
\t - [1] Timeout at collective: ALLREDUCE, #21
\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:
\t   - [0, 1] joined but didn't finish collective #21 (count from 1)
\t     [2] finished collective #20, but didn't join collective #21 (count from 1)
\t - Snapshot of ranks' latest states:
\t   #20 finished ranks:
\t     [2] finished BROADCAST
\t   #21 started ranks:
\t     [0, 1] started ALLREDUCE
"""


def test_desync_report_gives_names_and_counts() -> None:
    trace = trace_of(DESYNC)
    (claim,) = [c for c in claims(trace, "desync_report") if c.accused]
    assert claim.accused == (2,)
    assert claim.seq == 21
    assert counters(trace)[2, "0"] == (20, 20)
    assert counters(trace)[0, "0"] == (21, 20)
    assert overdue(trace) == [
        (0, "0", "all_reduce", 21),
        (1, "0", "all_reduce", 21),
        (2, "0", "broadcast", 20),
    ]
    assert trace.records["state"].tolist() == [State.STARTED, State.STARTED, State.COMPLETED]


SNAPSHOT = """\
[rank0]:[E816 10:00:00.000000001 ProcessGroupNCCL.cpp:1700] Rank 0
\t - [0] Timeout at collective: ALLREDUCE, #52
\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:
\t   - [2] joined but didn't finish collective #51 (count from 1)
\t - Snapshot of ranks' latest states:
\t   #51 started ranks:
\t     [2] started ALLREDUCE
\t   #52 started ranks:
\t     [0, 1, 3] started ALLREDUCE
"""


def test_desync_report_shows_completions_of_the_others() -> None:
    """Kernels of a group run one after another: a rank that has begun the next has completed this
    one."""
    trace = trace_of(SNAPSHOT)
    assert counters(trace)[(1, "0")] == (52, 51)
    assert counters(trace)[(2, "0")] == (51, 50)
    found = diagnose(trace)
    assert (found.verdict, found.culprits) == (Verdict.STUCK_COLLECTIVE, (2,))


def test_desync_report_of_a_smaller_group_uses_group_ranks() -> None:
    """Its writer is rank 5, and calls itself 1: which rank is 2 there is unknown."""
    trace = trace_of("world_size=8\n" + DESYNC.replace("[rank1]", "[rank5]"))
    assert [c.accused for c in claims(trace, "desync_report")] == [()]
    assert not counters(trace)
    assert not overdue(trace)
    after = trace_of(DESYNC.replace("[rank1]", "[rank5]") + DESYNC)
    assert (2,) in [c.accused for c in claims(after, "desync_report")]


BARRIER = (
    "[rank{first}]: RuntimeError: [Rank 0]: Rank 2 failed to pass monitoredBarrier in 2000 ms\n"
    "[rank{second}]: RuntimeError: Rank 1 successfully reached monitoredBarrier, but received "
    "errors while waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank.\n"
)


def test_monitored_barrier_of_a_smaller_group_uses_group_ranks() -> None:
    whole = diagnose(trace_of(BARRIER.format(first=0, second=1)))
    assert (whole.verdict, whole.culprits) == (Verdict.MISSING_RANK, (2,))
    smaller = diagnose(trace_of(BARRIER.format(first=1, second=2)))
    assert (smaller.verdict, smaller.culprits) == (Verdict.INCONCLUSIVE, ())


def test_model_without_parameters_in_a_smaller_group_has_a_group_rank() -> None:
    text = (
        "RuntimeError: DDP expects same model across all ranks, but Rank 0 has 8 params, while "
        "rank 1 has inconsistent 0 params.\n"
    )
    told = [c.accused for r in (0, 4) for c in claims(trace_of(f"[rank{r}]: {text}"), MODEL)]
    assert told == [(1,), ()]


def test_ranks_that_issued_nothing() -> None:
    trace = trace_of(
        "\t - To our best knowledge, ranks [3, 5] are the lagging ranks that caused this timeout. "
        "They never joined any collectives\n"
    )
    assert claims(trace, "desync_report")[0].accused == (3, 5)
    assert counters(trace)[5, "0"] == (0, 0)


FP = (
    "CollectiveFingerPrint(SequenceNumber={seq}, OpType={op}, TensorShape=[{shape}], "
    "TensorDtypes=Float, TensorDeviceTypes=TensorOptions(dtype=float (default), device=cpu, "
    "layout=Strided (default), requires_grad=false (default), pinned_memory=false (default), "
    "memory_format=(nullopt)))"
)


def test_fingerprints_become_the_sides_of_a_mismatch() -> None:
    a, b = FP.format(seq=7, op="ALLREDUCE", shape="4"), FP.format(seq=7, op="ALLREDUCE", shape="5")
    text = (
        f"[rank0]: RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running "
        f"collective: {a}, but Rank 2 is running collective: {b}.Collectives differ in the "
        "following aspects: \t Tensor Tensor shapes: 4vs 5\n"
        f"[rank1]: RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running "
        f"collective: {a}, but Rank 2 is running collective: {b}.\n"
    )
    trace = trace_of(text)
    assert overdue(trace) == [(r, "0", "all_reduce", 7) for r in (0, 1, 2)]
    sizes = {int(r["rank"]): trace.signatures[r["signature"]].input_sizes for r in trace.records}
    assert sizes == {0: ((4,),), 1: ((4,),), 2: ((5,),)}
    assert trace.signatures[0].input_dtypes == ("Float",)
    assert {c.reporter for c in claims(trace, "fingerprint_mismatch")} == {0, 1}


def test_damaged_sequence_number_is_ignored() -> None:
    a = FP.format(seq=7, op="ALLREDUCE", shape="4")
    b = FP.format(seq=513876813, op="BROADCAST", shape="4")
    trace = trace_of(
        f"RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running "
        f"collective: {a}, but Rank 1 is running collective: {b}.\n"
    )
    assert overdue(trace) == [(0, "0", "all_reduce", 7), (1, "0", "broadcast", 7)]


def out_of_step(writer: int, own: int, other: int, its: int) -> str:
    """What a rank raises if it met a call of another number with equal arguments."""
    a = FP.format(seq=own, op="ALLREDUCE", shape="4")
    b = FP.format(seq=its, op="ALLREDUCE", shape="4")
    return (
        f"[rank{writer}]: RuntimeError: Detected mismatch between collectives on ranks. Rank "
        f"{writer} is running collective: {a}, but Rank {other} is running collective: {b}."
        f"Collectives differ in the following aspects: \t Sequence number: {own}vs {its}\n"
    )


def test_equal_operations_of_different_numbers_show_who_is_out_of_step() -> None:
    """They are no operations of one place, in which all would wait for the network."""
    from_all = out_of_step(0, 8, 2, 7) + out_of_step(1, 8, 2, 7) + out_of_step(2, 7, 0, 8)
    trace = trace_of(from_all + out_of_step(3, 8, 2, 7))
    assert not len(trace.records)
    assert {c.accused for c in claims(trace, "fingerprint_mismatch")} == {(), (2,)}
    assert blame(diagnose(trace)) == ("collective_mismatch", (2,))


def test_side_out_of_step_is_open_if_silent_ranks_could_even_it_out() -> None:
    found = diagnose(trace_of(out_of_step(0, 8, 2, 7)))
    assert blame(found) == ("collective_mismatch", (0, 1, 2))
    assert found.confidence is Confidence.AMBIGUOUS


def test_numbers_of_a_smaller_group_out_of_step_are_no_ranks() -> None:
    text = out_of_step(0, 8, 1, 7).replace("[rank0]", "[rank4]")
    assert not diagnose(trace_of(text)).culprits


def test_oldest_format_has_one_side_per_rank() -> None:
    text = "".join(
        f"RuntimeError: Detected mismatch between collectives on ranks. Rank {r} is running "
        f"inconsistent collective: CollectiveFingerPrint(OpType={op}, TensorShape=[2], "
        "TensorDtypes=Float, TensorDeviceTypes=cpu)\n"
        for r, op in ((0, "ALLREDUCE"), (1, "BROADCAST"))
    )
    assert overdue(trace_of(text)) == [(0, "0", "all_reduce", 1), (1, "0", "broadcast", 1)]


COUNTS_ISSUED = """\
[rank0]:[E816 12:10:01.111111112 ProcessGroupNCCL.cpp:1937] Rank 0
\t - [0] Timeout at collective: ALLREDUCE, #96
\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:
\t   - [3] finished collective #61, but didn't join collective #62 (count from 1)
\t - Snapshot of ranks' latest states:
\t   #61 finished ranks:
\t     [3] finished ALLREDUCE
\t   #96 started ranks:
\t     [0, 1] started ALLREDUCE
\t   #98 started ranks:
\t     [2] started _ALLGATHER_BASE
"""


def test_desync_report_of_issued_operations_proves_no_completion() -> None:
    """Rank 0 gave up waiting for an earlier one than the newest that it is said to have started."""
    trace = trace_of(timeout(0, 70) + COUNTS_ISSUED)
    assert counters(trace)[1, "0"] == (96, -1)
    found = diagnose(trace)
    assert (found.verdict, found.culprits) == (Verdict.MISSING_RANK, (3,))
    as_usual = trace_of(timeout(0, 96) + COUNTS_ISSUED)
    assert counters(as_usual)[1, "0"] == (96, 95)
