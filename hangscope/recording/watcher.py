"""The watcher: a daemon thread that writes heartbeats, polls completions and samples stacks.

It does little and wakes rarely, because whatever it does takes the GIL from the training loop.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from hangscope.recording.compiled.load import compiled
from hangscope.recording.native_status import NativeStatus
from hangscope.recording.recorder import Recorder
from hangscope.recording.ring_guard import RingGuard
from hangscope.recording.stack_samples import sample_threads

POLL_INTERVAL_S = 0.25
"""Most completions are noted by the next operation or by `Work.wait`; polling is for the rest. If
nothing is pending, the watcher sleeps longer: waking up is most of the cost of its turn."""
QUIET_INTERVAL_S = 0.5
HEARTBEAT_INTERVAL_S = 1.0


class Watcher(threading.Thread):
    """Keeps the ring's information about this process up to date."""

    def __init__(
        self,
        recorder: Recorder,
        on_error: Callable[[BaseException], None],
        *,
        stacks: bool,
        native: NativeStatus | None = None,
    ) -> None:
        super().__init__(name="hangscope-watcher", daemon=True)
        self._recorder = recorder
        self._on_error = on_error
        self._stacks = stacks
        self._native = native
        self.on_beats: list[Callable[[], object]] = []
        """Called at every heartbeat."""
        self._guard = RingGuard(recorder.ring, compiled())
        self._stop_event = threading.Event()
        self._idle = threading.Event()
        self._turn = threading.Event()
        self._watches_exit = False

    def stop(self) -> None:
        """Ask the thread to end; returns at once."""
        self._watches_exit = False
        self._stop_event.set()
        self._turn.set()
        self._guard.remove()

    def pause(self, timeout_s: float) -> None:
        """End what the thread does with the job's objects, but keep it for `watch_exit`.

        Returns once it touches none of them, or after ``timeout_s``. Python starts no new threads
        once it has begun to exit.
        """
        self._watches_exit = True
        self._stop_event.set()
        self._idle.wait(timeout_s)

    def watch_exit(self) -> None:
        """Let a paused thread go on with heartbeats and stacks, until the interpreter ends it."""
        self._turn.set()

    def run(self) -> None:
        try:
            self._watch_program()
        except Exception as error:
            self._on_error(error)
            return
        finally:
            self._idle.set()
        if self._watches_exit:
            self._turn.wait()
        while self._watches_exit:
            # Nothing of torch, no lock: the interpreter may end this thread at any instruction.
            time.sleep(HEARTBEAT_INTERVAL_S)
            try:
                self._guard.check()
                self._recorder.ring.beat()
                if self._stacks:
                    self._recorder.ring.write_sample(sample_threads(skip=self.ident))
            except Exception:
                return  # the program is over: nobody is left to be told

    def _watch_program(self) -> None:
        due = 0.0
        self._guard.check()
        # Signals that request stacks go to this thread only: in another thread, a signal could
        # interrupt the very system call it hangs in.
        self._recorder.ring.put_i8("watcher_thread", threading.get_native_id())
        wait = self._stop_event.wait
        interval_s = POLL_INTERVAL_S
        while not wait(interval_s):
            self._guard.check()
            quiet_s = POLL_INTERVAL_S if self._recorder.catch_up() else QUIET_INTERVAL_S
            now = time.monotonic()
            if now >= due:
                due = now + HEARTBEAT_INTERVAL_S
                self.tick()
            interval_s = min(quiet_s, due - now)

    def tick(self) -> None:
        """One heartbeat: groups, native counters, stacks."""
        recorder = self._recorder
        recorder.ring.beat()
        for call in self.on_beats:
            call()
        recorder.groups.scan()
        if self._native is not None:
            self._native.merge(recorder)
        if self._stacks:
            recorder.ring.write_sample(sample_threads(skip=self.ident))
