"""What a rank was last doing, from its ring, if that can be read on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def last_seen(rank: int, environ: Mapping[str, str] | None = None) -> str | None:
    """One sentence about ``rank`` from ``$HANGSCOPE_DIR/rank_N.ring``; ``None`` without a ring.

    Never raises, as it is only used for the message of another error.
    """
    env = os.environ if environ is None else environ
    directory = env.get("HANGSCOPE_DIR")
    if not directory:
        return None
    path = Path(directory) / f"rank_{rank}.ring"
    try:
        if not path.is_file():
            return None
        from hangscope.trace.rings.read import read_ring

        return _describe(read_ring(path))
    except Exception:
        return None


def _describe(fragment: object) -> str | None:
    from hangscope.trace.model import Fragment

    if not isinstance(fragment, Fragment):
        return None
    facts = fragment.facts
    parts: list[str] = []
    if facts.exit is not None:
        parts.append(f"ended ({facts.exit.kind}{_code(facts.exit.code, facts.exit.signal)})")
    elif facts.alive is False:
        parts.append("its process is gone")
    if facts.exception is not None:
        parts.append(f"raised {facts.exception.type_name}: {facts.exception.message[:120]}")
    if facts.phases:
        parts.append(f"in {facts.phases[-1].name}")
    if facts.main_stack:
        frame = _users(facts.main_stack)
        parts.append(f"at {frame[1]}:{frame[2]} in {frame[0]}")
    if len(fragment.records):
        last = fragment.records[-1]
        signature = fragment.signatures[int(last["signature"])]
        group = fragment.groups[int(last["group"])].label
        parts.append(f"last collective {signature.op} #{int(last['collective_seq'])} in {group}")
    return ", ".join(parts) or None


def _code(code: int | None, signal: int | None) -> str:
    if signal:
        return f", signal {signal}"
    return "" if code is None else f", exit status {code}"


def _users(stack: tuple[tuple[str, str, int], ...]) -> tuple[str, str, int]:
    """The innermost frame of the user's own code."""
    for frame in stack:
        if "/torch/" not in frame[1] and "/hangscope/" not in frame[1]:
            return frame
    return stack[0]
