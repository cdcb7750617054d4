"""Recognises processes that are not ranks by their stacks: launchers and helpers of ranks.

Taking the stacks of all processes named ``python`` includes them, and a rank's child process is at
another place than the rank.
"""

from __future__ import annotations

import re

from hangscope.trace.facts import Stack

_FORKED = "_bootstrap"
"""Where ``multiprocessing`` starts a child; frames further out are a copy of the parent's."""
_LAUNCHES = re.compile(
    r"torch/distributed/(?:run|launch)\.py$|torch/distributed/(?:launcher|elastic/agent)/"
    r"|accelerate/commands/|deepspeed/launcher/|horovod/runner/"
)
_HELPS = re.compile(
    r"multiprocessing/(?:resource_tracker|forkserver|managers)\.py$|torch/_inductor/compile_worker/"
)
_WORKS_FOR = re.compile(r"torch/utils/data/_utils/worker\.py$|concurrent/futures/process\.py$")
_LOOPS = frozenset({"_worker_loop", "_process_worker"})
_JOINS = frozenset({"join", "start_processes", "spawn"})


def describe_helper(stack: Stack) -> str:
    """What the process with this main-thread stack is; empty if it may be a rank."""
    own = stack
    for at, frame in enumerate(stack):
        if frame.name == _FORKED and frame.filename.replace("\\", "/").endswith("process.py"):
            own = stack[:at]
            break
    for frame in own:
        file = frame.filename.replace("\\", "/")
        if frame.name in _LOOPS and _WORKS_FOR.search(file):
            return "a worker of a rank's"
        if _HELPS.search(file):
            return "a helper of a rank's"
        if _LAUNCHES.search(file):
            return "a launcher"
        if frame.name in _JOINS and file.endswith("torch/multiprocessing/spawn.py"):
            return "a launcher"
    return ""
