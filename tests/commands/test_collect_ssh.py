"""``hangscope collect --on ssh:...`` through a real sshd on each of two pretended hosts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands.test_collect import node, verdict
from tools.host_network import ADDRESS, Hosts
from tools.hosts import unavailable

PORT = 2222
HERE = 2
"""The host on which `hangscope collect` runs; none of the job's."""
_SERVE = """
mount --bind "$1" "$2"
mount -t tmpfs none /run
mkdir /run/sshd
exec {sshd} -D -e -f /dev/null -p {port} -h "$3/host" -o AuthorizedKeysFile="$3/user.pub" \
    -o StrictModes=no -o UsePAM=no -o PidFile=none -o PermitRootLogin=prohibit-password
"""


@pytest.fixture
def network() -> Iterator[Hosts]:
    if shutil.which("ssh") is None or not Path("/usr/sbin/sshd").exists():
        pytest.skip("OpenSSH's client or server is missing")
    if why := unavailable():
        pytest.skip(why)
    with Hosts(3) as hosts:
        yield hosts


@pytest.fixture
def ssh(network: Hosts, tmp_path: Path) -> Iterator[Path]:
    """A run directory, another one on each host; beside it is an ``ssh`` that knows the hosts."""
    run = tmp_path / "the job's run"  # a shell reads commands there
    run.mkdir()
    for key in ("host", "user"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / key)], check=True
        )
    lines = [f"Host node{n}\nHostName {ADDRESS.format(n + 1)}" for n in range(3)]
    lines += [f"Host *\nPort {PORT}\nUser root\nIdentityFile {tmp_path}/user",
              "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null"]  # fmt: skip
    (tmp_path / "config").write_text("\n".join(lines) + "\n")
    wrapper = tmp_path / "ssh"
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {tmp_path}/config "$@"\n')
    wrapper.chmod(0o755)
    serve = _SERVE.format(sshd="/usr/sbin/sshd", port=PORT)
    servers = []
    for number in range(2):
        folder = node(tmp_path / f"node{number}", range(2 * number, 2 * number + 2))
        servers.append(
            subprocess.Popen(
                ["ip", "netns", "exec", network.names[number], "unshare", "--mount", "sh", "-c",
                 serve, "sh", str(folder), str(run), str(tmp_path)],
                stderr=subprocess.DEVNULL,
            )
        )  # fmt: skip
    yield run
    for server in servers:
        server.kill()
        server.wait()


def test_bundles_come_from_all_hosts_that_answer(network: Hosts, ssh: Path, tmp_path: Path) -> None:
    bundles, program = tmp_path / "bundles", Path(sys.executable).with_name("hangscope")

    def collected(*names: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["ip", "netns", "exec", network.names[HERE], str(program), "collect", str(ssh),
             "--on", "ssh:" + ",".join(names), "--command", str(program), "-o", str(bundles)],
            capture_output=True, text=True, check=False,
            env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        )  # fmt: skip

    until_s = time.monotonic() + 60
    while (done := collected("node0", "node1")).returncode and time.monotonic() < until_s:
        time.sleep(0.5)  # until both servers listen
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in bundles.iterdir()) == [
        f"node{n}.hangscope.tar.gz" for n in range(2)
    ]
    assert verdict(str(bundles)) == ("missing_rank", [2])
    done = collected("node0", "node2")
    assert done.returncode == 1
    assert "hangscope: to fetch: node2" in done.stderr, "it has no server"
