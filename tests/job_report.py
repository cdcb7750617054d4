"""What job scripts share: named checks, written where the test can read them."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path


class Report:
    """Named checks of one rank; saved after each, so that a killed rank leaves what it had."""

    def __init__(self) -> None:
        self.rank = int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")))
        self.checks: dict[str, str] = {}
        self.values: dict[str, object] = {}

    @contextlib.contextmanager
    def check(self, name: str) -> Iterator[None]:
        """The block is the check; an exception in it is its failure, and the job goes on."""
        try:
            yield
        except Exception:
            self.checks[name] = traceback.format_exc()
            print(f"[{self.rank}] {name}\n{self.checks[name]}", file=sys.stderr, flush=True)
        else:
            self.checks[name] = "ok"
        self.save()

    def save(self) -> None:
        """Write everything reported so far."""
        path = Path(os.environ["RESULTS"]) / f"rank{self.rank}.json"
        temporary = path.with_suffix(".part")
        temporary.write_text(json.dumps({"checks": self.checks, "values": self.values}))
        temporary.replace(path)


def raises(kind: type[BaseException], call, *args, **kwargs):  # type: ignore[no-untyped-def]
    """Call, and return the exception of that kind which it must raise."""
    try:
        call(*args, **kwargs)
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")
