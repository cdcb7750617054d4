"""Opening files that others have put there: anything may lie under a name that promises a file."""

from __future__ import annotations

import os
from typing import BinaryIO


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file for reading, without ever waiting for somebody to write into it.

    Raises
    ------
    OSError
        If it cannot be opened.
    """
    return os.fdopen(descriptor_of(path), "rb")


def descriptor_of(path: str | os.PathLike[str]) -> int:
    """`open_regular` without a file object: a descriptor that the caller closes.

    Opening a pipe waits for its other end, and what the kernel makes up may wait when it is read.
    """
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
