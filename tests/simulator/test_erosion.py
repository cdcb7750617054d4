"""Evidence is removed at random: answers may get vaguer, but never accuse an innocent rank."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.model import Confidence
from hangscope.trace.load import NothingReadable, load_trace
from tests.depth import examples
from tools.simulator.dialects import DIALECTS
from tools.simulator.erosion import eroded, some_case
from tools.simulator.score import expected


@pytest.mark.parametrize("number", range(examples(100)))
def test_less_evidence_makes_no_innocent_rank_certain(number: int, tmp_path: Path) -> None:
    rng = random.Random(number)
    case = some_case(rng, number)
    lost = eroded(case, rng, tmp_path)
    try:
        found = diagnose(load_trace([tmp_path]))
    except NothingReadable:
        return
    truth = expected(case, DIALECTS["pickle 2.10"])
    fair = truth.culprits | truth.ambiguous_with | lost
    for finding in found.findings:
        if finding.confidence is Confidence.CERTAIN:
            assert set(finding.culprits) <= fair, (case.truth, finding.summary)
