"""``hangscope replay`` from a user's view."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hangscope.cli.errors import UserError
from hangscope.cli.replay import command
from hangscope.replay import load_fixture

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"


def _copy(target: Path, *names: str) -> None:
    for name in names:
        shutil.copytree(FIXTURES / name, target / name)


def _replay(*arguments: str | Path, answer: str = "") -> Result:
    return CliRunner().invoke(command, [str(a) for a in arguments], input=answer)


def _spoil(folder: Path) -> Path:
    file = folder / "expected.toml"
    text = file.read_text("utf-8")
    assert 'verdict = "rank_crashed"' in text
    text = text.replace('verdict = "rank_crashed"', 'verdict = "missing_rank"  # by hand')
    file.write_text(text.replace("culprits = [1]", "culprits = [\n  1,\n  3,\n]"))
    return file


def test_equal_verdicts_give_exit_status_zero(tmp_path: Path) -> None:
    _copy(tmp_path, "d20-sigkill", "d19-operation")
    result = _replay(tmp_path)
    assert result.exit_code == 0, result.output
    assert "2 of 2 fixtures as expected" in result.output
    assert "rank_crashed" in result.output
    assert "collective_mismatch" in result.output


def test_difference_is_shown_side_by_side_with_exit_status_one(tmp_path: Path) -> None:
    _copy(tmp_path, "d20-sigkill", "d19-operation")
    _spoil(tmp_path / "d20-sigkill")
    result = _replay(tmp_path, "--quiet")
    assert result.exit_code == 1
    assert "1 of 2 fixtures as expected" in result.output
    assert "d19-operation" not in result.output
    row = next(line for line in result.output.splitlines() if "verdict " in line and "│" in line)
    assert "missing_rank" in row
    assert "rank_crashed" in row
    assert any("1 3" in line and "culprits" in line for line in result.output.splitlines())


def test_update_asks_and_keeps_the_rest_of_the_file(tmp_path: Path) -> None:
    _copy(tmp_path, "d20-sigkill")
    file = _spoil(tmp_path / "d20-sigkill")
    refused = _replay(tmp_path, "--update", answer="n\n")
    assert refused.exit_code == 1
    assert load_fixture(tmp_path / "d20-sigkill").expected.culprits == (1, 3)
    taken = _replay(tmp_path, "--update", answer="y\n")
    assert taken.exit_code == 0, taken.output
    expected = load_fixture(tmp_path / "d20-sigkill").expected
    assert (expected.verdict, expected.culprits) == ("rank_crashed", (1,))
    assert "# by hand" in file.read_text("utf-8")
    assert expected.recorded["world_size"] == 4
    assert _replay(tmp_path).exit_code == 0


def test_json_contains_both_sides(tmp_path: Path) -> None:
    _copy(tmp_path, "d20-sigkill")
    _spoil(tmp_path / "d20-sigkill")
    result = _replay(tmp_path, "--json")
    assert result.exit_code == 1
    document = json.loads(result.output)
    assert (document["schema"], document["passed"], document["failed"]) == (
        "hangscope/replay/1", 0, 1,
    )  # fmt: skip
    fixture = document["fixtures"][0]
    assert fixture["diagnosis"]["verdict"] == "rank_crashed"
    assert {"what": "verdict", "expected": "missing_rank", "got": "rank_crashed"} in fixture[
        "differences"
    ]


def test_texts_that_must_and_must_not_appear(tmp_path: Path) -> None:
    _copy(tmp_path, "d20-sigkill")
    file = tmp_path / "d20-sigkill" / "expected.toml"
    text = file.read_text("utf-8").replace(
        'must_mention = ["SIGKILL"]',
        'must_mention = ["SIGKILL", "no such words"]\nmust_not_mention = ["killed by  SIGKILL"]',
    )
    file.write_text(text)
    result = _replay(tmp_path)
    assert result.exit_code == 1
    assert "no such words" in result.output
    assert "must not mention" in result.output


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("verdict = ", "expected.toml"),
        ('verdict = "sick"\nculprits = []\n', "verdict must be one of healthy"),
        ('verdict = "healthy"\n', "culprits must be a list of ranks"),
        ('verdict = "healthy"\nculprits = ["0"]\n', "culprits must be a list of ranks"),
        (
            'verdict = "healthy"\nculprits = []\nverdikt = 1\n',
            "unknown key 'verdikt'; did you mean 'verdict'?",
        ),
        ('verdict = "healthy"\nculprits = []\nconfidence = "sure"\n', "confidence must be"),
        ('verdict = "healthy"\nculprits = []\nmust_mention = [1]\n', "must_mention must be"),
    ],
)
def test_malformed_expectation_is_one_line(tmp_path: Path, text: str, complaint: str) -> None:
    _copy(tmp_path, "d20-sigkill")
    (tmp_path / "d20-sigkill" / "expected.toml").write_text(text)
    result = _replay(tmp_path)
    assert isinstance(result.exception, UserError)
    assert result.exception.exit_status == 2
    assert complaint in str(result.exception)
    assert "\n" not in str(result.exception)


def test_additional_notes_are_accepted(tmp_path: Path) -> None:
    _copy(tmp_path, "d20-sigkill")
    file = tmp_path / "d20-sigkill" / "expected.toml"
    text = file.read_text("utf-8").replace("must_mention", "mentions")
    file.write_text(f'ticket = "https://tickets.example/17"\n{text}')
    assert load_fixture(file.parent).expected.must_mention == ("SIGKILL",)
    assert _replay(tmp_path).exit_code == 0


def test_nothing_to_replay_is_an_error(tmp_path: Path) -> None:
    result = _replay(tmp_path)
    assert isinstance(result.exception, UserError)
    assert "no fixture below" in str(result.exception)
    result = _replay(tmp_path / "nowhere")
    assert isinstance(result.exception, UserError)
    assert "no such directory" in str(result.exception)


def test_unreadable_dumps_are_a_difference(tmp_path: Path) -> None:
    _copy(tmp_path, "d20-sigkill")
    for file in (tmp_path / "d20-sigkill" / "dumps").iterdir():
        file.write_bytes(b"")
    result = _replay(tmp_path)
    assert result.exit_code == 1
    assert "unreadable" in result.output
