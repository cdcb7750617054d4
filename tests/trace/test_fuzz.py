"""Whatever a file contains: at most one warning, the good file beside it is read, no exception."""

from __future__ import annotations

import copy
import io
import json
import pickle
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from hangscope.trace.files.unpickle import load_plain
from hangscope.trace.job_log.read import read_job_log
from hangscope.trace.load import load_trace
from hangscope.trace.merging.merge import merge
from hangscope.trace.model import Trace
from tests.depth import examples

from .dumps import dump, entry, pending, write
from .logs import timeout
from .test_job_log_desync import DESYNC
from .torchrun_table import table

QUICK = settings(max_examples=examples(60), derandomize=True)

numbers = st.one_of(
    st.integers(-3, 70),
    st.sampled_from([2**31, 2**63, -(2**63) - 1, 2**64 - 1, 10**40, -(10**40)]),
    st.floats(),
)
texts = st.one_of(
    st.text(max_size=8),
    st.sampled_from(
        ["\x1b[31m", "nccl:send 0->1", "nccl:recv 3<-?", "recv 9999999999<-1", "[0, 1]", "12", "",
         "\ud800", "nccl:coalesced", "completed", "[link=x]", "0"]
    ),
)  # fmt: skip
scalars = st.one_of(st.none(), st.booleans(), numbers, texts, st.binary(max_size=5))
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(st.one_of(texts, st.integers(0, 9)), inner, max_size=4),
    ),
    max_leaves=8,
)


def paths(node: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document."""
    found = [here]
    if isinstance(node, dict):
        for key, value in node.items():
            found.extend(paths(value, (*here, key)))
    elif isinstance(node, (list, tuple)):
        for i, value in enumerate(node):
            found.extend(paths(value, (*here, i)))
    return found


def replaced(node: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy with another value at one place."""
    if not path:
        return value
    if isinstance(node, tuple):
        return tuple(replaced(list(node), path, value))
    made = copy.copy(node)
    try:
        made[path[0]] = replaced(node[path[0]], path[1:], value)
    except (KeyError, IndexError, TypeError):
        return node  # an earlier change has taken the place away
    return made


GOOD = dump(
    [
        entry(1),
        pending(1, "nccl:send 1->0", is_p2p=True, p2p_seq_id=1),
        pending(1, "nccl:coalesced", p2p_seq_id=1),
        pending(2, "nccl:_all_gather_base", input_sizes=[[2, 3]], output_sizes=[[4, 3]]),
    ]
)
PLACES = paths(GOOD)


@st.composite
def damaged(draw: st.DrawFn) -> Any:
    document = GOOD
    for _ in range(draw(st.integers(1, 4))):
        document = replaced(document, draw(st.sampled_from(PLACES)), draw(values))
    return document


def check(trace: Trace) -> None:
    """What every reader of a Trace relies on."""
    rows = trace.records
    if len(rows):
        assert rows["group"].min() >= 0
        assert rows["group"].max() < len(trace.groups)
        assert rows["signature"].min() >= 0
        assert rows["signature"].max() < len(trace.signatures)
        assert rows["stack"].min() >= -1
        assert rows["stack"].max() < len(trace.stacks)
        assert (rows["rank"][1:] >= rows["rank"][:-1]).all()
        assert (rows["state"] <= 2).all()
        assert set(rows["rank"].tolist()) <= {-1, *trace.ranks}
    if len(trace.members):
        assert trace.members["group"].min() >= 0
        assert trace.members["group"].max() < len(trace.groups)
        columns = trace.members["rank"].tolist(), trace.members["group"].tolist()
        pairs = list(zip(*columns, strict=True))
        assert len(set(pairs)) == len(pairs)
    for claim in trace.claims:
        assert -1 <= claim.group < len(trace.groups)
        assert 0 <= claim.source < len(trace.sources)
    for group in trace.groups:
        assert len(set(group.ranks)) == len(group.ranks)
    shown = [g.name + g.desc for g in trace.groups]
    shown += [s.op + s.raw for s in trace.signatures] + list(trace.warnings)
    shown += [f.name + f.filename for s in trace.stacks for f in s]
    assert all("\x1b" not in t and "\n" not in t for t in shown)


def beside_a_good_one(name: str, content: bytes) -> Trace:
    """The trace of a folder with rank 0's good dump and one more file."""
    folder = Path(tempfile.mkdtemp())
    try:
        write(folder, "trace_0", GOOD)
        (folder / name).write_bytes(content)
        trace = load_trace([folder])
    finally:
        shutil.rmtree(folder)
    check(trace)
    assert len([w for w in trace.warnings if str(folder / name) in w]) <= 1
    assert (trace.records["rank"] == 0).sum() == 4
    return trace


@QUICK
@given(damaged())
@example({**GOOD, "entries": [entry(1, record_id=2**70)]})
@example({**GOOD, "entries": [entry(1, input_sizes=[[2**70]])]})
def test_documents_with_arbitrary_values(document: Any) -> None:
    beside_a_good_one("trace_1", pickle.dumps(document, 2, fix_imports=False))


@QUICK
@given(damaged())
def test_json_documents_with_arbitrary_values(document: Any) -> None:
    try:
        text = json.dumps(document, default=repr, skipkeys=True)
    except (ValueError, TypeError):
        return
    beside_a_good_one("trace_1.json", text.encode("utf-8", "surrogatepass"))


@QUICK
@given(
    st.sampled_from([2, 4, 5]),
    st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), max_size=4),
    st.one_of(st.none(), st.integers(0, 5000)),
)
def test_pickles_with_flipped_and_missing_bytes(
    protocol: int, flips: list[tuple[int, int]], cut: int | None
) -> None:
    data = bytearray(pickle.dumps(GOOD, protocol))
    for at, value in flips:
        data[at % len(data)] = value
    beside_a_good_one("trace_1", bytes(data[:cut]))


