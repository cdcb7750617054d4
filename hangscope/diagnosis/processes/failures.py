"""What a failure says, classified once: whether it is about another rank, and what it was about.

This is the one place in the diagnosis that reads messages of failures. Everything else asks a
`Failure`, or one of the functions below.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from hangscope.trace.message_template import mask_numbers
from hangscope.trace.model import ON_ITS_WAY_OUT, ExceptionFacts, ExitFacts

_DIFFER = re.compile(r"inconsistent between workers|expects same model across all ranks", re.I)
"""All ranks raise this when they find that their replicas differ."""
_NOBODY_THERE = re.compile(r"connectFullMesh failed.{0,400}connection refused", re.I | re.S)
"""Gloo's first meeting: the store gave an address at which nobody listens."""
_SECONDARY = re.compile(
    r"connection (?:was )?(?:closed|reset|refused|aborted)|broken pipe|socket closed|"
    r"timed out waiting \d+ ?ms for (?:recv|send)|"
    r"timed? ?out.{0,40}(?:recv|send|collective|barrier)|"
    r"timed out in (?:blocking wait|call to wait)|"
    r"watchdog|communicator was aborted|remote process exited|ncclremoteerror|ncclsystemerror|"
    r"comm ?remote ?error|comm aborted due to timeout|"
    r"(?:acl|npu).{0,80}error code is 50704[678]\b|"  # of a stream, an event, a task of HCCL
    r"hccl.{0,60}(?:timeout|error code is (?:9|1[1-4]|21)\b)|"  # timeout, connection, remote
    r"[nrx]ccl\w{0,40} (?:timed out|timeout)\b|"
    r"getting socket times out|the notify register|deepep error.{0,20} time ?out|"
    r"had waited too long for a peer|inconsistent between workers|"
    r"unhandled system error|client socket has (?:timed out|failed)|"
    r"application timeout caused pair closure|"
    r"gloo.{0,80}(?:peer|pair|transport|timed? ?out|timeout)|"
    r"monitored ?barrier|wait timeout after|"
    r"wait_?for_?(?:store|key)|recvvalue failed|sendbytes failed|failed to recv, got 0 bytes|"
    r"signalexception|got signal|rendezvous|store.{0,40}(?:closed|shut ?down|timed? ?out|timeout)|"
    r"collective operation timeout|has been aborted|peer process (?:died|exited)|"
    r"op\.preamble\.length|received data size doesn't match|"
    r"detected mismatch between collectives on ranks|"
    r"ddp expects same model across all ranks",
    re.IGNORECASE | re.DOTALL,
)
_WAITED_IN_VAIN = re.compile(r"timed? ?out|monitored ?barrier|wait timeout", re.IGNORECASE)
"""Messages of exceptions after a wait that timed out."""
_LAUNCH = re.compile(
    r"error initializing torch\.distributed using \S+ rendezvous|no rendezvous handler for",
    re.IGNORECASE,
)
"""Errors of a rank started without its place in the job: no other rank is involved."""
_SECONDARY_TYPES = ("DistNetworkError", "DistStoreError", "SignalException", "BarrierTimeout")
_CLOSED = re.compile(
    r"connection (?:was )?(?:closed|reset)|(?:closed|reset) by peer|remote process exited",
    re.IGNORECASE,
)
_TORCH_FILE = re.compile(
    r"[\\/]torch[\\/](?:distributed|autograd|_tensor\.py|nn[\\/]parallel[\\/]distributed)"
)
_ABOUT_TORCH = re.compile(
    r"gloo|pair closure|[nhrxmc]ccl|c10d|processgroup|torch\.distributed|collective|barrier|"
    r"rendezvous|(?:TCP)?Store|deepep|too long for a peer|between workers|npu function error",
    re.IGNORECASE,
)


def is_secondary(text: str) -> bool:
    """Whether an error message is about a peer that failed or did not arrive."""
    return bool(_SECONDARY.search(text)) and not _LAUNCH.search(text)


def is_about_others(exception: ExceptionFacts) -> bool | None:
    """Whether a communication failure was between ranks; None if nothing shows it.

    "Connection reset by peer" from the client of a data store is that rank's own failure.
    """
    if _ABOUT_TORCH.search(exception.type_name) or _ABOUT_TORCH.search(exception.message):
        return True
    if not exception.stack:
        return None
    return any(_TORCH_FILE.search(frame.filename) for frame in exception.stack)


