"""Processes of the job of which nothing tells which ranks they are."""

from __future__ import annotations

from dataclasses import dataclass

from hangscope.trace.facts import Stack


@dataclass(frozen=True, slots=True)
class Stranger:
    """Such a process, and where its main thread stood."""

    name: str
    """As reports call it: ``process 4711 on node1``."""
    pid: int | None
    stack: Stack
