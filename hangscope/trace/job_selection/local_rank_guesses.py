"""Local ranks that were taken for ranks, in the logs of several nodes.

The log of one node alone does not tell which node it is of. Beside another log in which a launcher
speaks as well, or the rank of that number speaks for itself, a local rank is no rank any more. Nor
is it one where another log has the same name but for a number, or a name says that it is of another
node, or is the number of a folder that torchrun made beside another folder of that number.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hangscope.trace import formats, signals
from hangscope.trace.files.file_names import (
    is_of_a_node,
    local_rank_of_log,
    without_dates,
)
from hangscope.trace.model import NONE, Claim, ClaimDetails, ExitFacts, Fragment, RankFacts

_NUMBER = re.compile(r"\d+")


def without_wrong_guesses(
    fragments: Sequence[Fragment], silent: Iterable[str] = ()
) -> list[Fragment]:
    """The fragments; what was only guessed to be of a rank is nobody's where other logs speak.

    ``silent``: logs that lie beside them and tell nothing.
    """
    logs: dict[str, list[Fragment]] = defaultdict(list)
    for fragment in fragments:
        if fragment.source.format == formats.LOG:
            logs[fragment.source.path].append(fragment)
    launchers = {path: _ends(told) for path, told in logs.items() if any(map(_launches, told))}
    found = list(fragments)
    shared = _shared_numbers(logs) | _of_several_nodes({*logs, *silent})
    for i, guess in enumerate(fragments):
        if len(guess.records) or not _is_guess(guess):
            continue
        path = guess.source.path
        named = path in shared or is_of_a_node(Path(path))
        if not named and path not in launchers:
            continue  # files that the processes of one node leave tell nothing of another
        ends = launchers.get(path, set())
        elsewhere = any(p != path and ends.isdisjoint(told) for p, told in launchers.items())
        others = [f for p, told in logs.items() if p != path for f in told]
        itself = [f for f in others if f.facts.rank == guess.facts.rank and len(f.records)]
        outlived = any(0 < _ended_ns(guess) < f.facts.observed_ns for f in itself)
        if named or elsewhere or itself:
            found[i] = _nobodys(guess, unheard=path in shared or elsewhere or outlived)
    return found


def _shared_numbers(paths: Iterable[str]) -> set[str]:
    """Files of torchrun's that are named by a local rank which those of another node have, too."""
    folders: dict[int, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for path in paths:
        local = local_rank_of_log(Path(path))
        if local is not None:
            folders[local][str(Path(path).parent)].append(path)
    return _in_several(folders.values())


def _in_several(sorts: Iterable[Mapping[str, list[str]]]) -> set[str]:
    """The paths of each sort that come in more than one kind."""
    several = (kinds for kinds in sorts if len(kinds) > 1)
    return {path for kinds in several for those in kinds.values() for path in those}


def _of_several_nodes(paths: Iterable[str]) -> set[str]:
    """Logs whose names differ in a number alone: each node, or each of its tasks, has one.

    Two dates are no such numbers, nor are the local ranks of torchrun's folders.
    """
    alike: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for path in paths:
        if local_rank_of_log(Path(path)) is None:
            undated = without_dates(path)
            alike[_NUMBER.sub("0", undated)][undated].append(path)
    return _in_several(alike.values())


def _is_guess(fragment: Fragment) -> bool:
    return any(c.details.get("local_as_rank") for c in fragment.claims)


def _launches(fragment: Fragment) -> bool:
    """Whether it tells what only the launcher of a node says."""
    return (_is_guess(fragment) and bool(_ends([fragment]))) or any(
        c.kind == "launcher_failure" or (c.details.get("stopped") and c.reporter is None)
        for c in fragment.claims
    )


def _ends(fragments: Sequence[Fragment]) -> set[tuple[int, ExitFacts]]:
    """How processes ended: two logs that tell of the same end are of one launcher."""
    ends = {(f.facts.rank, f.facts.exit) for f in fragments if f.facts.exit is not None}
    return {(rank, end) for rank, end in ends if end.code is not None or end.signal is not None}


def _ended_ns(fragment: Fragment) -> int:
    return fragment.facts.exit.at_ns if fragment.facts.exit is not None else 0


def _nobodys(guess: Fragment, *, unheard: bool) -> Fragment:
    """What such a fragment tells, as statements of no rank.

    Parameters
    ----------
    unheard:
        Whether the process is none of those that speak in the other logs.
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
        raised = ClaimDetails(unheard=unheard, nobodys=True)
        claims.append(Claim("other", text=said, at_ns=at_ns, certain=False, details=raised))
    elif facts.exit is not None:
        end = facts.exit
        how = f"exit status {end.code}" if end.signal is None else signals.name_of(end.signal)
        said = f"a process with local rank {facts.rank} ended: {how}"
        kind = "launcher_failure"
        claims.append(Claim(kind, text=said, at_ns=end.at_ns, certain=False, details=details))
    nobody = RankFacts(rank=NONE, world_size=facts.world_size)
    return replace(guess, facts=nobody, claims=tuple(claims))
