"""HangScope: finds out why a distributed PyTorch job hangs.

``import hangscope`` is cheap: every public name is loaded on first use, so torch is not imported
until a function needs it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hangscope._version import __version__

if TYPE_CHECKING:
    from hangscope.recording.api import dump, phase, record, start, stop
    from hangscope.toolkit.barrier import BarrierTimeout, barrier
    from hangscope.toolkit.deterministic import (
        DeterministicAllReduceConfig,
        ReductionCheck,
        check_all_reduce,
        configure_deterministic_nccl_env,
        deterministic_all_reduce,
    )
    from hangscope.toolkit.environment import configure_environment
    from hangscope.toolkit.launch import destroy_distributed, init_distributed
    from hangscope.toolkit.warmup import (
        sync_parameters,
        warmup_communicators,
        warmup_training,
    )
    from hangscope.toolkit.world import WorldInfo, get_world_info

_HOME = {
    "start": "recording.api",
    "stop": "recording.api",
    "dump": "recording.api",
    "record": "recording.api",
    "phase": "recording.api",
    "barrier": "toolkit.barrier",
    "BarrierTimeout": "toolkit.barrier",
    "get_world_info": "toolkit.world",
    "WorldInfo": "toolkit.world",
    "configure_environment": "toolkit.environment",
    "init_distributed": "toolkit.launch",
    "destroy_distributed": "toolkit.launch",
    "warmup_communicators": "toolkit.warmup",
    "sync_parameters": "toolkit.warmup",
    "warmup_training": "toolkit.warmup",
    "deterministic_all_reduce": "toolkit.deterministic",
    "DeterministicAllReduceConfig": "toolkit.deterministic",
    "configure_deterministic_nccl_env": "toolkit.deterministic",
    "check_all_reduce": "toolkit.deterministic",
    "ReductionCheck": "toolkit.deterministic",
}

__all__ = [
    "BarrierTimeout",
    "DeterministicAllReduceConfig",
    "ReductionCheck",
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
