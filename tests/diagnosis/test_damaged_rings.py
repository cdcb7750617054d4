"""Rings with zeroed pages: a crashed node, or a copy with holes.

Whatever is missing, no innocent rank may be named as certain.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Diagnosis
from hangscope.ring import layout
from hangscope.ring.reader import RingReader
from hangscope.trace.load import load_trace

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
JOBS = {"loader-asleep": 2, "d20-exception": 3, "order-inversion": 2, "never-initialised": 3}
"""Hangs, and whose fault they are."""


def _with_zeros(folder: Path, fixture: str, ring: str, first: int, last: int) -> Diagnosis:
    """The verdict on a fixture of which one ring has zeros from ``first`` on."""
    shutil.copytree(FIXTURES / fixture / "dumps", folder, dirs_exist_ok=True)
    path = folder / ring
    data = bytearray(path.read_bytes())
    last = min(last, len(data))
    data[first:last] = bytes(last - first)
    path.write_bytes(data)
    return diagnose(load_trace([folder]))


@pytest.mark.parametrize("fixture", JOBS)
@pytest.mark.parametrize("part", ["tail", "page"])
def test_damaged_ring_makes_no_innocent_rank_certain(
    tmp_path: Path, fixture: str, part: str
) -> None:
    size = (FIXTURES / fixture / "dumps" / "rank_1.ring").stat().st_size
    page = layout.HEADER_BYTES
    for number, first in enumerate(range(page, size, page if part == "page" else 1111)):
        last = first + page if part == "page" else size
        found = _with_zeros(tmp_path / str(number), fixture, "rank_1.ring", first, last)
        wrong = set(found.culprits) - {JOBS[fixture]}
        assert not wrong or found.confidence.value != "certain", (first, found.summary)


@pytest.mark.parametrize("count", [1, 8])
def test_missing_records_are_reported_without_changing_the_verdict(
    tmp_path: Path, count: int
) -> None:
    """The newest records of a rank that had got as far as all others but one."""
    reader = RingReader(FIXTURES / "loader-asleep" / "dumps" / "rank_1.ring")
    newest = reader.header().last_record_id
    slots_at = layout.FIXED_START.unpack_from(reader.head)[8]
    reader.close()
    end = slots_at + newest * layout.SLOT.itemsize
    start = end - count * layout.SLOT.itemsize
    found = _with_zeros(tmp_path, "loader-asleep", "rank_1.ring", start, end)
    assert any("rank_1.ring: damaged: records are missing" in line for line in found.warnings)
    assert found.culprits == (2,)


def test_operation_without_a_name_contradicts_none(tmp_path: Path) -> None:
    """The area of interned values holds the names of operations."""
    reader = RingReader(FIXTURES / "healthy-ddp" / "dumps" / "rank_1.ring")
    values_at = layout.FIXED_START.unpack_from(reader.head)[11]
    area = reader.values()
    reader.close()
    at = area.index(b'{"op"') + values_at
    found = _with_zeros(tmp_path, "healthy-ddp", "rank_1.ring", at, at + 5)
    assert found.verdict.value == "healthy"