def lost_a_peer(exception: ExceptionFacts) -> bool:
    """Whether it is about a connection between ranks closed by the other side."""
    return bool(_CLOSED.search(exception.message)) and is_about_others(exception) is True


_LOST_STORE = re.compile(r"(?:\w+\.)*DistNetworkError\b")
"""Torch raises this only for its store."""
_STORE_KEY = re.compile(r"wait timeout after \d+ ?ms, keys: (\S+)")
_GLOO_BROKE = re.compile(r"gloo/transport.{0,200}(?:closed by peer|reset by peer)", re.DOTALL)
_MODEL = re.compile(
    r"Rank (\d+) has (\d+) params, while rank (\d+) has inconsistent (\d+) params", re.IGNORECASE
)
"""What DDP raises on every rank; each compares itself with one other."""
_PARAMETER = re.compile(
    r"(?:\[(?P<rank>\d+)\]: )?(?P<what>params\[\d+\]) in this process with "
    r"(?P<own>sizes|strides) (?P<value>\[[\d, ]*\]) appears not to match \w+ of the same param "
    r"in process"
)
_GLOO_TIMEOUT = re.compile(r"gloo.{0,200}timed out", re.IGNORECASE | re.DOTALL)
_STATUS = "exit status"
_ABORTED = "killed by SIGABRT"


@dataclass(frozen=True, slots=True)
class Failure:
    """What the words of a failure say."""

    template: str = ""
    """Its words without numbers: equal for one fault on several ranks."""
    aborted: bool = False
    """It aborted itself, or its watchdog or Gloo did."""
    waited_in_vain: bool = False
    """A wait for others timed out."""
    timed_out_on_host: bool = False
    replicas_differ: bool = False
    """All ranks raise this when they find that their replicas differ."""
    nobody_at_address: bool = False
    """At the first meeting, nobody listened at an address from the store."""
    lost_store: bool = False
    by_status: bool = False
    """Nothing but an exit status tells of it."""
    late: bool = False
    """The program was over when the process ended."""
    store_key: str = ""
    """The key of the store that was awaited in vain."""


NO_FAILURE = Failure()


def failure_of(words: str) -> Failure:
    """Classify how a process ended, told in one line."""
    key = _STORE_KEY.search(words)
    return Failure(
        mask_numbers(words),
        aborted=words == _ABORTED,
        waited_in_vain=bool(_WAITED_IN_VAIN.search(words)),
        timed_out_on_host=bool(_GLOO_TIMEOUT.search(words)),
        replicas_differ=bool(_DIFFER.search(words)),
        nobody_at_address=bool(_NOBODY_THERE.search(words)),
        lost_store=bool(_LOST_STORE.match(words)),
        by_status=words.startswith(_STATUS),
        late=words.endswith(ON_ITS_WAY_OUT),
        store_key=key[1] if key is not None else "",
    )


def speaks_of_others(exception: ExceptionFacts | None, exit_: ExitFacts | None) -> bool:
    """Whether a process failed because of another rank's failure."""
    if exception is not None and exception.is_main_thread and is_about_others(exception) is False:
        return False
    words = [f"{exception.type_name}: {exception.message}"] if exception else []
    text = "\n".join([*words, exit_.text] if exit_ and exit_.text else words)
    return is_secondary(text) or any(t in text for t in _SECONDARY_TYPES)


def waited_in_vain(exception: ExceptionFacts) -> bool:
    """Whether it was raised because a wait for others timed out."""
    return bool(_WAITED_IN_VAIN.search(exception.message))


def broke_over_gloo(exception: ExceptionFacts) -> bool:
    """Whether Gloo lost a connection to another rank."""
    return bool(_GLOO_BROKE.search(exception.message))


class ComparedModels(NamedTuple):
    """What DDP found: how many parameters two members have, by their places in the group."""

    place: int
    own: str
    other: int
    theirs: str


def compared_models(exception: ExceptionFacts | None) -> ComparedModels | None:
    """What DDP says about the sizes of models; None if the exception is about something else."""
    found = _MODEL.search(exception.message) if exception is not None else None
    return found and ComparedModels(int(found[1]), found[2], int(found[3]), found[4])


def differing_parameter(words: str) -> re.Match[str] | None:
    """The parameter that DDP found to differ from that of process 0: groups ``rank``, ``what``,
    ``own`` and ``value``."""
    return _PARAMETER.search(words)
