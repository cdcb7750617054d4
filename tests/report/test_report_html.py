"""The page: self-contained, escaped, small, and opened in a real browser if there is one."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from hangscope.diagnosis.model import WaitEdge
from hangscope.report.html import to_html
from hangscope.report.wait_graph import wait_graph
from hangscope.trace.model import Frame
from tests import view_samples as samples

BROWSER = next(
    (b for b in map(shutil.which, ("chromium", "google-chrome", "chromium-browser")) if b), None
)
ALLOWED = {
    *("html", "head", "meta", "title", "style", "body", "main", "header", "footer", "section"),
    *("h1", "h2", "h3", "p", "b", "i", "span", "div", "dl", "dt", "dd", "ol", "ul", "li"),
    *("pre", "code", "details", "summary", "table", "thead", "tbody", "tr", "th", "td"),
    *("svg", "defs", "pattern", "marker", "path", "rect", "line", "text"),
}


class Page(HTMLParser):
    """Collects the tags, the attributes and the visible text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


def page(job: samples.Job) -> Page:
    return Page(to_html(job.diagnosis, job.trace))


JOBS = {
    "hang": samples.hang(),
    "big": samples.hang(64, culprit=7),
    "deadlock": samples.deadlock(),
    "healthy": samples.healthy(),
    "inconclusive": samples.Job(samples.hang().trace, samples.inconclusive()),
    "hostile": samples.hostile(),
    "empty": samples.Job(
        replace(samples.hang().trace, records=samples.hang().trace.records[:0], ranks={}),
        samples.inconclusive(),
    ),
}


@pytest.mark.parametrize("name", list(JOBS))
def test_page_fetches_and_runs_nothing(name: str) -> None:
    shown = page(JOBS[name])
    assert set(shown.tags) <= ALLOWED
    for attribute, value in shown.attributes:
        assert not attribute.startswith("on")
        assert attribute not in ("src", "href", "srcset", "action")
        assert "url(" not in value or value == "url(#tip)"
    html = to_html(JOBS[name].diagnosis, JOBS[name].trace)
    assert "default-src 'none'" in html
    assert not re.search(r"https?://", html)


def test_page_contains_the_whole_verdict() -> None:
    text = page(JOBS["hang"]).text
    for words in (
        "Rank 2 never joined all_reduce #103 in group dp (ranks 0–3)",
        "rank 2 is still in load_batch",
        "look at data.py:41 on host node0 (pid 4711)",
        "waiting 12 s",
        "float32[4096]",
        "data.py:41 in load_batch",
        "3 of 4 members issued all_reduce #103",
        "no progress for 12 s",
        "all_reduce #103 · dp",
        "missing_rank, confidence certain",
    ):
        assert words in text, words
    assert "What is not known" in page(JOBS["deadlock"]).text
    assert "ambiguous: nothing decides between the sides" in page(JOBS["deadlock"]).text


def test_names_from_files_are_escaped() -> None:
    html = to_html(JOBS["hostile"].diagnosis, JOBS["hostile"].trace)
    assert "<script" not in html
    assert "&lt;script&gt;alert(1)" in html
    assert "{{7*7}}" in html
    for char in ("\x1b", "\x07", "\u202e", "\udc80"):
        assert char not in html
    html.encode("utf-8")


def test_timeline_shows_waiting_and_absent_ranks() -> None:
    html = to_html(JOBS["hang"].diagnosis, JOBS["hang"].trace)
    assert len(re.findall(r'<rect class="open"', html)) == 3
    assert len(re.findall(r'<rect class="absent"', html)) == 1
    assert "▸ rank 2" in html
    titles = re.findall(r"<title>(rank 2: [^<]*)", html)
    assert titles[-1] == "rank 2: in load_batch"
    widths = [float(w) for w in re.findall(r'<rect [^>]*width="([\d.]+)"', html)]
    assert all(0 < w <= 960 for w in widths)


