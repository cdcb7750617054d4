"""Selects the physical lines of a log that may matter, numbered, as bytes.

Blocks without a relevant word are skipped before they are decoded, which makes gigabytes bearable.
Whether lines contain such a word is determined once per line shape.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from hangscope.trace.job_log.lines.line_shapes import ShapeCache, contains_any, shape_of_bytes

BLOCK = 1 << 18
MAX_LINE = 1 << 15
CONTEXT = 20
"""How many lines after a relevant one are passed on, whatever they contain."""

_RELEVANT = (
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
    b" received at time=", b'"MESSAGE":[', b"timing out",
    b"Node failure", b"shared memory broadcast", b"actor died", b"actor is dead",
    b"exit type: SYSTEM", b"opCount", b"Init START", b"Service thread", b"died unexpectedly",
    b"died from signal", b"first noticed rank", b" PE RANK ", b"MPI_Abort", b"Abort(",
    b"CalledProcessError", b"job killed", b"Container rank ", b"to join the `",
    b"ranks have not called", b"Memory access fault", b"DEVICE_LOST", b"Proxy Service ",
    b"UCX  ERROR", b"HW Exception by", b"NET/OFI ", b"_handle_error()", b"Transport init error!",
    b"ExceptionType:[", b"RPC agent for ", b"SymmetricMemory::", b":expecting ", b": expecting ",
    b"heartbeats", b"check alive failed", b"have been waiting for", b"has been waiting for",
    b"is unstuck", b"StartAbort", b"Hang detected", b"sendBytes failed", b"recvValue",
    b"==> ", b"should dump", b"failed to run", b"heartbeat of its", b"Abort COMPLETE",
    b"nnodes", b"NNODES", b"num_machines", b"num_nodes", b"num-nodes", b"group_world_size",
    b"node_rank", b"node-rank", b"NODE_RANK", b"machine_rank", b"al_ranks=[",
    b"global_rank_mapping=", b"#0  0x", b"Notify ", b" timeout]", b"|CCL_ERROR|",
    b"fallen off the bus", b"Evicted", b"low on resource", b"NodeNotReady",
    b"blocked for more than",
    b"not responding", b"Lustre", b"ceph: mds", b"beegfs: ", b"world_rank=", b"OUT_OF_ME",
    b"NODE_FAIL", b"PREEMPTED", b"CANCELLED", b"BOOT_FAIL",
)  # fmt: skip

_ABOVE = 3
"""How many lines above a traceback or dump may state whose it is."""
_HEADS = (b"Traceback", b"Python v")
_STACKS = (
    b"most recent call first",
    b"Traceback for thread",
    b'"MainThread"',
    b" (active",
    b" (idle",
)
_STACK_CONTEXT = 200
"""How many lines after the head of a stack are passed on; frames contain no relevant word."""
_ANNOUNCING = (b"opCount", b"Running collective:")
"""Words in lines that are printed for every operation. Only the last of them show where ranks
diverged, and a log of gigabytes may contain nothing else."""
_ANNOUNCED_BLOCKS = 64

Physical = tuple[int, bytes, bytes]
"""(number, line, its shape)"""

_TELLS, _ANNOUNCES, _IS_HEAD, _IS_STACK = 1, 2, 4, 8
_MARKS = tuple(
    (mark, tuple(map(shape_of_bytes, words)))
    for mark, words in (
        (_TELLS, _RELEVANT),
        (_ANNOUNCES, _ANNOUNCING),
        (_IS_HEAD, _HEADS),
        (_IS_STACK, _STACKS),
    )
)


def _marks_of(shape: bytes) -> int:
    return sum(mark for mark, words in _MARKS if contains_any(shape, words))


def relevant_lines(first: bytes, stream: BinaryIO) -> Iterator[Physical]:
    """Numbered lines of the blocks that contain a relevant word, and some lines after each.

    Of a long run of blocks that merely announce operations, the last ones are kept.
    """
    marks = ShapeCache(_marks_of)
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
                        yield from _all_numbered([*announced, (number, rest)], [context], marks)
                        return
                    continue
                cut = len(block) - 1  # an endless line is split
            rest, block = block[cut + 1 :], block[: cut + 1]
        else:
            block, rest = rest, b""
        shape = shape_of_bytes(block)
        found = 0
        for piece in set(shape.replace(b"\r", b"\n").split(b"\n")):
            found |= marks[piece]
        if found & _ANNOUNCES and _only_announces(shape, marks):
            own = _end_of_line(block, context)  # context of a line in the previous block
            yield from _all_numbered([(number, block[:own])], [context], marks)
            announced.append((number + block.count(b"\n", 0, own), block[own:]))
            context = 0
        elif context or found & _TELLS:
            left = [context]
            yield from _all_numbered([*announced], left, marks)
            yield from _numbered(block, shape, number, left, marks)
            announced.clear()
            context = left[0]
        number += block.count(b"\n")
        block = stream.read(BLOCK)
    yield from _all_numbered([*announced], [context], marks)


def _only_announces(shape: bytes, marks: ShapeCache[bytes, int]) -> bool:
    """Whether a block's only relevant lines announce operations."""
    return not any(marks[line] & (_TELLS | _ANNOUNCES) == _TELLS for line in shape.split(b"\n"))


def _end_of_line(block: bytes, count: int) -> int:
    """The position after this many lines."""
    at = 0
    for _ in range(count):
        at = block.find(b"\n", at) + 1 or len(block)
    return at


def _all_numbered(
    blocks: Sequence[tuple[int, bytes]], left: list[int], marks: ShapeCache[bytes, int]
) -> Iterator[Physical]:
    for number, block in blocks:
        yield from _numbered(block, shape_of_bytes(block), number, left, marks)


def _numbered(
    block: bytes, shape: bytes, number: int, left: list[int], marks: ShapeCache[bytes, int]
) -> Iterator[Physical]:
    context = left[0]
    before: deque[tuple[bytes, bytes]] = deque(maxlen=_ABOVE)
    lines = zip(block.split(b"\n"), shape.split(b"\n"), strict=True)
    for i, (line, its_shape) in enumerate(lines, start=number + 1):
        mark = marks[its_shape]
        if mark & _TELLS:
            if context == 0 and mark & _IS_HEAD:
                for back, above in enumerate(before):  # a logger's prefix, py-spy's heading
                    yield i - len(before) + back, above[0][:MAX_LINE], above[1][:MAX_LINE]
            before.clear()
            context = _STACK_CONTEXT if mark & _IS_STACK else max(CONTEXT, context - 1)
        elif context == 0:
            before.append((line, its_shape))
            continue
        else:
            context -= 1
        yield i, line[:MAX_LINE], its_shape[:MAX_LINE]
    left[0] = context
