"""What goes wrong in the monitor itself costs one line, and the watch goes on."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
PAUSE_S = 0.25
"""Wait after a failed step, which may not have waited by itself."""
MOST_IN_SUCCESSION = 200
"""After so many failed steps nothing is to be expected of further ones."""


class Mishaps:
    """Runs the monitor's steps.

    Parameters
    ----------
    say:
        Prints one line.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._said: set[str] = set()
        self.in_succession = 0
        """How many steps have failed since the last one that did not."""

    def run(self, step: Callable[[], T], otherwise: T) -> T:
        """The result of a step; ``otherwise`` if it fails. Each kind of failure is told once."""
        try:
            result = step()
        except Exception as error:
            self.in_succession += 1
            kind = f"{type(error).__name__}{_where(error)}"
            if kind not in self._said:
                self._said.add(kind)
                self._say(f"a look at the job failed; the next one comes: {kind}: {error}")
            time.sleep(PAUSE_S)
            return otherwise
        self.in_succession = 0
        return result


def _where(error: Exception) -> str:
    """The place at which an exception was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
