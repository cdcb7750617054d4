"""The failure table that torchrun prints at the end of a job."""

from __future__ import annotations

TABLE = """\
E0816 12:10:05.123456 4711 torch/elastic/api.py:869] failed (exitcode: {code}) local_rank: 1 \
(pid: 5002) of binary: /usr/bin/python
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2025-08-16_12:10:05
  host      : node1
  rank      : 9 (local_rank: 1)
  exitcode  : {code} (pid: 5002){name}
  error_file: <N/A>
  traceback : {trace}
============================================================
"""
