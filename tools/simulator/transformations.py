"""Transformations of a job's dumps that must not change the verdict.

What a rank is called, how a group is named, which clock a host has, how long the job has run or
which format a collector writes says nothing about who is at fault.
"""

from __future__ import annotations

import ast
import copy
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from hangscope.trace.units import SECOND_NS
from tools.simulator.native_dumps import Document

_TIMES = ("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns")
_COUNTERS = ("collective_seq_id", "p2p_seq_id", "seq_id", "op_id")
_PAIR = re.compile(r"(?P<op>.*:(?:send|recv) )(?P<own>\d+)(?P<arrow>->|<-)(?P<peer>\d+|\?)$")


@dataclass(frozen=True)
class Dumps:
    """The dumps of a job. ``new_rank``: what each rank of the original job is called here."""

    of_rank: dict[int, Document]
    taken_ns: dict[int, int]
    new_rank: tuple[int, ...]
    as_json: bool


Transformation = Callable[[Dumps, random.Random], Dumps | None]
"""None if it does not apply, as when the format has no such field."""


def entries(document: Document) -> list[Any]:
    return document if isinstance(document, list) else list(document["entries"])


def configs(document: Document) -> dict[str, dict[str, Any]]:
    """The groups by their names; none in the oldest dumps."""
    return {} if isinstance(document, list) else document["pg_config"]


def other_ranks(dumps: Dumps, rng: random.Random) -> Dumps | None:
    """Ranks numbered at random: stages, shards and leaders at other places of their groups."""
    new = list(range(len(dumps.new_rank)))
    rng.shuffle(new)
    result = {}
    for rank, document in copy.deepcopy(dumps.of_rank).items():
        members = {n: ast.literal_eval(g["ranks"]) for n, g in configs(document).items()}
        for name, group in configs(document).items():
            group["ranks"] = str(sorted(new[r] for r in members[name]))
        for entry in entries(document):
            pair = _PAIR.match(entry["profiling_name"])
            if pair is None:
                continue
            group_ranks = members.get(entry["process_group"][0])
            if group_ranks is None:
                return None  # the oldest dumps do not list members
            places = {
                str(i): str(sorted(new[r] for r in group_ranks).index(new[r_old]))
                for i, r_old in enumerate(group_ranks)
            }
            peer = places.get(pair["peer"], pair["peer"])
            entry["profiling_name"] = f"{pair['op']}{places[pair['own']]}{pair['arrow']}{peer}"
        result[new[rank]] = document
    taken = {new[rank]: moment for rank, moment in dumps.taken_ns.items()}
    return replace(dumps, of_rank=result, taken_ns=taken, new_rank=tuple(new))


