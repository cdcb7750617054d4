"""The recipes for schedulers: manifests by schema, scripts against a pretended API and scontrol."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

RECIPES = Path(__file__).parents[2] / "docs" / "schedulers"
EVENT = {
    "schema": "hangscope/event/1",
    "verdict": "rank_lost",
    "headline": "Host node7 (ranks 56–63) fell silent",
    "hosts": ["node7"],
    "action": {"do": "exclude", "hosts": ["node7"], "why": "nothing answers"},
}


def test_manifests_are_valid() -> None:
    validate = pytest.importorskip("kubernetes_validate")
    yaml = pytest.importorskip("yaml")
    documents = list(yaml.safe_load_all((RECIPES / "kubernetes.yaml").read_text()))
    assert {one["kind"] for one in documents} >= {"Job", "Role", "RoleBinding"}
    for document in documents:
        validate.validate(document, "1.29", strict=True)


def test_verdict_in_a_pods_status(tmp_path: Path) -> None:
    asked: list[tuple[str, str | None, Any]] = []

    class Api(BaseHTTPRequestHandler):
        def do_PATCH(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            asked.append((self.path, self.headers["Authorization"], json.loads(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Api)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name, text in (("token", "secret"), ("namespace", "train")):
        (tmp_path / name).write_text(text)
    log = tmp_path / "termination-log"
    log.touch()
    subprocess.run(
        [sys.executable, str(RECIPES / "kubernetes_on_hang.py")],
        input=json.dumps(EVENT).encode(), check=True, timeout=60,
        env={**os.environ, "ACCOUNT_DIR": str(tmp_path), "TERMINATION_LOG": str(log),
             "KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SCHEME": "http",
             "KUBERNETES_SERVICE_PORT": str(server.server_port), "POD_NAME": "big-3"},
    )  # fmt: skip
    server.shutdown()
    server.server_close()
    assert log.read_text() == "Host node7 (ranks 56–63) fell silent [hosts: node7] [exclude]"
    ((path, authorization, body),) = asked
    assert path == "/api/v1/namespaces/train/pods/big-3/status"
    assert authorization == "Bearer secret"
    (condition,) = body["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("HangScopeHang", "True")
    assert condition["reason"] == "rank_lost"
    assert condition["message"] == log.read_text()


@pytest.mark.parametrize("drains", [False, True])
def test_verdict_as_a_slurm_jobs_comment(tmp_path: Path, drains: bool) -> None:
    said = tmp_path / "said"
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f'#!/bin/sh\nprintf "%s|" "$@" >> {said}\necho >> {said}\n')
    scontrol.chmod(0o755)
    subprocess.run(
        ["sh", str(RECIPES / "slurm_on_hang.sh")], input=json.dumps(EVENT).encode(), check=True,
        timeout=60,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "4711",
             "DRAIN": str(int(drains))},
    )  # fmt: skip
    first, *rest = said.read_text().splitlines()
    assert first == "update|JobId=4711|Comment=HangScope: Host node7 (ranks 56–63) fell silent|"
    assert [line.split("|")[1:3] for line in rest] == [["NodeName=node7", "State=DRAIN"]] * drains
