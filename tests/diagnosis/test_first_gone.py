"""Ranks lost their peers over the network one after another: which of them was gone first?"""

from __future__ import annotations

from pathlib import Path

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.exits.lost_peers import lost_peer_ns
from hangscope.diagnosis.exits.primary_failures import judge_ends
from hangscope.diagnosis.model import Confidence, Diagnosis
from hangscope.trace import formats
from hangscope.trace.load import load_trace
from hangscope.trace.model import Claim, ClaimDetails, ExitFacts, Source
from tests.diagnosis.builder import SECOND, Job, blame
from tests.diagnosis.failing_jobs import END
from tests.trace.dumps import dump, entry, pending, write
from tests.trace.logs import timeout, trace_of
from tests.trace.torchrun_table import table

HEAD = "[rank{rank}]:[E816 12:10:{at:02}.111111111 ProcessGroupNCCL.cpp"
LABEL = "[PG ID 0 PG GUID 0(default_pg) Rank {rank}]"
FOUND = (
    HEAD + ":2245] " + LABEL + "  failure detected by watchdog at work sequence id: {seq} PG "
    "status: last enqueued work: {seq}, last completed work: {before}\n"
)
ENDS = (
    HEAD + ":2057] " + LABEL + " Process group watchdog thread terminated with exception: NCCL "
    "error: remote process exited or there was a network error, NCCL version 2.28.9\n"
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting "
    "prematurely.\nLast error:\n"
    "socketProgress: Connection closed by remote peer 10.0.0.{peer}<41234>\n"
)
HEARD = (
    HEAD + ":1893] " + LABEL + " Received a dump signal due to a collective timeout from rank {by} "
    "and we will try our best to dump the debug info. Last enqueued NCCL work: {seq}, last "
    "completed NCCL work: {seq}.This is most likely caused by incorrect usages\n"
)


OF_RANK_1 = Claim("network_error", reporter=1, at_ns=END, details=ClaimDetails(lost_peer=True))


def lost(rank: int, at: int, *, seq: int = 20, peer: int = 3) -> str:
    """A watchdog notices a broken connection, and ends its rank after the time for dumps."""
    told = {"rank": rank, "seq": seq, "before": seq - 1, "peer": peer}
    return FOUND.format(at=at, **told) + ENDS.format(at=at + 12, **told)


def heard(rank: int, at: int, *, seq: int, by: int = 1) -> str:
    return HEARD.format(rank=rank, at=at, seq=seq, by=by)


def raised(rank: int, message: str) -> str:
    return (
        f"[rank{rank}]: Traceback (most recent call last):\n"
        f'[rank{rank}]:   File "/job/train.py", line 5, in step\n'
        f"[rank{rank}]: {message}\n"
    )


REMOTE = (
    "torch.distributed.DistBackendError: NCCL error in: /pytorch/NCCLUtils.cpp:77, remote process "
    "exited or there was a network error, NCCL version 2.28.9"
)


def aborted(rank: int, at: int) -> str:
    """What the launcher of a node says of its only rank."""
    pid = 5000 + rank
    trace = f"Signal 6 (SIGABRT) received by PID {pid}"
    return table(
        -6, trace, rank=rank, local=0, pid=pid, agent=4710 + rank, host=f"node{rank}", at=at
    )


def found(text: str) -> Diagnosis:
    return diagnose(trace_of(text))


def test_rank_that_lost_nobody_was_gone_first() -> None:
    """The counters of rank 0 are behind: it noticed nothing until its neighbours had ended."""
    text = lost(1, 1) + lost(3, 1) + heard(0, 2, seq=19) + lost(0, 14, seq=19, peer=2)
    answer = found(text)
    assert blame(answer) == ("rank_lost", (2,))
    assert answer.confidence is Confidence.LIKELY
    assert answer.findings[0].victims == (0, 1, 3)


def test_rank_that_heard_of_the_others_lived_on() -> None:
    assert blame(found(lost(1, 1) + lost(3, 1) + heard(0, 2, seq=19))) == ("rank_lost", (2,))


def test_two_silent_ranks_are_named_together() -> None:
    answer = found(lost(1, 1) + lost(3, 1) + lost(4, 14, seq=19) + lost(5, 14, seq=21))
    assert answer.culprits == (0, 2)
    assert answer.confidence is Confidence.AMBIGUOUS


@pytest.mark.parametrize(("later_s", "named"), [(1, (0, 2)), (4, (2,))])
def test_of_two_dated_ends_the_first_counts(later_s: int, named: tuple[int, ...]) -> None:
    text = aborted(2, 1) + lost(1, 1) + lost(3, 1) + aborted(0, 1 + later_s)
    assert blame(found(text + aborted(1, 13) + aborted(3, 13))) == ("rank_crashed", named)


def test_abort_without_a_loss_was_first() -> None:
    text = aborted(2, 1) + lost(1, 1) + lost(3, 1) + lost(0, 14)
    answer = found(text + aborted(1, 13) + aborted(3, 13) + aborted(0, 26))
    assert blame(answer) == ("rank_crashed", (2,))
    assert answer.confidence is Confidence.LIKELY


