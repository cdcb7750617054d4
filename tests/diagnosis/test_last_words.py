"""Hangs over Gloo without a recorder: what the tracebacks of the ranks that gave up tell."""

from __future__ import annotations

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Diagnosis
from tests.trace.logs import trace_of

TIMED_OUT = (
    "RuntimeError: [../gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 900ms for recv "
    "operation to complete"
)
CLOSED = "RuntimeError: Application timeout caused pair closure"
C10D = "/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
REDUCE = (("/job/train.py", 40, "step"), (C10D, 3000, "all_reduce"))
BARRIER = (("/job/train.py", 52, "save"), (C10D, 5000, "barrier"))
RECV = (("/job/train.py", 61, "halo"), (C10D, 2500, "recv"))
BROADCAST = (("/job/train.py", 70, "config"), (C10D, 2900, "broadcast"))
MAKING = (("/job/train.py", 75, "groups"), (C10D, 5600, "new_group"))
FORWARD = (
    ("/job/train.py", 33, "evaluate"),
    ("/env/lib/python3.11/site-packages/torch/nn/parallel/distributed.py", 1782, "_pre_forward"),
)
STORE = (("/job/train.py", 20, "index"),)
KEY = "torch.distributed.DistStoreError: wait timeout after 900ms, keys: /default_pg/0//index"
Frames = tuple[tuple[str, int, str], ...]


def gave_up(rank: int, frames: Frames, error: str = TIMED_OUT, *, prefix: bool = True) -> str:
    """What Python prints of one rank."""
    lines = ["Traceback (most recent call last):"]
    lines += [f'  File "{file}", line {line}, in {name}' for file, line, name in frames]
    lines.append(error)
    return "".join(f"[rank{rank}]: {line}\n" if prefix else f"{line}\n" for line in lines)


def table(codes: dict[int, int]) -> str:
    """What torchrun prints at the end: who failed and whom it stopped."""
    text = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    text += "=" * 60 + "\ntrain.py FAILED\n" + "-" * 60 + "\nFailures:\n"
    for index, (rank, code) in enumerate(codes.items()):
        text += f"[{index}]:\n  time      : 2026-11-21_10:00:0{min(rank, 9)}\n  host      : node0\n"
        text += f"  rank      : {rank} (local_rank: {rank})\n"
        text += f"  exitcode  : {code} (pid: {700 + rank})\n  error_file: <N/A>\n"
        text += "  traceback : none\n"
    return text


def judged(
    waits: dict[int, Frames], world: int = 4, *, codes: dict[int, int] | None = None
) -> Diagnosis:
    told = {r: 1 if r in waits else -15 for r in range(world)} if codes is None else codes
    text = "".join(gave_up(rank, frames) for rank, frames in waits.items())
    return diagnose(trace_of(f"world_size={world}\n" + text + table(told)))


def test_who_waited_in_another_collective_is_named() -> None:
    found = judged({0: REDUCE, 1: BARRIER, 2: REDUCE, 3: REDUCE})
    assert (found.verdict.value, found.culprits) == ("collective_mismatch", (1,))
    assert found.confidence.value == "likely"
    assert "ranks 0, 2, 3 waited in all_reduce (train.py:40 in step)" in found.summary.lower()
    assert "rank 1 in barrier (train.py:52 in save)" in found.summary


def test_who_was_stopped_without_having_waited_is_missing() -> None:
    found = judged({0: REDUCE, 1: REDUCE, 3: REDUCE})
    assert (found.verdict.value, found.culprits) == ("missing_rank", (2,))


def test_who_is_in_no_list_of_the_launcher_had_ended_well() -> None:
    waits = dict.fromkeys((0, 1, 2, 3, 5), REDUCE)
    found = judged(waits, 6, codes=dict.fromkeys(waits, 1))
    assert (found.verdict.value, found.culprits) == ("rank_exited", (4,))
    assert "status 0" in found.summary


def test_one_elsewhere_and_one_silent_are_both_named() -> None:
    waits = dict.fromkeys(range(6), REDUCE) | {6: BARRIER}
    found = judged(waits, 8)
    assert (found.culprits, found.confidence.value) == ((6, 7), "ambiguous")


