"""What a node's report says, compared with what it said before: is it worth sending?"""

from __future__ import annotations

from dataclasses import replace

from hangscope.trace.model import Trace

_RUNS = ("running", "sleeping")


def decisive(trace: Trace) -> object:
    """Everything about a node's ranks that decides who is at fault, except heartbeats."""
    return (
        trace.members.tobytes(),
        # A device begins and ends operations without any counter of the host's.
        trace.records["state"].tobytes(),
        trace.records["flags"].tobytes(),
        [
            (f.rank, f.alive, f.process_state not in _RUNS and f.process_state, f.held_by,
             f.gil_blocked, f.exit, f.exception, f.phases, f.initialized, f.finalized)
            for f in trace.ranks.values()
        ],
    )  # fmt: skip


def shown_only(trace: Trace) -> object:
    """What else is shown of them: where a rank is that computes differs from look to look."""
    return [
        (f.process_state, f.proxies, f.wait and replace(f.wait, since_ns=0, seen_ns=0),
         [t.stack for t in f.threads if t.is_main])
        for f in trace.ranks.values()
    ]  # fmt: skip
