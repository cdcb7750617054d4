"""Reads HangScope's own rings.

**In**: a ring file, of a process that runs, was stopped or died in the middle of a store. **Out**:
a `Fragment`, whose records are one copy of the ring's slots.

* `read` is the entry; `columns` numbers groups, signatures and stacks for a common table, `values`
  decodes what is interned, once for all rings that hold it; `batch` is what the rings of one job
  share;
* `facts` is what header and process say; `damage` finds lost data; `recorded_here` whether evidence
  is of jobs of this user on this machine.

**Rules.** No parsing of records: 4,096 rings are read at the speed of memory. A ring is never
mapped, so a file that shrinks ends no reader.

**Imported by** `loading`, `live` and others; imports `processes` and `merging`.
"""
