"""Directs torch's own Flight Recorder dumps into the run directory, unless the user chose a place.

NCCL's watchdog writes native entries when a collective times out. They contain what Python must not
query from CUDA: when each operation started, and when it was found completed. In the run directory
they are read together with the ring (`hangscope.trace.merging.records`).

Source: ``FlightRecorderDetail.hpp`` and ``ProcessGroupNCCL.cpp`` of torch. The file is named by
the variable with the rank appended; the older name is read by releases before 2.8 and, with a
warning, by later ones.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from pathlib import Path

VARIABLE = "TORCH_FR_DUMP_TEMP_FILE"
OLD_VARIABLE = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
DYNAMIC = "TORCH_FR_DUMP_DYNAMIC_FILE_NAME"
"""If set, the job itself names each rank's file at run time, and no rank is appended."""
STEM = "nccl_trace_rank_"
RENAMED_IN = (2, 8)


def keep_native_dumps(
    directory: Path, environment: MutableMapping[str, str], torch_version: str
) -> str | None:
    """Have native dumps written into the run directory; returns the variable it has set, if any.

    Parameters
    ----------
    directory:
        The run directory, made absolute because the job may change its working directory later.
    environment:
        This process's environment; not changed if the user has set any of the variables.
    torch_version:
        Such as ``"2.13.0+cpu"``; one that does not begin with two numbers counts as new.
    """
    if any(environment.get(name) for name in (VARIABLE, OLD_VARIABLE, DYNAMIC)):
        return None
    numbers = re.match(r"(\d+)\.(\d+)", torch_version)
    is_old = numbers is not None and tuple(map(int, numbers.groups())) < RENAMED_IN
    name = OLD_VARIABLE if is_old else VARIABLE
    environment[name] = str(directory.absolute() / STEM)
    return name
