"""``python -m hangscope.monitor.hardware.probe``: prints what is abnormal as JSON, and ends.

Runs in a process of its own, which the monitor kills if a driver does not answer.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from hangscope.monitor.hardware.signs import Sign, address_in, to_json

_RECENT_S = 3600.0
_KERNEL = re.compile(
    r"NVRM: (?:Xid|GPU .* has fallen off)|nvidia-nvlink.*(?:error|fatal)|nvswitch.*SXid"
    r"|amdgpu.*(?:GPU reset|ring .* timeout|uncorrectable|hw fault)|mlx5_core.*(?:error|down)",
    re.IGNORECASE,
)
_FATAL = re.compile(
    r"Xid \([^)]*\): (?:48|61|62|74|79|94|95|119|120|140|143|144|145|146|147|148|149|150)\b"
    r"|fallen off|GPU reset begin|ring \S+ timeout|uncorrectable",
    re.IGNORECASE,
)
"""Of these, errors after which a device does no more work, and which no program can cause: NVIDIA's
list of Xid errors has most others as the program's own, or as what follows its end."""
_MOST_MESSAGES = 3
INFINIBAND = Path("/sys/class/infiniband")
_ERRORS = (
    "symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors",
    "port_xmit_discards", "local_link_integrity_errors", "excessive_buffer_overrun_errors",
)  # fmt: skip
_BETWEEN_S = 1.0
"""Between two looks at the counters of links: what grows while the job stands still counts."""
_SLOWED = {0x8: "slowed down by hardware", 0x40: "too hot", 0x80: "short of power"}
"""NVML's reasons for reduced clocks."""


def kernel_messages(
    lines: Iterable[str], now_s: float, recent_s: float = _RECENT_S
) -> Iterator[Sign]:
    """Errors of devices and links in the latest records of ``/dev/kmsg``, the newest few.

    Parameters
    ----------
    lines:
        ``PRIORITY,NUMBER,MICROSECONDS,FLAGS;TEXT``.
    now_s:
        Seconds since the machine's start.
    recent_s:
        Age up to which they count, by default an hour.
    """
    found = []
    for line in lines:
        head, _, text = line.partition(";")
        fields = head.split(",")
        if len(fields) < 3 or not fields[2].isdigit() or not _KERNEL.search(text):
            continue
        ago_s = now_s - int(fields[2]) / 1e6
        if ago_s <= recent_s:
            said = f"the kernel said {ago_s:.0f} s ago: {text.strip()[:200]}"
            fatal = ago_s if _FATAL.search(text) else None
            found.append(Sign(said, address_in(text), fatal))
    yield from found[-_MOST_MESSAGES:]


def link_errors(folder: Path, pause: Callable[[], None]) -> Iterator[Sign]:
    """Ports that are not active, and error counters that grow."""
    before = _counters(folder)
    if not before:
        return
    pause()
    after = _counters(folder)
    for port in sorted({counter.parent.parent for counter in before}):
        state = _text(port / "state")
        if state and "ACTIVE" not in state:
            yield Sign(f"link {port.parent.parent.name} port {port.name} is {state}")
    for counter, value in after.items():
        if value > before.get(counter, value):
            port = counter.parent.parent
            grown = value - before[counter]
            name = f"{port.parent.parent.name} port {port.name}"
            yield Sign(f"{counter.name} of link {name} grew by {grown} while the job stood still")


def nvidia(nvml: Any) -> Iterator[Sign]:
    """What NVML finds wrong with each device; ``nvml`` is the module ``pynvml``."""
    nvml.nvmlInit()
    for index in range(nvml.nvmlDeviceGetCount()):
        device = nvml.nvmlDeviceGetHandleByIndex(index)
        found = _asked(nvml, nvml.nvmlDeviceGetPciInfo, device)
        address = address_in(_decoded(found.busId)) if found is not None else ""
        for what in _wrong_with(nvml, device):
            yield Sign(f"GPU {index} {what}", address)


