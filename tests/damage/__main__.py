"""Runs cases of the damage matrix and makes its table; see the package's text.

Not here: damage (`tests.damage.corrupter`), judgement (`tests.damage.judge`).
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections import Counter
from functools import cache
from multiprocessing import Pool
from pathlib import Path

from tests.damage.corrupter import KINDS, WAYS, Hurt, hurt
from tests.damage.judge import OUTCOMES, Original, Wrong, judge, originals

PAGE = Path(__file__).parents[2] / "docs" / "damage.md"
Result = tuple[int, str, str, str, str]
"""Case, kind, way, outcome, what went wrong."""


@cache
def stores() -> list[Original]:
    """The stores that are damaged, made once in a process."""
    return originals()


def one(case: int) -> Result:
    """Run one case."""
    original = stores()[case % len(stores())]
    disk = copy.deepcopy(original.disk)
    done: Hurt = hurt(disk, case // len(stores()))
    try:
        return case, done.kind, done.way, judge(original, disk, done), ""
    except Wrong as wrong:
        where = f"{original.name}, {done.way} {done.path} at {done.at}"
        return case, done.kind, done.way, "WRONG", f"{where}: {wrong}"


def table(results: list[Result]) -> list[str]:
    """The rows of the table: how many cases ended in which way."""
    counts = Counter((kind, way, outcome) for _, kind, way, outcome, _ in results)
    rows = ["| file | damage | " + " | ".join(OUTCOMES) + " |"]
    rows.append("|---|---|" + "---|" * len(OUTCOMES))
    for kind in KINDS:
        for way in WAYS:
            cells = [str(counts[kind, way, outcome] or "") for outcome in OUTCOMES]
            rows.append(f"| {kind} | {way} | " + " | ".join(cells) + " |")
    return rows


def write(results: list[Result]) -> None:
    """Put the table into the page, between its marks."""
    text = PAGE.read_text(encoding="utf-8")
    head, mark, rest = text.partition("<!-- table -->\n")
    _, end, tail = rest.partition("<!-- end of table -->")
    lines = [f"{len(results):,} cases, seeds {results[0][0]} to {results[-1][0]}.", ""]
    PAGE.write_text(
        head + mark + "\n".join([*lines, *table(results)]) + "\n" + end + tail, encoding="utf-8"
    )


def main() -> int:
    """Run what was asked for; exit code 1 when a store did what it may never do."""
    parser = argparse.ArgumentParser(prog="python -m tests.damage")
    parser.add_argument("--cases", default="0:1000", help="from:to")
    parser.add_argument("--case", type=int, help="one case")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="write docs/damage.md")
    asked = parser.parse_args()
    first, _, last = asked.cases.partition(":")
    cases = [asked.case] if asked.case is not None else range(int(first), int(last))
    with Pool(asked.jobs) as pool:
        results = list(pool.imap(one, cases, chunksize=25))
    wrong = [result for result in results if result[3] == "WRONG"]
    print("\n".join(table(results)))
    for case, *_, text in wrong[:40]:
        print(f"case {case}: {text}")
    print(f"{len(results)} cases, {len(wrong)} wrong")
    if asked.write and not wrong:
        write(results)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
