"""The header ``constants.hpp``: what C++ and Python must agree on, written out from Python."""

from __future__ import annotations

from hangscope.recording import limits, signatures, stacks
from hangscope.ring import layout
from hangscope.ring.layout import GROUP, SLOT, SlotFlag

_FLAGS = (
    SlotFlag.P2P, SlotFlag.COALESCED_MEMBER, SlotFlag.COALESCED_BATCH, SlotFlag.UNOBSERVED,
    SlotFlag.RETIRED, SlotFlag.FAILED,
)  # fmt: skip
_LIMITS = ("MAX_FRAMES", "MAX_KNOWN_FRAMES", "MAX_PLANS", "DRAIN_AT")
_GROUP_FIELDS = (
    "enqueued", "p2p_enqueued", "history", "enqueued_ns", "completed", "completed_ns",
)  # fmt: skip


def constants_header() -> str:
    """The text of the header."""
    offsets = {f"SLOT_{name.upper()}": _offset(SLOT, name) for name in SLOT.names or ()}
    offsets |= {f"GROUP_{name.upper()}": _offset(GROUP, name) for name in _GROUP_FIELDS}
    offsets["SLOT_BYTES"] = SLOT.itemsize
    offsets["HEADER_BYTES"] = layout.HEADER_BYTES
    offsets["HEADER_LAST_RECORD_ID"] = layout.header_offset("last_record_id")
    flags = {str(flag.name): int(flag) for flag in _FLAGS}
    flags["HANDLING"] = stacks.HANDLING
    sizes = {name: getattr(limits, name) for name in _LIMITS}
    wide = {"HISTORY_FACTOR": signatures.FACTOR, "HISTORY_INCREMENT": signatures.INCREMENT}
    typed = {"std::size_t": offsets | sizes, "std::uint32_t": flags, "std::uint64_t": wide}
    lines = ["#pragma once", "#include <cstddef>", "#include <cstdint>"]
    lines += ["namespace hangscope::layout {"]
    for kind, values in typed.items():
        lines += [f"constexpr {kind} {name} = {value}u;" for name, value in values.items()]
    return "\n".join([*lines, "}", ""])


def _offset(record: object, name: str) -> int:
    fields = record.fields  # type: ignore[attr-defined]
    return int(fields[name][1])
