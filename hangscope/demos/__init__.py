"""Real jobs with real faults: what ``hangscope demo`` launches.

**In**: the name of a fault from `catalogue`. **Out**: a training job of four ranks under torchrun
that has this fault, its log, and what HangScope said in it, how fast.

* `catalogue`: each fault with the verdict, culprits and playbook number that it must get; tests go
  through all of them;
* `train`: the script, a small DDP training with the faults in it;
* `launch`: starts it, waits for the report, ends it.

**Rules.** The jobs run on CPUs with Gloo, need nothing but torch, and leave no process behind.

**Imported by** the command line; imports `ring` and `trace`, and torch in `train`.
"""
