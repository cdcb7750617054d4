"""Rules that find problems in an environment: pure functions of its variables."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from hangscope.toolkit.environments.interfaces import Interface, unknown_names
from hangscope.toolkit.environments.variables import NOTHING, VARIABLES, Version


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong with the environment.

    ``kind`` is ``dangerous``, ``unread``, ``renamed``, ``conflict`` or ``advice``; ``level`` is
    ``error`` or ``warning``.
    """

    variable: str
    kind: str
    level: str
    what: str
    fix: str


def find_problems(
    env: Mapping[str, str], version: Version, interfaces: Collection[Interface] = ()
) -> list[Problem]:
    """Every problem of ``env`` under this torch version on a host with these interfaces."""
    return [
        *_error_handling(env),
        *_dumps(env, version),
        *_perturbing(env),
        *_unread(env),
        *_renamed(env, version),
        *_interfaces(env, interfaces),
        *_channels(env),
    ]


def _on(env: Mapping[str, str], name: str) -> bool:
    return env.get(name, "").strip().lower() in ("1", "true", "t", "yes", "y", "on")


def _error_handling(env: Mapping[str, str]) -> Iterator[Problem]:
    for name in ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING"):
        value = env.get(name)
        if value == "0":
            yield Problem(
                name,
                "dangerous",
                "error",
                f"{name}=0 makes timeouts advisory: a stuck collective hangs for ever",
                f"Set {name}=3, or unset it.",
            )
        elif value == "1" and _on(env, "HANGSCOPE"):
            yield Problem(
                name,
                "dangerous",
                "warning",
                f"{name}=1 (torchrun's choice where nothing is set) aborts communicators before "
                "dumps are complete, and recording is on",
                f"Export {name}=3 before torchrun starts.",
            )
        elif value and value not in ("0", "1", "2", "3"):
            yield Problem(
                name,
                "conflict",
                "error",
                f"{name}={value} is none of 0, 1, 2, 3",
                f"Set {name}=3.",
            )
    for name in ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT"):
        if _on(env, name):
            handling = env.get("TORCH_NCCL_ASYNC_ERROR_HANDLING")
            clash = handling not in (None, "", "0")
            yield Problem(
                name,
                "conflict" if clash else "dangerous",
                "warning",
                f"{name}=1 {'overrides asynchronous error handling, ' if clash else ''}blocks the "
                "host at every wait, and native records never retire",
                f"Unset {name}.",
            )


def _dumps(env: Mapping[str, str], version: Version) -> Iterator[Problem]:
    size = "TORCH_FR_BUFFER_SIZE" if version >= (2, 8) else "TORCH_NCCL_TRACE_BUFFER_SIZE"
    value = env.get(size) or env.get("TORCH_NCCL_TRACE_BUFFER_SIZE")
    if value == "0" and env.get("TORCH_NCCL_DUMP_ON_TIMEOUT", "1") != "0":
        yield Problem(
            size,
            "conflict",
            "warning",
            f"{size}=0 keeps no records, so the dump on a timeout is empty",
            f"Set {size}=2000.",
        )
    if env.get("TORCH_NCCL_DUMP_ON_TIMEOUT") == "0":
        yield Problem(
            "TORCH_NCCL_DUMP_ON_TIMEOUT",
            "advice",
            "warning",
            "TORCH_NCCL_DUMP_ON_TIMEOUT=0: nothing is written when a collective times out",
            "Set TORCH_NCCL_DUMP_ON_TIMEOUT=1.",
        )
    if env.get("TORCH_NCCL_ENABLE_MONITORING") == "0":
        yield Problem(
            "TORCH_NCCL_ENABLE_MONITORING",
            "dangerous",
            "warning",
            "TORCH_NCCL_ENABLE_MONITORING=0: a watchdog that hangs itself is never noticed",
            "Set TORCH_NCCL_ENABLE_MONITORING=1.",
        )