def other_clocks(dumps: Dumps, rng: random.Random) -> Dumps:
    """A quarter of the hosts have clocks that are wrong by up to 40 seconds."""
    changed, taken = copy.deepcopy(dumps.of_rank), dict(dumps.taken_ns)
    for rank in rng.sample(sorted(changed), max(1, len(changed) // 4)):
        by_ns = int(rng.choice((-3.0, -0.4, 0.4, 3.0, 40.0)) * SECOND_NS)
        for entry in entries(changed[rank]):
            entry.update({k: entry[k] + by_ns for k in _TIMES if entry.get(k)})
        taken[rank] += by_ns
    return replace(dumps, of_rank=changed, taken_ns=taken)


def shorter_history(dumps: Dumps, rng: random.Random) -> Dumps:
    """Up to two thirds of the entries are overwritten, at most up to the first unfinished one."""
    share = rng.uniform(0.2, 0.7)
    changed: dict[int, Document] = {}
    for rank, document in dumps.of_rank.items():
        finished = takewhile(lambda entry: entry["state"] == "completed", entries(document))
        gone = min(int(len(entries(document)) * share), sum(1 for _ in finished))
        left = entries(document)[gone:]
        changed[rank] = left if isinstance(document, list) else {**document, "entries": left}
    return replace(dumps, of_rank=changed)


def longer_run(dumps: Dumps, rng: random.Random) -> Dumps | None:
    """Shorter history of a job that has run for long: all counters are high."""
    short = shorter_history(dumps, rng)
    by = rng.randint(100, 100_000)
    changed = copy.deepcopy(short.of_rank)
    for document in changed.values():
        if isinstance(document, list):
            return None
        for entry in document["entries"]:
            entry.update({k: entry[k] + by for k in _COUNTERS if entry.get(k)})
            entry["record_id"] += by
        for status in document.get("pg_status", {}).values():
            status.update({k: v + by for k, v in status.items() if v > 0})
    return replace(short, of_rank=changed)


def other_group_names(dumps: Dumps, rng: random.Random) -> Dumps | None:
    """Names of groups as hashes, as torch names groups that not all ranks create."""
    names = sorted({n for d in dumps.of_rank.values() for n in configs(d)} - {"0"})
    if not names:
        return None
    new = {n: f"{rng.getrandbits(160):040x}" for n in names} | {"0": "0"}
    changed = copy.deepcopy(dumps.of_rank)
    for document in changed.values():
        assert not isinstance(document, list)
        document["pg_config"] = {
            new[n]: {**group, "name": new[n]} for n, group in document["pg_config"].items()
        }
        for entry in document["entries"]:
            name, description = entry["process_group"]
            entry["process_group"] = type(entry["process_group"])((new[name], description))
    return replace(dumps, of_rank=changed)


def without_descriptions(dumps: Dumps, _: random.Random) -> Dumps | None:
    """Groups that their creator has not described."""
    changed = copy.deepcopy(dumps.of_rank)
    for document in changed.values():
        if isinstance(document, list):
            return None
        for group in document["pg_config"].values():
            group["desc"] = _undescribed(group["desc"])
        for entry in document["entries"]:
            name, description = entry["process_group"]
            entry["process_group"] = type(entry["process_group"])((name, _undescribed(description)))
    return replace(dumps, of_rank=changed)


def _undescribed(description: str) -> str:
    return description if description == "default_pg" else "undefined"


def without_frames(dumps: Dumps, _: random.Random) -> Dumps:
    """The collector left the stacks out."""
    return _without_field(dumps, "frames")


def without_status(dumps: Dumps, _: random.Random) -> Dumps:
    """The collector left ``pg_status`` out."""
    changed: dict[int, Document] = {
        rank: d if isinstance(d, list) else {k: v for k, v in d.items() if k != "pg_status"}
        for rank, d in dumps.of_rank.items()
    }
    return replace(dumps, of_rank=changed)


def other_format(dumps: Dumps, _: random.Random) -> Dumps | None:
    """The JSON of the debug server instead of a pickle, or the other way round."""
    if any(isinstance(d, list) for d in dumps.of_rank.values()):
        return None
    return replace(_without_field(dumps, "frames"), as_json=not dumps.as_json)


def other_sizes(dumps: Dumps, _: random.Random) -> Dumps:
    """Everything is twice as long."""
    changed = copy.deepcopy(dumps.of_rank)
    for document in changed.values():
        for entry in entries(document):
            for key in ("input_sizes", "output_sizes"):
                entry[key] = [[2 * size[0], *size[1:]] if size else size for size in entry[key]]
    return replace(dumps, of_rank=changed)


def _without_field(dumps: Dumps, name: str) -> Dumps:
    changed = copy.deepcopy(dumps.of_rank)
    for document in changed.values():
        for entry in entries(document):
            entry.pop(name, None)
    return replace(dumps, of_rank=changed)


TRANSFORMATIONS: tuple[Transformation, ...] = (
    other_ranks,
    other_clocks,
    shorter_history,
    longer_run,
    other_group_names,
    without_descriptions,
    without_frames,
    without_status,
    other_format,
    other_sizes,
)
