"""Digests: what the nodes of a large job tell each other about their ranks.

**In**: a look at the ranks of one node. **Out**: some hundred bytes per rank, of which a tree over
the job's store makes one message, and a `Fragment` per rank at the other end.

* `make` reduces a look, `digest` is the message and its merging, `codec` its bytes, `tables` holds
  once what many ranks share, `columns` writes tables of integers (what neighbours have in common
  costs nothing), and `hangscope.trace.facts_codec` facts about processes;
* `hosts` is which ranks run on which host, exchanged once while all is well.

**Rules.** A digest comes from another machine: every type, index, count and size in it is checked,
and what does not fit makes all of it void. No pickle.

**Imported by** `monitor`, `toolkit.launching` and `diagnosis.wording`; imports `merging`.
"""
