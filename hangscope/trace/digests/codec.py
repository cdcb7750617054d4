"""The bytes of a digest.

Format: zlib over a JSON header (4 bytes of length in front of it), and the tables of integers
described in `hangscope.trace.digests.columns`. Times are rounded to microseconds.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import orjson

from hangscope.trace import clean
from hangscope.trace.digests.columns import Ints, decode_table, encode_table
from hangscope.trace.digests.digest import Digest, Node, RankPart, joined
from hangscope.trace.digests.tables import (
    Tables,
    decode_group,
    decode_runs,
    decode_signature,
    encode_group,
    encode_signatures,
    runs_of,
)
from hangscope.trace.facts_codec import Decoder, Encoder, Template
from hangscope.trace.model import (
    MAX_RANK,
    MEMBER_DTYPE,
    NONE,
    RECORD_DTYPE,
    RankFacts,
    Records,
    Stack,
)

MAX_BYTES = 64 << 20
"""Of a digest, unpacked."""
_VERSION = 1
_US = 1000
_PER_RANK = (
    "rank", "node", "kind", "pid", "parent_pid", "local_rank", "oldest", "dropped", "times",
    "members", "records", "looks",
)  # fmt: skip
_MEMBER = tuple(name for name in MEMBER_DTYPE.names or () if name != "rank")
_RECORD = tuple(name for name in RECORD_DTYPE.names or () if name != "rank")


class _Used:
    """Numbers the entries of a table that are used, in order of first use."""

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}

    def of(self, index: int) -> int:
        return self.numbers.setdefault(index, len(self.numbers))

    def column(self, indexes: Ints) -> Ints:
        unique, place = np.unique(indexes, return_inverse=True)
        new = [NONE if one == NONE else self.of(one) for one in unique.tolist()]
        found: Ints = np.array(new, np.int64)[place]
        return found


def encode(digest: Digest) -> bytes:
    """The bytes of a digest."""
    tables, groups, signatures, stacks = digest.tables, _Used(), _Used(), _Used()
    kinds: dict[bytes, int] = {}
    rows: list[list[int]] = []
    all_times: list[int] = []
    parts = sorted(digest.parts, key=lambda part: part.facts.rank)
    for part in parts:
        times: list[int] = []
        facts, node = part.facts, digest.nodes[part.node]
        plain = _without_numbers(facts, node)
        said = Encoder(lambda stack: stacks.of(tables.stack(stack)), times).facts(plain)
        kind = kinds.setdefault(orjson.dumps(said), len(kinds))
        all_times += times
        rows.append(
            [facts.rank, part.node, kind, _or_none(facts.pid), _or_none(facts.parent_pid),
             _or_none(facts.local_rank), facts.oldest_record_id, part.dropped, len(times),
             len(part.members), len(part.records), part.looks]
        )  # fmt: skip
    per_rank = np.array(rows, np.int64).reshape(len(rows), len(_PER_RANK))
    members = joined([part.members for part in parts], MEMBER_DTYPE)
    records = joined([part.records for part in parts], RECORD_DTYPE)
    member_table = _table(members, _MEMBER, {"group": groups.column})
    record_table = _table(
        records,
        _RECORD,
        {"group": groups.column, "signature": signatures.column, "stack": stacks.column},
    )
    bodies = [
        encode_table(per_rank, np.ones(len(rows), np.int64)),
        encode_table(np.array(all_times, np.int64)[:, None] // _US, per_rank[:, 8]),
        encode_table(member_table, per_rank[:, 9]),
        encode_table(record_table, per_rank[:, 10]),
    ]
    frames: dict[tuple[Any, ...], int] = {}
    listed = [
        [frames.setdefault(tuple(frame), len(frames)) for frame in tables.stacks[index]]
        for index in stacks.numbers
    ]
    header = orjson.dumps(
        {
            "version": _VERSION,
            "timeout_s": digest.timeout_s,
            "nodes": [_encode_node(node) for node in digest.nodes],
            "kinds": [orjson.Fragment(kind) for kind in kinds],
            "groups": [encode_group(tables.groups[index]) for index in groups.numbers],
            "signatures": encode_signatures(tables.signatures[i] for i in signatures.numbers),
            "stacks": listed,
            "frames": list(frames),
            "ranks": len(rows),
            "sizes": [len(body) for body in bodies],
        },
        option=orjson.OPT_PASSTHROUGH_DATACLASS,
    )
    return zlib.compress(b"".join((struct.pack("<I", len(header)), header, *bodies)), 6)


def _without_numbers(facts: RankFacts, node: Node) -> RankFacts:
    return replace(
        facts,
        rank=0,
        host=None if facts.host == node.host else facts.host,
        machine="" if facts.machine == node.machine else facts.machine,
        node_rank=None if facts.node_rank == node.node_rank else facts.node_rank,
        pid=None,
        parent_pid=None,
        local_rank=None,
        oldest_record_id=0,
        dropped=0,
    )


def _table(
    rows: Records, columns: Sequence[str], renumbered: dict[str, Callable[[Ints], Ints]]
) -> Ints:
    table = np.empty((len(rows), len(columns)), np.int64)
    for at, name in enumerate(columns):
        column = np.ascontiguousarray(rows[name])
        column = column.view(np.int64) if column.dtype == np.uint64 else column.astype(np.int64)
        if name in renumbered:
            column = renumbered[name](column)
        elif name.endswith("_ns"):
            column = column // _US
        table[:, at] = column
    return table


def _or_none(value: int | None) -> int:
    return NONE if value is None else value


def _encode_node(node: Node) -> list[Any]:
    return [node.host, node.machine, node.node_rank, node.addresses, runs_of(node.ranks),
            node.number]  # fmt: skip


def decode(raw: bytes, tables: Tables) -> Digest:
    """A digest from another node; what it shares with others goes into ``tables``.

    Raises
    ------
    ValueError
        If it is damaged, made up or too large.
    """
    try:
        inflate = zlib.decompressobj()
        data = inflate.decompress(raw, MAX_BYTES)
        if inflate.unconsumed_tail or not inflate.eof:
            raise ValueError("too large, or cut off")
        (length,) = struct.unpack_from("<I", data)
        return _decoded(orjson.loads(data[4 : 4 + length]), data[4 + length :], tables)
    except (zlib.error, struct.error, KeyError, TypeError, IndexError, OverflowError) as error:
        raise ValueError(f"damaged: {error}") from None


def _decoded(header: dict[str, Any], data: bytes, tables: Tables) -> Digest:
    if header["version"] != _VERSION or not 0 <= header["ranks"] <= MAX_RANK + 1:
        raise ValueError("of another version, or no digest")
    bodies = list(_pieces(data, header["sizes"]))
    nodes = tuple(_decode_node(said, tables) for said in header["nodes"])
    groups = [tables.group(decode_group(said, tables)) for said in header["groups"]]
    signatures = [tables.signature(decode_signature(said)) for said in header["signatures"]]
    frames = Decoder(strict=True).frames(header["frames"])
    stacks = [tuple(frames[_index(i, frames)] for i in said) for said in header["stacks"]]
    numbers = [tables.stack(stack) for stack in stacks]
    ones = np.ones(header["ranks"], np.int64)
    per_rank = decode_table(bodies[0], len(_PER_RANK), ones)
    _check(per_rank, len(nodes), len(header["kinds"]))
    times = decode_table(bodies[1], 1, per_rank[:, 8])[:, 0] * _US
    members = _rows(bodies[2], _MEMBER, per_rank[:, [0, 9]], MEMBER_DTYPE, {"group": groups})
    records = _rows(
        bodies[3],
        _RECORD,
        per_rank[:, [0, 10]],
        RECORD_DTYPE,
        {"group": groups, "signature": signatures, "stack": numbers},
    )
    parts = _decoded_parts(header["kinds"], nodes, stacks, per_rank, times, members, records)
    timeout_s = header["timeout_s"]
    if type(timeout_s) not in (int, float):
        raise ValueError("no timeout")
    return Digest(nodes, tuple(parts), tables, float(timeout_s))


def _decoded_parts(
    kinds: list[Any],
    nodes: Sequence[Node],
    stacks: Sequence[Stack],
    per_rank: Ints,
    times: Ints,
    members: Records,
    records: Records,
) -> Iterator[RankPart]:
    times_at = members_at = records_at = 0
    of_times = times.tolist()
    decoder = Decoder(lambda said: stacks[_index(said, stacks)], iter(()), strict=True)
    templates = [Template(decoder.facts(RankFacts, said)) for said in kinds]
    for row in per_rank.tolist():
        (rank, node, kind, pid, parent, local, oldest, dropped, n_times, n_members, n_records,
         looks) = row  # fmt: skip
        values = templates[kind].values(iter(of_times[times_at : times_at + n_times]))
        home = nodes[node]
        values["rank"] = rank
        values["host"] = values["host"] or home.host
        values["machine"] = values["machine"] or home.machine
        if values["node_rank"] is None:
            values["node_rank"] = home.node_rank
        values["pid"] = None if pid == NONE else pid
        values["parent_pid"] = None if parent == NONE else parent
        values["local_rank"] = None if local == NONE else local
        values["oldest_record_id"] = oldest
        values["dropped"] = dropped
        facts = RankFacts(**values)
        yield RankPart(
            facts,
            node,
            members[members_at : members_at + n_members],
            records[records_at : records_at + n_records],
            looks,
            dropped,
        )
        times_at += n_times
        members_at += n_members
        records_at += n_records


def _check(per_rank: Ints, nodes: int, kinds: int) -> None:
    """Raise ValueError for ranks, indexes or counts that cannot be."""
    if not len(per_rank):
        return
    low, high = per_rank.min(axis=0), per_rank.max(axis=0)
    limits = {"rank": MAX_RANK, "node": nodes - 1, "kind": kinds - 1}
    for at, name in enumerate(_PER_RANK):
        least = NONE if name in ("pid", "parent_pid", "local_rank") else 0
        if low[at] < least or high[at] > limits.get(name, 1 << 48):
            raise ValueError(f"no such {name}")
    if len(np.unique(per_rank[:, 0])) != len(per_rank):
        raise ValueError("a rank twice")


def _rows(
    raw: bytes,
    columns: Sequence[str],
    rank_and_count: Ints,
    kind: np.dtype[Any],
    translated: dict[str, list[int]],
) -> Records:
    counts = rank_and_count[:, 1]
    table = decode_table(raw, len(columns), counts)
    rows = np.zeros(len(table), kind)
    rows["rank"] = np.repeat(rank_and_count[:, 0], counts)
    for at, name in enumerate(columns):
        column = table[:, at]
        if name in translated:
            places = np.array([*translated[name], NONE], np.int64)
            if len(column) and not NONE <= column.min() <= column.max() < len(places) - 1:
                raise ValueError(f"no such {name}")
            column = places[column]
        elif name.endswith("_ns"):
            column = column * _US
        target = kind[name]
        if target == np.uint64:
            rows[name] = column.view(np.uint64)
        else:
            rows[name] = column.astype(target)
    return rows


def _pieces(data: bytes, sizes: list[Any]) -> Iterator[bytes]:
    if len(sizes) != 4 or any(type(one) is not int or one < 0 for one in sizes):
        raise ValueError("no sizes")
    at = 0
    for size in sizes:
        yield data[at : at + size]
        at += size
    if at != len(data):
        raise ValueError("of another length")


def _index(value: Any, table: Sequence[Any]) -> int:
    if type(value) is not int or not 0 <= value < len(table):
        raise ValueError("no such frame or stack")
    return value


def _decode_node(said: Any, tables: Tables) -> Node:
    host, machine, node_rank, addresses, runs, number = said
    if [*map(type, (host, machine, number))] != [str, str, int]:
        raise ValueError("not a node")
    if type(node_rank) not in (int, type(None)) or len(addresses) > 64:
        raise ValueError("not a node")
    return Node(
        clean.name(host),
        clean.name(machine),
        node_rank,
        tuple(clean.name(str(address)) for address in addresses),
        tables.ranks_of(decode_runs(runs)),
        number,
    )