def test_a_broken_pair_in_the_forward_pass_is_no_failure_of_its_own() -> None:
    text = gave_up(0, FORWARD, CLOSED) + "".join(gave_up(r, BARRIER) for r in (1, 2, 3))
    found = diagnose(trace_of("world_size=4\n" + text + table(dict.fromkeys(range(4), 1))))
    assert (found.verdict.value, found.culprits) == ("collective_mismatch", (0,))
    assert "rank 0 in forward (train.py:33 in evaluate)" in found.summary


def test_who_waits_for_no_key_of_the_store_has_not_set_it() -> None:
    text = gave_up(0, REDUCE) + "".join(gave_up(r, STORE, KEY) for r in (1, 2, 3))
    found = diagnose(trace_of("world_size=4\n" + text + table(dict.fromkeys(range(4), 1))))
    assert (found.verdict.value, found.culprits) == ("collective_mismatch", (0,))


@pytest.mark.parametrize(
    ("waits", "world"),
    [
        ({0: REDUCE, 1: REDUCE, 2: REDUCE, 3: REDUCE}, 4),
        ({0: REDUCE, 1: REDUCE, 2: RECV, 3: REDUCE}, 4),
        ({0: BROADCAST, 1: BROADCAST, 2: REDUCE, 3: BROADCAST, 4: BROADCAST, 5: REDUCE}, 6),
        ({0: REDUCE, 1: REDUCE, 2: BARRIER, 3: BARRIER}, 4),
        ({0: BARRIER, 1: BARRIER, 2: BARRIER, 3: MAKING}, 4),
        ({0: REDUCE, 1: REDUCE, 2: REDUCE}, 6),
        ({0: REDUCE, 1: BARRIER}, 2),
    ],
    ids=[
        "all at one",
        "a pair",
        "one that some finish alone",
        "halves",
        "a new group",
        "half silent",
        "two",
    ],
)
def test_what_names_nobody_tells_at_least_who_waited_where(
    waits: dict[int, Frames], world: int
) -> None:
    found = judged(waits, world)
    assert (found.verdict.value, found.culprits) == ("inconclusive", ())
    assert any("rank" in line and "waited in" in line for line in found.findings[0].evidence)


def test_a_root_alone_may_wait_for_one_of_the_many_but_who_receives_does_not() -> None:
    """All that had their part of the broadcast went on; so did, without it, who left it out."""
    others = "".join(gave_up(r, REDUCE) for r in (1, 2, 3))
    for way, culprits in (("send", ()), ("recv", (0,))):
        mine = gave_up(0, BROADCAST, TIMED_OUT.replace("recv", way))
        found = diagnose(
            trace_of("world_size=4\n" + mine + others + table(dict.fromkeys(range(4), 1)))
        )
        assert found.culprits == culprits, way
    reduced = (("/job/train.py", 78, "loss"), (C10D, 3100, "reduce"))
    assert judged({0: reduced, 1: REDUCE, 2: REDUCE, 3: REDUCE}).culprits == ()


def test_the_branches_of_a_root_and_of_the_rest_are_one_call() -> None:
    root = (("/job/train.py", 68, "config"), (C10D, 2900, "broadcast"))
    found = judged({0: root, 1: BROADCAST, 2: BROADCAST, 3: BROADCAST})
    assert found.verdict.value == "inconclusive"


def test_the_address_that_never_came_names_its_rank() -> None:
    """Before a process knows its rank, nothing it prints tells whose it is."""
    error = "torch.distributed.DistStoreError: wait timeout after 900ms, keys: {}"
    key = error.format("/default_pg/0//cpu//0/2")
    text = "".join(gave_up(r, STORE, key, prefix=False) for r in (0, 1, 3))
    found = diagnose(trace_of(text + table({0: 1, 1: 1, 2: -15, 3: -15})))
    assert (found.verdict.value, found.culprits) == ("missing_rank", (2,))


def test_an_address_beyond_the_world_accuses_nobody() -> None:
    key = (
        "torch.distributed.DistStoreError: wait timeout after 900ms, keys: /default_pg/0//cpu//0/4"
    )
    text = "".join(gave_up(r, STORE, key, prefix=False) for r in (0, 1))
    found = diagnose(trace_of("world_size=4\n" + text + table({0: 1, 1: 1, 2: -15, 3: -15})))
    assert found.culprits == ()


