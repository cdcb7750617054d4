"""Rank 1 never comes; told to end, it goes to a last barrier. ``leaving_job.py MANNER FOLDER``.

Who is told to end leaves a mark in the folder, and rank 0 kills everybody two seconds later.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

MANNER, MARK = sys.argv[1], Path(sys.argv[2]) / "told"
STEPS, HANGS_AT = 40, 30
TOLD_AFTER_S, KILLED_AFTER_S = 4.0, 2.0


def clean_up() -> None:
    dist.barrier()


def in_handler(number: int, frame: object) -> None:
    MARK.touch()
    clean_up()


def by_exception(number: int, frame: object) -> None:
    MARK.touch()
    raise SystemExit(128 + number)


def load_batch() -> None:
    if MANNER == "interrupt":
        signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(TOLD_AFTER_S, tell).start()
    while True:
        time.sleep(0.05)


def tell() -> None:
    if MANNER == "interrupt":
        MARK.touch()
    os.kill(os.getpid(), signal.SIGINT if MANNER == "interrupt" else signal.SIGTERM)


def train() -> None:
    for step in range(STEPS):
        if step == HANGS_AT and dist.get_rank() == 1:
            load_batch()
        dist.all_reduce(torch.ones(4))


def kill_when_told() -> None:
    """Rank 0 kills all, the accused first: nobody lives to fail because of another's end."""
    while not MARK.exists():
        time.sleep(0.05)
    time.sleep(KILLED_AFTER_S)
    for rank in (1, 2, 0):
        os.kill(int((MARK.parent / f"pid{rank}").read_text()), signal.SIGKILL)


(MARK.parent / f"pid{os.environ['RANK']}").write_text(str(os.getpid()))
dist.init_process_group("gloo")
if dist.get_rank() == 0:
    threading.Thread(target=kill_when_told, daemon=True).start()
signal.signal(signal.SIGTERM, in_handler if MANNER == "handler" else by_exception)
if MANNER == "exit":
    atexit.register(clean_up)
try:
    train()
finally:
    if MANNER in ("finally", "interrupt"):
        clean_up()
