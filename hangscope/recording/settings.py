"""The ``HANGSCOPE_*`` variables, read once.

An unknown or malformed value gives one warning and the default; it never stops the job.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

DEFAULT_TIMEOUT_S = 120.0
DEFAULT_BUFFER = 10_000
MAX_BUFFER = 10_000_000

KNOWN = frozenset(
    {
        "HANGSCOPE",
        "HANGSCOPE_DIR",
        "HANGSCOPE_TIMEOUT",
        "HANGSCOPE_BUFFER",
        "HANGSCOPE_STACKS",
        "HANGSCOPE_MONITOR",
        "HANGSCOPE_ON_HANG",
        "HANGSCOPE_CHECK_REDUCE",
        "HANGSCOPE_FAKE",
    }
)
INTERNAL_PREFIX = "HANGSCOPE_INTERNAL_"
"""Variables HangScope passes between its own processes."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user asked for."""

    directory: str | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S
    buffer: int = DEFAULT_BUFFER
    stacks: bool = True
    monitor: bool = True
    on_hang: str = "report"
    check_reduce: int = 0
    record_fake_groups: bool = False


def read_settings(environ: Mapping[str, str], warn: Callable[[str], None]) -> Settings:
    """Settings from an environment; ``warn`` is called once for each value not understood."""

    def number(name: str, default: float, lowest: float, highest: float) -> float:
        text = environ.get(name)
        if text is None or not text.strip():
            return default
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not lowest <= value <= highest:
            warn(
                f"{name}={text!r} is not a number from {lowest:g} to {highest:g}; using {default:g}"
            )
            return default
        return value

    def switch(name: str, default: bool) -> bool:
        text = environ.get(name)
        if text is None or not text.strip():
            return default
        word = text.strip().lower()
        if word in ("1", "true", "yes", "on"):
            return True
        if word in ("0", "false", "no", "off"):
            return False
        warn(f"{name}={text!r} is neither 0 nor 1; using {int(default)}")
        return default

    on_hang = environ.get("HANGSCOPE_ON_HANG", "").strip().lower() or "report"
    if on_hang not in ("report", "kill"):
        warn(f"HANGSCOPE_ON_HANG={on_hang!r} is neither report nor kill; using report")
        on_hang = "report"
    for name in environ:
        if (
            name.startswith("HANGSCOPE")
            and name not in KNOWN
            and not name.startswith(INTERNAL_PREFIX)
        ):
            warn(f"{name} is not a variable HangScope knows; ignored")
    return Settings(
        directory=environ.get("HANGSCOPE_DIR") or None,
        timeout_s=number("HANGSCOPE_TIMEOUT", DEFAULT_TIMEOUT_S, 0.1, 1e7),
        buffer=int(number("HANGSCOPE_BUFFER", DEFAULT_BUFFER, 16, MAX_BUFFER)),
        stacks=switch("HANGSCOPE_STACKS", True),
        monitor=switch("HANGSCOPE_MONITOR", True),
        on_hang=on_hang,
        check_reduce=int(number("HANGSCOPE_CHECK_REDUCE", 0, 0, 1e9)),
        record_fake_groups=switch("HANGSCOPE_FAKE", False),
    )


def settings_from_process() -> Settings:
    """Settings of this process; a node's first rank warns for all of them, on stderr."""
    from hangscope.recording.complaints import complain
    from hangscope.recording.identity import place_from_environment

    place = place_from_environment(os.environ)
    first = place is None or place.local_rank == 0
    return read_settings(os.environ, complain if first else lambda text: None)
