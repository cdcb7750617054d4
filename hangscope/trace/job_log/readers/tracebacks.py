"""Python tracebacks in a log, where lines of several writers interleave."""

from __future__ import annotations

import re

from hangscope.trace import clean
from hangscope.trace.job_log.evidence.attempt import Attempt
from hangscope.trace.job_log.evidence.notes import LoggedException
from hangscope.trace.job_log.lines.line import NOBODY, LogLine, Writer
from hangscope.trace.model import Frame

_FRAME = re.compile(r'^\s*File "([^"]{1,400})", line (\d{1,8}), in (\S.{0,200}?)\s*$')
_GROUP = re.compile(r"^\s*\+ Exception Group Traceback \(most recent call last\)")
_RAIL = re.compile(r"^\s*(?:\| ?|\+-[+\-]*(?: \d+ -+)?)")
"""What Python draws in front of the tracebacks inside an `ExceptionGroup`."""
_HEAD = re.compile(r"^\s*(?:\^C)*(?P<box>╭─+ )?Traceback \(most recent call last\)")
_OF_RANK = re.compile(r"Traceback \(most recent call last\): \(RANK (\d{1,7})\)")
"""A checkpoint tells all ranks why some of them failed."""
_DURING = "During handling of the above exception, another exception occurred"
_DIRECT_CAUSE = "The above exception was the direct cause of the following exception"
_BOX_FRAME = re.compile(r"^[│|\s]*(\S.{0,400}?):(\d{1,8}) in (\S{1,200})\s*[│|]?\s*$")
_THREAD = re.compile(r"Exception in thread (.{1,80}?):?\s*$")
RAISED = re.compile(
    r"^(?P<type>(?:[A-Za-z_]\w{0,80}\.){0,12}[A-Z]\w{0,120}"
    r"|(?:[a-z_]\w{0,80}\.){1,12}[A-Za-z]\w{0,120})"
    r"(?::\s?(?P<message>.*))?$",
    re.S,
)
_ERROR_ALONE = re.compile(r"(?:[A-Za-z_]\w{0,80}\.){0,12}[A-Z]\w{0,80}(?:Error|Exception): ")
_LAUNCHER_ERRORS = (
    "ChildFailedError", "SignalException", "CalledProcessError", "ProcessRaisedException",
    "ProcessExitedException",
)  # fmt: skip
_GROUP_ARGUMENT = re.compile(
    r"\b(?:(?:process_)?group|pg)\s*=\s*(?!None\b|(?:\w+\.)*(?:GroupMember|group)\.WORLD\b)"
    r"(?:(?P<name>(?:\w+\.){0,8}\w+)\s*[,)]|[\w(\[])"
)
_ANY_GROUP = frozenset({"group", "process_group", "pg", "g", "comm"})
"""Parameter names that a helper may use for any group."""
_OF_TORCH = re.compile(r"[/\\]torch[/\\]")
_CARETS = re.compile(r"[\s^~]+")
WORDS = (
    "Traceback (most recent", "Exception in thread ", _DURING, _DIRECT_CAUSE, "Error: ",
    "Exception: ",
)  # fmt: skip
LOOSE = ('", line ',)
"""In every frame."""
HEADS = ("Traceback", "Exception in thread ", "Error:", "Exception:", "Exception Group", *LOOSE)
"""Beginnings of what is read here."""
_PROGRESS = re.compile(
    r"\b(?:step|iter(?:ation)?|epoch|batch|loss|lr|grad_norm|tokens|samples|throughput)s?\b.{0,40}?\d",
    re.I,
)
_OF_AN_END = re.compile(
    r"error|exception|fail|abort|crash|exit|stop|kill|interrupt|final|summary|finish|terminat|"
    r"\bsav(?:e|ing)|wandb|%\|",
    re.I,
)
"""Words of handlers that run while a process ends; a progress bar is drawn once more then."""
_ASCENDS = re.compile(r"\s*E[A-Z]\d{4}: ")
"""Ascend's libraries state the reason on the lines after the exception's."""
_LINES_TO_ITS_FRAMES, _LINES_TO_ITS_END = 20, 400
"""A traceback that has not got this far by then, among the lines of others, is abandoned."""
_MAX_FRAMES = 128
_MAX_MESSAGE_LINES = 4


