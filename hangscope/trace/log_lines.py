"""Lines of a job log, freed of all that launchers, collectors and terminals put around them.

What `log_blocks` lets through is cleaned, split where two messages were glued together, joined
where a terminal wrapped one, and attributed to a rank as far as the prefixes say.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import BinaryIO

import orjson

from hangscope.trace import clean
from hangscope.trace.log_blocks import BLOCK, MAX_LINE, telling
from hangscope.trace.log_wrap import unwrapped, wrap_width
from hangscope.trace.sniff import log_text


@dataclass(frozen=True, slots=True)
class LogLine:
    """One message: its text without prefixes, and what the prefixes said."""

    text: str
    rank: int | None = None
    """The global rank, from a prefix that means it."""
    local_rank: int | None = None
    node: int | None = None
    host: str | None = None
    pid: int | None = None
    level: str = ""
    file: str = ""
    """C++ source file of a c10 message."""
    at: tuple[int, int, int] | None = None
    """(month, day, second of the day); logs carry no year."""
    number: int = 0
    """Physical line, from 1."""
    printed: bool = False
    """The rank stands in what the job itself printed: no sign of life at the end."""
    excepthook: bool = False
    """Printed by torch's hook for uncaught exceptions (``[rank3]: Traceback ...``)."""
    repeated: bool = False
    """Ray left out others that read alike but for their numbers."""

    def rank_or(self, said: int) -> int:
        """The rank as the prefix has it, else as the message itself says."""
        return self.rank if self.rank is not None else said

    def is_place(self, said: int) -> bool:
        """Whether what the writer calls its rank is its place in a smaller group: then so are the
        other numbers that its message gives."""
        return self.rank is not None and self.rank != said


_C10 = re.compile(
    r"(?:\[rank ?(\d{1,7})[\[\]]{1,2}:)?"
    r"\[([IWEF])(?:(\d{3,4}) (\d\d):(\d\d):(\d\d)\.\d{3,9})? "
    r"([\w.+/\-]{1,200}\.(?:cpp|hpp|cc|cu|h|ts)):\d+\] ?"
)
_PYLOG = re.compile(
    r"(?:\[rank ?(\d{1,7})\]:)?([IWEFVC])(\d{4}) (\d\d):(\d\d):(\d\d)\.\d{6} (\d+) "
    r"([\w.+/\-]{1,300}\.(?:py|cpp|h)):\d+\] ?"
)
_ASCEND = re.compile(
    r"\(PID:(?P<pid>\d{1,9}), Device:-?\d+, RankID:(?:-1|(?P<rank>\d{1,7}))\)|"
    r"\bE[A-Z]\d{4}: \[PID: (?P<pid2>\d{1,9})\]"
)
_RANK_HOOK = re.compile(r"\[rank ?(\d{1,7})\]:(?: |$)")
_DATE = re.compile(r"\[?(\d{4})[-/](\d\d)[-/](\d\d)[ T_](\d\d):(\d\d):(\d\d)(?:[.,]\d+)?Z?\]?\s?")

