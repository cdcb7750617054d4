"""Several sources about one job, merged field by field and row by row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hangscope.trace import operations
from hangscope.trace.facts import KernelWait
from hangscope.trace.flight_recorder.groups import GroupTable, match_status, parse_ranks
from hangscope.trace.flight_recorder.p2p import global_peer
from hangscope.trace.merging.facts import merge_facts
from hangscope.trace.merging.merge import merge
from hangscope.trace.model import (
    MEMBER_DTYPE,
    ON_ITS_WAY_OUT,
    RECORD_DTYPE,
    ExceptionFacts,
    ExitFacts,
    Flag,
    Fragment,
    Frame,
    Group,
    Phase,
    RankFacts,
    Records,
    Signature,
    Source,
    State,
    ThreadStack,
)

REDUCE = Signature("all_reduce", input_sizes=((4,),))


def rows(rank: int, *seqs: int, state: int = 2, flags: int = 0, created: int = 100) -> Records:
    made = np.zeros(len(seqs), RECORD_DTYPE)
    for row, seq in zip(made, seqs, strict=True):
        row["rank"], row["collective_seq"], row["state"], row["flags"] = rank, seq, state, flags
        row["stack"] = row["peer"] = row["root"] = -1
        row["created_ns"] = created + seq
    return made


def fragment(
    rank: int,
    records: Records,
    format_: str = "flight-recorder-pickle",
    ranks: tuple[int, ...] = (0, 1),
    name: str = "0",
    **facts: object,
) -> Fragment:
    return Fragment(
        Source(f"{format_}_{rank}", format_, rank=rank),
        RankFacts(rank=rank, **facts),  # type: ignore[arg-type]
        records,
        groups=(Group(name, "default_pg" if name == "0" else "", ranks),),
        signatures=(REDUCE,),
    )


def test_ring_is_completed_by_a_native_dump() -> None:
    ring = fragment(0, rows(0, 3, 4, 5, state=0, flags=Flag.UNOBSERVED), "hangscope-ring")
    native = rows(0, 1, 2, 3, 4, 5)
    native["state"][-1] = State.STARTED
    native["completed_ns"][:4] = 7
    trace = merge([fragment(0, native), ring])
    assert trace.records["collective_seq"].tolist() == [1, 2, 3, 4, 5]
    assert trace.records["state"].tolist() == [2, 2, 2, 2, 1]
    assert not (trace.records["flags"] & Flag.UNOBSERVED).any()


def test_rows_covered_by_the_best_source_are_not_added() -> None:
    ring = fragment(0, rows(0, 1, 3), "hangscope-ring")
    trace = merge([ring, fragment(0, rows(0, 1, 2, 3))])
    assert trace.records["collective_seq"].tolist() == [1, 3]


def test_groups_without_members_get_them_by_name() -> None:
    first = fragment(0, rows(0, 1), ranks=(0, 1), name="tp")
    other = fragment(2, rows(2, 1), ranks=(2, 3), name="tp")
    bare = fragment(3, rows(3, 1), ranks=(), name="tp")
    trace = merge([bare, first, other])
    assert len(trace.groups) == 2
    mine = trace.records[trace.records["rank"] == 3]["group"][0]
    assert trace.groups[mine].ranks == (2, 3)


def test_counters_take_the_maximum_of_all_sources() -> None:
    def counted(rank: int, format_: str, enqueued: int, completed: int) -> Fragment:
        made = np.zeros(1, MEMBER_DTYPE)
        made["rank"], made["enqueued"], made["completed"], made["started"] = (
            rank,
            enqueued,
            completed,
            -1,
        )
        made["p2p_enqueued"] = -1
        return Fragment(
            Source(format_, format_),
            RankFacts(rank),
            members=made,
            groups=(Group("0", "", (0, 1)),),
        )

    trace = merge([counted(0, "a", 5, 3), counted(0, "b", 4, 4)])
    (member,) = trace.members
    assert (member["enqueued"], member["completed"]) == (5, 4)


def test_interrupted_rank_ended_by_the_interrupt_despite_earlier_log_lines() -> None:
    """Python raises it as the wait returns, which has failed: the log shows both, in this order."""
    frames = (Frame("wait", "a.py", 3),)
    ring = RankFacts(1, exception=ExceptionFacts("KeyboardInterrupt", "", frames, 7))
    log = RankFacts(1, exception=ExceptionFacts("RuntimeError", "Connection closed", frames))
    merged = merge_facts([("job-log", log), ("hangscope-ring", ring)])
    assert merged.exception == ring.exception


def test_exact_time_overrides_whole_seconds_of_a_log() -> None:
    second = 10**9
    failed, closed = (ExceptionFacts("ValueError", at_ns=at) for at in (7 * second, 0))
    ring = RankFacts(
        1,
        exit=ExitFacts("exception", at_ns=7 * second + 800),
        exception=ExceptionFacts("ValueError", at_ns=7 * second + 700),
    )
    log = RankFacts(1, exit=ExitFacts("exception", 1, at_ns=7 * second), exception=failed)
    merged = merge_facts([("job-log", log), ("hangscope-ring", ring)])
    assert merged.exit is not None
    assert merged.exception is not None
    assert (merged.exit.at_ns, merged.exception.at_ns) == (7 * second + 800, 7 * second + 700)
    before = RankFacts(1, exit=ExitFacts("exception", at_ns=5 * second), exception=closed)
    merged = merge_facts([("job-log", before), ("hangscope-ring", ring)])
    assert merged.exit is not None
    assert merged.exit.at_ns == 5 * second


def test_facts_of_a_ring_and_a_monitor() -> None:
    ring = RankFacts(
        2, host="n0", pid=7, alive=False, phases=(Phase("checkpoint"),), observed_ns=10,
        exception=ExceptionFacts("ValueError", "bad"), exit=ExitFacts("exception", at_ns=5),
        threads=(ThreadStack("MainThread", True, (), 4),), only_active=False, dropped=1,
    )  # fmt: skip
    journal = RankFacts(
        2, exit=ExitFacts("code", code=1, at_ns=6), process_state="gone", observed_ns=11
    )
    native = RankFacts(2, only_active=True, world_size=8, dropped=2)
    merged = merge_facts(
        [
            ("flight-recorder-pickle", native),
            ("hangscope-journal", journal),
            ("hangscope-ring", ring),
        ]
    )
    assert merged.exit == ExitFacts("exception", code=1, at_ns=5)
    assert (merged.host, merged.pid, merged.world_size) == ("n0", 7, 8)
    assert merged.process_state == "gone"
    assert merged.alive is False
    assert merged.phases == (Phase("checkpoint"),)
    assert not merged.only_active
    assert merged.dropped == 3


@pytest.mark.parametrize(
    ("exits", "kind", "signal"),
    [
        ([ExitFacts("unknown"), ExitFacts("signal", signal=9)], "signal", 9),
        ([ExitFacts("signal", signal=9), ExitFacts("oom", text="killed")], "oom", 9),
        ([ExitFacts("clean", code=0), ExitFacts("unknown")], "clean", None),
    ],
)
def test_most_specific_exit_wins(exits: list[ExitFacts], kind: str, signal: int | None) -> None:
    merged = merge_facts([("job-log", RankFacts(0, exit=e)) for e in exits])
    assert merged.exit is not None
    assert (merged.exit.kind, merged.exit.signal) == (kind, signal)


def test_exit_status_seen_by_the_parent_overrides_the_process_own() -> None:
    quiet = ("hangscope-ring", RankFacts(0, exit=ExitFacts("clean", at_ns=5)))

    def seen(exit_: ExitFacts) -> ExitFacts | None:
        return merge_facts([quiet, ("hangscope-journal", RankFacts(0, exit=exit_))]).exit

    assert seen(ExitFacts("code", code=3, at_ns=6)) == ExitFacts("code", code=3, at_ns=5)
    assert seen(ExitFacts("clean", code=0, at_ns=6)) == ExitFacts("clean", code=0, at_ns=5)
    meant = ("hangscope-ring", RankFacts(0, exit=ExitFacts("code", code=3, at_ns=5)))
    caught = ("hangscope-journal", RankFacts(0, exit=ExitFacts("clean", code=0, at_ns=6)))
    assert merge_facts([meant, caught]).exit == ExitFacts("clean", code=0, at_ns=5)
    aborted = seen(ExitFacts("signal", signal=6, at_ns=6))
    assert aborted == ExitFacts("signal", signal=6, at_ns=5, text=ON_ITS_WAY_OUT)
    earlier = seen(ExitFacts("signal", signal=9, at_ns=4))
    assert earlier == ExitFacts("signal", signal=9, at_ns=4)


@pytest.mark.parametrize(
    ("raw", "canonical"),
    [
        ("nccl:all_reduce", "all_reduce"),
        ("nccl:all_reduce_barrier", "barrier"),
        ("ALLREDUCE", "all_reduce"),
        ("_ALLGATHER_BASE", "_all_gather_base"),
        ("c10d::allreduce_", "all_reduce"),
        ("AllReduce", "all_reduce"),
        ("ReduceScatter", "reduce_scatter"),
        ("ncclReduceScatter", "reduce_scatter"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "all_reduce"),
        ("NCCL__all_gather_base", "_all_gather_base"),
        ("ncclGroupEnd", "nccl_group_end"),
        ("nccl:_broadcast_oop", "_broadcast_oop"),
        ("nccl:ALLGATHER_coalesced", "all_gather_coalesced"),
        ("RECVANYSOURCE", "recv"),
        ("nccl:send 0->1", "send"),
        ("all_gather_into_tensor", "_all_gather_base"),
        ("xyz:Weird Op", "weird op"),
        ("", ""),
    ],
)
def test_operation_name_of_any_backend_becomes_canonical(raw: str, canonical: str) -> None:
    assert operations.canonical(raw) == canonical


@pytest.mark.parametrize(
    ("raw", "ranks", "rank", "default", "peer"),
    [
        ("nccl:send 0->1", (4, 5), 4, False, 5),
        ("nccl:recv 1<-0", (4, 5), 5, False, 4),
        ("nccl:recv 1<-?", (4, 5), 5, False, -1),
        ("nccl:send 4->5", (4, 5), 4, False, 5),  # global numbers
        ("nccl:send 0->1", (), 0, True, 1),
        ("nccl:send 0->1", (), 0, False, -1),
        ("nccl:send 0->9", (4, 5), 4, False, -1),
        ("nccl:send 0->1", (0, 4, 1, 5), 0, False, 4),  # places, although both are members, too
    ],
)
def test_peer_in_a_name_becomes_a_global_rank(
    raw: str, ranks: tuple[int, ...], rank: int, default: bool, peer: int
) -> None:
    assert global_peer(operations.parse(raw), ranks, rank, default) == peer


@pytest.mark.parametrize(
    ("value", "ranks"),
    [
        ("[0, 1]", (0, 1)),
        ([0, "1"], (0, 1)),
        ((3,), (3,)),
        ("[]", ()),
        ("[0, 0]", ()),
        (None, ()),
        ([0, None], ()),
        ("[0, 99999999999]", ()),
    ],
)
def test_rank_list_is_read_in_any_spelling(value: object, ranks: tuple[int, ...]) -> None:
    assert parse_ranks(value) == ranks


def test_status_keys_are_paired_only_in_matching_order() -> None:
    table = GroupTable([], {}, {})
    for name in ("0", "5", "9", "12"):
        table.add(name)
    assert match_status(["0", "1", "2", "3"], table) == {"0": 0, "1": 1, "2": 2, "3": 3}
    table.by_pg_id = {"1": 3, "2": 0}  # entries say that the order does not hold
    assert match_status(["0", "1", "2", "3"], table) == {"1": 3, "2": 0}
    table.by_pg_id = {"2": 2}
    assert match_status(["0", "1", "2"], table) == {"0": 0, "1": 1, "2": 2}


def test_wait_observed_twice_lasts_since_the_first_look() -> None:
    waits = [KernelWait("pipe", since_ns=since, seen_ns=seen) for since, seen in ((5, 9), (7, 12))]
    looks = [("hangscope-journal", RankFacts(2, observed_ns=w.seen_ns, wait=w)) for w in waits]
    for said in (looks, looks[::-1]):
        wait = merge_facts(said).wait
        assert wait is not None
        assert (wait.since_ns, wait.seen_ns) == (5, 12)


@pytest.mark.parametrize(("alive", "kind"), [(True, None), (False, "pipe")])
def test_wait_of_a_live_process_is_over_if_a_later_look_shows_none(
    alive: bool, kind: str | None
) -> None:
    """A dead one was never seen again: what it waited for then is what it waited for last."""
    seen = RankFacts(2, observed_ns=9, wait=KernelWait("pipe", since_ns=5, seen_ns=9))
    later = RankFacts(2, alive=alive, observed_ns=3600 * 10**9)
    wait = merge_facts([("flight-recorder-pickle", later), ("hangscope-journal", seen)]).wait
    assert (wait.kind if wait else None) == kind


def test_rank_whose_end_is_reported_is_not_alive() -> None:
    end = ExitFacts("signal", signal=9)
    dumped, logged = ("flight-recorder-pickle", RankFacts(2)), ("job-log", RankFacts(2, exit=end))
    assert merge_facts([dumped, logged]).alive is False
    ended = ("hangscope-journal", RankFacts(2, alive=False, exit=ExitFacts("clean", at_ns=10)))
    late = ("hangscope-journal", RankFacts(2, alive=True, observed_ns=12))
    assert merge_facts([ended, late]).alive is False, "one monitor saw it end, whatever the time"


def test_newest_sample_of_a_thread_is_kept() -> None:
    new, empty = (
        ThreadStack("main", True, (Frame("f", "a.py", 1),), 12),
        ThreadStack("main", True, (), 20),
    )
    older = ThreadStack("main", True, (Frame("g", "a.py", 2),), 5)
    ring = ("hangscope-ring", RankFacts(2, threads=(new,)))
    for other in (empty, older):
        assert merge_facts([ring, ("job-log", RankFacts(2, threads=(other,)))]).threads == (new,)


def test_longest_timeout_of_the_sources_counts() -> None:
    sources = [replace(fragment(r, rows(r, 1)), timeout_s=float(t)) for r, t in ((0, 7), (1, 5))]
    assert merge(sources).timeout_s == 7


def test_log_adds_operations_only_where_records_are_not_overwritten() -> None:
    ring = fragment(0, rows(0, 3, 4), "hangscope-ring")
    said = rows(0, 2, 5, flags=Flag.SYNTHETIC)
    assert merge([ring, fragment(0, said, "job-log")]).records["collective_seq"].tolist() == [
        3,
        4,
        5,
    ]
    other = fragment(0, rows(0, 2, flags=Flag.SYNTHETIC), "job-log", name="tp")
    assert len(merge([ring, other]).records) == 3, "of a group without records, any is news"


@pytest.mark.parametrize(
    ("name", "size", "members"),
    [("tp", 2, (0, 1)), ("tp", 3, ()), ("0", 4, (0, 1, 2, 3)), ("0", 3, ()), ("", None, (0, 1))],
)
def test_members_of_a_group_that_no_source_lists(
    name: str, size: int | None, members: tuple[int, ...]
) -> None:
    """Those that used it, unless its size says that some are absent; all if it has room for all."""
    group = Group(name, "", (), size=size)
    used = [replace(fragment(r, rows(r, 1), world_size=4), groups=(group,)) for r in (0, 1)]
    (found,) = merge(used).groups
    assert (found.ranks, found.listed) == (members, False)


def test_later_log_lines_are_no_observation_of_records() -> None:
    dumped = ("flight-recorder-pickle", RankFacts(2, observed_ns=10))
    logged = ("job-log", RankFacts(2, observed_ns=90))
    again = ("flight-recorder-pickle", RankFacts(2, observed_ns=7))
    assert merge_facts([again, dumped, logged]).observed_ns == 10
    assert merge_facts([logged, ("job-log", RankFacts(2, observed_ns=95))]).observed_ns == 95


@pytest.mark.parametrize(
    ("looked", "state", "expected"),
    [(5, "stopped", None), (5, "sleeping", "sleeping"), (12, "stopped", "stopped")],
)
def test_rank_stopped_before_its_last_heartbeat_went_on(
    looked: int, state: str, expected: str | None
) -> None:
    ring = ("hangscope-ring", RankFacts(2, heartbeat_ns=9, alive=False, observed_ns=20))
    seen = ("hangscope-journal", RankFacts(2, alive=True, observed_ns=looked, process_state=state))
    assert merge_facts([ring, seen]).process_state == expected
