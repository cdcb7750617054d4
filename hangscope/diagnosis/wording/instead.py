"""What a rank does or did while others wait for it, for sentences, sides and evidence alike."""

from __future__ import annotations

from dataclasses import dataclass

from hangscope.diagnosis.context import Context
from hangscope.diagnosis.processes.process_state import CHECKPOINT, STARVED, End, ProcessState
from hangscope.diagnosis.processes.stacks import innermost, is_over
from hangscope.trace.model import Stack

_BARS = {"gil-held": "holding the GIL", STARVED: "getting hardly any CPU time"}


@dataclass(frozen=True, slots=True)
class Instead:
    """``left``: how its process ended, by itself or not; ``doing``: where it is, or was then.

    Either is empty if unknown; of a process that ended by itself, where it was does not matter.
    """

    left: str = ""
    doing: str = ""
    goes_on: bool = True
    """Whether its program runs on."""

    @property
    def words(self) -> str:
        """The one that says more, for a reader who knows that the rank is not there."""
        return self.doing or self.left


def instead(context: Context, rank: int, stack: Stack | None = None) -> Instead:
    """What a rank does; ``stack``: that of the thread in question, if not the main one's."""
    process = context.processes.get(rank)
    if rank in context.unreadable and not context.is_observed(rank):
        return Instead("its dump cannot be read")
    return Instead("left no record") if process is None else of_process(process, stack)


def of_process(process: ProcessState, stack: Stack | None = None) -> Instead:
    """The same of a process that was seen."""
    if process.end is End.CLEAN:
        return Instead("exited with status 0" if process.failure.by_status else process.end_text)
    left = process.end_text if process.gone else ""
    if process.end is End.CRASHED:
        return Instead(left)
    seen = process.stack if stack is None else stack
    over = is_over(seen)
    return Instead(left, _doing(process, seen, over=over), not over and not process.cannot_run)


def _doing(process: ProcessState, stack: Stack, *, over: bool) -> str:
    """``stopped, in save``."""
    held = f"held by {process.held_by}" if process.held_by else process.state
    words = [_BARS.get(held, held)] if process.cannot_run else []
    frame = innermost(stack)
    if process.phase is not None:
        return ", ".join([*words, f"in {process.phase}"])
    if over or frame is not None:
        words.append("at the end of its program" if over or frame is None else f"in {frame.name}")
    if words and process.cannot_run and any(CHECKPOINT.search(f.name) for f in stack):
        words.append("during a checkpoint")
    return ", ".join(words)
