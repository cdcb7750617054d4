"""Rendezvous, the store, and the exchange of communicator ids."""

from __future__ import annotations

import re

from hangscope.trace.job_log.lines.line import LogLine
from hangscope.trace.job_log.readers.evidence import Evidence, StoreBarrier

_CLIENTS = re.compile(r"waiting for (?:clients|workers)\. (\d+)/(\d+) (?:clients|workers) joined")
_STORE_BARRIER = re.compile(
    r"rank:? ?(?P<rank>\d+), (?:for )?key: \S*store_based_barrier_key\S*\s*"
    r"\(world_size=(?P<world>\d+), (?:worker_count|num_workers_joined)=(?P<joined>\d+)"
)
_MISSING = re.compile(
    r"Timed out waiting on barrier on rank (\d+), for key prefix: .*?world_size=(\d+), "
    r"missing_ranks=\[([\d,\s]*)\]"
)
_UNIQUE_ID = re.compile(
    r"\[(\d+)\] is setting up NCCL communicator and retr(?:ie|ei)ving ncclUniqueId from \[(\d+)\]"
)
_CANNOT_REACH = re.compile(
    r"client socket has (?:timed out after|failed to connect to)|"
    r"TCP client failed to connect/validate to host"
)
_RENDEZVOUS = re.compile(
    r"Rendezvous(?:Timeout|Closed|Connection)Error|has failed to send a keep-alive heartbeat"
)
_STORE_GONE = re.compile(
    r"(?:sendBytes|recvValue\w*|recvVector) failed on SocketImpl\(|"
    r"\(maybe TCPStore server has shut down too early\)"
)
_STORE_WAIT = re.compile(r"wait timeout after \d+ms, keys: |Timeout waiting for key: ")
_ADDRESS = re.compile(r"wait timeout after \d+ms, keys: \S*default_pg/\d*//cpu//(?:\d+/)*(\d+)\s*$")
"""Gloo gives up waiting for the address of the rank at the end of the key; in the key of a smaller
group (``default_pg/0//3//cpu``) it would be a group rank."""
WORDS = (
    " joined", "store_based_barrier_key", "Timed out waiting on barrier",
    "is setting up NCCL communicator", "wait timeout after", "Timeout waiting for key",
    "client socket has", "TCP client failed", "Rendezvous", "keep-alive heartbeat",
    " failed on SocketImpl(", "TCPStore server has",
)  # fmt: skip


def read(line: LogLine, at_ns: int, evidence: Evidence) -> bool:
    """Record what such a line says. Returns whether it was one."""
    text = line.text
    found = _CLIENTS.search(text)
    if found:
        joined, world = (int(x[:7]) for x in found.groups())
        evidence.world_size = evidence.world_size or world
        evidence.claim("rendezvous", line, at_ns, certain=False, joined=joined, clients=world)
        return True
    if "store_based_barrier_key" in text:
        found = _STORE_BARRIER.search(text)
        if found:
            return _store_barrier(line, at_ns, evidence, found)
    found = _MISSING.search(text)
    if found:
        missing = tuple(int(x) for x in re.findall(r"\d{1,7}", found.group(3)))
        evidence.world_size = evidence.world_size or int(found.group(2)[:7])
        reporter = int(found.group(1)[:7])
        evidence.of(reporter)
        evidence.claim("missing_ranks", line, at_ns, accused=missing, reporter=reporter)
        return True
    found = _UNIQUE_ID.search(text)
    if found:
        rank = line.rank_or(int(found.group(1)[:7]))
        evidence.of(rank)
        # The group's first rank has not created its communicator: it is late, elsewhere or dead.
        evidence.claim(
            "rendezvous",
            line,
            at_ns,
            reporter=rank,
            certain=False,
            waits_for_group_rank=int(found.group(2)[:7]),
            place=None if line.rank is None else int(found.group(1)[:7]),
        )
        return True
    found = _ADDRESS.search(text)
    if found:
        rank = int(found[1][:7])
        evidence.claim("rendezvous", line, at_ns, certain=False, waits_for_address_of=rank)
        return True
    if _STORE_GONE.search(text):
        evidence.claim("other", line, at_ns, certain=False, store_gone=True)
        return False  # it may also be an exception
    if _CANNOT_REACH.search(text) or _RENDEZVOUS.search(text) or _STORE_WAIT.search(text):
        evidence.claim("rendezvous", line, at_ns, certain=False)
        return True
    return False


def _store_barrier(line: LogLine, at_ns: int, evidence: Evidence, found: re.Match[str]) -> bool:
    rank, world, joined = (int(found.group(n)[:7]) for n in ("rank", "world", "joined"))
    evidence.world_size = evidence.world_size or world
    evidence.of(rank)
    if "Timed out initializing" not in line.text:
        before = evidence.meeting
        goes_on = before is not None and (before.joined, before.world) == (joined, world)
        said_by = before.said_by if before is not None and goes_on else set()
        said_by.add(rank)
        evidence.meeting = StoreBarrier(line.number, rank, joined, world, said_by)
        return True
    accused = (1 - rank,) if world == 2 and joined < 2 and rank in (0, 1) else ()
    evidence.claim(
        "rendezvous",
        line,
        at_ns,
        accused=accused,
        reporter=rank,
        certain=bool(accused),
        joined=joined,
        world_size=world,
    )
    return True
