"""Starts the node's monitor: local rank 0 does, or another rank if that one does not come."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hangscope.recording.local_leader import is_local_leader, is_local_rank_0_absent
from hangscope.recording.markers import MONITOR_OF
from hangscope.recording.ring_location import link_latest
from hangscope.recording.settings import Settings
from hangscope.recording.warn_once import warn_once
from hangscope.ring.job_place import JobPlace
from hangscope.ring.run_secret import LAUNCH_VARIABLE

MONITORED = "HANGSCOPE_INTERNAL_MONITORED"
"""Set by `hangscope run`, which is itself the monitor."""
_NOT_FOR_MONITORS = frozenset({"HANGSCOPE", "LD_PRELOAD"})
_PATIENCE = 0.25
"""How much of the time-out the others wait for local rank 0; within the following limits."""
_LEAST_PATIENCE_S, _MOST_PATIENCE_S = 5.0, 30.0


def is_first_of_node(place: JobPlace, ring: Path) -> bool:
    """Whether this process is the one to start its node's monitor."""
    return place.local_rank == 0 if place.is_numbered else is_local_leader(ring)


@dataclass(frozen=True, slots=True)
class MonitorStart:
    """How to start the monitor of one run on this node."""

    directory: Path
    run_id: str
    place: JobPlace
    settings: Settings
    link: bool
    """Whether ``latest`` is to point to the run directory."""

    def start(self) -> None:
        """Start it unless the user does not want one or one is there already, and link ``latest``.

        Raises
        ------
        OSError
            If no process can be started.
        """
        self._link_latest()
        if self.is_wanted:
            self._start(os.environ)
            os.environ[MONITOR_OF] = self._name

    def stand_in(self, ring: Path) -> Callable[[], None]:
        """Starts the monitor if local rank 0 has still not begun to record some time from now.

        Local rank 0 may hang before it imports torch, and this is worth a report, too. To be called
        repeatedly; of all ranks that wait for it, the first one acts. If local rank 0 comes later
        after all, a second monitor runs, which does no harm: a cause is reported only once.

        Parameters
        ----------
        ring:
            This process's.
        """
        share_s = self.settings.timeout_s * _PATIENCE
        patience_s = min(max(share_s, _LEAST_PATIENCE_S), _MOST_PATIENCE_S)
        due_s = time.monotonic() + patience_s
        environ = dict(os.environ)  # later, the job may change it while the watcher reads it

        def look() -> None:
            nonlocal due_s
            if time.monotonic() < due_s:
                return
            due_s = float("inf")
            try:
                if is_local_rank_0_absent(ring) and is_local_leader(ring):
                    self._link_latest()
                    self._start(environ)
            except Exception as error:
                warn_once(f"no monitor: {type(error).__name__}: {error}; the recording goes on")

        return look

    def _link_latest(self) -> None:
        if self.link:
            link_latest(self.directory)

    @property
    def _name(self) -> str:
        return f"{self.run_id}.{self.place.attempt}"

    @property
    def is_wanted(self) -> bool:
        """Whether the user wants a monitor and none is there already."""
        watched = os.environ.get(MONITORED) or os.environ.get(MONITOR_OF) == self._name
        return self.settings.monitor and not watched

    def _start(self, environ: Mapping[str, str]) -> None:
        """Start it as a daemon: in its own session, and not as a child of this process.

        Launchers kill sessions and wait for children, so the monitor must be in neither. It is
        started through a short-lived process that leaves it to init; the job's own ``wait()`` never
        sees it.
        """
        environment = {
            key: value
            for key, value in environ.items()
            if key == LAUNCH_VARIABLE
            or (key not in _NOT_FOR_MONITORS and not key.startswith("HANGSCOPE_INTERNAL_"))
        }
        # numpy would otherwise start a BLAS thread per core.
        environment["OPENBLAS_NUM_THREADS"] = "1"
        command = [
            sys.executable,
            "-m",
            "hangscope.monitor",
            "--directory", str(self.directory),
            "--run-id", self.run_id,
            "--attempt", str(self.place.attempt),
            "--local-world-size", str(self.place.local_world_size),
            "--timeout", repr(self.settings.timeout_s),
            "--on-hang", self.settings.on_hang,
            "--detach",
        ]  # fmt: skip
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            env=environment,
            cwd="/",
        ):
            pass  # it detaches at once; waiting for the intermediate process leaves no zombie
