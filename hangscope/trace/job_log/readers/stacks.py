"""Stacks printed by py-spy and faulthandler, in a log or in a file of their own.

They show what a rank was doing. The rank comes from the line's prefix, the file's name or the pid.
"""

from __future__ import annotations

import re

from hangscope.trace import clean
from hangscope.trace.job_log.evidence.attempt import Attempt
from hangscope.trace.job_log.evidence.notes import ProcessStacks
from hangscope.trace.job_log.lines.line import LogLine, Writer
from hangscope.trace.job_log.lines.workers import is_title_of_helper, rank_of_title
from hangscope.trace.job_log.readers.native import NativeFrames
from hangscope.trace.model import Frame, ThreadStack

_PROCESS = re.compile(r"^\s*Process (\d{1,9}): (.*)")
_VERSION = re.compile(r"^\s*Python v\d")
_RANK_ARGUMENT = re.compile(r"--(?:node|global)?[_-]?rank[= ](\d{1,7})\b")
_LOCAL_ARGUMENT = re.compile(r"--local[_-]rank[= ](\d{1,4})\b")
_HEADING = re.compile(r"^\W{0,12}(?:\w{1,40}\W{1,3}){0,6}?rank[ :=_#\-]{0,3}(\d{1,7})\b", re.I)
_NUMBERED = re.compile(r"^\W{0,12}(?P<what>process|worker|proc) ?#?(?P<n>\d{1,7})\b(?!:)", re.I)
"""Whose dump follows, by a number that nobody calls a rank."""
_LONGEST_HEADING = 120
_HEADING_NEAR = 4
"""Maximum distance from a heading above a py-spy dump to its first line."""
_SPY_THREAD = re.compile(
    r"^.{0,200}?Thread (?:(?P<ident>0x[0-9A-Fa-f]+|\d+) )?\((?:idle|active)[^)]*\)"
    r"(?::? \"(?P<name>[^\"]*)\")?\s*$"
)
_SPY_FRAME = re.compile(
    r"^\s{2,}(?P<name>\S.{0,200}?) \((?P<file>[^()]{1,400}?):(?P<line>\d{1,8})\)\s*$"
)
_DUMP_THREAD = re.compile(
    r"^\s*(?:(?:Current thread|Thread) (?P<ident>0x[0-9a-f]+)(?: \[[^\]]*\])?|Stack|Traceback) "
    r"\(most recent call first\):"
)
"""Of all threads, of a single one, or of gdb's ``py-bt``."""
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
"""How torch's debug server separates ranks (``stacks_*.txt``, ``pyspy_dump_*.txt``)."""
FORM = re.compile(
    r"^\s*(?:(?:\* +)?\d{1,5} +Thread 0x|Process \d|Python v\d|(?:Current )?Thread |Stack \(|"
    r"Traceback (?:for|\(most recent call f)|"
    r"=== Rank \d|<h\d>Rank \d|#\d|\(C\) File|frame #\d+: 0x)|"
    r"Thread (?:\w+ )?\((?:idle|active)|"
    rf"^(?=.{{0,{_LONGEST_HEADING}}}\Z).*rank",
    re.I | re.S,
)
HEADS = (
    "most recent call first", "Traceback for thread", "MainThread", "Python v", "=== Rank ",
    "h0>Rank ", "#0  ", "Thread 0x", "stop reason = ", "(idle): \"", "(active): \"",
)  # fmt: skip
_MAX_FRAMES = 128
_MAX_THREADS = 512
_MAX_DUMPS = 4096
_MOST_FRAMES = 500_000
"""Maximum per log; later ones are dropped."""
_NEAR = 400
"""After this many lines without a stack, a dump is over."""