def test_an_address_in_a_smaller_group_is_that_of_a_place() -> None:
    key = (
        "torch.distributed.DistStoreError: wait timeout after 900ms, keys: "
        "/default_pg/0//3//cpu//0/0"
    )
    text = gave_up(1, STORE, key) + gave_up(3, STORE, key)
    found = diagnose(trace_of("world_size=4\n" + text + table({0: -15, 1: 1, 2: -15, 3: 1})))
    assert found.culprits == ()


def test_a_store_that_waited_for_clients_itself_clears_rank_0() -> None:
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
    assert "had waited for 4 and 3 had come" in found.summary
    assert "MASTER_PORT" in found.findings[0].fix


def no_id(rank: int, place: int, first: int = 0) -> str:
    """What a rank says for whom NCCL's id was not there."""
    return (
        f"[rank{rank}]: torch.distributed.DistBackendError: [{place}] is setting up NCCL "
        f"communicator and retrieving ncclUniqueId from [{first}] via c10d key-value store by key "
        "'0', but store->get('0') got error: wait timeout after 900ms, keys: /default_pg/0//cuda//0"
        "\n"
    )


def test_who_never_gave_nccls_id_is_missing() -> None:
    found = diagnose(trace_of(no_id(1, 1) + no_id(3, 3)))
    assert (found.verdict.value, found.culprits) == ("missing_rank", (0,))


@pytest.mark.parametrize(
    "text",
    [no_id(1, 1), no_id(5, 1) + no_id(7, 3), no_id(1, 1) + "[rank0]: RuntimeError: no route\n"],
    ids=["one rank's words", "places of a smaller group", "it has spoken"],
)
def test_who_gave_no_id_is_not_always_missing(text: str) -> None:
    found = diagnose(trace_of("world_size=8\n" + text))
    assert found.verdict.value != "missing_rank"


@pytest.mark.parametrize("world", [2, 3])
def test_the_only_silent_one_of_two_or_three_is_missing(world: int) -> None:
    silent = world - 1
    found = judged(dict.fromkeys(range(silent), REDUCE), world)
    assert (found.verdict.value, found.culprits) == ("missing_rank", (silent,))
    assert found.confidence.value == "likely"


BROKEN = "RuntimeError: [../gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:80"


@pytest.mark.parametrize(
    ("waits", "errors", "codes"),
    [
        ({0: REDUCE, 1: REDUCE}, {1: BROKEN}, {0: 1, 1: 1, 2: -15}),
        ({0: REDUCE, 1: BARRIER}, {}, {0: 1, 1: 1, 2: -15}),
        ({0: BROADCAST, 1: BROADCAST}, {}, {0: 1, 1: 1, 2: -15}),
        ({0: RECV, 1: RECV}, {}, {0: 1, 1: 1, 2: -15}),
        ({0: REDUCE, 1: REDUCE}, {}, {0: 1, 1: 1}),
    ],
    ids=["a lost connection", "two calls", "finished alone", "a pair", "no word of its end"],
)
def test_of_three_the_silent_one_is_not_always_missing(
    waits: dict[int, Frames], errors: dict[int, str], codes: dict[int, int]
) -> None:
    text = "".join(gave_up(r, frames, errors.get(r, TIMED_OUT)) for r, frames in waits.items())
    found = diagnose(trace_of("world_size=3\n" + text + table(codes)))
    assert found.verdict.value == "inconclusive"


def test_who_is_silent_while_connections_close_was_gone() -> None:
    """Nobody timed out and no launcher speaks: then nothing shows that it was alive."""
    text = "".join(gave_up(r, REDUCE, BROKEN) for r in (0, 2, 3))
    found = diagnose(trace_of("world_size=4\n" + text))
    assert (found.verdict.value, found.culprits) == ("rank_lost", (1,))
    assert "alive" not in found.summary


def test_a_traceback_behind_the_question_of_another_rank_is_read() -> None:
    text = "overwrite? [y/N] " + gave_up(1, REDUCE) + gave_up(2, REDUCE)
    found = diagnose(trace_of("world_size=3\n" + text + table({0: -15, 1: 1, 2: 1})))
    assert (found.verdict.value, found.culprits) == ("missing_rank", (0,))


