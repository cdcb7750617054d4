"""The failure table that torchrun prints at the end of a job."""

from __future__ import annotations

_TABLE = """\
E0816 12:10:{at:02}.123456 {agent} torch/elastic/api.py:869] failed (exitcode: {code}) local_rank: \
{local} (pid: {pid}) of binary: /usr/bin/python
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2025-08-16_12:10:{at:02}
  host      : {host}
  rank      : {rank} (local_rank: {local})
  exitcode  : {code} (pid: {pid}){name}
  error_file: <N/A>
  traceback : {trace}
============================================================
"""


def table(
    code: int,
    trace: str,
    *,
    name: str = "",
    rank: int = 9,
    local: int = 1,
    pid: int = 5002,
    agent: int = 4711,
    host: str = "node1",
    at: int = 5,
) -> str:
    """What an agent prints if this rank failed first, ``at`` seconds after 12:10."""
    places = {"rank": rank, "local": local, "pid": pid, "agent": agent, "host": host}
    return _TABLE.format(code=code, trace=trace, name=name, at=at, **places)
