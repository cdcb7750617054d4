"""Which ranks run on which host, as the nodes of a job have told each other while all was well."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from hangscope.trace import clean
from hangscope.trace.digests.tables import Tables, decode_runs, runs_of
from hangscope.trace.model import Claim, ClaimDetails
from hangscope.trace.rank_text import named

HOME: Final = "home"
"""The kind of a claim about which ranks run on a host."""
_MOST_HOSTS = 1 << 17
_MOST_ADDRESSES = 64


@dataclass(frozen=True, slots=True)
class Host:
    """One host of a job."""

    name: str
    ranks: tuple[int, ...]
    addresses: tuple[str, ...] = ()
    number: int = 0
    """Which node it is in the nodes' meeting; 0 is the first."""


@dataclass(frozen=True, slots=True)
class HostMap:
    """The hosts of a job, as far as known."""

    hosts: tuple[Host, ...] = ()

    def of_ranks(self, ranks: Collection[int]) -> tuple[Host, ...]:
        """The hosts on which any of these ranks run."""
        wanted = set(ranks)
        return tuple(host for host in self.hosts if not wanted.isdisjoint(host.ranks))

    def at(self, address: str) -> Host | None:
        """The host that has an address."""
        found = [host for host in self.hosts if address in host.addresses or address == host.name]
        return found[0] if len(found) == 1 else None

    def encode(self) -> bytes:
        """As JSON."""
        rows = [[h.name, runs_of(h.ranks), h.addresses, h.number] for h in self.hosts]
        return orjson.dumps(rows)

    @classmethod
    def decode(cls, raw: bytes) -> HostMap:
        """From JSON that another node has sent.

        Raises
        ------
        ValueError
            If it is anything else.
        """
        said, tables = orjson.loads(raw), Tables()
        if not isinstance(said, list) or len(said) > _MOST_HOSTS:
            raise ValueError("no hosts")
        return cls(tuple(_host(row, tables) for row in said))


def _host(row: Any, tables: Tables) -> Host:
    if not isinstance(row, list) or len(row) != 4:
        raise ValueError("no host")
    name, runs, addresses, number = row
    if [*map(type, (name, addresses, number))] != [str, list, int]:
        raise ValueError("no host")
    if len(addresses) > _MOST_ADDRESSES or not all(isinstance(a, str) for a in addresses):
        raise ValueError("no addresses")
    ranks = tables.ranks_of(decode_runs(runs))
    return Host(clean.name(name), ranks, tuple(map(clean.name, addresses)), number)


def home_of(host: Host) -> Claim:
    """The claim that these ranks run on this host."""
    return Claim(HOME, text=host.name, details=ClaimDetails(ranks=host.ranks))


def homes(claims: Iterable[Claim]) -> HostMap:
    """The hosts that claims of `HOME` tell of."""
    told = {claim.text: claim.details.ranks for claim in claims if claim.kind == HOME}
    return HostMap(tuple(Host(name, ranks) for name, ranks in told.items()))


def hosts_s(hosts: Sequence[Host]) -> str:
    """Hosts with their ranks, for sentences: ``host node7 (ranks 56–63)``."""
    parts = [f"{host.name} ({named(host.ranks, between=', ')})" for host in hosts[:4]]
    more = f" and {len(hosts) - 4} more" if len(hosts) > 4 else ""
    return ("hosts " if len(hosts) > 1 else "host ") + ", ".join(parts) + more
