"""Rings in local memory: of run directories on a network file system, which hold links to them.

``/dev/shm`` and ``/tmp`` belong to everybody, so a folder there counts only if it is this user's
own, and a link only if it leads to a file of this user in such a folder.
"""

from __future__ import annotations

from pathlib import Path

from hangscope.ring import portable
from hangscope.ring.run_directory import RunDirectory, create

PLACES = (Path("/dev/shm"), Path("/tmp"))
_MOST_FOLDERS = 10
"""Names tried in each place; the usual one may be taken by somebody else."""


def local_folder(run_id: str) -> Path:
    """The folder for the rings of a run; created if necessary.

    Raises
    ------
    OSError
        If there is none that this user can have.
    """
    for place in PLACES:
        for name in _names():
            try:
                create(place / name)
                create(place / name / run_id)
            except OSError:
                continue
            return place / name / run_id
    raise OSError(
        "no local place for the ring: the run directory is on a network file system and "
        "neither /dev/shm nor /tmp can be written"
    )


def stored_at(folder: RunDirectory, name: str) -> Path | None:
    """Where a ring in local memory is to which a link leads; None for any other link or file."""
    target = folder.target_of(name)
    path = Path(target or "")
    of_user, place = path.parent.parent, path.parent.parent.parent
    is_there = of_user.name in _names() and place in PLACES and ".." not in path.parts
    return path if is_there and path.suffix == ".ring" else None


def _names() -> list[str]:
    own = f"hangscope-{portable.user_id()}"
    return [own, *(f"{own}-{number}" for number in range(2, _MOST_FOLDERS))]
