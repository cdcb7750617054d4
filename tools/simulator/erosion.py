"""Cases whose dumps lack parts of the evidence: files, groups, counters, times, names, partners."""

from __future__ import annotations

import json
import os
import pickle
import random
from pathlib import Path

from tools.simulator.case import Case, UnsuitableError
from tools.simulator.dialects import DIALECTS, nanoseconds
from tools.simulator.faults import FAULTS, draw
from tools.simulator.native_dumps import native

KINDS = sorted(
    set(FAULTS) - {"torn_down", "finished", "moving", "slow", "killed", "different_reduce_op"}
)
MIXED = ("pickle 2.10", "pickle 2.0", "pickle 2.4", "json 2.5")


def some_case(rng: random.Random, number: int) -> Case:
    while True:
        try:
            return draw(number, rng.randrange(1 << 30), rng.choice(KINDS))
        except UnsuitableError:
            continue


def eroded(case: Case, rng: random.Random, folder: Path) -> frozenset[int]:
    """Write dumps with parts of the evidence missing; returns the ranks without a dump."""
    world = case.run.job.world

    def sometimes(chance: float) -> bool:
        return rng.random() < chance

    lost = set(case.lost)
    if sometimes(0.3):
        lost |= set(rng.sample(range(world), rng.randrange(1, max(2, world // 3))))
    wrapped, unlisted, uncounted = sometimes(0.4), sometimes(0.2), sometimes(0.3)
    active, mixed, timeless, unnamed = (
        sometimes(0.2), sometimes(0.3), sometimes(0.2), sometimes(0.2),
    )  # fmt: skip
    shapeless, partnerless, dated = sometimes(0.1), sometimes(0.1), sometimes(0.7)
    whole = case.keep
    for rank in sorted(set(range(world)) - lost):
        dialect = DIALECTS[rng.choice(MIXED) if mixed else "pickle 2.10"]
        if active and sometimes(0.5):
            dialect = DIALECTS["pickle 2.9, only active"]
        case.keep = rng.choice([0, 20, 35, 60]) if wrapped else whole
        document = native(case, rank, dialect)
        case.keep = whole
        assert isinstance(document, dict)
        if unlisted and sometimes(0.5):
            document.pop("pg_config", None)
        if uncounted and sometimes(0.5):
            document.pop("pg_status", None)
        for entry in document["entries"]:
            if timeless:
                del entry["time_created_ns"]
            if unnamed:
                entry["process_group"] = (entry["process_group"][0], "undefined")
            if shapeless:
                del entry["input_sizes"], entry["output_sizes"]
            if partnerless:
                entry["profiling_name"] = entry["profiling_name"].split(" ")[0]
        path = folder / f"rank_{rank}{'.json' if dialect.json else ''}"
        if dialect.json:
            path.write_text(json.dumps(document))
        else:
            path.write_bytes(pickle.dumps(document))
        if dated:
            moment = nanoseconds(case.at[rank])
            os.utime(path, ns=(moment, moment))
    return frozenset(lost)
