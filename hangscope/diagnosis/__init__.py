"""Turns a trace into a diagnosis: small pure functions, one file per kind of cause.

**In**: a `hangscope.trace.model.Trace`, from whatever it was read. **Out**: a `model.Diagnosis`:
one verdict, findings with culprits, victims, confidence, both sides of where the job diverged,
advice and evidence; a table of all ranks; who waits for whom. Nothing is read, written or asked
meanwhile, so the same trace gives the same diagnosis.

* `engine.diagnose` has the steps in their order; docs/diagnosis.md explains them.
* `records`, `processes`, `groups`, `exits`: facts about single ranks and groups.
* `graph`, `waiting`: the wait-for graph, since when each wait lasts, whether the job stands still.
* `knowledge`, `faults`, `pattern`: what ranks were expected to do, and explanations, weighed.
* `differences`, `causes`: who is at fault. `doubts`: how much that may claim. `no_cause`: what to
  say without one.
* `wording`: the only place where sentences are made.

**Rules.** A wrong name is worse than none: where two explanations fit, the answer is `ambiguous`
or names nobody. Steps over records are numpy passes; Python loops run over ranks and groups. No
case for one backend or launcher: what differs between them is settled when the trace is made.

**Imported by** `report`, `monitor`, `tui`, `replay` and notebooks; imports `trace`. `model` alone
is cheap to import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hangscope.diagnosis.engine import diagnose

__all__ = ["diagnose"]


def __getattr__(name: str) -> Any:
    # The engine needs numpy; the model alone must stay cheap to import.
    if name == "diagnose":
        from hangscope.diagnosis.engine import diagnose

        return diagnose
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
