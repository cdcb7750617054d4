"""What redaction removes, and what it must keep for the diagnosis."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangscope.diagnosis.engine import diagnose
from hangscope.replay.fixture import FixtureError
from hangscope.replay.redact import Redactor
from hangscope.replay.write import redacted, write_fixture
from hangscope.ring.layout import ValueKind
from hangscope.trace import formats
from hangscope.trace.load import load_trace
from hangscope.trace.model import Frame
from tests import view_samples as samples
from tests.live_rings import RingRank


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/home/ann/project/train.py", "/redacted/1/train.py"),
        ("~/project/train.py", "/redacted/1/train.py"),
        ("/opt/env/lib/python3.11/threading.py", "/redacted/lib/python3.11/threading.py"),
        ("/x/site-packages/torch/_ops.py", "/redacted/site-packages/torch/_ops.py"),
        ("/src/ann/torch/distributed/c10d.py", "/redacted/torch/distributed/c10d.py"),
        ("train.py", "train.py"),
        ("<frozen runpy>", "<frozen runpy>"),
        ("/dev/shm/x", "/dev/shm/x"),
    ],
)
def test_paths_are_redacted(text: str, expected: str) -> None:
    redactor = Redactor()
    assert redactor.path(text) == expected
    assert redactor.path(redactor.path(text)) == expected


def test_equal_directories_stay_equal_and_others_different() -> None:
    redactor = Redactor()
    assert (
        redactor.path("/a/b/x.py").rpartition("/")[0]
        == redactor.path("/a/b/y.py").rpartition("/")[0]
    )
    assert redactor.path("/a/c/x.py") != redactor.path("/a/b/x.py")


def test_free_text_is_redacted() -> None:
    redactor = Redactor(["gpu17", "gpu17.cluster.example"])
    text = redactor.text(
        'gpu17.cluster.example: File "/home/ann/train.py", line 7; [10.1.2.3]:29500 and '
        "gpu17:/data/set/a.tar, s3://bucket/ann/key 127.0.0.1:1 ratio 3/4 gpu170 1.2.3.4"
    )
    assert text == (
        'host2: File "/redacted/1/train.py", line 7; [192.0.2.2]:29500 and '
        "host1:/redacted/2/a.tar, s3://redacted 127.0.0.1:1 ratio 3/4 gpu170 192.0.2.3"
    )


def test_text_that_log_readers_need_is_kept() -> None:
    line = (
        "RuntimeError: [/b/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection "
        "closed by peer [127.0.0.1]:4711"
    )
    assert Redactor().text(line) == (
        "RuntimeError: [/redacted/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
        "[127.0.0.1]:4711"
    )


def test_pickle_keeps_its_structure() -> None:
    dump = {
        "version": "2.10",
        "entries": [
            {"frames": [{"name": "f", "filename": "/home/ann/t.py", "line": 3}], "sizes": [[2]]}
        ],
        "where": "/home/ann/x",
    }
    data = redacted(pickle.dumps(dump), formats.PICKLE, Redactor())
    again = pickle.loads(data)
    assert b"ann" not in data
    assert again["entries"][0]["frames"][0] == {
        "name": "f", "filename": "/redacted/1/t.py", "line": 3,
    }  # fmt: skip
    assert again["entries"][0]["sizes"] == [[2]]


def test_journal_loses_its_host_and_keeps_torn_lines() -> None:
    data = b'{"hangscope":"journal/1","host":"gpu17"}\n{"event":"exit","rank":1}\n{"event":"ex'
    lines = redacted(data, formats.JOURNAL, Redactor(["gpu17"])).decode().splitlines()
    assert json.loads(lines[0])["host"] == "host1"
    assert json.loads(lines[1]) == {"event": "exit", "rank": 1}
    assert lines[2] == '{"event":"ex'


@given(st.text(alphabet="/ab.~: -_\n1", max_size=60))
def test_second_redaction_changes_nothing(text: str) -> None:
    once = Redactor().text(text)
    assert Redactor().text(once) == once


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[fe80::1ff:fe23:4567:890a]:29500", "[2001:db8::1]:29500"),
        ("fd00:1:2:3:4:5:6:7 at 10:11:12", "2001:db8::1 at 10:11:12"),
        ("c10::add, 12:34:56", "c10::add, 12:34:56"),
        ("HF_TOKEN=hf_abcdefghijklmnopqrstuv", "HF_TOKEN=redacted"),
        ("password: 'hunter22' tokens: 4096", "password: 'redacted' tokens: 4096"),
        ("Authorization: Bearer eyJhbGciOi.J9", "Authorization: Bearer redacted"),
        ("/home/ann.b/x.py failed for ann.b", "/redacted/1/x.py failed for user1"),
    ],
)
def test_addresses_users_and_secrets_are_redacted(text: str, expected: str) -> None:
    redactor = Redactor()
    assert redactor.text(text) == expected
    assert redactor.text(expected) == expected
    assert not redactor.left_in(expected.encode())


def test_what_is_left_of_the_original_is_found() -> None:
    redactor = Redactor(["gpu17"])
    redactor.text("/home/annabel/x.py")
    assert redactor.left_in(b"\x00def gpu17(") == "gpu17"
    assert redactor.left_in(b"by annabel\n") == "annabel"
    assert not redactor.left_in(b"gpu170 annabelle")


def test_only_known_words_of_free_text_stay() -> None:
    redactor = Redactor()
    text = "RuntimeError: NCCL timeout on rank 3, customer Zweifelhuber lost; zweifelhuber again"
    kept = redactor.prose(text)
    assert kept.startswith("RuntimeError: NCCL timeout on rank 3, ")
    assert "weifelhuber" not in kept
    assert redactor.prose("Zweifelhuber") == redactor.prose("zweifelhuber")
    assert redactor.prose(kept) == kept


def test_addresses_in_memory_name_nobody() -> None:
    assert not Redactor().foreign_word("thread 0x00007f6498ffb6c0")
    assert Redactor().foreign_word("thread 0x7ffb")


@pytest.mark.parametrize("e", [r"\u0065", r"\x65", "%65"])
def test_words_are_found_however_their_letters_are_written(e: str) -> None:
    """The letters between are a known word each."""
    redactor = Redactor()
    kept = redactor.prose(f"at k{e}str{e}l now")
    assert "str" not in kept
    assert kept.startswith("at word")
    assert redactor.prose(kept) == kept
    assert redactor.foreign_word(f"at k{e}str{e}l")


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (formats.LOG, b"[rank0]: loading corpus of Zweifelhuber\n"),
        (formats.JOURNAL, b'{"event":"exit","message":"Zweifelhuber","run_id":"zweifelhuber-7"}\n'),
        (formats.JSON, b'{"thread_name":"Zweifelhuber"}'),
        (formats.PICKLE, pickle.dumps({"thread_name": "Zweifelhuber"})),
        (formats.PICKLE, pickle.dumps({"anything": ["Zweifelhuber", b"Zweifelhuber"]})),
        (formats.PICKLE, pickle.dumps({"Zweifelhuber": 1, ("Zweifelhuber",): 2})),
        (formats.JSON, b'{"pg_config":{"Zweifelhuber":{"desc":"Zweifelhuber"}},"state":"x"}'),
        (formats.JSON, b'{"filename":"zweifelhuber/net.py","where":"/dev/shm/zweifelhuber/x"}'),
        (formats.JSON, b'{"filename":"/env/lib/python3.11/site-packages/zweifelhuber/net.py"}'),
        (formats.JSON, b'{"filename":"/redacted/1/zweifelhuber.py"}'),
    ],
)
def test_no_kind_of_file_keeps_an_unknown_word(kind: str, content: bytes) -> None:
    assert b"weifelhuber" not in redacted(content, kind, Redactor())


def test_file_names_of_unknown_words_are_neutral_wherever_they_stand() -> None:
    redactor = Redactor()
    assert redactor.path("/home/ann/zweifelhuber_net.py") == "/redacted/1/file1.py"
    assert redactor.path("/home/ann/train.py") == "/redacted/1/train.py"
    assert redactor.text("in zweifelhuber_net.py:3") == "in file1.py:3"
    assert redactor.left_in(b"see zweifelhuber_net.py") == "zweifelhuber_net.py"


def test_names_of_functions_and_groups_of_the_job_stay() -> None:
    redactor = Redactor()
    job = samples.hang(loader=(Frame("zweifelhuber_step", "/home/ann/train.py", 3), samples.MAIN))
    redactor.learn(job.trace)
    assert redactor.prose("in zweifelhuber_step") == "in zweifelhuber_step"


@pytest.mark.parametrize("where", ["op", "phase", "exception", "file name", "log", "journal"])
def test_an_export_fails_if_a_word_of_the_original_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Whatever lets it through: here the redaction does nothing."""
    job = tmp_path / "job"
    job.mkdir()
    word = "zweifelhuber"
    ring = RingRank(job, 0, 1)
    ring.issue(ring.join("0", "default_pg", [0]), word if where == "op" else "all_reduce")
    if where == "phase":
        text = ring.ring.intern(ValueKind.TEXT, word.encode())
        ring.ring.put_u4("backend", text)
    if where == "exception":
        fields = {"type": "RuntimeError", "message": word, "frames": [], "thread": "", "main": True}
        raw = json.dumps(fields).encode()
        ring.ring.put_u4("exception", ring.ring.intern(ValueKind.EXCEPTION, raw))
    name = f"{word}.log" if where == "file name" else "job.log"
    said = f"[rank0]: RuntimeError: {word if where == 'log' else 'x'}\n"
    (job / name).write_text(f"[rank0]: Traceback (most recent call last):\n{said}")
    if where == "journal":
        head = {"hangscope": "journal/1", "run_id": "live", "attempt": 0, "host": word}
        end = {"event": "exit", "rank": 0, "at_ns": 1, "signal": 9}
        text_of = "".join(f"{json.dumps(line, separators=(',', ':'))}\n" for line in (head, end))
        (job / "m.journal").write_text(text_of)
    trace = load_trace([job])
    diagnosis = diagnose(trace)
    write_fixture(trace, diagnosis, [job], tmp_path / "good", redact=True)
    left = [
        p
        for p in (tmp_path / "good").rglob("*")
        if word in f"{p} {p.is_file() and p.read_bytes()!r}"
    ]
    assert not left
    monkeypatch.setattr(Redactor, "_word", lambda self, found: found)
    monkeypatch.setattr(Redactor, "host", lambda self, found: found)
    with pytest.raises(FixtureError, match=word):
        write_fixture(trace, diagnosis, [job], tmp_path / "out", redact=True, check=False)
    assert not (tmp_path / "out").exists()
