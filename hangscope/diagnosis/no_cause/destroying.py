"""Every rank is inside ``destroy_process_group``, and none comes out of it."""

from __future__ import annotations

from hangscope.diagnosis.cause import Words
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.duration_text import lasting
from hangscope.trace.facts import Phase
from hangscope.trace.nccl.own_records import REPLAYS
from hangscope.trace.units import SECOND_NS

_DESTROY = "destroy_process_group"
_GRAPH = "CUDA graph"


def stuck_in_destruction(context: Context) -> Words | None:
    """Summary, mechanism and advice; None unless all ranks are there."""
    trace = context.trace
    phases = [_destroys(facts.phases) for facts in trace.ranks.values()]
    begun = [phase.since_ns for phase in phases if phase is not None]
    if not begun or len(begun) < len(phases) or trace.missing_ranks:
        return None
    spent_s = (trace.observed_ns - max(begun)) / SECOND_NS
    summary = f"Every rank has been inside {_DESTROY} for {lasting(spent_s)}"
    captured = any(REPLAYS in group.desc for group in trace.groups) or any(
        text.startswith(_GRAPH) for facts in trace.ranks.values() for text in facts.unobservable
    )
    if captured:
        return Words(
            summary,
            "collectives were captured in a CUDA graph, and NCCL frees no communicator that a "
            "graph still refers to",
            f"delete the graphs (del graph, and whatever holds them) before {_DESTROY}",
        )
    return Words(
        summary,
        "the backend frees its communicators only when nothing uses them any more",
        f"before {_DESTROY}, wait for every Work, synchronise the device and delete CUDA graphs "
        "that hold collectives; py-spy dump --native shows what it waits for",
    )


def _destroys(phases: tuple[Phase, ...]) -> Phase | None:
    return next((phase for phase in phases if phase.name == _DESTROY), None)
