"""Processes of the job whose rank is unknown."""

from __future__ import annotations

from dataclasses import dataclass

from hangscope.trace.facts import Stack


@dataclass(frozen=True, slots=True)
class UnrankedProcess:
    """Such a process, and the stack of its main thread."""

    name: str
    """The name used in reports: ``process 4711 on node1``."""
    pid: int | None
    stack: Stack
