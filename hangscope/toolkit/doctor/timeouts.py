"""All timeouts of a job in one table that marks those which would really end a hang."""

from __future__ import annotations

from collections.abc import Iterator

from hangscope.toolkit.doctor.model import ERROR, WARNING, Finding, Surroundings, TimeoutRow
from hangscope.toolkit.environments.variables import NOTHING, VARIABLES

NCCL_DEFAULT_S = 600
OTHER_DEFAULT_S = 1800


def timeout_rows(s: Surroundings) -> list[TimeoutRow]:
    """Every timeout, set or default; ``effective`` means that it bounds something in this job."""
    handling = s.env.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3")
    enforced = handling != "0" or s.env.get("TORCH_NCCL_BLOCKING_WAIT") == "1"
    monitored = s.env.get("TORCH_NCCL_ENABLE_MONITORING", "1") != "0"
    rows = [
        TimeoutRow(
            "init_process_group(timeout=), NCCL",
            f"{NCCL_DEFAULT_S} s unless given",
            "PyTorch's NCCL watchdog",
            "default",
            enforced,
        ),
        TimeoutRow(
            "init_process_group(timeout=), other backends",
            f"{OTHER_DEFAULT_S} s unless given",
            "the backend",
            "default",
            True,
        ),
        TimeoutRow(
            "making a communicator (first collective)",
            "none",
            "nobody (see warm-up)",
            "default",
            False,
        ),
    ]
    for variable in VARIABLES:
        if not variable.timeout:
            continue
        name = variable.name_for(s.version)
        value = s.env.get(name)
        unread = variable.read_by == NOTHING
        if value is None and unread:
            continue
        effective = not unread
        if name == "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC":
            effective = monitored
        elif name == "HANGSCOPE_TIMEOUT":
            effective = s.env.get("HANGSCOPE") == "1"
        rows.append(
            TimeoutRow(
                name,
                f"{value}{variable.unit}" if value is not None else variable.default,
                variable.read_by,
                "user" if value is not None else "default",
                effective,
            )
        )
    return rows


def check_timeouts(s: Surroundings) -> Iterator[Finding]:
    """Findings on timeouts that are malformed or that defeat one another."""
    seconds: dict[str, float] = {}
    for name in ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "HANGSCOPE_TIMEOUT"):
        text = s.env.get(name)
        if text is None:
            continue
        try:
            seconds[name] = float(text)
        except ValueError:
            yield Finding(
                ERROR, "timeout-value", f"{name}={text!r} is no number", "Give it in seconds."
            )
            continue
        if seconds[name] <= 0:
            yield Finding(
                ERROR, "timeout-value", f"{name}={text} is not above zero", "Give it in seconds."
            )
    recording = s.env.get("HANGSCOPE") == "1"
    if recording and seconds.get("HANGSCOPE_TIMEOUT", 120) >= NCCL_DEFAULT_S:
        yield Finding(
            WARNING,
            "timeout-order",
            f"HANGSCOPE_TIMEOUT={seconds['HANGSCOPE_TIMEOUT']:g} is not below NCCL's timeout of "
            f"{NCCL_DEFAULT_S} s: the job may be ended before it is diagnosed",
            "Use a smaller value, such as 120.",
        )
