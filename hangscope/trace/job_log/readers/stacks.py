"""Stacks of processes as py-spy and faulthandler print them, in a log or a file of their own.

They say what a rank was doing; which rank it was comes from the line's prefix, the file's name or
the process id.
"""

from __future__ import annotations

import re

from hangscope.trace import clean
from hangscope.trace.job_log.lines.line import LogLine, Writer
from hangscope.trace.job_log.readers.evidence import Evidence, Seen
from hangscope.trace.model import Frame, ThreadStack

_PROCESS = re.compile(r"^\s*Process (\d{1,9}): (.*)")
_VERSION = re.compile(r"^\s*Python v\d")
_RANK_ARGUMENT = re.compile(r"--(?:node|global)?[_-]?rank[= ](\d{1,7})\b")
_LOCAL_ARGUMENT = re.compile(r"--local[_-]rank[= ](\d{1,4})\b")
_HEADING = re.compile(r"^\W{0,12}(?:\w{1,40}\W{1,3}){0,6}?rank[ :=_#\-]{0,3}(\d{1,7})\b", re.I)
_LONGEST_HEADING = 120
_HEADING_NEAR = 4
"""Lines from what somebody wrote above a dump of py-spy's to its first."""
_SPY_THREAD = re.compile(
    r"^\s*Thread (?P<ident>0x[0-9A-Fa-f]+|\d+) \((?:idle|active)[^)]*\)"
    r"(?:: \"(?P<name>[^\"]*)\")?\s*$"
)
_SPY_FRAME = re.compile(
    r"^\s{2,}(?P<name>\S.{0,200}?) \((?P<file>[^()]{1,400}?):(?P<line>\d{1,8})\)\s*$"
)
_DUMP_THREAD = re.compile(
    r"^\s*(?:(?:Current thread|Thread) (?P<ident>0x[0-9a-f]+)(?: \[[^\]]*\])?|Stack|Traceback) "
    r"\(most recent call first\):"
)
"""Of all threads, of one alone, or of gdb's ``py-bt``."""
_DUMP_FRAME = re.compile(
    r'^\s*File "(?P<file>[^"]{1,400})", line (?P<line>\d{1,8}|\?\?\?),? in '
    r"(?P<name>\S.{0,200}?)\s*$"
)
_PYSTACK_THREAD = re.compile(
    r"^\s*Traceback for thread (?P<ident>\d{1,20}) \([^)]{0,80}\).{0,80}\(most recent call last\):"
)
_PYSTACK_FRAME = re.compile(
    r'^\s*\(Python\) File "(?P<file>[^"]{1,400})", line (?P<line>\d{1,8}), in '
    r"(?P<name>\S.{0,200}?)\s*$"
)
"""``pystack remote`` lists the innermost frame last."""
_THREADS = (_SPY_THREAD, _DUMP_THREAD, _PYSTACK_THREAD)
_FRAMES = (_SPY_FRAME, _DUMP_FRAME, _PYSTACK_FRAME)
_SECTION = re.compile(r"^\s*(?:=== |<h2>)Rank (\d{1,7}): \S+(?: ===|</h2>)")
"""How torch's debug server parts the ranks (``stacks_*.txt``, ``pyspy_dump_*.txt``)."""
_GDB_FRAME = re.compile(r"^#\d+\s+(?:0x[0-9a-f]+ in \S.{0,4000}\)|\S+ \(.*\) (?:from|at) \S)")
_TABLES = " FR Trace ==="
WORDS = (_TABLES,)
FORM = re.compile(
    r"^\s*(?:Process \d|Python v\d|(?:Current )?Thread |Stack \(|"
    r"Traceback (?:for|\(most recent call f)|"
    r"=== Rank \d|<h\d>Rank \d|#\d)|"
    rf"^(?=.{{0,{_LONGEST_HEADING}}}\Z).*rank",
    re.I | re.S,
)
_MAX_FRAMES = 128
_MAX_THREADS = 512
_MAX_DUMPS = 4096
_MOST_FRAMES = 500_000
"""In one log; what comes after them is not kept."""
_NEAR = 400
"""Lines without any of a stack after which a dump is over."""


