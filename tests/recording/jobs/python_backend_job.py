"""A backend that is written in Python, as packages register them: its operations go through torch's
store, and its Works end on threads of their own.

With ``hang``, rank 1 leaves out the last operation of a group of its own.
"""

from __future__ import annotations

import pickle
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


class StoreWork(dist.Work):
    """Over when its thread has what it waited for; torch's ``wait`` and polling know nothing of it.

    Polling would be noticed.
    """

    polled = 0

    def __init__(self, result: Callable[[], Any]) -> None:
        super().__init__()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(result,), daemon=True)
        self._thread.start()

    def _run(self, result: Callable[[], Any]) -> None:
        try:
            result()
        except Exception as error:
            self.error = error

    def is_completed(self) -> bool:
        StoreWork.polled += 1
        raise NotImplementedError

    def wait(self, timeout: timedelta | None = None) -> bool:
        self._thread.join()
        if self.error is not None:
            raise self.error
        return True


class StoreGroup(dist.ProcessGroup):
    """A process group that exchanges pickles."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._store, self._number = store, 0

    def _exchange(self, tensor: torch.Tensor, take: Callable[[list[Any]], Any]) -> StoreWork:
        self._number += 1
        number, mine, size = self._number, pickle.dumps(tensor.tolist()), self.size()

        def meet() -> None:
            self._store.set(f"{number}/{self.rank()}", mine)
            told = (pickle.loads(self._store.get(f"{number}/{r}")) for r in range(size))
            take([torch.tensor(each) for each in told])

        return StoreWork(meet)

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> StoreWork:
        (tensor,) = tensors
        return self._exchange(tensor, lambda parts: tensor.copy_(sum(parts)))

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> StoreWork:
        (tensor,) = tensors
        return self._exchange(tensor, lambda parts: tensor.copy_(parts[opts.rootRank]))

    def barrier(self, opts: Any = None) -> StoreWork:
        return self.allreduce([torch.zeros(1)])

    def getBackendName(self) -> str:  # noqa: N802 torch's name
        return "storely"


def main() -> None:
    dist.Backend.register_backend("storely", StoreGroup, devices=["cpu"])
    dist.init_process_group("storely")
    rank = dist.get_rank()
    both = dist.new_group([0, 1], group_desc="metrics")
    tensor = torch.full((4,), float(rank + 1))
    dist.all_reduce(tensor)
    work = dist.broadcast(tensor, 1, group=both, async_op=True)
    assert isinstance(work, StoreWork)
    work.wait()
    dist.barrier()
    assert tensor.tolist() == [3.0] * 4
    assert not StoreWork.polled
    if "hang" in sys.argv:
        if rank == 0:
            dist.all_reduce(torch.ones(2), group=both)
        time.sleep(3600)
    dist.all_reduce(torch.ones(2), async_op=True)  # nobody waits for it
    dist.barrier()


main()
