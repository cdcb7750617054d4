"""Reports on ranks that ended: wording that leads somewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.processes.failures import is_secondary
from hangscope.diagnosis.processes.shorten import shortened
from hangscope.diagnosis.wording.rank_advice import crash
from hangscope.trace.load import load_trace
from hangscope.trace.model import ExceptionFacts, ExitFacts, Frame
from tests.diagnosis.builder import START, Job

_FIXTURES = Path(__file__).parents[2] / "fixtures"
_WAITS = """Process 41: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 41 (idle): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:3252)
    step (train.py:30)
    <module> (train.py:51)
"""
_READS = """Process 42: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 42 (idle): "MainThread"
    read (data.py:12)
    <module> (train.py:50)
"""


@pytest.mark.parametrize(
    ("end", "begins"),
    [
        ("killed by SIGKILL", "find out who killed that rank, on host a (pid 4): dmesg"),
        ("killed by SIGTERM", "find out who stopped that rank, on host a (pid 4): the scheduler"),
        ("killed by SIGSEGV", "look for that rank's native stack, on host a (pid 4): a core dump"),
        ("exit status 3", "read the last lines of that rank's log, on host a (pid 4)"),
        ("killed by SIGKILL: out of memory", "that rank ran out of memory"),
        ("OSError: Cannot allocate memory", "that rank ran out of memory"),
        ("ValueError: environment variable RANK expected, but not set", "launch it with torchrun"),
        ("exit status 1 ValueError: bad", "fix the first error of that rank, on host a (pid 4);"),
    ],
)
def test_exit_without_message_has_no_error_to_fix(end: str, begins: str) -> None:
    assert crash(end, "on host a (pid 4)").fix.startswith(begins)


def test_rank_without_its_variables_fails_by_itself() -> None:
    using = "Error initializing torch.distributed using env:// rendezvous: "
    assert not is_secondary(f"ValueError: {using}environment variable RANK expected, but not set")
    assert is_secondary("RuntimeError: rendezvous closed")


def test_line_follows_a_colon() -> None:
    fix = crash("ValueError: bad", "data.py:4 in load on host a (pid 4)").fix
    assert fix.startswith("fix the first error of that rank: data.py:4 in load on host a (pid 4);")


def test_long_message_is_visibly_truncated() -> None:
    assert shortened("one two three", 20) == "one two three"
    built = (
        "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed"
    )
    assert shortened(built) == "[gloo/transport/tcp/pair.cc:553] Connection closed"
    assert shortened("one two three", 9) == "one two …"
    assert shortened("one two three", 7) == "one two …"
    assert shortened("x" * 30, 9) == "x" * 9 + " …"


def test_two_stacks_name_no_rank_but_show_both_places(tmp_path: Path) -> None:
    (tmp_path / "stack_rank_0.txt").write_text(_WAITS)
    (tmp_path / "stack_rank_1.txt").write_text(_READS)
    found = diagnose(load_trace([tmp_path]))
    assert (found.verdict.value, found.culprits) == ("inconclusive", ())
    assert found.findings[0].evidence == (
        "rank 0: in communication, at train.py:30 in step",
        "rank 1: at data.py:12 in read",
    )
    assert found.findings[0].fix.startswith("compare where the ranks are")


@pytest.mark.parametrize(
    ("name", "why", "seen"),
    [
        ("stopped", "rank 2 is stopped, in ", "rank 2: stopped, in "),
        ("gil-holder", "rank 1 is holding the GIL, in ", "rank 1: holding the GIL, in "),
        ("loader-asleep", "rank 2 is still in ", "rank 2: sleeping (in "),
    ],
)
def test_reason_for_blocking_is_stated_once(name: str, why: str, seen: str) -> None:
    finding = diagnose(load_trace([_FIXTURES / name / "dumps"])).findings[0]
    assert finding.why.startswith(why)
    assert finding.evidence[1].startswith(seen)


def test_crash_of_all_ranks_leaves_none_to_hang() -> None:
    job = Job(2)
    job.steps(2)
    for rank in range(2):
        at = ("0x7f6a73ba1bf0", "0x7f6a73ba1db0")[rank]
        raised = (Frame("load", "/job/data.py", 4),)
        error = ExceptionFacts("TypeError", f"no member of <Group object at {at}>", raised, START)
        job.rank(rank, exception=error, exit=ExitFacts("exception", at_ns=START), alive=False)
    first = diagnose(job.trace(after_s=1.0)).findings[0]
    assert first.culprits == (0, 1)
    assert first.fix == "fix that error: data.py:4 in load"
    assert first.why == "no rank is left to wait for it"
