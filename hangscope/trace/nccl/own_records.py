"""Records of what NCCL alone has told: graph replays, and communicators that torch does not know.

They are in groups of their own, one per communicator, in which only such operations are counted.
Such a group is believed only if the plugin told of all its members: else what a member has issued
is not known.

The device's counts say nothing about a replay. NCCL tells of it from the graph itself, when the
device gets there: so it is over when the next one begins, and cannot be over before every member
has reached it. Otherwise only proxies know.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hangscope.ring.device_layout import OperationFlag
from hangscope.ring.device_reader import DeviceRing
from hangscope.trace import clean
from hangscope.trace.model import (
    MEMBER_DTYPE,
    NONE,
    RECORD_DTYPE,
    Flag,
    Group,
    Records,
    Signature,
    State,
    flagged,
)
from hangscope.trace.nccl.functions import signature_of
from hangscope.trace.nccl.progress import Progress, enter_progress, progress_of

Ints = npt.NDArray[np.int64]

REPLAYS = "replayed by CUDA graphs"


@dataclass(frozen=True, slots=True)
class Own:
    """One member's side of a communicator: what only NCCL told of."""

    rank: int
    member: int
    """Its rank in the communicator."""
    size: int
    name: str
    operations: Records
    progress: Progress
    """Of ``operations``."""
    issued: int
    """Collectives ever issued, those that the device ring no longer holds included."""
    sent: int
    """Sends and receives, likewise."""
    created_ns: int


@dataclass(frozen=True, slots=True)
class OwnTables:
    """What is to be added to a trace."""

    groups: tuple[Group, ...]
    records: Records
    """``group`` and ``signature`` index these tables."""
    members: Records
    signatures: tuple[Signature, ...]


def own_side(rank: int, ring: DeviceRing, index: int, rows: Ints, *, torchs: bool) -> Own:
    """One member's side of a communicator.

    Parameters
    ----------
    index:
        Of the communicator in the device ring.
    rows:
        Per operation of the ring the index of its record, or -1.
    torchs:
        Whether torch made the communicator: then only replays are missing in the records.
    """
    communicator = ring.communicators[index]
    mine = ring.operations["communicator"] == index + 1
    replayed = flagged(ring.operations["flags"], OperationFlag.REPLAYED)
    mine &= replayed if torchs else rows < 0
    progress = progress_of(ring)
    issued = int(communicator["replays"]) + (0 if torchs else int(communicator["collectives"]))
    return Own(
        rank=rank,
        member=int(communicator["rank"]),
        size=int(communicator["ranks"]),
        name=clean.name(bytes(communicator["name"]).decode("utf-8", "replace")),
        operations=ring.operations[mine],
        progress=Progress(
            progress.begun_ns[mine],
            progress.ended_ns[mine],
            progress.open[mine],
            progress.uncertain[mine],
        ),
        issued=issued,
        sent=0 if torchs else int(communicator["pairs"]),
        created_ns=int(communicator["created_ns"]),
    )


def tables_of(sides: Mapping[int, Sequence[Own]], labels: Mapping[int, str]) -> OwnTables:
    """The tables of all communicators whose members are all known.

    Parameters
    ----------
    sides:
        Per hash of a communicator what each member's process told.
    labels:
        Per hash of a communicator of torch's the label of its group.
    """
    groups: list[Group] = []
    signatures: dict[Signature, int] = {}
    records: list[Records] = []
    members: list[Records] = []
    for hash_, own in sorted(sides.items(), key=lambda item: min(s.created_ns for s in item[1])):
        ranks = _members(own)
        if not ranks or not any(side.issued or side.sent for side in own):
            continue
        least = min(side.issued for side in own)
        number = len(groups)
        groups.append(_group(hash_, own[0].name, ranks, labels.get(hash_)))
        for side in own:
            records.append(_records(side, ranks, number, least, signatures))
            members.append(_counters(side, number))
    return OwnTables(
        tuple(groups),
        np.concatenate([*records, np.zeros(0, RECORD_DTYPE)]),
        np.concatenate([*members, np.zeros(0, MEMBER_DTYPE)]),
        tuple(signatures),
    )


