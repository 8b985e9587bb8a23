"""Crash everything in every disk call with every kind of loss; report what did not hold.

    python -m tests.crash [--history] [--groups] [--delays] [--timers] [--tools] [--folders]
                          [--only KIND]

Takes some minutes of a core. Prints how many calls and crashes there were; exit 1 with the first
of each kind of finding.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable

from tests.crash import tools
from tests.crash.deaths import DELAYS, GROUPS, ONE_FOLDER, THREE_FOLDERS, TIMERS
from tests.stores.histories.history import LOSSES


def main() -> int:
    """Run what is asked for, everything by default."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash")
    for name in ("history", "groups", "delays", "timers", "tools", "folders"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--only", choices=LOSSES)
    asked = parser.parse_args()
    chosen = (asked.history, asked.groups, asked.delays, asked.timers, asked.tools, asked.folders)
    every = not any(chosen)
    kinds = (asked.only,) if asked.only else LOSSES
    wrong = 0
    if asked.history or every:
        wrong += crash("history", ONE_FOLDER.calls, kinds, ONE_FOLDER.die)
    if asked.groups or every:
        wrong += crash("groups", GROUPS.calls, kinds, GROUPS.die)
    if asked.delays or every:
        wrong += crash("delays", DELAYS.calls, kinds, DELAYS.die)
    if asked.timers or every:
        wrong += crash("timers", TIMERS.calls, kinds, TIMERS.die)
    if asked.tools or every:
        for name in tools.NAMES:
            tool = tools.tools()[name]

            def one(number: int, kind: str, tool: tools.Tool = tool) -> None:
                tools.crash(tool, number, kind)

            wrong += crash(name, tools.calls(tool), kinds, one)
    if asked.folders or every:
        wrong += crash("folders", THREE_FOLDERS.calls, kinds, THREE_FOLDERS.die)
    return 1 if wrong else 0


def crash(name: str, calls: int, kinds: tuple[str, ...], one: Callable[[int, str], None]) -> int:
    """Die in every call with each kind of loss; return how often something did not hold."""
    begun, wrong = time.process_time(), 0
    for kind in kinds:
        for number in range(calls):
            try:
                one(number, kind)
            except Exception as error:
                wrong += 1
                print(f"{name}: call {number}, {kind} lost: {error!r}"[:300])
                if wrong == 1:
                    traceback.print_exc()
    spent = time.process_time() - begun
    print(f"{name}: {calls} calls, {calls * len(kinds)} crashes, {wrong} wrong, {spent:.0f} s CPU")
    sys.stdout.flush()
    return wrong


if __name__ == "__main__":
    sys.exit(main())
