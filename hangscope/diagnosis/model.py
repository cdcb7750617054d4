"""The diagnosis as frozen data: verdict, findings, evidence.

The field names are those of ``analyze --json`` (schema ``hangscope/diagnosis/2``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from hangscope.trace.model import Source, Stack, group_label

SCHEMA = "hangscope/diagnosis/2"


class Verdict(str, Enum):
    """The fixed set of verdicts."""

    HEALTHY = "healthy"
    COLLECTIVE_MISMATCH = "collective_mismatch"
    SHAPE_MISMATCH = "shape_mismatch"
    DTYPE_MISMATCH = "dtype_mismatch"
    ARGUMENT_MISMATCH = "argument_mismatch"
    MISSING_RANK = "missing_rank"
    RANK_CRASHED = "rank_crashed"
    RANK_EXITED = "rank_exited"
    RANK_LOST = "rank_lost"
    DEADLOCK_CYCLE = "deadlock_cycle"
    P2P_UNMATCHED = "p2p_unmatched"
    STUCK_COLLECTIVE = "stuck_collective"
    INCONCLUSIVE = "inconclusive"
    QUIESCENT = "quiescent"


MISMATCHES = frozenset(
    {
        Verdict.COLLECTIVE_MISMATCH,
        Verdict.SHAPE_MISMATCH,
        Verdict.DTYPE_MISMATCH,
        Verdict.ARGUMENT_MISMATCH,
    }
)
"""Verdicts about operations that met and are incompatible."""
NEVER_CAME = frozenset({Verdict.MISSING_RANK, Verdict.P2P_UNMATCHED})
"""Verdicts about ranks that live, and have not issued what others wait for."""
AWAITED = NEVER_CAME | {Verdict.RANK_LOST}
"""The same, or about ranks that left nothing."""
ENDED = frozenset({Verdict.RANK_CRASHED, Verdict.RANK_EXITED})
"""Verdicts about ranks whose end was seen."""
GONE = ENDED | {Verdict.RANK_LOST}
UNDECIDED = frozenset({Verdict.INCONCLUSIVE, Verdict.QUIESCENT})
"""Verdicts that name nobody."""


class Confidence(str, Enum):
    """How far the verdict may be trusted."""

    CERTAIN = "certain"
    LIKELY = "likely"
    AMBIGUOUS = "ambiguous"


_TOO_MANY_TO_LIST = 4


def _headline(
    confidence: Confidence,
    culprits: tuple[int, ...],
    summary: str,
    sides: tuple[tuple[int, ...], ...],
) -> str:
    """The summary with its doubt: it is copied and searched for without the rest of the report.

    ``sides``: ranks that did the same; several accused ranks of one side are one alternative.
    """
    if confidence is Confidence.CERTAIN or not culprits or "probably" in summary:
        return summary
    if confidence is Confidence.LIKELY:
        return f"Probably: {summary}"
    if len(culprits) == 1:
        return f"Perhaps: {summary}"
    if len(culprits) > _TOO_MANY_TO_LIST:
        return f"Either of {len(culprits)} ranks: {summary}"
    accused = sorted(rank for side in sides for rank in side)
    if accused != sorted(culprits) or len(sides) in (1, len(culprits)):
        return f"Either rank {' or '.join(map(str, culprits))}: {summary}"
    parts = (f"rank{'s' * (len(s) > 1)} {', '.join(map(str, s))}" for s in sides)
    return f"Either {' or '.join(parts)}: {summary}"


@dataclass(frozen=True, slots=True)
class GroupRef:
    """The group a finding is about; ``ranks`` are global."""

    name: str
    desc: str
    ranks: tuple[int, ...]

    @property
    def label(self) -> str:
        """The group's description if it has one, else its name."""
        return group_label(self.name, self.desc)