INTERRUPTED = "KeyboardInterrupt"
LOGGER = "/env/lib/python3.11/site-packages/torch/distributed/c10d_logger.py"
IN_REDUCE = (("/job/train.py", 40, "step"), (LOGGER, 85, "wrapper"))
IN_LOADER = (
    ("/job/train.py", 17, "epoch"),
    ("/env/lib/python3.11/site-packages/torch/utils/data/dataloader.py", 1300, "_try_get_data"),
    ("/usr/lib/python3.11/multiprocessing/connection.py", 947, "wait"),
)


def _pressed(waits: dict[int, Frames], error: str = INTERRUPTED, world: int = 4) -> Diagnosis:
    stopped = "Received 2 death signal, shutting down workers\n"
    text = "".join(gave_up(rank, frames, error) for rank, frames in waits.items())
    return diagnose(trace_of(f"world_size={world}\n{stopped}{text}"))


def test_ctrl_c_shows_who_was_elsewhere() -> None:
    found = _pressed({0: IN_REDUCE, 1: IN_REDUCE, 2: IN_LOADER, 3: IN_REDUCE})
    assert (found.verdict.value, found.culprits) == ("missing_rank", (2,))
    assert found.confidence.value == "likely"
    assert "Rank 2 is at train.py:17 in epoch while ranks 0, 1, 3 wait" in found.summary


def test_ctrl_c_while_all_wait_or_few_answer_names_nobody() -> None:
    assert _pressed(dict.fromkeys(range(4), IN_REDUCE)).culprits == ()
    assert _pressed({0: IN_REDUCE, 1: IN_REDUCE, 2: IN_LOADER}, world=8).culprits == ()


def test_an_error_of_its_own_comes_before_where_others_were_interrupted() -> None:
    text = gave_up(1, IN_LOADER, "ValueError: bad sample")
    text += "".join(gave_up(r, IN_REDUCE, INTERRUPTED) for r in (0, 2, 3))
    found = diagnose(trace_of("world_size=4\n" + text))
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (1,))


def in_finally(rank: int, first: Frames, error: str) -> str:
    """A rank that failed, and failed again in the clean-up that waits for all."""
    during = (
        f"\n[rank{rank}]: During handling of the above exception, another exception occurred:\n\n"
    )
    return gave_up(rank, first, error) + during + gave_up(rank, BARRIER, TIMED_OUT)


OWN = (("/job/train.py", 44, "step"), ("/job/data.py", 9, "decode"))


def test_where_all_end_in_a_clean_up_the_one_that_failed_before_is_named() -> None:
    text = in_finally(2, OWN, "ValueError: bad record")
    text += "".join(in_finally(r, REDUCE, TIMED_OUT) for r in (0, 1))
    found = diagnose(trace_of("world_size=3\n" + text + table(dict.fromkeys(range(3), 1))))
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (2,))
    assert "bad record" in found.summary


def test_where_all_end_in_a_clean_up_the_first_wait_that_failed_counts() -> None:
    """The barrier in ``finally`` is where one waited all the time, and the others only later."""
    text = gave_up(0, BARRIER) + "".join(in_finally(r, REDUCE, TIMED_OUT) for r in (1, 2, 3))
    found = diagnose(trace_of("world_size=4\n" + text + table(dict.fromkeys(range(4), 1))))
    assert (found.verdict.value, found.culprits) == ("collective_mismatch", (0,))
    assert found.confidence.value == "likely"


def test_who_gave_up_in_the_backward_pass_first_failed_of_nothing_of_its_own() -> None:
    backward = (("/job/train.py", 41, "step"), ("/env/torch/_tensor.py", 600, "backward"))
    text = gave_up(1, BARRIER) + "".join(in_finally(r, backward, CLOSED) for r in (0, 2, 3))
    found = diagnose(trace_of("world_size=4\n" + text + table(dict.fromkeys(range(4), 1))))
    assert (found.verdict.value, found.culprits) == ("collective_mismatch", (1,))


def test_handlers_that_all_run_accuse_nobody() -> None:
    """Looking something up and asking the others where it is not there is no failure."""
    text = "".join(in_finally(r, OWN, "KeyError: 'cached'") for r in range(3))
    found = diagnose(trace_of("world_size=3\n" + text + table(dict.fromkeys(range(3), 1))))
    assert "KeyError" not in found.summary


