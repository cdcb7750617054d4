"""The files that a rank and whoever looks at it share: layout, writer, reader.

**In**: what a rank knows of itself (`RingIdentity`), and one fixed-size record per operation.
**Out**: for whoever reads, numpy tables of records and groups, texts and stacks by their ids, and
the newest stacks of all threads; or a `RingError` that says what is wrong with the file.

* `layout` is the format, byte by byte; docs/ring-format.md is made from it. `device_layout` is
  that of the file that NCCL's plugin writes.
* `writer` (`RingWriter`) stores through a memory map, without a lock, a system call or an
  allocation: it runs inside the training process at every collective. Blocks are reserved when the
  file is made, so a full disk shows at the start and is no SIGBUS later.
* `reader` (`RingReader`) needs no cooperation: the writer may run, be stopped, or have died in the
  middle of a store. It reads instead of mapping, and follows no offset that it has not checked.
* `run_directory`, `local_store`, `trusted_files`, `run_secret`: where rings may lie, and how a
  reader knows whose they are. A folder that others can write to may hold links and FIFOs.
* `process_identity`, `job_place`, `stack_requests`: what ties a ring to a process, and to a rank.
* `portable`: reading works on every system; writing needs Linux.

**Rules.** Only the standard library and numpy, and neither in the parts that a rank imports before
torch. A format may gain fields where there was room; a change of meaning is a new `VERSION`, and
older ones stay readable.

**Imported by** everything; imports nothing of HangScope.
"""