@dataclass(frozen=True, slots=True)
class Side:
    """Ranks that did the same thing at the place where the job diverged.

    ``op`` is None for ranks that issued nothing there. ``stack`` is innermost first and reduced to
    the user's frames; ``differs_at`` is the index of the frame in which this side differs from the
    others, or None. ``activity`` is what a rank without an operation was doing ("in load_batch",
    "stopped", "in new_group", "exited with status 0").
    """

    ranks: tuple[int, ...]
    op: str | None = None
    seq: int | None = None
    input_sizes: tuple[tuple[int, ...], ...] | None = None
    output_sizes: tuple[tuple[int, ...], ...] | None = None
    dtypes: tuple[str, ...] | None = None
    reduce_op: str | None = None
    root: int | None = None
    peer: int | None = None
    tag: int | None = None
    """Tag of a send or receive, if recorded."""
    stack: Stack = ()
    full_stack: Stack = ()
    differs_at: int | None = None
    waiting_s: float | None = None
    activity: str = ""
    last_op: str | None = None
    last_seq: int | None = None
    last_age_s: float | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One independent cause."""

    verdict: Verdict
    culprits: tuple[int, ...]
    victims: tuple[int, ...]
    confidence: Confidence
    summary: str
    """One sentence: who, what, where."""
    why: str = ""
    """One sentence: the mechanism."""
    fix: str = ""
    """One sentence: what to do."""
    playbook: str = ""
    """Hang class, ``"D9"`` or ``"D9, D22"``."""
    group: GroupRef | None = None
    seq: int | None = None
    op: str | None = None
    sides: tuple[Side, ...] = ()
    evidence: tuple[str, ...] = ()
    unknowns: tuple[str, ...] = ()
    """What is unknown and therefore lowered the confidence."""
    hosts: tuple[str, ...] = ()
    """Names of the hosts at fault, or those of the culprits, as far as known; if nobody can be
    named, those that do not answer."""
    hosts_silent: bool = False
    """Whether the culprits fell silent with their hosts."""
    began_ns: int = 0
    """When the first victim began to wait, or the culprit ended; 0 if unknown."""
    unchanged_s: float = 0.0
    """If no record dates the finding: for how long (s) repeated looks at a running job must agree
    before it is reported."""

    @property
    def headline(self) -> str:
        """The summary with how far it may be trusted."""
        return _headline(
            self.confidence, self.culprits, self.summary, tuple(s.ranks for s in self.sides)
        )

    def accuses(self, side: Side) -> bool:
        """Whether all ranks of a side are culprits."""
        return bool(side.ranks) and set(side.ranks) <= set(self.culprits)

    def seq_of(self, side: Side) -> int | None:
        """The sequence number at which a side stands: its own, or else the finding's."""
        return side.seq if side.seq is not None else self.seq


@dataclass(frozen=True, slots=True)
class WaitEdge:
    """``waiter``'s oldest unfinished operation needs ``on``, which has not issued it."""

    waiter: int
    on: int
    group: str
    seq: int
    op: str = ""
    label: str = ""
    """The group's description if it has one, else its name."""


@dataclass(frozen=True, slots=True)
class LastOperation:
    """The last operation a rank issued."""

    group: str
    seq: int
    op: str


@dataclass(frozen=True, slots=True)
class RankReport:
    """One row of the rank table.

    ``role``: ``culprit``, ``victim``, ``bystander`` or ``unknown``. ``state``: ``running``,
    ``busy``, ``waiting``, ``sleeping``, ``stopped``, ``gil-held``, ``starved`` (gets hardly any CPU
    time), ``exited``, ``crashed``, ``ended`` (not by its own doing), ``lost`` or ``unknown``.
    """

    rank: int
    role: str = "bystander"
    state: str = "unknown"
    host: str | None = None
    pid: int | None = None
    waiting_for: tuple[int, ...] = ()
    waiting_s: float | None = None
    last: LastOperation | None = None
    stack: Stack = ()
    phase: str | None = None
    exit: str | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The whole answer. ``verdict`` and ``culprits`` are those of the first cause."""

    verdict: Verdict
    culprits: tuple[int, ...]
    confidence: Confidence
    summary: str
    world_size: int | None = None
    backend: str = ""
    stalled_s: float | None = None
    """For how long (s) nothing has moved, if known."""
    live: bool = False
    ranks: tuple[RankReport, ...] = ()
    findings: tuple[Finding, ...] = ()
    wait_for: tuple[WaitEdge, ...] = ()
    sources: tuple[Source, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default_factory=tuple)
    """Remarks that do not change the verdict: a slow rank, other attempts in the directory."""
    missing: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Ranks that left no records although others did, by host; "" for those of unknown host."""
    began_ns: int = 0
    """When the first rank began to record or to issue; 0 if unknown."""
    source_directories: tuple[str, ...] = ()
    """Directories of which the user says that the job's source files are there."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts of the first cause, as far as known."""
        return self.findings[0].hosts if self.findings else ()

    @property
    def headline(self) -> str:
        """The summary with how far it may be trusted."""
        sides = self.findings[0].sides if self.findings else ()
        ranks = tuple(side.ranks for side in sides)
        return _headline(self.confidence, self.culprits, self.summary, ranks)
