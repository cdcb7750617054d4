"""Numbers that a job's own prints call ranks, and that several of its machines use."""

from __future__ import annotations

from hangscope.trace.job_log.lines.line import LogLine, Machine


class PrintedRanks:
    """Follows which machine prints which number for itself.

    What a job prints as its rank may be the local one: then each of its nodes has one of that
    number. Torch's own labels are no prints, and always mean the rank.
    """

    def __init__(self, *, are_local: bool = False) -> None:
        self._are_local = are_local
        """Whether that is what they are."""
        self._machines: dict[int, Machine] = {}

    def are_shared(self, line: LogLine) -> bool:
        """Whether the line shows that two machines use one number."""
        if self._are_local or not line.printed or line.rank is None or line.machine.is_unknown:
            return False
        return not self._machines.setdefault(line.rank, line.machine).may_be(line.machine)

    def attributed(self, line: LogLine) -> LogLine:
        """The line, with its number as what it is."""
        if not (self._are_local and line.printed and line.rank is not None):
            return line
        return line._replace(rank=None, local_rank=line.rank, printed=False)
