"""Writes docs/ring-format.md from the layouts themselves: ``python -m tools.format_page``."""

from __future__ import annotations

import inspect
import re
from enum import IntEnum
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from hangscope.ring import device_layout, layout
from tools.verdict_pages import write_changed

PAGE = Path(__file__).parents[1] / "docs" / "ring-format.md"

_HEADER = {
    "magic": "`HSRING`, NUL, 1",
    "version": f"{layout.VERSION}; a reader refuses others",
    "header_bytes": f"{layout.HEADER_BYTES}",
    "slot_bytes": "size of one slot, 128",
    "slot_count": "number of slots",
    "group_bytes": "size of one group entry, 128",
    "group_count": "number of group entries",
    "groups_offset": "where the group table begins in the file",
    "slots_offset": "where the slots begin",
    "samples_offset": "where the two sample buffers begin",
    "sample_bytes": "size of one sample buffer",
    "values_offset": "where the interned values begin",
    "values_bytes": "size of their area",
    "file_bytes": "size of the file",
    "run_id": "equal on all ranks of a run",
    "host": "name of the host",
    "boot_id": "`/proc/sys/kernel/random/boot_id`: pids mean nothing elsewhere",
    "torch_version": "",
    "python_version": "",
    "cwd": "working directory at the start",
    "attempt": "the launcher's count of restarts",
    "rank": "global rank; final once `flags` has DECLARED",
    "local_rank": "-1: not told, likewise below",
    "world_size": "",
    "local_world_size": "",
    "node_rank": "",
    "pid": "in its own pid namespace",
    "parent_pid": "",
    "start_ticks": "start of the process in clock ticks since boot",
    "pid_namespace": "inode of the pid namespace",
    "created_ns": "when the file was made, ns since the epoch",
    "timeout_s": "wait after which the monitor reports",
    "heartbeat_interval_s": "how often the watcher writes `heartbeat_ns`",
    "flags": "`RingFlag`",
    "seal": "shows that the writer knows the run's secret; empty without one",
    "ready": "1 once all of the above is written",
    "phase_count": "number of `phases` in use",
    "heartbeat_ns": "the watcher thread's newest sign of life",
    "heartbeat_count": "how many so far",
    "last_record_id": "id of the newest published record; 0: none",
    "dropped": "records lost without a visible gap",
    "values_used": "bytes of the value area in use",
    "values_refused": "values for which there was no room",
    "groups_used": "group entries in use",
    "groups_refused": "groups for which there was no room",
    "sample_generation": "number of samples taken; the newest is in buffer `generation & 1`",
    "sample_ns": "when",
    "initialized": "1 once `init_process_group` has returned",
    "finalized": "1 once `destroy_process_group` was called",
    "exit_kind": "`ExitKind`",
    "exit_code": "status of the process",
    "exit_signal": "signal that a handler saw",
    "exception": "value: the uncaught exception",
    "exit_ns": "when it ended, by itself",
    "exception_ns": "",
    "fault_signal": "signal by which stacks can be asked for",
    "unobservable": "`Unobservable`",
    "disabled": "value: why recording stopped",
    "clock_offset_ns": "offset of this host's clock; 0 if not known",
    "main_thread": "the kernel's id of the main thread",
    "backend": "value: the default group's backend",
    "watcher_thread": "kernel's id of the watcher thread",
    "rendezvous": "value: the address at which `init_process_group` meets",
    "left_stack": "value: the main thread's stack when shutdown interrupted it",
    "left_ns": "when",
    "handled_ns": "when `handled` was first seen",
    "handled": "value: the newest exception handled while an operation was issued",
    "device": "value: the PCI address of the device on which the rank computes",
    "phases": "the innermost phases of the main thread, outermost first",
}

