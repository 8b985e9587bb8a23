"""The demo's loads: everything at once, and paced in a thread while a master dies.

A load sends rows through one producer and writes into the ledger what became of each.  It knows
nothing of masters: when one dies, the producer waits, finds the next and sends again by itself.

Times are seconds on the monotonic clock.  One thread owns a load's client; the ledger is read from
outside only for its counters.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from cli.demo.input import Flight
from cli.demo.ledger import Ledger
from twinlog.client.blocking import Client
from twinlog.errors import OutcomeUnknown, TwinlogError
from twinlog.producer.blocking import Producer
from twinlog.producer.section import Section

TOPIC = "flights"
BATCH = "64 KiB"
TURN_SECONDS = 0.005
"""Pause of a paced load between two bursts."""
BEHIND_SECONDS = 0.05
"""A paced load that was held up longer than this does not catch up what it missed."""

Show = Callable[[str], None]


class Sender:
    """One producer and the messages whose end is not known yet."""

    def __init__(self, producer: Producer, ledger: Ledger) -> None:
        self._producer = producer
        self._ledger = ledger
        self._open: deque[tuple[Section, list[int]]] = deque()

    def send(self, flight: Flight, row: int) -> None:
        """Send a row under the number ``row``; may wait while too much is under way."""
        section = self._producer.send(
            flight.body, key=flight.key, tag=flight.tag, properties={"row": str(row)}
        )
        self._ledger.sent += 1
        if self._open and self._open[-1][0] is section:
            self._open[-1][1].append(row)
        else:
            self._open.append((section, [row]))

    def settle(self) -> None:
        """Write down every message whose end is known by now."""
        ended = [entry for entry in self._open if entry[0].done]
        if not ended:
            return
        self._open = deque(entry for entry in self._open if not entry[0].done)
        for section, rows in sorted(ended, key=lambda entry: entry[0].answered):
            if section.stored:
                self._ledger.acknowledge(rows, section.answered)
            elif isinstance(section.error, OutcomeUnknown):
                self._ledger.unknown.update(rows)
            else:
                self._ledger.refused.update(rows)

    def finish(self) -> None:
        """Wait until every message has ended, and write it down."""
        try:
            self._producer.flush()
        finally:
            self.settle()


def send_all(client: Client, flights: Sequence[Flight], ledger: Ledger, show: Show) -> None:
    """Send every row, acknowledged ``confirmed``, as fast as the cluster takes them."""
    with client.producer(TOPIC, batch=BATCH, acknowledge="confirmed") as producer:
        sender = Sender(producer, ledger)
        for number, flight in enumerate(flights):
            sender.send(flight, flight.row)
            if number % 1000 == 0:
                sender.settle()
                show(f"{len(ledger.acknowledged)} of {len(flights)} confirmed")
        sender.finish()


class PacedLoad:
    """A load of its own thread that sends at a rate until it is stopped."""

    def __init__(
        self,
        open_client: Callable[[], Client],
        flights: Sequence[Flight],
        ledger: Ledger,
        *,
        rate: int,
        first_row: int,
    ) -> None:
        self._open_client = open_client
        self._flights = flights
        self._ledger = ledger
        self._rate = rate
        self._row = first_row
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self.error: BaseException | None = None

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def stop(self, seconds: float) -> None:
        """Stop sending and wait until every message has ended.

        Raises:
            TwinlogError: What ended the load.
            TimeoutError: It did not end within ``seconds``.
        """
        self._stop.set()
        self._thread.join(seconds)
        if self._thread.is_alive():
            raise TimeoutError(f"the load did not end within {seconds:g} s")
        if self.error is not None:
            raise self.error

    def check(self) -> None:
        """Raise what ended the load early."""
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            with self._open_client() as client:
                self._send(client)
        except (TwinlogError, OSError) as error:
            self.error = error

    def _send(self, client: Client) -> None:
        with client.producer(TOPIC, batch=BATCH, acknowledge="confirmed") as producer:
            sender = Sender(producer, self._ledger)
            began, sent = time.monotonic(), 0
            while not self._stop.is_set():
                owed = int((time.monotonic() - began) * self._rate) - sent
                if owed > self._rate * BEHIND_SECONDS:
                    began += (owed - self._rate * BEHIND_SECONDS) / self._rate
                    owed = int(self._rate * BEHIND_SECONDS)
                for _ in range(owed):
                    sender.send(self._flights[self._row % len(self._flights)], self._row)
                    self._row += 1
                    sent += 1
                sender.settle()
                time.sleep(TURN_SECONDS)
            sender.finish()
