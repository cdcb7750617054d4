"""Known prefixes of launchers and collectors, and the rank, host or process they state."""

from __future__ import annotations

import calendar
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from hangscope.trace.job_log.lines.host_column import HostColumn, detect_host_column
from hangscope.trace.job_log.lines.line import DRIVER_HOST, LogLine
from hangscope.trace.job_log.lines.workers import rank_of_places

ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]P^_][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-_]")
"""Colours and other escape sequences."""
_OF_TRACEBACK = (
    r"(?:(?:ERROR|CRITICAL|FATAL):? )?(?:Traceback \(most recent|\s{2,}\S|"
    r"(?:[A-Za-z_]\w*\.){0,6}[A-Z]\w*(?:Error|Exception): )"
)
"""What a job itself prints after ``[Rank 3]``; torch's own messages also begin with that."""
_CLOCK = r"\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
# Prefixes of launchers and collectors; stripped repeatedly, the outermost first.
_PREFIXES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("quote", re.compile(r"(?:> ?)+")),
    ("box", re.compile(r"[│┃║|] | {1,4}\| (?=\d{4}-\d\d-\d\d[ T]\d)")),
    ("compose", re.compile(r"(?P<host>[A-Za-z][\w.\-]{0,60}[\-_]\d{1,4}) +\| ")),
    ("stream", re.compile(r"std(?:err|out): |<std(?:err|out)>:\s?")),
    ("role", re.compile(r"\[(?!rank)[A-Za-z_]\w{0,20}?(?P<local_rank>\d{1,4})\]:\s?")),
    (
        "role",  # named "rank", as torchtitan's is; torch's own output continues differently
        re.compile(
            r"\[rank(?P<local_rank>\d{1,4})\]:(?=(?![IWEFVC]\d{4} )[^\s\[]|"
            r"\[(?!\[?[EWIF](?:\d{3,4})? )|  File \"|    \S)"
        ),
    ),
    ("template", re.compile(r"\[(?P<rank>\d{1,6})\]:\s?(?!\[rank|\s*time\s*:)")),
    ("torchx", re.compile(r"\[?[A-Za-z_]\w*?(?P<node>\d+)\|(?P<local_rank>\d+)\]?:\s?")),
    (
        "mpi",
        re.compile(
            r"(?:[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})?"
            r"\[(?:\d+,)?(?:mpirank:)?(?P<task>\d+)(?:,[\w\-]+)?\]<std(?:err|out)>:\s?"
        ),
    ),
    (
        "vllm",
        re.compile(
            r"\(Worker(?:_DP(?P<dp>\d{1,4}))?(?:_PP(?P<pp>\d{1,4}))?_TP(?P<tp>\d{1,4})"
            r"(?:_[A-Z]{2,4}\d{1,4})*? ?(?:_EP(?P<ep>\d{1,4}))? pid=(?P<pid>\d{1,9})\) "
        ),
    ),
    ("ray", re.compile(r"\((?P<ray>[A-Za-z_][\w.]*(?:\[[^\]]*\])?[^()]{0,40}?pid=\d+[^()]*)\) ?")),
    ("pod", re.compile(r"\[pod/(?P<host>[\w.\-]+)/[\w.\-]+\] ")),
    ("labelled", re.compile(r"\[RANK (?P<rank>\d{1,7})\] ")),
    ("printed", re.compile(r"\[rank ?(?P<rank>\d{1,7})\] (?!\[)")),
    ("printed", re.compile(rf"\[Rank (?P<rank>\d{{1,7}})\] (?={_OF_TRACEBACK})")),
    (
        "sglang",
        re.compile(
            r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (?:DP\d+ )?(?:PP(?P<pp1>\d+) )?TP(?P<tp1>\d+)"
            r"(?: EP\d+)?(?: PP(?P<pp2>\d+))?(?: EP\d+)?\] "
        ),
    ),
    (
        "logger",
        re.compile(
            r"(?:ERROR|WARNING|INFO|CRITICAL) (?P<day>\d\d-\d\d) (?P<clock>\d\d:\d\d:\d\d) "
            r"\[[\w./]{1,80}:\d{1,6}\] ?"
        ),
    ),
    ("determined", re.compile(r"[0-9a-f]{8} (?:\[rank=(?P<rank>\d{1,7})\] )?\|\| ")),
    ("milabench", re.compile(r"[\w\-]+\.(?P<host>[\w\-]+)\.\S+ \[std(?:err|out)\] ")),
    ("streamed", re.compile(r"(?P<host>[A-Za-z][\w.\-]{0,62}) \[std(?:err|out)\] ")),
    ("kaggle", re.compile(r"\d+\.\d+s\t\d+\t")),
    ("clock", re.compile(rf"(?:{_CLOCK}|\[{_CLOCK}\]) ")),
    ("seconds", re.compile(r"1\d{9}(?:\.\d{1,9})? ")),
    ("syslog", re.compile(rf"[A-Z][a-z]{{2}} [ \d]\d {_CLOCK} (?=[A-Za-z\d][\w.\-]* \S)")),
    ("iso", re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z (?:std(?:err|out) F )?")),
    (
        "date",  # with what TensorFlow and XLA append to it
        re.compile(
            r"\[?\d{4}[-/](?P<day>\d\d[-/]\d\d)[ T_](?P<clock>\d\d:\d\d:\d\d)(?:[.,]\d+)?"
            r"(?:Z|[+-]\d\d:?\d\d)?\]?(?:: [EWIF] [\w./\-]{1,200}:\d{1,6}\] |\s?)(?=.)"
        ),
    ),
    (
        "host",
        re.compile(r"(?P<host>[A-Za-z][\w.\-]{1,62}): (?=\[rank|\[[EWIF]\d|\[default|[WE]\d{4} )"),
    ),
)
_ANY = re.compile(
    "|".join("(" + re.sub(r"\(\?P<\w+>", "(?:", p.pattern) + ")" for _, p in _PREFIXES)
)
"""The first prefix that matches; its position, counted from 1, is the number of the group."""
_SRUN = re.compile(r" {0,6}(\d{1,6}):(?!\d\d:\d\d) ?")
_BRACKET = re.compile(r"\[(\d{1,6})\] ")
_HEAD = 1 << 17
_MOST_KNOWN = 4
_RAYS = (("rank", re.compile(r"rank=(\d+)")), ("pid", re.compile(r"pid=(\d+)")))
_RAY_IP = re.compile(r"ip=([\w.:\-]+)")
_NUMBERS = ("rank", "task", "pid", "local_rank", "node")


