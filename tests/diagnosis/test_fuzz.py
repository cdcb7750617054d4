"""Whatever a trace holds, the diagnosis answers and never raises."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Verdict
from hangscope.trace.model import (
    MEMBER_DTYPE,
    RECORD_DTYPE,
    Claim,
    ExceptionFacts,
    ExitFacts,
    Frame,
    Group,
    Phase,
    RankFacts,
    Signature,
    ThreadStack,
    Trace,
)
from tests.depth import examples

OPS = ["all_reduce", "broadcast", "all_to_all", "send", "recv", "coalesced", "barrier", "odd"]
TIMES = st.sampled_from([0, 1, 10**18, 10**18 + 10**9, 10**18 + 10**12])
RANKS = st.integers(0, 5)


@st.composite
def facts(draw: st.DrawFn, rank: int) -> RankFacts:
    kind = draw(st.sampled_from([None, "clean", "exception", "code", "signal", "oom", "unknown"]))
    end = None
    if kind:
        end = ExitFacts(
            kind,
            draw(st.sampled_from([None, 0, 1, -6])),
            draw(st.sampled_from([None, 9, 15, 6, 99])),
            draw(TIMES),
            draw(st.booleans()),
        )
    error = None
    if draw(st.booleans()):
        error = ExceptionFacts(
            "builtins.RuntimeError", draw(st.sampled_from(["", "Broken pipe", "x\ny"])), (),
            draw(TIMES), is_main_thread=draw(st.booleans()),
        )  # fmt: skip
    return RankFacts(
        rank,
        alive=draw(st.sampled_from([None, True, False])),
        process_state=draw(st.sampled_from([None, "stopped", "sleeping", "zombie"])),
        gil_blocked=draw(st.sampled_from([None, True])),
        phases=draw(st.sampled_from([(), (Phase("init_process_group"),), (Phase("new_group"),)])),
        initialized=draw(st.sampled_from([None, True, False])),
        finalized=draw(st.sampled_from([None, True])),
        exit=end,
        exception=error,
        threads=draw(
            st.sampled_from([(), (ThreadStack("MainThread", True, (Frame("f", "a.py", 1),)),)])
        ),
        observed_ns=draw(TIMES),
        oldest_record_id=draw(st.sampled_from([0, 1, 70])),
        only_active=draw(st.booleans()),
    )


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    known = sorted(draw(st.sets(RANKS, max_size=6)))
    groups = [
        Group(str(i), draw(st.sampled_from(["", "tp", "default_pg"])), tuple(sorted(ranks)))
        for i, ranks in enumerate(
            draw(st.lists(st.sets(RANKS, max_size=6), min_size=1, max_size=4))
        )
    ]
    signatures = tuple(
        Signature(op, op, "gloo", ((4,),) if i % 2 else None, ((i,),)) for i, op in enumerate(OPS)
    )
    count = draw(st.integers(0, 40))
    seed = draw(st.integers(0, 2**31))
    rng = np.random.default_rng(seed)
    records = np.zeros(count, RECORD_DTYPE)
    # Some records may belong to ranks of which nothing else is known.
    records["rank"] = np.sort(rng.choice(known or [0], count))
    records["group"] = rng.integers(0, len(groups), count)
    records["collective_seq"] = rng.integers(-1, 6, count)
    records["p2p_seq"] = rng.integers(0, 4, count)
    records["signature"] = rng.integers(0, len(signatures), count)
    records["stack"] = -1
    records["peer"] = rng.integers(-1, 7, count)
    records["root"] = rng.integers(-1, 3, count)
    records["created_ns"] = rng.choice([0, 10**18, 10**18 + 10**9], count)
    records["state"] = rng.integers(0, 3, count)
    records["flags"] = rng.choice([0, 0, 1, 2, 4, 6, 8, 10, 32, 128], count)
    records["history"] = rng.integers(0, 3, count)
    members = np.zeros(draw(st.integers(0, 8)), MEMBER_DTYPE)
    members["rank"] = rng.choice(known or [0], len(members))
    members["group"] = rng.integers(0, len(groups), len(members))
    for column in ("enqueued", "completed", "p2p_enqueued"):
        members[column] = rng.integers(-1, 8, len(members))
    claims = tuple(
        Claim(kind, (draw(RANKS),), draw(st.sampled_from([None, 0, 9])), text="said")
        for kind in draw(st.lists(st.sampled_from(["timeout", "oom", "rendezvous"]), max_size=2))
    )
    return Trace(
        records,
        members,
        tuple(groups),
        signatures,
        (),
        {r: draw(facts(r)) for r in known},
        claims=claims,
        world_size=draw(st.sampled_from([None, 2, 6, 8])),
        live=draw(st.booleans()),
        looks=draw(st.sampled_from([1, 2])),
        observed_ns=draw(TIMES),
    )


@settings(max_examples=examples(400), suppress_health_check=list(HealthCheck))
@given(traces())
def test_any_trace_gets_an_answer(trace: Trace) -> None:
    found = diagnose(trace)
    assert isinstance(found.verdict, Verdict)
    everybody = set(trace.ranks) | set(trace.missing_ranks) | set(range(7))
    for finding in found.findings:
        assert set(finding.culprits) <= everybody
        assert not set(finding.culprits) & set(finding.victims)
        assert finding.summary
    if found.verdict in (Verdict.HEALTHY, Verdict.QUIESCENT, Verdict.INCONCLUSIVE):
        assert not found.culprits
