"""``python -m hangscope.monitor``: the node's monitor, started by local rank 0.

Internal; users call ``hangscope run``. It detaches before importing anything heavy, because the
rank that starts it waits for that. What detaches only waits for the monitor itself, and starts it
once more if it dies (the OOM killer may take it).
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
from pathlib import Path

from hangscope.monitor.early_pidfds import EarlyWatch
from hangscope.nccl_plugin.background import prepare_plugin
from hangscope.ring.run_secret import RunSecret, new_secret

_COLLECT_AFTER = 100_000
"""Objects; by default Python looks for garbage after 700 new ones."""


def main() -> int:
    """Parse, detach, follow."""
    parser = argparse.ArgumentParser(prog="python -m hangscope.monitor")
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--run-id", required=True)
    parser.add_argument("--attempt", type=int, default=0)
    parser.add_argument("--local-world-size", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=120.0)
    parser.add_argument("--on-hang", choices=("report", "kill"), default="report")
    parser.add_argument("--detach", action="store_true")
    arguments = parser.parse_args()
    monitors = RunSecret(new_secret())  # known to the one that is started again as well
    if not arguments.detach:
        return follow(arguments, monitors)
    if os.fork():
        os._exit(0)
    # Whatever ends the job must not end its monitor, which exits by itself after the ranks.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    for consequence in ("it is started again", "nobody watches the job now; recording goes on"):
        child = os.fork()
        if not child:
            return follow(arguments, monitors)
        how = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if how == 0:
            return 0
        ended = f"was killed by signal {-how}" if how < 0 else f"ended with status {how}"
        _say(f"the monitor {ended}: {consequence}")
    return 1


def follow(arguments: argparse.Namespace, monitors: RunSecret) -> int:
    """Follow the job until its ranks are gone; returns the exit status."""
    early = EarlyWatch(arguments.directory)
    prepare_plugin()  # before anything slow: the ranks' first communicators look for it
    from hangscope.monitor.config import MonitorConfig
    from hangscope.monitor.processes import ProcessWatch
    from hangscope.monitor.watch import Monitor
    from hangscope.trace.live.open_ring import RunKey
    from hangscope.trace.live.own_run import OwnRun

    config = MonitorConfig(
        directory=arguments.directory,
        key=RunKey(arguments.run_id, arguments.attempt),
        local_world_size=arguments.local_world_size,
        timeout_s=arguments.timeout,
        on_hang=arguments.on_hang,
        notice=os.environ.get("HANGSCOPE_NOTICE", "1").strip().lower(),
        own=OwnRun(RunSecret.of(os.environ), monitors),
    )
    gc.freeze()  # at 16,384 ranks a fifth of each look went into looking for garbage
    gc.set_threshold(_COLLECT_AFTER, 50, 100)
    try:
        os.nice(5)  # only now: while imports run, nobody watches
    except OSError:
        pass
    try:
        Monitor(config, processes=ProcessWatch(*early.take())).follow()
    except Exception as error:
        _say(f"the monitor ended early: {type(error).__name__}: {error}")
        return 1
    return 0


def _say(message: str) -> None:
    """Print one line, if the job's log is still open; imports nothing heavy."""
    from hangscope.report.escape import plain

    try:
        sys.stderr.write(f"[hangscope] {plain(message)}\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        pass


if __name__ == "__main__":
    sys.exit(main())
