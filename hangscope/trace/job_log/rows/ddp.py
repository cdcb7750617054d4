"""Errors of DDP's reducer, and its comparison of models."""

from __future__ import annotations

from hangscope.trace.job_log.evidence.attempt import Attempt
from hangscope.trace.job_log.evidence.notes import GroupId, Operation
from hangscope.trace.job_log.lines.line import LogLine
from hangscope.trace.job_log.rows.row import Said, row
from hangscope.trace.job_log.rows.statements import own_error
from hangscope.trace.model import Signature, State

_MODELS: GroupId = ("ddp", "DDP's comparison of models")
_MOST_MODELS = 1024


def _other_model(said: Said, attempt: Attempt) -> None:
    """Another rank has a different number of parameters."""
    line = said.line
    own, count, other, its_count = (int(x[:18]) for x in said.found.groups())
    # No parameters, or an absurd number: the other rank did not take part in this collective.
    absent = its_count == 0 or its_count > 10**9
    if not absent and other < _MOST_MODELS and not line.is_place(own):
        # It names the first rank that differs, so the ranks before that one agree with it.
        for rank, size in ((own, count), (other, its_count), *((r, count) for r in range(other))):
            _model(rank, size, line, attempt)
    accused = (other,) if absent and not line.is_place(own) else ()
    attempt.claim(
        "ddp_model_mismatch", line,
        reporter=line.rank_or(own), accused=accused, certain=False,
    )  # fmt: skip


def _model(rank: int, size: int, line: LogLine, attempt: Attempt) -> None:
    """One rank's part in the comparison of models, which every rank repeats."""
    signature = Signature("all_gather", "parameters of the model", input_sizes=((size,),))
    told = Operation(1, signature, _MODELS, state=State.SCHEDULED, at_ns=line.at_ns)
    attempt.of(rank).issued(told, line)


# fmt: off
ROWS = (
    row("ddp-unused", "own error",
        r"Parameters?(?: indices)? which did not receive grad for rank (?P<rank>\d+): ?|"
        "Expected to have finished reduction in the prior iteration",
        own_error("ddp_unused_parameters"),
        "Parameter indices which did not receive grad for rank 1: 0 1 2",
        "RuntimeError: Expected to have finished reduction in the prior iteration before starting "
        "a new one."),
    row("ddp-marked-twice", "own error", "Expected to mark a variable ready only once",
        own_error("ddp_marked_twice"),
        "RuntimeError: Expected to mark a variable ready only once. This error is caused by one of "
        "the following reasons"),
    row("ddp-models", "mismatch",
        r"DDP expects same model across all ranks, but Rank (\d+) has (\d+) params, while rank "
        r"(\d+) has inconsistent (\d+) params", _other_model,
        "RuntimeError: DDP expects same model across all ranks, but Rank 0 has 62 params, while "
        "rank 1 has inconsistent 60 params."),
    row("ddp-shapes", "mismatch",
        r"\[?(?P<rank>\d+)?\]?:? ?params\[(\d+)\] in this process with sizes .* appears not to "
        "match", own_error("ddp_model_mismatch", certain=False),
        "[3]: params[0] in this process with sizes [8, 4] appears not to match sizes of the same "
        "param in process 0."),
)
# fmt: on
