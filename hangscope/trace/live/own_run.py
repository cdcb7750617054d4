"""Which rings in a run directory are those of the run that a monitor follows.

Anything may lie there: rings of earlier jobs, of another container, or made up. Those who analyse a
directory afterwards read all of it; a monitor follows only what the run's processes write.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from hangscope.ring.header import RingHeader
from hangscope.ring.local_store import stored_at
from hangscope.ring.process_identity import OWNER, environment_of
from hangscope.ring.reader import RingReader, decode_text
from hangscope.ring.run_directory import opened
from hangscope.ring.run_secret import RunSecret, new_secret
from hangscope.trace.external_reports.journal import read_bytes, sealed_lines
from hangscope.trace.processes.process import is_local, look_here
from hangscope.trace.processes.shared_memory import hides_mappings
from hangscope.trace.rings.facts import writer_of


@dataclass(frozen=True, slots=True)
class OwnRun:
    """The run that a monitor was started for.

    Parameters
    ----------
    secret:
        The run's secret, as far as the monitor knows one.
    monitors:
        The secret of this monitor, and of the one that takes its place if it dies: with it they
        seal their journals where the run has none.
    """

    secret: RunSecret
    monitors: RunSecret = field(default_factory=lambda: RunSecret(new_secret()))

    @property
    def of_journals(self) -> RunSecret:
        """The secret with which journals of this machine are sealed."""
        return self.secret if self.secret.text else self.monitors

    def journal(self, directory: Path, name: str) -> tuple[bytes, bool]:
        """What counts of a journal in a run directory: its lines, and whether they are sealed.

        Only a monitor of another node may have written it without the seal.

        Raises
        ------
        OSError
            If it is another user's file, a link, or cannot be read.
        """
        with opened(directory) as folder:
            data = read_bytes(os.fdopen(folder.own_file(name), "rb"))
        sealed = sealed_lines(data, name, self.of_journals)
        if sealed or self.secret.is_shared:
            return sealed, True
        return data, False

    def open_ring(self, path: Path) -> RingReader:
        """Open a ring: the file itself, or the one in local memory to which a link of ours leads.

        Raises
        ------
        RingError
            As `RingReader`.
        OSError
            If it is another user's, or any other link.
        """
        with opened(path.parent) as folder:
            if folder.target_of(path.name) is None:
                return RingReader(path, descriptor=folder.own_file(path.name))
            stored = stored_at(folder, path.name)
        if stored is None:
            raise PermissionError(0, "a link that leads elsewhere", str(path))
        with opened(stored.parent) as store:
            return RingReader(stored, descriptor=store.own_file(stored.name))

    def refuses(self, reader: RingReader, header: RingHeader) -> str:
        """Why a ring is not of this run; empty if it is, or may be."""
        if not is_local(decode_text(header.boot_id), header.pid_namespace):
            foreign = self.secret.is_shared and not self.is_sealed(header)
            return "it does not have the secret of this run" if foreign else ""
        if self.secret.text and not self.is_sealed(header):
            return "it does not have the secret of this run"
        return "" if _may_write(reader, header) else f"process {header.pid} does not write it"

    def is_certain(self, header: RingHeader) -> bool:
        """Whether a ring that was not refused is certainly of this run."""
        if self.secret.text:
            return self.is_sealed(header)
        return is_local(decode_text(header.boot_id), header.pid_namespace)

    def is_sealed(self, header: RingHeader) -> bool:
        """Whether a process with the run's secret has made the header."""
        return self.secret.is_sealed(
            decode_text(header.seal),
            decode_text(header.run_id),
            header.attempt,
            decode_text(header.boot_id),
            header.pid_namespace,
            header.pid,
            header.start_ticks,
        )


def _may_write(reader: RingReader, header: RingHeader) -> bool:
    """Whether a local process writes a ring, or may have done so before it ended.

    A program that has replaced the rank's in the same process does not have the ring mapped, but
    has inherited its environment.
    """
    if not look_here(header.pid, header.start_ticks).alive:
        return True
    if writer_of(reader).holds(header.pid) or hides_mappings(header.pid):
        return True
    return environment_of(f"/proc/{header.pid}").get(OWNER) == str(header.pid)
