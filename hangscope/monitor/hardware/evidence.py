"""Adds what is abnormal about this node's devices and links to a report.

Drivers can hang on the very device that is broken, so a child asks them, and is left alone if it
takes too long. A node without devices or fast links asks nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from hangscope.diagnosis.model import Diagnosis
from hangscope.trace import clean

LIMIT_S = 5.0
MOST_LINES = 8
_SIGNS = ("/dev/nvidiactl", "/dev/kfd", "/sys/class/infiniband")


def with_hardware(diagnosis: Diagnosis, limit_s: float = LIMIT_S) -> Diagnosis:
    """The diagnosis with a note for each abnormal thing; the same one where nothing is."""
    if not has_devices():
        return diagnosis
    lines = gathered([sys.executable, "-m", "hangscope.monitor.hardware.probe"], limit_s)
    return replace(diagnosis, notes=(*diagnosis.notes, *lines)) if lines else diagnosis


def gathered(command: list[str], limit_s: float) -> tuple[str, ...]:
    """What a probe prints, as one sentence each; what it cannot tell is one of them."""
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError:
        return ()
    try:
        output, _ = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        child.kill()  # not waited for: in a driver's call it may never end
        return (f"a driver of this node's devices did not answer within {limit_s:g} s",)
    return tuple(sentences(output)[:MOST_LINES])


def sentences(output: bytes) -> list[str]:
    """What a probe has printed, a JSON list of sentences; empty for anything else."""
    try:
        said = json.loads(output)
    except ValueError:
        return []
    lines = said if isinstance(said, list) else []
    return [clean.prose(line) for line in lines if isinstance(line, str)]


def has_devices() -> bool:
    """Whether this node has devices or fast links at all."""
    for sign in map(Path, _SIGNS):
        try:
            if any(sign.iterdir()) if sign.is_dir() else sign.exists():
                return True
        except OSError:
            continue
    return False
