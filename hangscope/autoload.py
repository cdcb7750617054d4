"""The function that ``import torch`` calls through the ``torch.backends`` entry point.

Standard library only, returns at once unless ``HANGSCOPE=1``, and never raises: an exception from
here would make ``import torch`` fail for everyone who installed HangScope.
"""

from __future__ import annotations

import os
import sys

_ON = frozenset({"1", "true", "yes", "on"})
_OFF = frozenset({"", "0", "false", "no", "off"})


_LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")


def _prints_warnings() -> bool:
    """Whether this process prints warnings for its node: torchrun itself, or the first rank."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return False  # the torchrun that started it has already read the same variables
    return all(os.environ.get(name, "0") == "0" for name in _LOCAL_RANKS)


def autoload() -> None:
    """Start recording if ``HANGSCOPE=1`` is set and this process is a rank of a job.

    A process that may become a rank later (a ``spawn`` child, a job whose launcher exports no
    ``RANK``) only gets a wrapper around ``init_process_group`` that starts recording then.
    """
    value = os.environ.get("HANGSCOPE")
    if value is None:
        return
    try:
        word = value.strip().lower()
        if word in _OFF:
            return
        if word not in _ON:
            if _prints_warnings():
                sys.stderr.write(
                    f"[hangscope] HANGSCOPE={value!r} is not understood; set it to 1 to record or "
                    "leave it unset. Not recording.\n"
                )
            return
        from hangscope.recording.enable import enable

        enable()
    except Exception as error:
        try:
            from hangscope.recording.warn_once import warn_once

            warn_once(f"recording is off: {type(error).__name__}: {error}")
        except Exception:
            pass
