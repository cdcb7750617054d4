"""Records of what NCCL alone has told: graph replays, and communicators that torch does not know.

They are in groups of their own, in which only such operations are counted: one for each member of a
communicator, as each process tells of itself alone. `communicators` makes one group of them.

The device's counts say nothing about a replay. NCCL tells of it from the graph itself, when the
device gets there: so it is over when the next one begins, and cannot be over before every member
has reached it. Otherwise only proxies know.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hangscope.ring.device_layout import OperationFlag
from hangscope.ring.device_reader import DeviceRing
from hangscope.trace import clean
from hangscope.trace.model import (
    MEMBER_DTYPE,
    NCCL_GROUP,
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
from hangscope.trace.nccl.progress import Progress, enter_progress, mark_observed, progress_of

Ints = npt.NDArray[np.int64]

REPLAYS = "replayed by CUDA graphs"


@dataclass(frozen=True, slots=True)
class Own:
    """One member's side of a communicator: what only NCCL told of."""

    rank: int
    group: Group
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


def own_side(rank: int, ring: DeviceRing, index: int, rows: Ints, label: str | None) -> Own:
    """One member's side of a communicator.

    Parameters
    ----------
    index:
        Of the communicator in the device ring.
    rows:
        Per operation of the ring the index of its record, or -1.
    label:
        That of its process group, if torch made the communicator: then only replays are missing in
        the records.
    """
    communicator = ring.communicators[index]
    torchs = label is not None
    mine = ring.operations["communicator"] == index + 1
    replayed = flagged(ring.operations["flags"], OperationFlag.REPLAYED)
    mine &= replayed if torchs else rows < 0
    progress = progress_of(ring)
    issued = int(communicator["replays"]) + (0 if torchs else int(communicator["collectives"]))
    return Own(
        rank=rank,
        group=_group(rank, communicator, label),
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


def tables_of(sides: Sequence[Own]) -> OwnTables:
    """The tables of all that has issued anything, by time of creation."""
    signatures: dict[Signature, int] = {}
    records: list[Records] = []
    members: list[Records] = []
    used = sorted((s for s in sides if s.issued or s.sent), key=lambda side: side.created_ns)
    for number, side in enumerate(used):
        records.append(_records(side, number, signatures))
        members.append(_counters(side, number))
    return OwnTables(
        tuple(side.group for side in used),
        np.concatenate([*records, np.zeros(0, RECORD_DTYPE)]),
        np.concatenate([*members, np.zeros(0, MEMBER_DTYPE)]),
        tuple(signatures),
    )


def _group(rank: int, communicator: Records, label: str | None) -> Group:
    hash_ = int(communicator["hash"])
    if label is not None:
        desc = f"{label}, {REPLAYS}"
    else:
        name = clean.name(bytes(communicator["name"]).decode("utf-8", "replace"))
        desc = f"NCCL communicator {name or f'{hash_:x}'}"
    return Group(
        name=f"{NCCL_GROUP}{hash_:x}",
        desc=desc,
        ranks=(rank,),
        backend="nccl",
        size=int(communicator["ranks"]),
        place=int(communicator["rank"]),
    )


def _records(side: Own, group: int, signatures: dict[Signature, int]) -> Records:
    """Roots and peers are numbers in the communicator, as long as its members are not all known."""
    operations = side.operations
    rows = np.zeros(len(operations), RECORD_DTYPE)
    pair = flagged(operations["flags"], OperationFlag.P2P)
    rows["rank"], rows["group"], rows["stack"] = side.rank, group, NONE
    rows["signature"] = list(_numbered(operations, signatures))
    rows["collective_seq"] = side.issued - _still_to_come(~pair)
    rows["p2p_seq"] = side.sent - _still_to_come(pair)
    rows["op_id"] = rows["collective_seq"] + rows["p2p_seq"]
    rows["created_ns"] = operations["enqueued_ns"]
    rooted = np.isin(operations["func"], [b"Broadcast", b"Reduce", b"Gather", b"Scatter"])
    rows["peer"] = np.where(pair, operations["root_or_peer"], NONE)
    rows["root"] = np.where(rooted, operations["root_or_peer"], NONE)
    rows["flags"] = int(Flag.FROM_NCCL) | np.where(pair, int(Flag.P2P | Flag.ASYNC), 0)
    _enter_progress(rows, side)
    return rows


def _enter_progress(rows: Records, side: Own) -> None:
    """The states: a replay is over when the next one begins."""
    replayed = flagged(side.operations["flags"], OperationFlag.REPLAYED)
    over = replayed & (rows["collective_seq"] < side.issued)
    rows["flags"] |= np.uint16(Flag.UNOBSERVED)
    enter_progress(
        rows, np.arange(len(rows)), replace(side.progress, open=side.progress.open & ~over)
    )
    rows["state"][over] = State.COMPLETED
    mark_observed(rows, over)


def _still_to_come(kind: npt.NDArray[np.bool_]) -> Ints:
    """Per operation, how many of a kind come after it."""
    total = int(np.count_nonzero(kind))
    found: Ints = total - np.cumsum(kind)
    return found


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
