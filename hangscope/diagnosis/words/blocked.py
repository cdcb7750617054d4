"""What a rank waits for that stands below its own code: a queue, a socket, a worker, a disk."""

from __future__ import annotations

import re

from hangscope.diagnosis.processes.host import Host
from hangscope.diagnosis.processes.stacks import base, innermost, is_library, user_frames

_BLOCKED_IN_CALL = (
    (
        r"threading\.py:_shutdown$",
        "its program is over there, and a thread that it started has not ended",
    ),
    (r"(?:multiprocessing/queues|queue)\.py:put$", "that queue is full, and nothing takes from it"),
    (r"queue\.py:join$", "what was put into that queue is never marked as done"),
)
"""Library functions that wait for something else than others of their file."""
_BLOCKED_IN = (
    (r"hangscope/recording/store_waits\.py$", "nobody sets the key that it waits for in the store"),
    (r"torch/utils/data/", "a worker of its data loader does not deliver"),
    (r"torch/(?:futures|distributed/rpc)/", "another rank has not answered a remote call"),
    (r"/(?:pdb|bdb)\.py$", "a debugger waits for somebody to type: take the breakpoint out"),
    (r"/ray/(?:_private|actor|util|train)", "a task or an actor of Ray has not answered"),
    (r"subprocess\.py$", "the program that it started has not ended"),
    (r"multiprocessing/pool\.py$|concurrent/futures/", "a worker of its pool has not answered"),
    (r"(?:multiprocessing/queues|queue)\.py$", "nobody puts anything into that queue"),
    (r"multiprocessing/", "another process has not answered"),
    (r"asyncio/", "nothing comes of what it awaits"),
    (
        r"/(?:socket|ssl|selectors)\.py$|http/client\.py$|urllib|requests/|botocore|grpc|fsspec",
        "a peer outside the job does not answer; give that call a time limit",
    ),
    (r"threading\.py$", "it waits for another thread of its own process"),
)
"""Library files that a rank can be blocked in, and what it then waits for."""
_IN_KERNEL = (
    "its main thread cannot be interrupted in the kernel (state D): look for a disk or a network "
    "file system that does not answer"
)


def blocked_in(host: Host | None) -> str:
    """What the library functions below the user's innermost line wait for, if that is known."""
    if host is None or host.state == "busy":
        return ""
    below = list(host.stack)
    mine = innermost(host.stack)
    if mine is not None and mine in below and not is_library(mine):
        below = below[: below.index(mine)]
    files = [frame.filename.replace("\\", "/") for frame in below]
    calls = [f"{file}:{frame.name}" for file, frame in zip(files, below, strict=True)]
    for pattern, words in _BLOCKED_IN_CALL:
        if any(re.search(pattern, call) for call in calls):
            return words
    for pattern, words in _BLOCKED_IN:
        if any(re.search(pattern, name) for name in files):
            return words
    return _IN_KERNEL if host.in_kernel else ""


def frame_names(host: Host | None) -> str:
    """Names of the user's three innermost functions and their files, in one string."""
    frames = user_frames(host.stack)[:3] if host is not None else ()
    return " ".join(f"{frame.name} {base(frame.filename)}" for frame in frames)
