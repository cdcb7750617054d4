"""HangScope: finds out why a distributed PyTorch job hangs.

``import hangscope`` is cheap: every public name is loaded on first use, so torch is not imported
until a function needs it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hangscope._version import __version__

if TYPE_CHECKING:
    from hangscope.notebook import Run, load
    from hangscope.recording.api import dump, phase, record, start, stop
    from hangscope.toolkit.barriers.agreement import Disagreement
    from hangscope.toolkit.barriers.barrier import BarrierTimeout, barrier
    from hangscope.toolkit.environments.environment import configure_environment
    from hangscope.toolkit.launching.launch import destroy_distributed, init_distributed
    from hangscope.toolkit.launching.world import WorldInfo, get_world_info
    from hangscope.toolkit.reductions.deterministic import (
        DeterministicAllReduceConfig,
        ReductionCheck,
        check_all_reduce,
        configure_deterministic_nccl_env,
        deterministic_all_reduce,
    )
    from hangscope.toolkit.warmup.communicators import WarmupError, warmup_communicators
    from hangscope.toolkit.warmup.parameters import SyncError, sync_parameters
    from hangscope.toolkit.warmup.training import Rewindable, warmup_training

_HOME = {
    "load": "notebook",
    "Run": "notebook",
    "start": "recording.api",
    "stop": "recording.api",
    "dump": "recording.api",
    "record": "recording.api",
    "phase": "recording.api",
    "barrier": "toolkit.barriers.barrier",
    "BarrierTimeout": "toolkit.barriers.barrier",
    "Disagreement": "toolkit.barriers.agreement",
    "get_world_info": "toolkit.launching.world",
    "WorldInfo": "toolkit.launching.world",
    "configure_environment": "toolkit.environments.environment",
    "init_distributed": "toolkit.launching.launch",
    "destroy_distributed": "toolkit.launching.launch",
    "warmup_communicators": "toolkit.warmup.communicators",
    "WarmupError": "toolkit.warmup.communicators",
    "sync_parameters": "toolkit.warmup.parameters",
    "SyncError": "toolkit.warmup.parameters",
    "warmup_training": "toolkit.warmup.training",
    "Rewindable": "toolkit.warmup.training",
    "deterministic_all_reduce": "toolkit.reductions.deterministic",
    "DeterministicAllReduceConfig": "toolkit.reductions.deterministic",
    "configure_deterministic_nccl_env": "toolkit.reductions.deterministic",
    "check_all_reduce": "toolkit.reductions.deterministic",
    "ReductionCheck": "toolkit.reductions.deterministic",
}

__all__ = [
    "BarrierTimeout",
    "DeterministicAllReduceConfig",
    "Disagreement",
    "ReductionCheck",
    "Rewindable",
    "Run",
    "SyncError",
    "WarmupError",
    "WorldInfo",
    "__version__",
    "barrier",
    "check_all_reduce",
    "configure_deterministic_nccl_env",
    "configure_environment",
    "destroy_distributed",
    "deterministic_all_reduce",
    "dump",
    "get_world_info",
    "init_distributed",
    "load",
    "phase",
    "record",
    "start",
    "stop",
    "sync_parameters",
    "warmup_communicators",
    "warmup_training",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'hangscope' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"hangscope.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