class Stacks:
    """Follows dumps line by line, one per writer."""

    def __init__(self) -> None:
        self._open: dict[Writer, ProcessStacks] = {}
        self._line: dict[Writer, int] = {}
        self._section: int | None = None
        self._heading: tuple[int, int] | None = None
        """(line, rank) of the newest short line that mentions a rank."""
        self._numbered: tuple[int, str] | None = None
        """(line, name) of the newest heading that numbers a process."""
        self._process_above: tuple[int, re.Match[str]] | None = None
        """(line, match) of a line that may be the head of a py-spy dump."""
        self._native = NativeFrames()
        self._left = _MOST_FRAMES

    def follows(self, line: LogLine) -> bool:
        """Whether the line may continue a dump."""
        return bool(self._open)

    def read(self, line: LogLine, attempt: Attempt) -> bool:
        """Record one line of a dump. Returns whether it was one."""
        text = line.text
        section = _SECTION.match(text)
        if section:
            self._section = int(section.group(1))
            attempt.of(self._section)
            return True
        if line.rank is None and self._section is not None:
            line = line._replace(rank=self._section)
        key = line.writer
        process = self._head(line)
        if process is not None:
            self._process(key, line, process, attempt)
            return True
        if len(text) <= _LONGEST_HEADING and "ank" in text.lower():
            heading = _HEADING.match(text)
            if heading:
                self._heading = (line.number, int(heading.group(1)))
                self._open.pop(key, None)  # whatever follows is another one's
        numbered = _NUMBERED.match(text) if len(text) <= _LONGEST_HEADING else None
        if numbered:
            self._numbered = (line.number, f"process {numbered['n']}")
            self._open.pop(key, None)
        thread = next((m for p in _THREADS if (m := p.match(text))), None)
        if thread:
            self._thread(key, line, thread, attempt)
            return True
        current = self._open.get(key)
        if current is None or not current.threads:
            return self._native.read(line, attempt) and False
        return self._frame(key, line, current, attempt)

    def _head(self, line: LogLine) -> re.Match[str] | None:
        """The head of a py-spy dump, if the line completes one.

        If the first line does not mention python (Ray renames its workers), the second line does.
        """
        found, before = _PROCESS.match(line.text), self._process_above
        self._process_above = (line.number, found) if found else None
        if found and "python" in found.group(2).lower():
            return found
        if before is not None and before[0] == line.number - 1 and _VERSION.match(line.text):
            return None if "python" in before[1].group(2).lower() else before[1]
        return None

    def _process(self, key: Writer, line: LogLine, found: re.Match[str], attempt: Attempt) -> None:
        """py-spy's heading: the process and its command line, which may state the rank."""
        seen, command = self._begin(key, line, attempt), found.group(2)
        seen.pid = int(found.group(1))
        title = f" ({command[:_LONGEST_HEADING].strip()})" if "::" in command else ""
        self._native.begin()
        self._native.process = f"process {seen.pid}{title}"
        argument, local = _RANK_ARGUMENT.search(command), _LOCAL_ARGUMENT.search(command)
        if seen.rank is None:
            seen.rank = int(argument.group(1)) if argument else self._named_above(line)
        if rank_of_title(command) is not None or is_title_of_helper(command):
            seen.called = command[:_LONGEST_HEADING]
        if seen.rank is None and seen.local_rank is None and local:
            seen.local_rank = int(local.group(1))

    def _frame(self, key: Writer, line: LogLine, current: ProcessStacks, attempt: Attempt) -> bool:
        """Add a frame to a dump's newest thread. Returns whether the line was one."""
        if line.number - self._line[key] > _NEAR:
            del self._open[key]
            return False
        frame = next((m for p in _FRAMES if (m := p.match(line.text))), None)
        if frame is None:
            return self._native.read(line, attempt)
        self._line[key] = line.number
        frames, number = current.threads[-1][2], frame.group("line")
        if len(frames) < _MAX_FRAMES and self._left > 0:
            self._left -= 1
            name, file = clean.name(frame.group("name")), clean.name(frame.group("file"))
            found = Frame(name, file, int(number) if number.isdecimal() else 0)
            frames.insert(0 if frame.re is _PYSTACK_FRAME else len(frames), found)
        return True

    def _named_above(self, line: LogLine) -> int | None:
        """The rank in a line right above a dump, as in collections of dumps."""
        if self._heading is None or line.number - self._heading[0] > _HEADING_NEAR:
            return None
        return self._heading[1]

    def _begin(self, key: Writer, line: LogLine, attempt: Attempt) -> ProcessStacks:
        seen = ProcessStacks(line.rank, line.local_rank, line.pid, line.machine)
        if self._numbered is not None and line.number - self._numbered[0] <= _HEADING_NEAR:
            seen.called = self._numbered[1]
        if seen.rank is None and seen.pid is None:
            seen.rank = self._named_above(line)
        self._open[key] = seen
        self._line[key] = line.number
        if len(attempt.stacks) < _MAX_DUMPS:
            attempt.stacks.append(seen)
        return seen

    def _thread(self, key: Writer, line: LogLine, found: re.Match[str], attempt: Attempt) -> None:
        current, ident = self._open.get(key), found["ident"] or ""
        is_current = found[0].lstrip().startswith("Current")
        self._native.begin()
        repeated = current is not None and any(t[1] == ident for t in current.threads)
        if current is not None and is_current:
            repeated |= current.current_seen  # each process has one
        if current is None or repeated or line.number - self._line[key] > _NEAR:
            current = self._begin(key, line, attempt)  # a newer dump of the same process
        self._line[key] = line.number
        current.current_seen |= is_current
        current.at_ns, current.spy = line.at_ns, found.re is _SPY_THREAD
        if len(current.threads) < _MAX_THREADS:
            name = found["name"] or "" if current.spy else ""
            current.threads.append((clean.name(name), ident, []))


def threads_of(seen: ProcessStacks) -> tuple[ThreadStack, ...]:
    """The stacks of one dump; faulthandler lists the main thread last, py-spy names it.

    Where the main thread waits in the backward pass, a thread of autograd's runs hooks for it.
    py-spy shows that without a name, and its frames continue the main thread's.
    """
    source = "py-spy" if seen.spy else "signal"
    with_frames = [t for t in seen.threads if t[2]]
    named = any(name == "MainThread" for name, _, _ in with_frames)
    engine = [frames for name, _, frames in with_frames if seen.spy and named and not name]
    found = []
    # Nothing calls the main thread of what is pasted in part; it alone runs a module.
    modules = [i for i, thread in enumerate(with_frames) if thread[2][-1].name == "<module>"]
    for place, (name, ident, frames) in enumerate(with_frames):
        last = place == len(with_frames) - 1 if not seen.spy else place == 0 and not name
        main = name == "MainThread" if named else ([place] == modules or (last and not modules))
        shown = "MainThread" if main else name or ident
        inner = engine[0] if main and len(engine) == 1 and _in_backward(frames[0]) else []
        found.append(ThreadStack(shown, main, (*inner, *frames), seen.at_ns, source))
    return tuple(found)


def _in_backward(frame: Frame) -> bool:
    return "backward" in frame.name and "torch/autograd/" in frame.filename
