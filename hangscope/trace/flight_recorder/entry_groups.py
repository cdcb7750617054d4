"""Determines the group of every entry of a dump."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hangscope.trace import clean
from hangscope.trace.flight_recorder.columns import Entries, pick, rows_of
from hangscope.trace.flight_recorder.groups import GroupTable
from hangscope.trace.flight_recorder.intern import Key, Row, RowInterner


def group_column(entries: Entries, table: GroupTable) -> Any:
    """Group index per entry; fills ``table.by_pg_id`` and adds groups that only entries mention."""

    def resolve(row: Row, _: Key) -> int:
        pg, pg_id = row
        number = clean.as_name(pg_id)
        if isinstance(pg, (list, tuple)):
            name = clean.as_name(pg[0]) if pg else ""
            desc = clean.as_name(pg[1]) if len(pg) > 1 else ""
            return _group_index(table, name, desc, number)
        return _group_index(table, clean.as_name(pg) or number or "0", "", number)

    fields = (pick(entries, "process_group"), pick(entries, "pg_id"))
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
