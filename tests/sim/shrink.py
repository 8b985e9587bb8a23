"""Makes a failing run small: what it does not need is taken out of its plan, one thing at a time.

A change of the plan changes every later event, so each is tried with a few seeds of chance; it
stays if the same invariant fails. The result is a file that `python -m tests.sim --plan FILE`
runs again.

Not here: drawing plans (`tests.sim.swarm`), running them (`tests.sim.run`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import asdict, fields
from pathlib import Path

from tests.sim.machines.network import Weather
from tests.sim.run import Verdict, run_seed
from tests.sim.swarm import Plan

TRIES = 3
"""Seeds of chance for each change."""

_STEP = 1_000_003  # between the seeds of one plan; the first is its own


def shrink(
    plan: Plan, seconds: float, say: Callable[[str], None] = print
) -> tuple[Plan, float, Verdict] | None:
    """Return the smallest plan that was found, its seconds and its failure; None: it holds."""
    found = _run(plan, seconds)
    if not found.failed:
        return None
    say(f"{found.text}")
    best = plan, seconds, found
    smaller = True
    while smaller:
        smaller = False
        for what, candidate, length in _simpler(best[0], best[1]):
            verdict = _fails(candidate, length, found.invariant)
            if verdict is not None:
                say(f"  without {what}: still {verdict.invariant}")
                best, smaller = (candidate, length, verdict), True
                break
    return best


def _fails(plan: Plan, seconds: float, invariant: str) -> Verdict | None:
    own = plan.seed
    for number in range(TRIES):
        plan.seed = own + number * _STEP
        verdict = _run(plan, seconds)
        if verdict.invariant == invariant:
            return verdict
    return None


def _run(plan: Plan, seconds: float) -> Verdict:
    return run_seed(plan.seed, seconds=seconds, plan=deepcopy(plan))  # a world changes its plan


def _simpler(plan: Plan, seconds: float) -> Iterator[tuple[str, Plan, float]]:
    """Each way to make it a little simpler, the largest steps first."""
    if seconds > 2:
        yield f"the second half of {seconds:g} s", deepcopy(plan), seconds / 2
    for name in plan.rates:
        one = deepcopy(plan)
        del one.rates[name]
        yield f"the fault {name}", one, seconds
    for name in plan.limits:
        one = deepcopy(plan)
        del one.limits[name]
        yield f"the small limit {name}", one, seconds
    if len(plan.producers) > 1:
        one = deepcopy(plan)
        one.producers = one.producers[:1]
        yield "the other producers", one, seconds
    usual = Plan(plan.seed)
    for item in fields(Plan):
        kept = item.name in ("seed", "rates", "limits", "producers")
        if not kept and getattr(plan, item.name) != getattr(usual, item.name):
            one = deepcopy(plan)
            setattr(one, item.name, deepcopy(getattr(usual, item.name)))
            yield f"another {item.name}", one, seconds


def write(path: Path, plan: Plan, seconds: float) -> None:
    """Write a plan and its seconds."""
    path.write_text(json.dumps({"seconds": seconds, "plan": asdict(plan)}, indent=1) + "\n")


def read(path: Path) -> tuple[Plan, float]:
    """Read what `write` wrote.

    Raises:
        ValueError: It is not such a file.
    """
    data = json.loads(path.read_text())
    plan = data["plan"]
    plan["weather"] = Weather(**plan["weather"])
    plan["nodes"], plan["producers"] = tuple(plan["nodes"]), tuple(plan["producers"])
    return Plan(**plan), float(data["seconds"])
