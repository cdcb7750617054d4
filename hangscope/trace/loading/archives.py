"""Unpacks archives of a job's files into a temporary folder.

Only files that HangScope reads are unpacked. Names in an archive are untrusted: they cannot lead
outside the folder, and an archive that inflates beyond reason is refused.
"""

from __future__ import annotations

import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from functools import partial
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple, cast

from hangscope.trace.files import file_names, sniff
from hangscope.trace.files.compression import compression_of, most_inflated, open_tolerant
from hangscope.trace.loading.budget import Budget
from hangscope.trace.loading.search import is_skipped_path
from hangscope.trace.model import Unread

_MOST_MEMBERS = 100_000
_MOST_TOLD = 20
"""How many unusable members are reported; a job's directory also contains checkpoints."""
_BLOCK = 1 << 20
_LATEST_S = 2.0**32
"""Latest accepted date (the year 2106); file systems support no date much later."""
_Open = Callable[[], object]
_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, NotImplementedError)


class Member(NamedTuple):
    """One unpacked file of an archive."""

    path: str
    shown: str
    """Its name for reports, prefixed by the archive's."""


def extract_members(
    path: str, shown: str, kind: sniff.Kind, folder: str, unread: list[Unread], budget: Budget
) -> Iterator[Member]:
    """Unpack each file that HangScope may be able to read into ``folder``.

    Parameters
    ----------
    path:
        The archive.
    shown:
        Its name for reports.
    kind:
        Its kind.
    folder:
        An empty folder.
    unread:
        Receives what cannot be used.
    budget:
        Limits what all archives together inflate to.
    """
    unknown = 0
    try:
        for number, (name, stamp, most, opened) in enumerate(_entries(path, kind)):
            if number >= _MOST_MEMBERS:
                unread.append(Unread(shown, f"holds more than {_MOST_MEMBERS:,} files"))
                return
            parts = _safe_parts(name)
            if not parts or is_skipped_path(parts):
                continue
            of_member = f"{shown}/{file_names.printable_path('/'.join(parts))}"
            target = Path(folder, *parts)
            try:
                size = _extract(opened, target, most, budget.written_bytes)
                os.utime(target, (stamp, stamp))
            except _Unusable as error:
                unknown += 1
                if unknown <= _MOST_TOLD:
                    unread.append(Unread(of_member, str(error)))
                continue
            budget.written_bytes -= size
            if why := budget.exhausted_text:
                unread.append(Unread(shown, why))
                target.unlink()
                return
            yield Member(str(target), of_member)
    except _DAMAGED as error:
        unread.append(
            Unread(shown, f"damaged or truncated ({str(error)[:100] or 'it ends early'})")
        )


def _extract(opened: _Open, target: Path, usual: int, most: int) -> int:
    """Write a member to ``target``. Returns its size in bytes, or a number above ``most``.

    ``usual``: how large it can be if it is a log or dump.

    Raises
    ------
    _Unusable
        If HangScope does not read it, or it cannot be unpacked.
    """
    try:
        with cast("BinaryIO", opened()) as stream:
            head = stream.read(sniff.HEAD)
            found = None if compression_of(head) else sniff.sniff(head)
            if found is not None and found.name in (*sniff.ARCHIVES, sniff.UNKNOWN):
                raise _Unusable(found.why or "an archive inside of another; unpack it first")
            size = _copy(stream, head, target, min(most, usual))
            if usual < size <= most:
                target.unlink()
                raise _Unusable("inflates more than any log or dump does")
            return size
    except RuntimeError:  # raised by zipfile for an encrypted member
        raise _Unusable("encrypted; unpack it first") from None
    except OSError as error:  # a name that clashes or is too long, a full disk
        raise _Unusable(f"cannot be unpacked ({error.strerror or error})") from None


class _Unusable(Exception):  # noqa: N818
    """A member that is skipped; the text says why."""


def _entries(path: str, kind: sniff.Kind) -> Iterator[tuple[str, float, int, _Open]]:
    """Each regular file in an archive, in order.

    Its name, its date, how large it can be if it is a log or dump, and what opens it.
    """
    if kind.name == sniff.ZIP:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if info.filename and not info.is_dir():  # a nameless one breaks is_dir()
                    most = most_inflated(info.compress_size)
                    yield info.filename, _timestamp(info), most, partial(archive.open, info)
        return
    inner = cast("BinaryIO", open_tolerant(path, kind.compression)) if kind.compression else None
    with tarfile.open(path if inner is None else None, "r|", inner) as tape:
        for entry in tape:
            if entry.isreg():
                stamp = min(max(0.0, float(entry.mtime)), _LATEST_S)
                yield entry.name, stamp, entry.size, partial(tape.extractfile, entry)


def _timestamp(info: zipfile.ZipInfo) -> float:
    """The date of a member in seconds since the epoch; 0 if it is invalid."""
    try:
        return datetime(*info.date_time, tzinfo=timezone.utc).timestamp()
    except ValueError:
        return 0.0


def _safe_parts(name: str) -> tuple[str, ...]:
    """The parts of a member's name except those that lead elsewhere; may be empty."""
    parts = PurePosixPath(name.replace("\\", "/").replace("\0", "")).parts
    return tuple(part for part in parts if part not in ("/", "..", ".") and ":" not in part[:2])


def _copy(stream: BinaryIO, head: bytes, target: Path, most: int) -> int:
    """Write a member to a file. Returns its size in bytes, or a number above ``most``."""
    target.parent.mkdir(parents=True, exist_ok=True)
    total = len(head)
    with open(target, "wb") as out:
        out.write(head)
        while total <= most and (block := stream.read(_BLOCK)):
            total += len(block)
            out.write(block)
    return total