def test_who_gave_up_waiting_in_a_thread_as_well_was_not_silent() -> None:
    waits = dict.fromkeys((0, 1, 3), BARRIER)
    text = "".join(gave_up(rank, frames) for rank, frames in waits.items())
    # Two threads of rank 2 give up at once, and one's words stand in the middle of the other's.
    cut = (
        "[rank2]: Traceback (most recent call last):\n"
        "[rank2]: Exception in thread saver:\n"
        + gave_up(2, REDUCE)
        + "[rank2]:     dist.barrier()\n"
    )
    codes = dict.fromkeys(range(4), 1) | {2: -15}
    found = diagnose(trace_of("world_size=4\n" + text + cut + table(codes)))
    assert (found.verdict.value, found.culprits) == ("inconclusive", ())


def test_where_all_but_one_wait_for_a_broadcast_to_end_that_one_is_late() -> None:
    """Had it been the root and gone on, they would have what they wait for."""
    found = judged({0: BROADCAST, 1: BROADCAST, 2: REDUCE, 3: BROADCAST})
    assert (found.verdict.value, found.culprits) == ("collective_mismatch", (2,))
    assert found.confidence.value == "likely"
    scatter = (("/job/train.py", 81, "share"), (C10D, 4700, "scatter"))
    gather = (("/job/train.py", 79, "share"), (C10D, 4500, "gather"))
    found = judged({0: scatter, 1: gather, 2: gather, 3: gather})
    assert found.culprits == (), "one that has left the scatter out may be among the many"


def test_of_three_the_one_without_an_end_had_ended_well_where_connections_closed() -> None:
    text = "".join(gave_up(r, REDUCE, BROKEN) for r in (0, 2))
    found = diagnose(trace_of("world_size=3\n" + text + table({0: 1, 2: 1})))
    assert (found.verdict.value, found.culprits) == ("rank_exited", (1,))


REFUSED = "RuntimeError: ProcessGroupGloo::scatter: Incorrect input list size 2"


def test_what_a_call_refuses_is_an_error_of_the_caller_s_own() -> None:
    scatter = (("/job/train.py", 80, "share"), (C10D, 4700, "scatter"))
    text = in_finally(0, scatter, REFUSED)
    text += "".join(in_finally(r, scatter, TIMED_OUT) for r in (1, 2))
    found = diagnose(trace_of("world_size=3\n" + text + table(dict.fromkeys(range(3), 1))))
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (0,))
    assert "Incorrect input list size" in found.summary


def test_reasons_that_differ_in_an_address_only_are_those_of_the_ranks_that_failed() -> None:
    refused = "RuntimeError: Gloo connectFullMesh failed with timed out connecting: refused, [::1]:"
    text = "".join(gave_up(9, MAKING, f"{refused}{port}", prefix=False) for port in (4001, 4002))
    found = diagnose(trace_of("world_size=3\n" + text + table({0: 1, 1: 1, 2: -15})))
    assert found.verdict.value != "rank_crashed"


def test_a_bare_status_beside_timeouts_of_all_others_is_likely_at_most() -> None:
    """Connections to one that ends are closed: who waited until a timeout waited for a live one."""
    found = judged(dict.fromkeys((0, 2, 3), REDUCE), codes={0: 1, 1: 1, 2: -15, 3: 1})
    assert found.confidence.value != "certain"


def in_line(rank: int, line: int, source: str, error: str = TIMED_OUT) -> str:
    """What Python prints of one rank, with the line of the user's that it came from."""
    text = gave_up(rank, (("/job/train.py", line, "step"), (C10D, 3000, "all_reduce")), error)
    shown = f"[rank{rank}]:     {source}\n[rank{rank}]:     {'^' * len(source)}\n"
    return text.replace("in step\n", f"in step\n{shown}", 1)


