"""Checks inside a job: every rank sends its facts, rank 0 compares them, all get the result.

Only rank 0 looks at files, because a network file system may give different answers to several
ranks that ask whether a file exists.
"""

from __future__ import annotations

import json
import platform
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from hangscope.toolkit.barriers import store_incarnation
from hangscope.toolkit.barriers.meeting import StoreGroup, meet
from hangscope.toolkit.doctor.devices import shared_devices
from hangscope.toolkit.doctor.model import ERROR, WARNING, Finding, Surroundings
from hangscope.toolkit.environments.variables import BY_NAME
from hangscope.toolkit.launching.world import WorldInfo
from hangscope.toolkit.ranks import compress, name_ranks

SKEW_S = 1.0
"""Clocks further apart than this make timelines of several hosts misleading."""
_PER_RANK = ("CUDA_VISIBLE_DEVICES",)
_TURN_S = 10.0

_COMPARED = (
    ("world_size", ERROR, "WORLD_SIZE", "the same --nnodes and --nproc-per-node everywhere", "D2"),
    ("run_id", ERROR, "the rendezvous id", "the same --rdzv-id on every node", "D2"),
    ("master", ERROR, "MASTER_ADDR:MASTER_PORT", "the same --rdzv-endpoint on every node", "D2"),
    ("torch", ERROR, "the torch version", "the same image on every node", ""),
    ("cuda", ERROR, "the CUDA version of torch", "the same image on every node", ""),
    ("nccl", ERROR, "the NCCL version", "the same image on every node", ""),
    ("python", WARNING, "the Python version", "the same image on every node", ""),
    ("hangscope", WARNING, "the HangScope version", "the same image on every node", ""),
)


def facts_of(s: Surroundings, world: WorldInfo) -> dict[str, Any]:
    """The facts this rank sends to the others."""
    from hangscope._version import __version__

    visible = s.env.get("CUDA_VISIBLE_DEVICES")
    cuda, nccl = _cuda_versions()
    return {
        "host": socket.gethostname(),
        "local_rank": world.local_rank,
        "world_size": world.world_size,
        "run_id": s.env.get("TORCHELASTIC_RUN_ID", s.env.get("SLURM_JOB_ID", "")),
        "master": f"{s.env.get('MASTER_ADDR', '')}:{s.env.get('MASTER_PORT', '')}",
        "torch": s.torch_version,
        "cuda": cuda,
        "nccl": nccl,
        "python": platform.python_version(),
        "hangscope": __version__,
        "devices": len(s.devices),
        "visible": None if visible is None else [p for p in visible.split(",") if p.strip()],
        "environment": {n: s.env[n] for n in BY_NAME if n in s.env and n not in _PER_RANK},
        "interfaces": [i.name for i in s.interfaces if i.usable and i.kind != "loop"],
    }


def compare(ranks: Mapping[int, Mapping[str, Any]]) -> Iterator[Finding]:
    """Findings on facts that differ between ranks and should not."""
    for key, level, name, fix, playbook in _COMPARED:
        values = {rank: str(facts.get(key)) for rank, facts in ranks.items()}
        yield from _differs(values, level, name, fix, playbook)
    names = sorted({name for facts in ranks.values() for name in facts.get("environment", {})})
    for variable in names:
        values = {
            rank: str(facts.get("environment", {}).get(variable, "(unset)"))
            for rank, facts in ranks.items()
        }
        yield from _differs(values, WARNING, variable, "the same value on every rank", "")
    yield from shared_devices(ranks)


def _differs(
    values: Mapping[int, str], level: str, name: str, fix: str, playbook: str
) -> Iterator[Finding]:
    sides: dict[str, list[int]] = {}
    for rank, value in sorted(values.items()):
        sides.setdefault(value, []).append(rank)
    if len(sides) > 1:
        views = "; ".join(f"{value}: {name_ranks(side)}" for value, side in sides.items())
        fewest = min(sides.values(), key=len)
        yield Finding(
            level,
            "ranks-differ",
            f"{name} differs between ranks ({views})",
            f"Use {fix}.",
            playbook,
            ranks=tuple(fewest),
        )


def skew_findings(offsets: Mapping[str, tuple[float, float]]) -> Iterator[Finding]:
    """Findings on clock skew; ``offsets``: (seconds ahead of rank 0, uncertainty) by host."""
    for host, (offset, uncertainty) in sorted(offsets.items()):
        if abs(offset) - uncertainty > SKEW_S:
            yield Finding(
                WARNING,
                "clock-skew",
                f"the clock of {host} is {abs(offset):.1f} s "
                f"{'ahead of' if offset > 0 else 'behind'} rank 0's (±{uncertainty:.2g} s)",
                "Run NTP or chrony on every node; timelines across hosts are misleading.",
            )


