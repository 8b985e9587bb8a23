"""``python -m cli.history FILE...``: whether one log explains what clients saw.

Exit code 0: it does. 1: it does not, or a search was given up. 2: a file is not a history.
"""

from __future__ import annotations

import sys
from pathlib import Path

from cli.history.checker import check
from cli.history.operations import load
from twinlog.errors import UsageError

RIGHT, WRONG, UNREADABLE = 0, 1, 2


def main(names: list[str]) -> int:
    """Check every file and print what is found; returns the exit code."""
    code = RIGHT
    for name in names:
        try:
            verdict = check(load(Path(name)))
        except (UsageError, OSError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            return UNREADABLE
        counts = ", ".join(f"{what} {count}" for what, count in sorted(verdict.counts.items()))
        print(f"{name}: {'one log explains it' if verdict.holds else 'WRONG'} ({counts})")
        for one in verdict.findings:
            print(
                f"  {one.kind}: {one.text}"
                + (f" ({', '.join(one.operations)})" * bool(one.operations))
            )
        for topic, queue in verdict.unsure:
            print(f"  unknown: the search of {topic}/{queue} was given up")
            code = WRONG
        code = WRONG if verdict.findings else code
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
