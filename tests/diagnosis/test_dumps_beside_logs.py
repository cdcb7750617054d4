"""The ranks' own logs, beside dumps or alone: one that says nothing is worth no more than none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Diagnosis
from hangscope.trace.load import load_trace
from hangscope.trace.merging.records import without_mixed_counters
from hangscope.trace.model import MEMBER_DTYPE, Records
from tests.trace.dumps import dump, entry, pending, write

_WARNING = (
    "[rank{rank}]:[W1124 05:16:47.960239679 ProcessGroupNCCL.cpp:4173] Warning: An unbatched P2P "
    "op (send/recv) was called on this ProcessGroup with size 4.  In lazy initialization mode, "
    "this will result in a new 2-rank NCCL communicator to be created. (function operator())\n"
)
_MEMBERS = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}


def _dumps(folder: Path, lost: tuple[int, ...]) -> None:
    for rank in set(range(4)) - set(lost):
        entries = [entry(seq) for seq in range(1, 9)] + [pending(9)]
        write(folder, f"_dump_{rank}.json", dump(entries, pg_status=None, pg_config=_MEMBERS))


def _logs(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text)


def _diagnose(folder: Path) -> Diagnosis:
    return diagnose(load_trace([folder]))


@pytest.mark.parametrize("text", ["", _WARNING.format(rank=2)])
def test_log_without_a_word_about_the_hang_adds_nothing(tmp_path: Path, text: str) -> None:
    _dumps(tmp_path, lost=(2,))
    without = _diagnose(tmp_path)
    _logs(tmp_path, log_2=text)
    found = _diagnose(tmp_path)
    assert (found.verdict.value, found.culprits) == ("rank_lost", (2,))
    assert (found.verdict, found.confidence) == (without.verdict, without.confidence)
    assert "cannot be read" not in found.summary


def test_ranks_with_ordinary_output_count_as_not_collected(tmp_path: Path) -> None:
    """Two of four ranks left no record: that is no evidence against one of them."""
    _dumps(tmp_path, lost=(1, 2))
    _logs(tmp_path, log_1=_WARNING.format(rank=1), log_2=_WARNING.format(rank=2))
    found = _diagnose(tmp_path)
    assert (found.verdict.value, found.culprits) == ("inconclusive", ())


def test_empty_dump_still_shows_that_its_rank_lived(tmp_path: Path) -> None:
    _dumps(tmp_path, lost=(2,))
    (tmp_path / "nccl_trace_rank_2").write_bytes(b"")
    found = _diagnose(tmp_path)
    assert "cannot be read (empty file)" in found.summary


def test_rank_absent_from_a_log_is_no_worse_than_silent_ones(tmp_path: Path) -> None:
    """Only rank 0 says that it waits; four ranks printed a warning at the start, one nothing."""
    waits = (
        "[rank0]:[E1124 05:07:00.016963229 ProcessGroupNCCL.cpp:730] [Rank 0] Watchdog caught "
        "collective operation timeout: WorkNCCL(SeqNum=2, OpType=RECV, NumelIn=64, NumelOut=64, "
        "Timeout(ms)=6000) ran for 8701 milliseconds before timing out.\n"
    )
    spoken = {f"log_{rank}": _WARNING.format(rank=rank) for rank in (1, 3, 4, 5)}
    _logs(tmp_path, log_0=_WARNING.format(rank=0) + waits, log_2="", **spoken)
    found = _diagnose(tmp_path)
    assert (found.verdict.value, found.culprits) == ("inconclusive", ())


_SIGNAL = (
    "[rank{rank}]:[E1124 05:19:37.377015660 ProcessGroupNCCL.cpp:1964] [PG ID 0 PG GUID "
    "0(default_pg) Rank {rank}] Received a dump signal due to a collective timeout from  rank 1 "
    "and we will try our best to dump the debug info. Last enqueued NCCL work: 4, last completed "
    "NCCL work: 4.\n"
)
_OVERDUE = (
    "[rank{rank}]:[E1124 05:19:31.376451165 ProcessGroupNCCL.cpp:730] [Rank {rank}] Watchdog "
    "caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=2, "
    "NumelOut=2, Timeout(ms)=6000) ran for 6053 milliseconds before timing out.\n"
    "[rank{rank}]:[E1124 05:19:31.376995572 ProcessGroupNCCL.cpp:2372] [PG ID 0 PG GUID "
    "0(default_pg) Rank {rank}]  failure detected by watchdog at work sequence id: 1 PG status: "
    "last enqueued work: 6, last started work: -1 (), last completed work: 4\n"
)


def test_counter_of_sends_does_not_show_that_a_collective_finished(tmp_path: Path) -> None:
    """Torch's watchdog prints one counter for both; rank 0 has sent 4 times and is elsewhere."""
    logs = {f"log_{rank}": _OVERDUE.format(rank=rank) for rank in (1, 2, 3)}
    _logs(tmp_path, log_0=_SIGNAL.format(rank=0), **logs)
    found = _diagnose(tmp_path)
    assert found.verdict.value != "stuck_collective"
    assert "finished it" not in "".join(found.findings[0].evidence)


def test_record_overrules_a_counter_for_both_kinds() -> None:
    """Rank 0 recorded four sends in group 0 and collectives alone in group 1, rank 1 nothing."""
    counters = ("enqueued", "completed", "p2p_enqueued")

    def rows(*stated: tuple[int, int, int, int, int]) -> Records:
        found = np.zeros(len(stated), MEMBER_DTYPE)
        for row, (rank, group, *numbers) in zip(found, stated, strict=True):
            row["rank"], row["group"] = rank, group
            for name, number in zip(counters, numbers, strict=True):
                row[name] = number
        return found

    recorded = rows((0, 0, 0, -1, 4), (0, 1, 7, 7, 0))
    told = rows((0, 0, 4, 4, -1), (0, 1, 8, 7, -1), (1, 0, 4, 4, -1))
    kept = without_mixed_counters(told, recorded, recorded)
    assert list(zip(kept["rank"], kept["group"], strict=True)) == [(0, 1), (1, 0)]
