"""What to say if nothing shows a cause: who is named by other evidence, else what is not known.

**In**: a `Context` without any cause. **Out**: one `Finding`, or None for a healthy job.

* `nothing_found` is the list, in order;
* some evidence names ranks without the graph: `claims` (what a log states outright), `roll_call`
  (most stand at one line), `final_tracebacks` (most gave up in one call), and the monitor's own
  words from when it could see more (`monitor_verdict`);
* everything else names `nobody` (`inconclusive`): `standstill` and `lingering_processes` are of
  jobs that stand still or do not end, `log_symptoms` puts into a sentence what a log does show.

**Rules.** `healthy` is earned, by progress or a clean end of every rank known to exist; a finding
that names nobody says what to collect.

**Imported by** the engine; imports `wording`.
"""
