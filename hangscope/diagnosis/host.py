"""What each rank's process tells by itself: how it ended, what it is doing, who tore whom down."""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from hangscope.diagnosis.embedded import failed_ranks
from hangscope.diagnosis.stacks import innermost
from hangscope.diagnosis.working import newest_threads, working_stack
from hangscope.trace.model import CAUSED_BY, Claim, ExceptionFacts, RankFacts, Stack, Trace

_SIGKILL, _SIGTERM, _SIGABRT, _SIGINT, _SIGHUP = 9, 15, 6, 2, 1
_OWN_SIGNALS = (4, 7, 8, 11)
"""SIGILL, SIGBUS, SIGFPE, SIGSEGV: nobody sends these from outside."""
UNSEEN = "a signal nobody saw"
TOGETHER_NS = 5_000_000_000
_TWIN_NS = 2_000_000_000
_NOTICED_NS = 100_000_000
"""A peer's connection may break before the end that breaks it is noticed; a launcher that answers
a failure needs longer."""

_SECONDARY = re.compile(
    r"connection (?:was )?(?:closed|reset|refused|aborted)|broken pipe|socket closed|"
    r"timed out waiting \d+ ?ms for (?:recv|send)|"
    r"timed? ?out.{0,40}(?:recv|send|collective|barrier)|"
    r"timed out in (?:blocking wait|call to wait)|"
    r"watchdog|communicator was aborted|remote process exited|ncclremoteerror|ncclsystemerror|"
    r"comm ?remote ?error|comm aborted due to timeout|"
    r"hccl.{0,60}(?:timeout|error code is)|getting socket times out|the notify register|"
    r"unhandled system error|client socket has (?:timed out|failed)|"
    r"application timeout caused pair closure|"
    r"gloo.{0,80}(?:peer|pair|transport|timed? ?out|timeout)|"
    r"monitored ?barrier|wait timeout after|"
    r"wait_?for_?(?:store|key)|recvvalue failed|sendbytes failed|failed to recv, got 0 bytes|"
    r"signalexception|got signal|rendezvous|store.{0,40}(?:closed|shut ?down|timed? ?out|timeout)|"
    r"collective operation timeout|has been aborted|peer process (?:died|exited)|"
    r"op\.preamble\.length|received data size doesn't match|"
    r"detected mismatch between collectives on ranks",
    re.IGNORECASE | re.DOTALL,
)
_SECONDARY_TYPES = ("DistNetworkError", "DistStoreError", "SignalException", "BarrierTimeout")
_TORCH_FILE = re.compile(r"[\\/]torch[\\/](?:distributed|autograd|_tensor\.py)")
_ABOUT_TORCH = re.compile(
    r"gloo|[nhrxmc]ccl|c10d|processgroup|torch\.distributed|collective|barrier|rendezvous|(?:TCP)?Store",
    re.IGNORECASE,
)
_MODEL = re.compile(
    r"Rank (\d+) has (\d+) params, while rank (\d+) has inconsistent (\d+) params", re.IGNORECASE
)
"""What DDP raises on every rank; each compares itself with one other."""

LOADER = re.compile(
    r"(?:^|[^a-z])(?:load|read|fetch)|data_?load|batch|dataset|sampler|__next__|tokeni[sz]e|collate",
    re.I,
)
CHECKPOINT = re.compile(r"checkpoint|save|state_dict|serialize", re.I)
_IN_COMMUNICATION = re.compile(
    r"all_reduce|allreduce|all_gather|broadcast|reduce_scatter|all_to_all|barrier|\bwait\b|"
    r"synchronize|\bsend\b|\brecv\b|irecv|isend|backward|gather|scatter|\breduce\b|coalesc"
)
_COMMUNICATION_FILE = re.compile(r"torch[\\/]distributed[\\/]|distributed_c10d\.py$")


class End(str, Enum):
    """How a rank's process ended."""

    ALIVE = "alive"
    UNKNOWN = "unknown"
    CLEAN = "clean"
    CRASHED = "crashed"
    TORN_DOWN = "torn down"


@dataclass(frozen=True, slots=True)
class Host:
    """One rank's process, judged. ``frozen`` says its own recorder could not run any more."""

    rank: int
    end: End
    state: str
    end_ns: int = 0
    end_text: str = ""
    frozen: bool = False
    secondary: bool = False
    """Its failure speaks of somebody else's."""
    activity: str = ""
    stack: Stack = ()
    phase: str | None = None

    @property
    def gone(self) -> bool:
        """Whether the process has ended or is ending by a failure."""
        return self.end in (End.CLEAN, End.CRASHED, End.TORN_DOWN)


def is_secondary(text: str) -> bool:
    """Whether an error message speaks of a peer that failed or did not come."""
    return bool(_SECONDARY.search(text))


