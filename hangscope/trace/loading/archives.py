"""Archives of what a job left: their members are unpacked into a folder that is soon gone.

Only what HangScope reads is written there. Names in an archive are anybody's: they lead nowhere
outside of that folder, and what grows beyond all measure is refused.
"""

from __future__ import annotations

import os
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple, cast

from hangscope.trace.files import file_names, sniff
from hangscope.trace.files.compression import AsFarAsWhole, packing_of, unpacked
from hangscope.trace.loading.search import is_left_out
from hangscope.trace.model import Unread

MAX_BYTES = 8 << 30
"""Of all members together."""
_MOST_MEMBERS = 100_000
_MOST_TOLD = 20
"""Members that are nothing HangScope reads; a whole job's directory has checkpoints as well."""
_BLOCK = 1 << 20
_LATEST_S = 2.0**32
"""No file was written after that (the year 2106); file systems hold no date much later."""
_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, NotImplementedError)


class Member(NamedTuple):
    """One file of an archive, unpacked."""

    path: str
    shown: str
    """Its name as reports print it, with that of the archive in front."""


def members(path: str, kind: sniff.Kind, folder: str, unread: list[Unread]) -> Iterator[Member]:
    """The files in an archive that HangScope may read, each unpacked into ``folder``.

    Parameters
    ----------
    path:
        The archive.
    kind:
        What it is.
    folder:
        An empty one.
    unread:
        What cannot be used comes in here.
    """
    shown, left, unknown = file_names.shown(path), MAX_BYTES, 0
    try:
        for number, (name, stamp, opened) in enumerate(_opened(path, kind)):
            if number >= _MOST_MEMBERS:
                unread.append(Unread(shown, f"holds more than {_MOST_MEMBERS:,} files"))
                return
            parts = _safe(name)
            if not parts or is_left_out(parts):
                continue
            of_member = f"{shown}/{file_names.shown('/'.join(parts))}"
            target = Path(folder, *parts)
            try:
                size = _extract(opened, target, left)
                os.utime(target, (stamp, stamp))
            except _Unusable as error:
                unknown += 1
                if unknown <= _MOST_TOLD:
                    unread.append(Unread(of_member, str(error)))
                continue
            left -= size
            if left < 0:
                unread.append(
                    Unread(shown, "inflates to more than any job leaves; unpack it first")
                )
                return
            yield Member(str(target), of_member)
    except _DAMAGED as error:
        unread.append(
            Unread(shown, f"damaged or truncated ({str(error)[:100] or 'it ends early'})")
        )


def _extract(opened: Opener, target: Path, most: int) -> int:
    """Write a member to ``target``. Returns how many bytes it has, or more than ``most``.

    Raises
    ------
    _Unusable
        Where it is nothing that HangScope reads, or cannot be unpacked.
    """
    try:
        with opened() as stream:
            head = stream.read(sniff.HEAD)
            found = None if packing_of(head) else sniff.sniff(head)
            if found is not None and found.name in (*sniff.ARCHIVES, sniff.UNKNOWN):
                raise _Unusable(found.why or "an archive inside of another; unpack it first")
            return _written(stream, head, target, most)
    except RuntimeError:  # zipfile says so of an encrypted member
        raise _Unusable("encrypted; unpack it first") from None
    except OSError as error:  # names that clash with others, or are too long; a full disk
        raise _Unusable(f"cannot be unpacked ({error.strerror or error})") from None


class _Unusable(Exception):  # noqa: N818
    """A member of an archive that is left out; the text says why."""


def _opened(path: str, kind: sniff.Kind) -> Iterator[tuple[str, float, Opener]]:
    """Name, date and a way to open each regular file of an archive, in their order."""
    if kind.name == sniff.ZIP:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if not info.is_dir():
                    yield info.filename, _dated(info), Opener(archive, info)
        return
    inner = cast("BinaryIO", AsFarAsWhole(unpacked(path, kind.packing))) if kind.packing else None
    with tarfile.open(path if inner is None else None, "r|", inner) as tape:
        for entry in tape:
            if entry.isreg():
                yield entry.name, min(max(0.0, float(entry.mtime)), _LATEST_S), Opener(tape, entry)


class Opener(NamedTuple):
    """Opens one member of an archive."""

    archive: zipfile.ZipFile | tarfile.TarFile
    entry: zipfile.ZipInfo | tarfile.TarInfo

    @contextmanager
    def __call__(self) -> Iterator[BinaryIO]:
        """The contents of the member."""
        if isinstance(self.archive, zipfile.ZipFile):
            found = cast("BinaryIO", self.archive.open(cast("zipfile.ZipInfo", self.entry)))
        else:
            found = cast("BinaryIO", self.archive.extractfile(cast("tarfile.TarInfo", self.entry)))
        with found:
            yield found


def _dated(info: zipfile.ZipInfo) -> float:
    """When a member was written, in seconds since the epoch; 0 where it says no possible date."""
    try:
        return datetime(*info.date_time, tzinfo=timezone.utc).timestamp()
    except ValueError:
        return 0.0


def _safe(name: str) -> tuple[str, ...]:
    """The parts of a member's name without those that lead elsewhere; none if nothing is left."""
    parts = PurePosixPath(name.replace("\\", "/").replace("\0", "")).parts
    return tuple(part for part in parts if part not in ("/", "..", ".") and ":" not in part[:2])


def _written(stream: BinaryIO, head: bytes, target: Path, most: int) -> int:
    """Write a member to a file. Returns how many bytes it has, or more than ``most``."""
    target.parent.mkdir(parents=True, exist_ok=True)
    total = len(head)
    with open(target, "wb") as out:
        out.write(head)
        while total <= most and (block := stream.read(_BLOCK)):
            total += len(block)
            out.write(block)
    return total
