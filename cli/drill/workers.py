"""A work queue in a drill: members of one group that handle what the writers send.

Each worker is an ordinary consumer, which acknowledges every message it is given.  `finish` waits
until all that was acknowledged to writers was handled, and asks the master what the group has left;
then the ledger is even or it is not.  A message may be handled twice: its lease may end, or its
acknowledgement be lost with a master.  That is counted.  It may not come again once its
acknowledgement was confirmed.

Times are seconds.  Every thread has a client of its own; `finish` and `stop` wait for all of them.

Not here: writing and reading (``workload``).
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass

from cli.drill.workload import SEND_SECONDS, OpenClient, end, value_of
from cli.failures import Exit, Failure
from cli.fields import table, whole
from twinlog.client.blocking import Client
from twinlog.errors import LeaseLost, TwinlogError
from twinlog.groups.blocking import Consumer
from twinlog.wire.frames import Type

GROUP = "drill"
INVISIBLE_MS = 5000
"""A lease; what a worker was given and could not settle comes again after that."""
BATCH = 32
POP_SECONDS = 0.5
FINISH_SECONDS = 60.0
"""How long handling the rest may take after the last fault, before that is called a loss."""
STOP_SECONDS = SEND_SECONDS + 15.0
TICK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Handled:
    """What the workers saw; ``left`` and ``leased`` are the group's own figures at the end.

    ``returned`` were handed out again after their acknowledgement was confirmed.
    """

    messages: int
    again: int
    missing: tuple[str, ...]
    phantoms: tuple[str, ...]
    left: int | None
    leased: int | None
    returned: tuple[str, ...] = ()

    @property
    def even(self) -> bool:
        """Whether every acknowledged message was handled, nothing else was, and nothing is left.

        Nor did any come back whose acknowledgement was confirmed.
        """
        return not (self.missing or self.phantoms or self.left or self.leased or self.returned)

    def text(self) -> str:
        """What was found, in a sentence.

        >>> Handled(9, 1, (), (), 0, 0).text()
        '9 messages were handled, 1 of them more than once; nothing is left'
        >>> Handled(8, 0, (), (), 1, 2).text().partition("; ")[2]
        '2 are still handed out; 1 are left'
        """
        told = f"{self.messages} messages were handled, {self.again} of them more than once"
        if self.missing:
            told += f"; {len(self.missing)} acknowledged were not: {', '.join(self.missing[:3])}"
        if self.phantoms:
            told += f"; {len(self.phantoms)} were never sent: {', '.join(self.phantoms[:3])}"
        if self.returned:
            few = ", ".join(self.returned[:3])
            told += f"; {len(self.returned)} came again although they were settled: {few}"
        if self.left is None:
            return told + "; no master told what is left"
        if self.leased:
            told += f"; {self.leased} are still handed out"
        return told + (f"; {self.left} are left" if self.left else "; nothing is left")


class Workers:
    """Members of the group `GROUP`, in threads.

    Args:
        open_client: Opens a client of the cluster, with a time limit for its calls.
        topic: What the group handles; it exists.
        count: How many members.
    """

    def __init__(self, open_client: OpenClient, topic: str, count: int) -> None:
        self._open_client = open_client
        self._topic = topic
        self._count = count
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._guard = threading.Lock()
        self._seen: Counter[str] = Counter()
        self._done: set[str] = set()
        self._returned: set[str] = set()
        self.error: BaseException | None = None

    def start(self) -> None:
        """Make the group, which begins at the start of the topic, and begin."""
        settings = {
            "mode": "shared", "start": "start", "invisible_ms": INVISIBLE_MS, "attempts": 1000,
        }  # fmt: skip
        with self._open_client(SEND_SECONDS) as client:
            fields = {"op": "create", "name": GROUP, "settings": settings}
            client.call("master", Type.GROUP, fields)
        for number in range(self._count):
            name = f"k{number + 1}"
            thread = threading.Thread(target=self._run, args=(name,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run(self, name: str) -> None:
        try:
            with self._open_client(SEND_SECONDS) as client:
                while not self._stop.is_set():
                    self._work(client, name)
        except BaseException as error:
            self.error = self.error or error

    def _work(self, client: Client, name: str) -> None:
        """Be a member until told to stop; an error of the cluster makes it join again."""
        try:
            with client.consumer(GROUP, self._topic, batch=BATCH, member=name) as consumer:
                while not self._stop.is_set():
                    self._handle(consumer)
        except LeaseLost:
            return  # it was handed out again, and is counted again then
        except TwinlogError:
            self._stop.wait(TICK_SECONDS)

    def _handle(self, consumer: Consumer) -> None:
        found = consumer.pop(BATCH, POP_SECONDS)
        values = [value_of(one.body) for one in found]
        with self._guard:
            self._seen.update(values)
            self._returned.update(value for value in values if value in self._done)
        for one in found:
            one.ack()
        consumer.settle()
        with self._guard:
            self._done.update(values)

    def check(self) -> None:
        """Raise what ended a worker early: a defect of the drill, no broken promise.

        Raises:
            Failure: The drill cannot tell (exit 2).
        """
        if self.error is not None:
            kind = type(self.error).__name__
            told = f"a worker of the drill ended early: {kind}: {self.error}"
            raise Failure(Exit.UNDECIDED, told) from self.error

    def finish(
        self, acknowledged: Collection[str], sent: Collection[str], pause: Callable[[], None]
    ) -> Handled:
        """Wait until everything was handled and settled, at most `FINISH_SECONDS`; then stop.

        Args:
            acknowledged: What was answered as stored.
            sent: What may be there.
            pause: Called now and then; raises when the drill's time is over.

        Raises:
            Failure: A worker ended early, or does not end.
        """
        until = time.monotonic() + FINISH_SECONDS
        left = leased = None
        while time.monotonic() < until:
            pause()
            self.check()
            with self._guard:
                missing = any(one not in self._seen for one in acknowledged)
            if not missing:
                left, leased = self._left()
                if left == 0 and leased == 0:
                    break
            time.sleep(TICK_SECONDS)
        else:
            left, leased = self._left()
        self.stop()
        with self._guard:
            seen, returned = dict(self._seen), set(self._returned)
        return Handled(
            len(seen),
            sum(times > 1 for times in seen.values()),
            tuple(one for one in acknowledged if one not in seen),
            tuple(one for one in seen if one not in sent),
            left,
            leased,
            tuple(sorted(returned)),
        )

    def _left(self) -> tuple[int | None, int | None]:
        """Messages that the group has left and has handed out; None: no master told."""
        try:
            with self._open_client(SEND_SECONDS) as client:
                answer = client.call("master", Type.GROUP, {"op": "show", "name": GROUP})
        except TwinlogError:
            return None, None
        group = table(answer.fields.get("group"))
        return whole(group, "lag"), whole(group, "leased")

    def stop(self) -> None:
        """Stop; returns when every worker has left the group.

        Raises:
            Failure: A thread did not end within `STOP_SECONDS`; the drill cannot tell (exit 2).
        """
        self._stop.set()
        end(self._threads, STOP_SECONDS)
