"""``python -m tools.ablate``: what each part of the diagnosis is good for.

Draws the corpora, switches the functions of `hangscope.diagnosis` off one after the other, and
prints which answers change. ``--list`` prints the functions; ``--only`` chooses some by a pattern;
``--together`` switches all the chosen ones off at once; ``--calibration`` prints only how good the
answers are and what their confidence is worth.
"""

from __future__ import annotations

import argparse
import re
import sys
import time

from tools.ablation import tables
from tools.ablation.corpora import CORPORA
from tools.ablation.from_tests import from_tests
from tools.ablation.items import items
from tools.ablation.measure import Baseline, Change, baseline, without


def main() -> int:
    arguments = _arguments()
    everything = items()
    chosen = [
        i
        for i, item in enumerate(everything)
        if any(re.search(pattern, item.name) for pattern in arguments.only or [""])
        and (arguments.helpers or ":_" not in item.name or arguments.only)
    ]
    if arguments.list:
        print("\n".join(everything[i].name for i in chosen))
        return 0
    began_s = time.monotonic()
    cases = {
        name: list(CORPORA[name](arguments.size, arguments.seed))
        for name in arguments.corpus or CORPORA
    }
    if arguments.tests:
        cases["tests"] = list(from_tests())
    _say(f"{sum(map(len, cases.values()))} cases made", began_s)
    base = baseline(cases, [] if arguments.calibration else everything)
    _say("diagnosed", began_s)
    print(tables.scores(base), tables.calibration(base), sep="\n\n", end="\n\n")
    if not arguments.calibration:
        sets = [chosen] if arguments.together else [[i] for i in chosen]
        _ablate(base, sets, arguments)
        _say(f"{len(sets)} ablations", began_s)
    return 0


def _ablate(base: Baseline, sets: list[list[int]], arguments: argparse.Namespace) -> None:
    rows: list[tuple[str, int, list[Change]]] = []
    silent: list[str] = []
    for which, tried, changes in without(base, sets, arguments.most, arguments.seed):
        name = base.items[which[0]].name if len(which) == 1 else f"{len(which)} items"
        if not tried:
            silent.append(name)
            continue
        rows.append((name, tried, changes))
        if arguments.show:
            print(name)
            shown = [c for c in changes if tables.effect(c) != "words"][: arguments.show]
            print("\n".join(map(tables.shown, shown)))
    print(tables.ablations(rows))
    if arguments.page:
        tables.write_page(tables.page(rows, list(base.cases)))
    print(f"\n{len(silent)} more never have a say: {', '.join(f'`{n}`' for n in silent)}")


def _say(what: str, began_s: float) -> None:
    print(f"{time.monotonic() - began_s:.0f} s: {what}", file=sys.stderr)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.ablate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=40917)
    parser.add_argument("--size", type=float, default=1.0, help="times the usual number of cases")
    parser.add_argument("--corpus", action="append", choices=list(CORPORA), help="repeatable")
    parser.add_argument("--tests", action="store_true", help="also what the tests diagnose")
    parser.add_argument("--only", action="append", metavar="PATTERN", help="repeatable")
    parser.add_argument("--helpers", action="store_true", help="private functions, too")
    parser.add_argument("--together", action="store_true", help="all the chosen ones at once")
    parser.add_argument("--most", type=int, default=40, help="try at most this many per corpus")
    parser.add_argument("--show", type=int, default=0, help="print this many changed answers each")
    parser.add_argument("--page", action="store_true", help="write the table of docs/ablation.md")
    parser.add_argument("--calibration", action="store_true")
    parser.add_argument("--list", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
