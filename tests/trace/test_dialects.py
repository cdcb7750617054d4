"""Dumps in the spelling of various collectors: all give the same answer."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hangscope.diagnosis import diagnose
from hangscope.trace.load import NothingReadable, load_trace
from hangscope.trace.model import Flag, State

from .dumps import dump, entry, pending

WORLD = 4
Documents = dict[int, dict[str, Any]]
Files = dict[str, bytes]


def documents() -> Documents:
    """Rank 2 has not issued number 9."""
    made = {}
    for rank in range(WORLD):
        entries = [entry(seq) for seq in range(1, 9)]
        if rank != 2:
            entries.append(pending(9))
        made[rank] = dump(entries, WORLD)
    return made


def blame(folder: Path, files: Files) -> tuple[str, tuple[int, ...]]:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    found = diagnose(load_trace([folder]))
    return found.verdict.value, found.culprits


def each(wrap: Callable[[int, dict[str, Any]], Any], name: str = "_dump_{}.json") -> Files:
    return {name.format(r): json.dumps(wrap(r, d)).encode() for r, d in documents().items()}


def renamed(node: Any, names: dict[str, str]) -> Any:
    if isinstance(node, dict):
        return {names.get(key, key): renamed(value, names) for key, value in node.items()}
    return [renamed(item, names) for item in node] if isinstance(node, list) else node


def changed(**fields: Callable[[Any], Any]) -> Files:
    """Every entry with some fields rewritten."""

    def rewrite(_: int, document: dict[str, Any]) -> dict[str, Any]:
        for item in document["entries"]:
            for name, change in fields.items():
                item[name] = change(item[name])
        return document

    return each(rewrite)


def as_text(_: int, document: dict[str, Any]) -> dict[str, Any]:
    for item in document["entries"]:
        for name, value in item.items():
            if isinstance(value, (int, float)) or value is None:
                item[name] = str(value)
    return document


def with_ranks(value: Any) -> Files:
    def rewrite(_: int, document: dict[str, Any]) -> dict[str, Any]:
        document["pg_config"]["0"]["ranks"] = value
        return document

    return each(rewrite)


DIALECTS: dict[str, Files] = {
    "below data": each(lambda r, d: {"rank": r, "data": d}, "node{}-trace.json"),
    "below an unknown key": each(lambda r, d: {"rank": r, "result": {"payload": d}}),
    "a list": {"all.json": json.dumps([{"rank": r, **d} for r, d in documents().items()]).encode()},
    "a wrapped list": {
        "all.json": json.dumps(
            {"job": "x", "ranks": [{"rank": r, "dump": d} for r, d in documents().items()]}
        ).encode()
    },
    "a map": {
        "all.json": json.dumps({"dumps": {f"rank{r}": d for r, d in documents().items()}}).encode()
    },
    "one a line": {
        "all.jsonl": b"\n".join(
            json.dumps({"rank": r, **d}).encode() for r, d in documents().items()
        )
    },
    "a bare list": each(lambda _, d: renamed(d["entries"], {"collective_seq_id": "seq_id"})),
    "numbers as text": each(as_text),
    "sizes as text": changed(input_sizes=str, output_sizes=str, state=str.upper),
    "ranks as text": with_ranks(["0", "1", "2", "3"]),
    "process ids in names": {
        f"fr_rank_{r}_pid_{4000 + r}.pkl": pickle.dumps(d) for r, d in documents().items()
    },
    "dates in names": {
        f"ip-10-0-0-9.internal_rank{r}_1755000000.pkl": pickle.dumps(d)
        for r, d in documents().items()
    },
    "the world in names": {f"fr_rank{r}_of_4": pickle.dumps(d) for r, d in documents().items()},
    "attempts": {
        **{f"attempt_0/trace_{r}": pickle.dumps(dump([pending(1)], 4)) for r in range(4)},
        **{f"attempt_1/trace_{r}": pickle.dumps(d) for r, d in documents().items()},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", DIALECTS)
def test_every_spelling_gives_the_same_answer(tmp_path: Path, name: str) -> None:
    assert blame(tmp_path, DIALECTS[name]) == ("missing_rank", (2,))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b'{"collectives_list": [{"kind": "AR", "num": 1}]}', "its keys are collectives_list"),
        (b'[{"kind": "AR", "num": 1}]', "a list of objects with kind, num"),
        (b'{"entries": [{"kind": "AR", "num": 1}]}', "they have kind, num"),
        (b'{"entries": [{"profiling_name": "all_reduce", "num": 1}]}', "no sequence number"),
        (b"rank,op,seq\n0,all_reduce,1\n", "a table with the columns rank, op, seq"),
        (b"PAR1" + bytes(range(200)), "binary data of an unknown kind"),
    ],
)
def test_unusable_dialect_is_reported(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "rank_0.json"
    path.write_bytes(content)
    with pytest.raises(NothingReadable) as failure:
        load_trace([path])
    (warning,) = failure.value.warnings
    assert warning.startswith(f"{path}: ")
    assert problem in warning


def test_dialect_without_states_proves_nothing_unfinished(tmp_path: Path) -> None:
    for rank in range(2):
        document = without_states(dump([entry(1), entry(2)]))
        del document["pg_status"]
        (tmp_path / f"rank_{rank}.json").write_text(json.dumps(document))
    trace = load_trace([tmp_path])
    assert (trace.records["flags"] & int(Flag.UNOBSERVED)).all()
    assert diagnose(trace).verdict.value != "stuck_collective"


def without_states(document: dict[str, Any]) -> dict[str, Any]:
    for item in document["entries"]:
        for name in ("state", "retired", "time_discovered_completed_ns"):
            item.pop(name, None)
    return document


def test_counters_decide_entries_without_a_state(tmp_path: Path) -> None:
    """Ranks 0 and 2 exchange; rank 1 has skipped its part, and all have issued what follows."""
    for rank in range(3):
        rows = [entry(1, record_id=0)]
        rows += [] if rank == 1 else [
            pending(0, f"nccl:{name}", record_id=k + 1, p2p_seq_id=2, is_p2p=True, pg_id=1,
                    process_group=("1", "ring"), op_id=k + 3)
            for k, name in enumerate(["send 0->1", "recv 0<-1"] if rank == 0 else ["send 2->0"])
        ]  # fmt: skip
        rows.append(pending(2, record_id=len(rows)))
        document = dump(rows, 3)
        if rank == 2:
            document["entries"][1]["profiling_name"] = "nccl:send 2->1"
        (tmp_path / f"rank_{rank}.json").write_text(json.dumps(without_states(document)))
    trace = load_trace([tmp_path])
    told = trace.records[trace.records["collective_seq"] > 0]
    assert told["state"].tolist() == [State.COMPLETED, State.SCHEDULED] * 3
    assert not (told["flags"] & int(Flag.UNOBSERVED)).any()
    assert diagnose(trace).confidence.value != "certain"


EXPORTED = (
    "[rank0]:[E816 12:10:01.1 ProcessGroupGloo.cpp:144] [Rank 0]: Rank 3 failed to pass "
    "monitoredBarrier in 30000 ms"
)


@pytest.mark.parametrize(
    "content",
    [
        json.dumps([{"textPayload": EXPORTED, "severity": "ERROR"}] * 3, indent=1),
        "\n".join([json.dumps({"resource": {"type": "k8s"}, "textPayload": EXPORTED})] * 3),
        "\n".join([json.dumps({"time": 1, "jsonPayload": {"message": EXPORTED}})] * 3),
        json.dumps([{"labels": {}, "line": EXPORTED}]),
    ],
)
def test_logs_exported_as_json(tmp_path: Path, content: str) -> None:
    assert blame(tmp_path, {"logs.json": content.encode()}) == ("missing_rank", (3,))
