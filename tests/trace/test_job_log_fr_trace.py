"""What torch's own analysis of Flight Recorder dumps says, where it stands in a log."""

from __future__ import annotations

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Confidence, Verdict
from tests.trace.logs import trace_of


def ranks(*numbers: int) -> str:
    return "{" + ", ".join(map(str, numbers)) + "}"


def report(
    seq: int,
    group: str,
    expected: tuple[int, ...],
    *,
    missing: tuple[int, ...] = (),
    state: str = "scheduled",
    told: str = "",
) -> str:
    """As torch prints it from 2.6 on: who has not joined, or with what errors."""
    rows = [
        f"Collective sequence number: {seq} has errors"
        if told
        else f"Not all ranks joining collective, sequence number: {seq}",
        f"internal record id: {seq + 40}",
        f"group info: {group}",
        "collective: nccl:all_reduce",
        *([f"missing ranks: {ranks(*missing)}"] if missing else []),
        "input sizes: [[64, 8]]",
        "output sizes: [[64, 8]]",
        f"world size: {len(expected)}",
        f"expected ranks: {ranks(*expected)}",
        f"collective state: {state}",
        *([f"error msg: {told}"] if told else []),
        "collective stack trace: ",
        " all_reduce at /env/torch/distributed/distributed_c10d.py:2810",
    ]
    return "\n".join(rows) + "\n"


def differing(*culprits: int, kind: str = "COLLECTIVE_TYPE_MISMATCH") -> str:
    return ", ".join(f"Culprit rank {r}; Error type: {kind}, found: 'broadcast'" for r in culprits)


OLD = """\
Not all ranks joining collective 8 at entry 7
group info: 0:default_pg
collective: nccl:all_reduce
missing ranks: {2}
input sizes: [[64, 8]]
output sizes: [[64, 8]]
expected ranks: 4
collective state: scheduled
"""
WORLD = (0, 1, 2, 3)


@pytest.mark.parametrize(
    "text",
    [
        report(8, "0:default_pg", WORLD, missing=(2,)),
        2 * report(8, "0:default_pg", WORLD, missing=(2,)),
        report(8, "0:default_pg", WORLD, missing=(2,)).replace("\n", "\nINFO:Flight Recorder:"),
        report(8, "0:default_pg", WORLD, missing=(2,)).replace("\n", "\n[rank1]: step 3, loss 2\n"),
        OLD,
    ],
    ids=["torch 2.6", "printed twice", "logged", "others write in between", "torch 2.5"],
)
def test_rank_that_has_not_joined_is_likely_missing(text: str) -> None:
    found = diagnose(trace_of(text))
    assert (found.verdict, found.culprits) == (Verdict.MISSING_RANK, (2,))
    assert found.confidence is Confidence.LIKELY
    assert "all_reduce #8 in group default (ranks 0–3)" in found.summary


def test_rank_waiting_in_another_group_is_not_missing() -> None:
    text = report(8, "0:default_pg", WORLD, missing=(2, 3))
    found = diagnose(trace_of(text + report(5, "4:pair", (2, 3), missing=(3,))))
    assert found.culprits == (3,)


def test_ranks_waiting_for_each_other_in_two_groups() -> None:
    text = report(8, "0:default_pg", WORLD, missing=(0, 1))
    found = diagnose(trace_of(text + report(5, "4:mesh", WORLD, missing=(2, 3))))
    assert (found.verdict, found.culprits) == (Verdict.DEADLOCK_CYCLE, WORLD)
    assert found.confidence is Confidence.AMBIGUOUS


def test_operation_completed_by_the_others_needs_no_rank() -> None:
    text = report(8, "0:default_pg", WORLD, missing=(2,), state="completed")
    assert not diagnose(trace_of("[rank0]: step 3\n" + text)).culprits


def test_torchcomms_communicator_keeps_its_name() -> None:
    found = diagnose(trace_of(report(8, "replicas:gloo", WORLD, missing=(2,))))
    assert "in group replicas" in found.summary


@pytest.mark.parametrize(("culprits", "named"), [((3,), (3,)), ((1, 2, 3), (0,)), ((2, 3), WORLD)])
def test_smaller_side_of_a_mismatch_is_named(
    culprits: tuple[int, ...], named: tuple[int, ...]
) -> None:
    """torchfrtrace calls every rank that differs from the first a culprit."""
    text = report(8, "0:default_pg", WORLD, told=differing(*culprits))
    found = diagnose(trace_of(text))
    assert (found.verdict, found.culprits) == (Verdict.COLLECTIVE_MISMATCH, named)
    assert found.findings[0].confidence is not Confidence.CERTAIN


def test_difference_in_completion_is_no_mismatch() -> None:
    told = differing(1, kind="COLLECTIVE_STATE_MISMATCH")
    text = report(8, "0:default_pg", WORLD, told=told)
    assert not diagnose(trace_of("[rank0]: step 3\n" + text)).culprits


TABLE = """=== FR Trace ===
--- Collectives ---
  id    group_id  pass_check      collective_seq_id    p2p_seq_id    record_id  pg_desc       collective_name    input_sizes    output_sizes    expected_ranks    collective_state    collective_frames                                            input_numel    output_numel    missing_ranks    mismatch_collectives
   0           0  True                            1             0            0  0:default_pg  nccl:all_reduce    [[4]]          [[4]]           {0, 1, 2, 3}      completed           [{'name': 'step', 'filename': '/app/train.py', 'line': 44}]
   1           0  False                           2             0            1  0:default_pg  nccl:all_reduce    [[4]]          [[4]]           {0, 1, 2, 3}      scheduled           [{'name': 'step', 'filename': '/app/train.py', 'line': 44}]                             """  # noqa: E501


@pytest.mark.parametrize(
    ("cells", "verdict", "culprits"),
    [
        ("   {2}              {}", "missing_rank", (2,)),
        (
            "                    {1: Collective(id=2, group_id='0', pass_check=False, "
            "collective_seq_id=2, collective_name='nccl:broadcast', expected_ranks={0, 1})}",
            "collective_mismatch",
            (1,),
        ),
        ("", "stuck_collective", ()),
    ],
)
def test_table_of_the_debug_server(cells: str, verdict: str, culprits: tuple[int, ...]) -> None:
    found = diagnose(trace_of(TABLE + cells + "\n--- NCCL Calls ---\n"))
    assert (found.verdict.value, found.culprits) == (verdict, culprits)


def test_table_of_the_debug_server_shows_the_line() -> None:
    trace = trace_of(TABLE + "   {2}              {}\n")
    row = next(r for r in trace.records if r["rank"] == 0)
    assert trace.stacks[row["stack"]][0].line == 44
