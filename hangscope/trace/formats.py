"""The values of `Source.format`."""

from __future__ import annotations

RING = "hangscope-ring"
DEVICE_RING = "hangscope-device-ring"
"""Read together with the ring it lies beside, never alone."""
JOURNAL = "hangscope-journal"
PICKLE = "flight-recorder-pickle"
JSON = "flight-recorder-json"
LOG = "job-log"
RAS = "nccl-ras"
DUMPS = (PICKLE, JSON)
"""Flight Recorder dumps."""
RECORDS = (RING, *DUMPS)
"""Formats that ranks record themselves."""