class Tracebacks:
    """Follows tracebacks line by line, one per writer, because writers interleave."""

    def __init__(self) -> None:
        self._open: dict[Writer, LoggedException] = {}
        self._closed: dict[Writer, tuple[LoggedException, int]] = {}
        self._thread: dict[Writer, str] = {}
        self._last: dict[Writer, LoggedException] = {}
        self._causes: dict[Writer, LoggedException] = {}
        """What the next traceback was raised from."""
        self._handled: dict[Writer, LoggedException] = {}
        """What was being handled when the next traceback was raised."""
        self._boxed: set[Writer] = set()
        """Writers inside a box that the ``rich`` library draws around a traceback."""
        self._grouped: set[Writer] = set()
        self._printed: dict[Writer, LoggedException] = {}
        """The newest exception of each writer that may go on after it."""
        self._loose = NOBODY, LoggedException()
        """The newest frames without a head and an end, and whose they are."""
        self.inside = 0
        """The newest line inside a traceback, before the one with the exception."""

    def follows(self, line: LogLine) -> bool:
        """Whether the line may continue a traceback of its writer."""
        if line.excepthook:
            return True
        if not (self._open or self._closed or self._grouped or self._printed):
            return False
        key = line.writer
        following = (self._open, self._closed, self._grouped, self._printed)
        return any(key in writers for writers in following)

    def read(self, line: LogLine, attempt: Attempt) -> bool:
        """Record one line of a traceback. Returns whether it was one."""
        key = line.writer
        line = self._without_rail(key, line)
        if self._links(key, line.text):
            return True
        head = _HEAD.match(line.text)
        if head:
            self._begin(key, line, boxed=bool(head["box"]))
            return True
        current = self._open.get(key)
        if current is None:
            self._last_line_alone(key, line, attempt)
            self._goes_on(key, line)
            self._message_tail(key, line)
            return False
        if self._is_body(key, current, line.text):
            self.inside = line.number
            return True
        raised = RAISED.match(line.text.strip()) if current.frames else None
        if current.beheaded and not (line.excepthook or _ERROR_ALONE.match(line.text.strip())):
            self._loose = key, self._open.pop(key)  # what others print does not come between
            return False
        if raised is None:
            patience = _LINES_TO_ITS_END if current.frames else _LINES_TO_ITS_FRAMES
            if line.number - current.line > patience:
                del self._open[key]
            return False
        self._end(key, current, raised, line.number)
        if current.kind not in _LAUNCHER_ERRORS:
            self._closed[key] = (current, line.number)
            _file(current, line, attempt)
        return False  # other readers may understand the message

    def read_loose(self, line: LogLine, attempt: Attempt) -> bool:
        """Record a frame to which no head is known. Returns whether the line was one."""
        key = line.writer
        if _FRAME.match(line.text) is None or key in self._open:
            return False
        self._begin(key, line, boxed=False)
        self._open[key].beheaded = True
        return self._is_body(key, self._open[key], line.text)

    def finish(self, attempt: Attempt) -> None:
        """Of a log that tells nothing else, the traceback that is cut off is all there is."""
        for writer, trouble in [*self._open.items(), self._loose]:
            if not trouble.frames or attempt.tells():
                continue
            trouble.frames.reverse()
            trouble.of_rank = writer.rank
            if not trouble.beheaded:
                trouble.type_name = "an exception whose last line is cut off"
            attempt.raised.anonymous.append(trouble)

    def _without_rail(self, key: Writer, line: LogLine) -> LogLine:
        """The line as it would look outside an `ExceptionGroup`."""
        if _GROUP.match(line.text):
            self._grouped.add(key)
            return line.saying(line.text.replace("+ Exception Group ", "", 1))
        if key in self._grouped and _RAIL.match(line.text):
            return line.saying(_RAIL.sub("", line.text))
        self._grouped.discard(key)
        return line

    def _links(self, key: Writer, text: str) -> bool:
        """Record how the next traceback relates to the last. Returns whether that was all."""
        thread = _THREAD.search(text)
        if thread:
            self._thread[key] = clean.name(thread.group(1))
        for words, links in ((_DIRECT_CAUSE, self._causes), (_DURING, self._handled)):
            if key in self._last and words in text:
                links[key] = self._last[key]
                return True
        return False

    def _begin(self, key: Writer, line: LogLine, *, boxed: bool) -> None:
        (self._boxed.add if boxed else self._boxed.discard)(key)
        of_rank = _OF_RANK.search(line.text)
        self._open[key] = LoggedException(
            at_ns=line.at_ns,
            line=line.number,
            uncaught=line.excepthook,
            thread_name=self._thread.pop(key, "MainThread"),
            of_rank=int(of_rank[1]) if of_rank else None,
        )
        self._closed.pop(key, None)

    def _is_body(self, key: Writer, current: LoggedException, text: str) -> bool:
        """Record a frame or source line. Returns whether the line was one, or part of a box."""
        boxed = key in self._boxed
        if boxed and text.lstrip().startswith("╰"):
            self._boxed.discard(key)
            return True
        frame = (_BOX_FRAME if boxed else _FRAME).match(text)
        if frame:
            file, number, name = frame.groups()
            if len(current.frames) < _MAX_FRAMES:
                current.frames.append(Frame(clean.name(name), clean.name(file), int(number)))
        elif boxed:
            return True
        elif text.startswith((" ", "\t")) and not text.lstrip().startswith("File"):
            _note_group(current, text)  # a source line, or the carets below it
        else:
            return False
        return True

    def _end(self, key: Writer, current: LoggedException, raised: re.Match[str], line: int) -> None:
        """Complete a traceback with its last line and the tracebacks it was raised from."""
        del self._open[key]
        _name(current, raised)
        current.last_line = line
        if not current.uncaught and current.thread_name == "MainThread" and key != NOBODY:
            self._printed[key] = current
        current.frames.reverse()  # innermost first
        self._last[key] = current
        handled, cause = self._handled.pop(key, None), self._causes.pop(key, None)
        if handled is not None:
            # A traceback starts at the frame that catches the exception. The exception raised
            # meanwhile went on through the same callers.
            outside = current.frames[_caught(handled, current) + 1 :]
            handled.frames.extend(outside[: max(_MAX_FRAMES - len(handled.frames), 0)])
            current.during = handled.during or handled
        if cause is not None:
            current.cause = cause.cause or f"{cause.type_name}: {cause.first_line}"[:1000]
            # That of another thread or process starts elsewhere, and says nothing about this one's.
            at = _caught(cause, current)
            if at < len(current.frames):
                most = max(_MAX_FRAMES - len(current.frames), 1)
                current.frames[: at + 1] = cause.frames[:most]

    def _last_line_alone(self, key: Writer, line: LogLine, attempt: Attempt) -> None:
        """The last line of an uncaught exception whose traceback is not in the log."""
        if not line.excepthook or line.rank is None or key in self._closed:
            return
        raised = RAISED.match(line.text) if _ERROR_ALONE.match(line.text) else None
        notes = attempt.of(line.rank)
        if raised is None or notes.exceptions:
            return
        trouble = LoggedException(at_ns=line.at_ns, line=line.number, uncaught=True)
        _name(trouble, raised)
        notes.exceptions.append(trouble)
        self._closed[key] = (trouble, line.number)

    def _goes_on(self, key: Writer, line: LogLine) -> None:
        """Note that a process trains on after what it has printed: it has handled that."""
        trouble = self._printed.get(key)
        if trouble is None or line.excepthook or line.level:
            return
        if 0 < line.at_ns < trouble.at_ns:
            return  # what had been printed before, and stood in a buffer
        if _PROGRESS.search(line.text[:400]) and not _OF_AN_END.search(line.text[:400]):
            self._printed.pop(key)
            trouble.survived = True
            self._closed.pop(key, None)

    def _message_tail(self, key: Writer, line: LogLine) -> None:
        """Continue multi-line messages (Gloo, NCCL) after the line with the type."""
        closed = self._closed.get(key)
        if closed is None:
            return
        trouble, last = closed
        most = _MAX_MESSAGE_LINES * (4 if _ASCENDS.match(line.text) else 1)
        if line.number - last > most or not line.text.strip():
            del self._closed[key]
        elif trouble.message.count("\n") < most and not line.level:
            trouble.message = (trouble.message + "\n" + line.text.strip())[:2000].strip()


