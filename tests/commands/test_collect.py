"""Bundles of a job's nodes: made where the evidence lies, brought to one place, read from there."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from hangscope.cli.fan_out import nodes_of
from hangscope.trace.load import load_trace
from tests.called import called
from tests.live_rings import RingRank
from tools.ports import free_port

RING_BYTES = 6 << 20


def node(folder: Path, ranks: range, world: int = 4) -> Path:
    """A run directory of one node, whose rank 2 has not joined the last all-reduce."""
    folder.mkdir(parents=True)
    for rank in ranks:
        one = RingRank(folder, rank, world, slots=10_000, values_bytes=4 << 20)
        group = one.join("0", "default_pg", range(world))
        for _ in range(20):
            one.finish(one.issue(group))
        if rank != 2:
            one.issue(group)
        one.ring.put_i8("heartbeat_ns", time.time_ns() + 200 * 10**9)  # seen long after that
    return folder


def hangscope(*words: str, data: bytes = b"", **environ: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "hangscope", *words],
        input=data, capture_output=True, env={**os.environ, **environ}, check=False,
    )  # fmt: skip


def verdict(*paths: str, data: bytes = b"", **environ: str) -> tuple[str, list[int]]:
    done: subprocess.CompletedProcess[str] | subprocess.CompletedProcess[bytes]
    if data:
        done = hangscope("analyze", *paths, "--json", data=data)
    else:
        done = called("analyze", *paths, "--json", **environ)
    assert done.returncode == 1, done.stderr
    said = json.loads(done.stdout)
    return said["verdict"], said["culprits"]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place = tmp_path_factory.mktemp("nodes")
    return [node(place / f"node{n}", range(2 * n, 2 * n + 2)) for n in range(2)]


def test_bundle_is_small_and_gives_the_same_verdict(nodes: list[Path], tmp_path: Path) -> None:
    for number, folder in enumerate(nodes):
        target = tmp_path / "all" / f"node{number}.hangscope.tar.gz"
        assert called("collect", str(folder), "-o", str(target)).returncode == 0
        assert target.stat().st_size < 60_000
        assert sum(f.stat().st_size for f in folder.iterdir()) > 2 * 5_000_000
    expected = verdict(*map(str, nodes))
    assert expected == ("missing_rank", [2])
    assert verdict(str(tmp_path / "all")) == expected
    done = hangscope("collect", *map(str, nodes), "-o", "-")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        names = {Path(name).name for name in archive.getnames()}
    assert names >= {f"rank_{rank}.ring" for rank in range(4)}
    assert verdict("-", data=done.stdout) == expected
    url = (tmp_path / "all").as_uri()
    assert verdict(url) == expected
    gone = called("analyze", f"{url}/nothing")
    assert gone.returncode == 2
    assert "nothing is there" in gone.stderr


_SRUN = """#!/bin/sh
# Stands for srun or kubectl exec: runs the rest of the command here, in the node's folder.
for word in "$@"; do
    shift
    case "$word" in node0|node1) name=$word ;; down) echo "no route to host" >&2; exit 255 ;; esac
    [ "$word" = hangscope ] && break
done
cd "$PLACE/$name" && exec "$PYTHON" -m hangscope "$@"
"""
_SSH = """#!/bin/sh
# Stands for ssh: gives the command, which is its last word, to a shell in the node's folder.
for word in "$@"; do
    case "$word" in node0|node1) name=$word ;; down) echo "no route to host" >&2; exit 255 ;; esac
done
hangscope() { exec "$PYTHON" -m hangscope "$@"; }
cd "$PLACE/$name" && eval "$word"
"""


@pytest.mark.parametrize(
    "where",
    [
        pytest.param("ssh:node0,node1", marks=pytest.mark.slow),  # test_collect_ssh has a real one
        "slurm:77",
        pytest.param("kubectl:job=big", marks=pytest.mark.slow),  # and test_collect_kubectl
    ],
)
def test_bundles_come_from_all_nodes(nodes: list[Path], tmp_path: Path, where: str) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    scripts = {
        "ssh": _SSH,
        "srun": _SRUN,
        "squeue": "#!/bin/sh\necho node[0-1]\n",
        "scontrol": "#!/bin/sh\n[ \"$3\" = 'node[0-1]' ] && printf 'node0\\nnode1\\n'\n",
        "kubectl": f'#!/bin/sh\nif [ "$1" = get ]; then printf "node0 node1"; exit; fi\n{_SRUN}',
    }
    for name, text in scripts.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    out = tmp_path / "out"
    environ = {
        "PATH": f"{tools}:{os.environ['PATH']}", "PLACE": str(nodes[0].parent),
        "PYTHON": sys.executable, "PYTHONPATH": str(Path(__file__).parents[2]),
    }  # fmt: skip
    done = hangscope("collect", ".", "--on", where, "-o", str(out), **environ)
    assert done.returncode == 0, done.stderr.decode()
    assert sorted(path.name for path in out.iterdir()) == [
        "node0.hangscope.tar.gz",
        "node1.hangscope.tar.gz",
    ]
    assert verdict(str(out)) == ("missing_rank", [2])
    if where.startswith("ssh"):
        done = hangscope("collect", ".", "--on", "ssh:node0,down", "-o", str(out), **environ)
        assert done.returncode == 1
        assert b"down: no route to host" in done.stderr
        assert b"to fetch: down" in done.stderr


@pytest.mark.parametrize("where", ["ssh:", "slurm:--all", "nfs:x", "ssh"])
def test_odd_places_are_refused(where: str) -> None:
    from hangscope.cli.errors import UserError

    with pytest.raises(UserError):
        nodes_of(where)


@pytest.fixture
def bucket() -> Iterator[dict[str, str]]:
    """A real S3 server, and how s3fs reaches it."""
    pytest.importorskip("s3fs")
    pytest.importorskip("moto")
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        until_s = time.monotonic() + 120
        while True:
            try:
                request = urllib.request.Request(f"{url}/job", method="PUT")
                urllib.request.urlopen(request, timeout=5).read()
                break
            except OSError:
                assert time.monotonic() < until_s
                time.sleep(0.2)
        yield {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
    finally:
        server.terminate()
        server.wait()


def test_bundles_in_object_storage(
    nodes: list[Path], bucket: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, folder in enumerate(nodes):
        target = f"s3://job/run/node{number}.hangscope.tar.gz"
        done = called("collect", str(folder), "-o", target, **bucket)
        assert done.returncode == 0, done.stderr
    assert verdict("s3://job/run", **bucket) == ("missing_rank", [2])
    for name, value in bucket.items():
        monkeypatch.setenv(name, value)
    trace = load_trace([f"s3://job/run/node{n}.hangscope.tar.gz" for n in range(2)])
    assert set(trace.ranks) == set(range(4))
    missing = called("analyze", "s3://job/else", **bucket)
    assert missing.returncode == 2
