"""What is told of a rank that ended, in words that lead somewhere."""

from __future__ import annotations

import pytest

from hangscope.diagnosis import playbook
from hangscope.diagnosis.failures import is_secondary
from hangscope.diagnosis.shorten import shortened


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
def test_an_end_without_a_word_has_no_error_to_mend(end: str, begins: str) -> None:
    assert playbook.crash(end, "on host a (pid 4)").fix.startswith(begins)


def test_a_rank_without_its_variables_fails_by_itself() -> None:
    using = "Error initializing torch.distributed using env:// rendezvous: "
    assert not is_secondary(f"ValueError: {using}environment variable RANK expected, but not set")
    assert is_secondary("RuntimeError: rendezvous closed")


def test_a_line_follows_a_colon() -> None:
    fix = playbook.crash("ValueError: bad", "data.py:4 in load on host a (pid 4)").fix
    assert fix.startswith("fix the first error of that rank: data.py:4 in load on host a (pid 4);")


def test_a_long_message_shows_that_it_goes_on() -> None:
    assert shortened("one two three", 20) == "one two three"
    assert shortened("one two three", 9) == "one two …"
    assert shortened("one two three", 7) == "one two …"
    assert shortened("x" * 30, 9) == "x" * 9 + " …"
