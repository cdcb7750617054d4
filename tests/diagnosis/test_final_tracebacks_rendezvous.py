"""Rendezvous timeouts: addresses, stores and NCCL ids that never came."""

from __future__ import annotations

import pytest

from hangscope.diagnosis.engine import diagnose
from tests.diagnosis.tracebacks import (
    C10D,
    REDUCE,
    STORE,
    gave_up,
    judged,
    table,
)
from tests.trace.logs import trace_of


def test_missing_store_address_names_its_rank() -> None:
    """Before a process knows its rank, nothing it prints shows which rank it is."""
    error = "torch.distributed.DistStoreError: wait timeout after 900ms, keys: {}"
    key = error.format("/default_pg/0//cpu//0/2")
    text = "".join(gave_up(r, STORE, key, prefix=False) for r in (0, 1, 3))
    found = diagnose(trace_of(text + table({0: 1, 1: 1, 2: -15, 3: -15})))
    assert (found.verdict.value, found.culprits) == ("missing_rank", (2,))


def test_address_beyond_the_world_accuses_no_rank() -> None:
    key = (
        "torch.distributed.DistStoreError: wait timeout after 900ms, keys: /default_pg/0//cpu//0/4"
    )
    text = "".join(gave_up(r, STORE, key, prefix=False) for r in (0, 1))
    found = diagnose(trace_of("world_size=4\n" + text + table({0: 1, 1: 1, 2: -15, 3: -15})))
    assert found.culprits == ()


def test_address_in_a_smaller_group_is_a_group_rank() -> None:
    key = (
        "torch.distributed.DistStoreError: wait timeout after 900ms, keys: "
        "/default_pg/0//3//cpu//0/0"
    )
    text = gave_up(1, STORE, key) + gave_up(3, STORE, key)
    found = diagnose(trace_of("world_size=4\n" + text + table({0: -15, 1: 1, 2: -15, 3: 1})))
    assert found.culprits == ()


def test_store_that_waited_for_clients_clears_rank_0() -> None:
    """Rank 0 serves the store: while it waits for a client, its own address cannot be there."""
    key = (
        "torch.distributed.DistStoreError: wait timeout after 900ms, keys: /default_pg/0//cpu//0/0"
    )
    waited = (
        "torch.distributed.DistStoreError: Timed out after 1 seconds waiting for clients. "
        "3/4 clients joined."
    )
    text = "".join(gave_up(r, STORE, key, prefix=False) for r in (1, 2))
    text += gave_up(0, STORE, waited, prefix=False)
    found = diagnose(trace_of(text))
    assert (found.verdict.value, found.culprits) == ("inconclusive", ())
    assert "waited for 4 clients and 3 had come" in found.summary
    assert "MASTER_PORT" in found.findings[0].fix


def no_id(rank: int, place: int, first: int = 0) -> str:
    """The message of a rank that did not receive NCCL's id."""
    return (
        f"[rank{rank}]: torch.distributed.DistBackendError: [{place}] is setting up NCCL "
        f"communicator and retrieving ncclUniqueId from [{first}] via c10d key-value store by key "
        "'0', but store->get('0') got error: wait timeout after 900ms, keys: /default_pg/0//cuda//0"
        "\n"
    )


def test_rank_that_never_set_the_nccl_id_is_missing() -> None:
    found = diagnose(trace_of(no_id(1, 1) + no_id(3, 3)))
    assert (found.verdict.value, found.culprits) == ("missing_rank", (0,))


@pytest.mark.parametrize(
    "text",
    [no_id(1, 1), no_id(5, 1) + no_id(7, 3), no_id(1, 1) + "[rank0]: RuntimeError: no route\n"],
    ids=["one rank's words", "places of a smaller group", "it has spoken"],
)
def test_rank_that_set_no_nccl_id_is_not_always_missing(text: str) -> None:
    found = diagnose(trace_of("world_size=8\n" + text))
    assert found.verdict.value != "missing_rank"


@pytest.mark.parametrize("world", [2, 3])
def test_only_silent_rank_of_two_or_three_is_missing(world: int) -> None:
    silent = world - 1
    found = judged(dict.fromkeys(range(silent), REDUCE), world)
    assert (found.verdict.value, found.culprits) == ("missing_rank", (silent,))
    assert found.confidence.value == "likely"


@pytest.mark.parametrize("world", [2, 4])
def test_rank_refused_at_an_address_does_not_wait_for_the_silent_one(world: int) -> None:
    """Groups created again find the address of the previous one: rank 0 waits for the others
    elsewhere."""
    meeting = (("/job/train.py", 20, "main"), (C10D, 1800, "init_process_group"))
    refused = (
        "RuntimeError: Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:152] timed out "
        "connecting: SO_ERROR: Connection refused, remote=[127.0.0.1]:9650"
    )
    text = "".join(gave_up(r, meeting, refused) for r in range(1, world))
    codes = {0: -15} | dict.fromkeys(range(1, world), 1)
    found = diagnose(trace_of(f"world_size={world}\n" + text + table(codes)))
    assert found.culprits == ()
