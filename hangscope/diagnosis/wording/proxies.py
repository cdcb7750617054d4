"""What NCCL's proxies say of an operation that does not end."""

from __future__ import annotations

from hangscope.diagnosis.cause import Cause
from hangscope.diagnosis.context import Context
from hangscope.trace.facts import ProxyWait

_MOST = 6


def proxies(context: Context, cause: Cause) -> list[str]:
    """One line on whom the proxies of ranks with a part in a cause wait for; none without any."""
    concerned = sorted({*cause.culprits, *context.waits.waiters_at(cause.places)})
    said = {
        f"rank {rank}'s {_words(wait)}": None
        for rank in concerned
        if rank in context.trace.ranks
        for wait in context.trace.ranks[rank].proxies
        if not wait.own
    }
    if not said:
        return []
    rest = f"; {len(said) - _MOST} more" if len(said) > _MOST else ""
    return [f"NCCL's proxies: {'; '.join([*said][:_MOST])}{rest}"]


def _words(wait: ProxyWait) -> str:
    if wait.is_send:
        return f"waits for rank {wait.peer} to take data of {wait.op}"
    return f"waits for data of {wait.op} from rank {wait.peer}"