WHOLE = "dist.all_reduce(x)"


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("dist.all_reduce(x, group=self.pair)", ()),
        ("dist.all_reduce(x, group=groups[i])", ()),
        ("dist.all_reduce(x, op=SUM, process_group=mesh.get_group())", ()),
        (WHOLE, (1,)),
        ("dist.all_reduce(x, group=None)", (1,)),
        ("dist.all_reduce(x, group=dist.group.WORLD)", (1,)),
    ],
)
def test_who_waits_in_a_smaller_group_may_wait_for_one_that_went_on(
    source: str, named: tuple[int, ...]
) -> None:
    text = "".join(in_line(rank, 40, WHOLE) for rank in (0, 2, 3)) + in_line(1, 55, source)
    found = diagnose(trace_of("world_size=4\n" + text + table(dict.fromkeys(range(4), 1))))
    assert found.culprits == named
    if not named:
        assert found.verdict.value == "inconclusive"
        assert any("train.py:55" in line for line in found.findings[0].evidence)


@pytest.mark.parametrize(
    ("group", "others", "named"),
    [
        ("self.dp", "self.dp", (1,)),
        ("self.dp", "self.tp", ()),
        ("group", "group", ()),  # what a helper calls any group it is given
        ("groups[i]", "groups[i]", ()),
    ],
)
def test_a_group_of_the_name_that_the_others_wait_in_is_theirs(
    group: str, others: str, named: tuple[int, ...]
) -> None:
    theirs = f"dist.all_reduce(x, group={others})"
    text = "".join(in_line(rank, 40, theirs) for rank in (0, 2, 3))
    text += in_line(1, 55, f"dist.all_reduce(y, group={group})")
    found = diagnose(trace_of("world_size=4\n" + text + table(dict.fromkeys(range(4), 1))))
    assert found.culprits == named


@pytest.mark.parametrize(
    ("source", "named"), [("dist.all_reduce(x, group=pair)", ()), (WHOLE, (1,))]
)
def test_a_monitored_barrier_does_not_name_who_waits_in_a_smaller_group(
    source: str, named: tuple[int, ...]
) -> None:
    """Torch's debug wrapper holds one before every call, and its lines carry no group."""
    late = "RuntimeError: [Rank 0]: Ranks 1 failed to pass monitoredBarrier in 900 ms"
    reached = (
        "RuntimeError: Rank {r} successfully reached monitoredBarrier, but received errors while "
        "waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank."
    )
    text = in_line(0, 40, WHOLE, late)
    text += "".join(in_line(r, 40, WHOLE, reached.format(r=r)) for r in (2, 3))
    text += in_line(1, 55, source, reached.format(r=1))
    found = diagnose(trace_of("world_size=4\n" + text + table(dict.fromkeys(range(4), 1))))
    assert found.culprits == named


def test_who_is_silent_where_sizes_clashed_may_have_been_aborted() -> None:
    """Gloo aborts whoever gets more than it asked for, and prints no rank."""
    clash = "  what():  [enforce fail at x.cc:446] op.preamble.length <= op.nbytes. 40 vs 32\n"
    text = "".join(gave_up(rank, REDUCE, CLOSED) for rank in (0, 2, 3))
    lost = diagnose(trace_of("world_size=4\n" + text))
    assert lost.culprits == (1,)
    found = diagnose(trace_of("world_size=4\n" + text + clash))
    assert (found.verdict.value, found.culprits) == ("inconclusive", ())


def test_over_gloo_the_one_that_aborted_has_broken_the_connections_of_the_others() -> None:
    """No watchdog gives up there: nobody had waited until a timeout, or got more than it asked."""
    broke = (
        "RuntimeError: [../gloo/transport/tcp/pair.cc:530] Connection closed by peer [127.0.0.1]:1"
    )
    codes = {0: -15, 1: -6, 2: -15, 3: -15}
    text = "world_size=4\n" + "".join(gave_up(r, REDUCE, broke) for r in (0, 2)) + table(codes)
    found = diagnose(trace_of(text))
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (1,))
    assert found.confidence.value == "likely"
    for told in (
        text.replace("-15", "-6"),  # several aborted
        text + gave_up(3, REDUCE),  # one had waited for its timeout
        text + "terminate called: op.preamble.length <= op.nbytes. 64 vs 32\n",
    ):
        assert diagnose(trace_of(told)).verdict.value != "rank_crashed"


HELPER = (("/job/comm.py", 5, "mean"), (C10D, 3000, "all_reduce"))
STEP = (("/job/train.py", 40, "step"), *HELPER)
SCORE = (("/job/train.py", 90, "score"), *HELPER)


