"""Where a rank's ring file is: in the run directory, unless that is on a network file system.

A training step must never wait for a page fault over NFS. There, the ring is in local memory and
the run directory holds a symlink; the monitor copies the file over when the job ends.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from hangscope.ring.local_store import local_folder
from hangscope.ring.run_directory import create, opened
from hangscope.ring.stack_requests import stacks_file
from hangscope.ring.writer import RingIdentity, RingWriter

_NETWORK = frozenset(
    {
        "nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "beegfs", "ceph", "glusterfs",
        "9p", "afs", "orangefs", "pvfs2", "weka", "wekafs", "virtiofs",
    }
)  # fmt: skip
MAX_STARTS = 100
"""How many times one process may start recording in the same directory."""


def file_system_of(path: Path) -> str:
    """The type of the file system a path is on; empty if not known."""
    try:
        target = str(path.resolve())
        best, kind = "", ""
        for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
            _, mount, fs_type, *_ = line.split(" ")
            mount = mount.replace("\\040", " ")
            inside = target == mount or target.startswith(mount.rstrip("/") + "/")
            if inside and len(mount) >= len(best):
                best, kind = mount, fs_type
        return kind
    except (OSError, ValueError):
        return ""


def is_network(path: Path) -> bool:
    """Whether a path is on a network file system or on FUSE.

    A FUSE server may wait for anything; most of them access a network.
    """
    kind = file_system_of(path)
    return kind in _NETWORK or kind.partition(".")[0] == "fuse"


def open_ring(directory: Path, identity: RingIdentity, slot_count: int) -> RingWriter:
    """Create this rank's ring file in the run directory, or elsewhere with a link in it.

    Another run's file of the same name is never touched; the new name then includes the run id.

    Raises
    ------
    OSError
        If the directory cannot be created or written, or is full.
    """
    create(directory)
    stem = f"rank_{identity.rank}"
    mine = f"{stem}.{identity.run_id}.{identity.attempt}"
    names = [f"{stem}.ring", f"{mine}.ring", f"{mine}.{identity.pid}.ring"]
    names += [f"{mine}.{identity.pid}.{n}.ring" for n in range(2, MAX_STARTS)]
    local = local_folder(identity.run_id) if is_network(directory) else None
    for name in names:
        try:
            if local is None:
                return RingWriter(directory / name, identity, slot_count)
            ring = RingWriter(local / f"{identity.pid}.{name}", identity, slot_count)
            try:
                with opened(directory) as folder:
                    folder.link(name, ring.path)
            except OSError:
                _remove(ring)
                raise
            return ring
        except FileExistsError:
            continue
    raise FileExistsError(f"every name for rank {identity.rank} is taken in {directory}")


def discard(directory: Path, ring: RingWriter) -> None:
    """Delete the file of a recording that could not begin; best effort."""
    with contextlib.suppress(OSError), opened(directory) as folder:
        for name in folder.names():
            if folder.target_of(name) == str(ring.path):
                folder.remove(name)
        _remove(ring)


def _remove(ring: RingWriter) -> None:
    with opened(ring.path.parent) as folder:
        folder.remove(ring.path.name)
        folder.remove(stacks_file(ring.path.name))


def link_latest(directory: Path) -> None:
    """Point the ``latest`` link beside the run directory at it; best effort."""
    temporary = f".latest-{os.getpid()}"
    with contextlib.suppress(OSError), opened(directory.parent) as runs:
        runs.remove(temporary)
        runs.link(temporary, directory.name)
        try:
            runs.replace("latest", temporary)
        except OSError:
            runs.remove(temporary)
