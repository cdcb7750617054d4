"""The ``HANGSCOPE_*`` variables, read once.

An unknown or malformed value gives one warning and the default; it never stops the job.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hangscope.ring.run_directory import GROUP_VARIABLE
from hangscope.ring.run_secret import VARIABLE as SECRET_VARIABLE

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
        "HANGSCOPE_METRICS",
        "HANGSCOPE_MONITOR",
        "HANGSCOPE_ON_HANG",
        "HANGSCOPE_CHECK_REDUCE",
        "HANGSCOPE_COMPILED",
        "HANGSCOPE_FAKE",
        "HANGSCOPE_NCCL_PLUGIN",
        "HANGSCOPE_NOTICE",
        "HANGSCOPE_NOTIFY",
        GROUP_VARIABLE,
        SECRET_VARIABLE,
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
    nccl_plugin: bool = True
    notice: str = "1"


@dataclass(frozen=True, slots=True)
class _Variables:
    """An environment, read value by value; an invalid value counts as not given."""

    environ: Mapping[str, str]
    warn: Callable[[str], None]

    def word(self, name: str) -> str:
        """A value, lower-cased and stripped; empty if not given."""
        return self.environ.get(name, "").strip().lower()

    def number(self, name: str, default: float, lowest: float, highest: float) -> float:
        """A number from ``lowest`` to ``highest``."""
        word = self.word(name)
        if not word:
            return default
        try:
            value = float(word)
        except ValueError:
            value = math.nan
        if lowest <= value <= highest:
            return value
        wanted = f"a number from {lowest:g} to {highest:g}"
        self.warn(f"{name}={self.environ[name]!r} is not {wanted}; using {default:g}")
        return default

    def switch(self, name: str, default: bool) -> bool:
        """On or off."""
        word = self.word(name)
        if word in ("1", "true", "yes", "on"):
            return True
        if word in ("0", "false", "no", "off"):
            return False
        if word:
            given = self.environ[name]
            self.warn(f"{name}={given!r} is neither 0 nor 1; using {int(default)}")
        return default

    def choice(self, name: str, default: str, *others: str) -> str:
        """One of a few words."""
        word = self.word(name) or default
        if word in (default, *others):
            return word
        wanted = f"neither {default} nor {' nor '.join(others)}"
        self.warn(f"{name}={word!r} is {wanted}; using {default}")
        return default

    def warn_of_unknown(self) -> None:
        """Warn of variables that look like ours but are not: usually misspelt."""
        for name in self.environ:
            ours = name in KNOWN or name.startswith(INTERNAL_PREFIX)
            if name.startswith("HANGSCOPE") and not ours:
                self.warn(f"{name} is not a variable HangScope knows; ignored")


def read_settings(environ: Mapping[str, str], warn: Callable[[str], None]) -> Settings:
    """Settings from an environment; ``warn`` is called once for each invalid value."""
    given = _Variables(environ, warn)
    # What follows "exec:" is the monitor's business, which reads it from the environment.
    executes = environ.get("HANGSCOPE_ON_HANG", "").strip().startswith("exec:")
    on_hang = "report" if executes else given.choice("HANGSCOPE_ON_HANG", "report", "kill")
    given.switch(GROUP_VARIABLE, False)  # where files are made, nobody can be told
    given.warn_of_unknown()
    return Settings(
        directory=environ.get("HANGSCOPE_DIR") or None,
        timeout_s=given.number("HANGSCOPE_TIMEOUT", DEFAULT_TIMEOUT_S, 0.1, 1e7),
        buffer=int(given.number("HANGSCOPE_BUFFER", DEFAULT_BUFFER, 16, MAX_BUFFER)),
        stacks=given.switch("HANGSCOPE_STACKS", True),
        monitor=given.switch("HANGSCOPE_MONITOR", True),
        on_hang=on_hang,
        check_reduce=int(given.number("HANGSCOPE_CHECK_REDUCE", 0, 0, 1e9)),
        record_fake_groups=given.switch("HANGSCOPE_FAKE", False),
        notice=given.choice("HANGSCOPE_NOTICE", "1", "0", "slow"),
        nccl_plugin=given.switch("HANGSCOPE_NCCL_PLUGIN", True),
    )


def settings_from_process() -> Settings:
    """Settings of this process; only a node's first rank prints warnings."""
    from hangscope.recording.warn_once import warn_once
    from hangscope.ring.job_place import place_from_environment

    place = place_from_environment(os.environ)
    first = place is None or place.local_rank == 0
    return read_settings(os.environ, warn_once if first else lambda text: None)
