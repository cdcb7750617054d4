"""How a process is asked for its stacks when no Python code in it can run.

It has registered faulthandler, which is written in C, for an unused real-time signal. The stacks go
into a file beside the ring.
"""

from __future__ import annotations

import os
import signal

STACK_SIGNALS = (
    range(int(signal.SIGRTMIN) + 6, int(signal.SIGRTMAX) - 4)
    if hasattr(signal, "SIGRTMIN")
    else range(0)
)
"""The signals of which a recorder takes the highest unused one; no other is ever sent."""


def stacks_file(ring: str) -> str:
    """The name or path of the file for the stacks, given that of the ring."""
    folder, name = os.path.split(ring)
    return os.path.join(folder, f".{os.path.splitext(name)[0]}.stacks")
