"""What an answer may be, compared with the truth."""

from __future__ import annotations

EXACT, UNDECIDED, WRONG, CRASH = "exact", "undecided", "wrong", "crash"

PART = "in part"
"""Only ranks at fault are named, but not all of them."""
