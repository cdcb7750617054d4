"""Process ends in the output of schedulers and MPI libraries that report one on a single line."""

from __future__ import annotations

from hangscope.trace.job_log.evidence.gathered import Evidence
from hangscope.trace.job_log.rows.row import Said, row
from hangscope.trace.job_log.rows.statements import claim, task_ended


def _mpich(said: Said, evidence: Evidence) -> None:
    """MPICH's "node" is a rank of the world; a failure inside a call may be a peer's fault."""
    rank = said.number("rank", 7) or 0
    notes = evidence.of(rank)
    if said.text("what").startswith("application called"):
        notes.ended(abs(int(said.text("code"))) % 256 or 1, said.at_ns)
    else:
        evidence.claim("network_error", said.line, said.at_ns, reporter=rank, certain=False)


# fmt: off
ROWS = (
    row("pals-task", "end",
        r"(?P<host>[\w.\-]{1,200}): rank (?P<task>\d{1,7}) "
        r"(?:died from signal (?P<signal>\d{1,2})|exited with code (?P<code>\d{1,3}))\b",
        task_ended, "x1001c0s2b0n0.hostmgmt: rank 3 died from signal 9",
        "x1001c0s2b0n0.hostmgmt: rank 3 exited with code 1"),
    row("mpich-abort", "end",
        r"Abort\((?P<code>-?\d{1,12})\) on node (?P<rank>\d{1,7}) \(rank \d{1,7} in comm \d{1,12}"
        r"\): (?P<what>.{1,40})", _mpich,
        "Abort(1) on node 3 (rank 3 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 1)"),
    row("called-process", "end",
        r"CalledProcessError: Command .* (?:returned non-zero exit status (?P<code>-?\d{1,4})|"
        r"died with <Signals\.SIG\w+: (?P<signal>\d{1,2})>)", claim("launcher_failure"),
        "subprocess.CalledProcessError: Command '['python3', 'train.py']' returned non-zero exit "
        "status 1."),
)
# fmt: on