def _perturbing(env: Mapping[str, str]) -> Iterator[Problem]:
    if env.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL":
        yield Problem(
            "TORCH_DISTRIBUTED_DEBUG",
            "advice",
            "warning",
            "TORCH_DISTRIBUTED_DEBUG=DETAIL issues collectives of its own, needs Gloo between all "
            "ranks and changes the timing",
            "Use it to diagnose, not in production.",
        )
    for name in ("TORCH_NCCL_DESYNC_DEBUG", "NCCL_DESYNC_DEBUG"):
        if _on(env, name):
            yield Problem(
                name,
                "dangerous",
                "warning",
                f"{name}=1 writes to the store under a lock and has crashed jobs at start-up",
                f"Unset {name}; HangScope's recording shows the same.",
            )
    if _on(env, "CUDA_LAUNCH_BLOCKING"):
        yield Problem(
            "CUDA_LAUNCH_BLOCKING",
            "advice",
            "warning",
            "CUDA_LAUNCH_BLOCKING=1 serialises every kernel and hides overlap hangs",
            "Use it to diagnose, not in production.",
        )


def _unread(env: Mapping[str, str]) -> Iterator[Problem]:
    for variable in VARIABLES:
        if variable.read_by == NOTHING and env.get(variable.name):
            yield Problem(
                variable.name,
                "unread",
                "warning",
                f"{variable.name} is set, but nothing in PyTorch or NCCL reads it",
                "Pass timeout= to init_process_group (or hangscope.init_distributed) instead.",
            )


def _renamed(env: Mapping[str, str], version: Version) -> Iterator[Problem]:
    for variable in VARIABLES:
        old = variable.old_name
        if not old or not env.get(old):
            continue
        new = env.get(variable.name)
        if new and new != env[old]:
            yield Problem(
                variable.name,
                "conflict",
                "error",
                f"{variable.name}={new} and its former name {old}={env[old]} disagree",
                f"Keep {variable.name_for(version)}, which this torch version reads.",
            )
        elif version >= variable.since and not new:
            yield Problem(
                old,
                "renamed",
                "warning",
                f"{old} is the former name of {variable.name}",
                f"Use {variable.name}.",
            )
    for variable in VARIABLES:
        if variable.old_name and env.get(variable.name) and version < variable.since:
            since = ".".join(map(str, variable.since))
            yield Problem(
                variable.name,
                "unread",
                "warning",
                f"{variable.name} is read from torch {since} on, and this is an older release",
                f"Set {variable.old_name}.",
            )


def _interfaces(env: Mapping[str, str], interfaces: Collection[Interface]) -> Iterator[Problem]:
    if not interfaces:
        return
    names = ", ".join(interface.name for interface in interfaces)
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        value = env.get(name, "")
        # Gloo takes names only; NCCL also takes prefixes, exclusions and exact names.
        unknown = unknown_names(value if name.startswith("NCCL") else f"={value}", interfaces)
        if value and unknown:
            yield Problem(
                name,
                "conflict",
                "error",
                f"{name}={value}: this host has no interface {', '.join(unknown)} (it has {names})",
                f"Set {name} to an interface that every host of the job has.",
            )
    fast = [i.name for i in interfaces if i.kind in ("infiniband", "roce") and i.usable]
    if fast and _on(env, "NCCL_IB_DISABLE"):
        yield Problem(
            "NCCL_IB_DISABLE",
            "conflict",
            "warning",
            f"NCCL_IB_DISABLE=1 although {', '.join(fast)} is up",
            "Set NCCL_IB_DISABLE=0 unless the fabric is known to be broken.",
        )
    nccl, gloo = env.get("NCCL_SOCKET_IFNAME"), env.get("GLOO_SOCKET_IFNAME")
    if nccl and gloo and not nccl.startswith("^") and nccl.lstrip("=") != gloo:
        yield Problem(
            "GLOO_SOCKET_IFNAME",
            "advice",
            "warning",
            f"NCCL uses {nccl} and Gloo uses {gloo}",
            "Use the same interface for both unless this is meant.",
        )


def _channels(env: Mapping[str, str]) -> Iterator[Problem]:
    low, high = env.get("NCCL_MIN_NCHANNELS", ""), env.get("NCCL_MAX_NCHANNELS", "")
    if low.isdigit() and high.isdigit() and int(low) > int(high):
        yield Problem(
            "NCCL_MIN_NCHANNELS",
            "conflict",
            "error",
            f"NCCL_MIN_NCHANNELS={low} is above NCCL_MAX_NCHANNELS={high}",
            "Set both to the same value, or unset them.",
        )
