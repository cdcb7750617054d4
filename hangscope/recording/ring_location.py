"""Where a rank's ring file is: in the run directory, unless that is on a network file system.

A training step must never wait for a page fault over NFS. There, the ring is in local memory and
the run directory holds a symlink; the monitor copies the file over when the job ends.
"""

from __future__ import annotations

import os
from pathlib import Path

from hangscope.ring.writer import RingIdentity, RingWriter

_NETWORK = frozenset(
    {
        "nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "beegfs", "ceph", "glusterfs",
        "9p", "afs", "orangefs", "pvfs2", "weka", "wekafs", "virtiofs",
    }
)  # fmt: skip
MAX_STARTS = 100
"""How many times one process may start recording in the same directory."""
LOCAL_PLACES = (Path("/dev/shm"), Path("/tmp"))


def file_system_of(path: Path) -> str:
    """The type of the file system a path is on; empty if not known."""
    try:
        target = str(path.resolve())
        best, kind = "", ""
        for line in Path("/proc/self/mounts").read_text().splitlines():
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
    directory.mkdir(parents=True, exist_ok=True)
    stem = f"rank_{identity.rank}"
    mine = f"{stem}.{identity.run_id}.{identity.attempt}"
    names = [f"{stem}.ring", f"{mine}.ring", f"{mine}.{identity.pid}.ring"]
    names += [f"{mine}.{identity.pid}.{n}.ring" for n in range(2, MAX_STARTS)]
    local = _local_directory(identity) if is_network(directory) else None
    for name in names:
        link = directory / name
        try:
            if local is None:
                return RingWriter(link, identity, slot_count)
            local.mkdir(parents=True, exist_ok=True)
            ring = RingWriter(local / f"{identity.pid}.{name}", identity, slot_count)
            try:
                os.symlink(ring.path, link)
            except FileExistsError:
                ring.path.unlink()
                raise
            return ring
        except FileExistsError:
            continue
    raise FileExistsError(f"every name for rank {identity.rank} is taken in {directory}")


def discard(directory: Path, ring: RingWriter) -> None:
    """Delete the file of a recording that could not begin; best effort."""
    links = [path for path in directory.glob("rank_*.ring") if path.is_symlink()]
    try:
        for link in links:
            if os.readlink(link) == str(ring.path):
                link.unlink()
        for path in (ring.path, ring.path.with_name(f".{ring.path.stem}.stacks")):
            path.unlink(missing_ok=True)
    except OSError:
        pass


def _local_directory(identity: RingIdentity) -> Path:
    for place in LOCAL_PLACES:
        if place.is_dir() and os.access(place, os.W_OK):
            return place / f"hangscope-{os.getuid()}" / identity.run_id
    raise OSError(
        "no local place for the ring: the run directory is on a network file system and "
        "neither /dev/shm nor /tmp can be written"
    )


def link_latest(directory: Path) -> None:
    """Point the ``latest`` link beside the run directory at it; best effort."""
    link = directory.parent / "latest"
    temporary = directory.parent / f".latest-{os.getpid()}"
    try:
        os.symlink(directory.name, temporary)
        os.replace(temporary, link)
    except OSError:
        temporary.unlink(missing_ok=True)
