"""Warm-up: communicators, replicas and the first training steps."""

from __future__ import annotations

from hangscope.toolkit.agreement import Disagreement
from hangscope.toolkit.communicators import WarmedGroup, WarmupError, warmup_communicators
from hangscope.toolkit.parameters import SyncError, SyncReport, sync_parameters
from hangscope.toolkit.training import Rewindable, TrainingWarmup, warmup_training

__all__ = [
    "Disagreement",
    "Rewindable",
    "SyncError",
    "SyncReport",
    "TrainingWarmup",
    "WarmedGroup",
    "WarmupError",
    "sync_parameters",
    "warmup_communicators",
    "warmup_training",
]
