"""Adds what is abnormal about this node's devices and links to a report.

Drivers can hang on the very device that is broken, so a child asks them, and is left alone if it
takes too long. A node without devices or fast links asks nothing.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from hangscope.diagnosis.model import Confidence, Diagnosis, Verdict
from hangscope.monitor.hardware.signs import Sign, from_json
from hangscope.trace.model import Trace

LIMIT_S = 5.0
MOST_LINES = 8
BEFORE_S = 60.0
"""An error so long before the waiting may have to do with it: a rank fills its queue first."""
_SIGNS = ("/dev/nvidiactl", "/dev/kfd", "/sys/class/infiniband")
_PROBE = (sys.executable, "-m", "hangscope.monitor.hardware.probe")


class Hardware:
    """This node's devices and links, asked when a hang is reported.

    Parameters
    ----------
    command:
        Prints signs (`hangscope.monitor.hardware.signs.to_json`).
    limit_s:
        Time after which it is left alone.
    """

    def __init__(self, command: tuple[str, ...] = _PROBE, limit_s: float = LIMIT_S) -> None:
        self._command = command
        self._limit_s = limit_s
        self._said: set[str] = set()

    def beside(self, diagnosis: Diagnosis, trace: Trace, here: Iterable[int]) -> Diagnosis:
        """The diagnosis with a note for each abnormal thing that no report has told yet.

        ``here``: the ranks of this node.
        """
        if not has_devices():
            return diagnosis
        signs = [s for s in gathered(self._command, self._limit_s) if s.text not in self._said]
        self._said.update(sign.text for sign in signs)
        if not signs:
            return diagnosis
        lines = tuple(sign.text for sign in signs[:MOST_LINES])
        diagnosis = singled_out(diagnosis, trace, signs, here)
        return replace(diagnosis, notes=(*diagnosis.notes, *lines))


def singled_out(
    diagnosis: Diagnosis, trace: Trace, signs: Iterable[Sign], here: Iterable[int]
) -> Diagnosis:
    """The diagnosis with a rank named whose device alone has failed, if nobody is named.

    All members have reached an operation that none finishes: nothing in their program explains
    that, and an error of one member's device does. ``here``: ranks whose node the signs are of.
    """
    first = diagnosis.findings[0] if diagnosis.findings else None
    if first is None or first.verdict is not Verdict.STUCK_COLLECTIVE or first.culprits:
        return diagnosis
    waiting_s = (trace.observed_ns - first.began_ns) / 1e9 if first.began_ns else 0.0
    failed = {
        s.device: s.text
        for s in signs
        if s.device and s.ago_s is not None and s.ago_s < waiting_s + BEFORE_S
    }
    members = set(here).intersection(first.victims)
    accused = [r for r in members if r in trace.ranks and trace.ranks[r].device in failed]
    if len(accused) != 1:
        return diagnosis
    rank = accused[0]
    device = trace.ranks[rank].device
    summary = (
        f"Rank {rank}'s device {device} has failed; {first.summary[0].lower()}{first.summary[1:]}"
    )
    named = replace(
        first,
        culprits=(rank,),
        victims=tuple(r for r in first.victims if r != rank),
        confidence=Confidence.LIKELY,
        summary=summary,
        why=failed[device],
        fix=f"take the node of rank {rank} out of the job and have the device {device} checked",
        hosts=tuple(filter(None, (trace.ranks[rank].host,))),
    )
    return replace(
        diagnosis,
        culprits=named.culprits,
        confidence=named.confidence,
        summary=summary,
        findings=(named, *diagnosis.findings[1:]),
        ranks=tuple(
            replace(row, role="culprit") if row.rank == rank else row for row in diagnosis.ranks
        ),
    )


def gathered(command: tuple[str, ...], limit_s: float) -> list[Sign]:
    """What a probe prints; that it does not answer is a sign, too."""
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError:
        return []
    try:
        output, _ = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        child.kill()  # not waited for: in a driver's call it may never end
        return [Sign(f"a driver of this node's devices did not answer within {limit_s:g} s")]
    return from_json(output)


def has_devices() -> bool:
    """Whether this node has devices or fast links at all."""
    for sign in map(Path, _SIGNS):
        try:
            if any(sign.iterdir()) if sign.is_dir() else sign.exists():
                return True
        except OSError:
            continue
    return False
