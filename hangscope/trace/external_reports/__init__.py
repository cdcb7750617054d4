"""Reports on ranks by other parties: the monitor, NCCL's RAS, torch elastic, py-spy.

**In**: one file of such a report. **Out**: `Fragment`s like those of any other source.

* `journal` is what the monitor saw of processes, sealed line by line; `ras` and `ras_snapshots`
  read ``ncclras``, one report or several of one job; `error_file` is torch elastic's; `py_spy` is
  one process's stacks as JSON.

**Imported by** `loading`, `live`, `monitor` and `replay`; imports `files`.
"""
