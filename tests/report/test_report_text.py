"""The text report as a person reads it: at 80 columns, without colour, with 8,192 ranks."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from hangscope.diagnosis.model import Confidence, Diagnosis, Verdict
from hangscope.report.formatting import confidence_note, short_path
from hangscope.report.text import render
from hangscope.trace.model import Frame
from tests import view_samples as samples


def show(diagnosis: Diagnosis, width: int = 80, colour: bool = False, **options: object) -> str:
    out = io.StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=colour,
        color_system="standard" if colour else None,
        legacy_windows=False,
    )
    console.print(render(diagnosis, **options))  # type: ignore[arg-type]
    return out.getvalue()


@functools.cache
def hang_of_8192_ranks() -> Diagnosis:
    """Made once, and only where a test of this process needs it: it takes seconds."""
    return samples.hang(8192, culprit=77, steps=1).diagnosis


def test_hang_report_at_80_columns() -> None:
    assert show(samples.hang().diagnosis) == (
        "  HANG   4 ranks · gloo · no progress for 12 s · live\n"
        "\n"
        " Rank 2 never joined all_reduce #103 in group dp (ranks 0–3)\n"
        "\n"
        "   ranks 0 1 3   waiting 12 s   all_reduce #103  float32[4096]\n"
        "                                train.py:88 in backward\n"
        "   rank  2       elsewhere      in load_batch  last all_reduce #102, 12 s ago\n"
        "                                data.py:41 in load_batch\n"
        "\n"
        "     train.py:131  in <module>\n"
        "   ranks 0 1 3\n"
        "     ▸ train.py:104  in train\n"
        "       train.py:88   in backward\n"
        "   rank 2\n"
        "     ▸ train.py:97  in train\n"
        "       data.py:27   in __next__\n"
        "       data.py:41   in load_batch\n"
        "\n"
        " Why   rank 2 is still in load_batch; the others finished step 17 without it\n"
        " Do    look at data.py:41 on host node0 (pid 4711); if loaders differ in\n"
        "       length, equalise them or use Join  [D9, D22]\n"
        "\n"
        " Seen  3 of 4 members issued all_reduce #103\n"
        "       rank 2 sleeps and its stack did not move between two looks\n"
    )


@pytest.mark.long
@pytest.mark.parametrize("width", [40, 80, 120, 200])
@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize(
    "example",
    [
        pytest.param(lambda: samples.hang().diagnosis, id="hang"),
        pytest.param(hang_of_8192_ranks, id="8192 ranks"),
        pytest.param(lambda: samples.deadlock().diagnosis, id="deadlock"),
        pytest.param(lambda: samples.healthy().diagnosis, id="healthy"),
        pytest.param(samples.inconclusive, id="inconclusive"),
        pytest.param(lambda: samples.hostile().diagnosis, id="hostile"),
    ],
)
def test_no_line_is_wider_than_the_terminal(
    example: Callable[[], Diagnosis], width: int, everything: bool
) -> None:
    text = show(example(), width, all_findings=everything)
    assert max(len(line) for line in text.split("\n")) <= width
    assert not any(line != line.rstrip() for line in text.split("\n"))
    assert text.count("\n") < (40 if width >= 80 and not everything else 130)


def test_one_rank_uses_the_same_group_labels() -> None:
    text = show(samples.hang().diagnosis, rank=2)
    assert "Last  all_reduce #102 in group dp\n" in text


def test_narrow_terminal_puts_a_sides_activity_below_its_ranks() -> None:
    lines = show(samples.hang().diagnosis, 40).split("\n")
    at = next(i for i, line in enumerate(lines) if line.startswith("   ranks 0 1 3  waiting"))
    assert [line.strip() for line in lines[at + 1 : at + 3]] == [
        "all_reduce #103  float32[4096]",
        "train.py:88 in backward",
    ]


def test_wide_terminal_puts_the_place_on_the_same_line() -> None:
    text = show(samples.hang().diagnosis, 120)
    assert "all_reduce #103  float32[4096]" in text
    line = next(line for line in text.split("\n") if "float32[4096]" in line)
    assert line.endswith("train.py:88 in backward")


def test_8192_ranks_are_one_screen() -> None:
    text = show(hang_of_8192_ranks())
    assert "8,192 ranks" in text
    assert "0–76 78–8191" in text
    assert text.count("\n") < 30


@pytest.mark.parametrize("colour", [False, True])
@pytest.mark.parametrize("options", [{}, {"all_findings": True}, {"rank": 2}])
def test_names_from_files_are_escaped(colour: bool, options: dict[str, object]) -> None:
    text = show(samples.hostile().diagnosis, 200, colour, **options)
    assert "\\x1b[31m[red]\\u202e<script>" in text  # shown as text, markup and all
    for char in ("\x07", "\u202e", "\udc80", "\x1b[31m["):
        assert char not in text
    text.encode("utf-8")


def test_colour_marks_only_the_culprit() -> None:
    text = show(samples.hang().diagnosis, colour=True)
    assert "\x1b[1;31mrank  2" in text
    assert "\x1b[1mranks 0 1 3" in text


def test_terminal_without_unicode_gets_ascii() -> None:
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, encoding="ascii", errors="strict") as file:
        Console(file=file, width=80).print(render(samples.hang().diagnosis, all_findings=True))
        file.flush()
        text = raw.getvalue().decode("ascii")
    assert "Rank 2 never joined all_reduce #103 in group dp (ranks 0-3)" in text
    assert "?" not in text


@pytest.mark.parametrize(("arrow", "drawn"), [("3←2", "recv 3<-2 #4"), ("2→3", "recv 2->3 #4")])
def test_pairs_keep_their_direction_in_ascii(arrow: str, drawn: str) -> None:
    told = samples.hang().diagnosis
    pair = replace(told.findings[0], summary=f"Rank 2 never issued recv {arrow} #4")
    diagnosis = replace(told, findings=(pair,))
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, encoding="ascii", errors="strict") as file:
        Console(file=file, width=80).print(render(diagnosis))
        file.flush()
        assert drawn in raw.getvalue().decode("ascii")


def test_healthy_report_is_short() -> None:
    text = show(samples.healthy().diagnosis)
    assert text.split("\n")[0] == "  HEALTHY   4 ranks · gloo · live"
    assert "no progress" not in text
    assert "rank 1 is the slowest" in text
    assert text.count("\n") <= 6


def test_inconclusive_report_says_what_is_unknown_and_what_to_collect() -> None:
    text = show(samples.inconclusive())
    assert "Open  what ranks 0–4 6–7 were doing" in text
    assert "Do    collect the logs or dumps of the other 7 ranks" in text
    assert "INCONCLUSIVE" in text
    assert "Sure" not in text  # nobody is named that could be more or less sure


def test_other_findings_are_one_line_unless_all_are_requested() -> None:
    diagnosis = samples.deadlock().diagnosis
    first = show(diagnosis)
    assert "1 more finding: --all shows them" in first
    assert "Also  Rank 2 never joined" in first
    assert first.count("Rank 2 never joined") == 1
    assert first.count(" Why ") == 1
    everything = show(diagnosis, all_findings=True)
    assert "Rank 2 never joined" in everything
    assert "more finding" not in everything


def test_deadlock_prints_the_wait_for_graph_and_its_doubt() -> None:
    text = show(samples.deadlock().diagnosis)
    assert "Wait  ranks 0 2 3 → rank 1  all_reduce #9 in group dp" in text
    assert "rank 1 → rank 0" in text
    assert "ambiguous: nothing decides between the sides" in text
    assert "Warn  rank_3: 2 records were half written" in text


def test_sides_in_different_groups_show_their_group() -> None:
    """On a cycle, operations of the same name and number may be of different groups."""
    assert "of dp" not in show(samples.hang().diagnosis)
    text = show(samples.deadlock().diagnosis, 100)
    assert "all_reduce #9 of dp" in text
    assert "broadcast #4 of 1" in text


def test_locations_are_on_the_line_only_if_all_fit() -> None:
    for width in range(60, 140):
        lines = show(samples.deadlock().diagnosis, width).splitlines()
        rows = [line for line in lines if line.startswith("   rank  ")]
        assert len({"train.py" in row or "data.py" in row for row in rows}) == 1


def test_only_findings_of_the_chosen_group_are_shown() -> None:
    diagnosis = samples.deadlock().diagnosis
    assert "Ranks 0 and 1 wait" in show(diagnosis, group="dp")
    text = show(diagnosis, group="[bold]pp")
    assert "Nothing was found in group [bold]pp." in text


def test_report_on_one_rank_tells_its_state_and_who_waits_for_it() -> None:
    text = show(samples.hang().diagnosis, rank=2)
    assert "Rank 2  culprit · sleeping · host node0 · pid 4711" in text
    assert "ranks 0 1 3 wait for it" in text
    assert "No source says anything about rank 99." in show(samples.hang().diagnosis, rank=99)


def test_source_line_is_below_the_frame(tmp_path: Path) -> None:
    file = tmp_path / "data.py"
    file.write_text("\n\n    time.sleep(3600)  # \x1b[31mred\n")
    loader = (Frame("load_batch", str(file), 3), samples.MAIN)
    diagnosis = samples.hang(loader=loader).diagnosis
    text = show(replace(diagnosis, source_directories=(str(tmp_path),)))
    assert "time.sleep(3600)  # \\x1b[31mred" in text


def test_changed_file_is_named_instead_of_quoted(tmp_path: Path) -> None:
    file = tmp_path / "data.py"
    file.write_text("\n\n    time.sleep(3600)\n")
    loader = (Frame("load_batch", str(file), 3), samples.MAIN)
    text = show(
        replace(
            samples.hang(loader=loader).diagnosis, began_ns=1, source_directories=(str(tmp_path),)
        )
    )
    assert "time.sleep" not in text
    told = "data.py was written after the job had begun, and may hold other lines by now"
    assert told in " ".join(text.split())


def test_only_python_files_are_quoted(tmp_path: Path) -> None:
    secret = tmp_path / "id_rsa"
    secret.write_text("very secret\n")
    loader = (Frame("load_batch", str(secret), 1), samples.MAIN)
    diagnosis = samples.hang(loader=loader).diagnosis
    assert "very secret" not in show(replace(diagnosis, source_directories=(str(tmp_path),)))


def test_deep_stacks_keep_both_ends() -> None:
    deep = tuple(Frame(f"f{i}", "/job/deep.py", i) for i in range(60))
    job = samples.hang(loader=(*samples.LOADER[:3], *deep, samples.MAIN))
    text = show(job.diagnosis)
    assert "… more frames" in text
    assert "data.py:41   in load_batch" in text
    assert "deep.py:59   in f59" in text
    assert "… " not in show(job.diagnosis, all_findings=True)


def test_crash_without_stacks_is_readable() -> None:
    diagnosis = samples.hang().diagnosis
    finding = replace(
        diagnosis.findings[0],
        sides=tuple(replace(s, stack=(), differs_at=None) for s in diagnosis.findings[0].sides),
    )
    text = show(replace(diagnosis, findings=(finding,)))
    assert "rank  2       elsewhere" in text
    assert "▸" not in text


def test_confidence_note_names_missing_evidence_only_if_any() -> None:
    likely = (Verdict.MISSING_RANK, Confidence.LIKELY)
    assert "missing" in confidence_note(*likely, ("rank 1 left no record",))
    assert "missing" not in confidence_note(*likely)


@pytest.mark.parametrize(
    "path", ["/job/src/train.py", "train.py", r"C:\job\train.py", "/job/train.py/"]
)
def test_path_is_shown_by_its_last_part(path: str) -> None:
    assert short_path(path) == "train.py"


def test_path_without_a_last_part_is_shown_as_it_is() -> None:
    assert short_path("/") == "/"
