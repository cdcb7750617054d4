"""Determines the group of every entry of a dump, however the entry names it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hangscope.trace import clean
from hangscope.trace.flight_recorder.columns import Entries, pick, rows_of
from hangscope.trace.flight_recorder.groups import GroupTable
from hangscope.trace.flight_recorder.intern import Key, Row, RowInterner

_TUPLE_TEXT = re.compile(r"[(\[]\s*['\"]([^'\"]*)['\"]\s*,\s*['\"]([^'\"]*)['\"]\s*[)\]]")


def group_column(entries: Entries, table: GroupTable) -> Any:
    """Group index per entry; fills ``table.by_pg_id`` and adds groups that only entries mention."""
    name_key = pick(
        entries, "process_group", "pg", "group", "pg_name", "group_name", "communicator",
        "comm_name", "comm",
    )  # fmt: skip
    id_key = pick(entries, "pg_id", "group_id", "comm_id", "comm_hash")

    def resolve(row: Row, _: Key) -> int:
        pg, pg_id, desc = row if len(row) == 3 else (*row, None)
        number = clean.as_name(pg_id)
        if isinstance(pg, Mapping):
            pg = (pg.get("name", pg.get("id")), pg.get("desc", pg.get("description")))
        elif type(pg) is str and (found := _TUPLE_TEXT.fullmatch(pg)):
            pg = found.groups()
        if isinstance(pg, (list, tuple)):
            name = clean.as_name(pg[0]) if pg else ""
            desc = clean.as_name(pg[1]) if len(pg) > 1 else ""
        else:
            name = clean.as_name(pg) or number or "0"
            desc = clean.as_name(desc)
        return _group_index(table, name, desc, number)

    desc_key = pick(entries, "pg_desc", "desc", "group_desc")
    fields = (name_key, id_key) if desc_key is None else (name_key, id_key, desc_key)
    return RowInterner(resolve).column(rows_of(entries, fields))


def _group_index(table: GroupTable, name: str, desc: str, pg_id: str) -> int:
    """The group an entry names; a known name with a new ``pg_id`` is a recreated group."""
    by_id = table.by_pg_id.get(pg_id) if pg_id else None
    if by_id is not None and table.groups[by_id].name == name:
        return by_id
    existing = table.by_name.get(name)
    if existing is None:
        index = table.add(name, desc)
    else:
        index = existing
        group = table.groups[existing]
        if pg_id and existing in table.by_pg_id.values():
            index = table.add(name, desc or group.desc, group.ranks, group.epoch + 1)
        elif desc and not group.desc:
            table.groups[existing] = replace(group, desc=desc)
    if pg_id:
        table.by_pg_id[pg_id] = index
    return index


def recreated_groups_note(table: GroupTable) -> str:
    """A note on groups that were created more than once; empty if there are none."""
    names = sorted({g.name for g in table.groups if g.epoch})
    return f"group {', '.join(names[:3])} was made more than once; kept apart" if names else ""