def judge(trace: Trace) -> dict[int, Host]:
    """A `Host` for every rank that any source speaks about."""
    threads = newest_threads(trace)
    hosts = {rank: _one(facts, threads.get(rank)) for rank, facts in trace.ranks.items()}
    hosts = _stopped_alone(_told_by_all(hosts, trace), trace)
    return _outlived_a_failure(_victims_of_launcher(hosts, trace), trace)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _one(facts: RankFacts, thread: int | None) -> Host:
    """``thread`` issued the rank's newest operation."""
    rank, exit_ = facts.rank, facts.exit
    exception = facts.exception
    own_failure = exception is not None and exception.is_main_thread
    phase = facts.phases[-1].name if facts.phases else None
    stack = working_stack(facts, thread)
    text = ""
    by_thread = exit_ is not None and exit_.kind in ("exception", "code")
    if exception is not None and (own_failure or by_thread):
        text = exception.type_name.removeprefix("builtins.")
        first_line = exception.message.strip().splitlines()
        if first_line:
            text += f": {first_line[0][:200]}"
        caused = exception.message.rpartition(CAUSED_BY)[2].strip().splitlines()
        if CAUSED_BY in exception.message and caused:
            text += f" (caused by {caused[0][:200]})"
    full_text = "\n".join(
        x
        for x in (
            exception.type_name + ": " + exception.message if exception else "",
            exit_.text if exit_ else "",
        )
        if x
    )
    secondary = is_secondary(full_text) or any(t in full_text for t in _SECONDARY_TYPES)
    if exception is not None and own_failure and _is_about_others(exception) is False:
        secondary = False
    ended_ns = exit_.at_ns if exit_ else 0

    if exit_ is not None and exit_.kind == "clean" and not own_failure:
        return Host(rank, End.CLEAN, "exited", ended_ns, "exit status 0", True, phase=phase)
    gone = exit_ is not None or facts.alive is False or facts.process_state in ("zombie", "gone")
    if own_failure or gone:
        # The exception comes before the exit that it leads to, and is the time that counts.
        if exception is not None and own_failure and exception.at_ns:
            ended_ns = exception.at_ns
        ended_ns = ended_ns or facts.heartbeat_ns
        how = text or _how(facts)
        torn = exit_ is not None and (
            exit_.by_launcher
            or exit_.signal in (_SIGTERM, _SIGINT, _SIGHUP)
            or exit_.code in (-15, 143)
        )
        interrupted = exception is not None and exception.type_name.endswith("KeyboardInterrupt")
        if interrupted or (torn and not own_failure):
            return Host(
                rank, End.TORN_DOWN, "exited", ended_ns, how, True, True, phase=phase, stack=stack
            )
        if not stack and exception is not None:
            stack = exception.stack
        return Host(
            rank, End.CRASHED, "crashed", ended_ns, how, True, secondary, phase=phase, stack=stack
        )
    state, frozen = _alive_state(facts)
    end = End.ALIVE if facts.alive else End.UNKNOWN
    return Host(rank, end, state, frozen=frozen, phase=phase, stack=stack)


def _how(facts: RankFacts) -> str:
    exit_ = facts.exit
    if exit_ is None or exit_.kind == "unknown":
        return (exit_.text if exit_ else "") or "its process is gone and left no exception"
    if exit_.kind == "oom":
        return "killed for memory (OOM)"
    if exit_.kind == "signal" and exit_.signal is not None:
        return f"killed by {_signal_name(exit_.signal)}"
    if exit_.signal is not None:
        return f"killed by {_signal_name(exit_.signal)}"
    if exit_.code is not None:
        if exit_.code < 0:
            return f"killed by {_signal_name(-exit_.code)}"
        return f"exit status {exit_.code}"
    return exit_.text or exit_.kind


def _alive_state(facts: RankFacts) -> tuple[str, bool]:
    if facts.process_state == "stopped":
        return "stopped", True
    if facts.gil_blocked:
        return "gil-held", True
    if facts.process_state == "disk-sleep":
        return "sleeping", False
    if facts.cpu_busy is not None and facts.cpu_busy > 0.5:
        return "busy", False
    if facts.process_state == "running":
        return "running", False
    if facts.process_state == "sleeping":
        return "sleeping", False
    return ("running" if facts.alive else "unknown"), False


