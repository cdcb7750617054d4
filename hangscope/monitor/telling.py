"""Tells others of a verdict: a webhook, a service that apprise knows, a command of the user's.

Only the monitor that prints the report tells, once for each cause, with time limits and in threads
of its own; what goes wrong is one line in the log. Nothing is imported or started unless asked for.
"""

from __future__ import annotations

import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import orjson

from hangscope.diagnosis.model import Diagnosis
from hangscope.report.action import action_of

VARIABLE = "HANGSCOPE_NOTIFY"
COMMAND_VARIABLE = "HANGSCOPE_ON_HANG"
COMMAND_PREFIX = "exec:"
SCHEMA = "hangscope/event/1"
WEBHOOK_LIMIT_S = 10.0
COMMAND_LIMIT_S = 60.0
_MOST_RANKS = 64


@dataclass(slots=True)
class Telling:
    """Where to tell, and what is being told.

    Parameters
    ----------
    urls:
        ``http(s)://``: receives the event as JSON by POST. Any other: for apprise.
    command:
        For the shell, with the event on its standard input; empty for none.
    say:
        Prints a line into the job's log.
    """

    urls: tuple[str, ...]
    command: str
    say: Callable[[str], None]
    _threads: list[threading.Thread] = field(default_factory=list)

    @classmethod
    def of(cls, environ: Mapping[str, str], say: Callable[[str], None]) -> Telling:
        """What the environment asks for."""
        asked = environ.get(COMMAND_VARIABLE, "").strip()
        command = asked[len(COMMAND_PREFIX) :] if asked.startswith(COMMAND_PREFIX) else ""
        return cls(tuple(environ.get(VARIABLE, "").split()), command, say)

    def tell(self, diagnosis: Diagnosis, run: str) -> None:
        """Tell of a diagnosis, without waiting for anybody."""
        if not (self.urls or self.command):
            return
        event = event_of(diagnosis, run)
        for url in self.urls:
            send = post if url.startswith(("http://", "https://")) else apprise
            self._start(f"{VARIABLE} {_without_secrets(url)}", partial(send, url, event))
        if self.command:
            self._start(COMMAND_VARIABLE, partial(execute, self.command, event))

    def finish(self) -> None:
        """Wait until all have been told, or their time is over."""
        until_s = time.monotonic() + COMMAND_LIMIT_S + 1
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))

    def _start(self, name: str, act: Callable[[], None]) -> None:
        def run() -> None:
            try:
                act()
            except Exception as error:  # of any library behind it
                text = str(error).partition("\n")[0][:200] or type(error).__name__
                self.say(f"{name}: {text}")

        thread = threading.Thread(target=run, name="hangscope-tell", daemon=True)
        thread.start()
        self._threads.append(thread)


def event_of(diagnosis: Diagnosis, run: str) -> dict[str, object]:
    """The event: small, and with the same keys whatever happened."""
    return {
        "schema": SCHEMA,
        "run": run,
        "verdict": diagnosis.verdict.value,
        "confidence": diagnosis.confidence.value,
        "headline": diagnosis.headline,
        "culprits": list(diagnosis.culprits[:_MOST_RANKS]),
        "culprit_count": len(diagnosis.culprits),
        "hosts": list(diagnosis.hosts[:_MOST_RANKS]),
        "world_size": diagnosis.world_size,
        "action": action_of(diagnosis),
        "at": time.time(),
    }


def post(url: str, event: dict[str, object]) -> None:
    """Send to a webhook."""
    request = urllib.request.Request(
        url, orjson.dumps(event), {"Content-Type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=WEBHOOK_LIMIT_S) as answer:
        answer.read(1024)


def apprise(url: str, event: dict[str, object]) -> None:
    """Send through apprise: Slack, PagerDuty, e-mail and others."""
    try:
        from apprise import Apprise  # type: ignore[import-not-found]
    except ImportError:
        raise OSError("needs apprise: pip install 'hangscope[notify]'") from None
    service = Apprise()
    if not service.add(url):
        raise ValueError("apprise does not know such a URL")
    if not service.notify(title=f"HangScope: {event['run']}", body=str(event["headline"])):
        raise OSError("was not delivered")


def execute(command: str, event: dict[str, object]) -> None:
    """Run the user's command, with the event on its standard input."""
    done = subprocess.run(
        ["/bin/sh", "-c", command], input=orjson.dumps(event), timeout=COMMAND_LIMIT_S,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False,
    )  # fmt: skip
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise OSError(lines[-1] if lines else f"exit status {done.returncode}")


def _without_secrets(url: str) -> str:
    """The scheme and, of a webhook, the host: the rest of such URLs is a password."""
    scheme, _, rest = url.partition("://")
    host = rest.partition("/")[0].rpartition("@")[2]
    return f"{scheme}://{host}/..." if scheme in ("http", "https") else f"{scheme}://..."
