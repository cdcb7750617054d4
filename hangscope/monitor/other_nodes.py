"""Exchange with the monitors of the job's other nodes."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from hangscope.diagnosis.differences.world_conflicts import is_loopback
from hangscope.monitor.node_reports import Relay, pack
from hangscope.trace.facts import tcp_address
from hangscope.trace.model import Fragment, Trace

ASK_AFTER_S = 5.0
"""How long this node may make no progress before reports are exchanged; less with a short
timeout."""
FIRST_CONTACT_S = 60.0
"""How long to wait for the first contact with other nodes: the relay has to import torch first."""
PATIENCE_S = 10.0
"""How long node 0 waits for the remaining nodes after it has heard from one. The others wait twice
as long for its verdict, which may come at the end of that time."""
MARGIN_S = 2.0
"""Tolerance for clock comparison, and because waiting nodes stop a little before the others."""
DELIVER_VERDICT_S = 2.0
"""Time for a verdict to reach the other nodes before the job's store goes away."""
REPEAT_S = 5.0
"""Interval for resending an unchanged report. The reports of a thousand nodes are a hundred
megabytes, and the store that carries them belongs to the job."""


class OtherNodes:
    """Exchanges reports with the other nodes once this node makes no progress.

    Node 0, the one of rank 0, collects them and prints the verdict.

    Parameters
    ----------
    timeout_s:
        ``HANGSCOPE_TIMEOUT``.
    """

    def __init__(self, timeout_s: float) -> None:
        self._is_first = False
        self._ask_after_s = min(ASK_AFTER_S, timeout_s / 2)
        self._relay: Relay | None = None
        self._stands_since_s: float | None = None
        self._moved_ns = 0
        self._heard_at_s: float | None = None
        self._said: object = None
        self._said_at_s = 0.0
        self._told = False

    def stalled(self, stalled_s: float, trace: Trace, *, first: bool, asks: bool = False) -> None:
        """Begin to exchange reports once this node has made no progress for long enough.

        Reports from before this node's last progress do not count: nodes that start one after the
        other have been stalled before, and reports may arrive late.

        Parameters
        ----------
        stalled_s:
            How long this node has made no progress.
        trace:
            The newest look at this node's ranks.
        first:
            Whether rank 0 is among them.
        asks:
            Whether the other nodes' evidence is needed even without a stall.
        """
        if stalled_s < self._ask_after_s and not asks:
            self._stands_since_s = None
            return
        if self._stands_since_s is None:
            self._stands_since_s = time.monotonic()
            self._moved_ns = time.time_ns() - int((stalled_s + MARGIN_S) * 1e9)
        if self._relay is None and (store := store_of(trace, os.environ)) is not None:
            self._is_first = first
            self._relay = Relay(store, first=first, most_nodes=trace.world_size or len(trace.ranks))

    def publish_report(self, trace: Trace, rings: list[tuple[int, Path]]) -> None:
        """Send this node's report while it is stalled: when its state changes, else repeatedly."""
        if self._relay is None or self._relay.failed or self._stands_since_s is None:
            return
        state, now_s = _state(trace), time.monotonic()
        if state != self._said or now_s - self._said_at_s >= REPEAT_S:
            self._said, self._said_at_s = state, now_s
            self._relay.publish(pack(trace, rings))

    def fragments(self) -> list[Fragment]:
        """Fragments that the other nodes have reported during this stall."""
        if self._relay is None or self._stands_since_s is None:
            return []
        return self._relay.reports(self._moved_ns)

    def is_awaiting_reports(self) -> bool:
        """Whether it is too early to report without the other nodes' evidence.

        The wait starts anew with each stall: nodes that start one after the other are stalled, and
        exchange reports, even before the job's first step.
        """
        if self._relay is None or self._relay.failed or self._stands_since_s is None:
            return False
        now_s = time.monotonic()
        if self._heard_at_s is None and self._relay.has_contact:
            self._heard_at_s = now_s
        if self._heard_at_s is None:
            return now_s - self._stands_since_s < FIRST_CONTACT_S
        patience_s = PATIENCE_S if self._is_first else 2 * PATIENCE_S
        return now_s - max(self._stands_since_s, self._heard_at_s) < patience_s

    @property
    def is_connected(self) -> bool:
        """Whether the relay is running."""
        return self._relay is not None and not self._relay.failed

    def take_verdict(self) -> str | None:
        """Node 0's verdict, the first time it is there; None from then on."""
        verdict = self._relay.verdict() if self._relay is not None else None
        if verdict is None or self._told:
            return None
        self._told = True
        return verdict

    def publish_verdict(self, summary: str) -> None:
        """On node 0, send the verdict to the other nodes."""
        if self._relay is not None and self._is_first:
            self._relay.publish_verdict(summary)

    def notes(self) -> list[str]:
        """Lines about messages of other nodes that do not count, since the last call."""
        return self._relay.notes() if self._relay is not None else []

    def close(self) -> None:
        """End the relay, which gets a moment to deliver a verdict."""
        if self._relay is not None:
            self._relay.close()
            self._relay = None


def store_of(trace: Trace, environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Host and port of the job's own store; None if it has none that a network reaches.

    The arguments of a rank's ``init_process_group`` take precedence over this process's variables:
    programs set those themselves, and a monitor started beside a launcher has none.
    """
    for facts in trace.ranks.values():
        told = tcp_address(facts.rendezvous or "")
        if told is not None and told[0] and told[1].isdecimal():
            return told
    host, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    return (host, port) if host and port else None


def may_span_nodes(trace: Trace, environ: Mapping[str, str]) -> bool:
    """Whether other nodes could reach the job's store; asked if no launcher gives node sizes."""
    store = store_of(trace, environ)
    return store is not None and not is_loopback(f"tcp://{store[0]}:{store[1]}")


def _state(trace: Trace) -> object:
    """Everything about this node that a verdict may depend on or show, except heartbeats."""
    return (
        trace.members.tobytes(),
        [
            (f.rank, f.alive, f.process_state, f.gil_blocked, f.exit, f.exception, f.phases,
             f.initialized, f.finalized, [t.stack for t in f.threads if t.is_main])
            for f in trace.ranks.values()
        ],
    )  # fmt: skip
