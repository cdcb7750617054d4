"""What NCCL told about the devices, brought together with the recorded operations.

**In**: the device ring that `hangscope.nccl_plugin` writes beside a rank's own. **Out**: the same
trace, in which each operation says what the device has begun and finished.

* `rings` finds and reads the device ring; `matching` finds the record of each operation that NCCL
  told about: communicators by size, rank and order of creation, operations by `functions` and
  sizes;
* `progress` is how far the device is; `own_records` makes records of what has none: graph replays,
  and communicators that torch does not know; `communicators` joins what their members told, also on
  several nodes; `merge` does all of it for a trace.

**Imported by** `load` and `live`; imports `ring`.
"""
