"""D4: other jobs on this host that see the same devices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from hangscope.ring.process_identity import environment_of, pid_namespace
from hangscope.toolkit.doctor.model import WARNING, Finding, Neighbour, Surroundings

_NUMBERED_ALIKE = ("SLURM_JOB_ID",)
"""Variables that must be equal for two jobs to number devices alike: Slurm gives every job its own
devices and numbers them from 0."""


def read_neighbours(env: Mapping[str, str], proc: Path = Path("/proc")) -> list[Neighbour]:
    """The ranks of this user's other jobs on this host, according to their environments.

    Processes of other users and of other containers, which number devices independently, are left
    out. ``env`` identifies this process's own job.
    """
    namespace = pid_namespace(proc / "self")
    own = _job(env)
    found = []
    for folder in proc.glob("[0-9]*"):
        environment = environment_of(folder)
        job = _job(environment)
        if job is None or job == own or pid_namespace(folder) != namespace:
            continue
        if all(environment.get(name) == env.get(name) for name in _NUMBERED_ALIKE):
            found.append(Neighbour(int(folder.name), job, environment.get("CUDA_VISIBLE_DEVICES")))
    return sorted(found, key=lambda neighbour: neighbour.pid)


def check_neighbours(s: Surroundings) -> Iterator[Finding]:
    """Findings on devices visible both to this process and to ranks of other jobs here."""
    everything = {str(device.index) for device in s.devices}
    own = _seen(s.env.get("CUDA_VISIBLE_DEVICES"), everything)
    first: dict[str, Neighbour] = {}
    shared: dict[str, set[str]] = {}
    for neighbour in s.neighbours:
        common = own & _seen(neighbour.visible, everything)
        if common:
            first.setdefault(neighbour.job, neighbour)
            shared.setdefault(neighbour.job, set()).update(common)
    for job, devices in shared.items():
        yield Finding(
            WARNING,
            "devices-overlap",
            f"another job on this host (of process {first[job].pid}, {job}) sees device "
            f"{', '.join(_in_order(devices))} as well",
            "Give every job a CUDA_VISIBLE_DEVICES of its own.",
            "D4",
        )


def _job(env: Mapping[str, str]) -> str | None:
    """Identity of a rank's job on its host; None if the process is not a rank."""
    if "RANK" not in env or "MASTER_PORT" not in env:
        return None
    return f"MASTER_PORT={env['MASTER_PORT']}"


def _seen(visible: str | None, everything: set[str]) -> set[str]:
    if visible is None:
        return everything
    return {part for part in map(str.strip, visible.split(",")) if part not in ("", "-1")}


def _in_order(devices: Iterable[str]) -> list[str]:
    return sorted(devices, key=lambda name: (not name.isdigit(), name.zfill(4)))
