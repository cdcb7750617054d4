"""Real restrictions for processes that tests start: system calls that a seccomp filter forbids."""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from collections.abc import Callable, Iterable, Iterator

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
_X86_64 = platform.machine() == "x86_64"
DOCKER = (
    {
        134, 135, 136, 139, 155, 156, *range(163, 170), *range(172, 181), 212, 227, 237, 238, 239,
        246, 248, 249, 250, 272, 279, 298, 304, 305, 308, 311, 312, 313, 320, 321, 323,
    }
    if _X86_64
    else set()
) | set(NUMBERS.values())  # fmt: skip
"""What the default profile of Docker before 20.10 refuses, on a kernel before 4.8."""
_GVISOR_LACKS = {
    122, 123, 134, 136, 139, 142, 148, 153, 154, 156, 159, 163, 164, 167, 168, 169,
    *range(172, 183), 184, 185, 205, 211, 212, 214, 215, 216, 236, *range(242, 247), 248, 249, 256,
    278, 279, 298, 300, 301, 303, 304, 305, 312, 313, 320, 323, 326, 329, 330, 331, 333,
    *range(335, 424), 427, 433, 440,
}  # fmt: skip
_GVISOR_END = 442
_LINUX_4_4_END = 326
GVISOR = set(range(_GVISOR_END)) - _GVISOR_LACKS if _X86_64 else set()
"""What gVisor implements, fully or in part, as its table for amd64 lists it
(gvisor.dev/docs/user_guide/compatibility/linux/amd64)."""
EARLY_GVISOR = {n for n in GVISOR if n < _LINUX_4_4_END} | ({332} if _X86_64 else set())
"""Its first versions: Linux 4.4, and ``statx``."""
_LOAD_NUMBER, _IF_AT_LEAST, _RETURN = 0x20, 0x35, 0x06
_END = 1 << 31
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_SET_SECCOMP, _FILTER, _NO_NEW_PRIVILEGES = 22, 2, 38


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def forbidding(*calls: str, error: int = errno.EPERM) -> Callable[[], None]:
    """For `preexec_fn`: these system calls fail in the process and all that it starts."""
    return refusing({NUMBERS[call] for call in calls}, error)


def refusing(numbers: Iterable[int], error: int = errno.EPERM) -> Callable[[], None]:
    """As `forbidding`, by number."""
    return _filter(list(_between(numbers, _END)), error)


def allowing_only(numbers: set[int]) -> Callable[[], None]:
    """All other system calls are unknown, as in a kernel that does not have them."""
    end = max(numbers, default=-1) + 1
    return _filter(list(_between(set(range(end)) - numbers, end)), errno.ENOSYS)


def _between(refused: Iterable[int], end: int) -> Iterator[tuple[int, int]]:
    """The spans that are left, as (first, behind the last)."""
    first = 0
    for number in [*sorted(refused), end]:
        if first < number:
            yield first, number
        first = number + 1


def _filter(allowed: list[tuple[int, int]], error: int) -> Callable[[], None]:
    """The classic BPF program of seccomp(2): compare the number with both ends of each span."""
    steps = [struct.pack("=HBBI", _LOAD_NUMBER, 0, 0, 0)]
    for index, (first, end) in enumerate(allowed):
        left = 2 * (len(allowed) - index)  # comparisons from here on, this one included
        steps.append(struct.pack("=HBBI", _IF_AT_LEAST, 0, left - 1, first))  # below: refused
        steps.append(struct.pack("=HBBI", _IF_AT_LEAST, 0, left - 1, end))  # below: allowed
    steps.append(struct.pack("=HBBI", _RETURN, 0, 0, _ERRNO | error))
    steps.append(struct.pack("=HBBI", _RETURN, 0, 0, _ALLOW))
    code = b"".join(steps)
    program = _Program(len(steps), code)
    libc = ctypes.CDLL(None, use_errno=True)

    def apply() -> None:
        libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        if libc.prctl(_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0):
            raise OSError(ctypes.get_errno(), "seccomp")

    return apply
