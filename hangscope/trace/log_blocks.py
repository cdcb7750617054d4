"""Physical lines of a log that may matter, numbered, as bytes.

Whole blocks without a telling word are skipped before they are decoded, which is what makes
gigabytes bearable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import BinaryIO

BLOCK = 1 << 18
MAX_LINE = 1 << 15
CONTEXT = 20
"""Lines behind a telling one that are looked at whatever they hold."""

_TELLING = (
    b"atchdog", b"NCCL work", b"WorkNCCL", b"NCCL comm", b"NCCL WARN", b"NCCL error",
    b"NCCL operations", b"NCCL monitor", b"Init COMPLETE", b"NET/IB : Got", b"WorkHCCL", b"Error:",
    b"error:", b"onitored", b"imed out", b"imeout", b"ismatch", b"ignal", b"ollective",
    b"Traceback", b'  File "', b"xitcode", b"FAILED", b"illed", b"ut of memory",
    b"Out Of Memory", b"1EB memory", b"illegal memory", b"Xid", b"oom-kill", b"oom_", b"OOM",
    b"core dumped", b"Segmentation", b"Aborted", b"erminate called", b" joined",
    b"endezvous", b"store based", b"[hangscope]", b"ncclUniqueId", b"Exception", b"xit code",
    b"return code", b"rminated with", b"Process name:", b"RUNNING AT",
    b"KILLED BY", b"EXIT CODE", b"CANCELLED AT", b"orld size", b"MEMBER:", b"Starting with",
    b"DDP expects", b"params[", b"attempts left", b"connected to",
    b"world_size", b"WORLD_SIZE", b"enforce fail", b"did not receive", b"ready only once",
    b"checkForNaN", b"loss is nan", b"loss scale", b"OpTy", b"ranks [", b" ranks:", b"[PG ",
    b"ProcessGroup", b"subset of ranks", b"considered dead", b"RankID:", b"Job summary",
    b"MISMATCH", b"INCOMPLETE", b"torch/distributed/run.py", b"torch.distributed.run",
    b"ailures:", b"(local_rank: ", b"time      :", b"most recent call first", b'"MainThread"',
    b"Python v", b"=== Rank ", b"<h2>Rank ", b" FR Trace ===",
    b"Duplicate GPU", b"Cuda failure", b"crashed with", b"exited with code", b"heartbeat. Waited",
    b"]:[E", b"MPI_ABORT", b"SIGSEGV", b"SIGTERM:", b"lost communication", b"was dead",
    b"Node failure", b"shared memory broadcast", b"actor died", b"actor is dead",
    b"exit type: SYSTEM", b"opCount", b"Init START", b"Service thread", b"died unexpectedly",
    b"died from signal", b"first noticed rank", b" PE RANK ", b"MPI_Abort", b"Abort(",
    b"CalledProcessError", b"job killed", b"Container rank ", b"to join the `",
    b"ranks have not called", b"Memory access fault", b"DEVICE_LOST", b"Proxy Service ",
    b"UCX  ERROR",
)  # fmt: skip


_ABOVE = 3
"""Lines above the head of a traceback or of a dump that may say whose it is."""
_STACKS = (b"most recent call first", b'"MainThread"', b" (active", b" (idle")
_STACK_CONTEXT = 200
"""Lines behind the head of a stack that are looked at: frames tell nothing by themselves."""


_ANNOUNCING = (b"opCount", b"Running collective:")
"""Words of lines that writers print for every operation: who parted from whom is told by the last
of them, and a log of gigabytes may hold nothing else."""
_ANNOUNCED_BLOCKS = 64


def telling(first: bytes, stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Numbered lines of the blocks that hold a telling word, and some lines after each.

    Of a long row of blocks that merely announce operations the last ones count.
    """
    rest = b""
    number = 0
    context = 0
    announced: deque[tuple[int, bytes]] = deque(maxlen=_ANNOUNCED_BLOCKS)
    block = first
    while block or rest:
        if block:
            block = rest + block
            cut = block.rfind(b"\n")
            if cut < 0:
                if len(block) <= MAX_LINE * 4:
                    rest = block
                    block = stream.read(BLOCK)
                    if not block:
                        yield from _all_numbered([*announced, (number, rest)], [context])
                        return
                    continue
                cut = len(block) - 1  # a line without end: taken as it comes
            rest, block = block[cut + 1 :], block[: cut + 1]
        else:
            block, rest = rest, b""
        if _only_announces(block):
            own = _end_of_line(block, context)  # what belongs to a line of the block before
            yield from _numbered(block[:own], number, [context])
            announced.append((number + block.count(b"\n", 0, own), block[own:]))
            context = 0
        elif context or any(word in block for word in _TELLING):
            left = [context]
            yield from _all_numbered([*announced, (number, block)], left)
            announced.clear()
            context = left[0]
        number += block.count(b"\n")
        block = stream.read(BLOCK)
    yield from _all_numbered([*announced], [context])


def _only_announces(block: bytes) -> bool:
    """Whether nothing tells in a block but lines that announce operations."""
    if not any(word in block for word in _ANNOUNCING):
        return False
    others = b"\n".join(
        [line for line in block.split(b"\n") if not any(word in line for word in _ANNOUNCING)]
    )
    return not any(word in others for word in _TELLING)


def _end_of_line(block: bytes, count: int) -> int:
    """Where so many lines end."""
    at = 0
    for _ in range(count):
        at = block.find(b"\n", at) + 1 or len(block)
    return at


def _all_numbered(
    blocks: Sequence[tuple[int, bytes]], left: list[int]
) -> Iterator[tuple[int, bytes]]:
    for number, block in blocks:
        yield from _numbered(block, number, left)


def _numbered(block: bytes, number: int, left: list[int]) -> Iterator[tuple[int, bytes]]:
    context = left[0]
    before: deque[bytes] = deque(maxlen=_ABOVE)
    for i, line in enumerate(block.split(b"\n"), start=number + 1):
        if any(word in line for word in _TELLING):
            if context == 0 and (b"Traceback" in line or b"Python v" in line):
                for back, above in enumerate(before):  # a logger's prefix, py-spy's head
                    yield i - len(before) + back, above[:MAX_LINE]
            before.clear()
            stack = any(word in line for word in _STACKS)
            context = _STACK_CONTEXT if stack else max(CONTEXT, context - 1)
        elif context == 0:
            before.append(line)
            continue
        else:
            context -= 1
        yield i, line[:MAX_LINE]
    left[0] = context
