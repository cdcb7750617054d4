"""Ways in which hosts fail, and what must then stand in the log of every survivor."""

from __future__ import annotations

import dataclasses

RANKS = 2
"""Of each host."""
DRAIN_S = 12.0


@dataclasses.dataclass(frozen=True)
class Case:
    """One way to fail, and what must stand in the log of every survivor."""

    name: str
    says: str
    """A regular expression over each survivor's lines of HangScope."""
    fault: str = ""
    """What rank 3, on node 1, does once the monitors have met."""
    kill: int | None = None
    """The host that is killed, with its monitor."""
    drained: int | None = None
    """The host all of whose processes are told to stop, and killed `DRAIN_S` later."""
    outlives: bool = True
    """Whether a host outlives its launcher; a container ends with it."""
    cut: int | None = None
    """The host whose link is cut."""
    back_after_s: float = 0.0
    """After how long the link comes back; 0 for never."""
    delay_s: float = 0.0
    """How long every packet takes."""
    loss: float = 0.0
    """The share of the packets to node 1 that is lost."""
    timeout_s: float = 8.0
    others: str = ""
    """The same for what a host itself says that is cut off or drained, if that differs."""
    absent: int | None = None
    """The host that is never started. The ranks of the others are started without a launcher that
    would wait for it, as by ``srun``."""
    skew_s: float = 0.0
    """How far the clock of node 1 is ahead."""

    @property
    def guilty(self) -> frozenset[int]:
        """The ranks that may be accused."""
        hosts = (self.kill, self.drained, self.cut, self.absent)
        host = next((h for h in hosts if h is not None), None)
        if host is not None:
            return frozenset(range(host * RANKS, (host + 1) * RANKS))
        return frozenset({3}) if self.fault else frozenset()

    @property
    def fails(self) -> bool:
        """Whether the job does not come to its end."""
        return bool(self.says)


CASES = {
    case.name: case
    for case in (
        Case("healthy", ""),
        Case("asleep", r"Rank 3 never joined all_reduce", fault="asleep"),
        Case("stopped", r"Rank 3 .*(?:stopped|never joined)", fault="stopped"),
        Case("killed", r"Rank 3 .*(?:killed|SIGKILL)", fault="killed"),
        Case("wrong", r"Rank 3 (?:issued|called|ran)|broadcast", fault="wrong"),
        Case("host-killed", r"[Hh]ost node1 \(ranks 2, 3\)", kill=1),
        Case("node0-killed", r"[Hh]ost node0 \(ranks 0, 1\)", kill=0),
        Case("container", r"Rank 3 .*(?:killed|SIGKILL)", fault="killed", outlives=False),
        Case("drained", r"[Hh]ost node1 \(ranks 2, 3\)|Ranks 2, 3 .*SIGTERM", drained=1,
             others=r"All ranks of this node were stopped from outside|Ranks 2, 3 .*SIGTERM"),
        Case("link-cut", r"[Hh]ost node1 \(ranks 2, 3\)", cut=1,
             others=r"[Hh]ost node0 \(ranks 0, 1\) cannot be reached from here"),
        Case("node0-cut", r"[Hh]ost node0 \(ranks 0, 1\) cannot be reached from here", cut=0,
             others=r"Nothing comes to host node0 \(ranks 0, 1\) from any other host"),
        Case("link-back", r"moving again after", cut=1, back_after_s=25),
        Case("slow", "", delay_s=0.2, timeout_s=20.0),
        # Of a thousand messages one is lost six times running, which takes TCP 13 seconds.
        Case("lossy", "", loss=0.3, timeout_s=60.0),
        Case("absent", r"ranks 4, 5", absent=2),
        Case("skew", r"Rank 3 never joined all_reduce", fault="asleep", skew_s=3600),
    )
}  # fmt: skip
