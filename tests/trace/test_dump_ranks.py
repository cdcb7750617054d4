"""Whose dump it is where the number in its name is not the rank."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hangscope.diagnosis import diagnose
from hangscope.trace.load import load_trace
from hangscope.trace.model import Trace

from .dumps import BASE_NS, dump, entry, pending, write

SECOND = 10**9
STEPS = 8
SHARDS = ((0, 1), (2, 3))
REPLICAS = ((0, 2), (1, 3))


def _document(rank: int, late: int, *, groups: tuple[str, ...]) -> dict[str, Any]:
    """A step is a collective in each of the groups; rank ``late`` does not come to the last."""
    members = {
        "world": (0, 1, 2, 3),
        "shard": next(s for s in SHARDS if rank in s),
        "replica": next(r for r in REPLICAS if rank in r),
    }
    rows: list[dict[str, Any]] = []
    for step in range(1, STEPS + 1):
        for number, name in enumerate(groups):
            at = len(rows)
            row = {
                "record_id": at,
                "process_group": (name + str(members[name][0]), name),
                "pg_id": number,
                "time_created_ns": BASE_NS + at * SECOND + rank,
            }
            if step < STEPS or late not in members[name]:
                rows.append(entry(step, **row))
            elif rank != late:
                rows.append(pending(step, **row))
    config = {
        name + str(members[name][0]): {
            "name": name + str(members[name][0]),
            "desc": "default_pg" if name == "world" else name,
            "ranks": str(list(members[name])),
        }
        for name in ("world", *groups)
    }
    return dump(rows, pg_config=config, pg_status={})


def _by_host(folder: Path, late: int, *, groups: tuple[str, ...]) -> Trace:
    """Two hosts of two ranks; the files are called after the rank within the host."""
    for rank in range(4):
        document = _document(rank, late, groups=groups)
        path = write(folder / f"host{rank // 2}", f"trace_{rank % 2}.json", document)
        os.utime(path, ns=(BASE_NS + 700 * SECOND,) * 2)
    return load_trace([folder])


@pytest.mark.parametrize("late", [0, 3])
def test_dump_is_of_the_rank_common_to_all_groups_it_used(tmp_path: Path, late: int) -> None:
    trace = _by_host(tmp_path, late, groups=("shard", "replica"))
    assert sorted(trace.ranks) == [0, 1, 2, 3]
    found = diagnose(trace)
    assert (found.verdict.value, found.culprits) == ("missing_rank", (late,))


def test_dump_that_several_ranks_may_have_written_is_of_unknown_rank(tmp_path: Path) -> None:
    trace = _by_host(tmp_path, 3, groups=("shard",))
    assert sorted(trace.ranks) == [0, 1]
    assert len(trace.unread) == 2
    assert all("uses groups without rank" in unread.why for unread in trace.unread)
    assert diagnose(trace).culprits == ()


def test_a_group_that_is_listed_but_never_used_contradicts_no_name(tmp_path: Path) -> None:
    """Collectors list the groups of all ranks in every file."""
    for rank in range(4):
        document = _document(rank, 3, groups=("replica",))
        document["pg_config"]["shard0"] = {"name": "shard0", "desc": "", "ranks": "[0, 1]"}
        path = write(tmp_path, f"trace_{rank}.json", document)
        os.utime(path, ns=(BASE_NS + 700 * SECOND,) * 2)
    trace = load_trace([tmp_path])
    assert sorted(trace.ranks) == [0, 1, 2, 3]
    assert not trace.unread
