"""Opens untrusted paths without blocking: any kind of file may be behind a name."""

from __future__ import annotations

import os
from typing import BinaryIO


def open_nonblocking(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file for reading, without ever blocking until a writer appears.

    Raises
    ------
    OSError
        If it cannot be opened.
    """
    return os.fdopen(open_descriptor(path), "rb")


def open_descriptor(path: str | os.PathLike[str]) -> int:
    """Like `open_nonblocking`, but returns a descriptor that the caller must close.

    Opening a FIFO blocks until its other end is opened, and files made up by the kernel may block
    when read.
    """
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
