"""Real restrictions for processes that tests start: system calls that a seccomp filter forbids."""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from collections.abc import Callable, Sequence

_OWN = {"x86_64": (101, 310), "aarch64": (117, 270)}.get(platform.machine())
NUMBERS = (
    dict(
        zip(
            ("ptrace", "process_vm_readv", "pidfd_send_signal", "pidfd_open"),
            (*_OWN, 424, 434),
            strict=True,
        )
    )
    if _OWN
    else {}
)
"""The numbers of system calls on this machine; empty on one that is not known here."""
_LOAD_NUMBER, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_FIRST_NEW = 424
"""From here on, all machines have the same numbers: what Linux got since 5.1."""
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_SET_SECCOMP, _FILTER, _NO_NEW_PRIVILEGES = 22, 2, 38


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def forbidding(*calls: str, error: int = errno.EPERM) -> Callable[[], None]:
    """For `preexec_fn`: these system calls fail in the process and all that it starts.

    The classic BPF program of seccomp(2): load the number, compare it with each forbidden one.
    """
    return _filter([(_IF_EQUAL, NUMBERS[call]) for call in calls], error)


def forbidding_new_calls(*calls: str) -> Callable[[], None]:
    """As `forbidding`, and of Linux's calls those that came with 5.1 or later are unknown.

    So does gVisor's kernel answer, and an old one.
    """
    old = [(_IF_EQUAL, NUMBERS[call]) for call in calls if NUMBERS[call] < _FIRST_NEW]
    return _filter([*old, (_IF_AT_LEAST, _FIRST_NEW)], errno.ENOSYS)


def _filter(refused: Sequence[tuple[int, int]], error: int) -> Callable[[], None]:
    """Refuse calls by (comparison, number)."""
    steps = [struct.pack("=HBBI", _LOAD_NUMBER, 0, 0, 0)]
    for left, (comparison, number) in enumerate(reversed(refused)):
        steps.insert(1, struct.pack("=HBBI", comparison, left + 1, 0, number))
    steps.append(struct.pack("=HBBI", _RETURN, 0, 0, _ALLOW))
    steps.append(struct.pack("=HBBI", _RETURN, 0, 0, _ERRNO | error))
    code = b"".join(steps)
    program = _Program(len(steps), code)
    libc = ctypes.CDLL(None, use_errno=True)

    def apply() -> None:
        libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        if libc.prctl(_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0):
            raise OSError(ctypes.get_errno(), "seccomp")

    return apply
