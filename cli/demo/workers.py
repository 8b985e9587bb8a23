"""The demo's work queue: two members of a group handle everything that is sent, in threads.

They know nothing of masters: when one dies, a consumer finds the next one by itself, and what it
had in hand is settled there.

Times are seconds on the monotonic clock. Not here: what their words are held against (`ledger`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection

from cli.demo.ledger import Handlings
from cli.failures import Exit, Failure
from cli.fields import table, whole
from twinlog.client.blocking import Client
from twinlog.errors import LeaseLost, TwinlogError
from twinlog.groups.blocking import Consumer
from twinlog.wire.frames import Type

GROUP = "workers"
MEMBERS = 2
BATCH = 256
WAIT_SECONDS = 0.1
"""How long a pop waits; then a member looks whether it is to end."""
LOOK_SECONDS = 0.05


class Workers:
    """Members of one group, each with a client and a thread of its own.

    Args:
        open_client: Makes a client that knows every node.
        topic: Whose messages are handled, from the first one on.
    """

    def __init__(self, open_client: Callable[[], Client], topic: str) -> None:
        self._open_client = open_client
        self._topic = topic
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._run, name=f"worker-{number}", daemon=True)
            for number in range(1, MEMBERS + 1)
        ]
        self.handlings = Handlings()
        self.error: BaseException | None = None

    def start(self) -> None:
        """Create the group and begin to handle."""
        with self._open_client() as client:
            fields = {"op": "create", "name": GROUP, "settings": {"start": "start"}}
            client.call("master", Type.GROUP, fields)
        for thread in self._threads:
            thread.start()

    def finish(self, acknowledged: Collection[int], seconds: float) -> int | None:
        """Wait until all of them are handled and every member has left.

        What is not handled in time is missing from the handlings, for their judge.

        Returns:
            What the group has left to handle, as the master says; None: it cannot tell.

        Raises:
            Failure: A member did not end (exit 2).
            TwinlogError: What ended a member.
        """
        until = time.monotonic() + seconds
        while self.handlings.missing(acknowledged) and time.monotonic() < until:
            self.check()
            time.sleep(LOOK_SECONDS)
        self._stop.set()
        for thread in self._threads:
            thread.join(seconds)
            if thread.is_alive():
                text = f"{thread.name} did not end within {seconds:g} s"
                raise Failure(Exit.UNDECIDED, text)
        self.check()
        with self._open_client() as client:
            answer = client.call("master", Type.GROUP, {"op": "show", "name": GROUP})
        return whole(table(answer.fields.get("group")), "lag")

    def check(self) -> None:
        """Raise what ended a member early."""
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            with (
                self._open_client() as client,
                client.consumer(GROUP, self._topic, batch=BATCH) as consumer,
            ):
                while not self._stop.is_set():
                    self._handle(consumer)
        except LeaseLost:
            pass  # it was handed out again: whether too early is seen there
        except (TwinlogError, OSError) as error:
            self.error = error

    def _handle(self, consumer: Consumer) -> None:
        try:
            found = consumer.pop(BATCH, WAIT_SECONDS)
            with self._lock:
                now = time.monotonic()
                for message in found:
                    row = int(message.properties.get("row", "-1"))
                    self.handlings.note(row, now, message.held.ends)
            for message in found:
                message.ack()
        except LeaseLost:
            pass  # as above; the member goes on
