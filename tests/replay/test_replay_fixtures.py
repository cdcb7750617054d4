"""Recorded hangs are of every kind, and none tells where it was made.

That each keeps its verdict is shown by ``hangscope replay fixtures``, which ``make check`` calls.
"""

from __future__ import annotations

import gzip
import re
from pathlib import Path

from hangscope.replay import find_fixtures, load_fixture

ROOT = Path(__file__).resolve().parents[2] / "fixtures"
FOLDERS = find_fixtures([ROOT])
_PRIVATE = re.compile(
    rb"/(?:work|root|home|Users|private)/|(?<![\w.])(?!127\.|0\.|192\.0\.2\.)\d{1,3}(?:\.\d{1,3}){3}:\d"
)
MAX_BYTES = 1_000_000


def test_fixtures_are_many_and_cover_every_kind() -> None:
    fixtures = [load_fixture(folder) for folder in FOLDERS]
    assert len(fixtures) >= 40
    kinds = {
        kind
        for f in fixtures
        if "kind" in f.expected.recorded
        for kind in f.expected.recorded["kind"].split(", ")
    }
    assert kinds >= {"rings", "native", "logs", "hosts"}
    worlds = {f.expected.recorded["world_size"] for f in fixtures if f.expected.recorded}
    assert min(worlds) == 2
    assert max(worlds) == 16
    verdicts = {f.expected.verdict for f in fixtures}
    missing = {
        "healthy", "collective_mismatch", "shape_mismatch", "dtype_mismatch", "argument_mismatch",
        "missing_rank", "rank_crashed", "rank_exited", "rank_lost", "deadlock_cycle",
        "p2p_unmatched", "stuck_collective", "quiescent",
    } - verdicts  # fmt: skip
    assert not missing
    assert sum(f.expected.verdict == "healthy" for f in fixtures) >= 6


def test_recordings_are_small_and_private() -> None:
    for folder in FOLDERS:
        total = 0
        for file in filter(Path.is_file, folder.rglob("*")):
            data = file.read_bytes()
            total += len(data)
            if data[:2] == b"\x1f\x8b":
                data = gzip.decompress(data)
            found = _PRIVATE.search(data)
            assert found is None, f"{file}: {found[0]!r}"
        assert total < MAX_BYTES, folder


def test_list_contains_every_fixture() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert [f.name for f in FOLDERS if f"**{f.name}**" not in text] == []
