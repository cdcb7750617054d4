"""What is not known, and how much a cause may claim then.

**In**: a `Context` and a `Cause` as it was found. **Out**: the cause with the lowest cap of all
doubts that apply, and their sentences.

* `table` is the list: one row for each doubt, with its cap and the verdicts that it is about;
* what the rows look at is in `missing_evidence` (not collected, not readable, inferred), `moments`
  (when the evidence was taken), `completions` (no source shows what has finished) and `accused`
  (what these ranks may be doing instead, and how they ended).

**Rules.** A doubt looks at the evidence and the cause, never at what other doubts have made of it,
so the order of the rows does not matter; the first line of its docstring is its row in
docs/diagnosis.md. None raises a claim.

**Imported by** the engine; imports `graph`, `waiting` and `wording.phrases`.
"""
