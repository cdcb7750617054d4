"""D3, D7: checks that ranks and devices match, and that the model fits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hangscope.toolkit.doctor.launch import visible_count
from hangscope.toolkit.doctor.model import ERROR, NOTE, WARNING, Finding, Surroundings
from hangscope.toolkit.launching.world import get_world_info

BYTES_PER_PARAMETER = 18
"""Mixed precision with Adam: 2 + 2 for weights and gradients, 4 + 4 + 4 for the fp32 copy and two
moments, about 2 for the rest. Activations are extra."""
USABLE = 0.8
"""Share of a device's memory that training state may take; the rest is for activations."""


def check_devices(s: Surroundings) -> Iterator[Finding]:
    """Check this process's device variables against its rank and the host's devices."""
    text = s.env.get("CUDA_VISIBLE_DEVICES")
    listed = [part.strip() for part in (text or "").split(",") if part.strip()]
    if text is not None and len(set(listed)) < len(listed):
        yield Finding(
            ERROR,
            "device-twice",
            f"CUDA_VISIBLE_DEVICES={text} names a device twice: two ranks would share it",
            "List every device once.",
            "D3",
        )
    known = {device.index for device in s.devices}
    absent = [part for part in listed if part.isdigit() and known and int(part) not in known]
    if absent:
        yield Finding(
            ERROR,
            "device-absent",
            f"CUDA_VISIBLE_DEVICES={text}: this host has no device {', '.join(absent)}; CUDA "
            "ignores everything from there on",
            f"Use 0 to {max(known)}.",
            "D3",
        )
    try:
        world = get_world_info(s.env)
    except ValueError:
        return  # reported by the launch checks
    if not s.devices or world.launcher == "none":
        return
    visible = visible_count(s)
    # One visible device per process is fine: then every process uses device 0.
    if visible > 1 and world.local_rank >= visible:
        yield Finding(
            ERROR,
            "local-rank",
            f"LOCAL_RANK={world.local_rank}, but {visible} devices are visible",
            f"Start at most {visible} processes on this node, or make more devices visible.",
            "D3",
        )


def shared_devices(
    ranks: Mapping[int, Mapping[str, object]],
) -> Iterator[Finding]:
    """D3 across ranks: two processes of one host that would use the same device.

    Parameters
    ----------
    ranks:
        Facts by rank: ``host``, ``local_rank``, ``visible`` (list of device names, or ``None`` for
        all) and ``devices`` (number of devices of the host).
    """
    used: dict[tuple[str, str], list[int]] = {}
    for rank, facts in sorted(ranks.items()):
        device = _device_of(facts)
        if device is not None:
            used.setdefault((str(facts["host"]), device), []).append(rank)
    for (host, device), sharing in used.items():
        if len(sharing) > 1:
            yield Finding(
                ERROR,
                "shared-device",
                f"ranks {', '.join(map(str, sharing))} on {host} would all use device {device}",
                "Index the device by LOCAL_RANK, and give co-located jobs disjoint "
                "CUDA_VISIBLE_DEVICES.",
                "D3",
                ranks=tuple(sharing),
            )


def _device_of(facts: Mapping[str, object]) -> str | None:
    """The physical device of a rank that binds ``cuda:LOCAL_RANK``, or its only visible one."""
    visible, count = facts.get("visible"), facts.get("devices")
    local = int(str(facts.get("local_rank", 0)))
    if isinstance(visible, Sequence) and not isinstance(visible, str):
        if not visible:
            return None
        return str(visible[local if len(visible) > 1 and local < len(visible) else 0])
    if isinstance(count, int) and count > 0:
        return str(min(local, count - 1))
    return None


def check_fit(
    parameters: int, memory_bytes: int, world_size: int, wrapper: str = ""
) -> Iterator[Finding]:
    """D7: does the training state fit a device, and with which wrapper?

    Parameters
    ----------
    parameters:
        Number of the model's parameters.
    memory_bytes:
        Memory of one device.
    world_size:
        Ranks to shard over.
    wrapper:
        ``ddp``, ``fsdp`` (or ``zero3``), ``zero1``, ``zero2`` or empty.
    """
    need = parameters * BYTES_PER_PARAMETER
    room = memory_bytes * USABLE
    size = f"{parameters:,} parameters need about {_gib(need)} of state"
    sharded = need / max(1, world_size)
    if need <= room:
        if wrapper in ("fsdp", "zero3"):
            yield Finding(
                NOTE,
                "fits",
                f"{size}, which fits one device ({_gib(memory_bytes)})",
                "DDP is simpler and communicates less.",
                "D7",
            )
    elif wrapper in ("", "ddp"):
        yield Finding(
            ERROR if wrapper else WARNING,
            "does-not-fit",
            f"{size}, more than {USABLE:.0%} of one device ({_gib(memory_bytes)})",
            "Shard it with FSDP or ZeRO."
            if sharded <= room
            else f"Shard it over at least {-(-need // int(room))} ranks, or offload.",
            "D7",
        )
    elif sharded > room:
        yield Finding(
            ERROR,
            "does-not-fit",
            f"{size}; over {world_size} ranks that is {_gib(sharded)} each, more than {USABLE:.0%} "
            f"of a device ({_gib(memory_bytes)})",
            f"Shard over at least {-(-need // int(room))} ranks, or offload to the host.",
            "D7",
        )


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"
