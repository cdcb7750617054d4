"""HANGSCOPE_ON_HANG=exec:python3 /hangscope/kubernetes_on_hang.py: the verdict in the pod's status.

Reads the event on standard input. Writes the headline to the termination message, which `kubectl
describe pod` shows after the container has ended, and, if the pod's service account may, to the
condition HangScopeHang, which `kubectl get pods -o wide`, controllers and alerts see at once.
Needs nothing but Python.
"""

import datetime
import json
import os
import ssl
import sys
import urllib.request
from pathlib import Path

MOST_BYTES = 4096  # the kubelet keeps no more
ACCOUNT = Path(os.environ.get("ACCOUNT_DIR", "/var/run/secrets/kubernetes.io/serviceaccount"))


def main() -> None:
    event = json.load(sys.stdin)
    message = event["headline"]
    if event["hosts"]:
        message += f" [hosts: {', '.join(event['hosts'])}]"
    if event["action"]:
        message += f" [{event['action']['do']}]"
    log = Path(os.environ.get("TERMINATION_LOG", "/dev/termination-log"))
    if log.exists():
        log.write_bytes(message.encode()[:MOST_BYTES])
    if (ACCOUNT / "token").exists():
        set_condition(event["verdict"], message[:MOST_BYTES])


def set_condition(reason: str, message: str) -> None:
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    condition = {"type": "HangScopeHang", "status": "True", "reason": reason, "message": message,
                 "lastTransitionTime": now}  # fmt: skip
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    namespace = (ACCOUNT / "namespace").read_text().strip()
    pod = os.environ.get("POD_NAME") or os.environ["HOSTNAME"]
    scheme = os.environ.get("KUBERNETES_SCHEME", "https")
    request = urllib.request.Request(
        f"{scheme}://{host}:{port}/api/v1/namespaces/{namespace}/pods/{pod}/status",
        json.dumps({"status": {"conditions": [condition]}}).encode(),
        {
            "Authorization": f"Bearer {(ACCOUNT / 'token').read_text().strip()}",
            "Content-Type": "application/strategic-merge-patch+json",
        },
        method="PATCH",
    )
    trusted = None
    if scheme == "https":
        trusted = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    with urllib.request.urlopen(request, timeout=10, context=trusted) as answer:
        answer.read()


if __name__ == "__main__":
    main()
