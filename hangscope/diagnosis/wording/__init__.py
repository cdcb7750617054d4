"""Puts causes into words: the only place in which sentences of a report are made.

**In**: a `cause.Cause`, or that there is none, and the `context.Context` it rests on. **Out**: a
`model.Finding` (who, what, where; the mechanism; what to do; both sides; evidence) and the
`model.Diagnosis` around all findings. Nothing is decided here: culprits, victims and confidence are
those of the cause.

* `findings` puts a finding together, `answer` the diagnosis: rank table, edges, remarks.
* `summaries`, `summaries_of_ends`, `summaries_of_standstills`: summary and mechanism by verdict.
* `playbook`: every piece of advice with its hang class, one table. `advice` chooses by what the
  cause and its sides show, `rank_advice` by what a process does or how it ended.
* `sides`: what each side did and the lines that brought it there; `parting`: how two parted.
  `evidence`, `first_times`: what else is known. `blocked`: what a process waits for below its own
  code.
* `logs`: what logs add, and what they lack. `stack_summary`: where ranks are if only stacks tell.
  `tolerated_waits`: a remark on waits that are still too short.
* `phrases`: ranks, operations, groups and places, and the verbs that go with them.

**Rules.** Sentences have no final full stop. They name ranks, operation, number and line where
these are known, and say "left no record" of what no source shows, whatever the sources are. No
sentence is read again: what a later step needs is data of the cause or the finding.

**Imported by** the engine, `doubts`, `causes`, `no_cause` and `monitor`, which use `phrases`,
`playbook` and `blocked`.
"""
