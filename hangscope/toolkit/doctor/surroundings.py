"""Reads this process's surroundings without importing torch and without touching a device."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from hangscope.recording.compiled.load import places
from hangscope.toolkit.doctor.model import Device, Surroundings
from hangscope.toolkit.doctor.neighbours import read_neighbours
from hangscope.toolkit.environments.environment import installed_torch_version, parse_version
from hangscope.toolkit.environments.interfaces import read_interfaces

_SMI_TIMEOUT_S = 15


def read_surroundings(
    command: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> Surroundings:
    """Read everything that the checks need."""
    env = dict(os.environ if environ is None else environ)
    version = installed_torch_version()
    return Surroundings(
        env=env,
        torch_version=version,
        version=parse_version(version),
        devices=tuple(read_devices()),
        neighbours=tuple(read_neighbours(env)),
        interfaces=tuple(read_interfaces()),
        command=tuple(command),
        shm_bytes=_shared_memory(),
        files_limit=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        home=env.get("HOME", ""),
        cwd=str(Path.cwd()),
        is_compiled=any(any(place.glob("hot_path_*")) for place in places()),
    )


def read_devices() -> list[Device]:
    """NVIDIA devices as nvidia-smi lists them; asking CUDA would create a context on device 0."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = [program, "--query-gpu=index,name,memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(
            query, capture_output=True, text=True, timeout=_SMI_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return parse_devices(answer.stdout) if answer.returncode == 0 else []


def parse_devices(text: str) -> list[Device]:
    """Devices from nvidia-smi's CSV; lines it cannot read are skipped."""
    devices = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == 3 and parts[0].isdigit() and parts[2].isdigit():
            devices.append(Device(int(parts[0]), parts[1], int(parts[2]) * 2**20))
    return devices


def _shared_memory() -> int | None:
    try:
        stat = os.statvfs("/dev/shm")
    except OSError:
        return None
    return stat.f_bavail * stat.f_frsize
