"""The declared rank counts, not what the launcher's variables once were."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed import FileStore, HashStore, PrefixStore  # type: ignore[attr-defined]
from torch.testing._internal.distributed.fake_pg import FakeStore

from hangscope.diagnosis.engine import diagnose
from hangscope.recording import api
from hangscope.recording.init_arguments import declaration
from hangscope.recording.session import Session
from hangscope.report import flight_recorder
from hangscope.trace.load import load_trace
from hangscope.trace.rings.read import read_ring
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
def test_declared_rank_and_world_size(
    args: tuple[Any, ...], kwargs: dict[str, Any], expected: tuple[int, int] | None
) -> None:
    assert declaration(args, kwargs, ENV).place == expected


def test_invalid_variables_declare_nothing() -> None:
    assert declaration((), {}, {}).place is None
    assert declaration((), {}, {"RANK": "one", "WORLD_SIZE": "2"}).place is None


@pytest.mark.parametrize(
    ("kwargs", "expected"),
    [
        pytest.param({}, "tcp://node0:29500", id="variables"),
        pytest.param({"init_method": "tcp://a:1?rank=0"}, "tcp://a:1", id="an address"),
        pytest.param({"init_method": "file:///shared/x"}, "file:///shared/x", id="a file"),
        pytest.param({"init_method": "mine://x"}, "", id="somebody's own way"),
        pytest.param({"store": HashStore()}, "HashStore", id="a store of this process"),
        pytest.param({"store": object()}, "", id="a store of somebody's own"),
        pytest.param({"backend": "mpi"}, "", id="a runtime that meets in its own way"),
        pytest.param({"init_method": "tcp://[a"}, "", id="no address"),
    ],
)
def test_rendezvous_is_known_from_the_arguments(kwargs: dict[str, Any], expected: str) -> None:
    environ = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
    assert declaration((), kwargs, environ).rendezvous == expected


def test_rendezvous_of_a_given_store(tmp_path: Path) -> None:
    store = PrefixStore("a", PrefixStore("b", FileStore(str(tmp_path / "store"), 1)))
    assert declaration((), {"store": store}, {}).rendezvous == f"file://{tmp_path}/store"


def test_rejected_call_changes_nothing(recording: Session) -> None:
    dist.new_group([0, 1])
    with pytest.raises(ValueError, match="twice"):
        dist.init_process_group("fake", store=FakeStore(), rank=3, world_size=9)
    dist.new_group([0, 2])
    facts = read_ring(recording.ring.path).facts
    assert (facts.rank, facts.world_size, facts.initialized) == (0, 4, True)
    told = recording.ring.path.read_bytes()
    assert told.count(b"call 1, ranks") == told.count(b"call 2, ranks 0,2") == 1


def test_late_recording_knows_its_rank(
    recording: Session, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    api.stop()
    dist.destroy_process_group()
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HANGSCOPE_DIR", str(tmp_path / "late"))
    dist.init_process_group("fake", store=FakeStore(), rank=2, world_size=3)
    assert api.start()
    (path,) = (tmp_path / "late").glob("*.ring")
    fragment = read_ring(path)
    facts = fragment.facts
    assert (facts.rank, facts.world_size, facts.initialized, facts.declared) == (2, 3, True, True)
    assert [group.size for group in fragment.groups] == [3]


class _Unheard(HashStore):  # type: ignore[misc]
    """A store of an unknown type."""


def test_second_initialisation_has_its_own_rendezvous(
    recording_gloo: Session, tmp_path: Path
) -> None:
    met: list[str | None] = []
    for store in (FileStore(str(tmp_path / "store"), 1), _Unheard()):
        dist.destroy_process_group()
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        met.append(read_ring(recording_gloo.ring.path).facts.rendezvous)
    assert met == [f"file://{tmp_path}/store", None]


def _job(directory: Path, how: str, fault: str, **extra: str) -> JobResult:
    env = environment(HANGSCOPE="1", HANGSCOPE_DIR=str(directory), HOW=how, FAULT=fault, **extra)
    return real_jobs.ranks(JOBS / "renamed_job.py", 3, env, timeout_s=90)


@pytest.mark.timed
@pytest.mark.parametrize(
    ("fault", "how", "culprits", "words"),
    [
        ("size", "variables", (2,), "rank 2 expects 4 ranks and ranks 0, 1 expect 3 ranks"),
        ("twice", "arguments", (1,), "nobody is rank 2"),
        (
            "elsewhere", "variables", (1,),
            "The ranks use different rendezvous addresses: rank 1 at tcp://",
        ),
    ],
)  # fmt: skip
def test_conflicting_ranks_are_reported(
    tmp_path: Path, fault: str, how: str, culprits: tuple[int, ...], words: str
) -> None:
    _job(tmp_path / "rings", how, fault, HANGSCOPE_MONITOR="0")
    trace = load_trace([tmp_path / "rings"])
    flight_recorder.write(trace, tmp_path / "dumps")
    for told in (trace, load_trace([tmp_path / "dumps"])):
        found = diagnose(told)
        assert (found.verdict.value, found.culprits) == ("argument_mismatch", culprits)
        assert words in found.summary


@pytest.mark.timed
def test_monitor_uses_the_declared_rank(tmp_path: Path) -> None:
    done = _job(tmp_path, "variables", "killed", HANGSCOPE_TIMEOUT="30")
    assert any("Rank 0 crashed: killed by SIGKILL" in line for line in done.said)
    (journal,) = tmp_path.glob("*.journal")
    ends = [json.loads(line) for line in journal.read_text().splitlines()[1:]]
    killed = [e["rank"] for e in ends if e["event"] == "exit" and e["signal"] == 9]
    assert killed == [0]
    found = diagnose(load_trace([tmp_path]))
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (0,))


@pytest.mark.timed
@pytest.mark.slow
def test_undeclared_rank_does_not_clash_with_a_declared_one(tmp_path: Path) -> None:
    done = _job(tmp_path, "variables", "late", HANGSCOPE_TIMEOUT="2")
    assert any("Rank 0 never reached init_process_group" in line for line in done.said)
    assert not any("two processes" in line for line in done.said)