def _victims_of_launcher(hosts: dict[int, Host], trace: Trace) -> dict[int, Host]:
    """Mark aborts that a log explains: a watchdog that gave up is a victim's end, and Gloo aborts
    the rank that gets a message of another size than it asked for, whoever is wrong.
    """
    timed_out = {c.reporter for c in trace.claims if c.kind == "timeout" and c.reporter is not None}
    got_other_size = {c.reporter for c in trace.claims if c.kind == "size_mismatch"}
    result = dict(hosts)
    for rank, host in hosts.items():
        exit_ = trace.ranks[rank].exit
        aborted = exit_ is not None and (exit_.signal == _SIGABRT or exit_.code in (-6, 134))
        if host.end is not End.CRASHED or not aborted:
            continue
        unsaid = None in got_other_size and trace.ranks[rank].exception is None
        # Of a log alone nobody knows why a process aborted itself: mostly its watchdog gave up.
        silent = trace.only_logs and trace.ranks[rank].exception is None
        if rank in timed_out or rank in got_other_size or unsaid or silent:
            result[rank] = replace(host, secondary=True)
    return result


def _is_about_others(exception: ExceptionFacts) -> bool | None:
    """Whether a failure to communicate was one between ranks; None where nothing tells.

    "Connection reset by peer" from the client of a data store is that rank's own failure.
    """
    if _ABOUT_TORCH.search(exception.type_name) or _ABOUT_TORCH.search(exception.message):
        return True
    if not exception.stack:
        return None
    return any(_TORCH_FILE.search(frame.filename) for frame in exception.stack)


def _told_by_all(hosts: dict[int, Host], trace: Trace) -> dict[int, Host]:
    """Where every rank raises because some failed, and the message names those: only they did."""
    result = dict(hosts)
    for rank, host in hosts.items():
        exception = trace.ranks[rank].exception
        failed = failed_ranks(exception.message) if exception is not None else None
        if failed and host.end is End.CRASHED:
            result[rank] = replace(host, secondary=rank not in failed)
    return _with_another_model(result, trace)


def _with_another_model(hosts: dict[int, Host], trace: Trace) -> dict[int, Host]:
    """Where DDP finds that models differ every rank raises: those of the usual size are right."""
    sizes: dict[int, str] = {}
    raised = []
    for rank, host in hosts.items():
        exception = trace.ranks[rank].exception
        said = _MODEL.search(exception.message) if exception is not None else None
        if said is not None and host.end is End.CRASHED:
            raised.append(rank)
            sizes |= {int(said[1]): said[2], int(said[3]): said[4]}
    usual = [size for size, count in Counter(sizes.values()).items() if count * 2 > len(sizes)]
    if len(sizes) < 3 or not usual:
        return hosts
    right = {rank for rank in raised if sizes.get(rank) == usual[0]}
    return {r: replace(h, secondary=True) if r in right else h for r, h in hosts.items()}


def _stopped_alone(hosts: dict[int, Host], trace: Trace) -> dict[int, Host]:
    """One rank that was told to stop while nobody else had ended is no victim of a failure.

    The launcher tells everybody; a preemption notice, an operator or a limit may hit a single one.
    """
    torn = [
        rank
        for rank, host in hosts.items()
        if host.end is End.TORN_DOWN and not _by_launcher(trace.ranks[rank])
    ]
    if len(torn) != 1 or len(hosts) < 2:
        return hosts
    alone = hosts[torn[0]]
    earlier = [
        h
        for h in hosts.values()
        if h is not alone
        and h.gone
        and (not h.secondary or not h.end_ns or h.end_ns < alone.end_ns - _NOTICED_NS)
    ]
    if earlier or trace.missing_ranks:
        return hosts
    return {**hosts, torn[0]: replace(alone, end=End.CRASHED, secondary=False)}


def _by_launcher(facts: RankFacts) -> bool:
    return facts.exit is not None and facts.exit.by_launcher


def _outlived_a_failure(hosts: dict[int, Host], trace: Trace) -> dict[int, Host]:
    """Ranks whose end nobody saw, and which were alive after another one had failed.

    They did not break it: the launcher ended them, or its failure did. Clocks of different hosts
    are not compared.
    """
    failed: dict[str, int] = {}
    for rank, host in hosts.items():
        name = trace.ranks[rank].host
        if host.end is End.CRASHED and not is_unseen(trace.ranks[rank]) and name and host.end_ns:
            failed[name] = min(failed.get(name, host.end_ns), host.end_ns)
    result = dict(hosts)
    for rank, host in hosts.items():
        facts = trace.ranks[rank]
        first_ns = failed.get(facts.host or "")
        unseen = host.end is End.CRASHED and is_unseen(facts)
        if unseen and first_ns is not None and facts.heartbeat_ns > first_ns:
            result[rank] = replace(host, end=End.TORN_DOWN, secondary=True)
    return result


def is_unseen(facts: RankFacts) -> bool:
    """Whether nothing tells how a rank ended."""
    own = facts.exception is not None and facts.exception.is_main_thread
    return not own and (facts.exit is None or facts.exit.kind == "unknown")