def examine(
    s: Surroundings, world: WorldInfo, local: Sequence[Finding], store: Any, timeout_s: float
) -> list[Finding]:
    """Exchange facts and findings through the job's store; every rank gets the same result.

    Raises
    ------
    BarrierTimeout
        Ranks are missing.
    """
    from hangscope.toolkit.barriers.barrier import timeout_error

    incarnation = store_incarnation.join(store, world.rank)
    store_group = StoreGroup(
        store,
        "hangscope/doctor",
        tuple(range(world.world_size)),
        world.rank,
        "default",
        incarnation=incarnation,
    )
    keys = f"hangscope/doctor/{incarnation}"
    report = {"facts": facts_of(s, world), "findings": [asdict(f) for f in local]}
    store.set(f"{keys}/facts/{world.rank}", json.dumps(report))
    outcome = meet(store_group, timeout_s=timeout_s, site="doctor")
    if not outcome.met:
        raise timeout_error(store_group, outcome, timeout_s, "doctor")
    verdict = f"{keys}/verdict"
    if world.rank == 0:
        findings = _decide(store, keys, world.world_size)
        store.set(verdict, json.dumps([asdict(f) for f in findings]))
        _meet_again(store_group, timeout_s)
        return findings
    _answer_clock(store, keys, world)
    _wait(store, verdict, timeout_s)
    told = [
        Finding(**(item | {"ranks": tuple(item["ranks"])}))
        for item in json.loads(store.get(verdict))
    ]
    _meet_again(store_group, timeout_s)
    return told


def _meet_again(store_group: StoreGroup, timeout_s: float) -> None:
    """Wait until all have read the verdict, because rank 0 may be serving the store."""
    meet(store_group, timeout_s=timeout_s, site="doctor: end")


def _decide(store: Any, keys: str, world_size: int) -> list[Finding]:
    everybody: dict[int, Mapping[str, Any]] = {}
    merged: dict[tuple[str, str], tuple[dict[str, Any], list[int]]] = {}
    for rank in range(world_size):
        facts = json.loads(store.get(f"{keys}/facts/{rank}"))
        everybody[rank] = facts["facts"]
        for item in facts["findings"]:
            merged.setdefault((item["check"], item["what"]), (item, []))[1].append(rank)
    found = [Finding(**(item | {"ranks": tuple(ranks)})) for item, ranks in merged.values()]
    return [*found, *compare(everybody), *skew_findings(_clocks(store, keys, everybody))]


def _clocks(
    store: Any, keys: str, everybody: Mapping[int, Mapping[str, Any]]
) -> dict[str, tuple[float, float]]:
    """Clock offset of one rank per host, from the midpoint between request and answer."""
    here = everybody[0]["host"]
    first: dict[str, int] = {}
    for rank, facts in sorted(everybody.items()):
        if facts["host"] != here:
            first.setdefault(str(facts["host"]), rank)
    offsets: dict[str, tuple[float, float]] = {}
    asked = set(first.values())
    for rank in everybody:
        store.set(f"{keys}/turn/{rank}", "go" if rank in asked else "no")
    for host, rank in first.items():
        sent = time.time()
        store.set(f"{keys}/ask/{rank}", "x")
        if _wait(store, f"{keys}/answer/{rank}", _TURN_S):
            got = time.time()
            clock = float(store.get(f"{keys}/answer/{rank}"))
            offsets[host] = (clock - (sent + got) / 2, (got - sent) / 2)
    return offsets


def _answer_clock(store: Any, keys: str, world: WorldInfo) -> None:
    turn = f"{keys}/turn/{world.rank}"
    if not _wait(store, turn, 60.0) or store.get(turn) != b"go":
        return
    if _wait(store, f"{keys}/ask/{world.rank}", 60.0 + _TURN_S):
        store.set(f"{keys}/answer/{world.rank}", repr(time.time()))


def _wait(store: Any, key: str, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    pause = 0.0005
    while not store.check([key]):
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(pause * 1.3, 0.02)
    return True


def _cuda_versions() -> tuple[str, str]:
    import torch

    cuda: Any = torch.cuda
    if not cuda.is_available():
        return str(torch.version.cuda), ""
    try:
        return str(torch.version.cuda), ".".join(map(str, cuda.nccl.version()))
    except Exception:  # a build without NCCL
        return str(torch.version.cuda), ""


def missing_finding(missing: Sequence[int], message: str) -> Finding:
    """The finding of a rank that waited in vain for others."""
    return Finding(
        ERROR,
        "ranks-missing",
        message if not missing else f"{name_ranks(missing)} did not come: {message}",
        f"Look at the logs of {compress(missing)} first." if missing else "Look at rank 0's log.",
        "D2",
        ranks=tuple(missing),
    )
