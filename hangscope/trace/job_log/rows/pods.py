"""Kubernetes about pods: ``kubectl describe pod``, which spreads one over many lines, and the
operator that starts them."""

from __future__ import annotations

from dataclasses import dataclass, field

from hangscope.trace.job_log.evidence.attempt import Attempt
from hangscope.trace.job_log.rows.row import Said, row
from hangscope.trace.model import ClaimKind

_LONGEST = 200
"""Lines of one pod's description."""


@dataclass(slots=True)
class _Pods:
    """Pods, as far as their descriptions have been read: the first line, and what follows it."""

    seen: list[tuple[Said, dict[str, str]]] = field(default_factory=list)


def _pod(said: Said, attempt: Attempt) -> bool:
    pods = attempt.part(_Pods).seen
    found = said.found.groupdict().items()
    told = {key.split("__")[0]: text for key, text in found if text}
    if "pod" in told:
        pods.append((said, told))
        attempt.at_end[_pod] = lambda: _tell(attempt)
    elif not pods or said.line.number > pods[-1][0].line.number + _LONGEST:
        return False
    elif "reason" not in told:
        pods[-1][1].update(told)
    elif "ended" in pods[-1][1]:  # a running container has none
        pods[-1][1]["ended"] = told["reason"]
    return True


def _tell(attempt: Attempt) -> None:
    """State how pods have ended. A variable RANK is a rank if the pod has one process, else the
    number of a node."""
    for said, told in attempt.part(_Pods).seen:
        if not int(told.get("code", 0)):
            continue
        one = "rank" in told and int(told.get("devices", 1)) == 1
        who = f"pod {told['pod']}" + (f" (rank {told['rank']})" if one else "")
        where = f" on node {told['node']}" if "node" in told else ""
        how = told.get("ended", "Terminated")
        line = said.line.saying(f"{who}{where} ended: {how}, exit code {told['code']}")
        kind: ClaimKind = "oom" if how == "OOMKilled" else "launcher_failure"
        accused = (int(told["rank"]),) if one else ()
        attempt.claim(kind, line, accused=accused, certain=one, words=told["pod"])


# fmt: off
ROWS = (
    row("pod", "end", (
        r"^Name: {2,}(?P<pod>[\w.\-]{1,200})|^Node: {2,}(?P<node>[\w.\-]{1,200})/|"
        r"^\s*(?:Last )?State: {2,}(?P<ended>Terminated)\b|^\s*Reason: {2,}(?P<reason>\w{1,60})|"
        r"^\s*Exit Code: {2,}(?P<code>\d{1,3})|^\s*RANK: {2,}(?P<rank>\d{1,7})|"
        r"^\s*\w[\w.\-]*/gpu: {2,}(?P<devices>\d{1,4})",
        r"\bPod: (?P<pod>[\w.\-]{1,200}) exited with code (?P<code>\d{1,3})"), _pod,
        "Name:             llm-train-worker-3", "      Exit Code:    137",
        "      RANK:              3", 'msg="Pod: train.llm-worker-3 exited with code 1"'),
)
# fmt: on
