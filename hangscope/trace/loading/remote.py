"""Evidence behind URLs: anything that fsspec reaches (``s3://``, ``gs://``, ``file://``, ...).

Files are brought here once, into a temporary folder, and read like any others. They count as bytes
written, like what archives hold.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

from hangscope.trace.files.compression import compression_of
from hangscope.trace.files.sniff import TAR, ZIP, sniff
from hangscope.trace.loading.budget import Budget
from hangscope.trace.loading.temporary import temporary_folder
from hangscope.trace.model import Unread

_URL = re.compile(r"[a-z][a-z0-9+.-]*(?:::[a-z][a-z0-9+.-]*)*://", re.IGNORECASE)
_MOST_FILES = 200_000
_BLOCK = 1 << 20
INSTALL = "pip install 'hangscope[collect]'"


def is_url(path: str | Path) -> bool:
    """Whether a path is a URL."""
    return isinstance(path, str) and _URL.match(path) is not None


def brought_here(
    paths: Sequence[str | Path], unread: list[Unread], folders: ExitStack, budget: Budget
) -> list[str | Path]:
    """The paths with everything behind URLs, and an archive on standard input, in local files.

    Parameters
    ----------
    paths:
        As for `hangscope.trace.load.load_trace`.
    unread:
        Receives what cannot be reached.
    folders:
        Keeps the temporary folders until it is closed.
    budget:
        What may be written, and until when; what exceeds it is left out.
    """
    found: list[str | Path] = []
    for path in paths:
        if is_url(path):
            folder = folders.enter_context(temporary_folder())
            try:
                _fetch(str(path), Path(folder), unread, budget)
            except Exception as error:  # each protocol has exceptions of its own
                unread.append(Unread(str(path), f"{error or type(error).__name__}"[:300]))
                continue
            found.append(folder)
        elif str(path) == "-" and (stream := _archive_on_stdin()) is not None:
            archive = Path(folders.enter_context(temporary_folder())) / "standard-input"
            if why := _store(stream, archive, budget):
                unread.append(Unread("standard input", why))
            else:
                found.append(archive)
        else:
            found.append(path)
    return found


def _store(stream: BinaryIO, target: Path, budget: Budget) -> str:
    """Write a stream to a file; why it was left out, empty if it was not."""
    why, left = "", budget.written_bytes
    with open(target, "wb") as out:
        while not why and (block := stream.read(_BLOCK)):
            out.write(block)
            budget.written_bytes -= len(block)
            why = budget.exhausted_text
    if why:
        target.unlink()
        budget.written_bytes = left
    return why


@contextlib.contextmanager
def opened_for_writing(target: str) -> Iterator[BinaryIO]:
    """A new file at a path or URL; its folder is made if need be.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    if is_url(target):
        fsspec = _fsspec()
        with fsspec.open(target, "wb", auto_mkdir=True) as file:
            yield file
        return
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    with open(target, "wb") as local:
        yield local


def joined(folder: str, name: str) -> str:
    """A name below a path or URL."""
    return f"{folder.rstrip('/')}/{name.replace('/', '_')}"


def _fsspec() -> Any:
    try:
        import fsspec  # type: ignore[import-untyped]
    except ImportError:
        raise OSError(f"URLs need fsspec: {INSTALL}") from None
    return fsspec


def urls_below(url: str) -> list[str]:
    """The URLs of all files at or below one.

    Raises
    ------
    Exception
        Whatever the protocol raises if it cannot be reached.
    """
    if "::" in url:
        return [url]  # a file inside another: only together do they lead anywhere
    system, place = _fsspec().core.url_to_fs(url)
    files = [place] if system.isfile(place) else system.find(place)
    if not files:
        raise FileNotFoundError("nothing is there")
    return [str(system.unstrip_protocol(file)) for file in files]


def _fetch(url: str, folder: Path, unread: list[Unread], budget: Budget) -> None:
    """Copy the file at a URL, or all files below it."""
    system, place = _fsspec().core.url_to_fs(url)
    files = [place] if system.isfile(place) else system.find(place)
    if not files:
        raise FileNotFoundError("nothing is there")
    if len(files) > _MOST_FILES:
        raise ValueError(f"holds over {_MOST_FILES:,} files")
    root = PurePosixPath(place) if files != [place] else PurePosixPath(place).parent
    for file in files:
        if budget.is_over:
            unread.append(Unread(url, budget.over_text))
            return
        inside = PurePosixPath(file).relative_to(root)
        if ".." in inside.parts:
            continue
        target = folder.joinpath(*inside.parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        with system.open(file, "rb") as stream:
            why = _store(stream, target, budget)
        if why:
            unread.append(Unread(f"{url.rstrip('/')}/{inside}" if files != [place] else url, why))


def _archive_on_stdin() -> BinaryIO | None:
    """Standard input, if it begins like an archive."""
    stream = getattr(sys.stdin, "buffer", None)
    if stream is None or not hasattr(stream, "peek"):
        return None
    head = stream.peek(512)
    is_archive = compression_of(head) or sniff(head).name in (ZIP, TAR)
    return cast("BinaryIO", stream) if is_archive else None