def _members(sides: Sequence[Own]) -> tuple[int, ...]:
    """The global ranks in the communicator's order; empty unless each is known exactly once."""
    of = {side.member: side.rank for side in sides}
    size = sides[0].size
    whole = size > 1 and len(sides) == len(of) == size and set(of) == set(range(size))
    return tuple(of[member] for member in range(size)) if whole else ()


def _group(hash_: int, name: str, ranks: tuple[int, ...], label: str | None) -> Group:
    if label is not None:
        desc = f"{label}, {REPLAYS}"
    else:
        desc = f"NCCL communicator {name or f'{hash_:x}'}"
    return Group(name=f"nccl:{hash_:x}", desc=desc, ranks=ranks, backend="nccl", size=len(ranks))


def _records(
    side: Own, ranks: tuple[int, ...], group: int, least: int, signatures: dict[Signature, int]
) -> Records:
    operations = side.operations
    rows = np.zeros(len(operations), RECORD_DTYPE)
    pair = flagged(operations["flags"], OperationFlag.P2P)
    rows["rank"], rows["group"], rows["stack"] = side.rank, group, NONE
    rows["signature"] = list(_numbered(operations, signatures))
    rows["collective_seq"] = side.issued - _still_to_come(~pair)
    rows["p2p_seq"] = side.sent - _still_to_come(pair)
    rows["op_id"] = rows["collective_seq"] + rows["p2p_seq"]
    rows["created_ns"] = operations["enqueued_ns"]
    rows["peer"] = rows["root"] = NONE
    other = _global(operations["root_or_peer"], ranks)
    rows["peer"][pair], rows["root"][~pair] = other[pair], other[~pair]
    rooted = np.isin(operations["func"], [b"Broadcast", b"Reduce", b"Gather", b"Scatter"])
    rows["root"][~rooted] = NONE
    rows["flags"] = int(Flag.FROM_NCCL) | np.where(pair, int(Flag.P2P | Flag.ASYNC), 0)
    _enter_progress(rows, side, least)
    return rows


def _enter_progress(rows: Records, side: Own, least: int) -> None:
    """The states, by the rules at the top of this file.

    ``least``: what every member has issued.
    """
    replayed = flagged(side.operations["flags"], OperationFlag.REPLAYED)
    found = side.progress
    over = replayed & (rows["collective_seq"] < side.issued)
    waiting = replayed & (rows["collective_seq"] > least)
    rows["flags"] |= np.uint16(Flag.UNOBSERVED)
    ended_ns = np.where(waiting, 0, found.ended_ns)
    open_ = (found.open | waiting) & ~over
    enter_progress(
        rows, np.arange(len(rows)), Progress(found.begun_ns, ended_ns, open_, found.uncertain)
    )
    rows["state"][over] = State.COMPLETED
    rows["flags"][over] &= np.uint16(0xFFFF & ~int(Flag.UNOBSERVED))


def _still_to_come(kind: npt.NDArray[np.bool_]) -> Ints:
    """Per operation, how many of a kind come after it."""
    total = int(np.count_nonzero(kind))
    found: Ints = total - np.cumsum(kind)
    return found


def _global(places: npt.NDArray[np.int32], ranks: tuple[int, ...]) -> Ints:
    known = (places >= 0) & (places < len(ranks))
    table = np.array([*ranks, NONE], np.int64)
    return table[np.where(known, places, len(ranks))]


def _numbered(operations: Records, signatures: dict[Signature, int]) -> Iterator[int]:
    for function, kind, count in zip(
        operations["func"].tolist(),
        operations["datatype"].tolist(),
        operations["count"].tolist(),
        strict=True,
    ):
        signature = signature_of(function, kind, min(count, np.iinfo(np.int64).max))
        yield signatures.setdefault(signature, len(signatures))


def _counters(side: Own, group: int) -> Records:
    row = np.zeros(1, MEMBER_DTYPE)
    row["rank"], row["group"] = side.rank, group
    row["enqueued"], row["p2p_enqueued"] = side.issued, side.sent
    row["started"] = row["completed"] = NONE
    if len(side.operations):
        row["enqueued_ns"] = side.operations["enqueued_ns"][-1]
    return row
