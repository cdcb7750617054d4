"""What Linux has and other systems lack: rings and dumps are read on macOS and Windows, too.

Recording, and looking at live processes, is for Linux.
"""

from __future__ import annotations

import os

CLOEXEC: int = getattr(os, "O_CLOEXEC", 0)
NONBLOCK: int = getattr(os, "O_NONBLOCK", 0)
NOCTTY: int = getattr(os, "O_NOCTTY", 0)
NOFOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
DIRECTORY: int = getattr(os, "O_DIRECTORY", 0)
BINARY: int = getattr(os, "O_BINARY", 0)
"""Without it, Windows reads text: it changes line ends and stops at a Ctrl-Z."""

READ = os.O_RDONLY | CLOEXEC | BINARY
"""Flags of `os.open` for a file that is there."""
READ_AT_ONCE = READ | NONBLOCK
"""The same where it may be a pipe that nobody writes."""

TICKS_PER_S: int = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def user_id() -> int:
    """The effective user; 0 where users have no numbers, as every file then belongs to 0."""
    return os.geteuid() if hasattr(os, "geteuid") else 0


if hasattr(os, "preadv"):

    def read_into(descriptor: int, target: memoryview, at: int) -> int:
        """Fill memory from this offset of a file; returns the number of bytes read."""
        return os.preadv(descriptor, [target], at)

    def read_at(descriptor: int, length: int, at: int) -> bytes:
        """Up to so many bytes from this offset of a file."""
        return os.pread(descriptor, length, at)

else:  # one thread at a time reads from a descriptor

    def read_into(descriptor: int, target: memoryview, at: int) -> int:
        """Fill memory from this offset of a file; returns the number of bytes read."""
        found = read_at(descriptor, len(target), at)
        target[: len(found)] = found
        return len(found)

    def read_at(descriptor: int, length: int, at: int) -> bytes:
        """Up to so many bytes from this offset of a file."""
        os.lseek(descriptor, at, os.SEEK_SET)
        found = b""
        while len(found) < length and (more := os.read(descriptor, length - len(found))):
            found += more
        return found
