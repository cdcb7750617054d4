"""A rank dies: before a barrier, and inside one. Bare processes; rank 0 serves the store."""

import os
import signal
import sys
import threading
import time

import hangscope
from tests.job_report import Report, raises

report = Report()
hangscope.init_distributed(init_timeout=30)
rank = report.rank

if sys.argv[1] == "before":
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    with report.check("dead_rank_is_missing"):
        error = raises(hangscope.BarrierTimeout, hangscope.barrier, 2, "step")
        assert error.missing == [2], error.missing
        assert error.details[2].host, error.details
elif sys.argv[1] == "inside":
    if rank == 2:
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    if rank == 3:
        time.sleep(3)  # does not come before the others give up
    with report.check("dies_inside"):
        if rank != 3:
            error = raises(hangscope.BarrierTimeout, hangscope.barrier, 2, "step")
            assert error.missing == [3], error.missing
            assert 2 in error.arrived, error.arrived
    if rank == 3:
        with report.check("late_after_a_death"):
            error = raises(hangscope.BarrierTimeout, hangscope.barrier, 2, "step")
elif sys.argv[1] == "store":
    if rank == 0:
        time.sleep(2)  # the others have left the barrier of the launch by then
        os.kill(os.getpid(), signal.SIGKILL)  # and the store with it
    with report.check("lost_store_is_said"):
        error = raises(hangscope.BarrierTimeout, hangscope.barrier, 5, "step")
        assert "store was lost" in str(error), str(error)
elif sys.argv[1] == "last":
    # The one that serves the store is the fastest to leave after the last barrier.
    with report.check("nobody_loses_the_store_at_the_end"):
        for _ in range(5):
            time.sleep(0.05 * rank)
            hangscope.barrier(10, "end")
if sys.argv[1] == "inside" and rank == 0:
    time.sleep(3)  # the others still ask its store who is missing
os._exit(0) if sys.argv[1] in ("inside", "store") else None
