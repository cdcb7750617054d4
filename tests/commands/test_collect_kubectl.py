"""``hangscope collect --on kubectl:...`` with the real kubectl, against a pretended API server.

The server answers what kubectl asks (resources, pods) and runs what `kubectl exec` sends, each pod
in a folder of its own, speaking the protocol ``v5.channel.k8s.io`` over a WebSocket.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.commands.test_collect import node, verdict

PODS = ("big-0", "big-1", "big-2")
GONE = "big-2"
"""Its container has no run directory."""
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_PROTOCOL = "v5.channel.k8s.io"
_STDOUT, _STDERR, _STATUS = 1, 2, 3
_MOST_BYTES = 32_000


def _pod(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"job-name": "big"}},
        "spec": {"containers": [{"name": "main", "image": "train"}]},
        "status": {"phase": "Running"},
    }


_RESOURCE = {"name": "pods", "singularName": "pod", "namespaced": True, "kind": "Pod",
             "verbs": ["get", "list"], "shortNames": ["po"]}  # fmt: skip
_ANSWERS: dict[str, Any] = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
    "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": [_RESOURCE]},
    "/api/v1/namespaces/default/pods": {
        "kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": [*map(_pod, PODS)],
    },
    **{f"/api/v1/namespaces/default/pods/{name}": _pod(name) for name in PODS},
}  # fmt: skip


class Api(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    place = Path()
    asked: list[str]

    def log_message(self, *told: object) -> None: ...

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        self.asked.append(self.path)
        if url.path.endswith("/exec"):
            self._exec(url.path.split("/")[-2], parse_qs(url.query)["command"])
            return
        answer = _ANSWERS.get(url.path)
        said = json.dumps(answer or {"kind": "Status", "status": "Failure", "code": 404}).encode()
        self.send_response(200 if answer else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def _exec(self, pod: str, command: list[str]) -> None:
        key = self.headers["Sec-WebSocket-Key"].encode() + _GUID
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        accepted = base64.b64encode(hashlib.sha1(key, usedforsecurity=False).digest()).decode()
        self.send_header("Sec-WebSocket-Accept", accepted)
        self.send_header("Sec-WebSocket-Protocol", _PROTOCOL)
        self.end_headers()
        done = subprocess.run(command, cwd=self.place / pod, capture_output=True, check=False)
        for channel, data in ((_STDOUT, done.stdout), (_STDERR, done.stderr)):
            for at in range(0, len(data), _MOST_BYTES):
                self._frame(2, bytes([channel]) + data[at : at + _MOST_BYTES])
        status: dict[str, Any] = {"metadata": {}, "status": "Success"}
        if done.returncode:
            causes = [{"reason": "ExitCode", "message": str(done.returncode)}]
            status |= {"status": "Failure", "reason": "NonZeroExitCode",
                       "details": {"causes": causes}}  # fmt: skip
        self._frame(2, bytes([_STATUS]) + json.dumps(status).encode())
        self._frame(8, struct.pack(">H", 1000))
        self.close_connection = True

    def _frame(self, kind: int, data: bytes) -> None:
        length = bytes([len(data)]) if len(data) < 126 else b"\x7e" + struct.pack(">H", len(data))
        self.wfile.write(bytes([0x80 | kind]) + length + data)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[type[Api]]:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is missing")
    Api.place, Api.asked = tmp_path, []
    for number, name in enumerate(PODS):
        (tmp_path / name).mkdir()
        if name != GONE:
            node(tmp_path / name / "run", range(2 * number, 2 * number + 2))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (tmp_path / "config").write_text(
        json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "here",
            "clusters": [{"name": "here", "cluster": {
                "server": f"http://127.0.0.1:{server.server_port}"}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
            "users": [{"name": "me", "user": {}}],
        })
    )  # fmt: skip
    yield Api
    server.shutdown()
    server.server_close()


def test_bundles_come_from_all_pods_of_a_job(api: type[Api], tmp_path: Path) -> None:
    bundles, program = tmp_path / "bundles", str(Path(sys.executable).with_name("hangscope"))
    done = subprocess.run(
        [program, "collect", "run", "--on", "kubectl:job-name=big", "--command", program,
         "-o", str(bundles)],
        capture_output=True, text=True, check=False, timeout=200,
        env={**os.environ, "KUBECONFIG": str(tmp_path / "config"), "HOME": str(tmp_path)},
    )  # fmt: skip
    assert any("labelSelector=job-name%3Dbig" in path for path in api.asked), done.stderr
    assert sorted(path.name for path in bundles.iterdir()) == [
        f"{name}.hangscope.tar.gz" for name in PODS if name != GONE
    ], done.stderr
    assert verdict(str(bundles)) == ("missing_rank", [2])
    assert done.returncode == 1
    assert f"hangscope: to fetch: {GONE}" in done.stderr
