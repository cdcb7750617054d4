"""The other nodes of the job, as one node's monitor deals with them."""

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
"""How long a job that spans nodes may stand still before its nodes are put together; earlier where
the timeout is short."""
UNHEARD_S = 60.0
"""How long to wait for any sign of the other nodes: what carries it has to import torch first."""
PATIENCE_S = 10.0
"""How long node 0 waits for the rest once it has heard one of them. The others, once it has heard
them, wait twice as long for its verdict: it may come at the end of that time."""
MARGIN_S = 2.0
"""Clocks are compared no better, and a node that waits has stopped a little before the others."""
HAND_ON_S = 2.0
"""Until a verdict has reached the other nodes, as long as the job's store is there."""
REPEAT_S = 5.0
"""How often a node says the same again: a thousand nodes' reports are a hundred megabytes, and the
store that carries them is the job's."""


class OtherNodes:
    """Gathers the other nodes' reports once this node stands still.

    Node 0, the one of rank 0, collects and speaks.

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
        """This node has stood still for so long; asks the others when that is long enough.

        What they said of a moment before this node last moved does not count: nodes that start one
        after the other have stood still before, and what carries their word may be late.

        Parameters
        ----------
        stalled_s:
            For how long.
        trace:
            The newest look at this node's ranks.
        first:
            Whether rank 0 is among them.
        asks:
            What it has found is for the others to decide, whether it stands still or not.
        """
        if stalled_s < self._ask_after_s and not asks:
            self._stands_since_s = None
            return
        if self._stands_since_s is None:
            self._stands_since_s = time.monotonic()
            self._moved_ns = time.time_ns() - int((stalled_s + MARGIN_S) * 1e9)
        if self._relay is None and (store := store_of(trace, os.environ)) is not None:
            self._is_first = first
            self._relay = Relay(store, first=first)

    def tell(self, trace: Trace, rings: list[tuple[int, Path]]) -> None:
        """Hand the state of a node that stands still to the others, where they do not know it."""
        if self._relay is None or self._relay.failed or self._stands_since_s is None:
            return
        state, now_s = _state(trace), time.monotonic()
        if state != self._said or now_s - self._said_at_s >= REPEAT_S:
            self._said, self._said_at_s = state, now_s
            self._relay.publish(pack(trace, rings))

    def fragments(self) -> list[Fragment]:
        """What the others have said of this standstill."""
        if self._relay is None or self._stands_since_s is None:
            return []
        return self._relay.reports(self._moved_ns)

    def is_patient(self) -> bool:
        """Whether it is too early to speak without the others' word.

        Each standstill has a patience of its own: nodes that start one after the other have stood
        still, and been put together, before the job has come to its first step.
        """
        if self._relay is None or self._relay.failed or self._stands_since_s is None:
            return False
        now_s = time.monotonic()
        if self._heard_at_s is None and self._relay.hears:
            self._heard_at_s = now_s
        if self._heard_at_s is None:
            return now_s - self._stands_since_s < UNHEARD_S
        patience_s = PATIENCE_S if self._is_first else 2 * PATIENCE_S
        return now_s - max(self._stands_since_s, self._heard_at_s) < patience_s

    @property
    def is_connected(self) -> bool:
        """Whether anything goes to and fro between the nodes."""
        return self._relay is not None and not self._relay.failed

    def news(self) -> str | None:
        """Node 0's verdict, once."""
        verdict = self._relay.verdict() if self._relay is not None else None
        if verdict is None or self._told:
            return None
        self._told = True
        return verdict

    def publish_verdict(self, summary: str) -> None:
        """Tell the other nodes what was found."""
        if self._relay is not None and self._is_first:
            self._relay.publish_verdict(summary)

    def close(self) -> None:
        """End the relay, giving it a moment to carry a verdict."""
        if self._relay is not None:
            self._relay.close()
            self._relay = None


def store_of(trace: Trace, environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Host and port of the job's own store; None where it has none that a network reaches.

    What a rank called ``init_process_group`` with counts before the variables of this process:
    programs set those themselves, and the monitor of a launcher has none.
    """
    for facts in trace.ranks.values():
        told = tcp_address(facts.rendezvous or "")
        if told is not None and told[0] and told[1].isdecimal():
            return told
    host, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    return (host, port) if host and port else None


def may_span_nodes(trace: Trace, environ: Mapping[str, str]) -> bool:
    """Whether ranks of other nodes can reach the job's store, where no launcher counts a node's."""
    store = store_of(trace, environ)
    return store is not None and not is_loopback(f"tcp://{store[0]}:{store[1]}")


def _state(trace: Trace) -> object:
    """What of this node a verdict may turn on, and what it shows: everything but the pulse."""
    return (
        trace.members.tobytes(),
        [
            (f.rank, f.alive, f.process_state, f.gil_blocked, f.exit, f.exception, f.phases,
             f.initialized, f.finalized, [t.stack for t in f.threads if t.is_main])
            for f in trace.ranks.values()
        ],
    )  # fmt: skip
