"""Runs one seed and says how it ended.

Not here: the command line (`tests.sim.__main__`).
"""

from __future__ import annotations

import gc
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

from cli.history.operations import write
from tests.sim.judge.ledger import Violation
from tests.sim.swarm import Plan, draw
from tests.sim.world import World

SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a run ended.

    Attributes:
        seed: Its seed.
        invariant: Name of the broken invariant, ``Crash`` for an exception of production code,
            empty when all held.
        text: What happened.
        digest: Hash of the trace.
        cpu_seconds: Its cost.
        facts: Counts: what the run did.
        story: The last lines of the trace, for a failure.
    """

    seed: int
    invariant: str
    text: str
    digest: str
    cpu_seconds: float
    facts: dict[str, int] = field(default_factory=dict)
    story: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """True when an invariant was broken."""
        return bool(self.invariant)


def replay_command(seed: int, seconds: float = SECONDS, profile: str = "") -> str:
    """The command that shows a run again."""
    about = f" --profile {profile}" if profile else ""
    return f"python -m tests.sim --seed {seed} --seconds {seconds:g}{about} --trace"


def run_seed(
    seed: int,
    *,
    seconds: float = SECONDS,
    printing: bool = False,
    plan: Plan | None = None,
    alone: str = "",
    history: Path | None = None,
    profile: str = "",
) -> Verdict:
    """Run one seed to its end or its first broken invariant; see `World` for ``alone``.

    What clients saw is written to ``history``, whatever the end.
    """
    begin = time.process_time()
    collecting = gc.isenabled()
    gc.disable()  # worlds are small and die whole; the collector would cost a tenth
    invariant, text = "", ""
    world: World | None = None
    try:
        world = World(plan or draw(seed, profile), printing=printing, alone=alone)
        world.run(seconds)
    except Violation as violation:
        invariant, text = violation.name, str(violation)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{last.filename.rsplit('/', 2)[-2:]}:{last.lineno}"
        invariant, text = "Crash", f"{type(error).__name__}: {error} at {where}"
        if printing:
            traceback.print_exc()
    finally:
        if collecting:
            gc.enable()
    if history is not None and world is not None:
        write(history, world.history.operations())
    digest = world.log.digest if world else ""
    story = tuple(world.log.story) if world and invariant else ()
    facts = world.facts() if world else {}
    cost = time.process_time() - begin
    return Verdict(seed, invariant, text, digest, cost, facts, story)