def _wrong_with(nvml: Any, device: Any) -> Iterator[str]:
    if errors := _asked(nvml, nvml.nvmlDeviceGetTotalEccErrors, device, 1, 0):
        yield f"has {errors} uncorrected memory errors"
    remapped = _asked(nvml, nvml.nvmlDeviceGetRemappedRows, device)
    if remapped and (remapped[2] or remapped[3]):
        yield "waits for a reset to replace memory rows, or could not"
    if _asked(nvml, nvml.nvmlDeviceGetRetiredPagesPendingStatus, device):
        yield "waits for a restart to retire memory pages"
    reasons = _asked(nvml, nvml.nvmlDeviceGetCurrentClocksThrottleReasons, device) or 0
    for bit, what in _SLOWED.items():
        if reasons & bit:
            yield f"is {what}"


def amd(smi: Any) -> Iterator[Sign]:
    """What amdsmi finds wrong with each device; ``smi`` is the module ``amdsmi``."""
    smi.amdsmi_init()
    for index, device in enumerate(smi.amdsmi_get_processor_handles()):
        try:
            errors = smi.amdsmi_get_gpu_total_ecc_count(device)["uncorrectable_count"]
            address = address_in(str(smi.amdsmi_get_gpu_device_bdf(device)))
        except Exception:
            continue
        if errors:
            yield Sign(f"GPU {index} has {errors} uncorrected memory errors", address)


def main() -> None:
    """Ask everything there is; print what is abnormal, and what could not be read.

    With ``--errors SECONDS``, only errors in the kernel's log that are not older.
    """
    said: list[Sign] = []
    unread: list[str] = []
    if sys.argv[1:2] == ["--errors"]:
        _collect(said, unread, "the kernel's log", lambda: _kernel(float(sys.argv[2])))
        print(to_json(said))
        return
    _collect(said, unread, "the kernel's log", _kernel)
    _collect(said, unread, "link counters", lambda: link_errors(INFINIBAND, _pause))
    if Path("/dev/nvidiactl").exists():
        _collect(said, unread, "NVML (nvidia-ml-py)", lambda: nvidia(_imported("pynvml")))
    if Path("/dev/kfd").exists():
        _collect(said, unread, "amdsmi", lambda: amd(_imported("amdsmi")))
    if unread:
        said.append(Sign(f"not read on this node: {'; '.join(unread)}"))
    print(to_json(said))


def _collect(
    said: list[Sign], unread: list[str], name: str, ask: Callable[[], Iterable[Sign]]
) -> None:
    try:
        said.extend(ask())
    except Exception as error:
        unread.append(f"{name} ({error.strerror if isinstance(error, OSError) else error})")


def _kernel(recent_s: float = _RECENT_S) -> Iterator[Sign]:
    descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    lines = []
    try:
        while True:
            try:
                lines.append(os.read(descriptor, 8192).decode("utf-8", "replace"))
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # overwritten meanwhile; the next read goes on with the oldest
    finally:
        os.close(descriptor)
    yield from kernel_messages(lines, time.clock_gettime(time.CLOCK_BOOTTIME), recent_s)


def _imported(name: str) -> Any:
    import importlib

    return importlib.import_module(name)


def _pause() -> None:
    time.sleep(_BETWEEN_S)


def _asked(nvml: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """The answer; None where the device does not support the question."""
    try:
        return function(*arguments)
    except nvml.NVMLError:
        return None


def _decoded(text: str | bytes) -> str:
    return text.decode("ascii", "replace") if isinstance(text, bytes) else text


def _counters(folder: Path) -> dict[Path, int]:
    found = {}
    for name in _ERRORS:
        for path in folder.glob(f"*/ports/*/counters/{name}"):
            text = _text(path)
            if text.isdigit():
                found[path] = int(text)
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


if __name__ == "__main__":
    main()
