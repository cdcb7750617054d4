"""Plays NCCL: loads the plugin and tells it events, in any version of the interface.

The structs are declared here once more, from NCCL's public headers, so that a mistake in the
plugin's own declarations shows.
"""

from __future__ import annotations

import ctypes as c
import os
from pathlib import Path

from hangscope.ring.device_layout import PATH_VARIABLE

GROUP, COLL, P2P, PROXY_OP, PROXY_STEP, PROXY_CTRL, KERNEL_CH = (1 << n for n in range(7))
COLL_API, P2P_API = 512, 1024
KERNEL_CH_STOP = 22


class _CollV3(c.Structure):
    _fields_ = [
        ("name", c.c_char_p), ("hash", c.c_uint64), ("seq", c.c_uint64), ("func", c.c_char_p),
        ("send", c.c_void_p), ("receive", c.c_void_p), ("count", c.c_size_t), ("root", c.c_int),
        ("datatype", c.c_char_p), ("channels", c.c_uint8), ("warps", c.c_uint8),
        ("algorithm", c.c_char_p), ("protocol", c.c_char_p),
    ]  # fmt: skip


class _Coll(c.Structure):
    _fields_ = [*_CollV3._fields_[2:], ("group", c.c_void_p)]


class _P2pV3(c.Structure):
    _fields_ = [
        ("name", c.c_char_p), ("hash", c.c_uint64), ("func", c.c_char_p), ("buffer", c.c_void_p),
        ("datatype", c.c_char_p), ("count", c.c_size_t), ("peer", c.c_int),
    ]  # fmt: skip


class _P2p(c.Structure):
    _fields_ = [*_P2pV3._fields_[2:], ("channels", c.c_uint8), ("group", c.c_void_p)]


class _ProxyOp(c.Structure):
    _fields_ = [
        ("pid", c.c_int), ("channel", c.c_uint8), ("peer", c.c_int), ("steps", c.c_int),
        ("chunk_bytes", c.c_int), ("is_send", c.c_int),
    ]  # fmt: skip


class _KernelCh(c.Structure):
    _fields_ = [("channel", c.c_uint8), ("device_ns", c.c_uint64)]


class _CollApi(c.Structure):
    _fields_ = [
        ("func", c.c_char_p), ("count", c.c_size_t), ("datatype", c.c_char_p), ("root", c.c_int),
        ("stream", c.c_void_p), ("captured", c.c_bool),
    ]  # fmt: skip


class _P2pApi(c.Structure):
    _fields_ = [field for field in _CollApi._fields_ if field[0] != "root"]


class _Step(c.Structure):
    _fields_ = [("step", c.c_int)]


class _Of(c.Union):
    _fields_ = [
        ("coll", _Coll), ("p2p", _P2p), ("proxy_op", _ProxyOp), ("kernel_ch", _KernelCh),
        ("coll_api", _CollApi), ("p2p_api", _P2pApi), ("step", _Step),
    ]  # fmt: skip


class _OfV3(c.Union):
    _fields_ = [
        ("coll", _CollV3), ("p2p", _P2pV3), ("proxy_op", _ProxyOp), ("kernel_ch", _KernelCh),
        ("step", _Step),
    ]  # fmt: skip


class _EventV3(c.Structure):
    _fields_ = [("type", c.c_uint8), ("parent", c.c_void_p), ("rank", c.c_int), ("of", _OfV3)]


class _EventV4(c.Structure):
    _fields_ = [("type", c.c_uint8), ("parent", c.c_void_p), ("rank", c.c_int), ("of", _Of)]


class _EventV5(c.Structure):
    _fields_ = [("type", c.c_uint64), ("parent", c.c_void_p), ("rank", c.c_int), ("of", _Of)]


class _Arguments(c.Union):
    _fields_ = [("device_ns", c.c_uint64), ("bytes", c.c_size_t)]


_EVENTS = {3: _EventV3, 4: _EventV4, 5: _EventV5, 6: _EventV5}
_HANDLE = c.POINTER(c.c_void_p)
_INIT = {
    3: c.CFUNCTYPE(c.c_int, _HANDLE, c.POINTER(c.c_int)),
    4: c.CFUNCTYPE(
        c.c_int, _HANDLE, c.POINTER(c.c_int), c.c_char_p, c.c_uint64, c.c_int, c.c_int, c.c_int,
        c.c_void_p,
    ),
    5: c.CFUNCTYPE(
        c.c_int, _HANDLE, c.c_uint64, c.POINTER(c.c_int), c.c_char_p, c.c_int, c.c_int, c.c_int,
        c.c_void_p,
    ),
}  # fmt: skip
_INIT[6] = _INIT[5]


