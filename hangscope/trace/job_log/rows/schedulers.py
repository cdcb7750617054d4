"""Process ends in the output of schedulers and MPI libraries that report one on a single line."""

from __future__ import annotations

from hangscope.trace import signals
from hangscope.trace.job_log.evidence.gathered import Evidence
from hangscope.trace.job_log.rows.row import Said, row
from hangscope.trace.job_log.rows.statements import claim, stopped, task_ended

_STATES_OF_NODES = ("NODE_FAIL", "BOOT_FAIL", "FAILED")


def _mpich(said: Said, evidence: Evidence) -> None:
    """MPICH's "node" is a rank of the world; a failure inside a call may be a peer's fault."""
    rank = said.number("rank", 7) or 0
    notes = evidence.of(rank)
    if said.text("what").startswith("application called"):
        notes.ended(abs(int(said.text("code"))) % 256 or 1, said.at_ns)
    else:
        evidence.claim("network_error", said.line, said.at_ns, reporter=rank, certain=False)


def _accounted(said: Said, evidence: Evidence) -> None:
    """The state of a job or step, for all of its ranks together."""
    state = said.text("state")
    if state.startswith("OUT_OF_ME"):
        evidence.claim("oom", said.line, said.at_ns, certain=False)
    elif state in _STATES_OF_NODES:
        evidence.claim("launcher_failure", said.line, said.at_ns, certain=False)
    else:
        evidence.claim("other", said.line, said.at_ns, stopped=signals.SIGTERM)


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
    row("batch-memory", "own error",
        r"\bTERM_(?:MEMLIMIT|SWAP): job killed|PBS: job killed: (?:mem|vmem|pmem)\b", claim("oom"),
        "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit."),
    row("batch-limit", "stopped",
        r"\bTERM_[A-Z_]{4,20}: job killed|PBS: job killed: \w{3,20}", stopped,
        "TERM_RUNLIMIT: job killed after reaching LSF run time limit.",
        "=>> PBS: job killed: walltime 3601 exceeded limit 3600"),
    row("slurm-accounting", "end",
        r"^\s*\d{1,12}(?:_\d{1,9})?(?:\.\w{1,20})?[\s|].{0,400}?[\s|](?P<state>OUT_OF_ME[A-Z]*|"
        r"NODE_FAIL|BOOT_FAIL|PREEMPTED|CANCELLED|TIMEOUT|FAILED)\+?(?: by \d+)?[\s|]+"
        r"\d{1,3}:\d{1,3}(?:[\s|]|$)", _accounted,
        "4711.0       python3        acct          8 OUT_OF_ME+      0:125"),
)
# fmt: on
