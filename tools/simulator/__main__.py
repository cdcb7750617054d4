"""``python -m tools.simulator --cases 2000 --seed 1``: score the analyzer on virtual hangs."""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path

from tools.simulator.faults import FAULTS, ON_REQUEST
from tools.simulator.outcomes import CRASH, EXACT, PART, UNDECIDED, WRONG
from tools.simulator.score import Outcome, Tally, run
from tools.simulator.several import MISTAKES
from tools.simulator.two_faults import TWO_FAULTS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.simulator", description=__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stock", action="store_true", help="score torchfrtrace too")
    parser.add_argument(
        "--fault",
        action="append",
        choices=sorted([*FAULTS, *ON_REQUEST, *MISTAKES, *TWO_FAULTS]),
        help="only this fault (repeatable)",
    )
    parser.add_argument("--dialect", action="append", help="only this dialect (repeatable)")
    parser.add_argument(
        "--lose-victim", action="store_true", help="without the dump of a rank that is not at fault"
    )
    parser.add_argument(
        "--several", action="store_true", help="several ranks make the same mistake"
    )
    parser.add_argument(
        "--two", action="store_true", help="one rank stops, and another one issues something else"
    )
    parser.add_argument("--show", type=int, default=10, help="print this many failures")
    parser.add_argument("--table", type=Path, help="write the table as Markdown")
    arguments = parser.parse_args()
    total, stock = Tally(), Tally()
    by_fault: dict[str, tuple[Tally, Tally]] = defaultdict(lambda: (Tally(), Tally()))
    by_dialect: dict[str, tuple[Tally, Tally]] = defaultdict(lambda: (Tally(), Tally()))
    shown = 0
    for outcome in run(
        arguments.cases,
        arguments.seed,
        with_stock=arguments.stock,
        dialects=arguments.dialect,
        faults=arguments.fault,
        lose=arguments.lose_victim,
        several=arguments.several,
        two=arguments.two,
    ):
        tallies = [
            (total, stock),
            by_fault[outcome.case.truth.fault],
            by_dialect[outcome.dialect],
        ]
        for mine, theirs in tallies:
            count(mine, theirs, outcome)
        if outcome.mine != EXACT or outcome.certain_wrong:
            shown += 1
            if shown <= arguments.show:
                explain(outcome)
    table = render(total, stock, by_fault, by_dialect, arguments)
    print(table)
    if arguments.table:
        arguments.table.write_text(table + "\n")
    if arguments.several or arguments.two:
        # No share of exact answers is asked for, only that none is wrong.
        return 1 if total.counts[WRONG] or total.counts[CRASH] or total.certain_wrong else 0
    good = total.share(EXACT) >= 0.99 and not total.counts[CRASH] and not total.certain_wrong
    return 0 if good else 1


def count(mine: Tally, theirs: Tally, outcome: Outcome) -> None:
    mine.counts[outcome.mine] += 1
    mine.innocents += outcome.innocents
    mine.certain_wrong += outcome.certain_wrong
    if outcome.stock is not None:
        theirs.counts[outcome.stock] += 1


def explain(outcome: Outcome) -> None:
    case = outcome.case
    job = case.run.job
    print(
        f"{outcome.mine}{' CERTAIN' if outcome.certain_wrong else ''} #{case.number} "
        f"{case.truth.fault} | {job.shape} world {job.world} "
        f"{'blocking' if job.blocking else 'ahead'} keep {case.keep} | {outcome.dialect} | "
        f"truth {sorted(case.truth.verdicts)} {sorted(case.truth.culprits)}\n    {outcome.detail}",
        file=sys.stderr,
    )


def in_part(total: Tally) -> str:
    """How many answers name only some of the ranks at fault; empty where there is only one."""
    return f"{total.counts[PART]} name some of the ranks at fault, " if total.counts[PART] else ""


def render(  # type: ignore[no-untyped-def]
    total, stock, by_fault, by_dialect, arguments
) -> str:
    lines = [
        f"{total.total} cases, seed {arguments.seed}: {total.share(EXACT):.2%} exact, "
        f"{in_part(total)}{total.counts[UNDECIDED]} undecided, {total.counts[WRONG]} wrong, "
        f"{total.counts[CRASH]} crashes, {total.certain_wrong} innocents named as certain.",
        "",
    ]
    if stock.total:
        lines += [
            f"`torchfrtrace` on the {stock.total} of them that it can read: "
            f"{stock.share(EXACT):.2%} exact, {stock.counts[UNDECIDED]} named nobody, "
            f"{stock.counts[WRONG]} wrong, {stock.counts[CRASH]} crashes.",
            "",
        ]
    for title, table in (("fault", by_fault), ("dialect", by_dialect)):
        lines += [
            f"| {title} | cases | exact | undecided | wrong | certain and wrong "
            "| torchfrtrace exact | its crashes |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for name, (mine, theirs) in table.items():
            share = f"{theirs.share(EXACT):.0%} of {theirs.total}" if theirs.total else "—"
            lines.append(
                f"| {name} | {mine.total} | {mine.share(EXACT):.1%} | {mine.counts[UNDECIDED]} "
                f"| {mine.counts[WRONG]} | {mine.certain_wrong} | {share} "
                f"| {theirs.counts[CRASH] if theirs.total else '—'} |"
            )
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
