"""``analyze --json`` has the promised keys, whatever names it contains."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np

from hangscope.report.json import to_json
from hangscope.trace.model import Source
from tests import view_samples as samples


def test_document_has_the_fields_that_scripts_rely_on() -> None:
    document = json.loads(to_json(samples.hang().diagnosis))
    assert document["schema"] == "hangscope/diagnosis/2"
    assert document["verdict"] == "missing_rank"
    assert document["culprits"] == [2]
    assert document["confidence"] == "certain"
    assert document["summary"] == "Rank 2 never joined all_reduce #103 in group dp (ranks 0–3)"
    assert document["world_size"] == 4
    culprit = document["ranks"][2]
    assert {k: culprit[k] for k in ("rank", "role", "state", "host", "pid")} == {
        "rank": 2,
        "role": "culprit",
        "state": "sleeping",
        "host": "node0",
        "pid": 4711,
    }
    assert "waiting_for" not in culprit
    assert document["ranks"][0]["waiting_for"] == [2]
    last = document["operations"][culprit["last"]]
    assert last == {"group": "0", "seq": 102, "op": "all_reduce"}
    assert document["stacks"][culprit["stack"]][0] == {
        "name": "load_batch",
        "filename": "/job/data.py",
        "line": 41,
    }
    finding = document["findings"][0]
    assert finding["victims"] == [0, 1, 3]
    assert finding["group"] == {"name": "0", "desc": "dp", "ranks": [0, 1, 2, 3]}
    assert (finding["seq"], finding["op"], finding["playbook"]) == (103, "all_reduce", "D9, D22")
    waiting, absent = finding["sides"]
    assert waiting["ranks"] == [0, 1, 3]
    assert waiting["input_sizes"] == waiting["output_sizes"] == [[4096]]
    assert waiting["dtypes"] == ["Float"]
    assert absent["op"] is None
    assert document["wait_for"][0] == {
        "waiter": 0,
        "on": 2,
        "group": "0",
        "seq": 103,
        "op": "all_reduce",
    }
    assert document["warnings"] == []


def test_sources_are_listed() -> None:
    job = samples.hang()
    document = json.loads(to_json(replace(job.diagnosis, sources=job.trace.sources)))
    (rings,) = document["sources"]
    assert (rings["format"], rings["version"]) == ("hangscope-ring", "1")
    assert (rings["folder"], rings["dropped"]) == ("", 0)
    assert rings["files"][2] == ["rank_2.ring", 2, 136]
    counts = [records for _, _, records in rings["files"]]
    assert (rings["path"], rings["rank"], rings["records"]) == (".", None, sum(counts))


def test_source_in_a_folder_of_its_own_has_its_path() -> None:
    given = samples.hang().diagnosis
    rings = [Source(f"run/node{i}/rank_{i}.ring", "hangscope-ring", "1", i, 7) for i in range(2)]
    document = json.loads(to_json(replace(given, sources=tuple(rings))))
    known = [(row["path"], row["rank"], row["records"]) for row in document["sources"]]
    assert known == [("run/node0/rank_0.ring", 0, 7), ("run/node1/rank_1.ring", 1, 7)]


def test_large_job_takes_three_megabytes_at_most() -> None:
    given = samples.hang().diagnosis
    waiting, culprit = given.ranks[0], given.ranks[2]
    world = 16_384
    rows = tuple(
        replace(waiting, rank=rank, host=f"worker-{rank // 8:05}", pid=100_000 + rank,
                waiting_s=120.0 + rank / 7, waiting_for=(world - 1, 8191, 8192, 8193))
        for rank in range(world)
    )  # fmt: skip
    victims = tuple(range(world))
    edge = given.wait_for[0]
    of_node = "runs/a-job/worker-{:05}/rank_{}.ring"
    large = replace(
        given,
        ranks=(*rows[:-1], replace(culprit, rank=world - 1)),
        findings=(replace(given.findings[0], victims=victims),),
        sources=tuple(
            Source(of_node.format(rank // 8, rank), "hangscope-ring", "1", rank, 10_000, rank % 9)
            for rank in range(world)
        ),
        wait_for=tuple(replace(edge, waiter=rank, on=world - 1) for rank in range(world - 1)),
    )
    raw = to_json(large)
    assert len(raw) < 3_000_000
    document = json.loads(raw)
    assert len(document["stacks"]) == len({r.stack for r in large.ranks if r.stack})
    assert [edge["on"] for edge in document["wait_for"]] == [world - 1], "rows tell the others"
    told = [(row["path"], row["count"], len(row["files"]), row["dropped"] > 0, row["records"])
            for row in document["sources"]]  # fmt: skip
    whole = world // 9 + 1
    assert told == [
        ("runs/a-job/", whole, 1024, False, 10_000 * whole),
        ("runs/a-job/", world - whole, 1024, True, 10_000 * (world - whole)),
    ]
    assert document["sources"][0]["files"][1] == ["worker-00001/rank_9.ring", 9, 10_000]
    brief = json.loads(to_json(large, brief=True))
    assert set(document) - set(brief) == {"ranks", "stacks", "operations", "wait_for", "sources"}
    assert brief["findings"] == document["findings"]


def test_values_outside_json_are_written_as_text() -> None:
    diagnosis = samples.hostile().diagnosis
    first = replace(diagnosis.findings[0].sides[0], input_sizes=((2**70,),), waiting_s=float("nan"))
    finding = replace(diagnosis.findings[0], sides=(first,), seq=np.int64(7))
    document = json.loads(to_json(replace(diagnosis, findings=(finding,))))
    side = document["findings"][0]["sides"][0]
    assert side["input_sizes"] == [[str(2**70)]]
    assert side["waiting_s"] is None
    assert document["findings"][0]["seq"] == 7
    assert "\\udc80" in document["summary"]
