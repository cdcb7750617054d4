"""Sends and receives with different tags, on a backend where tags count."""

from __future__ import annotations

from hangscope.diagnosis.engine import diagnose
from hangscope.trace.model import Flag
from tests.diagnosis.builder import Job


def _ring(tag: int, tag_before: int = 0, past: int = 3, wanted: Flag = Flag.BLOCKING) -> Job:
    """Rank 1 sends to rank 2 in every step; in the last one with another tag than rank 2 has."""
    job = Job(3)
    for _ in range(past):
        job.op(1, "send", peer=2, root=tag_before, flags=Flag.BLOCKING)
        job.op(2, "recv", peer=1, root=tag_before, flags=Flag.BLOCKING)
        job.all("barrier")
    job.op(1, "send", peer=2, root=tag, done=False, flags=wanted)
    job.op(2, "recv", peer=1, root=tag_before, done=False, flags=Flag.BLOCKING)
    job.op(0, "barrier", done=False)
    return job


def test_rank_that_left_its_usual_tag_is_named() -> None:
    found = diagnose(_ring(tag=7).trace())
    assert (found.verdict.value, found.culprits) == ("p2p_unmatched", (1,))
    assert found.confidence.value == "likely"
    assert "Rank 1 sends to rank 2 with tag 7, and rank 2 receives with tag 0" in found.summary
    assert "tag" in found.findings[0].fix
    assert {side.tag for side in found.findings[0].sides} == {7, 0}


def test_without_history_both_tags_may_be_wrong() -> None:
    found = diagnose(_ring(tag=7, past=0).trace())
    assert (found.verdict.value, found.culprits) == ("p2p_unmatched", (1, 2))
    assert found.confidence.value == "ambiguous"


def test_two_halves_of_an_undecided_pair_are_one_finding() -> None:
    job = Job(2)  # nobody else waits for either of them
    job.op(0, "send", peer=1, root=3, done=False, flags=Flag.BLOCKING)
    job.op(1, "recv", peer=0, root=4, done=False, flags=Flag.BLOCKING)
    findings = diagnose(job.trace()).findings
    assert [(f.verdict.value, f.culprits) for f in findings] == [("p2p_unmatched", (0, 1))]


def test_unawaited_send_is_no_partner_under_another_tag() -> None:
    job = _ring(tag=7, wanted=Flag.ASYNC)
    found = diagnose(job.trace())
    assert found.culprits == (1,)
    assert "tag" not in found.summary


def test_order_of_different_tags_is_free() -> None:
    job = Job(2)
    for _ in range(3):
        for tag in (1, 2):
            job.op(0, "send", peer=1, root=tag, flags=Flag.ASYNC)
        for tag in (2, 1):
            job.op(1, "recv", peer=0, root=tag, flags=Flag.BLOCKING)
    job.op(0, "send", peer=1, root=1, flags=Flag.ASYNC, done=False)
    job.op(1, "recv", peer=0, root=2, flags=Flag.BLOCKING, done=False)
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("p2p_unmatched", (0,))


def test_device_ignores_tags() -> None:
    job = _ring(tag=7)
    job.signatures = [_on_nccl(s) for s in job.signatures]
    found = diagnose(job.trace())
    assert (found.verdict.value, found.culprits) == ("stuck_collective", ())


def test_operation_without_a_recorded_tag_matches_any_tag() -> None:
    job = _ring(tag=7)
    for row in job.rows:
        if row["rank"] == 2:
            row["root"] = -1
    assert diagnose(job.trace()).verdict.value == "stuck_collective"


def _on_nccl(signature):  # type: ignore[no-untyped-def]
    from dataclasses import replace

    return replace(signature, backend="nccl")


def _counted(sent: int, wanted: int, past: int = 4) -> Job:
    """Rank 1 sends to rank 2 under a tag that both count up by two."""
    job = Job(3)
    for step in range(past):
        job.op(1, "send", peer=2, root=2 * step, flags=Flag.BLOCKING)
        job.op(2, "recv", peer=1, root=2 * step, flags=Flag.BLOCKING)
    job.op(1, "send", peer=2, root=sent, done=False, flags=Flag.BLOCKING, line=51)
    job.op(2, "recv", peer=1, root=wanted, done=False, flags=Flag.BLOCKING, line=61)
    job.op(0, "barrier", done=False)
    return job


def test_tags_that_count_show_no_rank() -> None:
    found = diagnose(_counted(8, 6).trace())
    assert (found.culprits, found.confidence.value) == ((1, 2), "ambiguous")


def test_advice_is_to_check_both_lines() -> None:
    fix = diagnose(_counted(8, 6).trace()).findings[0].fix
    assert "train.py:51 in train and train.py:61 in train name" in fix


def _halo(shifted: tuple[int, ...], world: int = 4) -> Job:
    """A chain that exchanges with both neighbours under the tags of two layers in turn.

    In the last exchange some ranks use the next layer's tag. All halves of an exchange are issued
    before the first is waited for; on Gloo, nothing is recorded of those behind it.
    """
    job = Job(world)
    for step in range(4):
        for layer in range(2):
            last = step == 3
            if last and layer:
                break
            for rank in range(world):
                tag = layer + (last and rank in shifted)
                first = True
                for peer in (rank + 1, rank - 1):
                    if not 0 <= peer < world:
                        continue
                    for op in ("send", "recv"):
                        flags = Flag.ASYNC | (Flag.WAITED if first or not last else Flag.UNOBSERVED)
                        job.op(rank, op, peer=peer, root=tag, flags=flags, done=not last)
                        first = False
        if step < 3:
            job.all()
    return job


def test_rank_whose_tag_neither_neighbour_has_is_named() -> None:
    found = diagnose(_halo((2,)).trace())
    assert (found.verdict.value, found.culprits) == ("p2p_unmatched", (2,))
    assert found.confidence.value == "likely"
    assert len(found.findings) == 1


def test_end_of_a_chain_with_another_tag_than_its_neighbour_may_be_right() -> None:
    found = diagnose(_halo((3,)).trace())
    assert (found.verdict.value, found.culprits) == ("p2p_unmatched", (2, 3))
    assert found.confidence.value == "ambiguous"
