"""A deterministic all-reduce, and checks of the all-reduce that a job uses.

**In**: a tensor and a group. **Out**: the sum in an order that depends on nothing but the inputs,
or whether the backend's own result is within rounding of that.

* `arithmetic` is the reference: pure functions on local tensors; `chunks` and `deterministic` run
  it in a group; `check` compares element by element;
* `sampler`, `sketch` and `compare_samples` check every Nth all-reduce of a running job
  (``HANGSCOPE_CHECK_REDUCE``) from a few numbers per tensor, without a collective and without
  waiting for anybody; `deterministic_env` is NCCL's best effort.

**Rules.** A check never changes the tensor of the job, and ends before the interpreter does.

**Imported by** `hangscope` and, on request, `recording`; imports `barriers` and `environments`.
"""
