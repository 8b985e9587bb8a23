"""Command line of the simulator.

    python -m tests.sim --seed 7 [--seconds 60] [--trace]     replay one seed
    python -m tests.sim --seeds 0:1000 [--jobs 2]             run many, print the failing ones
    python -m tests.sim --seed 7 --shrink                     make a failing run small
    python -m tests.sim --plan plan-7.json --trace            run what came of that
    python -m tests.sim --seeds 0:100 --profile groups        consumers above all
    python -m tests.sim --seeds 0:100 --profile delays        delayed messages above all
    python -m tests.sim --seeds 0:100 --profile timers        messages at a time above all
    python -m tests.sim --seeds 0:100 --profile deletions     a topic that is deleted above all
    python -m tests.sim --seeds 0:100 --profile transactions  transactions above all
    python -m tests.sim --seed 7 --history 7.jsonl            for `python -m cli.history 7.jsonl`

Exit code 0 when every invariant held in every run, 1 otherwise.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tests.sim.profiles.groups import RARE as RARE_OF_GROUPS
from tests.sim.run import SECONDS, Verdict, replay_command, run_seed
from tests.sim.shrink import read, shrink, write
from tests.sim.swarm import PROFILES, Plan, draw
from tests.sim.world import BY_HAND, RARE

_STORY_SHOWN = 12
RARE_SEEDS = 1000
"""Among this many seeds every rare state is met (`tests.sim.world.RARE`)."""
_PROGRESS = 500  # seeds between two signs of life


def main() -> int:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this seed")
    parser.add_argument("--seeds", help="run the seeds A:B (B excluded)")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="simulated seconds of faults"
    )
    parser.add_argument("--trace", action="store_true", help="print one line per event")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--stop-after", type=int, default=20, help="failures after which to stop")
    parser.add_argument("--shrink", action="store_true", help="make the failing seed's plan small")
    parser.add_argument("--plan", type=Path, help="run the plan of this file")
    parser.add_argument("--history", type=Path, help="write what clients saw to this file")
    parser.add_argument("--profile", choices=PROFILES, default="", help="what runs are about")
    given = parser.parse_args()
    if given.shrink:
        return smaller(draw(given.seed or 0, given.profile), seconds=given.seconds)
    if given.seeds:
        low, _, high = given.seeds.partition(":")
        seeds = range(int(low), int(high or int(low) + 1))
        seconds, profile = given.seconds, given.profile
        stop_after = given.stop_after
        return many(seeds, profile, seconds=seconds, jobs=given.jobs, stop_after=stop_after)
    drawn = draw(given.seed or 0, given.profile)
    plan, seconds = read(given.plan) if given.plan else (drawn, given.seconds)
    return one(plan, seconds=seconds, printing=given.trace, history=given.history)


def smaller(plan: Plan, *, seconds: float) -> int:
    """Take what is not needed out of a failing seed's plan, and write the rest to a file."""
    seed, found = plan.seed, shrink(plan, seconds)
    if found is None:
        print(f"seed {seed}: every invariant held")
        return 0
    plan, seconds, verdict = found
    path = Path(f"plan-{seed}.json")
    write(path, plan, seconds)
    print(f"{verdict.text}\npython -m tests.sim --plan {path} --trace")
    return 1


def one(plan: Plan, *, seconds: float, printing: bool, history: Path | None = None) -> int:
    """Run one plan and print everything about it."""
    seed = plan.seed
    verdict = run_seed(seed, seconds=seconds, printing=printing, plan=plan, history=history)
    if verdict.failed and not printing:
        print("\n".join(verdict.story))
    facts = " ".join(f"{name}={value}" for name, value in verdict.facts.items())
    print(f"seed {seed}: {verdict.text or 'every invariant held'}")
    print(f"{facts} trace={verdict.digest} cpu={verdict.cpu_seconds:.2f}s")
    return 1 if verdict.failed else 0


def many(seeds: range, profile: str, *, seconds: float, jobs: int, stop_after: int) -> int:
    """Run many seeds; print failures as they come and a summary."""
    begin = time.monotonic()
    failures: list[Verdict] = []
    total: Counter[str] = Counter()
    done = 0
    for verdict in _verdicts(seeds, partial(run_seed, seconds=seconds, profile=profile), jobs):
        done += 1
        total.update(verdict.facts)
        if done % _PROGRESS == 0:
            print(f"{done} of {len(seeds)} seeds, {len(failures)} failures", file=sys.stderr)
        if verdict.failed:
            failures.append(verdict)
            print(f"FAIL seed {verdict.seed}: {verdict.text}")
            for line in verdict.story[-_STORY_SHOWN:]:
                print(f"     {line}")
            print(f"     {replay_command(verdict.seed, seconds, profile)}")
            about = f" --profile {profile}" if profile else ""
            print(f"     python -m tests.sim --seed {verdict.seed}{about} --shrink", flush=True)
            if len(failures) >= stop_after:
                break
    spent = time.monotonic() - begin
    wanted = [name for name in RARE if name not in BY_HAND]
    if profile == "groups":
        wanted = list(RARE_OF_GROUPS)
    never = [name for name in wanted if not total[name]] if done >= RARE_SEEDS else []
    if never:
        print(f"states that must be met in {RARE_SEEDS} seeds and were not: {', '.join(never)}")
    print(" ".join(f"{name}={value}" for name, value in total.items()))
    print(f"{done} seeds of {seconds:g} s in {spent:.0f} s, {len(failures)} failures")
    for name, count in Counter(verdict.invariant for verdict in failures).most_common():
        first = min(verdict.seed for verdict in failures if verdict.invariant == name)
        print(f"  {name}: {count}, first: {replay_command(first, seconds, profile)}")
    return 1 if failures or never else 0


def _verdicts(seeds: range, run: Callable[[int], Verdict], jobs: int) -> Iterator[Verdict]:
    if jobs <= 1:
        yield from map(run, seeds)
        return
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=200) as pool:
        yield from pool.imap_unordered(run, seeds, chunksize=4)


if __name__ == "__main__":
    sys.exit(main())