def _name(trouble: LoggedException, raised: re.Match[str]) -> None:
    trouble.type_name = clean.name(raised.group("type"))
    trouble.message = clean.prose(raised.group("message") or "", 2000)


def _caught(inner: LoggedException, outer: LoggedException) -> int:
    """Where in the frames of an exception the one that caught another is; past the end if it is
    none of them."""
    caught = (inner.frames[-1].name, inner.frames[-1].filename) if inner.frames else None
    places = [i for i, f in enumerate(outer.frames) if (f.name, f.filename) == caught]
    return min(places, default=len(outer.frames))


def _file(trouble: LoggedException, line: LogLine, attempt: Attempt) -> None:
    """Assign a finished traceback to its rank, if known."""
    if trouble.of_rank is not None:  # repeated by every rank, after the rank's own traceback
        notes = attempt.of(trouble.of_rank)
        notes.exceptions = [t for t in notes.exceptions if t.of_rank is None] + [trouble]
        return
    if line.printed and line.rank is not None and line.rank not in attempt.ranks:
        attempt.quoted.add(line.rank)
    attempt.raises(trouble, line)


def _note_group(trouble: LoggedException, source: str) -> None:
    """Record whether the innermost line of user code passes a group."""
    if not trouble.frames or _CARETS.fullmatch(source):
        return
    if _OF_TORCH.search(trouble.frames[-1].filename) is None:
        found = _GROUP_ARGUMENT.search(source)
        name = (found["name"] or "") if found else ""
        trouble.in_group = found is not None
        last = name.rpartition(".")[2].strip("_")
        trouble.group_name = "" if last in _ANY_GROUP else name