def test_who_came_to_a_helper_from_elsewhere_waits_elsewhere() -> None:
    found = judged({0: STEP, 1: SCORE, 2: STEP, 3: STEP})
    assert (found.verdict.value, found.culprits) == ("collective_mismatch", (1,))
    assert "rank 1 in all_reduce (train.py:90 in score)" in found.summary
    assert "waited in all_reduce (train.py:40 in step)" in found.summary


def test_how_a_helper_was_come_to_tells_nothing_where_it_is_cut_off_or_far_out() -> None:
    assert judged({0: STEP, 1: HELPER, 2: STEP, 3: STEP}).culprits == ()
    loop = tuple(("/job/loop.py", line, f"f{line}") for line in (1, 2, 3))
    starts = [(("/job/main.py", 7 + (rank == 1), "main"), *loop, *HELPER) for rank in range(4)]
    assert judged(dict(enumerate(starts))).culprits == ()


def test_a_loop_of_groups_is_several_calls_and_its_silent_rank_may_be_in_one() -> None:
    """Ranks that make their groups in different orders wait at one line for different groups."""
    key = KEY.replace("index", "{}//cpu//0/0")
    ends = table({0: 1, 1: -15, 2: 1, 3: 1})
    for groups, culprits in (((3, 3, 3), (1,)), ((2, 3, 3), ())):
        text = "".join(
            gave_up(rank, MAKING, key.format(group))
            for rank, group in zip((0, 2, 3), groups, strict=True)
        )
        found = diagnose(trace_of("world_size=4\n" + text + ends))
        assert found.culprits == culprits
    assert "rank 0 waited in new_group for group 2" in found.findings[0].evidence[0]


def test_an_operation_of_dtensor_goes_by_what_the_user_called() -> None:
    tensor = "/env/lib/python3.11/site-packages/torch/distributed/tensor/"
    ops = ("/env/lib/python3.11/site-packages/torch/_ops.py", 1279, "__call__")
    save = ("/job/train.py", 90, "save")
    full = (save, (tensor + "_api.py", 774, "full_tensor"), (tensor + "_r.py", 9, "forward"), ops)
    matmul = (save, (tensor + "_api.py", 350, "__torch_dispatch__"), ops)
    for frames, words in ((full, "full_tensor"), (matmul, "an operation of DTensor")):
        found = judged({0: frames, 1: REDUCE, 2: REDUCE, 3: REDUCE})
        assert f"rank 0 in {words} (train.py:90 in save)" in found.summary
        assert "compare train.py:90 in save with train.py:40 in step" in found.findings[0].fix


def test_what_ended_a_rank_is_what_it_raised_last_unless_that_was_a_wait() -> None:
    """A signal that tells of a dead worker may come while another error is being handled."""
    worker = (("/job/train.py", 19, "step"), ("/env/lib/python3.11/connection.py", 395, "_recv"))
    during = "\n[rank2]: During handling of the above exception, another exception occurred:\n\n"
    text = gave_up(2, worker, "ConnectionResetError: [Errno 104] Connection reset by peer") + during
    text += gave_up(
        2, worker, "RuntimeError: DataLoader worker (pid 9) is killed by signal: Killed."
    )
    text += "".join(gave_up(rank, REDUCE, CLOSED) for rank in (0, 1))
    found = diagnose(trace_of("world_size=3\n" + text + table(dict.fromkeys(range(3), 1))))
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (2,))
    assert "DataLoader worker" in found.summary


def test_a_bare_status_may_be_that_of_who_gave_up_waiting() -> None:
    """The program prints what it caught, without its rank, and leaves with status 1."""
    words = f"training failed, {TIMED_OUT!r}\n"
    for codes in ({0: -15, 1: -15, 2: 1}, {0: 1, 1: -15, 2: 1}):
        found = diagnose(trace_of("world_size=3\n" + words + table(codes)))
        assert (found.verdict.value, found.culprits) == ("inconclusive", ())
        assert "timed out" in found.summary
    found = diagnose(trace_of("world_size=3\n" + table({0: -15, 1: -15, 2: 1})))
    assert (found.verdict.value, found.culprits) == ("rank_crashed", (2,))
