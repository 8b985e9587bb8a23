"""One drill from start to verdict.

Load starts; each round waits until every node is in sync, lets faults happen at their times, takes
back those with an end, waits for writes to go on, and takes back the rest.  At the end the load
stops, every queue is read from every node, the nodes' logs are compared byte for byte, and the
history is judged.

Whatever goes wrong in the drill itself makes the verdict *unknown*, with the reason; what the
history shows by then is judged all the same.  Every wait ends at the drill's limit.  Times are
seconds since the drill began.

Not here: faults (``faults``), checks of the history (``judge``), pages (``report``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from cli.cluster.health import judge as judge_health
from cli.cluster.view import ClusterView
from cli.drill.faults import Begun, Injector
from cli.drill.judge import (
    Counts,
    Example,
    Finding,
    Gap,
    Judgement,
    Outcome,
    judge,
    quantile,
    worst,
)
from cli.drill.scenario import Fault, Promises, Scenario
from cli.drill.stage import OwnStage, Stage, all_equal, all_in_sync, quick_look, wait_for
from cli.drill.watcher import Sighting, Watcher
from cli.drill.workers import Workers
from cli.drill.workload import Clock, Workload, drain
from cli.failures import Exit, Failure
from cli.history.operations import Operation
from twinlog.errors import TwinlogError

START_SECONDS = 60.0
"""How long a cluster may take until every node is in sync for the first time."""
RESUME_SECONDS = 30.0
"""How long writes are waited for after the last fault of a round."""
DRAIN_SECONDS = 20.0
"""How long one queue is read at the end without progress."""
TICK_SECONDS = 0.01
ITSELF = "the drill itself"
"""The finding that says why a drill could not be done."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Band:
    """A fault as it was: from when to when (None: until the end), and what."""

    begin: float
    end: float | None
    text: str
    targets: tuple[str, ...]


@dataclass
class Result:
    """Everything a drill found out."""

    scenario: Scenario
    seed: int
    history: list[Operation] = field(default_factory=list[Operation])
    nodes: tuple[str, ...] = ()
    findings: list[Finding] = field(default_factory=list[Finding])
    counts: Counts = field(default_factory=Counts)
    gaps: tuple[Gap, ...] = ()
    moments: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])
    """When which fault began."""
    errors: dict[str, int] = field(default_factory=dict[str, int])
    bands: list[Band] = field(default_factory=list[Band])
    sightings: list[Sighting] = field(default_factory=list[Sighting])
    sentences: dict[str, tuple[float, str]] = field(default_factory=dict[str, tuple[float, str]])
    seconds: float = 0.0
    began_ms: int = 0
    logs: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    @property
    def verdict(self) -> Outcome:
        """Broken if one promise is; else unknown if one is; else held."""
        return worst(self.findings)

    @property
    def exit(self) -> Exit:
        """The exit code of the verdict."""
        return {
            Outcome.HELD: Exit.OK, Outcome.BROKEN: Exit.NO, Outcome.UNKNOWN: Exit.UNDECIDED,
        }[self.verdict]  # fmt: skip

    def headline(self) -> str:
        """The verdict in one sentence."""
        if self.verdict is not Outcome.HELD:
            bad = next(one for one in self.findings if one.outcome is self.verdict)
            return f"{self.verdict.value}: {bad.text}"
        stopped = self.longest()
        gap = "" if stopped is None else f", writes stopped for {stopped:.2f} s at most"
        lost = (
            f"{self.counts.lost} lost as is allowed here, none"
            if self.counts.lost
            else "none lost or"
        )
        return f"held: {self.counts.acknowledged} acknowledged, {lost} doubled, in order{gap}"

    def longest(self) -> float | None:
        """The longest write gap, seconds; None without one."""
        return max((gap.seconds for gap in self.gaps), default=None)

    def fields(self) -> dict[str, object]:
        """The document of the drill."""
        gaps = [gap.seconds for gap in self.gaps]
        recoveries = [gap.recovery for gap in self.gaps]
        return {
            "name": self.scenario.name,
            "verdict": self.verdict.value,
            "headline": self.headline(),
            "seed": self.seed,
            "rounds": self.scenario.rounds,
            "seconds": round(self.seconds, 3),
            "findings": [one.fields() for one in self.findings],
            **{name: getattr(self.counts, name) for name in Counts.__slots__},
            "errors": self.errors,
            "write_gaps": len(gaps),
            "write_gap_median": rounded(quantile(gaps, 0.5)),
            "write_gap_p99": rounded(quantile(gaps, 0.99)),
            "write_gap_max": rounded(self.longest()),
            "recovery_median": rounded(quantile(recoveries, 0.5)),
            "recovery_p99": rounded(quantile(recoveries, 0.99)),
            "faults": [
                {"begin": band.begin, "end": band.end, "text": band.text} for band in self.bands
            ],
        }


