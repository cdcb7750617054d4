"""The monitor's journal: what only an outside observer can see, kept for post-mortem analysis.

Format: see `hangscope.trace.external_reports.journal`.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from hangscope.diagnosis.model import Diagnosis, Finding
from hangscope.monitor.processes import ProcessEnd
from hangscope.replay.observed import seen_event
from hangscope.ring.process_identity import boot_id, machine_id, pid_namespace
from hangscope.ring.run_directory import opened
from hangscope.ring.run_secret import RunSecret
from hangscope.trace.digests.hosts import HostMap
from hangscope.trace.external_reports.journal import HEADER_KEY, VERSION, line_of
from hangscope.trace.live.open_ring import RunKey
from hangscope.trace.model import Claim, RankFacts


class Journal:
    """Appends sealed JSON lines. If the directory is not writable, there is simply no journal."""

    def __init__(self, directory: Path, key: RunKey, secret: RunSecret) -> None:
        name = f"monitor_{socket.gethostname()}.{key.run_id}.{key.attempt}.{os.getpid()}.journal"
        self._directory = directory
        self._name = name.replace("/", "-")
        self._key = key
        self._secret = secret
        self._file: BinaryIO | None = None

    def exit(
        self,
        end: ProcessEnd,
        *,
        oom: bool,
        by_launcher: bool,
        untold: list[int] | None,
        told: list[int],
        recorded: bool,
        by_order: bool,
    ) -> None:
        """A rank's process ended; by then ``told`` had been sent a stop signal, ``untold`` not.

        ``recorded``: whether it had begun to record. ``by_order``: whether its rank was inferred.
        """
        self._write(
            {
                "event": "exit",
                "rank": end.rank,
                "pid": end.pid,
                "at_ns": end.at_ns,
                "code": end.code,
                "signal": end.signal,
                "oom": oom,
                "by_launcher": by_launcher,
                "untold": untold,
                "told": told,
                **({} if recorded else {"recorded": False}),
                **({"by_order": True} if by_order else {}),
            }
        )

    def seen(self, facts: RankFacts, *, recorded: bool) -> None:
        """What the newest look found out about a rank's process that its ring cannot tell.

        ``recorded``: whether it has a ring.
        """
        self._write(seen_event(facts, recorded=recorded))

    def unseen(self, rank: int, pid: int) -> None:
        """What was seen of a process before it could record no longer tells what it does."""
        self._write({"event": "unseen", "rank": rank, "pid": pid, "at_ns": time.time_ns()})

    def hosts(self, hosts: HostMap) -> None:
        """The nodes have told each other who runs where."""
        self._write({"event": "hosts", "hosts": json.loads(hosts.encode())})

    def device(self, claim: Claim) -> None:
        """A rank's device has reported an error after which it does no more work."""
        for rank in claim.accused:
            event = {"event": "device", "rank": rank, "at_ns": claim.at_ns, "text": claim.text}
            self._write(event)

    def said(
        self, event: str, found: Finding | Diagnosis, hosts: Sequence[str], seen_ns: int
    ) -> None:
        """The monitor has printed something: ``event`` is ``verdict`` or ``notice``.

        ``hosts``: of which one, or the link between them, is at fault; ``seen_ns``: when what it
        rests on was seen.
        """
        self._write(
            {
                "event": event,
                "at_ns": seen_ns,
                "verdict": found.verdict.value,
                "culprits": list(found.culprits),
                "summary": found.summary,
                "confidence": found.confidence.value,
                **({"hosts": list(hosts)} if hosts else {}),
            }
        )

    def _write(self, event: dict[str, Any]) -> None:
        try:
            self._file = self._file or self._opened()
            self._file.write(self._line(event))
        except OSError:
            pass

    def _opened(self) -> BinaryIO:
        """The file, with its first line written; kept open, whatever becomes of the directory."""
        with opened(self._directory) as folder:
            file = open(folder.appended_file(self._name), "ab", buffering=0)  # noqa: SIM115
        file.write(
            self._line(
                {
                    HEADER_KEY: VERSION,
                    "run_id": self._key.run_id,
                    "attempt": self._key.attempt,
                    "host": socket.gethostname(),
                    "machine": machine_id(boot_id(), pid_namespace()),
                    "started_ns": time.time_ns(),
                }
            )
        )
        return file

    def _line(self, event: dict[str, Any]) -> bytes:
        return line_of(event, self._name, self._secret)
