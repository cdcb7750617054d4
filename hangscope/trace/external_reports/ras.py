"""Reads NCCL's RAS report as JSON (``ncclras -f json``, NCCL 2.28 and later).

RAS counts what each rank of each communicator has launched. A rank that has launched more than
another waits for it. Whether operations that all have launched are finished is not reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hangscope.trace import clean, formats, operations
from hangscope.trace.files.sniff import Unreadable
from hangscope.trace.model import (
    MAX_RANK,
    MEMBER_DTYPE,
    NONE,
    RECORD_DTYPE,
    Claim,
    Flag,
    Fragment,
    Group,
    RankFacts,
    Records,
    Signature,
    Source,
    State,
)

_PAIRS = ("send", "recv", "sendrecv", "send_recv")
_MOST = 1 << 56
_UNHANDLED_CUDA = 1

Process = tuple[str, int, int]
"""(host, pid, device)."""


def is_ras(document: Any) -> bool:
    """Whether a document is such a report."""
    return (
        isinstance(document, Mapping)
        and "nccl_version" in document
        and isinstance(document.get("communicators"), list)
    )


class _Communicator:
    """One communicator: its members, and what each has launched."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.name = clean.as_name(document.get("hash"), "?")
        self.size = clean.as_int(document.get("size"), 0, low=0, high=MAX_RANK + 1)
        self.process: dict[int, Process] = {}
        self.counts: dict[int, dict[str, int]] = {}
        self.error: dict[int, int] = {}
        self.gone: dict[int, bool] = {}
        """Members that sent no data -> whether RAS considers them dead."""
        for entry in _objects(document.get("ranks")):
            rank = self._member(entry)
            if rank == NONE:
                continue
            counts = entry.get("collective_counts")
            if isinstance(counts, Mapping):
                self.counts[rank] = {
                    operations.canonical(clean.as_name(name)): clean.as_int(n, 0, low=0, high=_MOST)
                    for name, n in list(counts.items())[:64]
                }
            status = entry.get("status")
            code = status.get("async_error") if isinstance(status, Mapping) else 0
            self.error[rank] = clean.as_int(code, 0)
        for entry in _objects(document.get("missing_ranks")):
            status = entry.get("status")
            dead = status.get("considered_dead") if isinstance(status, Mapping) else False
            rank = self._member(entry)
            if rank != NONE:
                self.gone[rank] = clean.as_bool(dead)
        self.place = {process: rank for rank, process in self.process.items()}
        self.launched = {rank: _collectives(counts) for rank, counts in self.counts.items()}
        """Collectives that each member has launched; sends and receives have no common order."""
        self.least = min(self.launched.values(), default=0)
        self.parted = self._parted()

    def _member(self, entry: Mapping[str, Any]) -> int:
        rank = clean.as_int(entry.get("rank"), NONE, low=0, high=MAX_RANK)
        if rank != NONE:
            self.process[rank] = (
                clean.as_name(entry.get("host")),
                clean.as_int(entry.get("pid"), 0, low=0, high=(1 << 31) - 1),
                clean.as_int(entry.get("cuda_dev"), 0, low=0, high=(1 << 31) - 1),
            )
        return rank

    def _parted(self) -> str:
        """The operation that members have launched in different numbers, if there is just one."""
        names = {op for counts in self.counts.values() for op in counts if op not in _PAIRS}
        parted = [op for op in names if len({c.get(op, 0) for c in self.counts.values()}) > 1]
        return parted[0] if len(parted) == 1 else ""


def _collectives(counts: Mapping[str, int]) -> int:
    return sum(n for op, n in counts.items() if op not in _PAIRS)


def read_ras(document: Mapping[str, Any], path: str) -> list[Fragment]:
    """One fragment per rank of the largest communicator, which represents the job.

    Raises
    ------
    Unreadable
        If no communicator lists a rank.
    """
    found = [_Communicator(entry) for entry in _objects(document["communicators"])]
    found = [c for c in found if c.process]
    if not found:
        raise Unreadable("a report of NCCL's RAS that lists no communicator")
    world = max(found, key=lambda c: (c.size, len(c.process)))
    rank_of = {process: rank for rank, process in world.process.items() if rank >= 0}
    groups = tuple(_group(c, rank_of) for c in found)
    notes = (
        ["several communicators hold ranks that the largest does not; those are ignored"]
        if any(set(c.process.values()) - set(rank_of) for c in found)
        else []
    )
    fragments = [
        _fragment(rank, process, found, groups, path, world.size, notes if not i else [])
        for i, (process, rank) in enumerate(sorted(rank_of.items(), key=lambda item: item[1]))
        if rank in world.counts
    ]
    claims = tuple(_claims(found, rank_of))
    rest = Fragment(
        source=Source(path=path, format=formats.RAS),
        facts=RankFacts(rank=NONE, world_size=world.size or None),
        groups=groups,
        claims=claims,
    )
    return [*fragments, rest]


