"""Explanations of why ranks wait for each other, tried and weighed.

**In**: a `Context`, the ranks of a circle and the places where they wait. **Out**: an `Outcome`:
who is accused by the explanation that leads clearly, and what the others cost.

* `expect` says of a rank what others, and its own past, let expect of it, and where it departed
  from that;
* `contest` makes the explanations and lets each pay for the mistakes that it supposes, for what
  others did unexpectedly, and for waiting that it does not end.

**Rules.** The accused have no vote. A program that differs from rank to rank does so in every step:
only what a rank did once counts.

**Imported by** `causes`; imports `knowledge` and `graph`.
"""
