"""The plugin for aarch64, built here and executed by an emulator; its ring is read on this machine.

What an emulator cannot show is another order of loads and stores: x86 keeps it under qemu as well.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from hangscope.nccl_plugin.build import build_plugin
from hangscope.ring.device_reader import read_device_ring

COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
LIBRARIES = "/usr/aarch64-linux-gnu"
pytestmark = [
    pytest.mark.skipif(
        platform.machine() == "aarch64" or None in map(shutil.which, (COMPILER, EMULATOR)),
        reason=f"no {COMPILER} or {EMULATOR}",
    ),
    pytest.mark.xdist_group("nccl_plugin"),
]


def test_it_is_built_and_writes_a_ring_that_is_readable_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", COMPILER)
    plugin = build_plugin(tmp_path)
    assert plugin.name.endswith("_aarch64.so")
    program, ring = tmp_path / "cost", tmp_path / "rank_0.device"
    source = Path(__file__).parent / "cost.c"
    subprocess.run([COMPILER, "-O2", str(source), "-o", str(program), "-ldl"], check=True)
    done = subprocess.run(
        [EMULATOR, "-L", LIBRARIES, str(program), str(plugin), str(ring)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["operations"] == len(read_device_ring(ring).operations)


def test_ids_are_published_with_release_semantics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written last must be seen last; on aarch64 that takes a store of another kind."""
    monkeypatch.setenv("CC", COMPILER)
    code = subprocess.run(
        ["aarch64-linux-gnu-objdump", "-d", str(build_plugin(tmp_path))],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "stlr" in code
    assert "dmb\tish" in code
