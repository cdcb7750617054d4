"""Threads that issue on groups of their own, and wait for bursts of Works in any order.

Prints one JSON line: what was issued, what the ring says, and what is still kept in memory.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import threading

import torch
import torch.distributed as dist

import hangscope
from hangscope.recording.api import current_session
from hangscope.trace.rings.read import read_ring

THREADS, BURSTS, BURST = 4, 20, 15

os.environ |= {"RANK": "0", "WORLD_SIZE": "1"}
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
with tempfile.TemporaryDirectory() as folder:
    os.environ["HANGSCOPE_DIR"] = folder
    hangscope.start()
    session = current_session()
    groups = [dist.new_group([0]) for _ in range(THREADS)]
    sys.setswitchinterval(1e-6)

    def hammer(number: int) -> None:
        rng = random.Random(number)
        value = torch.ones(4)
        for _ in range(BURSTS):
            works = [
                dist.all_reduce(value, group=groups[number], async_op=True) for _ in range(BURST)
            ]
            rng.shuffle(works)
            for work in works:
                work.wait()

    threads = [threading.Thread(target=hammer, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(0.005)
    session.recorder.catch_up()
    fragment = read_ring(session.ring.path)
    completions = session.recorder.completions
    print(
        json.dumps(
            {
                "hook": type(session.hook).__name__,
                "issued": THREADS * BURSTS * BURST,
                "records": len(fragment.records),
                "states": sorted({int(row["state"]) for row in fragment.records}),
                "completed": [int(member["completed"]) for member in fragment.members[-THREADS:]],
                "left": {
                    "boxed": len(completions.boxed),
                    "watched": len(completions.watched),
                    "pending": sum(
                        len(state.pending) for state in session.recorder.groups.states()
                    ),
                },
            }
        )
    )
    hangscope.stop()
dist.destroy_process_group()
