"""Kubernetes about pods: ``kubectl describe pod``, which spreads one over many lines."""

from __future__ import annotations

from hangscope.trace.job_log.evidence.gathered import Evidence
from hangscope.trace.job_log.evidence.process_ends import Pod
from hangscope.trace.job_log.rows.row import Said, row
from hangscope.trace.model import ClaimKind


def _pod(said: Said, evidence: Evidence) -> bool:
    pod = evidence.ends.pods[-1] if evidence.ends.pods else None
    if said.text("pod"):
        evidence.ends.pods.append(Pod(said.text("pod"), said.line, said.at_ns))
        evidence.at_end["pods"] = lambda: _tell(evidence)
    elif pod is None or said.line.number > pod.line.number + _LONGEST:
        return False
    elif said.text("node"):
        pod.node = said.text("node")
    elif said.text("ended"):
        pod.ended = said.text("ended")
    elif said.text("reason"):
        pod.ended = pod.ended and said.text("reason")
    elif said.text("code"):
        pod.code, pod.ended = said.number("code", 4) or 0, pod.ended or "Terminated"
    elif said.text("devices"):
        pod.devices = said.number("devices", 4) or 1
    else:
        pod.rank = said.number("rank", 7)
    return True


def _tell(evidence: Evidence) -> None:
    """State how pods have ended."""
    for pod in evidence.ends.pods:
        if not pod.code:
            continue
        one = pod.rank is not None and pod.devices == 1
        who = f"pod {pod.name}" + (f" (rank {pod.rank})" if one else "")
        where = f" on node {pod.node}" if pod.node else ""
        text = f"{who}{where} ended: {pod.ended}, exit code {pod.code}"
        kind: ClaimKind = "oom" if pod.ended == "OOMKilled" else "launcher_failure"
        accused = (pod.rank,) if one and pod.rank is not None else ()
        evidence.claim(
            kind, pod.line.saying(text), pod.at_ns,
            accused=accused, certain=one, words=pod.name,
        )  # fmt: skip


_LONGEST = 200
"""Lines of one pod's description."""

# fmt: off
ROWS = (
    row("pod", "end",
        r"^Name: {2,}(?P<pod>[\w.\-]{1,200})|^Node: {2,}(?P<node>[\w.\-]{1,200})/|"
        r"^\s*(?:Last )?State: {2,}(?P<ended>Terminated)\b|^\s*Reason: {2,}(?P<reason>\w{1,60})|"
        r"^\s*Exit Code: {2,}(?P<code>\d{1,3})|^\s*RANK: {2,}(?P<rank>\d{1,7})|"
        r"^\s*\w[\w.\-]*/gpu: {2,}(?P<devices>\d{1,4})", _pod,
        "Name:             llm-train-worker-3", "      Exit Code:    137",
        "      RANK:              3"),
)
# fmt: on
