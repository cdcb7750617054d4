"""Memory is bounded whatever the job does, and numbering is correct with several threads."""

from __future__ import annotations

import re
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

import hangscope.recording
from hangscope.recording import completion, limits, reduce_ops, signatures, stacks
from hangscope.recording.groups import GroupState
from hangscope.recording.operations import spec_for
from hangscope.recording.session import Session
from hangscope.ring import layout
from hangscope.ring.atomic import ATOMIC, exclusive
from hangscope.trace.rings.read import read_ring
from tests.real_jobs import ROOT
from tests.recording.launcher import check_waits_on_several_threads
from tests.threads import run_together


def rss_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


@pytest.mark.parametrize(
    ("row", "bounds"),
    [
        ("signatures remembered", [signatures.MAX_DISTINCT]),
        ("stacks remembered", [limits.MAX_KNOWN_FRAMES, limits.MAX_FRAMES]),
        ("unfinished operations watched", [completion.MAX_PENDING, completion.MAX_EXPECTED]),
        ("plans remembered", [limits.MAX_PLANS]),
        ("reduce ops still to be read", [reduce_ops.MAX_UNREAD + reduce_ops.MAX_NEWEST]),
        ("groups", [layout.GROUP_COUNT]),
    ],
)
def test_bounds_match_the_documentation(row: str, bounds: list[int]) -> None:
    table = (ROOT / "docs" / "recorder.md").read_text().partition("**Memory per rank is bounded**")
    line = re.search(rf"^\| {row} \| (.*) \|$", table[2], re.MULTILINE)
    assert line is not None
    numbers = [int(n.replace(" ", "")) for n in re.findall(r"\b\d+(?: \d{3})*\b", line[1])]
    assert set(bounds) <= set(numbers)


def test_ever_new_shapes_take_no_more_memory(recording: Session) -> None:
    """More shapes than fit: names, dtypes and sizes are kept, and memory does not grow."""
    for numel in range(1, 3000):
        dist.all_reduce(torch.empty(numel))
    before = rss_mib()
    for numel in range(3000, 60_000):
        dist.broadcast(torch.empty(numel, 1), numel % 4)
    assert rss_mib() - before < 60
    assert len(recording.recorder._signatures.known) <= signatures.MAX_DISTINCT
    fragment = read_ring(recording.ring.path)
    last = fragment.signatures[fragment.records[-1]["signature"]]
    assert last.op == "broadcast"
    numel = last.input_numel if last.input_sizes is None else int(np.prod(last.input_sizes[0]))
    assert numel == 59_999
    assert not recording.failed


def test_ever_new_stacks_are_bounded(recording: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "MAX_KNOWN_FRAMES", 5_000)
    for number in range(1500):
        scope = {"dist": dist, "value": torch.ones(1)}
        exec(compile(f"def f{number}(): dist.all_reduce(value)", f"<new {number}>", "exec"), scope)
        scope[f"f{number}"]()
    interner = recording.recorder.stacks
    assert interner is not None
    assert sum(len(codes) for _, codes in interner._known.values()) <= 5_000
    assert len(interner._candidates) <= stacks.MAX_CANDIDATES
    fragment = read_ring(recording.ring.path)
    newest = fragment.stacks[fragment.records[-1]["stack"]]
    assert "f1499" in [frame.name for frame in newest]


def test_full_value_area_keeps_room_for_the_end(recording: Session) -> None:
    ring = recording.ring
    for number in range(100_000):
        if not ring.intern(layout.ValueKind.STACK, b"%064d" % number, essential=False):
            break
    else:
        pytest.fail("the area never filled up")
    dist.all_reduce(torch.ones(777))
    ring.record_exception(b'{"type": "E", "message": "", "thread": "", "main": true, "frames": []}')
    fragment = read_ring(ring.path)
    assert fragment.facts.exception is not None
    newest = fragment.records[-1]
    assert fragment.signatures[newest["signature"]].op == "all_reduce"
    assert fragment.signatures[newest["signature"]].input_numel == 777
    assert any("full" in warning for warning in fragment.warnings)


def test_deep_recursion_is_cut(recording: Session) -> None:
    def deeper(left: int) -> None:
        if left:
            deeper(left - 1)
        else:
            dist.all_reduce(torch.ones(1))

    deeper(400)
    deeper(500)
    fragment = read_ring(recording.ring.path)
    found = [fragment.stacks[row["stack"]] for row in fragment.records]
    assert [len(stack) for stack in found] == [limits.MAX_FRAMES] * 2
    assert recording.recorder.stacks is not None
    assert all(len(k) <= 2 * limits.MAX_FRAMES for k in recording.recorder.stacks._known)


