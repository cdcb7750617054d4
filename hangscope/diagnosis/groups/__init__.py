"""Which ranks are members of each group, where no source lists them.

**In**: a `Trace` whose groups may be listed in part, made up from the ranks that appear, or named
by numbers that mean something else on each rank. **Out**: the trace with members that are certain
or inferred, and the set of inferred groups; a list that could lack a member is dropped.

* `memberships.with_credible_members` is the entry; `meshes` completes groups that tile the world
  with one stride and one size; `local_numbers` gives names that stand for several groups apart.
* `unlisted_members` names members that sizes or gaps in the numbering imply; `dimensions` groups of
  one kind; `left` who has destroyed a group.

**Rules.** Nothing is guessed: only members that every mesh that fits includes. Rings and current
dumps list their members, and pass through untouched.

**Imported by** `engine`, `waiting`, `doubts` and `wording`; imports `records`.
"""