class Stacks:
    """Follows dumps line by line, one for every writer."""

    def __init__(self) -> None:
        self._open: dict[Writer, Seen] = {}
        self._line: dict[Writer, int] = {}
        self._section: int | None = None
        self._heading: tuple[int, int] | None = None
        """(line, rank) of the newest short line that names a rank."""
        self._process_above: tuple[int, re.Match[str]] | None = None
        """(line, match) of a line that may be the head of a dump of py-spy's."""
        self._left = _MOST_FRAMES

    def follows(self, line: LogLine) -> bool:
        """Whether the line may belong to a dump that has begun."""
        return bool(self._open)

    def read(self, line: LogLine, at_ns: int, evidence: Evidence) -> bool:
        """Note one line of a dump. Returns whether it was one."""
        text = line.text
        section = _SECTION.match(text)
        if section:
            self._section = int(section.group(1))
            evidence.of(self._section)
            return True
        if line.rank is None and self._section is not None:
            line = line._replace(rank=self._section)
        key = line.writer
        process = self._head(line)
        if process is not None:
            self._process(key, line, process, evidence)
            return True
        if len(text) <= _LONGEST_HEADING and "ank" in text.lower():
            heading = _HEADING.match(text)
            self._heading = (line.number, int(heading.group(1))) if heading else self._heading
        thread = next((m for p in _THREADS if (m := p.match(text))), None)
        if thread:
            self._thread(key, line, thread, at_ns, evidence)
            return True
        evidence.tables |= _TABLES in text
        current = self._open.get(key)
        if current is None or not current.threads:
            evidence.native_stacks |= bool(_GDB_FRAME.match(text))
            return False
        return self._frame(key, line, current)

    def _head(self, line: LogLine) -> re.Match[str] | None:
        """py-spy's head of a dump, if the line completes one. What does not call itself python in
        its first line (Ray's workers have names of their own) does in the second.
        """
        found, before = _PROCESS.match(line.text), self._process_above
        self._process_above = (line.number, found) if found else None
        if found and "python" in found.group(2).lower():
            return found
        if before is not None and before[0] == line.number - 1 and _VERSION.match(line.text):
            return None if "python" in before[1].group(2).lower() else before[1]
        return None

    def _process(
        self, key: Writer, line: LogLine, found: re.Match[str], evidence: Evidence
    ) -> None:
        """py-spy's head of a dump: the process and its command line, which may tell the rank."""
        self._begin(key, line, evidence)
        seen, command = self._open[key], found.group(2)
        seen.pid = int(found.group(1))
        argument, local = _RANK_ARGUMENT.search(command), _LOCAL_ARGUMENT.search(command)
        if seen.rank is None:
            seen.rank = int(argument.group(1)) if argument else self._named_above(line)
        if seen.rank is None and seen.local_rank is None and local:
            seen.local_rank = int(local.group(1))

    def _frame(self, key: Writer, line: LogLine, current: Seen) -> bool:
        """Add a frame to the newest thread of a dump. Returns whether the line was one."""
        if line.number - self._line[key] > _NEAR:
            del self._open[key]
            return False
        frame = next((m for p in _FRAMES if (m := p.match(line.text))), None)
        if frame is None:
            return False
        self._line[key] = line.number
        frames, number = current.threads[-1][2], frame.group("line")
        if len(frames) < _MAX_FRAMES and self._left > 0:
            self._left -= 1
            name, file = clean.name(frame.group("name")), clean.name(frame.group("file"))
            found = Frame(name, file, int(number) if number.isdecimal() else 0)
            frames.insert(0 if frame.re is _PYSTACK_FRAME else len(frames), found)
        return True

    def _named_above(self, line: LogLine) -> int | None:
        """The rank that a line right above a dump names, where somebody has collected dumps."""
        if self._heading is None or line.number - self._heading[0] > _HEADING_NEAR:
            return None
        return self._heading[1]

    def _begin(self, key: Writer, line: LogLine, evidence: Evidence) -> None:
        seen = Seen(rank=line.rank, local_rank=line.local_rank, pid=line.pid, machine=line.machine)
        self._open[key] = seen
        self._line[key] = line.number
        if len(evidence.stacks) < _MAX_DUMPS:
            evidence.stacks.append(seen)

    def _thread(
        self, key: Writer, line: LogLine, found: re.Match[str], at_ns: int, evidence: Evidence
    ) -> None:
        groups = found.groupdict()
        spy = "name" in groups
        current = self._open.get(key)
        ident = found["ident"] or ""
        repeated = current is not None and any(t[1] == ident for t in current.threads)
        if current is None or repeated or line.number - self._line[key] > _NEAR:
            self._begin(key, line, evidence)  # a newer dump of the same process
            current = self._open[key]
        self._line[key] = line.number
        current.at_ns, current.spy = at_ns, spy
        if len(current.threads) < _MAX_THREADS:
            current.threads.append((clean.name(groups.get("name") or ""), ident, []))


def threads_of(seen: Seen) -> tuple[ThreadStack, ...]:
    """The stacks of one dump; faulthandler lists the main thread last, py-spy names it."""
    source = "py-spy" if seen.spy else "signal"
    with_frames = [t for t in seen.threads if t[2]]
    named = any(name == "MainThread" for name, _, _ in with_frames)
    found = []
    for place, (name, ident, frames) in enumerate(with_frames):
        last = place == len(with_frames) - 1 if not seen.spy else place == 0
        main = name == "MainThread" if named else last
        shown = "MainThread" if main else name or ident
        found.append(ThreadStack(shown, main, tuple(frames), seen.at_ns, source))
    return tuple(found)
