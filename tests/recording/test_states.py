"""Started and completed counters that Python may not query, and dumps for torch's own tools."""

from __future__ import annotations

import json
import pickle
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

import hangscope
from hangscope.recording.compiled.hook import CompiledHook
from hangscope.recording.groups import DeviceBackend
from hangscope.recording.native_status import MAX_FAILURES, NativeStatus, native_id
from hangscope.recording.operations import spec_for
from hangscope.recording.reduce_ops import MAX_NEWEST, MAX_UNREAD
from hangscope.recording.session import Session
from hangscope.ring.layout import SlotFlag
from hangscope.trace.load import load_trace
from hangscope.trace.rings.read import read_ring
from tests.real_jobs import environment, run, run_each, worlds
from tests.recording.launcher import recording

STATUS = {
    "last_enqueued_collective": "3",  # NCCL's JSON has numbers as strings
    "last_started_collective": "3",
    "last_completed_collective": "2",
}


def device_group(session: Session, uid: str = "7") -> object:
    """The state of the default group, as if its backend were NCCL with this uid."""
    for _ in range(3):
        dist.all_reduce(torch.ones(2))
    state = session.recorder.groups.by_identity[id(dist.group.WORLD)]
    state.backends.clear()
    state.backends["cuda"] = DeviceBackend("nccl", False, 0, int(SlotFlag.UNOBSERVED), uid)
    return state


def counters(session: Session) -> tuple[int, int]:
    member = read_ring(session.ring.path).members[0]
    return int(member["started"]), int(member["completed"])


def completed_ns(session: Session) -> int:
    return int(read_ring(session.ring.path).members[0]["completed_ns"])


def end_watcher(session: Session) -> None:
    """Stop the watcher, so that nothing happens by itself any more."""
    assert session.watcher is not None
    session.watcher.stop()
    session.watcher.join()


def test_native_counters_are_merged_by_uid(recording: Session) -> None:
    device_group(recording)
    assert counters(recording) == (-1, -1)
    other = dict(STATUS, last_completed_collective="1")
    status = {"pg_status": {"6": other, "7": STATUS, "8": other}}
    native = NativeStatus(lambda: json.dumps(status))
    before_ns = time.time_ns()
    native.merge(recording.recorder)
    assert counters(recording) == (3, 2)
    seen_ns = completed_ns(recording)
    assert before_ns <= seen_ns <= time.time_ns()
    native.merge(recording.recorder)
    assert completed_ns(recording) == seen_ns  # nothing new
    status["pg_status"]["7"] = dict(STATUS, last_completed_collective="3")
    native.merge(recording.recorder)
    assert counters(recording) == (3, 3)
    assert completed_ns(recording) > seen_ns


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"pg_status": {"0": STATUS}},
        {"pg_status": {"7": dict(STATUS, last_enqueued_collective="40")}},
        {"pg_status": {"7": "nonsense"}},
    ],
    ids=["none", "another group's", "numbered differently", "malformed"],
)
def test_inconsistent_counters_are_ignored(recording: Session, status: object) -> None:
    device_group(recording)
    NativeStatus(lambda: json.dumps(status)).merge(recording.recorder)
    assert counters(recording) == (-1, -1)
    assert not recording.failed


def test_counters_of_a_group_with_sends_are_ignored(recording: Session) -> None:
    """Sends are numbered separately, and the counter holds the newest of either kind."""
    state = device_group(recording)
    native = NativeStatus(lambda: json.dumps({"pg_status": {"7": STATUS}}))
    native.merge(recording.recorder)
    assert counters(recording) == (3, 2)
    state.p2p_seq = 5  # type: ignore[attr-defined]
    mixed = dict(STATUS, last_enqueued_collective="3", last_completed_collective="3")
    NativeStatus(lambda: json.dumps({"pg_status": {"7": mixed}})).merge(recording.recorder)
    assert counters(recording) == (3, 2)


def test_group_with_several_backends_is_ignored(recording: Session) -> None:
    state = device_group(recording)
    assert native_id(state) == "7"  # type: ignore[arg-type]
    state.backends["cpu"] = DeviceBackend("gloo", True, 0)  # type: ignore[attr-defined]
    assert native_id(state) == ""  # type: ignore[arg-type]


def test_failing_native_recorder_is_not_queried_again(recording: Session) -> None:
    device_group(recording)
    calls = []

    def fail() -> str:
        calls.append(1)
        raise RuntimeError("no")

    native = NativeStatus(fail)
    for _ in range(MAX_FAILURES + 5):
        native.merge(recording.recorder)
    assert len(calls) == MAX_FAILURES + 1


