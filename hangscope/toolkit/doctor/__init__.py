"""Checks of a launch, before the job starts and inside it; one file per family.

**In**: a launch command, a training script (parsed, never run), a DeepSpeed configuration, this
host, or a recorded run. **Out**: findings, each with the entry of docs/playbook.md that it is
about, what is wrong and what to do.

* `command`, `script_model` and `surroundings` read what is there; none of them imports torch or
  touches a device;
* `launch`, `devices`, `host`, `neighbours`, `deepspeed`, `script_setup`, `script_hangs`, `traffic`
  are the families of checks, `timeouts` the table of all timeouts; `model` is what they take and
  give, and `examine` puts them together;
* `job` runs inside a job: every rank sends its facts and rank 0 compares them.

**Rules.** A check is a pure function of what was read. What may be intended is a warning, not an
error.

**Imported by** the command line; imports the other parts of `toolkit`.
"""
