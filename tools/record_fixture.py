"""Records fixtures from real processes: ``python -m tools.record_fixture [NAME...]``.

Each program of ``tools/hangs`` is started with its fault and left to stall or to end. It is then
examined as ``hangscope analyze`` would examine it, and written to ``fixtures/`` with paths and
hosts replaced. The expected answer is in `tools.recordings`. If HangScope gives another answer, the
fixture keeps the expected one, and the difference is printed.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from hangscope.diagnosis.engine import diagnose
from hangscope.diagnosis.model import Diagnosis
from hangscope.replay import (
    Expected,
    FixtureError,
    find_fixtures,
    load_fixture,
    verify,
    write_fixture,
)
from hangscope.replay.fixture import EXPECTED, to_toml
from hangscope.trace.live.follow import LiveRun, is_gil_blocked
from hangscope.trace.load import load_trace
from hangscope.trace.model import Trace
from tools.forked_jobs import Jobs, job_server
from tools.hang_runs import RUNS, arguments_of
from tools.recordings import Recording, recordings

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "fixtures"
SECOND_LOOK_S = 1.2
README_HEAD = """# Recorded hangs

Each folder is one real job that was recorded: what is left of it in `dumps/`, and what must be
said of it in `expected.toml`. Made by `python -m tools.record_fixture` from `tools/hangs`
(paths and host names replaced), checked by `hangscope replay fixtures`. See `docs/fixtures.md`.
"""
PRELOAD = (
    "torch.distributed", "torch.distributed.fsdp", "torch.nn.parallel",
    "torch.distributed.tensor.parallel", "torch.distributed.device_mesh", "numpy",
)  # fmt: skip


def main() -> int:
    """Record the given fixtures; the exit status tells whether all verdicts were as expected."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="fixtures to record (default: all missing)")
    parser.add_argument("--again", action="store_true", help="also record those that exist already")
    parser.add_argument("--list", action="store_true", help="only list the fixtures")
    parser.add_argument(
        "--refresh", action="store_true", help="only rewrite the expectations and README.md"
    )
    arguments = parser.parse_args()
    if arguments.refresh:
        refresh()
        return 0
    wanted = [r for r in recordings() if not arguments.names or r.name in arguments.names]
    if arguments.list:
        for recording in wanted:
            print(f"{recording.name:28} {recording.verdict:20} {recording.story}")
        return 0
    if not arguments.again and not arguments.names:
        wanted = [r for r in wanted if not (FIXTURES / r.name).exists()]
    wrong = 0
    with job_server(PRELOAD) as jobs:
        for recording in wanted:
            began_s = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="hang-") as place:
                try:
                    differences = record(recording, Path(place), jobs)
                except (FixtureError, TimeoutError) as error:
                    differences = [str(error)]
            wrong += bool(differences)
            took_s = time.monotonic() - began_s
            print(f"{'WRONG' if differences else 'ok':6}{recording.name} ({took_s:.0f} s)")
            for line in differences:
                print(f"      {line}")
            sys.stdout.flush()
    refresh()
    return 1 if wrong else 0


def refresh() -> None:
    """Update the expectations of existing fixtures, and the list of fixtures."""
    lines = [README_HEAD]
    known = {recording.name: recording for recording in recordings()}
    for folder in find_fixtures([FIXTURES]):
        fixture = load_fixture(folder)
        recording = known.get(fixture.name)
        expected = fixture.expected
        if recording is not None:
            expected = replace(_expected(recording), recorded=expected.recorded)
            (folder / EXPECTED).write_text(to_toml(expected), encoding="utf-8")
        told = expected.recorded
        how = f"`{told['command']}`, {told['world_size']} ranks" if "command" in told else "chaos"
        lines.append(f"- **{fixture.name}** ({told.get('kind', 'rings')}): {expected.story}. {how}")
    (FIXTURES / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def record(recording: Recording, place: Path, jobs: Jobs) -> list[str]:
    """Record one fixture; returns the differences from the expectation, one line each."""
    sources = place / "run"
    sources.mkdir()
    target = FIXTURES / recording.name
    if target.exists():
        shutil.rmtree(target)
    found: list[Diagnosis] = []

    def look() -> None:
        """Copy while the job hangs, because later the files no longer match the observation."""
        trace, diagnosis = look_twice(sources)
        expected = _expected(recording)
        write_fixture(
            trace, diagnosis, [sources], target, redact=True, expected=expected, check=False
        )
        found.append(diagnosis)

    RUNS[recording.kind](recording, sources, jobs, look)
    diagnosis = found[0]
    outcome = verify(load_fixture(target))
    lines = [f"{d.what}: expected {d.expected}, got {d.got}" for d in outcome.differences]
    again = outcome.diagnosis
    if again is None or (again.verdict, again.culprits) != (diagnosis.verdict, diagnosis.culprits):
        lines.append(
            f"REPLAY differs from the live verdict {diagnosis.verdict.value} "
            f"{list(diagnosis.culprits)}"
        )
    return lines


def look_twice(directory: Path) -> tuple[Trace, Diagnosis]:
    """The result of ``analyze``, with two looks at live processes."""
    trace = load_trace([directory])
    if trace.live:
        run = LiveRun(directory)
        run.look()
        run.ask_for_stacks(is_gil_blocked)
        time.sleep(SECOND_LOOK_S)
        trace = run.look()
        run.close()
    return trace, diagnose(trace)


def _expected(recording: Recording) -> Expected:
    import torch

    command = [f"tools/hangs/{recording.program}.py", *arguments_of(recording)]
    return Expected(
        verdict=recording.verdict,
        culprits=recording.culprits,
        story=recording.story,
        confidence=recording.confidence,
        playbook=recording.playbook,
        must_mention=recording.mention,
        must_not_mention=recording.avoid,
        recorded={
            "command": " ".join(command),
            "kind": recording.kind,
            "world_size": recording.world,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    )


if __name__ == "__main__":
    sys.exit(main())
