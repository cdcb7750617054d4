"""Guards one test: makes the processes it starts record, and kills them if they hang."""

from __future__ import annotations

import io
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hangscope.ring.run_secret import LAUNCH_VARIABLE, RunSecret, new_secret

if TYPE_CHECKING:
    from hangscope.trace.processes.signals import Evidence

GRACE_S = 1.0
"""In addition to the timeout: a verdict may come before all ranks have stopped moving."""
_POLL_S = 0.25
Claimed = tuple[int, int, list["Evidence"]]
"""A process and what shows that it is a rank, as `hangscope.trace.processes.signals` takes them."""


class Guard:
    """Watches the run directory of one test from a thread in the test's process.

    Parameters
    ----------
    timeout_s:
        Seconds a collective of the test may wait (``HANGSCOPE_TIMEOUT`` of its processes).

    Attributes
    ----------
    report:
        The text of the verdict, once the test's processes hung and were ended.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.directory = Path(tempfile.mkdtemp(prefix="hangscope-test-"))
        self.environment = {
            "HANGSCOPE": "1",
            "HANGSCOPE_DIR": str(self.directory),
            "HANGSCOPE_TIMEOUT": str(timeout_s),
            "HANGSCOPE_MONITOR": "0",
            LAUNCH_VARIABLE: new_secret(),
        }
        self.report: str | None = None
        self._before: dict[str, str | None] = {}
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._said = io.StringIO()
        self._undo: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Set the environment and begin to watch."""
        self._before = {name: os.environ.get(name) for name in self.environment}
        os.environ.update(self.environment)
        self._undo = _record_in_forks()
        for target in (self._follow, self._guard):
            thread = threading.Thread(target=target, name="hangscope-guard", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Restore the environment and remove the run, unless it hung."""
        self._over.set()
        self._undo()
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        for thread in self._threads:
            thread.join(5.0)
        if self.report is None:
            shutil.rmtree(self.directory, ignore_errors=True)

    # -- threads ---------------------------------------------------------------------------

    def _follow(self) -> None:
        """Run the node's monitor, with its output going into a text."""
        while not self._rings():
            if self._over.wait(_POLL_S):
                return
        from hangscope.monitor.config import MonitorConfig
        from hangscope.monitor.watch import Monitor
        from hangscope.trace.live.open_ring import RunKey
        from hangscope.trace.live.own_run import OwnRun

        own = OwnRun(RunSecret(self.environment[LAUNCH_VARIABLE]))
        config = MonitorConfig(self.directory, None, 0, self.timeout_s, own=own)
        followed: set[RunKey] = set()
        while not self._over.is_set():
            # One monitor per attempt: a test may run several jobs one after another.
            monitor = Monitor(
                config,
                out=self._said,
                keep_going=lambda: not self._over.is_set(),
                skip=frozenset(followed),
            )
            monitor.follow()
            if monitor.key is not None:
                followed.add(monitor.key)
            self._over.wait(_POLL_S)

    def _guard(self) -> None:
        """Kill processes that have not moved for the timeout after a verdict on them."""
        progress: object = None
        since_s = time.monotonic()
        while not self._over.wait(_POLL_S):
            if not self._said.tell():
                continue
            current, living = self._look()
            if current != progress:
                progress, since_s = current, time.monotonic()
            elif living and time.monotonic() - since_s > self._patience_s():
                text = self._said.getvalue().strip()
                self.report = f"{text}\nThe run is in {self.directory}"
                self._end(living)
                return

    def _patience_s(self) -> float:
        # A timeout verdict comes after the timeout, so there is no need to wait for it again.
        return min(self.timeout_s, 5.0) + GRACE_S

    def _rings(self) -> list[Path]:
        return sorted(self.directory.glob("*.ring"))

    def _look(self) -> tuple[object, list[Claimed]]:
        """A value that changes when any rank moves, and the processes of live ranks."""
        from hangscope.ring.checks import RingError
        from hangscope.ring.reader import RingReader, decode_text
        from hangscope.trace.processes.process import look_at
        from hangscope.trace.rings.facts import writer_of

        state: list[Any] = []
        living: list[Claimed] = []
        for path in self._rings():
            try:
                reader = RingReader(path)
            except (RingError, OSError):
                continue
            header = reader.header()
            state.append((header.last_record_id, reader.groups()["completed"].tobytes()))
            pid = header.pid
            look = look_at(
                pid=pid,
                start_ticks=header.start_ticks,
                boot_id=decode_text(header.boot_id),
                pid_namespace=header.pid_namespace,
            )
            if look.alive:
                living.append((pid, header.start_ticks, [writer_of(reader)]))
            reader.close()
        return state, living

    def _end(self, living: list[Claimed]) -> None:
        """Kill the ranks with SIGKILL, which also ends stopped processes and GIL holders."""
        from hangscope.trace.processes.signals import targets_of

        with targets_of(living) as targets:
            for target in targets.values():
                target.send(signal.SIGKILL)
        if any(pid == os.getpid() for pid, *_ in living):
            # This very process is a rank and blocked in C++, so no exception can be raised in it.
            sys.__stderr__.write(f"\n{self.report}\n") if sys.__stderr__ else None
            os._exit(1)


def _record_in_forks() -> Callable[[], None]:
    """Make forked children record even if torch is already imported; returns a function to undo it.

    Such a child does not import torch again, which would switch recording on.
    """
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None:
        return lambda: None
    from hangscope.recording.api import start
    from hangscope.recording.late_start import start_on_init
    from hangscope.recording.patches import Patches

    parent = os.getpid()
    patches = Patches()

    def wrap(original: Any) -> Any:
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            if os.getpid() == parent:
                return original(*args, **kwargs)
            patches.undo()
            start_on_init(start)
            return c10d.init_process_group(*args, **kwargs)

        return init_process_group

    patches.replace_function("init_process_group", wrap)
    return patches.undo