def test_1024_ranks_fit_a_ticket() -> None:
    job = samples.hang(1024, culprit=77, steps=8)
    html = to_html(job.diagnosis, job.trace)
    assert len(html.encode()) < 2_000_000
    text = Page(html).text
    assert "1,024 ranks" in text
    assert html.count("<tr") >= 1024
    assert "1008 more ranks are not drawn" in text


@pytest.mark.long
def test_8192_ranks_share_rows() -> None:
    job = samples.hang(8192, culprit=77, steps=1)
    html = to_html(job.diagnosis, job.trace)
    assert len(html.encode()) < 2_000_000
    assert "0–76 78–8191" in Page(html).text


def test_source_around_the_frame(tmp_path: Path) -> None:
    file = tmp_path / "data.py"
    file.write_text("def load_batch():\n    # </pre><script>\n    time.sleep(3600)\n")
    job = samples.hang(loader=(Frame("load_batch", str(file), 3), samples.MAIN))
    html = to_html(replace(job.diagnosis, source_directories=(str(tmp_path),)), job.trace)
    assert '<span class="at"><i>3</i>    time.sleep(3600)</span>' in html
    assert "<script" not in html


def test_wait_graph_puts_the_cause_on_the_right() -> None:
    drawing = wait_graph(JOBS["hang"].diagnosis, {})
    assert drawing is not None
    by_ranks = {b.ranks: b for b in drawing.boxes}
    assert by_ranks[(2,)].x > by_ranks[(0, 1, 3)].x
    assert by_ranks[(2,)].culprit
    circle = wait_graph(JOBS["deadlock"].diagnosis, {"1": "tp0"})
    assert circle is not None
    assert len(circle.arrows) == 3
    assert any("tp0" in a.label for a in circle.arrows)
    assert wait_graph(JOBS["healthy"].diagnosis, {}) is None


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("name", ["hang", "big", "deadlock", "hostile"])
def test_browser_renders_the_page(name: str, tmp_path: Path) -> None:
    """Chromium parses the page, lays it out, and runs nothing."""
    assert BROWSER is not None
    file = tmp_path / "page.html"
    file.write_text(to_html(JOBS[name].diagnosis, JOBS[name].trace), encoding="utf-8")
    image = tmp_path / "page.png"
    command = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1100,900"]
    run = subprocess.run(
        [*command, f"--screenshot={image}", "--dump-dom", file.as_uri()],
        capture_output=True,
        timeout=90,
        check=False,
    )
    if run.returncode != 0 or (not image.exists() and not run.stdout):
        pytest.skip(f"Chromium does not start here: {run.stderr[-200:]!r}")
    dom = Page(run.stdout.decode("utf-8", "replace"))
    assert "script" not in dom.tags
    assert "Timeline" in dom.text


def test_wait_graph_labels_do_not_overlap() -> None:
    """Ranks that wait for each other have arrows both ways, each with a label."""
    diagnosis = samples.deadlock().diagnosis
    edges = [
        WaitEdge(a, b, group, 5, "all_reduce", label)
        for a, b, group, label in (
            (2, 0, "0", "default"), (2, 3, "0", "default"), (0, 2, "1", "dp0"),
            (1, 3, "2", "dp1"), (3, 2, "3", "tp1"), (2, 1, "0", "default"),
        )
    ]  # fmt: skip
    drawn = wait_graph(replace(diagnosis, wait_for=tuple(edges), culprits=(2,)), {})
    assert drawn is not None
    labels = [arrow for arrow in drawn.arrows if arrow.label]
    assert len(labels) == 6
    for i, a in enumerate(labels):
        for b in labels[:i]:
            across = abs(a.label_x - b.label_x) < 6 * max(len(a.label), len(b.label)) / 2
            assert not (across and abs(a.label_y - b.label_y) < 12)
    assert all(arrow.label_y < drawn.height for arrow in labels)
