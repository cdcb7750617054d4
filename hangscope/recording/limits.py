"""Limits of the hot path, which its two implementations (Python and C++) share."""

from __future__ import annotations

MAX_FRAMES = 128
"""Innermost frames kept of a stack; deeper recursion is cut off."""
MAX_KNOWN_FRAMES = 250_000
"""Limit on the frames of all cached stacks, 100 bytes each. At the limit (a job that keeps making
new code, say) the cache is cleared; what is already in the ring is found there again."""
MAX_PLANS = 1024
"""Plans cached per operator, about half a kilobyte each; at the limit the cache is cleared."""
DRAIN_AT = 32
"""Number of pending operations at which the next one issued in the group polls them."""
