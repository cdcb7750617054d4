"""A rank dropped the Work of a send or receive, and another one waits for that."""

from __future__ import annotations

from dataclasses import replace

from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.model import Confidence, Verdict
from hangscope.diagnosis.processes.stacks import innermost, where
from hangscope.diagnosis.records.pairing import Half, waits_for_dropped_half
from hangscope.diagnosis.wording.phrases import capital, rank_s, title_of


def blamed_for_dropping(context: Context, cause: Cause) -> Cause | None:
    """The cause with the ranks that dropped what others wait for; None if nobody did."""
    places = context.waits.places
    halves = {i: half for i in cause.places if (half := places[i].half) is not None}
    dropped = {i: h for i, h in halves.items() if waits_for_dropped_half(context.trace, h)}
    if not dropped:
        return None
    ranks = tuple(sorted({half.peer for half in dropped.values()}))
    first = next(iter(dropped))
    return replace(
        cause,
        verdict=Verdict.P2P_UNMATCHED,
        culprits=ranks,
        confidence=Confidence.LIKELY if len(ranks) == 1 else Confidence.AMBIGUOUS,
        words=_words(context, ranks, places[first], dropped[first]),
    ).with_first(list(dropped))


def _words(context: Context, ranks: tuple[int, ...], place: Place, half: Half) -> Words:
    what = "irecv" if half.is_send else "isend"
    stack = context.trace.stacks[int(context.trace.records["stack"][half.partner_row])]
    return Words(
        f"{capital(rank_s(ranks))} dropped the Work of an {what}: {title_of(context, place)} waits",
        f"Gloo takes an {what} back that is unfinished when nobody refers to its Work any more",
        f"keep the Work of the {what} at {where(innermost(stack))} and wait for it",
    )
