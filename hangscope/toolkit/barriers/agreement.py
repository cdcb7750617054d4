"""Checks through the store that all members pass the same arguments, before any collective."""

from __future__ import annotations

from collections.abc import Mapping

from hangscope.toolkit.barriers.barrier import timeout_error
from hangscope.toolkit.barriers.meeting import Ranks, StoreGroup, meet
from hangscope.toolkit.barriers.store_group import call_site
from hangscope.toolkit.ranks import name_ranks

REFUSED = "refused: "
"""Prefix of what a member says if it cannot go on, so that all members stop together."""


class Disagreement(ValueError):  # noqa: N818 - reads as what it is
    """The members were called differently. All of them raise this.

    Attributes:
        said: what was said, and the global ranks that said it.
    """

    def __init__(self, message: str, said: Mapping[str, Ranks]) -> None:
        super().__init__(message)
        self.said = dict(said)

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (str(self), self.said)


def compare(store_group: StoreGroup, say: str, *, timeout_s: float, what: str) -> dict[str, Ranks]:
    """Meet, and learn what every member said.

    Raises
    ------
    BarrierTimeout
        A member did not come.
    """
    if len(store_group.ranks) == 1:
        return {say: store_group.ranks}
    outcome = meet(
        store_group, timeout_s=timeout_s, say=say, compare=True, site=f"{call_site()}|{what}"
    )
    if not outcome.met:
        raise timeout_error(store_group, outcome, timeout_s, what)
    return dict(outcome.said)


def agree(store_group: StoreGroup, say: str, *, timeout_s: float, what: str) -> None:
    """Go on only if every member says the same and none refuses.

    Raises
    ------
    Disagreement
        On all members, with everybody's view.
    BarrierTimeout
        A member did not come.
    """
    said = compare(store_group, say, timeout_s=timeout_s, what=what)
    refusals = {text: ranks for text, ranks in said.items() if text.startswith(REFUSED)}
    if len(said) == 1 and not refusals:
        return
    group = f" in group {store_group.label or 'default'}"
    if refusals:
        views = views_in({text[len(REFUSED) :]: ranks for text, ranks in refusals.items()})
        raise Disagreement(f"{what}{group}: {views}", said)
    raise Disagreement(
        f"{what}{group}: the members were called differently: {views_in(said)}", said
    )


def views_in(said: Mapping[str, Ranks]) -> str:
    """What was said, and by which ranks, in one line."""
    return "; ".join(f"{name_ranks(ranks)}: {text}" for text, ranks in said.items())


def minority(said: Mapping[str, Ranks]) -> Ranks:
    """The ranks that disagree with the majority; all ranks if no side is the largest."""
    if len(said) < 2:
        return ()
    sides = sorted(said.values(), key=len, reverse=True)
    if len(sides[0]) == len(sides[1]):
        return tuple(sorted(rank for side in sides for rank in side))
    return tuple(sorted(rank for side in sides[1:] for rank in side))
