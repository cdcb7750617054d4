"""Logs next to records: partial, of another attempt, or contradictory."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Any

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Diagnosis
from hangscope.trace.load import load_trace
from hangscope.trace.model import ExitFacts, Frame, ThreadStack
from tests.diagnosis.builder import SECOND, START, Job
from tests.trace.dumps import BASE_NS, dump, entry, listed, pending, write
from tests.trace.logs import timeout

FIXTURES = Path(__file__).parents[2] / "fixtures"
GAVE_UP = """\
[rank{r}]: Traceback (most recent call last):
[rank{r}]:   File "/job/train.py", line 60, in step
[rank{r}]:     dist.all_reduce(x)
[rank{r}]:   File "/env/torch/distributed/distributed_c10d.py", line 2800, in all_reduce
[rank{r}]:     work.wait()
[rank{r}]: RuntimeError: [/x/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 30000ms \
for recv operation to complete
"""
FAILED = """\
[rank{r}]: Traceback (most recent call last):
[rank{r}]:   File "/job/train.py", line 9, in load
[rank{r}]: KeyError: 'label'
"""
RESTART = (
    "[2024-01-01 10:00:00,000] torch.distributed.elastic.agent.server.api: [INFO] [default] Worker "
    "group FAILED. 2/3 attempts left; will restart worker group\n"
)


def judged(tmp_path: Path, fixture: str, without: tuple[int, ...], log: str) -> Diagnosis:
    """The verdict on a fixture that lost what some ranks left, with a log beside it."""
    for file in (FIXTURES / fixture / "dumps").iterdir():
        lost = any(file.stem.endswith(f"_{rank}") for rank in without)
        if not lost and file.suffix != ".journal":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "job.log").write_text(log)
    return diagnose(load_trace([tmp_path]))


@pytest.mark.parametrize("fixture", ["loader-asleep", "native-loader-asleep"])
def test_timed_out_rank_without_records_is_a_victim(tmp_path: Path, fixture: str) -> None:
    log = "".join(GAVE_UP.format(r=rank) for rank in (0, 1, 3))
    found = judged(tmp_path, fixture, (2, 3), log)
    assert (found.verdict.value, found.culprits) == ("rank_lost", (2,))
    assert found.confidence.value == "likely"


def test_earlier_attempt_in_a_log_is_ignored_beside_records(tmp_path: Path) -> None:
    log = FAILED.format(r=1) + RESTART + "".join(f"[rank{r}]: UserWarning: x\n" for r in range(4))
    found = judged(tmp_path, "loader-asleep", (), log)
    assert (found.verdict.value, found.culprits) == ("missing_rank", (2,))
    assert any("earlier one is ignored" in warning for warning in found.warnings)


def test_earlier_attempt_in_a_log_counts_without_records(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(FAILED.format(r=1) + RESTART + "[rank0]: UserWarning: x\n")
    found = diagnose(load_trace([tmp_path]))
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (1,))


def test_unexplained_failure_makes_an_answer_less_certain(tmp_path: Path) -> None:
    """Its rank waits on record: the log is of another run, or it failed before or after that."""
    sure = judged(tmp_path, "d19-operation", (), "nothing to see\n")
    assert (sure.culprits, sure.confidence.value) == ((2,), "certain")
    found = judged(tmp_path, "d19-operation", (), FAILED.format(r=1))
    assert (found.verdict.value, found.culprits) == ("collective_mismatch", (2,))
    assert found.confidence.value == "likely"
    assert any("rank 1 failed" in doubt for doubt in found.findings[0].unknowns)


def table(fixture: str, codes: dict[int, int], *, after_s: float = 700.0) -> str:
    """What torchrun prints so long after the last that is on record: who ended how."""
    trace = load_trace([FIXTURES / fixture / "dumps"])
    last_s = int(trace.records["created_ns"].max()) / 1e9 + after_s
    at = datetime.datetime.fromtimestamp(last_s, datetime.timezone.utc)
    heading = "Root Cause (first observed failure):\n"
    return "Failures:\n" + "".join(
        f"{heading if rank == min(codes) else ''}[{rank}]:\n"
        f"  time      : {at:%Y-%m-%d_%H:%M:%S}\n  host      : n0\n"
        f"  rank      : {rank} (local_rank: {rank})\n  exitcode  : {code} (pid: {900 + rank})\n"
        "  error_file: <N/A>\n  traceback : none\n"
        for rank, code in sorted(codes.items(), reverse=True)
    )


@pytest.mark.parametrize("fixture", ["loader-asleep", "native-loader-asleep", "order-inversion"])
@pytest.mark.parametrize("dated", [True, False])
def test_ranks_aborting_after_a_standstill_timed_out(
    tmp_path: Path, fixture: str, dated: bool
) -> None:
    """Every job ended by a watchdog ends like this; the aborts were reported as the certain
    cause."""
    log = table(fixture, {0: -15, 1: -6, 2: -15, 3: -6})
    if not dated:
        log = "\n".join(line for line in log.splitlines() if "time  " not in line) + "\n"
    found = judged(tmp_path, fixture, (), log)
    assert found.culprits == (2,)
    assert found.verdict.value in ("missing_rank", "deadlock_cycle")


def test_rank_aborting_without_having_waited_has_failed(tmp_path: Path) -> None:
    found = judged(
        tmp_path, "native-loader-asleep", (), table("native-loader-asleep", {2: -6, 1: -15})
    )
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (2,))
    assert found.confidence.value == "likely"


def test_rank_waited_for_but_waiting_itself_leaves_no_culprit(tmp_path: Path) -> None:
    found = judged(tmp_path, "halo-wrong-neighbour", (0,), GAVE_UP.format(r=0))
    assert 0 not in found.culprits


def test_timed_out_rank_beside_a_lost_one_has_not_crashed(tmp_path: Path) -> None:
    found = judged(tmp_path, "groups-swapped", (1,), GAVE_UP.format(r=0) + GAVE_UP.format(r=2))
    assert 0 not in found.culprits
    assert 2 not in found.culprits


def test_rank_aborting_mid_program_has_not_timed_out_in_a_completed_wait(tmp_path: Path) -> None:
    """Its newest call is a collective that it had completed; another rank's record is missing."""
    job = Job(4)
    job.steps(6)
    for rank in (2, 3):
        job.op(rank, done=False)
    job.rows = [row for row in job.rows if row["rank"] != 0]
    del job.facts[0]
    at_ns = START + int((job.now + 0.1) * SECOND)
    call = (Frame("all_reduce", "/x/torch/distributed/distributed_c10d.py", 9),)
    main = ThreadStack("MainThread", True, call, at_ns - SECOND // 20, "record")
    job.rank(1, alive=False, threads=(main,), exit=ExitFacts("signal", signal=6, at_ns=at_ns))
    for rank in (2, 3):
        end = ExitFacts("signal", signal=15, at_ns=at_ns + SECOND, by_launcher=True)
        job.rank(rank, alive=False, exit=end)
    found = diagnose(job.trace(after_s=1.0))
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (1,))
    assert found.confidence.value == "likely"


@pytest.mark.parametrize(("numel", "agree"), [(1, True), (2, False)])
def test_watchdog_prints_a_barrier_as_an_all_reduce_of_one_element(
    tmp_path: Path, numel: int, agree: bool
) -> None:
    """Rank 2 is absent; rank 3 is known only from the log, and all the others have left dumps."""
    for rank in range(3):
        rows = [entry(1), entry(2)]
        rows += [pending(3, "nccl:all_reduce_barrier")] if rank != 2 else []
        write(tmp_path, f"trace_{rank}", dump(rows, 4))
    (tmp_path / "job.log").write_text(
        "[rank3]:[E618 10:00:00.123456789 ProcessGroupNCCL.cpp:683] [Rank 3] Watchdog caught "
        f"collective operation timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE, NumelIn={numel}, "
        f"NumelOut={numel}, Timeout(ms)=600000) ran for 600011 milliseconds before timing out.\n"
        "[rank3]:[E618 10:00:00.123456789 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg)"
        " Rank 3] Exception (either an error or timeout) detected by watchdog at work: 3, last "
        "enqueued NCCL work: 3, last completed NCCL work: 2.\n"
    )
    found = diagnose(load_trace([tmp_path]))
    assert (found.verdict.value == "missing_rank") is agree
    assert (found.culprits == (2,)) is agree


SPIED = (
    "Process 47{rank}: python train.py\nPython v3.11.4 (/usr/bin/python3.11)\n\n"
    'Thread 47{rank} (idle): "MainThread"\n    load (data.py:51)\n    <module> (train.py:9)\n'
)


def dumped(tmp_path: Path, entries: dict[int, list[Any]], *, after_s: float) -> None:
    """Dumps of four ranks, written so long after the first entries were issued."""
    for rank, rows in entries.items():
        path = write(tmp_path, f"nccl_trace_rank_{rank}", dump(rows, world=4))
        os.utime(path, ns=(written := BASE_NS + int(after_s * SECOND), written))


@pytest.mark.parametrize("after_s", [45, 60 * 86_400])
def test_log_beside_dumps_is_no_later_observation_of_its_ranks(
    tmp_path: Path, after_s: int
) -> None:
    """Also if copying has renewed the dates of the files."""
    done = [entry(seq) for seq in range(1, 6)]
    others = [*done, entry(6), pending(7)]
    listed = dict.fromkeys(range(3), others) | {3: [*done, pending(6)]}
    dumped(tmp_path, listed, after_s=after_s)
    alone = diagnose(load_trace([tmp_path]))
    assert (alone.verdict.value, alone.culprits) == ("stuck_collective", (3,))
    late = datetime.datetime.fromtimestamp(BASE_NS / SECOND + 607, datetime.timezone.utc)
    waits = "".join(timeout(rank, 7) for rank in range(3))
    waits = waits.replace("E816 12:10:01", f"E{late:%m%d}".replace("E0", "E") + f" {late:%H:%M:%S}")
    (tmp_path / "job.log").write_text(waits)
    found = diagnose(load_trace([tmp_path]))
    assert (found.verdict.value, found.culprits) == ("stuck_collective", (3,))


@pytest.mark.parametrize(("seen", "confidence"), [(0, "likely"), (2, "certain")])
def test_stacks_show_what_their_own_rank_does(tmp_path: Path, seen: int, confidence: str) -> None:
    done = [entry(seq) for seq in range(1, 6)]
    listed = {rank: [*done, *([pending(6)] if rank != 2 else [])] for rank in range(4)}
    dumped(tmp_path, listed, after_s=20)
    (tmp_path / f"stack_rank_{seen}.txt").write_text(SPIED.format(rank=seen))
    found = diagnose(load_trace([tmp_path]))
    assert (found.verdict.value, found.culprits) == ("missing_rank", (2,))
    assert found.confidence.value == confidence


WAITS = (
    "[rank{r}]:[E615 15:16:44.11111111{n} ProcessGroupNCCL.cpp:629] [Rank {r}] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=2, OpType={op}, NumelIn={size}, NumelOut={size},"
    " Timeout(ms)=600000) ran for 60000{n} milliseconds before timing out.\n"
    "[rank{r}]:[E615 15:16:44.11111111{n} ProcessGroupNCCL.cpp:2168] [PG ID 1 PG GUID {group} Rank "
    "{r}]  failure detected by watchdog at work sequence id: 2 PG status: last enqueued work: 2, "
    "last started work: -1 (), last completed work: 1\n"
)


def test_log_gives_no_order_of_a_ranks_groups(tmp_path: Path) -> None:
    """Rank 4 reached the low group before the even one. Rank 0's dump is lost, and its watchdogs
    print in an order of their own, as if it had passed both."""
    members = {"0": range(6), "1": (0, 2, 4), "2": (0, 1, 4, 5)}
    names = {"0": "default_pg", "1": "even", "2": "low"}
    config = listed({name: (names[name], ranks) for name, ranks in members.items()})
    orders = {1: "20", 2: "10", 3: "0", 4: "210", 5: "20"}
    for rank, order in orders.items():
        made = [
            kind(seq, process_group=(name, names[name]), input_sizes=[[4096 + int(name)]])
            for seq, kind in ((1, entry), (2, pending))
            for name in order
        ]
        for number, row in enumerate(made):
            row["record_id"] = number
        write(tmp_path, f"trace_{rank}", dump(made, pg_config=config, pg_status=None))
    labels = ("0(default_pg)", "2(low)", "1(even)")
    log = [
        WAITS.format(r=0, n=n, op="ALLREDUCE", size=4096 + int(label[0]), group=label)
        for n, label in enumerate(labels)
    ]
    (tmp_path / "job.log").write_text("".join(log))
    assert diagnose(load_trace([tmp_path])).culprits in ((), (0, 4), (4,))


def test_sends_missing_from_a_log_were_not_skipped(tmp_path: Path) -> None:
    """A ring of batches; rank 1 skipped its send to rank 2. Rank 3's dump is lost, and its watchdog
    prints the collective it waits in, not what it had received."""
    config = listed({"0": ("default_pg", range(6))})
    for rank in (0, 1, 2, 4, 5):
        made: list[dict[str, Any]] = []
        for step in (1, 2, 3):
            late = step == 3 and rank == 2
            kind = pending if late else entry
            names = [f"send {rank}->{(rank + 1) % 6}", f"recv {rank}<-{(rank - 1) % 6}"]
            names = names[1:] if (step, rank) == (3, 1) else names
            made += [kind(0, f"nccl:{n}", p2p_seq_id=step, is_p2p=True) for n in names]
            made.append(kind(step, "nccl:coalesced", p2p_seq_id=step, is_p2p=True))
            made.append((pending if step == 3 else entry)(step))
        for number, row in enumerate(made):
            row["record_id"] = number
        write(tmp_path, f"trace_{rank}", dump(made, pg_config=config, pg_status=None))
    log = WAITS.format(r=3, n=1, op="ALLREDUCE", size=4096, group="0(default_pg)")
    (tmp_path / "job.log").write_text(log.replace("SeqNum=2", "SeqNum=3").replace("id: 2", "id: 3"))
    assert 2 not in diagnose(load_trace([tmp_path])).culprits


@pytest.mark.parametrize("on_host", [(0, 2, 3, 4), (2,)])
@pytest.mark.parametrize("lost", [None, 2])
def test_rank_that_timed_out_on_the_host_is_not_reported_as_crashed(
    tmp_path: Path, on_host: tuple[int, ...], lost: int | None
) -> None:
    """Dumps hold nothing of Gloo: it waited, too, and nothing tells for whom."""
    config = listed({"0": ("default_pg", range(5))})
    for rank in range(5):
        made = [entry(1), entry(2), *([] if rank in on_host else [pending(3)])]
        if rank != lost:
            write(tmp_path, f"trace_{rank}", dump(made, pg_config=config, pg_status=None))
    (tmp_path / "job.log").write_text("".join(GAVE_UP.format(r=rank) for rank in on_host))
    found = diagnose(load_trace([tmp_path]))
    assert (found.verdict.value, found.culprits) == ("inconclusive", ())
    assert any("gave up waiting in" in unknown for unknown in found.findings[0].unknowns)


def test_batch_without_partners_in_a_log_makes_no_cycle(tmp_path: Path) -> None:
    """Stages: rank 1 skipped a send to rank 2, and waits for the answer. Rank 3's dump is lost, and
    its watchdog prints a batch. Rank 2 was certain to have broken the order."""
    config = listed({"0": ("default_pg", range(4))})

    def half(name: str, number: int, kind: Any = entry) -> dict[str, Any]:
        made: dict[str, Any] = kind(0, f"nccl:{name}", p2p_seq_id=number, is_p2p=True)
        return made

    rows: dict[int, list[dict[str, Any]]] = {0: [], 1: [], 2: []}
    for n in range(1, 4):
        rows[0] += [half("send 0->1", 2 * n), half("recv 0<-1", 2 * n + 1)]
        rows[1] += [half("recv 1<-0", 4 * n), half("send 1->2", 4 * n + 1)]
        rows[1] += [half("recv 1<-2", 4 * n + 2), half("send 1->0", 4 * n + 3)]
        rows[2] += [half("recv 2<-1", 4 * n), half("send 2->3", 4 * n + 1)]
        rows[2] += [half("recv 2<-3", 4 * n + 2), half("send 2->1", 4 * n + 3)]
    rows[0] += [half("send 0->1", 8), half("recv 0<-1", 9, pending)]
    rows[1] += [half("recv 1<-0", 16), half("recv 1<-2", 17, pending)]
    rows[1] += [half("send 1->0", 18, pending)]
    rows[2] += [half("recv 2<-1", 16, pending), half("send 2->3", 17, pending)]
    rows[2] += [half("recv 2<-3", 18, pending), half("send 2->1", 19, pending)]
    for rank, made in rows.items():
        for number, row in enumerate(made):
            row["record_id"] = number
        write(tmp_path, f"trace_{rank}", dump(made, pg_config=config, pg_status=None))
    log = WAITS.format(r=3, n=1, op="COALESCED", size=0, group="0(default_pg)")
    (tmp_path / "job.log").write_text(log)
    found = diagnose(load_trace([tmp_path]))
    assert 2 not in found.culprits or found.confidence.value == "ambiguous"