def killed_together(trace: Trace, hosts: Mapping[int, Host]) -> str | None:
    """How, if every rank was ended from outside by one signal at about the same time.

    Of one rank alone only an end that nobody saw says so, and only where the others left nothing:
    how it ended is known as little as what became of them.
    """
    alone = len(hosts) < 2
    if alone and not trace.missing_ranks:
        return None
    ways = set()
    times = []
    facts = [trace.ranks[rank] for rank in hosts]
    for rank, host in hosts.items():
        exit_ = trace.ranks[rank].exit
        exception = trace.ranks[rank].exception
        if exception is not None and not exception.is_main_thread:
            exception = None  # a thread's end is not the process's
        if host.end not in (End.CRASHED, End.TORN_DOWN):
            return None
        interrupted = exception is not None and exception.type_name.endswith("KeyboardInterrupt")
        if exception is not None and not interrupted:
            return None
        if exit_ is not None and (exit_.kind == "oom" or exit_.signal in _OWN_SIGNALS):
            return None
        if interrupted:
            ways.add("SIGINT")
        elif exit_ is not None and exit_.signal == _SIGABRT:
            return None  # a process aborts itself
        elif exit_ is not None and exit_.signal is not None:
            ways.add(_signal_name(exit_.signal))
        elif exit_ is None or exit_.kind == "unknown":
            ways.add(UNSEEN)
        else:
            return None
        times.append(host.end_ns)
    known = [t for t in times if t]
    if len(ways) > 1 and not any(f.exit is not None and f.exit.by_launcher for f in facts):
        # One that nobody saw may be the same as the others, unless those were a launcher's answer.
        ways.discard(UNSEEN)
    if alone and ways != {UNSEEN}:
        return None
    if len(ways) != 1 or (known and max(known) - min(known) > TOGETHER_NS):
        return None
    return ways.pop()


def primary_crashes(hosts: Mapping[int, Host], waits_on: Mapping[int, set[int]]) -> list[Host]:
    """Failures nobody else explains, earliest first.

    ``waits_on`` says for whom each rank was waiting: a failure of one's own while waiting for a
    rank that had ended before is that rank's doing.
    """
    crashed = [h for h in hosts.values() if h.end is End.CRASHED]
    own = [h for h in crashed if not h.secondary]
    result = []
    for host in own:
        ended_before = [
            hosts[other]
            for other in waits_on.get(host.rank, ())
            if other in hosts
            and hosts[other].gone
            and hosts[other].end is not End.TORN_DOWN
            and (not host.end_ns or not hosts[other].end_ns or hosts[other].end_ns <= host.end_ns)
            and other != host.rank
        ]
        if not ended_before:
            result.append(host)
    result.sort(key=lambda h: (h.end_ns or 0, h.rank))
    if not result:
        return []
    first = result[0]
    # Later failures are as a rule consequences, except those of the same kind at the same moment.
    alike = _but_numbers(first.end_text)
    return [
        h
        for h in result
        if h is first or (_but_numbers(h.end_text) == alike and h.end_ns - first.end_ns <= _TWIN_NS)
    ]


def _but_numbers(text: str) -> str:
    """A message without its numbers: ranks, sizes and addresses differ from rank to rank."""
    return re.sub(r"\d+", "#", text)


_OWN_ERRORS = frozenset({"device_error", "oom", "nan", "ddp_unused_parameters", "ddp_marked_twice"})


def own_errors(claims: tuple[Claim, ...]) -> dict[int, Claim]:
    """Per rank the first claim of an error of its own."""
    named: dict[int, Claim] = {}
    for claim in sorted(claims, key=lambda c: c.at_ns or 1 << 62):
        if claim.kind in _OWN_ERRORS:
            for rank in claim.accused or ((claim.reporter,) if claim.reporter is not None else ()):
                named.setdefault(rank, claim)
    return named


def activity(host: Host | None, facts: RankFacts | None) -> str:
    """What a rank without an operation was doing, as a few words."""
    if host is None or facts is None:
        return "left no dump"
    if host.end is End.CLEAN:
        return "exited with status 0"
    if host.end is End.CRASHED:
        return host.end_text
    words = []
    if host.state == "stopped":
        words.append("stopped")
    elif host.state == "gil-held":
        words.append("holding the GIL")
    if host.phase is not None:
        words.append(f"in {host.phase}")
    else:
        frame = innermost(host.stack)
        if frame is not None:
            words.append(f"in {frame.name}")
    if not words and host.end is End.TORN_DOWN:
        words.append(host.end_text)
    return ", ".join(words)


def in_communication(stack: Stack) -> bool:
    """Whether the innermost frames are those of a collective or of a wait."""
    return any(
        _IN_COMMUNICATION.search(frame.name) or _COMMUNICATION_FILE.search(frame.filename)
        for frame in stack[:4]
    )
