"""What native dumps do not tell is not certain: recorded hangs, as another recorder leaves them."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Confidence
from hangscope.report import flight_recorder
from hangscope.trace.load import load_trace

FIXTURES = Path(__file__).parents[2] / "fixtures"


@pytest.mark.parametrize(
    ("fixture", "accused", "unknown"),
    [
        # rank 1 makes its groups in another order, and holds rank 0 in new_group
        ("groups-swapped", 0, "whether rank 0 had made this group"),
        # rank 2 has left a receive out; rank 1 waits for its send, or has fired and forgotten it
        ("pipeline-last-recv-skipped", 1, "whether rank 1 waits for its send"),
    ],
)
def test_nobody_is_certain_who_may_be_held_up(
    fixture: str, accused: int, unknown: str, tmp_path: Path
) -> None:
    for path in flight_recorder.write(load_trace([FIXTURES / fixture / "dumps"]), tmp_path):
        document = pickle.loads(path.read_bytes())  # our own, written just now
        del document["hangscope"]  # neither stacks nor phases, nor how a send was meant
        path.write_bytes(pickle.dumps(document))
    finding = diagnose(load_trace([tmp_path])).findings[0]
    assert finding.culprits == (accused,)
    assert finding.confidence is Confidence.LIKELY
    assert any(text.startswith(unknown) for text in finding.unknowns)
