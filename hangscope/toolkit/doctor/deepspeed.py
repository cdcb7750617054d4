"""D16 to D18: checks of a DeepSpeed configuration, alone and against the launch command."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hangscope.toolkit.doctor.command import parse_command
from hangscope.toolkit.doctor.model import ERROR, NOTE, WARNING, Finding, Surroundings
from hangscope.trace.files.regular_files import read_regular

MAX_CONFIG_BYTES = 4 << 20

_TWICE = {
    "gradient_accumulation_steps": "gradient-accumulation-steps",
    "gradient_clipping": "gradient-clipping",
    "train_micro_batch_size_per_gpu": "per-device-train-batch-size",
}


def check_deepspeed(s: Surroundings, config_path: Path | None) -> Iterator[Finding]:
    """Check the configuration in ``config_path``, or the one named in the command."""
    options = _program_options(s)
    named = options.get("deepspeed") or options.get("deepspeed-config")
    path = config_path
    if path is None and named and named.endswith(".json"):
        path = Path(s.cwd) / named
    if path is None:
        return
    try:
        config = json.loads(read_regular(path, MAX_CONFIG_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        what = (error.strerror if isinstance(error, OSError) else None) or str(error)
        yield Finding(
            ERROR, "deepspeed-config", f"{path}: {what}", "Correct the path or the file.", "D17"
        )
        return
    if not isinstance(config, dict):
        yield Finding(
            ERROR, "deepspeed-config", f"{path} holds no object", "Correct the file.", "D17"
        )
        return
    yield from check_stage(config)
    yield from check_overlap(config, options)


def check_stage(config: Mapping[str, Any]) -> Iterator[Finding]:
    """D16: the ZeRO stage, and options that only some stages support."""
    zero = config.get("zero_optimization")
    zero = zero if isinstance(zero, Mapping) else {}
    stage = zero.get("stage", 0)
    if stage not in (0, 1, 2, 3, "auto"):
        yield Finding(
            ERROR, "zero-stage", f"stage {stage!r} is none of 0 to 3", "Use 1, 2 or 3.", "D16"
        )
        return
    offload = zero.get("offload_param")
    if isinstance(offload, Mapping) and offload.get("device", "none") != "none" and stage != 3:
        yield Finding(
            ERROR,
            "zero-offload",
            f"offload_param needs stage 3, and the stage is {stage}",
            "Use stage 3, or drop offload_param.",
            "D16",
        )
    optimizer = zero.get("offload_optimizer")
    if isinstance(optimizer, Mapping) and optimizer.get("device", "none") != "none" and stage == 0:
        yield Finding(
            ERROR,
            "zero-offload",
            "offload_optimizer does nothing at stage 0",
            "Use stage 1 or 2.",
            "D16",
        )
    if stage == 3:
        yield Finding(
            NOTE,
            "zero-stage",
            "stage 3 gathers every parameter in forward and backward",
            "Use the smallest stage that fits: 1 shards optimizer states, 2 gradients as well.",
            "D16",
        )


def check_overlap(config: Mapping[str, Any], options: Mapping[str, str]) -> Iterator[Finding]:
    """D17: settings that contradict each other or are given in two places."""
    enabled = [
        name
        for name in ("fp16", "bf16")
        if isinstance(config.get(name), Mapping) and config[name].get("enabled") is True
    ]
    if len(enabled) > 1:
        yield Finding(ERROR, "precision", "fp16 and bf16 are both enabled", "Keep bf16.", "D17")
    for key, option in _TWICE.items():
        here, there = config.get(key), options.get(option)
        if here is None or here == "auto" or there is None or str(here) == there:
            continue
        yield Finding(
            ERROR,
            "set-twice",
            f"{key} is {here} in the DeepSpeed configuration and {there} on the command line",
            f'Set it once: "{key}": "auto" in the file.',
            "D17",
        )
    numbers = [
        config.get(name)
        for name in (
            "train_batch_size",
            "train_micro_batch_size_per_gpu",
            "gradient_accumulation_steps",
        )
    ]
    whole = [n for n in numbers if isinstance(n, int) and not isinstance(n, bool)]
    if len(whole) == 3 and (min(whole) < 1 or whole[0] % (whole[1] * whole[2])):
        yield Finding(
            ERROR,
            "batch-size",
            f"train_batch_size {whole[0]} is no multiple of {whole[1]} per device times "
            f"{whole[2]} accumulation steps",
            "train_batch_size = micro batch * accumulation steps * world size; leave one out.",
            "D17",
        )
    if config.get("zero_allow_untested_optimizer") is True:
        yield Finding(
            WARNING,
            "untested-optimizer",
            "zero_allow_untested_optimizer lets ZeRO shard an optimizer it does not know",
            "Compare its results with stage 0 first.",
            "D17",
        )


def _program_options(s: Surroundings) -> dict[str, str]:
    """Options passed to the training program itself."""
    command = parse_command(s.command)
    words = list(command.program) if command is not None else []
    options: dict[str, str] = {}
    for index, word in enumerate(words):
        if not word.startswith("--"):
            continue
        name, equals, value = word[2:].partition("=")
        following = words[index + 1] if index + 1 < len(words) else ""
        options[name.replace("_", "-")] = value if equals else following
    return options