def not_begun(scenario: Scenario, seed: int, failure: Failure) -> Result:
    """The result of a drill for which there was no cluster: unknown, with the reason."""
    result = Result(scenario, seed)
    told = "; ".join([failure.text, *failure.facts])
    result.findings.append(Finding(ITSELF, Outcome.UNKNOWN, told))
    return result


def rounded(value: float | None) -> float | None:
    """Seconds with three digits."""
    return None if value is None else round(value, 3)


class Drill:
    """A drill under way.

    Args:
        scenario: What to do.
        stage: Where; it runs.
        topic: Where the load goes.
        seed: For what is drawn.
        say: Called with each line for a person.
    """

    def __init__(
        self, scenario: Scenario, stage: Stage, *, topic: str, seed: int, say: Say
    ) -> None:
        self._scenario = scenario
        self._stage = stage
        self._topic = topic
        self._say = say
        self._clock = Clock()
        self._until = time.monotonic() + START_SECONDS + scenario.limit
        history: list[Operation] = []
        self.result = Result(scenario, seed, history, stage.nodes)
        self.result.began_ms = stage.context.wall_ms()
        self._injector = Injector(stage, seed)
        self._workload = Workload(stage.client, scenario.load, topic, history, self._clock)
        self._workers = Workers(stage.client, topic, scenario.load.workers)
        self._watcher = Watcher(lambda: quick_look(stage.context), self._clock)
        self._active: list[tuple[Begun, Band, float | None]] = []
        self._healed = 0.0
        self._leader = ""

    def run(self) -> Result:
        """Do all of it; the result says what was found, whatever happened."""
        try:
            self._start()
            for number in range(self._scenario.rounds):
                self._round(number)
            self._end()
        except Failure as failure:
            told = "; ".join([failure.text, *failure.facts])
            self._find(ITSELF, Outcome.UNKNOWN, told)
            self._tell(told)
            self.take_back()
        finally:
            self._watcher.stop()
        self._judge()
        return self.result

    # ── the parts ───────────────────────────────────────────────────────────────────────────────

    def _start(self) -> None:
        view = wait_for(self._stage, "every node in sync", all_in_sync, START_SECONDS)
        self._leader = view.leader or ""
        names = ", ".join(self._stage.nodes)
        self._tell(f"{names} in sync, {view.leader} is master of epoch {view.epoch}")
        if any(fault.do == "old-copy" for fault in self._scenario.faults):
            self._injector.prepare(self._scenario.faults)
            wait_for(self._stage, "every node in sync", all_in_sync, START_SECONDS)
        self._watcher.start()
        try:
            self._workload.start()
            if self._scenario.load.workers:
                self._workers.start()
        except TwinlogError as error:
            raise Failure(Exit.UNDECIDED, f"the load cannot begin: {error.text}") from None
        load = self._scenario.load
        told = f"{load.writers} writers send {load.rate:g} messages/s, each {load.acknowledge}; "
        told += f"{load.readers} reading"
        self._tell(told + (f", {load.workers} workers of a group" if load.workers else ""))
        self._wait_writes(self._clock.now(), "the first acknowledgement", RESUME_SECONDS)

    def _round(self, number: int) -> None:
        if number:
            self._wait("every node in sync", all_in_sync, START_SECONDS)
        self._pass(self._scenario.load.before)
        began = self._clock.now()
        for at, fault in self._schedule():
            self._pass(began + at - self._clock.now())
            if fault is not None:
                self._begin(fault, began + at)
            self._end_due(began + at)
        last = self._clock.now()
        self._wait_writes(last, "writes to go on", RESUME_SECONDS)
        self._pass(self._scenario.load.after)
        self._undo_all()

    def _schedule(self) -> Iterator[tuple[float, Fault | None]]:
        """Moments of a round in order: a fault that begins, or None for one that ends."""
        moments: list[tuple[float, Fault | None]] = []
        for fault in self._scenario.faults:
            moments.append((fault.at, fault))
            if fault.lasts is not None:
                moments.append((fault.at + fault.lasts, None))
        return iter(sorted(moments, key=lambda one: (one[0], one[1] is None)))

    def _begin(self, fault: Fault, planned: float) -> None:
        at = self._clock.now()
        begun = self._injector.begin(fault)
        band = Band(at, None, begun.text, begun.targets)
        self.result.moments.append((at, begun.text))
        self._tell(begun.text, at)
        if begun.undo is None:
            self.result.bands.append(Band(at, self._clock.now(), begun.text, begun.targets))
            self._healed = self._clock.now()
        else:
            due = None if fault.lasts is None else planned + fault.lasts
            self._active.append((begun, band, due))

    def _end_due(self, now: float) -> None:
        for active in [one for one in self._active if one[2] is not None and one[2] <= now]:
            self._undo(active)

    def _undo_all(self) -> None:
        for active in list(self._active):
            self._undo(active)

    def _undo(self, active: tuple[Begun, Band, float | None]) -> None:
        begun, band, _ = active
        self._active.remove(active)
        assert begun.undo is not None
        self._tell(f"end of {begun.text}")
        begun.undo()
        now = self._healed = self._clock.now()
        self.result.bands.append(Band(band.begin, now, band.text, band.targets))

    def _end(self) -> None:
        promises = self._scenario.promises
        if promises.in_sync_within is not None:
            self._check_in_sync(promises.in_sync_within)
        self._workload.stop()
        if self._scenario.load.workers:
            self._check_handled()
        if promises.equal:
            self._wait("every node at the same end", all_equal, RESUME_SECONDS)
        self._tell("the load has stopped; every queue is read from every node")
        trouble: list[str] = []
        with self._stage.client(DRAIN_SECONDS) as client:
            trouble = drain(
                client, self._topic, self._scenario.load.writers, nodes=self._readable(),
                history=self.result.history, clock=self._clock,
            )  # fmt: skip
        if trouble:
            self._find("reads at the end", Outcome.UNKNOWN, "; ".join(trouble[:3]))
        if promises.equal:
            self._check_equal()
        self._check_master(promises)

    def _readable(self) -> list[str]:
        """Nodes to read from at the end: all where all must be in sync, else those that answer."""
        if self._scenario.promises.in_sync_within is not None:
            return list(self._stage.nodes)
        view = quick_look(self._stage.context)
        return [node.name for node in view.nodes if node.in_sync or node.master] if view else []

    def _check_in_sync(self, within: float) -> None:
        try:
            self._wait("every node in sync", all_in_sync, within)
        except Failure as failure:
            self._find("in sync", Outcome.BROKEN, failure.text, failure.facts)
            return
        took = self._clock.now() - self._healed
        told = f"every node was in sync {max(0.0, took):.1f} s after the last fault ended"
        self._find("in sync", Outcome.HELD, told)
        self._tell(told)

    def _check_handled(self) -> None:
        """Every acknowledged message was handled by a worker, and the group has none left."""
        self._tell("the load has stopped; the workers handle the rest")
        sends = [one for one in self.result.history if one.op == "send"]
        sure = [one.records[0] for one in sends if one.outcome == "ok"]
        sent = {one.records[0] for one in sends if one.outcome != "fail"}
        found = self._workers.finish(sure, sent, self._check)
        self._find("handled", Outcome.HELD if found.even else Outcome.BROKEN, found.text())

    def _check_equal(self) -> None:
        if not isinstance(self._stage, OwnStage):
            return
        view = quick_look(self._stage.context)
        below = (view.confirm if view is not None else None) or 0
        difference = self._stage.logs_equal(below)
        if difference is None:
            self._find("equal logs", Outcome.HELD, f"the logs are equal up to {below}")
        else:
            self._find("equal logs", Outcome.BROKEN, f"the logs differ at {difference}")

    def _check_master(self, promises: Promises) -> None:
        if promises.master == "any":
            return
        view = self._wait("a master", lambda view: view.master is not None, RESUME_SECONDS)
        epochs = self._watcher.epochs()
        changed = len(epochs) > 1 or view.leader != self._leader
        kept = changed == (promises.master == "changes")
        told = f"{view.leader} is master of epoch {view.epoch}; it was {self._leader}"
        self._find("master", Outcome.HELD if kept else Outcome.BROKEN, told)

    def take_back(self) -> None:
        """Undo what was done and stop the load, as far as that works: the drill ends early."""
        try:
            self._undo_all()
            self._workload.stop()
            self._workers.stop()
        except Failure as failure:
            self._tell(failure.text)

    def _judge(self) -> None:
        found: Judgement = judge(self.result.history, self._scenario.promises, self.result.moments)
        self.result.counts, self.result.gaps = found.counts, found.gaps
        own = [one for one in self.result.findings if one.promise == ITSELF]
        rest = [one for one in self.result.findings if one.promise != ITSELF]
        self.result.findings = [*own, *found.findings, *rest]
        self.result.sightings = self._watcher.sightings
        self.result.sentences = self._watcher.sentences
        self.result.errors = dict(self._workload.errors)
        self._check_says()
        if self._scenario.promises.sent_on:
            self._check_sent_on()
        self.result.seconds = self._clock.now()

    def _check_sent_on(self) -> None:
        """A master serves every read that asks for no node, unless it sends the reader on."""
        slaves = self._workload.sources["slave"]
        told = f"{slaves} of {self._workload.sources.total()} messages read again came from slaves"
        self._find("sent on", Outcome.HELD if slaves else Outcome.BROKEN, told)

    def _check_says(self) -> None:
        for code in self._scenario.promises.says:
            said = self._watcher.sentences.get(code)
            if said is None:
                others = ", ".join(sorted(self._watcher.sentences)) or "nothing"
                told = f'the status never said "{code}"; it said {others}'
                self._find(f"says {code}", Outcome.BROKEN, told)
            else:
                self._find(f"says {code}", Outcome.HELD, said[1])

    # ── waiting and telling ─────────────────────────────────────────────────────────────────────

    def _pass(self, seconds: float) -> None:
        """Let time pass, and notice when the load ends or the drill takes too long."""
        until = time.monotonic() + seconds
        while True:
            self._check()
            left = until - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, 0.1))

    def _check(self) -> None:
        self._workload.check()
        self._workers.check()
        if time.monotonic() > self._until:
            raise Failure(Exit.UNDECIDED, f"not done within its {self._scenario.limit:g} s")

    def _wait(self, what: str, done: Callable[[ClusterView], bool], seconds: float) -> ClusterView:
        self._check()
        left = max(1.0, self._until - time.monotonic())
        try:
            return wait_for(self._stage, what, done, min(seconds, left))
        except Failure as failure:
            view = quick_look(self._stage.context)
            told = judge_health(view).lines() if view is not None else []
            facts = (*failure.facts, *told)
            raise Failure(failure.exit, failure.text, facts=facts) from None

    def _wait_writes(self, since: float, what: str, seconds: float) -> None:
        """Wait until a send is acknowledged that began after ``since``; tell how long that took."""
        until = time.monotonic() + seconds
        while self._workload.acknowledged_at <= since:
            self._check()
            if time.monotonic() > until:
                self._tell(f"{what}: not within {seconds:g} s")
                return
            time.sleep(TICK_SECONDS)

    def _find(
        self, promise: str, outcome: Outcome, text: str, examples: tuple[str, ...] = ()
    ) -> None:
        shown = tuple(Example(one) for one in examples)
        self.result.findings.append(Finding(promise, outcome, text, shown))

    def _tell(self, text: str, at: float | None = None) -> None:
        moment = self._clock.now() if at is None else at
        self._say(f"{moment:7.2f} s  {text}")
