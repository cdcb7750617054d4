"""Phrases shared by summaries, evidence and advice: ranks, operations, groups, places."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.graph.places import Place
from hangscope.diagnosis.model import Finding
from hangscope.trace.dtypes import readable_dtype
from hangscope.trace.model import NONE, Signature
from hangscope.trace.rank_text import named

_HASH = re.compile(r"[0-9a-f]{16,}")
"""The name of a group that nobody has named."""
_SHOWN_OF_HASH = 8
_MOST_CHARACTERS = 80
"""Longer lists of ranks are cut."""


def rank_s(ranks: Iterable[int]) -> str:
    """``rank 2`` or ``ranks 0–3, 6``."""
    return named(ranks, _MOST_CHARACTERS, between=", ")


def in_operation(finding: Finding) -> str:
    """`` in all_reduce #7``; empty if the finding is about none."""
    return f" in {finding.op} #{finding.seq}" if finding.op and finding.seq is not None else ""


def capital(text: str) -> str:
    """With a capital letter, otherwise unchanged."""
    return text[:1].upper() + text[1:]


def describe(signature: Signature | None, *, reduction: bool = True) -> str:
    """One operation in words like ``all_reduce float32[4096] sum``.

    ``reduction``: include the reduce op, if known.
    """
    if signature is None:
        return "nothing"
    words = signature.op
    dtypes = signature.input_dtypes or signature.output_dtypes
    sizes = signature.input_sizes or signature.output_sizes
    if sizes:
        shown = ",".join("x".join(map(str, size)) or "scalar" for size in sizes[:3])
        words += f" {readable_dtype(dtypes[0]) if dtypes else ''}[{shown}]"
    elif signature.input_numel is not None:
        words += f" of {signature.input_numel} elements"
    if signature.reduce_op and reduction:
        words += f" {signature.reduce_op.lower()}"
    return words


def label_of(context: Context, group: int) -> str:
    """A group's description or name; ``default`` if it is not in the trace."""
    if 0 <= group < len(context.trace.groups):
        label = context.trace.groups[group].label
        return f"{label[:_SHOWN_OF_HASH]}…" if _HASH.fullmatch(label) else label
    return "default"


def title_of(context: Context, place: Place) -> str:
    """``all_reduce #12 in group dp``, ``send 2→3 #4 in group pp``, or the phase's name."""
    op = context.place_op(place)
    if place.phase:
        return place.phase
    if place.p2p and place.half is not None:
        other = "?" if place.half.peer == NONE else str(place.half.peer)
        arrow = f"{place.half.rank}→{other}" if place.half.is_send else f"{place.half.rank}←{other}"
        verb = "send" if place.half.is_send else "recv"
        return f"{verb} {arrow} #{place.seq} in group {label_of(context, place.group)}"
    return f"{op} #{place.seq} in group {label_of(context, place.group)}"


def members_of(context: Context, place: Place) -> str:
    """`` (ranks 0–3)``, to follow `title_of`; empty if unknown."""
    if members_are_untold(context, place):
        return ""  # those that a log mentions are not all of them
    return f" ({rank_s(place.members)})" if place.members else ""


def members_are_untold(context: Context, place: Place) -> bool:
    """Whether only text mentions the group, and nothing tells who belongs to it."""
    groups = context.trace.groups
    known = place.p2p or not 0 <= place.group < len(groups) or bool(groups[place.group].ranks)
    return not known and context.of_text.issuperset(place.waiters)


def address(context: Context, rank: int) -> str:
    """``on host node0 (pid 4711)``, as far as known."""
    facts = context.trace.ranks.get(rank)
    if facts is None:
        return ""
    words = []
    if facts.host:
        words.append(f"on host {facts.host}")
    if facts.pid:
        words.append(f"(pid {facts.pid})")
    return " ".join(words)


def everybody_is(context: Context, ranks: Iterable[int]) -> bool:
    """Whether these are all ranks of the job."""
    return set(ranks) >= {*context.trace.ranks, *context.trace.missing_ranks}


_PLURALS = {"is": "are", "was": "were", "has": "have", "does": "do", "it": "them", "its": "their"}


def verb(ranks: Iterable[int], word: str) -> str:
    """A verb in the third person, or a pronoun, as it goes with `rank_s`: ``waits`` or ``wait``."""
    return word if len(set(ranks)) == 1 else _PLURALS.get(word, word.removesuffix("s"))


def does(ranks: Iterable[int], word: str) -> str:
    """``rank 2 waits`` or ``ranks 0–3 wait``."""
    ranks = tuple(ranks)
    return f"{rank_s(ranks)} {verb(ranks, word)}"


def not_begun(place: Place) -> str:
    """``its device has not begun it``, about ranks that issued the operation of a place."""
    alone = len(place.not_begun) == 1
    return f"{'its device has' if alone else 'their devices have'} not begun it"


def never_began(place: Place, operation: str) -> str:
    """Whose devices have not begun an operation of a place, as a sentence without its full stop."""
    ranks = rank_s(place.not_begun)
    if len(place.not_begun) == 1:
        whose, its = f"{capital(ranks)}'s device", "its"
    else:
        whose, its = f"The devices of {ranks}", "their"
    return f"{whose} never began {operation}, which {its} peers' devices are in"


def subject(ranks: Iterable[int]) -> str:
    """The accused as the subject of a sentence."""
    ranks = tuple(ranks)
    return capital(rank_s(ranks)) if ranks else "Nobody"


def waiters_of(place: Place) -> str:
    """Those who wait at a place."""
    return rank_s(place.waiters) if place.waiters else "the others"
