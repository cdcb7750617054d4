"""A run directory and the files in it, opened relative to a descriptor and through no link.

The directory may be where others can write (a shared folder, ``/dev/shm``), so whatever has one of
our names in it may be somebody else's: a link to a file of the user, a FIFO, a device. Directories
must belong to this user or to root, and files are created, never taken over. What is made is for
this user alone, whatever the umask, or also readable for the group if `GROUP_VARIABLE` says so.

Imports only the standard library: the monitor needs it before anything slow.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from hangscope.ring import portable

GROUP_VARIABLE = "HANGSCOPE_GROUP_READ"
RUNS = "hangscope-runs"
"""The folder in which run directories are made unless the user names one; HangScope's own, too."""
_OPEN = portable.READ | portable.DIRECTORY
_NEW = os.O_CREAT | os.O_EXCL | os.O_RDWR | portable.NOFOLLOW | portable.CLOEXEC
_READ = portable.READ_AT_ONCE | portable.NOFOLLOW


class RunDirectory:
    """An open directory; made by `opened` and `created`."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    def new_file(self, name: str) -> int:
        """Create a file; returns a descriptor for reading and writing.

        Raises
        ------
        OSError
            If anything has this name already, or nothing can be created.
        """
        descriptor = os.open(name, _NEW, _file_mode(), dir_fd=self._descriptor)
        with contextlib.suppress(OSError):  # some network file systems have no modes
            os.fchmod(descriptor, _file_mode())
        return descriptor

    def fresh_file(self, name: str) -> int:
        """As `new_file`, instead of whatever has this name now; a link goes, not its target."""
        self.remove(name)
        return self.new_file(name)

    def own_file(self, name: str, flags: int = os.O_RDONLY) -> int:
        """Open a regular file of this directory's owner that has no other name.

        Raises
        ------
        OSError
            If it is missing, or anything else.
        """
        descriptor = os.open(name, _READ | flags, dir_fd=self._descriptor)
        found = os.fstat(descriptor)
        is_own = found.st_uid in self._own_users()
        if stat.S_ISREG(found.st_mode) and is_own and found.st_nlink <= 1:
            return descriptor
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "not a file of this user", str(self.path / name))

    def appended_file(self, name: str) -> int:
        """A descriptor that appends to this file, which is created or is this user's own."""
        with contextlib.suppress(FileExistsError):
            os.close(self.new_file(name))
        return self.own_file(name, os.O_WRONLY | os.O_APPEND)

    def link(self, name: str, target: str | Path) -> None:
        """Create a symbolic link."""
        os.symlink(target, name, dir_fd=self._descriptor)

    def target_of(self, name: str) -> str | None:
        """What a link of this user leads to; None if this is no such link."""
        try:
            link = os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)
            target = os.readlink(name, dir_fd=self._descriptor)
        except OSError:
            return None
        return target if link.st_uid in self._own_users() else None

    def names(self) -> list[str]:
        """The names of everything in it."""
        return os.listdir(self._descriptor)

    def replace(self, name: str, by: str) -> None:
        """Give the name of one entry to another one."""
        os.replace(by, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)

    def remove(self, name: str) -> None:
        """Remove a name that is not a directory's, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._descriptor)

    def remove_directory(self, name: str) -> None:
        """Remove an empty directory."""
        os.rmdir(name, dir_fd=self._descriptor)

    def _own_users(self) -> tuple[int, int]:
        return portable.user_id(), os.fstat(self._descriptor).st_uid

    def _check_owner(self) -> None:
        """Refuse a directory of another user.

        On a file system with other user ids (a squashed root) it is ours if our files belong to
        its owner. Root, in a container say, may use what a user has mounted there, if no third one
        can write to it or put something in its place.
        """
        owner = os.fstat(self._descriptor).st_uid
        if owner in (portable.user_id(), 0) or owner == self._owner_of_new_files():
            return
        if portable.user_id() == 0 and self._is_of_one_user(owner):
            return
        raise PermissionError(errno.EPERM, f"it belongs to user {owner}", str(self.path))

    def _is_of_one_user(self, owner: int) -> bool:
        """Whether only root and the owner may write in it and all above it, without any link."""
        path = Path(os.path.abspath(self.path))
        if not os.path.samestat(os.lstat(path), os.fstat(self._descriptor)):
            return False
        places = [os.lstat(place) for place in (path, *path.parents)]
        return all(
            stat.S_ISDIR(place.st_mode)
            and place.st_uid in (0, owner)
            and not place.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            for place in places
        )

    def _owner_of_new_files(self) -> int:
        name = f".owner-{os.getpid()}-{os.urandom(4).hex()}"
        try:
            descriptor = self.new_file(name)
        except OSError:
            return -1
        self.remove(name)
        owner = os.fstat(descriptor).st_uid
        os.close(descriptor)
        return owner


@contextlib.contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[RunDirectory]:
    """An existing directory of this user or of root, to write in; open only for a while.

    If it is a link itself, that must be this user's or root's.

    Raises
    ------
    OSError
        If there is none, or it belongs to somebody else.
    """
    directory = RunDirectory(Path(path), _descriptor_of(path))
    try:
        directory._check_owner()
        yield directory
    finally:
        os.close(directory._descriptor)


def create(path: Path) -> None:
    """Make a directory and what is missing above it, for this user alone; check it if it is there.

    Raises
    ------
    OSError
        If it cannot be made, or it, or a folder called `RUNS` that it is in, is somebody else's.
    """
    if path.parent.name == RUNS or not path.parent.exists():
        create(path.parent)
    mode = 0o750 if reads_group(os.environ) else 0o700
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        pass
    else:
        # Without a right to open it, should the umask have taken that, too.
        descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with contextlib.suppress(OSError):
            os.chmod(f"/proc/self/fd/{descriptor}", mode)
        os.close(descriptor)
    with opened(path):
        pass


def read_start(path: str | os.PathLike[str], length: int) -> bytes:
    """The first bytes of a regular file; empty if it cannot be read. Blocks on nothing."""
    try:
        descriptor = os.open(path, portable.READ_AT_ONCE)
    except OSError:
        return b""
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return b""
        return os.read(descriptor, length)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def reads_group(environ: Mapping[str, str]) -> bool:
    """Whether the user wants the group to read what is recorded."""
    return environ.get(GROUP_VARIABLE, "").strip().lower() in ("1", "true", "yes", "on")


def _file_mode() -> int:
    return 0o640 if reads_group(os.environ) else 0o600


def _descriptor_of(path: str | os.PathLike[str]) -> int:
    try:
        return os.open(path, _OPEN | portable.NOFOLLOW)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        link = os.lstat(path)
        if not stat.S_ISLNK(link.st_mode):
            raise
        if link.st_uid not in (portable.user_id(), 0):
            why = f"it is a link of user {link.st_uid}"
            raise PermissionError(errno.EPERM, why, os.fspath(path)) from None
        return os.open(os.path.realpath(path), _OPEN | portable.NOFOLLOW)
