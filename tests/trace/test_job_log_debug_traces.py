"""Announcements in logs: operations by torch's debug wrapper and NCCL, and communicators."""

from __future__ import annotations

import io
import time

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Diagnosis
from hangscope.trace.job_log.lines import blocks
from hangscope.trace.job_log.readers.registry import telling_words
from tests.trace.logs import trace_of

STOPPED = (
    "W1121 15:02:27.736000 4063 torch/distributed/elastic/agent/server/api.py:753] "
    "Received 15 death signal, shutting down workers\n"
)


def wrapped(rank: int, seq: int, op: str = "ALLREDUCE", size: int = 64, place: int = -1) -> str:
    own = rank if place < 0 else place
    return (
        f"[rank{rank}]:[I819 10:00:00.123456789 ProcessGroupWrapper.cpp:58] [Rank {own}] "
        f"Running collective: CollectiveFingerPrint(SequenceNumber={seq}, OpType={op}, "
        f"TensorShape=[{size}], TensorDtypes=Float, "
        "TensorDeviceTypes=TensorOptions(dtype=float (default)))\n"
    )


def nccl(rank: int, words: str, host: str = "node1") -> str:
    return f"{host}:{500 + rank}:{500 + rank} [{rank}] NCCL INFO {words}\n"


def issued(rank: int, count: int, op: str = "AllReduce", size: int = 512, comm: str = "a") -> str:
    words = f"{op}: opCount {count:x} sendbuff 0x7f10 recvbuff 0x7f20 count {size} datatype 7 op 0 "
    return nccl(rank, words + f"root 0 comm 0x{comm}{rank} [nranks=4] stream 0x55")


def made(
    rank: int, what: str = "COMPLETE", size: int = 4, name: str = "0x9f", comm: str = "a"
) -> str:
    words = (
        f"ncclCommInitRank comm 0x{comm}{rank} rank {rank} nranks {size} cudaDev {rank} nvmlDev "
    )
    return nccl(rank, words + f"{rank} busId {rank}3000 commId {name} - Init {what}")


def judged(text: str) -> Diagnosis:
    return diagnose(trace_of(text))


def test_debug_wrapper_shows_the_rank_with_another_collective() -> None:
    text = "".join(wrapped(r, s) for s in (7, 8) for r in range(4))
    text += "".join(wrapped(r, 9) for r in (0, 1, 3)) + wrapped(2, 9, "ALLGATHER")
    found = judged(text)
    assert (found.verdict.value, found.culprits) == ("collective_mismatch", (2,))
    assert (found.confidence.value, found.findings[0].seq) == ("likely", 9)


def test_debug_wrapper_shows_the_missing_rank_of_a_stopped_job() -> None:
    text = "".join(wrapped(r, s) for s in (7, 8) for r in range(4))
    text += "".join(wrapped(r, 9) for r in (0, 1, 3))
    found = judged(text + STOPPED)
    assert (found.verdict.value, found.culprits) == ("missing_rank", (2,))
    assert found.confidence.value == "likely"


def test_truncated_log_accuses_no_rank() -> None:
    text = "".join(wrapped(r, s) for s in (7, 8) for r in range(4))
    found = judged(text + "".join(wrapped(r, 9) for r in (0, 1, 3)))
    assert (found.verdict.value, found.culprits) == ("inconclusive", ())
    assert "all_reduce #8 by rank 2" in found.summary


def test_group_ranks_of_smaller_groups_are_no_ranks() -> None:
    """Groups are not named there, so nothing shows which numbers belong together."""
    text = "".join(wrapped(r, s, place=r % 2) for s in (7, 8) for r in range(4))
    found = judged(text + "".join(wrapped(r, 9, place=r % 2) for r in (0, 1, 2)) + STOPPED)
    assert found.culprits == ()


def test_numbers_that_decrease_are_of_several_groups() -> None:
    text = "".join(wrapped(r, s) for s in (7, 8, 3) for r in range(4))
    found = judged(text + wrapped(0, 9) + wrapped(1, 4, "BROADCAST") + STOPPED)
    assert found.culprits == ()


def test_nccl_trace_shows_the_rank_with_another_operation() -> None:
    text = "".join(issued(r, c) for c in (0x1A, 0x1B) for r in range(4))
    text += "".join(issued(r, 0x1C) for r in (0, 1, 3)) + issued(2, 0x1C, "AllGather", 9000)
    found = judged(text)
    assert (found.verdict.value, found.culprits) == ("collective_mismatch", (2,))
    assert "9000 elements" in found.summary