def test_entries_are_never_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    """With them the native recorder would query CUDA events from this thread."""
    asked = []

    def dump(includeCollectives: bool, onlyActive: bool) -> bytes:  # noqa: N803 - torch's names
        asked.append(includeCollectives)
        return b"{}"

    monkeypatch.setitem(
        sys.modules, "torch._C._distributed_c10d", SimpleNamespace(_dump_nccl_trace_json=dump)
    )
    native = NativeStatus.available()
    assert native is not None
    native._dump()
    assert asked == [False]


def test_capturing_stream_makes_graph_replay_unobservable(
    recording: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a GPU: a stand-in claims that the stream is capturing, and the plan is on CUDA."""
    recorder = recording.recorder
    real_plan = recorder.planner.plan
    on_cuda = [False]

    def plan(*args: object) -> tuple[object, ...]:
        made = real_plan(*args)  # type: ignore[arg-type]
        assert made is not None
        return (*made[:9], on_cuda[0], *made[10:])

    monkeypatch.setattr(recorder.planner, "plan", plan)
    captures = [False]
    monkeypatch.setattr(
        torch._C, "_cuda_isCurrentStreamCapturing", lambda: captures[0], raising=False
    )
    schema = torch.ops.c10d.barrier.default._schema
    begin = recorder.beginner(spec_for("barrier", [a.name for a in schema.arguments]))
    barrier = (torch.empty(1), dist.group.WORLD.boxed(), [])

    def told() -> tuple[str, ...]:
        begin(barrier)
        return read_ring(recording.ring.path).facts.unobservable

    assert told() == ()
    captures[0] = True
    assert told() == ()  # a CPU tensor's operation is not captured
    on_cuda[0], captures[0] = True, False
    assert told() == ()
    captures[0] = True
    assert told() == ("CUDA graph replay",)
    recording.ring.put_u4("unobservable", 4)  # noted once, so later captures cost nothing
    assert told() != ("CUDA graph replay",)


@pytest.mark.parametrize(("value", "told"), [("1", True), ("0", False), ("", False)])
def test_blocking_waits_make_operations_unobservable(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, value: str, told: bool
) -> None:
    monkeypatch.setenv("TORCH_NCCL_BLOCKING_WAIT", value)
    recording: Session = request.getfixturevalue("recording")
    said = read_ring(recording.ring.path).facts.unobservable
    assert [text.partition("=")[0] for text in said] == ["TORCH_NCCL_BLOCKING_WAIT"] * told


def test_unknown_operator_is_recorded_by_name(recording: Session) -> None:
    """From a future torch: its group is found among its arguments."""
    begin = recording.recorder.beginner(spec_for("all_new_", ["tensor", "kind", "members", "time"]))
    other = dist.new_group([0, 2])
    assert begin((torch.empty(3), torch.ScriptObject, other.boxed(), 5)) is not None
    assert begin((torch.empty(3), 5)) is None
    fragment = read_ring(recording.ring.path)
    (row,) = fragment.records
    assert fragment.signatures[row["signature"]].op == "all_new"
    assert fragment.groups[row["group"]].ranks == (0, 2)
    assert int(row["collective_seq"]) == 1


def test_dump_holds_what_the_ring_does(recording: Session, tmp_path: Path) -> None:
    group = dist.new_group([0, 1], group_desc="pair")
    dist.all_reduce(torch.ones(3, 2), op=dist.ReduceOp.MAX)
    dist.broadcast(torch.ones(5, dtype=torch.float16), 1, group=group)
    dist.send(torch.ones(4), 1, group=group)
    path = hangscope.dump(tmp_path / "comm_lib_trace_rank_0")
    dump = pickle.loads(path.read_bytes())
    assert dump["version"] == "2.10"
    names = [entry["profiling_name"].partition(":")[2] for entry in dump["entries"]]
    assert names == ["all_reduce", "broadcast", "send 0->1"]
    again = load_trace([path])
    first = read_ring(recording.ring.path)
    for column in ("collective_seq", "p2p_seq", "op_id", "created_ns", "timeout_ms"):
        assert again.records[column].tolist() == first.records[column].tolist(), column
    for ours, theirs in zip(first.records, again.records, strict=True):
        before = first.signatures[ours["signature"]]
        after = again.signatures[theirs["signature"]]
        assert (before.op, before.input_sizes, before.input_dtypes) == (
            after.op, after.input_sizes, after.input_dtypes,
        )  # fmt: skip
        assert first.stacks[ours["stack"]] == again.stacks[theirs["stack"]]


def test_torchfrtrace_reads_what_dump_writes(tmp_path: Path) -> None:
    """Two real ranks; the stock analyzer loads both dumps and finds the collectives matching."""
    code = (
        "import os, sys, torch, torch.distributed as dist, hangscope\n"
        "dist.init_process_group('gloo')\n"
        "for n in (4, 8): dist.all_reduce(torch.ones(n))\n"
        "hangscope.dump(os.path.join(sys.argv[1], f'trace_{dist.get_rank()}'))\n"
        "dist.destroy_process_group()\n"
    )
    (tmp_path / "dumps").mkdir()
    env = recording(tmp_path / "run")
    command = [sys.executable, "-c", code, str(tmp_path / "dumps")]
    ranks = run_each(command, [env | place for place in worlds(2)])
    assert ranks.returncode == 0, ranks.output
    job = run(
        [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace",
         str(tmp_path / "dumps"), "-p", "trace_", "-o", str(tmp_path / "judged")],
        environment(),
    )  # fmt: skip
    assert job.returncode == 0, job.output
    assert "Error" not in job.output
    judged = pickle.loads((tmp_path / "judged").read_bytes())
    database = judged[1]  # a plain tuple: groups, memberships, tracebacks, collectives, calls
    collectives = database[3]
    assert len(collectives) == 2
    for collective in collectives:
        assert collective[2] is True, collective  # pass_check
        assert collective[7] == "gloo:all_reduce"


def skip_if_compiled(recording: Session) -> None:
    if isinstance(recording.hook, CompiledHook):
        pytest.skip("reads the reduce op at once")


def test_more_reduce_ops_than_can_be_read(recording: Session) -> None:
    """The first and the very last are known, those in between are not; none is guessed."""
    skip_if_compiled(recording)
    end_watcher(recording)
    reductions = recording.recorder.reductions
    count = MAX_UNREAD + 3 * MAX_NEWEST
    reductions.read()
    for number in range(count):
        dist.all_reduce(torch.ones(2), op=(dist.ReduceOp.MAX, dist.ReduceOp.MIN)[number % 2])
    reductions.read()
    fragment = read_ring(recording.ring.path)
    ops = [fragment.signatures[row["signature"]].reduce_op for row in fragment.records]
    known = ["MAX", "MIN"] * (count // 2)
    for number in range(MAX_UNREAD, count - MAX_NEWEST):
        known[number] = None  # type: ignore[call-overload]
    assert ops == known


@pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="says what 2.13 does")
def test_native_gloo_entries_add_nothing() -> None:
    """Why only polling shows when Gloo has completed."""
    code = (
        "import json, pickle, torch, torch.distributed as dist\n"
        "from torch._C._distributed_c10d import _dump_fr_trace\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "for _ in range(3): dist.all_reduce(torch.ones(2))\n"
        "entries = pickle.loads(_dump_fr_trace())['entries']\n"
        "print(json.dumps([[e['state'], e['time_discovered_started_ns'],"
        " e['time_discovered_completed_ns']] for e in entries]))\n"
    )
    job = run([sys.executable, "-c", code], environment(TORCH_FR_BUFFER_SIZE="100"))
    assert json.loads(job.output.splitlines()[-1]) == [["scheduled", None, None]] * 3


def test_operation_with_an_unreadable_reduce_op_is_recorded(recording: Session) -> None:
    """As in torch 2.5: the operation is recorded, its reduce op stays unknown."""
    skip_if_compiled(recording)

    class Silent:
        def _has_method(self, name: str) -> bool:
            return False

    dist.all_reduce(torch.ones(2))
    record_id, _, *origin = recording.recorder.reductions.unread.pop()
    recording.recorder.reductions._tells = None
    recording.recorder.reductions.unread.append((record_id, Silent(), *origin))
    recording.recorder.catch_up()
    fragment = read_ring(recording.ring.path)
    assert fragment.signatures[fragment.records[-1]["signature"]].reduce_op is None
    assert not recording.failed


@pytest.mark.parametrize("waited", [0, 1, 2])
def test_wait_while_the_watcher_polls(
    recording_gloo: Session, monkeypatch: pytest.MonkeyPatch, waited: int
) -> None:
    """The job waits for an operation just when the watcher has found it finished: each operation is
    recorded once, and none is taken for another."""
    recording = recording_gloo
    end_watcher(recording)
    completions = recording.recorder.completions
    works = [dist.all_reduce(torch.ones(2), async_op=True) for _ in range(3)]
    (state,) = recording.recorder.groups.states()
    completions.unbox()
    watched = list(state.pending)
    assert len(watched) == len(works) == 3
    while not all(work.is_completed() for work in works):
        time.sleep(0.01)

    def is_completed(entry: list[object]) -> bool:
        if entry is watched[waited]:
            completions.waited(entry[1], True)
        # The first is asked only when it is alone, so that the others are behind an unfinished one.
        return waited == 0 or entry is not watched[0] or len(state.pending) == 1

    monkeypatch.setattr(completions, "_is_completed", is_completed)
    completions.drain(state, deep=True)
    completions.drain(state, deep=True)
    assert not state.pending
    fragment = read_ring(recording.ring.path)
    assert [int(row["state"]) for row in fragment.records] == [2, 2, 2]
    assert int(fragment.members[0]["completed"]) == 3
    assert not recording.failed
