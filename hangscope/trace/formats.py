"""The names of the kinds of sources, as `Source.format` has them."""

from __future__ import annotations

RING = "hangscope-ring"
JOURNAL = "hangscope-journal"
PICKLE = "flight-recorder-pickle"
JSON = "flight-recorder-json"
LOG = "job-log"
RAS = "nccl-ras"
DUMPS = (PICKLE, JSON)
"""Flight Recorder dumps."""
RECORDS = (RING, *DUMPS)
"""What ranks have recorded themselves."""
