"""Barriers in a real job of four ranks."""

import threading
import time
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist

import hangscope
from tests.job_report import Report, raises

report = Report()
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
rank = dist.get_rank()
everybody = [0, 1, 2, 3]

with report.check("all_return"):
    began = time.monotonic()
    for _ in range(50):
        hangscope.barrier(30, "nothing in particular")
    report.values["barrier_ms"] = (time.monotonic() - began) / 50 * 1e3

with report.check("nobody_leaves_before_the_last_has_come"):
    time.sleep(0.3 * rank)
    came = time.time()
    hangscope.barrier(30)
    gone = time.time()
    times: list = [None] * 4
    dist.all_gather_object(times, (came, gone))
    assert max(c for c, _ in times) <= min(g for _, g in times) + 0.001, times

with report.check("missing_named"):
    if rank != 2:
        error = raises(hangscope.BarrierTimeout, hangscope.barrier, 1.5, "checkpoint")
        assert error.missing == [2], error.missing
        assert error.arrived == [0, 1, 3], error.arrived
        assert "rank 2" in str(error)
        assert "checkpoint" in str(error)
        assert "Likely" in str(error)
        assert error.details[2].host, error.details
    else:
        time.sleep(2)

with report.check("repeats_after_a_timeout"):
    hangscope.barrier(30, "after the timeout, which one rank never saw")
    hangscope.barrier(30, "again")

with report.check("latecomer_raises_too"):
    if rank == 1:
        time.sleep(2.5)
    error = raises(hangscope.BarrierTimeout, hangscope.barrier, 1.0, "late")
    assert error.missing == [1], (error.missing, str(error))
    assert ("came after" in str(error)) == (rank == 1), str(error)

with report.check("repeats_after_a_latecomer"):
    for _ in range(3):
        hangscope.barrier(30, "all there")

# Ranks 1 and 3: neither 0..n nor neighbours.
pair = dist.new_group([1, 3])
with report.check("subgroup"):
    if rank in (1, 3):
        hangscope.barrier(30, "pair", pair)
        hangscope.barrier(30, "pair", group=pair)
    else:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            hangscope.barrier(30, "not mine", pair)
        assert any("not a member" in str(w.message) for w in caught), caught

with report.check("subgroup_missing_named_by_global_rank"):
    if rank == 3:
        error = raises(hangscope.BarrierTimeout, hangscope.barrier, 1.0, "pair", pair)
        assert error.missing == [1], error.missing
        assert error.arrived == [3], error.arrived

with report.check("issues_no_collective"):
    before = dist.group.WORLD._get_sequence_number_for_group()
    hangscope.barrier(30, "quiet")
    assert dist.group.WORLD._get_sequence_number_for_group() == before

with report.check("other_threads_may_use_the_store_meanwhile"):
    store = dist.distributed_c10d._get_default_store()
    took: list[float] = []

    def use_store() -> None:
        for number in range(20):
            at = time.monotonic()
            store.set(f"thread/{rank}/{number}", "x")
            took.append(time.monotonic() - at)
            time.sleep(0.02)

    thread = threading.Thread(target=use_store)
    thread.start()
    if rank == 0:
        time.sleep(1)
    hangscope.barrier(30, "while a thread works")
    thread.join()
    assert max(took) < 0.5, max(took)

with report.check("keys_do_not_pile_up"):
    store = dist.distributed_c10d._get_default_store()
    hangscope.barrier(30, "before counting")
    dist.barrier()
    before = store.num_keys() if rank == 0 else 0
    dist.barrier()
    for _ in range(20):
        hangscope.barrier(30, "counted")
    dist.barrier()
    if rank == 0:
        assert store.num_keys() - before < 8, (before, store.num_keys())
    dist.barrier()

with report.check("after_reinitialisation"):
    # torch's own second init_process_group on one store trips over its old Gloo addresses.
    hangscope.destroy_distributed()
    hangscope.init_distributed(init_timeout=30, timeout=30)
    if rank == 0:
        time.sleep(0.5)
    came = time.time()
    hangscope.barrier(30, "second life")
    times = [None] * 4
    dist.all_gather_object(times, (came, time.time()))
    assert max(c for c, _ in times) <= min(g for _, g in times) + 0.001, "passed on old keys"

with report.check("wrong_timeouts_are_refused"):
    for wrong in (0, -1, float("nan"), "5", True):
        raises(ValueError, hangscope.barrier, wrong)

assert torch.initial_seed()
dist.destroy_process_group()
