"""Command line of the simulator.

    python -m tests.sim --seed 7 [--seconds 60] [--trace]     replay one seed
    python -m tests.sim --seeds 0:1000 [--jobs 2]             run many, print the failing ones

Exit code 0 when every invariant held in every run, 1 otherwise.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial

from tests.sim.run import SECONDS, Verdict, replay_command, run_seed

_STORY_SHOWN = 12
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
    given = parser.parse_args()
    if given.seeds:
        low, _, high = given.seeds.partition(":")
        seeds = range(int(low), int(high or int(low) + 1))
        return many(seeds, seconds=given.seconds, jobs=given.jobs, stop_after=given.stop_after)
    return one(given.seed or 0, seconds=given.seconds, printing=given.trace)


def one(seed: int, *, seconds: float, printing: bool) -> int:
    """Run one seed and print everything about it."""
    verdict = run_seed(seed, seconds=seconds, printing=printing)
    if verdict.failed and not printing:
        print("\n".join(verdict.story))
    facts = " ".join(f"{name}={value}" for name, value in verdict.facts.items())
    print(f"seed {seed}: {verdict.text or 'every invariant held'}")
    print(f"{facts} trace={verdict.digest} cpu={verdict.cpu_seconds:.2f}s")
    return 1 if verdict.failed else 0


def many(seeds: range, *, seconds: float, jobs: int, stop_after: int) -> int:
    """Run many seeds; print failures as they come and a summary."""
    begin = time.monotonic()
    failures: list[Verdict] = []
    total: Counter[str] = Counter()
    done = 0
    for verdict in _verdicts(seeds, seconds, jobs):
        done += 1
        total.update(verdict.facts)
        if done % _PROGRESS == 0:
            print(f"{done} of {len(seeds)} seeds, {len(failures)} failures", file=sys.stderr)
        if verdict.failed:
            failures.append(verdict)
            print(f"FAIL seed {verdict.seed}: {verdict.text}")
            for line in verdict.story[-_STORY_SHOWN:]:
                print(f"     {line}")
            print(f"     {replay_command(verdict.seed, seconds)}", flush=True)
            if len(failures) >= stop_after:
                break
    spent = time.monotonic() - begin
    print(" ".join(f"{name}={value}" for name, value in total.items()))
    print(f"{done} seeds of {seconds:g} s in {spent:.0f} s, {len(failures)} failures")
    for name, count in Counter(verdict.invariant for verdict in failures).most_common():
        first = min(verdict.seed for verdict in failures if verdict.invariant == name)
        print(f"  {name}: {count}, first: {replay_command(first, seconds)}")
    return 1 if failures else 0


def _verdicts(seeds: range, seconds: float, jobs: int) -> Iterator[Verdict]:
    run = partial(run_seed, seconds=seconds)
    if jobs <= 1:
        yield from map(run, seeds)
        return
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=200) as pool:
        yield from pool.imap_unordered(run, seeds, chunksize=4)


if __name__ == "__main__":
    sys.exit(main())