def test_nccl_trace_shows_the_rank_with_another_size() -> None:
    text = "".join(made(r) for r in range(4)) + "".join(issued(r, 5) for r in range(4))
    text += "".join(issued(r, 6, size=400 if r == 1 else 512) for r in range(4))
    found = judged(text)
    assert (found.verdict.value, found.culprits) == ("shape_mismatch", (1,))


def test_nccl_trace_shows_the_missing_rank() -> None:
    text = "".join(issued(r, c) for c in (4, 5) for r in range(4))
    text += "".join(issued(r, 6) for r in (0, 1, 3))
    assert judged(text).culprits == ()
    found = judged(text + STOPPED)
    assert (found.verdict.value, found.culprits) == ("missing_rank", (2,))


def test_lines_torn_apart_show_no_difference() -> None:
    text = "".join(issued(r, c) for c in (4, 5) for r in range(4))
    text += "".join(issued(r, 6) for r in (0, 1, 3)) + issued(2, 6, "AllGather", 9000)
    torn = (
        "Broadcast: opCount 6 sendbuff 0x7f recvbuff 0x7f count 53 datatype 4 op 0 root 0 comm 0xa1"
    )
    found = judged(text + torn + "\n")
    assert found.culprits == ()
    assert "#7 by device 2" in found.findings[0].summary


def test_operations_of_unknown_ranks_are_told_by_process() -> None:
    text = issued(3, 4) + nccl(3, "## [10042496.466647] [03:01] 000004 KL hwid 42802110")
    assert "all_reduce #5 by device 3 of node1" in judged(text).findings[0].summary
    several = "".join(nccl(5, issued(1, 4).split("INFO ")[1], host) for host in ("n1", "n2"))
    assert "device 5 of n1; all_reduce #5 by device 5 of n2" in judged(several).findings[0].summary


def test_nccl_rank_is_the_place_in_the_largest_communicator() -> None:
    """Devices are numbered again on every host; here nothing else identifies the writer of a
    line."""
    text = ""
    for rank in range(4):
        host = f"node{rank // 2}"
        words = f"comm 0xa{rank} rank {rank} nranks 4 cudaDev {rank % 2} busId 3000 - Init COMPLETE"
        text += f"{host}:{900 + rank}:1 [{rank % 2}] NCCL INFO {words}\n"
    for rank in range(4):
        op = "Broadcast" if rank == 3 else "AllReduce"
        words = f"{op}: opCount 0 sendbuff 0x1 recvbuff 0x2 count 8 datatype 7 op 0 root 0 comm "
        line = f"{words}0xa{rank} [nranks=4] stream 0x5"
        text += f"node{rank // 2}:{900 + rank}:1 [{rank % 2}] NCCL INFO {line}\n"
    found = judged(text)
    assert (found.verdict.value, found.culprits) == ("collective_mismatch", (3,))


def test_operations_of_one_nccl_batch_are_not_compared() -> None:
    text = "".join(issued(r, 5) for r in range(4))
    for rank in range(4):
        both = [issued(rank, 6), issued(rank, 6, "AllGather")]
        text += "".join(reversed(both) if rank == 2 else both)
    assert judged(text).culprits == ()


def test_waiting_rank_outweighs_an_announcement() -> None:
    text = "".join(wrapped(r, s) for s in (7, 8) for r in range(4)) + wrapped(2, 9, "ALLGATHER")
    text += "".join(
        f"[rank{r}]:[E819 10:30:00.123456789 ProcessGroupNCCL.cpp:632] [Rank {r}] Watchdog caught "
        "collective operation timeout: WorkNCCL(SeqNum=31, OpType=ALLREDUCE, NumelIn=4, "
        "NumelOut=4, Timeout(ms)=600000) ran for 600001 milliseconds before timing out.\n"
        for r in (0, 1, 2)
    )
    found = judged("world_size=4\n" + text)
    assert found.findings[0].seq == 31


def test_rank_absent_from_communicator_creation_is_missing() -> None:
    begun = "".join(made(r, "START", 8) for r in range(8) if r != 5)
    found = judged(begun + STOPPED)
    assert (found.verdict.value, found.culprits) == ("missing_rank", (5,))
    assert "7 of 8 ranks began" in found.summary
    assert judged(begun).culprits == ()  # the rest may have been cut off
    assert judged("".join(made(r, "START", 8) for r in range(4)) + STOPPED).culprits == ()
    done = "".join(made(r, size=8) for r in range(3))
    assert judged(begun + done + STOPPED).culprits == ()


