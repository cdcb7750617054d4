"""All rows, in the order in which they are offered a line."""

from __future__ import annotations

from hangscope.trace.job_log.rows import (
    communicators,
    comparisons,
    ddp,
    devices,
    fr_trace,
    frameworks,
    gloo,
    kernel_timeouts,
    launcher,
    other_launchers,
    phases,
    pods,
    rendezvous,
    watchdog,
)
from hangscope.trace.job_log.rows.row import Row

ROWS: tuple[Row, ...] = (
    *other_launchers.RAY,
    *watchdog.ROWS,
    *kernel_timeouts.ROWS,
    *comparisons.ROWS,
    *gloo.ROWS,
    *ddp.ROWS,
    *rendezvous.ROWS,
    *other_launchers.ROWS,
    *frameworks.ROWS,
    *fr_trace.ROWS,
    *pods.ROWS,
    *launcher.NODES,
    *launcher.ROWS,
    *launcher.WORLD,
    *communicators.ROWS,
    *devices.ROWS,
    *phases.ROWS,
)
"""More specific ones come first: the first that records a line is the last to see it."""