OPCODES = [
    bytes([c])
    for c in b"(.0123FNIJKLMPQRSTUVX]abcdeghijlopqrstu}"
    b"\x80\x85\x86\x87\x88\x89\x8c\x8e\x8f\x90\x91\x93\x94\x95"
]


@settings(max_examples=examples(400), derandomize=True)
@given(st.lists(st.one_of(st.sampled_from(OPCODES), st.binary(max_size=4)), max_size=30))
def test_random_opcodes_never_call_anything(parts: list[bytes]) -> None:
    try:
        value = load_plain(b"\x80\x04" + b"".join(parts))
    except ValueError:
        return
    assert type(value).__module__ == "builtins"
    assert not callable(value)


WORDS = st.sampled_from(
    [
        *timeout(1, 118).splitlines(keepends=True),
        *DESYNC.splitlines(keepends=True),
        *table(-9, "x").splitlines(keepends=True),
        "[rank99999999999]:[E816 12:00:00.1 ProcessGroupNCCL.cpp:1] ",
        "[rank2]: Traceback (most recent call last):\n",
        '[rank2]:   File "/a.py", line 99999999999, in f\n',
        "[rank2]: ValueError: x\n",
        "(Actor pid=1, ip=1.1.1.1) ",
        "\x1b[31m",
        "srun: error: n: tasks 0-999999: Killed\n",
        "[Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 9999999999999999999 ms\n",
        "[hangscope] x\n",
        "SeqNum=99999999999999999999999999",
        "Worker group FAILED. 1/3 attempts left; will restart worker group\n",
        "&gt; ",
        "│ ",
        "\r",
    ]
)


@QUICK
@given(st.lists(st.one_of(WORDS, st.text(max_size=6)), max_size=25), st.integers(0, 2**31))
def test_logs_of_torn_and_shuffled_lines(words: list[str], cut: int) -> None:
    data = "".join(words).encode("utf-8", "surrogatepass")
    at = cut % (len(data) + 1)
    fragments = read_job_log(io.BytesIO(data[:at] + b"\n" + data[at:]), path="job.log", year=2025)
    check(merge(fragments))


@QUICK
@given(st.binary(max_size=400))
def test_arbitrary_bytes_do_not_spoil_the_file_beside_them(data: bytes) -> None:
    beside_a_good_one("trace_1", data)
    beside_a_good_one("trace_1.gz", b"\x1f\x8b\x08\x00" + data)
    beside_a_good_one("rank_1.ring", b"HSRING\x00\x01" + data)
