"""What devices and links say about themselves, beside a verdict."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from hangscope.monitor.hardware import errors
from hangscope.monitor.hardware.evidence import gathered
from hangscope.monitor.hardware.probe import kernel_messages, link_errors, nvidia


def test_only_recent_errors_of_devices_are_told() -> None:
    lines = [
        "4,1,100000000,-;NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus.",
        "6,2,9000000000,-;nvidia-nvlink: Nvlink Core is being initialized, major device number 240",
        "4,3,9990000000,-;NVRM: Xid (PCI:0000:02:00): 74, pid=7, NVLink: fatal error detected",
        "a line of another kind",
    ]
    assert list(kernel_messages(lines, 10_000.0, recent_s=5.0)) == []
    assert list(kernel_messages(lines, 10_000.0)) == [
        "the kernel said 10 s ago: NVRM: Xid (PCI:0000:02:00): 74, pid=7, NVLink: fatal error "
        "detected"
    ]


@pytest.mark.parametrize("said", [True, False])
def test_an_error_while_ranks_wait_is_told_once_and_without_waiting(
    monkeypatch: pytest.MonkeyPatch, said: bool
) -> None:
    monkeypatch.setattr(errors, "has_devices", lambda: True)
    lines = ["the kernel said 3 s ago: NVRM: Xid 79"] if said else []
    program = f"import json, time; time.sleep(0.3); print(json.dumps({lines!r}))"
    found = errors.DeviceErrors((sys.executable, "-c", program))
    assert found.news(waits=False) == ""
    began_s = time.monotonic()
    assert found.news(waits=True) == ""
    assert time.monotonic() - began_s < 0.3
    until_s, told = time.monotonic() + 30, ""
    while not told and time.monotonic() < until_s and found._child is not None:
        told = found.news(waits=True)
        time.sleep(0.05)
    assert told == "; ".join(lines)
    assert found.news(waits=True) == ""


def test_growing_counters_and_ports_that_are_down_are_told(tmp_path: Path) -> None:
    for name, state in (("mlx5_0", "4: ACTIVE"), ("mlx5_1", "1: DOWN")):
        port = tmp_path / name / "ports" / "1"
        (port / "counters").mkdir(parents=True)
        (port / "state").write_text(f"{state}\n")
        (port / "counters" / "symbol_error").write_text("5\n")
        (port / "counters" / "link_downed").write_text("1\n")

    def pause() -> None:
        (tmp_path / "mlx5_0" / "ports" / "1" / "counters" / "symbol_error").write_text("12\n")

    assert list(link_errors(tmp_path, pause)) == [
        "link mlx5_1 port 1 is 1: DOWN",
        "symbol_error of link mlx5_0 port 1 grew by 7 while the job stood still",
    ]


class _Error(Exception):
    pass


def _unsupported(*_: object) -> None:
    raise _Error


def test_a_device_with_errors_is_told() -> None:
    nvml = SimpleNamespace(
        NVMLError=_Error,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetTotalEccErrors=lambda device, kind, counter: 3 if device == 1 else 0,
        nvmlDeviceGetRemappedRows=lambda device: (0, 0, 0, 0),
        nvmlDeviceGetRetiredPagesPendingStatus=_unsupported,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda device: 0x41 if device == 0 else 1,
    )
    assert list(nvidia(nvml)) == ["GPU 0 is too hot", "GPU 1 has 3 uncorrected memory errors"]


def test_a_driver_that_hangs_is_left_alone() -> None:
    began_s = time.monotonic()
    found = gathered([sys.executable, "-c", "import time; time.sleep(60)"], 0.5)
    assert found == ("a driver of this node's devices did not answer within 0.5 s",)
    assert time.monotonic() - began_s < 5.0


def test_what_a_probe_prints_is_not_trusted() -> None:
    program = r"""print('["one\\u001b[2J", 2, {"a": 1}]')"""
    (line,) = gathered([sys.executable, "-c", program], 20.0)
    assert line.startswith("one")
    assert "\x1b" not in line
    assert gathered([sys.executable, "-c", "print('{')"], 20.0) == ()
