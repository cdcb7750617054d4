"""Units of time."""

from __future__ import annotations

SECOND_NS = 1_000_000_000
