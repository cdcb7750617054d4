"""Processes that end by an exception nobody's hook is told of: HOW says which kind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time

import torch.multiprocessing


def fail() -> None:
    import hangscope

    hangscope.start()
    raise ValueError("the scale went below its minimum")


def caught() -> None:
    try:
        fail()
    except ValueError:
        sys.exit(3)


def caught_and_left_hard() -> None:
    try:
        fail()
    except ValueError:
        os._exit(4)


_due: list[bool] = []


class _Interrupting(type):
    """The recorder, looking at what kind of exception it is, is interrupted by a signal."""

    @property
    def __module__(cls) -> str:  # type: ignore[override]
        if _due:
            _due.clear()
            os.kill(os.getpid(), signal.SIGUSR1)
        return "__main__"


def _worker_died(number: int, frame: object) -> None:
    raise RuntimeError("a worker was killed")


def interrupted() -> None:
    class ScaleError(ValueError, metaclass=_Interrupting):
        pass

    import hangscope

    hangscope.start()
    signal.signal(signal.SIGUSR1, _worker_died)
    _due.append(True)
    raise ScaleError("the scale went below its minimum")


def wrapped() -> None:
    import hangscope

    hangscope.start()
    try:
        try:
            raise ConnectionError("connection closed by peer")
        except ConnectionError as error:
            raise KeyError("stage 2") from error
    except KeyError as error:
        raise RuntimeError("failed to run a stage:\nwith 3 arguments") from error


def forgiven() -> None:
    try:
        caught()
    except SystemExit:
        pass


def with_last_words() -> None:
    import hangscope

    hangscope.start()
    sys.exit("config: no such data set: 'c4_de'")


def raises_last_words() -> None:
    import hangscope

    hangscope.start()
    raise SystemExit("config: no such data set: 'c4_de'")


def later() -> None:
    forgiven()
    sys.exit(5)


def finish_one() -> None:
    import torch.distributed as dist

    import hangscope

    hangscope.start()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    work = dist.all_reduce(torch.ones(2), async_op=True)
    while not work.is_completed():
        pass


def lose_a_peer(*, before: bool = False) -> None:
    """A receive fails, as the other rank leaves; the program prints that and goes on.

    ``before``: the other has left before it is issued, which raises then, and no wait does.
    """
    import torch.distributed as dist

    import hangscope

    path = os.path.join(os.environ["HANGSCOPE_DIR"], "store")
    child = os.fork()
    if child:
        hangscope.start()
    store = dist.FileStore(path, 2)
    dist.init_process_group("gloo", store=store, rank=int(not child), world_size=2)
    if not child:
        store.wait(["connected"])
        os._exit(0)
    store.set("connected", "")
    if before:
        os.waitpid(child, 0)
        time.sleep(1.0)  # until the connection is seen to be closed
    try:
        dist.recv(torch.ones(2), src=1)
    except RuntimeError as error:
        print(error)


def printed_and_left() -> None:
    lose_a_peer()
    sys.exit(1)


def printed_at_once_and_left() -> None:
    lose_a_peer(before=True)
    sys.exit(1)


def printed_and_left_hard() -> None:
    lose_a_peer()
    os._exit(1)


def went_on_and_left() -> None:
    import hangscope

    lose_a_peer()
    with hangscope.record("custom:all_reduce", torch.ones(2)):
        pass
    sys.exit(6)


def freed() -> None:
    """The program is over, and its process waits for a thread until somebody presses Ctrl-C."""
    import hangscope

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    hangscope.start()

    def press() -> None:
        threading.main_thread().join()
        while True:  # Python may miss one that comes just before it begins to wait
            time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(10.0)

    threading.Thread(target=press).start()


def spawned(index: int) -> None:
    fail()


if __name__ == "__main__":
    how = os.environ["HOW"]
    if how == "spawn":
        torch.multiprocessing.spawn(spawned, nprocs=1)
    elif how == "forked":
        process = multiprocessing.get_context("fork").Process(target=finish_one)
        process.start()
        process.join()
    elif how in ("process-spawn", "process-fork", "words-fork"):
        context = multiprocessing.get_context(how.partition("-")[2])
        process = context.Process(target=raises_last_words if "words" in how else fail)
        process.start()
        process.join()
        sys.exit(process.exitcode)
    else:
        globals()[how]()
