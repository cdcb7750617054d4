"""Rank 1 never comes; told to end, it goes to a last barrier. ``leaving_job.py MANNER FOLDER``.

Who is told to end leaves a mark in the folder, and everybody is killed two seconds later.
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
    while not MARK.exists():
        time.sleep(0.05)
    time.sleep(KILLED_AFTER_S)
    os.kill(os.getpid(), signal.SIGKILL)


threading.Thread(target=kill_when_told, daemon=True).start()
dist.init_process_group("gloo")
signal.signal(signal.SIGTERM, in_handler if MANNER == "handler" else by_exception)
if MANNER == "exit":
    atexit.register(clean_up)
try:
    train()
finally:
    if MANNER in ("finally", "interrupt"):
        clean_up()
