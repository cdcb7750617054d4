"""Opens untrusted paths without blocking: any kind of file may be behind a name."""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO

from hangscope.ring import portable


def open_nonblocking(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file for reading, without ever blocking until a writer appears.

    Raises
    ------
    OSError
        If it cannot be opened.
    """
    return os.fdopen(open_descriptor(path), "rb")


def read_regular(path: str | os.PathLike[str], most_bytes: int) -> bytes:
    """The contents of a small file that the user or a dump has named.

    Raises
    ------
    OSError
        If it cannot be read, is not a regular file (a FIFO, a device), or holds more than
        ``most_bytes``; ``strerror`` says which.
    """
    with open_nonblocking(path) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"larger than {most_bytes >> 20} MiB", os.fspath(path))
    return data


def open_descriptor(path: str | os.PathLike[str], *, follow_links: bool = True) -> int:
    """Like `open_nonblocking`, but returns a descriptor that the caller must close.

    Opening a FIFO blocks until its other end is opened, and files made up by the kernel may block
    when read.
    """
    links = 0 if follow_links else portable.NOFOLLOW
    return os.open(path, portable.READ_AT_ONCE | portable.NOCTTY | links)


def is_own(user_id: int) -> bool:
    """Whether files of this user are this process's user's own, or root's."""
    return user_id in (0, portable.user_id())
