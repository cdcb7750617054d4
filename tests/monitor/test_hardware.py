"""What devices and links say about themselves, beside a verdict."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Confidence, Diagnosis, Verdict
from hangscope.monitor.hardware import errors, evidence
from hangscope.monitor.hardware.evidence import Hardware, failed_devices, gathered
from hangscope.monitor.hardware.probe import amd, kernel_messages, link_errors, nvidia
from hangscope.monitor.hardware.signs import Sign, address_in, from_json, to_json
from hangscope.trace.external_reports.journal import HEADER_KEY, VERSION, read_journal
from hangscope.trace.model import Trace
from tests.diagnosis.builder import Job


def test_only_recent_errors_of_devices_are_told() -> None:
    lines = [
        "4,1,100000000,-;NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus.",
        "6,2,9000000000,-;nvidia-nvlink: Nvlink Core is being initialized, major device number 240",
        "4,3,9990000000,-;NVRM: Xid (PCI:0000:02:00): 74, pid=7, NVLink: fatal error detected",
        "a line of another kind",
    ]
    assert list(kernel_messages(lines, 10_000.0, recent_s=5.0)) == []
    (sign,) = kernel_messages(lines, 10_000.0)
    assert sign.text == (
        "the kernel said 10 s ago: NVRM: Xid (PCI:0000:02:00): 74, pid=7, NVLink: fatal error "
        "detected"
    )
    assert (sign.device, sign.ago_s) == ("0000:02:00", pytest.approx(10.0))


@pytest.mark.parametrize(
    ("text", "device", "fatal"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the "
         "bus.", "0000:3b:00", True),
        ("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.", "0000:3b:00", True),
        ("NVRM: Xid (PCI:0000:86:00): 48, pid=1204, name=python, DBE (double bit error)",
         "0000:86:00", True),
        ("NVRM: Xid (PCI:0000:86:00): 119, pid=9301, name=python, Timeout after 6s of waiting for "
         "RPC response from GPU0 GSP!", "0000:86:00", True),
        ("NVRM: Xid (PCI:0000:86:00): 31, pid=1204, name=python, Ch 00000008, MMU Fault: ENGINE "
         "GRAPHICS", "0000:86:00", False),
        ("NVRM: Xid (PCI:0000:86:00): 45, pid=1204, Ch 00000008", "0000:86:00", False),
        ("amdgpu 0000:0c:00.0: amdgpu: GPU reset begin!", "0000:0c:00", True),
        ("amdgpu 0000:0c:00.0: amdgpu: ring comp_1.0.0 timeout, signaled seq=5, emitted seq=7",
         "0000:0c:00", True),
        ("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress error",
         "0000:c1:00", False),
    ],
)  # fmt: skip
def test_errors_in_the_words_of_drivers(text: str, device: str, fatal: bool) -> None:
    (sign,) = kernel_messages([f"4,1,5000000,-;{text}\n SUBSYSTEM=pci"], 8.0)
    assert (sign.device, sign.ago_s is not None) == (device, fatal)


@pytest.mark.parametrize("said", [True, False])
def test_an_error_while_ranks_wait_is_told_once_and_without_waiting(
    monkeypatch: pytest.MonkeyPatch, said: bool
) -> None:
    monkeypatch.setattr(errors, "has_devices", lambda: True)
    lines = ["the kernel said 3 s ago: NVRM: Xid 79"] if said else []
    printed = to_json([Sign(line) for line in lines])
    program = f"import time; time.sleep(0.3); print({printed!r})"
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

    assert [sign.text for sign in link_errors(tmp_path, pause)] == [
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
        nvmlDeviceGetPciInfo=lambda device: SimpleNamespace(busId=b"00000000:%02X:00.0" % device),
        nvmlDeviceGetTotalEccErrors=lambda device, kind, counter: 3 if device == 1 else 0,
        nvmlDeviceGetRemappedRows=lambda device: (0, 0, 0, 0),
        nvmlDeviceGetRetiredPagesPendingStatus=_unsupported,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda device: 0x41 if device == 0 else 1,
    )
    assert list(nvidia(nvml)) == [
        Sign("GPU 0 is too hot", "0000:00:00"),
        Sign("GPU 1 has 3 uncorrected memory errors", "0000:01:00"),
    ]


def test_a_device_of_another_make_with_errors_is_told() -> None:
    smi = SimpleNamespace(
        amdsmi_init=lambda: None,
        amdsmi_get_processor_handles=lambda: [0, 1],
        amdsmi_get_gpu_total_ecc_count=lambda device: {"uncorrectable_count": device * 2},
        amdsmi_get_gpu_device_bdf=lambda device: f"0000:{device:02x}:00.0",
    )
    assert list(amd(smi)) == [Sign("GPU 1 has 2 uncorrected memory errors", "0000:01:00")]


def test_a_driver_that_hangs_is_left_alone() -> None:
    began_s = time.monotonic()
    (found,) = gathered((sys.executable, "-c", "import time; time.sleep(60)"), 0.5)
    assert found.text == "a driver of this node's devices did not answer within 0.5 s"
    assert time.monotonic() - began_s < 5.0


def test_what_a_probe_prints_is_not_trusted() -> None:
    said = r'[["one\u001b[2J", "", null], ["two", "x", 1.5], ["three", 3, null], 2, {"a": 1}]'
    one, two = from_json(said.encode())
    assert one.text.startswith("one")
    assert "\x1b" not in one.text
    assert two == Sign("two", "", 1.5)
    assert from_json(b"{") == from_json(b"[" * 100_000) == []


def test_addresses_are_the_same_however_they_are_written() -> None:
    assert address_in("00000000:3B:00.0") == address_in("PCI:0000:3b:00") == "0000:3b:00"
    assert address_in("at 12:30:05") == ""


FATAL = Sign("the kernel said 9 s ago: NVRM: Xid (PCI:0000:12:00): 79", "0000:12:00", 9.0)
HOT = Sign("GPU 1 is too hot", "0000:11:00")


def hang() -> Trace:
    """Four ranks, each with a device of its own, in an operation that none finishes."""
    job = Job(4, live=True)
    for _ in range(3):
        for rank in range(4):
            job.op(rank)
    for rank in range(4):
        job.op(rank, done=False)
    trace = job.trace()
    devices = {r: replace(f, device=f"0000:{16 + r:02x}:00") for r, f in trace.ranks.items()}
    return replace(trace, ranks=devices)


def weighed(trace: Trace, signs: list[Sign], here: Iterable[int]) -> Diagnosis:
    """The diagnosis with what the journal of a monitor keeps of these signs."""
    events = [{HEADER_KEY: VERSION}] + [
        {"event": "device", "rank": claim.accused[0], "at_ns": claim.at_ns, "text": claim.text}
        for claim in failed_devices(signs, trace, here)
    ]
    kept = read_journal("m.journal", "\n".join(map(json.dumps, events)).encode())
    return diagnose(replace(trace, claims=tuple(c for part in kept for c in part.claims)))


def test_a_device_that_failed_is_named_where_nobody_else_is() -> None:
    found = weighed(hang(), [HOT, FATAL], range(4))
    assert (found.verdict, found.culprits) == (Verdict.STUCK_COLLECTIVE, (2,))
    assert found.confidence is Confidence.LIKELY
    assert "Rank 2's device 0000:12:00 has probably failed" in found.headline
    assert found.findings[0].why == FATAL.text
    assert found.findings[0].victims == (0, 1, 3)


@pytest.mark.parametrize(
    ("signs", "here"),
    [
        ([HOT], range(4)),  # slow, and no more
        ([replace(FATAL, ago_s=200.0)], range(4)),  # the job went on after it
        ([FATAL, replace(FATAL, device="0000:11:00")], range(4)),  # which of them?
        ([FATAL], range(2)),  # of another node, whose devices may have the same addresses
        ([replace(FATAL, device="0000:77:00")], range(4)),
    ],
)
def test_nobody_is_named_for_less(signs: list[Sign], here: range) -> None:
    found = weighed(hang(), signs, here)
    assert (found.verdict, found.culprits) == (Verdict.STUCK_COLLECTIVE, ())


def test_who_is_named_for_what_the_program_did_stays_named() -> None:
    trace = hang()
    missing = replace(trace, records=trace.records[:-1])  # rank 3 has not come
    assert weighed(missing, [FATAL], range(4)).culprits == (3,)


def test_what_cannot_be_read_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "has_devices", lambda: True)
    said = to_json([Sign("not read on this node: the kernel's log")])
    hardware = Hardware((sys.executable, "-c", f"print({said!r})"), 20.0)
    assert hardware.signs() == [Sign("not read on this node: the kernel's log")]
    assert hardware.signs() == []
