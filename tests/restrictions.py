"""Real restrictions for processes that tests start: system calls that a seccomp filter forbids."""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from collections.abc import Callable

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
_LOAD_NUMBER, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_SET_SECCOMP, _FILTER, _NO_NEW_PRIVILEGES = 22, 2, 38


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def forbidding(*calls: str, error: int = errno.EPERM) -> Callable[[], None]:
    """For `preexec_fn`: these system calls fail in the process and all that it starts.

    The classic BPF program of seccomp(2): load the number, compare it with each forbidden one.
    """
    numbers = [NUMBERS[call] for call in calls]
    steps = [struct.pack("=HBBI", _LOAD_NUMBER, 0, 0, 0)]
    for left, number in enumerate(reversed(numbers)):
        steps.insert(1, struct.pack("=HBBI", _IF_EQUAL, left + 1, 0, number))
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
