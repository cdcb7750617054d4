"""Where a rank's ring file lies: in the run directory, unless that is on a network file system.

A page fault over NFS must never sit in a training step, so there the ring lies in local memory and
the run directory holds a link; the monitor copies the file over when the job ends.
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
"""How often one process may start recording in one directory."""
LOCAL_PLACES = (Path("/dev/shm"), Path("/tmp"))


def file_system_of(path: Path) -> str:
    """The type of the file system a path is on, or an empty text."""
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
    """Whether a path is on a network file system, or on one that a process serves (FUSE).

    What that process waits for nobody knows: most of them stand for a network.
    """
    kind = file_system_of(path)
    return kind in _NETWORK or kind.partition(".")[0] == "fuse"


def open_ring(directory: Path, identity: RingIdentity, slot_count: int) -> RingWriter:
    """Make this rank's ring file in, or linked from, the run directory.

    Another run's file of the same name is never touched: this one then carries its run in its name.

    Raises
    ------
    OSError
        If the directory cannot be made or written, or is full.
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
    """Take away the file of a recording that could not begin; a best effort."""
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
    """Point ``latest`` beside the run directory at it; a best effort."""
    link = directory.parent / "latest"
    temporary = directory.parent / f".latest-{os.getpid()}"
    try:
        os.symlink(directory.name, temporary)
        os.replace(temporary, link)
    except OSError:
        temporary.unlink(missing_ok=True)
