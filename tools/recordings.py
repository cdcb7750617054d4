"""The fixtures to record, as listed in ``tools/hangs/recordings.toml``."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = Path(__file__).resolve().parent / "hangs" / "recordings.toml"


@dataclass(frozen=True, slots=True)
class Recording:
    """One fixture: how it is made, and the expected verdict."""

    name: str
    story: str
    program: str
    """File name in ``tools/hangs`` without suffix."""
    fault: str
    world: int
    verdict: str
    culprits: tuple[int, ...] = ()
    playbook: str | None = None
    rank: int = 1
    """The guilty rank, passed to the program."""
    kind: str = "rings"
    """``rings``, ``native`` (dumps of torch's own recorder), ``logs`` (what torchrun printed), or
    ``hosts`` (rings of two hosts whose network is cut)."""
    at: str = "stall"
    """``stall`` (no progress any more, or all have ended) or ``running`` (still progressing)."""
    mention: tuple[str, ...] = ()
    avoid: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    """Additional arguments of the program."""
    environment: dict[str, str] = field(default_factory=dict)
    kill_on_failure: bool = True
    """Whether the launcher stops the others when a rank fails, as torchrun does."""
    skip_ranks: tuple[int, ...] = ()
    """Ranks whose process is never started."""
    confidence: str | None = None


def recordings() -> tuple[Recording, ...]:
    """All recordings, in the order of the file."""
    document = tomllib.loads(FILE.read_text("utf-8"))
    return tuple(_recording(table) for table in document["recording"])


def _recording(table: dict[str, Any]) -> Recording:
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in table.items()}
    return Recording(**values)
