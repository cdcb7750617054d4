"""Exchange with the monitors of the job's other nodes."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Collection, Mapping, Sequence

import psutil

from hangscope.diagnosis.differences.world_conflicts import is_loopback
from hangscope.monitor.node_reports import Lost, RelayProcess
from hangscope.monitor.node_state import decisive, shown_only
from hangscope.trace.digests.codec import encode
from hangscope.trace.digests.digest import Digest, Node
from hangscope.trace.digests.hosts import Host, HostMap
from hangscope.trace.digests.make import MOST, NEWEST, digest_of
from hangscope.trace.digests.tables import Tables
from hangscope.trace.facts import tcp_address
from hangscope.trace.model import Fragment, RankFacts, Trace

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
"""How often a node says that its report holds still: with a few bytes, not the report."""
SHOW_AGAIN_S = 30.0
"""How often many nodes send what is only shown of their ranks if that changes: a rank that computes
is somewhere else at each look."""
SILENT_S = 3 * REPEAT_S
"""A node that was not heard of for this long during a stall, while others were, is silent."""
TELL_HOSTS_S = 3.0
"""Node 0 tells not more often than this who runs where."""
LAST_WORD_S = 8.0
"""How long to wait, after all ranks here have ended, for what another node has found."""
MOST_ADDRESSES = 32
IN_LOG_OF_0 = "(the report is in the log of node 0)"


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
        self._relay: RelayProcess | None = None
        self._own: Node | None = None
        self._stands_since_s: float | None = None
        self._moved_ns = 0
        self._heard_at_s: float | None = None
        self._said: tuple[object, object] = (None, None)
        self._said_at_s = 0.0
        self._shown_at_s = 0.0
        self._told = False
        self._is_settled = False
        self._hosts_said: tuple[HostMap, float] = (HostMap(), 0.0)
        self.hosts = HostMap()
        """Who runs where, as far as known."""

    def begin(self, trace: Trace, ranks: Collection[int], *, first: bool) -> None:
        """Meet the other nodes, once the job has met: while all is well, say who runs here.

        Parameters
        ----------
        trace:
            A look at this node's ranks.
        ranks:
            Those of them that have shown up.
        first:
            Whether rank 0 is among them.
        """
        here = [trace.ranks[rank] for rank in sorted(ranks) if rank in trace.ranks]
        if self._relay is not None or not here or not any(f.initialized for f in here):
            return
        self._start(trace, first=first)
        self._own = _node_of(here)
        if self._relay is not None:
            self._relay.publish(encode(Digest((self._own,), (), Tables(), trace.timeout_s)))

    def _start(self, trace: Trace, *, first: bool) -> None:
        if self._relay is None and (store := store_of(trace, os.environ)) is not None:
            self._is_first = first
            most = trace.world_size or len(trace.ranks)
            self._relay = RelayProcess(store, first=first, most_nodes=most)

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
            if self._stands_since_s is not None and self._relay is not None:
                self._relay.wake(False)
            self._stands_since_s, self._is_settled = None, False
            return
        if self._stands_since_s is None:
            self._stands_since_s = time.monotonic()
            self._moved_ns = time.time_ns() - int((stalled_s + MARGIN_S) * 1e9)
            self._start(trace, first=first)
            if self._relay is not None:
                self._relay.wake(True)

    def hurry(self) -> None:
        """A rank here has failed: look at once, and often, whether others say why."""
        if self._relay is not None:
            self._relay.wake(True)

    def settled(self) -> None:
        """The whole job has its verdict: nothing more is sent unless something changes."""
        if not self._is_settled and self._relay is not None:
            self._relay.wake(False)
        self._is_settled = True

    def publish_report(self, trace: Trace, ranks: Collection[int]) -> None:
        """Send this node's report while it is stalled: when its state changes; else say repeatedly
        that it holds still.

        ``ranks``: those of the trace that run here.
        """
        if not self.is_connected or self._relay is None or self._stands_since_s is None:
            return
        deep, now_s = self._relay.told().deep, time.monotonic()
        decides, shown = (decisive(trace), deep), shown_only(trace)
        may_show = deep or now_s - self._shown_at_s >= SHOW_AGAIN_S
        if decides != self._said[0] or (may_show and shown != self._said[1]):
            self._said = decides, shown
            self._said_at_s = self._shown_at_s = now_s
            here = [trace.ranks[rank] for rank in sorted(ranks) if rank in trace.ranks]
            if here:
                newest = MOST if deep else NEWEST
                node = self._own = self._own or _node_of(here)
                self._relay.publish(encode(digest_of(trace, ranks, node, newest=newest)))
        elif not self._is_settled and now_s - self._said_at_s >= REPEAT_S:
            self._said_at_s = now_s
            self._relay.publish_still()

    def receive(self) -> None:
        """Read what has come from the other nodes."""
        if self._relay is not None:
            self._relay.receive()
            self._share_hosts()

    def fragments(self) -> list[Fragment]:
        """Fragments that the other nodes have reported during this stall."""
        self.receive()
        if self._relay is None or self._stands_since_s is None:
            return []
        return self._relay.reports.fragments(self._moved_ns, self._relay.heard())

    @property
    def reported(self) -> int:
        """How many nodes' reports `fragments` would give, as of what was last received."""
        if self._relay is None or self._stands_since_s is None:
            return 0
        return len(self._relay.reports.standing(self._moved_ns, self._relay.heard()))

    @property
    def state(self) -> object:
        """Everything about this node that a verdict may depend on, as last told to the others."""
        return self._said

    @property
    def version(self) -> int:
        """Changes with every report that says something new."""
        return self._relay.reports.version if self._relay is not None else 0

    def _share_hosts(self) -> None:
        """Learn who runs where; on node 0, tell the others."""
        assert self._relay is not None
        if not self._is_first:
            self.hosts = self._relay.hosts() or self.hosts
            return
        own = self._own
        first = [Host(own.host, own.ranks, own.addresses)] if own is not None else []
        self.hosts = HostMap((*first, *self._relay.reports.hosts()))
        said, at_s = self._hosts_said
        if self.hosts != said and time.monotonic() - at_s > TELL_HOSTS_S:
            self._hosts_said = self.hosts, time.monotonic()
            self._relay.publish_hosts(self.hosts)

    def silent_hosts(self) -> tuple[Host, ...]:
        """Hosts of which nothing is heard during this stall.

        On node 0: those that do not answer, which may be all. Elsewhere: node 0's, if the job's
        store on it does not answer any more.
        """
        if self._relay is None:
            return ()
        if not self._is_first:
            lost = self._relay.lost()
            return tuple(h for h in self.hosts.hosts if lost is not None and h.number == 0)
        if self._stands_since_s is None:
            return ()
        waited_s = time.monotonic() - self._stands_since_s
        if waited_s < SILENT_S:
            return ()
        since_ns = time.time_ns() - int(SILENT_S * 1e9)
        heard = {n for n, h in self._relay.heard().items() if h.sent_ns - h.ahead_ns >= since_ns}
        others = [host for host in self.hosts.hosts if host.number]
        return tuple(h for h in others if h.number not in heard)

    def lost_store(self) -> Lost | None:
        """Whether the job's store does not answer any more, although it did."""
        met = bool(self.hosts.hosts) or self._told or self._heard_at_s is not None
        return self._relay.lost() if self._relay is not None and met else None

    def is_awaiting_reports(self) -> bool:
        """Whether it is too early to report without the other nodes' evidence.

        The wait starts anew with each stall: nodes that start one after the other are stalled, and
        exchange reports, even before the job's first step.
        """
        if self._relay is None or self._relay.failed or self._stands_since_s is None:
            return False
        if self.lost_store() is not None:
            return False
        now_s = time.monotonic()
        if self._heard_at_s is None and self._relay.has_contact:
            self._heard_at_s = now_s
        if self.hosts.hosts and self._is_first and self._may_fall_silent(now_s):
            return True
        if self._heard_at_s is None:
            return now_s - self._stands_since_s < FIRST_CONTACT_S
        # Node 0 may need the whole time after which a host counts as silent.
        patience_s = PATIENCE_S if self._is_first else PATIENCE_S + SILENT_S
        return now_s - max(self._stands_since_s, self._heard_at_s) < patience_s

    def is_awaiting_silence(self) -> bool:
        """Whether a host that has been heard of may still turn out not to answer."""
        if self._relay is None or self._stands_since_s is None or not self.hosts.hosts:
            return False
        lost = self.lost_store() is not None
        return not lost and time.monotonic() - self._stands_since_s < SILENT_S + MARGIN_S

    def _may_fall_silent(self, now_s: float) -> bool:
        """Whether nothing has been heard yet of a host that is not silent for long enough yet."""
        assert self._relay is not None
        assert self._stands_since_s is not None
        if now_s - self._stands_since_s > SILENT_S + MARGIN_S:
            return False
        heard = {
            n for n, h in self._relay.heard().items() if h.sent_ns - h.ahead_ns > self._moved_ns
        }
        return any(host.number and host.number not in heard for host in self.hosts.hosts)

    @property
    def is_connected(self) -> bool:
        """Whether the relay is running."""
        return self._relay is not None and not self._relay.failed

    @property
    def has_verdict(self) -> bool:
        """Whether `take_verdict` would return one."""
        return not self._told and self._relay is not None and bool(self._verdict(self._relay))

    @staticmethod
    def _verdict(relay: RelayProcess) -> str:
        return relay.told().verdict or relay.found()

    def take_verdict(self) -> str | None:
        """Node 0's verdict, or what another node has found by itself, the first time one is there.

        None from then on.
        """
        if self._relay is None or self._told:
            return None
        verdict = self._verdict(self._relay)
        if not verdict:
            return None
        self._told = True
        return verdict

    def await_verdict(self, limit_s: float = LAST_WORD_S) -> str | None:
        """What is found elsewhere, after the ranks here have ended: it may take a few seconds."""
        if self._relay is None or not self.hosts.hosts:
            return self.take_verdict()
        self._relay.wake(True)
        until_s = time.monotonic() + limit_s
        while time.monotonic() < until_s and self.is_connected and self.lost_store() is None:
            self.receive()
            if verdict := self.take_verdict():
                return verdict
            time.sleep(0.25)
        return self.take_verdict()

    def publish_verdict(self, summary: str, *, own: bool) -> None:
        """Tell the other nodes: as the verdict on node 0, elsewhere as what was found here.

        ``own``: it is about what ranks of this node did, of which this node knows best.
        """
        if self._relay is None:
            return
        where = f" {self._own.host}" if self._own is not None else ""
        if self._is_first:
            self._relay.publish_verdict(f"{summary} {IN_LOG_OF_0}")
        elif own:
            self._relay.publish_found(f"{summary} (the report is in the log of host{where})")

    def notes(self) -> list[str]:
        """Lines about messages of other nodes that do not count, since the last call."""
        return self._relay.notes() if self._relay is not None else []

    def close(self) -> None:
        """End the relay, which gets a moment to deliver a verdict."""
        if self._relay is not None:
            self._relay.close()
            self._relay = None


def _node_of(here: Sequence[RankFacts]) -> Node:
    """This node, for the others."""
    first = here[0]
    return Node(
        first.host or socket.gethostname(),
        first.machine,
        first.node_rank,
        _addresses(),
        tuple(facts.rank for facts in here),
    )


def _addresses() -> tuple[str, ...]:
    """Addresses under which others reach this node."""
    found = []
    for interface in psutil.net_if_addrs().values():
        for address in interface:
            text = address.address.partition("%")[0]
            if address.family in (socket.AF_INET, socket.AF_INET6) and not is_loopback(
                f"tcp://[{text}]:0"
            ):
                found.append(text)
    return tuple(found[:MOST_ADDRESSES])


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