# Prefixes that launchers and collectors put in front, outermost first; stripped repeatedly.
_PREFIXES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("quote", re.compile(r"(?:> ?)+")),
    ("box", re.compile(r"[│┃║|] ")),
    ("role", re.compile(r"\[(?!rank)[A-Za-z_]\w{0,20}?(?P<local>\d{1,4})\]:\s?")),
    ("template", re.compile(r"\[(?P<rank>\d{1,6})\]:\s?(?!\[rank)")),
    ("torchx", re.compile(r"\[?[A-Za-z_]\w*?(?P<node>\d+)\|(?P<local>\d+)\]?:\s?")),
    ("torchx2", re.compile(r"[A-Za-z_]\w*/(?P<rank>\d{1,6}) (?=\S)")),
    (
        "mpi",
        re.compile(r"\[(?:\d+,)?(?:mpirank:)?(?P<rank>\d+)(?:,[\w\-]+)?\]<std(?:err|out)>:\s?"),
    ),
    ("vllm", re.compile(r"\(Worker_TP(?P<rank>\d{1,4}) pid=\d+\) ")),
    ("ray", re.compile(r"\((?P<ray>[A-Za-z_][\w.]*(?:\[[^\]]*\])?[^()]{0,40}?pid=\d+[^()]*)\) ?")),
    ("pod", re.compile(r"\[pod/(?P<host>[\w.\-]+)/[\w.\-]+\] ")),
    ("labelled", re.compile(r"\[RANK (?P<rank>\d{1,7})\] ")),
    ("printed", re.compile(r"\[rank ?(?P<rank>\d{1,7})\] (?!\[)")),
    ("sglang", re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (?:DP\d+ )?TP(?P<rank>\d+)\] ")),
    ("milabench", re.compile(r"[\w\-]+\.(?P<host>[\w\-]+)\.\S+ \[std(?:err|out)\] ")),
    ("kaggle", re.compile(r"\d+\.\d+s\t\d+\t")),
    ("clock", re.compile(r"\d\d:\d\d:\d\d\.\d{3} ")),
    ("iso", re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z (?:std(?:err|out) [FP] )?")),
)
_SRUN = re.compile(r" {0,6}(\d{1,6}): ?")
_BRACKET = re.compile(r"\[(\d{1,6})\] ")
_HOST = re.compile(r"([A-Za-z][\w.\-]{1,62}): (?=\[rank|\[[EWIF]\d|\[default|Traceback|[WE]\d{4} )")
_RAY_RANK = re.compile(r"rank=(\d+)")
_RAY_PID = re.compile(r"pid=(\d+)")
_RAY_IP = re.compile(r"ip=([\w.:\-]+)")
_REPEATED = re.compile(r" ?\[repeated \d+x across cluster\].*$")
_FULL_WIDTH = str.maketrans("［］【】（）：", "[][]():")
_ENTITY = re.compile(r"&(?:gt|lt|amp|quot|#\d+);")
_NOISE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\u200b\ufeff]")
_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]P^_][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-_]")


@dataclass(frozen=True, slots=True)
class Style:
    """What kind of ambiguous prefix this log has, judged from its beginning."""

    srun: bool = False
    """Nearly every line starts with ``{task}: ``."""
    bracket: bool = False
    """Nearly every line starts with ``[{rank}] `` and the numbers repeat."""


