"""``python -m hangscope.recording.compiled.trial``: does the compiled hot path work here?

`build` runs it in a process of its own before it puts a file in its place, because code that does
not fit torch may end the process in any way.
"""

from __future__ import annotations

import os
import sys
import tempfile
from datetime import timedelta

MANY = 40
"""More than the recorder leaves unfinished."""


def main() -> None:
    """Issue some operations of a world of one rank, and compare what is on record."""
    import torch
    import torch.distributed as dist
    from torch.distributed import HashStore  # type: ignore[attr-defined]

    from hangscope.recording import api
    from hangscope.recording.compiled.hook import CompiledHook
    from hangscope.ring.reader import RingReader

    with tempfile.TemporaryDirectory() as place:
        os.environ |= {
            "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
            "HANGSCOPE_DIR": place, "HANGSCOPE_MONITOR": "0", "HANGSCOPE_COMPILED": "1",
        }  # fmt: skip
        assert api.start(), "recording did not start"
        session = api.current_session()
        assert session is not None
        assert isinstance(session.hook, CompiledHook), "it was not loaded"
        dist.init_process_group(
            "gloo", store=HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=30)
        )
        value = torch.ones(4)
        works = [dist.all_reduce(value, async_op=True) for _ in range(MANY)]
        for work in works:
            work.wait()
        try:
            dist.broadcast(value, 5)
        except RuntimeError:
            pass
        else:
            raise AssertionError("an error of the backend's did not arrive")
        dist.all_gather([torch.ones(4)], value)
        api.stop()
        records, _ = RingReader(session.ring.path).slots()
        assert not session.failed, "the recorder has given up"
        assert value.tolist() == [1.0] * 4, "it changed a result"
        found = [int(row["collective_seq"]) for row in records if row["group"]]
        assert found == [*range(1, MANY + 2)], f"recorded {found}"
        assert {int(row["state"]) for row in records if row["group"]} == {2}, "not all is finished"
        assert all(row["stack"] and row["signature"] for row in records), "stacks are missing"
    print("ok")


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)
