"""Waits in a store are recorded as phases; tags of sends and receives are recorded."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from hangscope.recording import store_waits
from hangscope.recording.phases import wrap_phase
from hangscope.recording.session import Session
from hangscope.ring.layout import SlotFlag
from hangscope.trace.model import Phase
from hangscope.trace.rings.read import read_ring


def _phases_during(session: Session, wait: Callable[[dist.Store], object]) -> tuple[Phase, ...]:
    """The phases on record while this thread is in ``wait`` for the key ``weights/7``."""
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=30))
    seen: list[tuple[Phase, ...]] = []

    def set_later() -> None:
        until_s = time.monotonic() + 5
        while time.monotonic() < until_s and not (seen and seen[-1]):
            time.sleep(0.02)
            seen.append(read_ring(session.ring.path).facts.phases)
        store.set("weights/7", "there")

    helper = threading.Thread(target=set_later)
    helper.start()
    wait(store)
    helper.join()
    assert read_ring(session.ring.path).facts.phases == ()
    return seen[-1]


@pytest.mark.parametrize(
    ("name", "wait"),
    [
        ("store.get", lambda store: store.get("weights/7")),
        ("store.wait", lambda store: store.wait(["weights/7"])),
        ("store.wait", lambda store: store.wait(["weights/7"], timedelta(seconds=20))),
        ("store.get", lambda store: dist.PrefixStore("weights", store).get("7")),
        ("store.multi_get", lambda store: store.multi_get(["weights/7"])),
    ],
)
def test_store_wait_is_a_phase(
    recording: Session, name: str, wait: Callable[[dist.Store], object]
) -> None:
    (phase,) = _phases_during(recording, wait)
    assert phase.name == name
    assert phase.detail in ("weights/7", "7")
    assert phase.since_ns > 0


def test_store_wait_of_another_thread_is_no_phase(recording: Session) -> None:
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=30))
    listener = threading.Thread(target=lambda: store.get("news"))
    listener.start()
    time.sleep(0.1)
    assert read_ring(recording.ring.path).facts.phases == ()
    store.set("news", "none")
    listener.join()


def test_keys_that_never_repeat_do_not_fill_the_ring(
    recording: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_waits, "MAX_KEYS", 3)
    known: set[str] = set()
    told = [store_waits._key_of((f"step/{n}",), {}, known) for n in (0, 1, 1, 2, 3, 2)]
    assert told == ["step/0", "step/1", "step/1", "step/2", "", "step/2"]
    assert store_waits._key_of(("x" * 1000,), {}, set()) == "x" * store_waits.MAX_KEY


def test_new_group_stays_one_phase(recording: Session) -> None:
    store = dist.HashStore()
    store.set("there", "yes")
    key = recording.phases.enter("new_group")
    seen = []
    original = recording.ring.set_phases
    recording.ring.set_phases = lambda phases: (  # type: ignore[method-assign]
        seen.append(phases),
        original(phases),
    )
    assert store.get("there") == b"yes"
    recording.phases.leave(key)
    assert len(seen) == 1  # only the end of ``new_group``


def test_job_with_endless_keys_does_not_fill_the_ring(recording: Session) -> None:
    store = dist.HashStore()
    for number in range(store_waits.MAX_KEYS + 50):
        store.set(f"key {number}", "x")
        assert store.get(f"key {number}") == b"x"
    used = recording.ring._values_used
    for number in range(200):
        store.set(f"another {number}", "x")
        store.get(f"another {number}")
    assert recording.ring._values_used == used


def test_failed_wait_ends_its_phase_and_raises_as_before(recording: Session) -> None:
    store = dist.HashStore()
    with pytest.raises(dist.DistStoreError):
        store.wait(["never"], timedelta(milliseconds=20))
    assert read_ring(recording.ring.path).facts.phases == ()


def test_stores_are_restored_after_recording(recording: Session) -> None:
    assert hasattr(dist.Store.get, "__wrapped__")
    recording.stop()
    assert not hasattr(dist.Store.get, "__wrapped__")


def test_tags_and_partners_are_recorded(recording: Session) -> None:
    dist.isend(torch.ones(2), dst=1, tag=7)
    dist.irecv(torch.ones(2), src=1)
    fragment = read_ring(recording.ring.path)
    rows = fragment.records
    pairs = rows[(rows["flags"] & int(SlotFlag.P2P)) != 0]
    assert pairs["root"].tolist() == [7, 0]
    assert pairs["peer"].tolist() == [1, 1]
    raw = [fragment.signatures[row["signature"]].raw for row in pairs]
    assert [name.partition(":")[2] for name in raw] == ["send 0->1", "recv 0<-1"]


def test_new_group_calls_are_numbered(recording: Session) -> None:
    """Also if this rank is not a member; not if only the members create the group."""
    seen: list[str] = []

    def make(*args: object, **kwargs: object) -> None:
        seen.extend(p.detail for p in read_ring(recording.ring.path).facts.phases)

    def nothing(*args: object) -> None: ...

    def refuse(error: BaseException) -> None:
        raise error

    def wrapped(name: str) -> Callable[..., None]:
        decorate = wrap_phase(lambda: recording.phases, name, nothing, nothing, refuse)
        call: Callable[..., None] = decorate(make)
        return call

    new_group = wrapped("new_group")
    wrapped("init_process_group")()
    new_group([0, 1])
    new_group([1, 2], use_local_synchronization=True)
    new_group(ranks=[0, 2])
    new_group()
    assert seen == [
        "",
        "call 1, ranks 0,1",
        "members only, ranks 1,2",
        "call 2, ranks 0,2",
        "call 3",
    ]
