"""Workers of inference engines, which call themselves after their places in a mesh."""

from __future__ import annotations

import re
from collections.abc import Mapping

_TITLE = re.compile(
    r"(?:VLLM::Worker(?:_DP(?P<dp>\d{1,4}))?|sglang::scheduler(?:_DP\d{1,4})?)"
    r"(?:_PP(?P<pp>\d{1,4}))?(?:_[A-Z_]{2,8}\d{1,4})*?_TP(?P<tp>\d{1,4})"
    r"(?:_[A-Z]{2,4}\d{1,4})*?(?:_EP(?P<ep>\d{1,4}))?(?![\w])",
    re.I,
)
"""The title that the engine gives its process, as ``ps`` and ``py-spy`` show it."""


_SERVES = re.compile(r"sglang::(?!scheduler)\w|VLLM::(?:APIServer|DPCoordinator)", re.I)
"""Titles of the engines' other processes, which compute nothing."""


def rank_of_places(places: Mapping[str, str | None]) -> str | None:
    """The rank of a worker that is labelled with its places in the dimensions of a mesh.

    All experts' places are ranks where there is no pipeline; of a first stage of a first replica
    the place in the tensor group is one. Else it takes sizes that the label does not give.
    """
    tensor = places.get("tp") or places.get("tp1")
    first_stage = not any(int(places.get(p) or 0) for p in ("pp", "pp1", "pp2"))
    if not (tensor and first_stage):
        return None
    return places.get("ep") or (None if int(places.get("dp") or 0) else tensor)


def is_title_of_helper(title: str) -> bool:
    """Whether a process of that title only passes on what others compute."""
    return _SERVES.match(title) is not None


def rank_of_title(title: str) -> int | None:
    """The rank of the process of that title; None where the title does not tell it."""
    found = _TITLE.match(title)
    rank = rank_of_places(found.groupdict()) if found else None
    return None if rank is None else int(rank)