@pytest.mark.parametrize("others", [lost(1, 1), lost(0, 1) + lost(3, 1)])
def test_part_of_a_log_does_not_show_why_a_rank_aborted(others: str) -> None:
    rest = "frame #6: <unknown function> + 0x1098ec (0x7f28d7b278ec in /lib/libc.so.6)\n"
    assert blame(found(others + aborted(2, 1))) == ("rank_crashed", (2,))
    assert blame(found(rest + others + aborted(2, 1))) == ("inconclusive", ())


def test_exception_of_a_ranks_own_was_first() -> None:
    text = raised(2, "ValueError: no label") + lost(1, 1) + lost(3, 1) + lost(0, 14)
    assert blame(found(text)) == ("rank_crashed", (2,))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(lost(0, 1) + lost(1, 1) + lost(2, 14) + lost(3, 14), id="everybody"),
        pytest.param(lost(3, 1), id="only one rank's log"),
        pytest.param(lost(6, 1) + lost(7, 1), id="most are not in this log"),
        pytest.param(lost(2, 1) + lost(3, 7), id="one of two nodes"),
        pytest.param(lost(0, 1) + lost(2, 1), id="one between them, and one beyond, perhaps"),
        pytest.param(lost(1, 1) + raised(3, REMOTE), id="an exception that echoes"),
        pytest.param(lost(0, 1) + lost(1, 1) + lost(2, 14), id="one beyond the last, perhaps"),
    ],
)
def test_nobody_is_named_if_nobody_is_left_to_be_the_first(text: str) -> None:
    answer = found(text)
    assert blame(answer) == ("inconclusive", ())
    assert "connection between ranks failed" in answer.summary


def test_rank_that_others_outlived_is_named_on_the_word_of_one() -> None:
    """Only rank 1 was connected with rank 0; the others waited for their neighbours in vain."""
    later = "".join(timeout(r, 20, "RECV") for r in (2, 3)).replace("12:10:01.", "12:10:09.")
    assert blame(found(lost(1, 1) + later)) == ("rank_lost", (0,))


def test_timeout_without_a_time_does_not_precede_the_loss() -> None:
    """The watchdog's dated lines are missing; the runtime repeats its message as it ends."""
    said = LABEL.format(rank=0) + " Process group watchdog thread terminated with exception: "
    again = timeout(0, 19).split("] [Rank 0] ", 1)[1].partition("\n")[0]
    text = lost(1, 1) + lost(3, 1, seq=21) + f"  what():  {said}[Rank 0] {again}\n"
    assert blame(found(text)) == ("rank_lost", (2,))


def test_watchdog_dates_the_loss_that_its_rank_raises() -> None:
    """Rank 1 gave up waiting for rank 0 later, and then lost it."""
    watchdog = HEAD.format(rank=0, at=1) + ":774] Stack trace of the failed collective: \n"
    late = timeout(1, 20).replace("12:10:01.", "12:10:09.") + lost(1, 13)
    answer = found(raised(0, REMOTE) + watchdog + late)
    assert blame(answer) == ("inconclusive", ())
    assert answer.summary.startswith("A connection between ranks failed (reported by ranks 0, 1)")


def test_abort_of_a_rank_that_lost_a_peer_is_not_its_own_failure() -> None:
    job = Job(4)
    job.steps(9)
    for rank in (1, 2):
        job.rank(rank, exit=ExitFacts("signal", signal=6, at_ns=END + SECOND))
    ends = judge_ends(job.trace(claims=(OF_RANK_1,)))
    assert ends[1].secondary
    assert not ends[2].secondary


def test_rings_show_more_than_what_ranks_say_of_connections() -> None:
    job = Job(4)
    job.steps(9)
    dumps, rings = (
        job.trace(claims=(OF_RANK_1,), sources=(Source("r0", kind, rank=0),))
        for kind in (formats.PICKLE, formats.RING)
    )
    assert lost_peer_ns(dumps) == {1: END}
    assert lost_peer_ns(rings) == {}


def dumps_without_rank_2(folder: Path) -> None:
    world = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}
    for rank in (0, 1, 3):
        entries = [entry(seq) for seq in range(1, 9)] + [pending(9)]
        write(folder, f"_dump_{rank}.json", dump(entries, pg_status=None, pg_config=world))


def test_dumps_show_where_the_first_is_waited_for(tmp_path: Path) -> None:
    dumps_without_rank_2(tmp_path)
    (tmp_path / "job.log").write_text(lost(1, 1) + lost(3, 1) + lost(0, 14))
    answer = diagnose(load_trace([tmp_path]))
    assert blame(answer) == ("rank_lost", (2,))
    assert answer.findings[0].seq == 9


def test_ranks_that_could_not_connect_have_lost_nobody() -> None:
    """What NCCL raises when it cannot reach the others' addresses."""
    answer = found("".join(raised(r, REMOTE) for r in (0, 1, 3)))
    assert blame(answer) == ("inconclusive", ())
    assert "without a word" not in answer.summary


def test_connections_that_break_after_a_timeout_explain_nothing() -> None:
    """Rank 2 is late, and the first watchdog that gave up broke the connections."""
    text = "".join(timeout(r, 78) for r in (0, 3)) + lost(1, 40, seq=78) + lost(2, 40, seq=77)
    assert "lost connections" not in found(text).summary


def test_stated_moment_is_that_of_the_discovery() -> None:
    trace = trace_of(lost(1, 1))
    (claim,) = [c for c in trace.claims if c.kind == "network_error" and c.reporter == 1]
    assert claim.details.lost_peer
    assert claim.at_ns % (60 * 10**9) == 10**9