def test_many_threads_leave_nothing(recording: Session) -> None:
    for _ in range(60):
        threads = [
            threading.Thread(target=lambda: dist.all_reduce(torch.ones(1))) for _ in range(5)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    fragment = read_ring(recording.ring.path)
    assert len(fragment.records) == 300
    assert sorted(fragment.records["collective_seq"].tolist()) == list(range(1, 301))


def test_destroyed_groups_are_forgotten(recording: Session) -> None:
    for _ in range(200):
        group = dist.new_group([0, 1])
        dist.all_reduce(torch.ones(1), group=group)
        dist.destroy_process_group(group)
        del group
    registry = recording.recorder.groups
    assert len(registry.by_identity) < 20
    assert len(registry._orphans) == 0
    assert len(read_ring(recording.ring.path).groups) >= 200


def test_when_a_group_was_destroyed_is_on_record(recording: Session) -> None:
    gone, kept = dist.new_group([0, 1]), dist.new_group([0, 1])
    for group in (gone, kept):
        dist.all_reduce(torch.ones(1), group=group)
    began_ns = time.time_ns()
    dist.destroy_process_group(gone)
    members = read_ring(recording.ring.path).members
    used = members[members["enqueued"] > 0]
    assert [left > began_ns for left in used["left_ns"].tolist()] == [True, False]


def test_group_that_outlives_the_module(
    recording: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At shutdown a group may be freed after the recorder's module globals are cleared."""
    from hangscope.recording import groups

    class Group:
        pass

    registry = recording.recorder.groups
    state = groups.GroupState(recording.ring, 0, "late", [0], 0, recorded=True)
    raised: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", raised.append)
    group = Group()
    registry._remember(state, group)
    with monkeypatch.context() as gone:
        for name, value in list(vars(groups).items()):
            if not name.startswith("__") and not isinstance(value, type):
                gone.setattr(groups, name, None)
        del group
    assert raised == []
    assert ("late", (0,)) in registry._orphans


class Never:
    """A Work that never completes."""

    def is_completed(self) -> bool:
        return False


class Over:
    """A completed Work that another thread may ask whether it succeeded."""

    def is_completed(self) -> bool:
        return True

    def get_future(self) -> Over:
        return self

    def value(self) -> None: ...


@pytest.mark.parametrize("deep", [True, False])
def test_only_the_watcher_searches_for_overtakers(recording: Session, deep: bool) -> None:
    """And only a limited number of them, as there may be a thousand at every turn."""
    completions = recording.recorder.completions
    state = GroupState(recording.ring, 0, "g", [0], 0, recorded=True)
    works = [Over(), Never(), *(Over() for _ in range(200))]
    for number, work in enumerate(works):
        state.pending.append([number + 1, work, number + 1, 0, state])
    completions.drain(state, deep=deep)
    left = [entry[0] for entry in state.pending]
    assert left[0] == 2, "the first is over, the second is not"
    assert left[1:] == list(range(66 if deep else 3, 203))


def test_unfinished_operations_are_bounded(recording: Session) -> None:
    """Each pins its tensors."""
    completions = recording.recorder.completions
    state = GroupState(recording.ring, 0, "g", [0], 0, recorded=True)
    for number in range(3 * completion.MAX_PENDING):
        completions.watch([number + 1, Never(), number + 1, 0, state])
    assert len(state.pending) == completion.MAX_PENDING
    assert len(completions.watched) == completion.MAX_PENDING


def test_unpollable_operations_are_bounded(recording: Session) -> None:
    """These are not polled (see `OpSpec.gloo_counts`), so nothing else releases them."""
    completions = recording.recorder.completions
    state = GroupState(recording.ring, 0, "g", [0], 0, recorded=True)
    works = [object() for _ in range(completion.MAX_EXPECTED + 10)]
    for number, work in enumerate(works):
        completions.expect([number + 1, work, number + 1, 0, state])
        assert len(completions.watched) <= completion.MAX_EXPECTED


def test_monitored_barrier_advances_the_counter_by_two(recording: Session) -> None:
    """Like Gloo's own counter, except on rank 0, where it counts two for each other member."""
    spec = spec_for("monitored_barrier_", _arguments("monitored_barrier_"))
    begin = recording.recorder.beginner(spec)
    dist.all_reduce(torch.ones(1))
    begin((torch.empty(1), dist.group.WORLD.boxed(), [], 1000, False))
    dist.all_reduce(torch.ones(1))
    assert read_ring(recording.ring.path).records["collective_seq"].tolist() == [1, 3, 4]


def test_reduce_op_is_not_in_the_history_hash(recording: Session) -> None:
    """It is read long after the record was written."""
    for op in (dist.ReduceOp.MAX, dist.ReduceOp.SUM):
        dist.all_reduce(torch.ones(5), op=op)
    recording.recorder.catch_up()
    fragment = read_ring(recording.ring.path)
    ops = [fragment.signatures[row["signature"]].reduce_op for row in fragment.records]
    assert ops == ["MAX", "SUM"]
    (agreement,) = {s.agreement for s in recording.recorder._signatures.known.values()}
    once = signatures.extend_history(0, agreement)
    twice = signatures.extend_history(once, agreement)
    assert fragment.records["history"].tolist() == [once, twice]


def test_number_of_cached_plans_is_limited(recording: Session) -> None:
    """Plans of old shapes are dropped; records stay correct."""
    spec = spec_for("allreduce_", _arguments("allreduce_"))
    begin = recording.recorder.beginner(spec)
    (remembered,) = (
        cell.cell_contents
        for name, cell in zip(begin.__code__.co_freevars, begin.__closure__ or (), strict=True)
        if name == "plans"
    )
    group = dist.group.WORLD.boxed()
    for numel in range(limits.MAX_PLANS + 50):
        begin(([torch.empty(numel)], group))
    assert len(remembered) == 50
    fragment = read_ring(recording.ring.path)
    sizes = [fragment.signatures[row["signature"]].input_sizes for row in fragment.records]
    assert sizes[-60:] == [((n,),) for n in range(limits.MAX_PLANS - 10, limits.MAX_PLANS + 50)]


def test_plan_is_reused_only_for_identical_calls(recording: Session) -> None:
    """Same operator, one argument changed at a time, twice: every record matches its call."""
    other = dist.new_group([0, 2], group_desc="other")
    float8, half8, float4 = torch.ones(8), torch.ones(8).half(), torch.ones(2, 2)
    base = {"tensor": float8, "group": None, "src": 0, "async_op": True}
    calls = [
        base,
        base | {"tensor": half8},
        base | {"tensor": float4},
        base | {"group": other},
        base | {"src": 3},
        base | {"async_op": False},
    ]
    for call in calls + calls:
        dist.broadcast(**call)
    fragment = read_ring(recording.ring.path)
    got = [
        (
            fragment.signatures[row["signature"]].input_dtypes,
            fragment.signatures[row["signature"]].input_sizes,
            fragment.groups[row["group"]].ranks,
            int(row["root"]),
            bool(row["flags"] & layout.SlotFlag.ASYNC),
        )
        for row in fragment.records
    ]
    everyone = (0, 1, 2, 3)
    expected = [
        (("Float",), ((8,),), everyone, 0, True),
        (("Half",), ((8,),), everyone, 0, True),
        (("Float",), ((2, 2),), everyone, 0, True),
        (("Float",), ((8,),), (0, 2), 0, True),
        (("Float",), ((8,),), everyone, 3, True),
        (("Float",), ((8,),), everyone, 0, False),
    ]
    assert got == expected + expected


def test_waits_on_several_threads() -> None:
    check_waits_on_several_threads("DispatcherHook", HANGSCOPE_COMPILED="0")


def _arguments(operator: str) -> list[str]:
    schema = getattr(torch.ops.c10d, operator).default._schema
    return [argument.name for argument in schema.arguments]


def test_numbers_are_consistent_between_threads(recording: Session) -> None:
    """Without a lock, every number is used once, in order, with the matching history."""
    group = dist.new_group([0, 1])
    value = torch.ones(1)

    def hammer() -> None:
        for _ in range(150):
            dist.all_reduce(value, group=group)

    run_together([hammer] * 6, 1e-6)
    fragment = read_ring(recording.ring.path)
    rows = fragment.records
    assert rows["record_id"].tolist() == list(range(1, 901))
    assert rows["collective_seq"].tolist() == list(range(1, 901))
    assert rows["op_id"].tolist() == list(range(1, 901))
    history, histories = 0, []
    (agreement,) = {s.agreement for s in recording.recorder._signatures.known.values()}
    for _ in range(900):
        history = signatures.extend_history(history, agreement)
        histories.append(history)
    assert rows["history"].tolist() == histories
    member = fragment.members[-1]
    assert int(member["enqueued"]) == 900
    assert int(member["history"]) == histories[-1]


def test_no_lock_on_the_hot_path() -> None:
    """A lock held by a thread that waits for the GIL could block another one for ever.

    Exceptions are locks with a timeout, and those needed where plain statements are not atomic.
    """
    package = Path(hangscope.recording.__file__).parent
    found = {
        path.name: re.findall(r"threading\.R?Lock\(\)", path.read_text())
        for path in [*package.glob("*.py"), *(package.parent / "ring").glob("*.py")]
    }
    assert {name for name, locks in found.items() if locks} == {"groups.py", "atomic.py"}
    assert "acquire(timeout=" in (package / "groups.py").read_text()

    def plain() -> int:
        return 1

    assert (exclusive(plain) is plain) is ATOMIC
    assert exclusive(plain)() == 1