@dataclass(frozen=True, slots=True)
class Style:
    """Which ambiguous prefixes this log uses, judged by its beginning."""

    srun: bool = False
    """Nearly every line starts with ``{task}: ``."""
    bracket: bool = False
    """Nearly every line starts with ``[{rank}] ``, and the numbers recur."""
    hosts: HostColumn = field(default_factory=HostColumn)
    """A further column with which nearly every line starts."""
    year: int = 1970
    """Of its lines, which state none, or one that is not believed."""


def detect_style(head: bytes, year: int) -> Style:
    """Decide whether ``3: `` and ``[3] `` are ranks: only if nearly every line has them."""
    text = ANSI.sub("", head[:_HEAD].decode("utf-8", "replace"))
    lines = [ln for ln in text.splitlines()[:400] if ln.strip()]
    if len(lines) < 4:
        return Style(year=year)
    numbered = []
    for pattern in (_SRUN, _BRACKET):
        found = [m.group(1) for ln in lines if (m := pattern.match(ln))]
        recur = len(set(found)) <= max(len(found) // 2, 1)
        numbered.append(len(found) > 0.8 * len(lines) and recur)
    hosts = detect_host_column(_without_known(line) for line in lines)
    return Style(srun=numbered[0], bracket=numbered[1], hosts=hosts, year=year)


def _without_known(text: str) -> str:
    """A line without the prefixes that are unambiguous in any log."""
    for _ in range(_MOST_KNOWN):
        text = strip_one(LogLine(""), text, Style())[1]
    return text


def strip_one(line: LogLine, text: str, style: Style) -> tuple[LogLine, str]:
    """Strip the outermost prefix: returns the line with what it says, and the remaining text."""
    if line.rank is None:  # a bare number in a log where it denotes a task or rank
        if style.srun and line.node is None and (found := _SRUN.match(text)):
            return line._replace(node=int(found.group(1))), text[found.end() :]
        if style.bracket and line.task is None and (found := _BRACKET.match(text)):
            return line._replace(task=int(found.group(1))), text[found.end() :]
    any_of_them = _ANY.match(text)
    if any_of_them and any_of_them.lastindex:
        name, pattern = _PREFIXES[any_of_them.lastindex - 1]
        found = pattern.match(text)
        assert found is not None
        rest = text[found.end() :]
        if name == "mpi":  # repeated in a line that was written in pieces
            rest = rest.replace(found[0], "")
        return _note(line, name, found, style.year)._replace(printed=name == "printed"), rest
    if line.host is None:
        host, rest = style.hosts.taken_off(text)
        if host is not None and rest.strip():
            return line._replace(host=host), rest
    return line, text


def _note(line: LogLine, name: str, found: re.Match[str], year: int) -> LogLine:
    """The line with what a prefix says, whose groups are called like the fields of a line."""
    groups = found.groupdict()
    told: dict[str, Any] = {k: int(groups[k]) for k in _NUMBERS if groups.get(k)}
    places = rank_of_places(groups)
    if places:
        told["rank"] = int(places)
    if groups.get("host"):
        told["host"] = groups["host"]
    if name == "ray":
        inside = groups["ray"]
        ip, shared = _RAY_IP.search(inside), ", pid=" in inside
        # SkyPilot's is of all processes of a node, and its number is no rank.
        unknown = inside.partition(",")[0] if shared else DRIVER_HOST
        told["host"] = ip[1] if ip else line.host or unknown
        for key, pattern in () if shared else _RAYS:
            if number := pattern.search(inside):
                told[key] = int(number[1])
    if groups.get("clock"):
        month_and_day = int(groups["day"].replace("-", "").replace("/", ""))
        clock = map(int, groups["clock"].split(":"))
        told["at_ns"] = line.at_ns or moment_ns(year, month_and_day, *clock)
    return line._replace(**told)


@lru_cache(maxsize=1024)
def moment_ns(year: int, mdd: int, hour: int, minute: int, second: int) -> int:
    """A time of a log, as in `LogLine.at_ns`; 0 for damage."""
    month, day = divmod(mdd, 100)
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return 0
    try:
        return calendar.timegm((year, month, day, hour, minute, second)) * 10**9
    except (ValueError, OverflowError):
        return 0
