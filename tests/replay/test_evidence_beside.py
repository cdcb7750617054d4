"""A log that tells nothing of the fault changes no verdict on what ranks recorded themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Diagnosis
from hangscope.replay import find_fixtures, load_fixture
from hangscope.trace import formats
from hangscope.trace.load import load_trace
from tests.depth import DEEP

ROOT = Path(__file__).resolve().parents[2] / "fixtures"
HANDLED = """\
Traceback (most recent call last):
  File "/app/train.py", line 31, in upload
    client.put(path)
ValueError: the bucket refused the file, it is tried again
"""
FOLDERS = find_fixtures([ROOT])


def of(found: Diagnosis) -> tuple[str, tuple[int, ...], str]:
    return found.verdict.value, found.culprits, found.confidence.value


def own_report(found: Diagnosis) -> str:
    return f"\n[hangscope] {found.summary}\n  HANG   4 ranks · live\n\n {found.summary}\n\n"


def ordinary_output(found: Diagnosis) -> str:
    return "".join(f"[rank{r}]: step 7 loss 3.2\n" for r in range(found.world_size or 2))


def handled_exception(prefix: str) -> str:
    lines = f"step 7 loss 3.2\n{HANDLED}step 8 loss 3.1\n".splitlines()
    return "".join(f"{prefix}{line}\n" for line in lines)


@pytest.mark.parametrize("number", range(len(FOLDERS)), ids=lambda number: FOLDERS[number].name)
def test_log_that_tells_nothing_changes_no_verdict(number: int, tmp_path: Path) -> None:
    """Every fixture beside one of the logs; at depth, beside each of them."""
    folder = FOLDERS[number]
    dumps = str(load_fixture(folder).dumps)
    trace = load_trace([dumps])
    if any(source.format == formats.LOG for source in trace.sources):
        pytest.skip("has a log of its own")
    alone = diagnose(trace)
    log = tmp_path / "job.log"
    texts = (
        own_report(alone),
        ordinary_output(alone),
        handled_exception("[default0]:"),
        handled_exception("[rank0]:[train] INFO "),
        handled_exception(""),
    )
    for text in texts if DEEP else texts[number % len(texts) :][:1]:
        log.write_text(text)
        assert of(diagnose(load_trace([dumps, str(log)]))) == of(alone), text


def test_printed_exception_of_the_accused_is_shown(tmp_path: Path) -> None:
    fixture = load_fixture(ROOT / "checkpoint-on-full-disk")
    log = tmp_path / "job.log"
    log.write_text(
        "[default0]:[rank0]:[W1121 10:00:00.123456789 ProcessGroupNCCL.cpp:1250] Warning: slow\n"
        + handled_exception("[default0]:")
    )
    found = diagnose(load_trace([str(fixture.dumps), str(log)]))
    assert found.culprits == (0,)
    assert any("ValueError: the bucket refused" in line for line in found.findings[0].evidence)


def test_exception_that_ended_the_process_counts(tmp_path: Path) -> None:
    fixture = load_fixture(ROOT / "exit-status-3")
    alone = diagnose(load_trace([str(fixture.dumps)]))
    rank = alone.culprits[0]
    log = tmp_path / "job.log"
    log.write_text("".join(f"[rank{rank}]: {line}\n" for line in HANDLED.splitlines()))
    found = diagnose(load_trace([str(fixture.dumps), str(log)]))
    assert found.culprits == (rank,)
    assert "the bucket refused" in found.summary
