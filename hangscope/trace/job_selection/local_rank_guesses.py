"""Retracts guesses that a local rank in a log is the global rank.

The log of a single node does not say which node it is from. A guess is wrong if another log also
has output of a launcher, or output of the very rank that was guessed. It is wrong, too, if the
log's name differs from another's only in a number or contains a node's name, or if torchrun's log
folder for that local rank exists on several nodes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hangscope.trace import formats, signals
from hangscope.trace.files.file_names import (
    local_rank_of_log,
    names_a_node,
    without_dates,
)
from hangscope.trace.model import NONE, Claim, ClaimDetails, ExitFacts, Fragment, RankFacts

_NUMBER = re.compile(r"\d+")


def retract_wrong_guesses(
    fragments: Sequence[Fragment], silent: Iterable[str] = ()
) -> list[Fragment]:
    """Return the fragments; those guessed to be of a rank lose it where other logs contradict that.

    ``silent``: paths of logs beside them that contain no evidence.
    """
    logs: dict[str, list[Fragment]] = defaultdict(list)
    for fragment in fragments:
        if fragment.source.format == formats.LOG:
            logs[fragment.source.path].append(fragment)
    launchers = {
        path: _ends(parts) for path, parts in logs.items() if any(map(_has_launcher_output, parts))
    }
    found = list(fragments)
    shared = _same_local_rank_on_several_nodes(logs) | _differing_in_a_number({*logs, *silent})
    for i, guess in enumerate(fragments):
        if len(guess.records) or not _is_guess(guess):
            continue
        path = guess.source.path
        named = path in shared or names_a_node(Path(path))
        if not named and path not in launchers:
            continue  # logs of single processes of this node cannot contradict the guess
        ends = launchers.get(path, set())
        elsewhere = any(p != path and ends.isdisjoint(parts) for p, parts in launchers.items())
        others = [f for p, parts in logs.items() if p != path for f in parts]
        itself = [f for f in others if f.facts.rank == guess.facts.rank and len(f.records)]
        outlived = any(0 < _ended_ns(guess) < f.facts.observed_ns for f in itself)
        if named or elsewhere or itself:
            found[i] = _unattributed(guess, unheard=path in shared or elsewhere or outlived)
    return found


def _same_local_rank_on_several_nodes(paths: Iterable[str]) -> set[str]:
    """Log files that torchrun named by local rank, where several nodes have that local rank."""
    folders: dict[int, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for path in paths:
        local = local_rank_of_log(Path(path))
        if local is not None:
            folders[local][str(Path(path).parent)].append(path)
    return _in_several(folders.values())


def _in_several(sorts: Iterable[Mapping[str, list[str]]]) -> set[str]:
    """All paths of each collection that has more than one key."""
    several = (kinds for kinds in sorts if len(kinds) > 1)
    return {path for kinds in several for those in kinds.values() for path in those}


def _differing_in_a_number(paths: Iterable[str]) -> set[str]:
    """Logs whose names differ only in a number: one per node, or one per task of a node.

    Dates do not count as such numbers, nor do the local ranks of torchrun's folders.
    """
    alike: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for path in paths:
        if local_rank_of_log(Path(path)) is None:
            undated = without_dates(path)
            alike[_NUMBER.sub("0", undated)][undated].append(path)
    return _in_several(alike.values())


def _is_guess(fragment: Fragment) -> bool:
    return any(c.details.local_as_rank for c in fragment.claims)


def _has_launcher_output(fragment: Fragment) -> bool:
    """Whether it contains something that only a node's launcher prints."""
    return (_is_guess(fragment) and bool(_ends([fragment]))) or any(
        c.kind == "launcher_failure" or (c.details.stopped and c.reporter is None)
        for c in fragment.claims
    )


def _ends(fragments: Sequence[Fragment]) -> set[tuple[int, ExitFacts]]:
    """How processes ended; if two logs report the same end, they are of one launcher."""
    ends = {(f.facts.rank, f.facts.exit) for f in fragments if f.facts.exit is not None}
    return {(rank, end) for rank, end in ends if end.code is not None or end.signal is not None}


def _ended_ns(fragment: Fragment) -> int:
    return fragment.facts.exit.at_ns if fragment.facts.exit is not None else 0


def _unattributed(guess: Fragment, *, unheard: bool) -> Fragment:
    """The fragment's contents as claims about no particular rank.

    Parameters
    ----------
    unheard:
        Whether the process is not among those that appear in the other logs.
    """
    facts, details = guess.facts, ClaimDetails(unheard=unheard)
    claims = [
        replace(c, reporter=None, accused=())
        for c in guess.claims
        if c.text and c.kind != "launcher_failure"
    ]
    if facts.exception is not None:
        said = f"{facts.exception.type_name}: {facts.exception.message}".partition("\n")[0]
        said, at_ns = said.rstrip(": ")[:300], facts.exception.at_ns
        raised = ClaimDetails(unheard=unheard, unattributed=True)
        claims.append(Claim("other", text=said, at_ns=at_ns, certain=False, details=raised))
    elif facts.exit is not None:
        end = facts.exit
        how = f"exit status {end.code}" if end.signal is None else signals.name_of(end.signal)
        said = f"a process with local rank {facts.rank} ended: {how}"
        told = Claim("launcher_failure", text=said, at_ns=end.at_ns, certain=False, details=details)
        claims.append(told)
    nobody = RankFacts(rank=NONE, world_size=facts.world_size)
    return replace(guess, facts=nobody, claims=tuple(claims))
