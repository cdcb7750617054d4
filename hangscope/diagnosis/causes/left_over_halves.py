"""Ranks that others wait for, and halves left over from a stretch that all have finished."""

from __future__ import annotations

from dataclasses import replace

from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.context import Context
from hangscope.diagnosis.model import NEVER_CAME, Confidence, Verdict
from hangscope.diagnosis.pattern.uneven_exchanges import (
    UnevenExchange,
    suspects_of,
    uneven_exchanges,
)
from hangscope.diagnosis.wording.phrases import capital, label_of, rank_s
from hangscope.trace.model import NONE


def blame_left_over(context: Context, cause: Cause) -> Cause | None:
    """Consider that the accused waits for a half that another rank left out long ago; None if no
    half is left over.

    What one of the two left over has not finished since. On a device, the accused may wait for it
    without any record, while the other one waits for what the accused would issue next.
    """
    if cause.verdict not in NEVER_CAME or cause.crossed:
        return None
    if not cause.culprits or any(context.is_observed(rank) for rank in cause.culprits):
        return None
    accused = set(cause.culprits)
    found = [e for e in uneven_exchanges(context, cause.involved) if e.ranks & accused]
    return _blaming(context, cause, found) if found else None


def explained_by_left_over(context: Context, cause: Cause, ranks: set[int]) -> Cause | None:
    """The cause, if halves left over between these ranks show who is to blame."""
    found = uneven_exchanges(context, ranks)
    _, decided = suspects_of(found)
    return _blaming(context, cause, found) if found and decided else None


def _blaming(context: Context, cause: Cause, found: list[UnevenExchange]) -> Cause:
    """The cause with the ranks that explain these exchanges as culprits."""
    suspects, decided = suspects_of(found)
    confidence = Confidence.LIKELY if decided else Confidence.AMBIGUOUS
    named = cause.accusing(suspects, confidence).with_evidence(*(_said(context, e) for e in found))
    sides = tuple((rank,) for rank in suspects) if not decided else ()
    first = found[0]
    words = Words(
        f"{capital(_said(context, first))}, and both have gone on",
        f"{rank_s(suspects)} left out one half of an exchange, or issued one too many: what is "
        "left over of it holds up the other side, or meets a half of the next exchange",
        "compare how often each of these ranks reaches its send and its receive in one step",
    )
    return replace(named, verdict=Verdict.P2P_UNMATCHED, words=words, sides=sides)


def _said(context: Context, exchange: UnevenExchange) -> str:
    """What was sent and received, in words."""
    source, target, group = exchange.channel
    until, seq = exchange.until
    where = f"in {label_of(context, group)} before collective #{seq} of {label_of(context, until)}"
    if exchange.sent == NONE:
        return f"rank {source} and rank {target} exchanged unequally many times {where}"
    usual = f" ({exchange.usual} of each otherwise)" if exchange.odd else ""
    sends = f"{exchange.sent} send{'s' * (exchange.sent != 1)}"
    receives = f"{exchange.received} receive{'s' * (exchange.received != 1)}"
    return (
        f"rank {source} issued {sends} to rank {target} {where}, and rank {target} issued "
        f"{receives}{usual}"
    )