def _group(found: _Communicator, rank_of: Mapping[Process, int]) -> Group:
    members = tuple(rank_of.get(found.process[r], NONE) for r in sorted(found.process))
    whole = NONE not in members and len(members) == found.size
    return Group(
        name=found.name,
        desc=f"communicator of {found.size}",
        ranks=members if whole else (),
        backend="nccl",
        size=found.size or None,
    )


def _fragment(
    rank: int,
    process: Process,
    found: Sequence[_Communicator],
    groups: tuple[Group, ...],
    path: str,
    world: int,
    notes: list[str],
) -> Fragment:
    host, pid, device = process
    rows: list[tuple[int, int, int, int, str]] = []
    for index, communicator in enumerate(found):
        own = communicator.place.get(process, NONE)
        if own not in communicator.launched or not groups[index].ranks:
            continue
        launched, least = communicator.launched[own], communicator.least
        rows.append((index, launched, least, launched > least, communicator.parted))
    ahead = [row for row in rows if row[3]]
    members = np.zeros(len(rows), MEMBER_DTYPE)
    for row, (index, launched, least, _, _) in zip(members, rows, strict=True):
        row["rank"], row["group"] = rank, index
        row["enqueued"], row["completed"] = launched, least
        row["started"] = row["p2p_enqueued"] = NONE
    signatures: dict[Signature, int] = {}
    records = _records(rank, ahead or rows, signatures)
    return Fragment(
        source=Source(path=path, format=formats.RAS, rank=rank, records=len(records)),
        facts=RankFacts(
            rank=rank,
            host=host or None,
            pid=pid or None,
            local_rank=device,
            world_size=world or None,
        ),
        records=records,
        members=members,
        groups=groups,
        signatures=tuple(signatures),
        warnings=tuple(notes),
    )


def _records(
    rank: int, rows: Sequence[tuple[int, int, int, int, str]], signatures: dict[Signature, int]
) -> Records:
    """What the rank waits in; if it is not ahead, its last operation, whose state is unknown."""
    records = np.zeros(len(rows), RECORD_DTYPE)
    for row, (index, launched, least, ahead, op) in zip(records, rows, strict=True):
        signature = Signature(op=op or "collective", raw=op or "collective", backend="nccl")
        row["rank"], row["group"] = rank, index
        row["collective_seq"] = least + 1 if ahead else launched
        row["op_id"] = row["record_id"] = row["stack"] = row["peer"] = row["root"] = NONE
        row["signature"] = signatures.setdefault(signature, len(signatures))
        row["state"] = State.SCHEDULED if ahead else State.COMPLETED
        row["flags"] = int(Flag.SYNTHETIC) | (0 if ahead else int(Flag.UNOBSERVED))
    return records


def _claims(found: Sequence[_Communicator], rank_of: Mapping[Process, int]) -> list[Claim]:
    claims = []
    for communicator in found:
        few = len(communicator.gone) * 2 < len(communicator.process)
        level = len(set(communicator.launched.values())) == 1
        for member, dead in communicator.gone.items():
            process = communicator.process[member]
            rank, (host, pid, device) = rank_of.get(process), process
            text = (
                f"RAS: rank {member} of communicator {communicator.name} (process {pid} on {host}, "
                f"device {device}) {'is considered dead' if dead else 'does not answer'}"
            )
            if level:
                text += f"; all others have launched the same {communicator.least} collectives"
            accused = () if rank is None else (rank,)
            sure = dead or (few and level)
            claims.append(Claim("unreachable", accused=accused, text=text, certain=sure))
        for member, code in communicator.error.items():
            if code in (0, 7):  # success, in progress
                continue
            rank = rank_of.get(communicator.process[member])
            own = code == _UNHANDLED_CUDA and rank is not None
            claims.append(
                Claim(
                    "device_error" if own else "network_error",
                    accused=(rank,) if own and rank is not None else (),
                    reporter=rank,
                    text=f"RAS: asynchronous error {code} on rank {member} of {communicator.name}",
                    certain=False,
                )
            )
    return claims


def _objects(value: Any) -> list[Mapping[str, Any]]:
    entries = value[: MAX_RANK + 1] if isinstance(value, list) else []
    return [entry for entry in entries if isinstance(entry, Mapping)]
