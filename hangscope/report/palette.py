"""Colours for operations that colour-blind readers can tell apart (after Okabe and Ito).

Vermilion is reserved for culprits, and nothing is conveyed by colour alone: unfinished operations
are hatched, culprits carry a mark.
"""

from __future__ import annotations

CULPRIT = "#d55e00"
WAITING = "#e69f00"

KINDS: dict[str, tuple[str, str]] = {
    "reduce": ("#0072b2", "reduce"),
    "gather": ("#009e73", "gather"),
    "scatter": ("#56b4e9", "scatter"),
    "exchange": ("#cc79a7", "all-to-all"),
    "broadcast": ("#b8a900", "broadcast"),
    "barrier": ("#8a8a8a", "barrier"),
    "p2p": ("#7a5cc7", "send/recv"),
    "other": ("#5f6b7a", "other"),
}
"""Kind of operation -> (colour, word in the legend)."""


def kind_of(op: str) -> str:
    """The kind of a canonical operation name."""
    if "barrier" in op:
        return "barrier"
    if "all_to_all" in op or "alltoall" in op:
        return "exchange"
    if "scatter" in op:
        return "scatter"
    if "gather" in op:
        return "gather"
    if "broadcast" in op:
        return "broadcast"
    if "reduce" in op:
        return "reduce"
    if op.startswith(("send", "recv", "isend", "irecv")):
        return "p2p"
    return "other"
