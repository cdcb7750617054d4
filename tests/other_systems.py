"""Python as it is on macOS or Windows, as far as it can be had here: without what these lack.

``python -m tests.other_systems darwin|win32 MODULE ARGUMENTS...`` runs a module like that.

It shows what is used although it is not there. It does not show how paths, consoles and processes
of these systems behave.
"""

from __future__ import annotations

import asyncio  # noqa: F401  (these, and the libraries below, have found out where they are)
import ctypes
import multiprocessing.connection
import os
import platform  # noqa: F401
import runpy
import shutil
import signal
import subprocess  # noqa: F401
import sys
import sysconfig  # noqa: F401
import tempfile
import uuid  # noqa: F401
from collections.abc import Callable
from typing import Any

import jinja2  # noqa: F401
import numpy  # noqa: F401
import orjson  # noqa: F401
import pandas  # noqa: F401
import psutil  # noqa: F401
import rich_click  # noqa: F401
import textual.app
import textual.drivers.linux_driver  # noqa: F401

_LINUX_ONLY = {
    "pidfd_open", "sched_getaffinity", "sched_setaffinity", "posix_fallocate", "memfd_create",
    "eventfd", "splice", "O_PATH", "O_TMPFILE", "getrandom", "setns", "unshare",
}  # fmt: skip
_POSIX_ONLY = {
    "fork", "forkpty", "register_at_fork", "geteuid", "getuid", "getegid", "getgid", "getgroups",
    "statvfs", "fstatvfs", "sysconf", "confstr", "uname", "pread", "preadv", "pwrite", "pwritev",
    "fchmod", "fchown", "chown", "lchown", "killpg", "getpgid", "getpgrp", "setsid", "getsid",
    "mkfifo", "mknod", "waitid", "wait3", "wait4", "openpty", "getloadavg", "nice", "sync",
    "WIFSIGNALED", "WIFEXITED", "WTERMSIG", "WEXITSTATUS", "WNOHANG", "WNOWAIT", "P_PID", "WEXITED",
    "O_CLOEXEC", "O_NONBLOCK", "O_NOFOLLOW", "O_DIRECTORY", "O_NOCTTY", "O_SYNC", "O_DSYNC",
    "posix_spawn", "ctermid", "getpriority", "getresuid", "listxattr", "getxattr",
}  # fmt: skip
_SIGNALS = {"SIGRTMIN", "SIGRTMAX", "SIGPWR", "SIGSTKFLT", "pidfd_send_signal", "sigtimedwait"}
_POSIX_SIGNALS = {
    "SIGKILL", "SIGSTOP", "SIGCONT", "SIGUSR1", "SIGUSR2", "SIGHUP", "SIGQUIT", "SIGALRM",
    "SIGCHLD", "SIGPIPE", "SIGTSTP", "SIGWINCH", "pthread_sigmask", "pthread_kill", "setitimer",
    "siginterrupt", "sigwait", "sigpending", "valid_signals", "alarm", "pause",
}  # fmt: skip
_MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "posix")
_HIDDEN = ("/proc", "/sys", "/dev/shm")


def pretend(system: str) -> None:
    """Take away from this process what the system (``sys.platform``) does not have."""
    names, signals = set(_LINUX_ONLY), set(_SIGNALS)
    if system == "win32":
        names |= _POSIX_ONLY
        signals |= _POSIX_SIGNALS
        for module in _MODULES:
            sys.modules[module] = None  # type: ignore[assignment]
        vars(os)["supports_dir_fd"] = set()
        vars(os)["O_BINARY"] = 0
    usage = shutil.disk_usage(tempfile.gettempdir())
    vars(shutil)["disk_usage"] = lambda _: usage  # asks in another way there
    for name in names & set(dir(os)):
        delattr(os, name)
    for name in signals & set(dir(signal)):
        delattr(signal, name)
    multiprocessing.connection.Connection.fileno  # noqa: B018  (imported before all this)
    for name in ("stat", "lstat", "readlink", "listdir", "scandir", "access"):
        setattr(os, name, _without_hidden(getattr(os, name)))
    sys.addaudithook(_hide)
    vars(ctypes)["CDLL"] = _no_library
    sys.platform = system


def _is_hidden(path: object) -> bool:
    text = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
    return text.startswith(_HIDDEN)


def _hide(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir") and _is_hidden(arguments[0]):
        raise FileNotFoundError(2, "not on this system", arguments[0])


def _without_hidden(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        if arguments and _is_hidden(arguments[0]):
            raise FileNotFoundError(2, "not on this system", arguments[0])
        if options.get("dir_fd") is not None and sys.platform == "win32":
            raise NotImplementedError("dir_fd unavailable on this platform")
        return function(*arguments, **options)

    return call


def _no_library(name: object, *_: object, **__: object) -> None:
    raise OSError(f"no library {name}")


if __name__ == "__main__":
    pretend(sys.argv[1])
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