def judge_style(head: bytes) -> Style:
    """Decide whether ``3: `` and ``[3] `` are ranks: only where nearly every line has them."""
    lines = [ln for ln in head.decode("utf-8", "replace").splitlines()[:400] if ln.strip()]
    if len(lines) < 4:
        return Style()
    srun = [m.group(1) for ln in lines if (m := _SRUN.match(ln))]
    bracket = [m.group(1) for ln in lines if (m := _BRACKET.match(ln))]
    return Style(
        srun=len(srun) > 0.8 * len(lines) and len(set(srun)) <= max(len(srun) // 2, 1),
        bracket=len(bracket) > 0.8 * len(lines) and len(set(bracket)) <= max(len(bracket) // 2, 1),
    )


def read_lines(stream: BinaryIO) -> Iterator[LogLine]:
    """The messages of a log that may matter, in order. Memory does not grow with the log."""
    first = stream.read(BLOCK)
    style = judge_style(first)
    if first[:2] in (b"\xff\xfe", b"\xfe\xff"):
        rest = first + stream.read(1 << 28)
        text = rest.decode("utf-16", "replace").encode("utf-8", "replace")
        physical: Iterable[tuple[int, bytes]] = enumerate(text.split(b"\n"), start=1)
    else:
        physical = telling(first, stream)
    for number, text_line in _joined(unwrapped(_cleaned(physical), wrap_width(first), _STARTS)):
        for part in _split_glue(text_line):
            line = _strip(part, style, number)
            if line is not None:
                yield line


def _cleaned(lines: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, str]]:
    for number, raw in lines:
        if raw[:1] == b"{" and b'"' in raw[:40]:
            raw = _unwrap_json(raw)
        text = raw.decode("utf-8", "replace")
        if "\x1b" in text:
            text = _ANSI.sub("", text)
        pieces = [p for p in text.split("\r") if p.strip()] if "\r" in text else [text]
        for piece in pieces:
            if "&" in piece and _ENTITY.search(piece):
                piece = html.unescape(piece)
            if not piece.isascii():
                piece = piece.translate(_FULL_WIDTH)
            piece = _NOISE.sub("", piece)
            if piece.strip():
                yield number, piece


def _unwrap_json(raw: bytes) -> bytes:
    """The message of a line that a collector wrapped as JSON."""
    try:
        text = log_text(orjson.loads(raw))
    except orjson.JSONDecodeError:
        return raw
    return raw if text is None else text.encode("utf-8", "replace")


_STARTS = re.compile(
    r"\s*(?:\[rank ?\d|\[[EWIF]\d{3,4} |\[[EWIF] |[EWIF]\d{4} \d\d:|Traceback"
    r"|Exception raised|frame #|\[default\d|\[hangscope\]|\d{4}-\d\d-\d\d|\(\w+ pid="
    r"|[\w\-.]+:\d+:\d+ \[)"
)
_OPEN = re.compile(
    r"(?:Watchdog caught|Caught collective operation|Work(?:NCCL|HCCL)\()"
    r"(?!.*(?:before\s*timing\s*out|timed\s*out\s*in))",
    re.S,
)
_OPEN_STATUS = re.compile(
    r"(?:detected by watchdog at work|Timeout at NCCL work|Last enqueued NCCL work)"
    r"(?!.*last\s*completed\s*(?:NCCL\s*)?work:\s*-?\d)",
    re.S,
)
_OPEN_MISMATCH = "Detected mismatch between collectives"
_BOTH_SIDES = re.compile(
    r"inconsistent\s*collective:|but\s*Rank\s*\d+\s*is\s*running\s*collective:"
)
_OPEN_LABEL = re.compile(r"\[(?:Rank ?\d*|PG ?[^\]\[]{0,80}|rank\d*)$")
_MAX_JOIN = 8
_LONGEST_PREFIX = 120


def _joined(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Put lines together that a terminal wrapped in the middle of a watchdog message."""
    held: tuple[int, str] | None = None
    absorbed = 0
    for number, text in lines:
        if held is not None:
            if absorbed < _MAX_JOIN and not _STARTS.match(text):
                held = (held[0], held[1].rstrip() + text.rstrip())
                absorbed += 1
            else:
                yield held
                held = None
        if held is None:
            held, absorbed = (number, text), 0
        if not _is_open(held[1]):
            yield held
            held = None
    if held is not None:
        yield held


def _is_open(text: str) -> bool:
    return bool(
        ("ork" in text and (_OPEN.search(text) or _OPEN_STATUS.search(text)))
        or ("Watchdog" in text and _OPEN.search(text))
        or (_OPEN_MISMATCH in text and _is_half_a_mismatch(text))
        or _OPEN_LABEL.search(text.rstrip())
    )


def _is_half_a_mismatch(text: str) -> bool:
    """Whether a comparison of two fingerprints goes on behind the end of this line."""
    found = _BOTH_SIDES.search(text)
    if not found:
        return True
    last = text[found.end() :]
    return "CollectiveFingerPrint(" not in last or last.count("(") > last.count(")")


_RAISING = re.compile(r"\[rank ?\d{1,7}\]: Traceback \(most recent call last\)")


def _split_glue(text: str) -> list[str]:
    """Two c10 messages on one physical line, or one behind a progress bar; a traceback behind the
    question that another rank asks."""
    starts = [m.start() for m in _C10.finditer(text)]
    raising = _RAISING.search(text) if "Traceback" in text and not starts else None
    if raising is not None and raising.start():
        return [text[: raising.start()], text[raising.start() :]]
    if len(starts) <= 1 and (not starts or starts[0] < _LONGEST_PREFIX):
        return [text]
    # A short prefix in front of the first message belongs to it; a long one is another message.
    inner = starts[1:] if starts[0] < _LONGEST_PREFIX else starts
    edges = [0, *inner, len(text)]
    return [text[a:b] for a, b in pairwise(edges) if text[a:b].strip()]


def _strip(text: str, style: Style, number: int) -> LogLine | None:
    """Take the prefixes off, outermost first, and keep what they say."""
    line = LogLine("", number=number)
    rest = text.rstrip()
    for _ in range(12):
        before = rest
        line, rest = _strip_one(line, rest, style)
        if rest == before:
            break
    found = _C10.search(rest)
    if found:
        line = _with_c10(line, found)
        rest = rest[found.end() :]
    else:
        python = _PYLOG.search(rest)
        if python:
            rank, level, mmdd, hour, minute, second, pid, file = python.groups()
            line = replace(
                line,
                rank=int(rank) if rank else line.rank,
                level=level,
                file=file,
                # Before 2.5 and in C++ the number is a thread's.
                pid=int(pid) if len(pid) < 9 and file.endswith(".py") else line.pid,
                at=_moment(int(mmdd), int(hour), int(minute), int(second)),
            )
            rest = rest[python.end() :]
    ascend = _ASCEND.search(rest) if "PID:" in rest else None
    if ascend:
        rank, pid = ascend.group("rank"), int(ascend.group("pid") or ascend.group("pid2"))
        line = replace(line, rank=int(rank) if rank else line.rank, pid=line.pid or pid)
    hook = _RANK_HOOK.match(rest)
    if not hook and not found and "]: " in rest:  # behind a prefix that nobody knows
        hook = _RANK_HOOK.search(rest, 0, _LONGEST_PREFIX)
    if hook:
        line = replace(line, rank=int(hook.group(1)), excepthook=True)
        rest = rest[hook.end() :]
    rest, left_out = _REPEATED.subn("", rest)
    if not rest.strip():
        return None
    if left_out:
        line = replace(line, repeated=True)
    return replace(line, text=clean.prose(rest, MAX_LINE))


def _strip_one(line: LogLine, text: str, style: Style) -> tuple[LogLine, str]:
    if style.srun and line.node is None and line.rank is None:
        found = _SRUN.match(text)
        if found:
            return replace(line, node=int(found.group(1))), text[found.end() :]
    if style.bracket and line.rank is None:
        found = _BRACKET.match(text)
        if found:
            return replace(line, rank=int(found.group(1))), text[found.end() :]
    for name, pattern in _PREFIXES:
        found = pattern.match(text)
        if found:
            return replace(_note(line, found), printed=name == "printed"), text[found.end() :]
    found = _DATE.match(text)
    if found and found.end() < len(text):
        _, month, day, hour, minute, second = map(int, found.groups())
        if line.at is None and month <= 12:
            line = replace(line, at=(month, day, hour * 3600 + minute * 60 + second))
        return line, text[found.end() :]
    found = _HOST.match(text)
    if found:
        return replace(line, host=found.group(1)), text[found.end() :]
    return line, text


def _note(line: LogLine, found: re.Match[str]) -> LogLine:
    groups = found.groupdict()
    if groups.get("ray"):
        inside = groups["ray"]
        rank, pid, ip = (p.search(inside) for p in (_RAY_RANK, _RAY_PID, _RAY_IP))
        return replace(
            line,
            rank=int(rank.group(1)) if rank else line.rank,
            pid=int(pid.group(1)) if pid else line.pid,
            host=ip.group(1) if ip else line.host,
        )
    return replace(
        line,
        rank=int(groups["rank"]) if groups.get("rank") else line.rank,
        local_rank=int(groups["local"]) if groups.get("local") else line.local_rank,
        node=int(groups["node"]) if groups.get("node") else line.node,
        host=groups.get("host") or line.host,
    )


def _with_c10(line: LogLine, found: re.Match[str]) -> LogLine:
    rank, level, mdd, hour, minute, second, file = found.groups()
    return replace(
        line,
        rank=int(rank) if rank else line.rank,
        level=level,
        file=file,
        at=_moment(int(mdd), int(hour), int(minute), int(second)) if mdd else line.at,
    )


def _moment(mdd: int, hour: int, minute: int, second: int) -> tuple[int, int, int] | None:
    month, day = divmod(mdd, 100)
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    return month, day, hour * 3600 + minute * 60 + second
