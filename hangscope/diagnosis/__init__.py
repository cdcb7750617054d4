"""Turns a trace into a diagnosis: small pure functions, one file per kind of cause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hangscope.diagnosis.engine import diagnose

__all__ = ["diagnose"]


def __getattr__(name: str) -> Any:
    # The engine needs numpy; the model alone must stay cheap to import.
    if name == "diagnose":
        from hangscope.diagnosis.engine import diagnose

        return diagnose
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
