"""Deliveries over a real store: a master with a clock of its own, that confirms what it appends."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from node.delivery.service import Deliveries, DeliveryCounts
from node.delivery.sources import Levels
from node.leases.clock import MessagingClock
from storage import Control, Outcome, Section, Store, Token
from storage.state.sections import Together
from tests.fakes.disk import FakeDisk
from tests.stores.workbench import TOPIC, bodies, log_records, master, settle, token
from twinlog.format.group_rows import Row
from twinlog.format.record import Record

START_MS = 2_000
"""Store time of what `append` stores."""


class World:
    """A master with a clock of its own, and what delivers there: `delays`, or another service."""

    def __init__(
        self,
        store: Store | None = None,
        *,
        writer: Token | None = None,
        wall_ms: int = START_MS,
    ) -> None:
        self.store = store or master(FakeDisk())
        self.writer = writer or token(1)
        self.wall_ms = wall_ms
        self.now = 0.0
        self.refusal = ""
        self.told: list[str] = []
        self.late: list[float] = []
        self.batches: list[tuple[int, int]] = []
        clock = MessagingClock()
        clock.begin(self.wall_ms, 0.0, 0)
        self.context: Any = SimpleNamespace(
            driver=self, records=self.store.reads, messaging=self.store.messaging, family=4,
            wall_ms=lambda: self.wall_ms, tell=lambda name, *_, **__: self.told.append(name),
            seconds=lambda: self.now, clock=clock,
        )  # fmt: skip
        self.fetches = 0
        self.begin()

    def begin(self) -> None:
        """Make the service."""
        counts = DeliveryCounts(self.late.append)
        self.delays = Deliveries(self.context, self.fetch, Levels(self.store.messaging), counts)

    @property
    def service(self) -> Deliveries:
        """What delivers."""
        return self.delays

    def fetch(self, asked: Any, asker: object, done: Any) -> None:
        """Fetch at once."""
        self.fetches += 1
        outcome = asked.look.run(lambda: False)
        done(*asked.finish(outcome))

    def append_rows(
        self, now: float, rows: Sequence[Row], *, deadline: float, reply: Any,
        sections: Sequence[Section] = (),
    ) -> None:  # fmt: skip
        """Append, and confirm at once."""
        if self.refusal:
            reply(Together(Outcome.REFUSED, [], 0, self.refusal, "as the test wants"), None)
            return
        done = self.store.append_together(self.writer, sections, rows, wall_ms=self.wall_ms)
        self.batches.append((len(sections), sum(len(one.data) for one in sections)))
        reply(done, "n1")

    def control(self, now: float, change: Control, *, deadline: float, reply: Any) -> None:
        """Append a control record and confirm it."""
        result = self.store.append_control(self.writer, change, wall_ms=self.wall_ms)
        settle(self.store)
        reply([result], "n1")

    def at(self, ms: int) -> None:
        """Have it that late, and deliver."""
        self.now += (ms - self.wall_ms) / 1000
        self.wall_ms = ms
        self.work()

    def work(self) -> None:
        """Do all that is due."""
        for _ in range(400):
            settle(self.store)
            self.service.work(self.now)
            if self.service.next_deadline(self.now) > self.now and not self.service.ready:
                return
        raise AssertionError("it never ends")

    def copies(self, topic: str = TOPIC, queue: int = 0) -> list[bytes]:
        """What was delivered."""
        settle(self.store)
        return [body.rstrip(b".") for body in bodies(self.store, queue, topic)]

    def records(self, topic: str = TOPIC) -> list[Record]:
        """The same with all that is stored of them."""
        settle(self.store)
        return [one for one in log_records(self.store) if one.topic == topic]
