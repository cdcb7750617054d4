"""Decides, at the end of ``import torch``, whether this process records now, later or never.

"Record in every rank of a job" is less simple than it sounds: children of a rank (data-loader
workers, compile workers, helper scripts) inherit its environment, launchers run under Slurm with a
rank of their own, and ``mp.spawn`` ranks have none until they call ``init_process_group``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from hangscope.ring.job_place import place_from_environment
from hangscope.ring.process_identity import OWNER

_LAUNCHERS = frozenset({"torchrun", "accelerate", "accelerate-launch", "deepspeed", "fabric"})
_LAUNCHER_MODULES = frozenset(
    {
        "torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch",
        "accelerate.commands.accelerate_cli", "deepspeed.launcher.launch",
        "deepspeed.launcher.runner",
    }
)  # fmt: skip


def enable() -> None:
    """Start recording now if this process is a rank, else when it becomes one."""
    if _is_rank_now():
        _start()
    else:
        from hangscope.recording.late_start import start_on_init

        start_on_init(_start)


def _start(*, rank: int = -1, world_size: int = -1) -> bool:
    """Imports the recorder only where a process records: most that import torch do not."""
    from hangscope.recording.api import start

    return start(rank=rank, world_size=world_size)


def _is_rank_now() -> bool:
    if place_from_environment(os.environ) is None:
        return False
    owner = os.environ.get(OWNER)
    if owner is not None and owner != str(os.getpid()):
        return False
    return not _is_multiprocessing_child() and not _is_launcher()


def _is_multiprocessing_child() -> bool:
    """Whether this is a ``spawn`` or ``forkserver`` child, whose inherited rank is its parent's."""
    if any(word in ("--multiprocessing-fork",) for word in sys.argv):
        return True
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def _is_launcher() -> bool:
    """Whether this is the launcher itself, to which Slurm and mpirun give a rank, too."""
    if os.environ.get("TORCHELASTIC_RUN_ID"):
        return False
    return is_launch(getattr(sys, "orig_argv", sys.argv), len(sys.argv) - 1)


def is_launch(words: Sequence[str], arguments: int) -> bool:
    """Whether a command is a launcher.

    Parameters
    ----------
    words:
        The whole command: interpreter, its options, the program and the program's arguments.
    arguments:
        Number of the program's arguments, which do not count: ``--strategy deepspeed`` makes no
        launcher.
    """
    words = words[: len(words) - arguments]
    module = words[words.index("-m") + 1 :][:1] if "-m" in words else []
    return bool(_LAUNCHER_MODULES.intersection(module)) or any(
        Path(word).name in _LAUNCHERS for word in words
    )
