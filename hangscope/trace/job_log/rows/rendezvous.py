"""Rendezvous, the store, and the exchange of communicator ids."""

from __future__ import annotations

from dataclasses import dataclass, field

from hangscope.trace.job_log.evidence.attempt import Attempt
from hangscope.trace.job_log.rows.row import Said, row
from hangscope.trace.job_log.rows.statements import claim
from hangscope.trace.model import ClaimDetails


@dataclass(slots=True)
class StoreBarrier:
    """The newest message of a rank that waits at a store-based barrier."""

    line: int = 0
    rank: int = 0
    joined: int = 0
    """How many of ``world`` ranks had joined by then."""
    world: int = 0
    said_by: set[int] = field(default_factory=set)
    """The ranks that have reported this number."""


def _store_barrier(said: Said, attempt: Attempt) -> None:
    rank, world, joined = (said.number(n, 7) or 0 for n in ("rank", "world", "joined"))
    attempt.has_ranks(world)
    attempt.of(rank)
    if "Timed out initializing" not in said.line.text:
        at = attempt.part(StoreBarrier)
        if (at.joined, at.world) != (joined, world):
            at.said_by.clear()
        at.line, at.rank, at.joined, at.world = said.line.number, rank, joined, world
        at.said_by.add(rank)
        return
    accused = (1 - rank,) if world == 2 and joined < 2 and rank in (0, 1) else ()
    attempt.claim(
        "rendezvous", said.line, accused=accused, reporter=rank,
        certain=bool(accused), details=ClaimDetails(joined=joined, world_size=world),
    )  # fmt: skip


def _unique_id(said: Said, attempt: Attempt) -> None:
    """The group's first rank has not created its communicator: it is late, elsewhere or dead."""
    place = said.number("place", 7) or 0
    rank = said.line.rank_or(place)
    attempt.of(rank)
    attempt.claim(
        "rendezvous", said.line, reporter=rank, certain=False,
        details=ClaimDetails(
            waits_for_group_rank=said.number("first", 7) or 0,
            place=None if said.line.rank is None else place,
        ),
    )  # fmt: skip


def _address(said: Said, attempt: Attempt) -> None:
    """Gloo gives up waiting for the address of the rank at the end of the key; in the key of a
    smaller group (``default_pg/0//3//cpu``) it would be a group rank."""
    rank = said.number("absent", 7) or 0
    attempt.claim(
        "rendezvous", said.line, certain=False, details=ClaimDetails(waits_for_address_of=rank)
    )


# fmt: off
ROWS = (
    row("store-barrier", "missing ranks",
        r"rank:? ?(?P<rank>\d+), (?:for )?key: \S*store_based_barrier_key\S*\s*"
        r"\(world_size=(?P<world>\d+), (?:worker_count|num_workers_joined)=(?P<joined>\d+)",
        _store_barrier,
        "Timed out initializing process group in store based barrier on rank: 0, for key: "
        "store_based_barrier_key:1 (world_size=2, worker_count=1, timeout=0:30:00)",
        "Waiting in store based barrier to initialize process group for rank: 1, key: "
        "store_based_barrier_key:1 (world_size=4, num_workers_joined=2, timeout=0:30:00)"),
    row("store-barrier-missing", "missing ranks",
        r"Timed out waiting on barrier on rank (?P<rank>\d+), for key prefix: .*?"
        r"world_size=(?P<world>\d+), missing_ranks=\[(?P<accused>[\d,\s]*)\]",
        claim("missing_ranks", certain=True),
        "Timed out waiting on barrier on rank 0, for key prefix: torchelastic (world_size=4, "
        "missing_ranks=[2, 3], timeout=300)", since="torch 2.5"),
    row("nccl-id", "missing ranks",
        r"\[(?P<place>\d+)\] is setting up NCCL communicator and retr(?:ie|ei)ving ncclUniqueId "
        r"from \[(?P<first>\d+)\]", _unique_id,
        "[3] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-"
        "value store by key '0', but store->get('0') got error: Socket Timeout"),
    row("store-address", "missing ranks",
        r"wait timeout after \d+ms, keys: \S*default_pg/\d*//cpu//(?:\d+/)*(?P<absent>\d+)\s*$",
        _address, "wait timeout after 300000ms, keys: /default_pg/0//cpu//0/2", since="torch 2.5"),
    row("store-gone", "lost peer",
        r"(?:sendBytes|recvValue\w*|recvVector) failed on SocketImpl\(|"
        r"\(maybe TCPStore server has shut down too early\)",
        claim("other", ClaimDetails(store_gone=True), passes=True),
        "recvValue failed on SocketImpl(fd=62, addr=[h1]:43962, remote=[h0]:29500): failed to recv,"
        " got 0 bytes"),
    row("store-unreachable", "missing ranks",
        r"waiting for (?:clients|workers)\. (?P<joined>\d+)/(?P<clients>\d+) (?:clients|workers) "
        r"joined|client socket has (?:timed out after|failed to connect to)|"
        r"TCP client failed to connect/validate to host|CCOM WARN Timeout waiting for |"
        r"Rendezvous(?:Timeout|Closed|Connection)Error|has failed to send a keep-alive heartbeat|"
        r"wait timeout after \d+ms, keys: |Timeout waiting for key: |"
        r"waitForInput: socket SocketImpl\(.{1,400}?\) timed out after \d+ms|"
        r"Followers \[.{1,2000}?\] timed out in _all_gather after ", claim("rendezvous"),
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 "
        "clients joined.",
        "[c10d] The client socket has failed to connect to [node0]:29500 (errno: 110 - Connection "
        "timed out).",
        "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
        "4711:4720 [29] include/socket.h:579 CCOM WARN Timeout waiting for RX (waited 120 sec)",
        "wait timeout after 600000ms, keys: /0//cuda//nccl",
        "waitForInput: socket SocketImpl(fd=62, addr=[h1]:43962, remote=[h0]:29500) timed out after"
        " 300000ms",
        "Followers ['worker-1', 'worker-3'] timed out in _all_gather after 15.00 seconds."),
)
# fmt: on
