"""Members of one group that stand in different operations have run apart; no device is stuck."""

from __future__ import annotations

from pathlib import Path

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Confidence, Diagnosis, Verdict
from hangscope.trace.load import load_trace

TIMEOUT = (
    "[rank{rank}]:[E{day} 05:20:{second:02d}.000001 ProcessGroupNCCL.cpp:616] [Rank {rank}] "
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn=64, "
    "NumelOut=64, Timeout(ms)=600000) ran for 600020 milliseconds before timing out.\n"
    "[rank{rank}]:[E{day} 05:20:{second:02d}.000400 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID "
    "0(default_pg) Rank {rank}] Exception (either an error or timeout) detected by watchdog at "
    "work: {seq}, last enqueued NCCL work: {seq}, last completed NCCL work: {done}.\n"
)


def said(tmp_path: Path, *standing: tuple[int, str]) -> Diagnosis:
    """What is said of ranks that time out, each in an operation of the default group."""
    log = tmp_path / "job.log"
    log.write_text(
        "".join(
            TIMEOUT.format(rank=r, seq=seq, op=op, done=seq - 1, second=10 + r, day="311")
            for r, (seq, op) in enumerate(standing)
        )
    )
    return diagnose(load_trace([log]))


def test_two_members_apart(tmp_path: Path) -> None:
    found = said(tmp_path, (41, "ALLREDUCE"), (37, "_ALLGATHER_BASE"))
    assert (found.verdict, found.culprits) == (Verdict.COLLECTIVE_MISMATCH, (0, 1))
    assert found.confidence is Confidence.AMBIGUOUS
    assert found.headline.startswith("Either rank 0 or 1: ")
    assert "device" not in found.findings[0].fix