class Nccl:
    """One process's NCCL with the plugin loaded.

    Parameters
    ----------
    library:
        The built plugin.
    ring:
        The device ring it is to write.
    interface:
        The version of the interface: 3 to 6.
    """

    def __init__(self, library: Path, ring: Path, interface: int = 5) -> None:
        libc = c.CDLL(None)  # os.environ would do as well; other tests' values must not stay
        libc.setenv(PATH_VARIABLE.encode(), f"{os.getpid()}:{ring}".encode(), 1)
        self.interface = interface
        self._event = _EVENTS[interface]

        class Profiler(c.Structure):
            _fields_ = [
                ("name", c.c_char_p),
                ("init", _INIT[interface]),
                ("start", c.CFUNCTYPE(c.c_int, c.c_void_p, _HANDLE, c.POINTER(self._event))),
                ("stop", c.CFUNCTYPE(c.c_int, c.c_void_p)),
                ("state", c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_int, c.POINTER(_Arguments))),
                ("finalize", c.CFUNCTYPE(c.c_int, c.c_void_p)),
            ]

        self._plugin = Profiler.in_dll(c.CDLL(str(library)), f"ncclProfiler_v{interface}")
        self.mask = 0

    def init(self, hash: int, ranks: int, rank: int, name: bytes | None = None) -> int | None:
        """A new communicator; its context.

        Raises
        ------
        OSError
            If the plugin refuses, in which case NCCL goes on without it.
        """
        context, mask = c.c_void_p(), c.c_int()
        of = (c.byref(context), c.byref(mask))
        if self.interface == 3:
            result = self._plugin.init(*of)
        elif self.interface == 4:
            result = self._plugin.init(*of, name, hash, 1, ranks, rank, None)
        else:
            result = self._plugin.init(of[0], hash, of[1], name, 1, ranks, rank, None)
        if result:
            raise OSError(f"the plugin says {result}")
        self.mask = mask.value
        return context.value

    def start(self, context: int | None, kind: int, parent: int | None = None, **of: object) -> int:
        """Start an event; ``of`` are the fields of its struct. Returns the handle, 0 if none."""
        event = self._event(type=kind, parent=parent)
        event.rank = int(of.pop("rank", 0))  # type: ignore[call-overload]
        part = {
            COLL: "coll", P2P: "p2p", PROXY_OP: "proxy_op", KERNEL_CH: "kernel_ch",
            PROXY_STEP: "step", COLL_API: "coll_api", P2P_API: "p2p_api",
        }.get(kind)  # fmt: skip
        for name, value in of.items():
            target = getattr(event.of, str(part))
            if hasattr(target, name):
                setattr(target, name, value)
        handle = c.c_void_p()
        assert self._plugin.start(context, c.byref(handle), c.byref(event)) == 0
        return handle.value or 0

    def stop(self, handle: int) -> None:
        """Stop an event."""
        assert self._plugin.stop(handle) == 0

    def state(self, handle: int, state: int, device_ns: int = 0) -> None:
        """A change of an event's state."""
        arguments = _Arguments(device_ns=device_ns)
        assert self._plugin.state(handle, state, c.byref(arguments)) == 0

    def finalize(self, context: int | None) -> None:
        """Destroy a communicator."""
        assert self._plugin.finalize(context) == 0

    def coll(
        self,
        context: int | None,
        func: bytes,
        seq: int = 0,
        *,
        captured: bool = False,
        **of: object,
    ) -> int:
        """Enqueue a collective, as NCCL does: call, group, operation. Returns its handle."""
        call = 0
        if self.interface >= 5:
            call = self.start(context, COLL_API, func=func, captured=captured)
        group = self.start(context, GROUP)
        fields = {"count": 1, "datatype": b"ncclFloat32", "channels": 1, "algorithm": b"RING"} | of
        parent = call if self.interface >= 5 else group
        handle = self.start(context, COLL, parent or None, func=func, seq=seq, **fields)
        self.stop(handle)
        self.stop(group)
        return handle

    def begin(self, context: int | None, operation: int, channel: int = 0, at_ns: int = 1) -> int:
        """The device begins an operation on one channel; its handle."""
        return self.start(context, KERNEL_CH, operation, channel=channel, device_ns=at_ns)

    def end(self, channel: int, at_ns: int = 2) -> None:
        """The device ends an operation on one channel."""
        if self.interface > 3:
            self.state(channel, KERNEL_CH_STOP, at_ns)
        self.stop(channel)
