"""Which failures are about another rank's failure."""

from __future__ import annotations

import re

from hangscope.trace.model import ExceptionFacts

DIFFER = re.compile(r"inconsistent between workers|expects same model across all ranks", re.I)
"""All ranks raise this when they find that their replicas differ."""
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
WAITED_IN_VAIN = re.compile(r"timed? ?out|monitored ?barrier|wait timeout", re.IGNORECASE)
"""Messages of exceptions after a wait that timed out."""
_LAUNCH = re.compile(
    r"error initializing torch\.distributed using \S+ rendezvous|no rendezvous handler for",
    re.IGNORECASE,
)
"""Errors of a rank started without its place in the job: no other rank is involved."""
SECONDARY_TYPES = ("DistNetworkError", "DistStoreError", "SignalException", "BarrierTimeout")
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
