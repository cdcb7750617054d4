"""Warm-up: communicators, replicas and the first training steps.

**In**: groups, a module, an optimizer, a function for a step. **Out**: communicators that exist,
replicas that are equal, caches that are filled, and otherwise nothing: weights, optimizer, schedule
and random numbers are bit for bit as before.

* `communicators` creates all of them one after the other, each with a timeout, which is where
  mistakes in groups show; `parameters` gives replicas the same values and `replicas` checks them;
* `training` runs steps for their side effects; `snapshot` and `rng` put back whatever these
  changed.

**Imported by** `hangscope`; imports `barriers`.
"""
