"""Native frames of debuggers (gdb, pystack): in which call of a library a process stands.

Of each thread the calls of communication libraries, CUDA and locks are kept. The outermost call
that tells a purpose says what the process is about, the innermost where it is.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import partial

from hangscope.trace import clean, operations
from hangscope.trace.job_log.evidence.attempt import Attempt
from hangscope.trace.job_log.lines.line import LogLine
from hangscope.trace.model import ClaimDetails

_GDB = re.compile(
    r"^\s*#(?P<n>\d{1,4})\s+(?:0x[0-9a-f]+ in )?(?P<name>[A-Za-z_][\w:~]{0,200})(?:<.{0,400}?>)?"
    r" ?\((?:.{0,4000}?\)(?: (?:from|at) (?P<where>\S+))?|[^()]{0,4000})\s*$"
)
"""Its arguments may go on in the next line, or be cut off."""
_PYSTACK = re.compile(
    r'^\s*\(C\) File "(?P<file>[^"]{1,400})", line (?P<line>\d{1,8}), in '
    r"(?P<name>[A-Za-z_][\w:~]{0,200}).{0,400}?(?: \((?P<where>[^()]{1,400})\))?\s*$"
)
_SPY = re.compile(
    r"^\s{2,}(?P<name>[A-Za-z_][\w:~]{0,200}) \((?P<where>[\w.+\-]{1,100}\.so[\w.]*)\)\s*$"
)
"""Of ``py-spy dump --native``."""
_LLDB = re.compile(
    r"^\s*frame #(?P<n>\d{1,4}): 0x[0-9a-f]+ (?P<where>[^`\s]{1,200})`(?:void )?"
    r"(?P<name>[A-Za-z_][\w:~]{0,200})"
)
_LISTED = re.compile(
    r"^\s*(?:\* +)?\d{1,5} +Thread 0x\w+ \(LWP \d+\).{0,40}? (?:0x[0-9a-f]+ in )?"
    r"(?P<name>[A-Za-z_][\w:~]{0,200})(?P<where>@@\w[\w.]{0,40})? \("
)
"""Of gdb's ``info threads``: where each thread is, and no callers."""
_NATIVE = re.compile(
    r"^(?:p?nccl[A-Z]\w+|P?MPI_\w+|Hccl\w+|ccl_\w+|(?:c10d?|gloo|ccl)::[\w:~]+|"
    r"cu(?:da)?\w*[Ss]ynchronize\w*|\w*pthread_\w*lock\w*|__lll_lock_wait\w*|initTransportsRank\w*|bootstrap[A-Z]\w+)$"
)
_OF_HELPERS = re.compile(
    r"Proxy|Service|atchdog|main_loop|(?<!ncclAsync)Thread(?!Pool)|persistent|eartbeat"
)
"""Threads of the libraries themselves, which poll in every process. Those that create communicators
(``ncclAsyncThreadMain``) do the work of a caller."""
_CREATES = re.compile(
    r"ncclComm(?:Init|Split|Shrink)|NCCLComm::(?:create|split)|initTransportsRank|bootstrap|"
    r"HcclCommInit|connectFullMesh|ncclTransport\w*Connect"
)
_COLLECTIVE = re.compile(
    r"(?:^p?nccl|^P?MPI_I?|^Hccl|^ccl_|^ccl::v\d+::|ProcessGroup\w*::_?|gloo::|ops::)"
    r"(?P<op>all_?reduce|all_?gather|reduce_?scatter|broadcast|bcast|all_?to_?all|barrier|reduce|"
    r"gather|scatter|send|recv)",
    re.I,
)
_BARE = {"allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter",
         "alltoall": "all_to_all", "bcast": "broadcast"}  # fmt: skip
_FORMS = (_GDB, _PYSTACK, _SPY, _LLDB, _LISTED)
_MOST = 64


class NativeFrames:
    """Follows the backtraces of a log."""

    def __init__(self) -> None:
        self._calls: list[tuple[str, str]] = []
        """(function, library or file) of the thread being read, innermost first."""
        self._told: Counter[str] = Counter()
        self._whose: dict[str, str] = {}
        self.process = ""
        """Whose threads follow, if a heading says so."""

    def read(self, line: LogLine, attempt: Attempt) -> bool:
        """Record a native frame. Returns whether the line was one."""
        found = next((m for p in _FORMS if (m := p.match(line.text))), None)
        if found is None:
            return False
        numbered = found.groupdict().get("n")
        attempt.native_stacks = True
        attempt.at_end.setdefault("native", partial(self._finish, line, attempt))
        if numbered == "0" or found.re is _LISTED:
            self.begin()
        if _NATIVE.match(found["name"]) and len(self._calls) < _MOST:
            where = clean.name((found["where"] or "").rpartition("/")[2])
            call = clean.name(found["name"]), where
            self._calls.insert(0 if found.re is _PYSTACK else len(self._calls), call)
        return True

    def begin(self) -> None:
        """The next frame is another thread's."""
        if self._calls and not any(_OF_HELPERS.search(name) for name, _ in self._calls):
            text = _words(self._calls)
            self._told[text] += 1
            self._whose[text] = self.process
        self._calls = []

    def _finish(self, line: LogLine, attempt: Attempt) -> None:
        self.begin()
        for text, count in self._told.items():
            one = f"{self._whose[text] or 'a process'} stands"
            who = one if count == 1 else f"{count} processes or threads stand"
            attempt.claim(
                "other", line.saying(f"{who} in {text}"), certain=False, words=text,
                details=ClaimDetails(stands=True),
            )  # fmt: skip


def _words(calls: list[tuple[str, str]]) -> str:
    """What the calls of one thread, innermost first, tell."""
    creates = next((call for call in reversed(calls) if _CREATES.search(call[0])), None)
    ops = [(call, m["op"].lower()) for call in calls if (m := _COLLECTIVE.search(call[0]))]
    op = _BARE.get(ops[-1][1].replace("_", ""), operations.canonical(ops[-1][1])) if ops else ""
    plain = [call for call in calls if "lock" not in call[0]]
    told = creates or (ops[-1][0] if ops else (plain or calls)[-1])
    text = _call(told)
    if creates:
        text += ", creating a communicator" + (f" for {op}" if op else "")
    elif op and op.replace("_", "") not in told[0].lower().replace("_", ""):
        text += f" ({op})"
    return text + (f", at {_call(calls[0])}" if calls[0] != told else "")


def _call(call: tuple[str, str]) -> str:
    return call[0] + (f" ({call[1]})" if call[1] else "")
