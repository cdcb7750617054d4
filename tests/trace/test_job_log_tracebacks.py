"""Attribution of tracebacks in a log."""

from __future__ import annotations

import pytest

from .logs import claims, timeout, trace_of
from .torchrun_table import table


def test_traceback_with_the_rank_as_prefix() -> None:
    trace = trace_of(
        '[rank2]: Traceback (most recent call last):\n[rank2]:   File "/app/train.py", line 9, in '
        "<module>\n[rank2]:     main()\n[rank2]:     ^^^^^^\n"
        '[rank2]:   File "/app/train.py", line 5, in main\n[rank2]:     raise KeyError("x")\n'
        "[rank2]: KeyError: 'x'\n"
    )
    exception = trace.ranks[2].exception
    assert exception is not None
    assert (exception.type_name, exception.message) == ("KeyError", "'x'")
    assert [f.name for f in exception.stack] == ["main", "<module>"]
    assert trace.ranks[2].exit is not None
    assert trace.ranks[2].exit.kind == "exception"


def test_interleaved_tracebacks_of_two_ranks() -> None:
    a = [
        "[default0]:Traceback (most recent call last):",
        '[default0]:  File "/app/a.py", line 1, in f',
        "[default0]:    x",
        "[default0]:ValueError: a",
    ]
    b = [line.replace("default0", "default1").replace("ValueError: a", "OSError: b") for line in a]
    trace = trace_of("\n".join(x for pair in zip(a, b, strict=True) for x in pair) + "\n")
    found = {r: f.exception.type_name for r, f in trace.ranks.items() if f.exception}
    assert found == {0: "ValueError", 1: "OSError"}


def test_launchers_own_traceback_belongs_to_no_rank() -> None:
    trace = trace_of(
        "Traceback (most recent call last):\n"
        '  File "/usr/bin/torchrun", line 8, in <module>\n    sys.exit(main())\n'
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
        + table(-9, "Signal 9 (SIGKILL) received by PID 5002")
    )
    assert trace.ranks[9].exit is not None
    assert all(f.exception is None for f in trace.ranks.values())


def test_exception_in_another_thread_is_not_the_main_threads() -> None:
    trace = trace_of(
        "[rank0]: Exception in thread Thread-4 (loader):\n"
        '[rank0]: Traceback (most recent call last):\n[rank0]:   File "/a.py", line 1, in run\n'
        "[rank0]: ValueError: x\n"
    )
    exception = trace.ranks[0].exception
    assert exception is not None
    assert not exception.is_main_thread
    assert trace.ranks[0].exit is None


def test_frames_go_down_to_the_first_cause() -> None:
    lines = (
        "Traceback (most recent call last):",
        '  File "/lib/stage.py", line 20, in run',
        '  File "/app/model.py", line 9, in forward',
        "ValueError: bad index",
        "",
        "The above exception was the direct cause of the following exception:",
        "",
        "Traceback (most recent call last):",
        '  File "/app/train.py", line 5, in <module>',
        '  File "/lib/stage.py", line 22, in run',
        "RuntimeError: stage 1 failed",
    )
    text = "".join(f"[rank1]: {line}\n" for line in lines)
    exception = trace_of(text).ranks[1].exception
    assert exception is not None
    assert exception.message == "stage 1 failed\ncaused by ValueError: bad index"
    assert [(f.name, f.line) for f in exception.stack] == [
        ("forward", 9), ("run", 20), ("<module>", 5),
    ]  # fmt: skip
    worker = text.replace('stage.py", line 20', 'worker.py", line 20')
    exception = trace_of(worker).ranks[1].exception
    assert exception is not None
    assert [f.name for f in exception.stack] == ["run", "<module>"], "it was another process's"


_BAD_SAMPLE = (
    "Traceback (most recent call last):", '  File "/app/data.py", line 31, in load',
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
)  # fmt: skip


@pytest.mark.parametrize("prefix", ["[default1]:", "[rank1] "])
@pytest.mark.parametrize("after", ["step 100 loss 2.31", "{'loss': 2.31, 'epoch': 0.2}"])
def test_who_trains_on_has_handled_what_it_printed(prefix: str, after: str) -> None:
    text = "".join(f"{prefix}{line}\n" for line in (*_BAD_SAMPLE, "skipping it", after))
    trace = trace_of(text + timeout(0, 7) + timeout(1, 7))
    assert all(f.exception is None for f in trace.ranks.values())
    assert not claims(trace, "oom"), "its own error is handled as well"


@pytest.mark.parametrize(
    "after",
    [
        "saving checkpoint of step 100",
        "run failed at step 100",
        " 20%|##| 375/1881 [3:40 loss 2.3]",
    ],
)
def test_what_a_handler_prints_while_a_process_ends_is_no_progress(after: str) -> None:
    text = "".join(f"[default1]:{line}\n" for line in (*_BAD_SAMPLE, after))
    exception = trace_of(text).ranks[1].exception
    assert exception is not None
    assert exception.type_name == "torch.OutOfMemoryError"
    assert claims(trace_of(text), "oom")


def test_another_ones_progress_says_nothing() -> None:
    text = "".join(f"[default1]:{line}\n" for line in _BAD_SAMPLE)
    trace = trace_of(text + "[default0]:step 100 loss 2.31\n")
    assert trace.ranks[1].exception is not None


def test_what_was_printed_and_survived_is_told_of_its_rank() -> None:
    text = "".join(f"[rank1] {line}\n" for line in (*_BAD_SAMPLE, "step 100 loss 2.31"))
    printed = trace_of(timeout(1, 7) + text).ranks[1].printed
    assert printed is not None
    assert printed.type_name == "torch.OutOfMemoryError"


def test_progress_that_stood_in_a_buffer_hides_no_crash() -> None:
    """Python writes what it has printed to a pipe only as it exits, below the traceback."""
    text = "".join(f"[default1]:{line}\n" for line in (*_BAD_SAMPLE, "step 100 loss 2.31"))
    agent = (
        "E1121 10:11:12.123456 4711 torch/distributed/elastic/multiprocessing/api.py:869] "
        "failed (exitcode: 1) local_rank: 1 (pid: 1284) of binary: /usr/bin/python3\n"
    )
    exception = trace_of(text + agent).ranks[1].exception
    assert exception is not None
    assert exception.type_name == "torch.OutOfMemoryError"
    alone = trace_of(text)
    assert not alone.ranks, "nothing shows that it ended"
    assert any("OutOfMemoryError" in c.text for c in claims(alone, "other")), "yet it is told"


def test_older_progress_below_a_traceback_stood_in_a_buffer() -> None:
    times = ["2025-11-21 10:00:09,123 "] * len(_BAD_SAMPLE) + ["2025-11-21 10:00:01,123 "]
    lines = (*_BAD_SAMPLE, "step 100 loss 2.31")
    text = "".join(f"[default1]:{at}{x}\n" for at, x in zip(times, lines, strict=True))
    assert trace_of(text).ranks[1].exception is not None
