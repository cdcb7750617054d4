"""What a monitor follows, and how it reacts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hangscope.trace.live.open_ring import RunKey
from hangscope.trace.live.own_run import OwnRun
from hangscope.trace.processes.signals import DescendsFrom


@dataclass(frozen=True, slots=True)
class MonitorConfig:
    """What to follow and how to react."""

    directory: Path
    key: RunKey | None
    local_world_size: int
    timeout_s: float
    on_hang: str = "report"
    notice: str = "1"
    """``HANGSCOPE_NOTICE``."""
    own: OwnRun | None = None
    """Tells which rings belong to the run; by default all may."""
    launcher: DescendsFrom | None = None
    """What has started the ranks, if known."""
