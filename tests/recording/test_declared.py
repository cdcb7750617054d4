"""Who a process says that it is counts, not what its launcher's variables once were."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.recording.declared import declared_place
from hangscope.report import flight_recorder
from hangscope.trace.load import load_trace
from tests import real_jobs
from tests.real_jobs import JobResult, environment
from tests.recording.launcher import JOBS

ENV = {"RANK": "3", "WORLD_SIZE": "8"}


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        pytest.param((), {}, (3, 8), id="variables"),
        pytest.param(("gloo",), {"init_method": "env://"}, (3, 8), id="the same, spelled out"),
        pytest.param(("gloo",), {"rank": 1, "world_size": 2}, (1, 2), id="arguments"),
        pytest.param(("gloo", None, None, 2, 1), {}, (1, 2), id="arguments by place"),
        pytest.param((), {"rank": 1}, (1, 8), id="one of them"),
        pytest.param(
            (), {"init_method": "tcp://a:1", "rank": 1, "world_size": 2}, (1, 2), id="an address"
        ),
        pytest.param(
            (), {"init_method": "tcp://a:1?rank=1&world_size=2"}, (1, 2), id="in the address"
        ),
        pytest.param(
            (), {"init_method": "file:///a?rank=0&world_size=1"}, (0, 1), id="in a file's name"
        ),
        pytest.param((), {"store": object(), "rank": 0, "world_size": 2}, (0, 2), id="a store"),
        pytest.param((), {"store": object()}, None, id="a store that asks nobody"),
        pytest.param((), {"init_method": "tcp://a:1"}, None, id="an address alone"),
        pytest.param(("mpi",), {}, None, id="a runtime with numbers of its own"),
        pytest.param((), {"rank": 1 << 40, "world_size": 1 << 41}, (3, 8), id="no number of ranks"),
    ],
)
def test_the_place_that_a_call_declares(
    args: tuple[Any, ...], kwargs: dict[str, Any], expected: tuple[int, int] | None
) -> None:
    assert declared_place(args, kwargs, ENV) == expected


def test_variables_that_are_none_declare_nothing() -> None:
    assert declared_place((), {}, {}) is None
    assert declared_place((), {}, {"RANK": "one", "WORLD_SIZE": "2"}) is None


def _job(directory: Path, how: str, fault: str, **extra: str) -> JobResult:
    env = environment(HANGSCOPE="1", HANGSCOPE_DIR=str(directory), HOW=how, FAULT=fault, **extra)
    return real_jobs.torchrun(JOBS / "renamed_job.py", 3, env, timeout_s=90)


@pytest.mark.parametrize("how", ["variables", "arguments"])
@pytest.mark.parametrize(
    ("fault", "culprits", "words"),
    [
        ("size", (2,), "rank 2 expects 4 ranks and ranks 0, 1 expect 3 ranks"),
        ("twice", (1,), "nobody is rank 2"),
    ],
)
def test_places_that_cannot_go_together_are_told_of(
    tmp_path: Path, how: str, fault: str, culprits: tuple[int, ...], words: str
) -> None:
    _job(tmp_path / "rings", how, fault, HANGSCOPE_MONITOR="0")
    trace = load_trace([tmp_path / "rings"])
    flight_recorder.write(trace, tmp_path / "dumps")
    for told in (trace, load_trace([tmp_path / "dumps"])):
        found = diagnose(told)
        assert (found.verdict.value, found.culprits) == ("argument_mismatch", culprits)
        assert words in found.summary


def test_the_monitor_calls_a_process_by_the_rank_it_has_given_itself(tmp_path: Path) -> None:
    done = _job(tmp_path, "variables", "killed", HANGSCOPE_TIMEOUT="30")
    assert any("Rank 0 crashed: killed by SIGKILL" in line for line in done.said)
    (journal,) = tmp_path.glob("*.journal")
    ends = [json.loads(line) for line in journal.read_text().splitlines()[1:]]
    killed = [e["rank"] for e in ends if e["event"] == "exit" and e["signal"] == 9]
    assert killed == [0]
    found = diagnose(load_trace([tmp_path]))
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (0,))


def test_who_has_not_said_its_rank_is_none_that_another_has_said(tmp_path: Path) -> None:
    done = _job(tmp_path, "variables", "late", HANGSCOPE_TIMEOUT="2")
    assert any("Rank 0 never reached init_process_group" in line for line in done.said)
    assert not any("two processes" in line for line in done.said)
