"""Writes docs/asked-elsewhere.md: what others were asked for, and what HangScope says of it.

``python -m tools.asked_elsewhere``. Every answer is that of a recorded hang in ``fixtures/``.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Diagnosis
from hangscope.replay.fixture import load_fixture
from hangscope.replay.verify import diagnose_fixture
from hangscope.trace.load import load_trace
from tools.verdict_pages import ROOT, write_changed

PAGE = ROOT / "docs" / "asked-elsewhere.md"


class Asked(NamedTuple):
    """A public request or report, and the recorded hang that shows the same."""

    title: str
    thread: str
    what: str
    fixture: str
    how: str
    """Why HangScope can tell, or what it cannot."""


ASKED = (
    Asked(
        "A dump from a rank that is inside its teardown",
        "https://github.com/pytorch/pytorch/issues/196968",
        "A rank blocked in the teardown of its process group writes no Flight Recorder dump, "
        "because "
        "the thread that would is being joined.",
        "ahead-in-destroy",
        "The ring is in the file all the time; nobody has to dump it. The call of "
        "`destroy_process_group` is a phase on record.",
    ),
    Asked(
        "Dumps that say which rank, host, job and attempt they are of",
        "https://github.com/pytorch/pytorch/issues/117883",
        "The list of requests to Flight Recorder: files that describe themselves, members of "
        "groups, "
        "what was dropped, who is always late.",
        "wrapped-mismatch",
        "A ring's header holds rank, host, run and attempt, a group entry its members, and a "
        "record's "
        "running hash covers what has been overwritten. `hangscope slow` says who is late.",
    ),
    Asked(
        "Dumps with the host's name in the file's name",
        "https://github.com/pytorch/pytorch/issues/140879",
        "`nccl_trace_rank_<host>_5` has no common prefix with other hosts' files, so torch's "
        "script "
        "finds none.",
        "native-operation",
        "Reproduced with the dumps renamed to `nccl_trace_rank_container-node0N_R`. A file is "
        "known by "
        "its content, its rank by the end of its name.",
    ),
    Asked(
        "A dump although the GIL is held",
        "https://github.com/pytorch/pytorch/pull/167023",
        "A dump with stacks needs the GIL, so a process that holds it in C code may never finish "
        "one.",
        "gil-holder",
        "Records are already in the file, and a heartbeat that stops while the process uses the "
        "CPU "
        "shows a held GIL. The stack is the newest that the watcher took before.",
    ),
    Asked(
        "Sequence numbers of dumps that have wrapped",
        "https://github.com/pytorch/pytorch/issues/125173",
        "Matching by order needs the trace from the beginning of the program.",
        "wrapped-ring",
        "Every record carries its number in its group, so it does not matter where a ring begins.",
    ),
    Asked(
        "Which node hangs?",
        "https://github.com/NVIDIA/nccl/issues/1324",
        "After an NCCL timeout, finding the node takes long; NCCL had no feature for it in 2024.",
        "nccl-sigstop",
        "The finding names the rank, its host and its process.",
    ),
    Asked(
        "Ranks with fewer batches than the others",
        "https://github.com/pytorch/pytorch/issues/33148",
        "With uneven inputs, ranks that have more batches hang in a collective that the others "
        "never "
        "issue.",
        "d9-uneven-loader",
        "The rank that stopped short and the line where it went on instead.",
    ),
    Asked(
        "The first failure's traceback, not the last",
        "https://github.com/pytorch/pytorch/issues/76198",
        "One rank fails, the others report lost connections, and the log ends with those.",
        "log-exception",
        "From the job's log alone: what only repeats another rank's end is no cause.",
    ),
)


def write(path: Path = PAGE) -> None:
    """Write the page."""
    parts = [_HEAD, *(_section(asked) for asked in ASKED), _OPEN]
    write_changed(path, "\n\n".join(parts) + "\n")


def _section(asked: Asked) -> str:
    finding = _diagnosis(asked).findings[0]
    answer = "\n".join(
        f"> {text}\n>" for text in (finding.headline, finding.why, finding.fix) if text
    )
    return (
        f"## {asked.title}\n\n[{asked.thread.partition('github.com/')[2]}]({asked.thread}): "
        f"{asked.what}\n\n`hangscope analyze fixtures/{asked.fixture}/dumps`:\n\n"
        f"{answer.removesuffix('>').rstrip()}\n\n{asked.how}"
    )


def _diagnosis(asked: Asked) -> Diagnosis:
    fixture = load_fixture(ROOT / "fixtures" / asked.fixture)
    if "renamed" not in asked.how:
        return diagnose_fixture(fixture)[1]
    with tempfile.TemporaryDirectory() as folder:
        for dump in fixture.dumps.glob("*_rank_*"):
            rank = dump.name.rpartition("_")[2]
            name = f"nccl_trace_rank_container-node0{int(rank) // 2}_{rank}"
            shutil.copy(dump, Path(folder) / name)
        return diagnose(load_trace([folder]))


_HEAD = """# Asked elsewhere

Public requests to other tools, each reproduced with a recorded hang, and what HangScope says of it.
`make pages` makes this page."""

_OPEN = """## What HangScope cannot do either

* A rank whose device stands still inside a kernel: that it has not finished is on record, not why
  ([what NCCL tells](recorder.md)).
* A job that was not recorded and left only a log without tracebacks names a rank, seldom a line.
* A straggler inside one operation: [`hangscope slow`](slow.md) sees who comes late, not what a late
  rank's device did meanwhile."""


if __name__ == "__main__":
    write()