_HEAD = """# The ring format, byte by byte

Enough to write a reader in another language. `make pages` makes this page from
`hangscope/ring/layout.py` and `device_layout.py`, which writer and reader use.

All integers are little-endian and naturally aligned; `u4` is an unsigned integer of four bytes,
`i8` a signed one of eight, `f8` a double, `S96` up to 96 bytes of UTF-8 filled up with NULs. Times
are nanoseconds since the epoch by the host's clock; 0 means never. A *value* is the id of an
interned value, below; 0 means none.

## The file `rank_N.ring`

| area | begins at | size |
|---|---|---|
| header | 0 | `header_bytes` |
| groups | `groups_offset` | `group_count` × `group_bytes` |
| slots | `slots_offset` | `slot_count` × `slot_bytes` |
| samples | `samples_offset` | 2 × `sample_bytes` |
| values | `values_offset` | `values_bytes` |

The writer may be alive, or may have died at any moment, so a reader

1. checks `magic`, `version`, `ready` and that every area lies inside the file;
2. reads `last_record_id` = n; record i, for the last `slot_count` of them, lies in slot
   (i − 1) mod `slot_count`. It is whole if `record_id` and `commit` are both i: `commit` is written
   last. Slot n + 1 may be whole although it was not published;
3. reads `last_record_id` again: slots of records that could have been overwritten since are
   discarded, whatever their ids say;
4. takes a group entry if its `commit` is 1, and never follows an offset without checking it: the
   file is a claim of whoever wrote it.

It reads and does not map the file: one that is shortened meanwhile would end the reader by SIGBUS.
"""

_VALUES = """## Interned values

A value's id is its offset in the value area divided by 8. There: its length in bytes (u4), its kind
(u4), then its bytes; the next value begins at the next multiple of 8.

{kinds}

## Samples

Each buffer: the length of its text in bytes (u4), then the text as `faulthandler` writes it: the
stacks of all threads, innermost frame first.
"""

_DEVICE = """## The file `rank_N.device`

What NCCL's profiler plugin writes beside a ring. The header begins with `{fields}`, packed as
`{packed}` (Python's `struct`); at byte 1024 the number of communicators (u8), at 1088 that of
operations ever noted, at 1152 that of links. Entry i of the operations and links lies in place
(i − 1) mod count.
"""


def write(path: Path = PAGE) -> None:
    """Write the page."""
    parts = [
        _HEAD,
        "### Header",
        _table(layout.HEADER, _HEADER),
        "Each of the eight `phases`:",
        _table(layout.PHASE, {"name": "value", "detail": "value", "since_ns": "when it began"}),
        _enum(layout.RingFlag),
        _enum(layout.ExitKind),
        _enum(layout.Unobservable),
        "### Group",
        _table(layout.GROUP, _comments(layout, "GROUP")),
        "### Slot",
        _table(layout.SLOT, _comments(layout, "SLOT")),
        _enum(layout.SlotFlag),
        _VALUES.format(kinds=_enum(layout.ValueKind)),
        _DEVICE.format(
            fields="`, `".join(device_layout.HEADER_FIELDS),
            packed=device_layout.FIXED_START.format,
        ),
    ]
    for name in ("COMMUNICATOR", "OPERATION", "LINK"):
        table = _table(getattr(device_layout, name), _comments(device_layout, name))
        parts += [f"### {name.capitalize()}", table]
    parts += [_enum(device_layout.OperationFlag), _enum(device_layout.LinkState)]
    write_changed(path, "\n\n".join(part.strip() for part in parts) + "\n")


def _table(kind: np.dtype[Any], meanings: dict[str, str]) -> str:
    fields = kind.fields
    assert fields is not None
    rows = ["| byte | type | field | |", "|---|---|---|---|"]
    for name, (form, at, *_) in sorted(fields.items(), key=lambda item: int(item[1][1])):
        shape = f" × {form.shape[0]}" if form.shape else ""
        short = (
            form.base.str.lstrip("<|") if form.base.names is None else f"{form.base.itemsize} bytes"
        )
        rows.append(f"| {at} | {short}{shape} | `{name}` | {meanings.get(name, '')} |")
    return "\n".join(rows)


def _comments(module: ModuleType, table: str) -> dict[str, str]:
    """What stands behind the fields of a layout in its source."""
    source = inspect.getsource(module)
    begin = source.index(f"\n{table} = np.dtype(")
    body = source[begin : source.index("\n)", begin)]
    return dict(re.findall(r'\("(\w+)", [^#\n]*\),  # (.*)', body))


def _enum(kind: type[IntEnum] | type[Any]) -> str:
    """A table of an enumeration's members and the texts below them."""
    source = inspect.getsource(kind)
    told = dict(re.findall(r'^    (\w+) = \d+\n    """(.*?)"""', source, re.M | re.S))
    rows = [f"`{kind.__name__}`: {inspect.getdoc(kind)}", "", "| value | name | |", "|---|---|---|"]
    for member in kind:
        text = " ".join(told.get(member.name, "").replace("``", "`").split())
        rows.append(f"| {member.value} | {member.name} | {text} |")
    return "\n".join(rows)


if __name__ == "__main__":
    write()