def test_reports_of_nccls_rank_0_about_the_others() -> None:
    warn = "node1:50:51 [0] bootstrap.cc:131 NCCL WARN Bootstrap Root : "
    found = judged(warn + "rank 1 of 8 ranks has already checked in\n")
    assert (found.verdict.value, found.culprits) == ("inconclusive", ())
    assert "two processes said that they are rank 1" in found.summary
    found = judged(warn + "mismatch in rank count from procs 8 : 4\n")
    assert "some ranks count 8 members of a communicator and others 4" in found.summary


def test_nccls_number_of_ranks_is_the_size_of_the_job() -> None:
    timed_out = "".join(
        f"[rank{r}]:[E819 10:30:00.123456789 ProcessGroupNCCL.cpp:632] [Rank {r}] Watchdog caught "
        "collective operation timeout: WorkNCCL(SeqNum=31, OpType=ALLREDUCE, NumelIn=4, "
        "NumelOut=4, Timeout(ms)=600000) ran for 600001 milliseconds before timing out.\n"
        for r in (0, 1, 2)
    )
    closed = "".join(nccl(r, "[Service thread] Connection closed by localRank 2") for r in range(4))
    assert judged(timed_out).culprits == ()
    assert judged(timed_out + closed).culprits == (3,)
    again = closed.replace(":50", ":70")  # the same devices once more: the job was started again
    assert judged(timed_out + closed + again).culprits == ()


def test_last_of_many_announcements_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK", 4096)
    monkeypatch.setattr(blocks, "_ANNOUNCED_BLOCKS", 3)
    first, second = ([issued(r, s) for s in range(n, n + 200) for r in range(4)] for n in (1, 201))
    lines = [*first, "Watchdog caught collective operation timeout\n", *second]
    raw = "".join(lines).encode()
    found = blocks.relevant_lines(raw[:4096], io.BytesIO(raw[4096:]), telling_words())
    told = [(number, line) for number, line, _ in found if line]
    numbers = [number for number, _ in told]
    assert numbers == sorted(numbers)
    assert [lines[number - 1].encode() for number in numbers] == [line + b"\n" for _, line in told]
    assert len(first) + 1 in numbers
    assert numbers[-1] == len(lines)
    assert len(told) * 100 < 10 * 4096 + 100 * blocks.CONTEXT
    assert {len(first), len(first) + 2} <= set(numbers), "what is beside a telling line is kept"


def test_hostile_line_is_read_quickly() -> None:
    words = "Init COMPLETE " + "comm 0x1 rank 1 nranks 2 commId 0x1 " * 800
    began_s = time.process_time()
    judged(nccl(0, words) * 10 + STOPPED)
    assert time.process_time() - began_s < 5


def connecting(device: int, *more: str) -> str:
    head = f"n0:{700 + device}:9 [{device}] NCCL INFO "
    begins = f"Channel 00 : {device}[1a000] -> {(device + 1) % 4}[1b000] via P2P/IPC"
    return "".join(f"{head}{text}\n" for text in (begins, *more))


RINGS = "Connected all rings"
MADE = "comm 0x7f{d} rank {d} nranks 4 cudaDev {d} busId 1a000 - Init COMPLETE"


@pytest.mark.parametrize(
    ("done", "words", "culprits"),
    [
        ({}, "4 processes create a communicator of NCCL's, and none has finished", ()),
        (dict.fromkeys((0, 1, 3), (RINGS,)), "hangs on device 2 of n0 (process 702)", ()),
        ({d: (RINGS, MADE.format(d=d)) for d in (0, 1, 3)}, "device 2 of n0", (2,)),
        ({d: (RINGS, MADE.format(d=d)) for d in range(4)}, "all 4 processes have created", ()),
    ],
    ids=["nobody", "rings", "ranks", "everybody"],
)
def test_older_lines_of_initialisation_show_who_has_connected(
    done: dict[int, tuple[str, ...]], words: str, culprits: tuple[int, ...]
) -> None:
    found = diagnose(trace_of("".join(connecting(d, *done.get(d, ())) for d in range(4))))
    assert words.lower() in found.summary.lower()
    assert found.culprits == culprits
