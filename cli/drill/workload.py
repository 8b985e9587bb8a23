"""What writes and reads while a drill goes on; every operation lands in the history.

Each writer is an ordinary client with one queue of its own, which sends one message after the other
and waits for each acknowledgement; it knows nothing of masters.  Each reader follows all queues
from their beginning and asks whichever node answers.  `drain` reads every queue of a node from its
start, for the judge.

A writer's message is its value (``w1:17``), filled up to the size.  Times are seconds since the
history began.  Every thread has a client of its own; `stop` waits for all of them.

Not here: what must be true of the history (``judge``).
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

from cli.drill.scenario import Load
from cli.failures import Exit, Failure
from cli.history.operations import Operation
from twinlog.client.blocking import Client
from twinlog.errors import OffsetGone, OutcomeUnknown, TwinlogError
from twinlog.format.messages import Message

SEND_SECONDS = 30.0
"""How long one send may take, retries and a failover included: the client's default."""
READ_PAUSE = 0.05
"""Pause of a reader that has seen everything."""
READ_SECONDS = 5.0
"""How long a reader waits for progress before it tries again."""
READ_MAX = 2000
"""Messages of one turn of a reader."""
AGAIN_MAX = 200
"""Messages of each queue that those read that read again."""
DELETED_MAX = 20
"""Times that a read at the end begins again because retention overtook it."""
STOP_SECONDS = SEND_SECONDS + 10.0

OpenClient = Callable[[float], Client]


def end(threads: list[threading.Thread], seconds: float) -> None:
    """Wait for threads that have been asked to stop; the list is empty afterwards.

    Raises:
        Failure: One did not end within ``seconds``; the drill cannot tell (exit 2).
    """
    until = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.1, until - time.monotonic()))
        if thread.is_alive():
            told = f"{thread.name} did not end within {seconds:g} s"
            raise Failure(Exit.UNDECIDED, told)
    threads.clear()


class Clock:
    """Seconds since the drill began."""

    def __init__(self) -> None:
        self.began = time.monotonic()

    def now(self) -> float:
        """Seconds since the drill began."""
        return round(time.monotonic() - self.began, 6)


class Workload:
    """Writers and readers of one topic, in threads.

    Args:
        open_client: Opens a client of the cluster, with a time limit for its calls.
        load: How many, how fast.
        topic: Made by `start`, with one queue for each writer.
        history: Where everything lands.
        clock: The drill's.
    """

    def __init__(
        self,
        open_client: OpenClient,
        load: Load,
        topic: str,
        history: list[Operation],
        clock: Clock,
    ) -> None:
        self._open_client = open_client
        self._load = load
        self._topic = topic
        self._history = history
        self._clock = clock
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self.errors: Counter[str] = Counter()
        """Codes of the errors of sends."""
        self.sources: Counter[str] = Counter()
        """Roles of the nodes that served those that read again, by messages."""
        self.acknowledged = 0
        self.acknowledged_at = 0.0
        """When the send began that was acknowledged last."""
        self.error: BaseException | None = None

    def start(self) -> None:
        """Make the topic and begin."""
        with self._open_client(SEND_SECONDS) as client:
            client.create_topic(self._topic, self._load.writers)
        for number in range(self._load.writers):
            self._begin(f"w{number + 1}", self._write, number)
        for number in range(self._load.readers):
            self._begin(f"r{number + 1}", self._read, number)
        for number in range(self._load.again):
            self._begin(f"a{number + 1}", self._read_again, number)

    def _begin(self, name: str, work: Callable[[str, int], None], number: int) -> None:
        def run() -> None:
            try:
                work(name, number)
            except BaseException as error:
                self.error = self.error or error

        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def check(self) -> None:
        """Raise what ended a writer or reader early: a defect of the drill, no broken promise.

        Raises:
            Failure: The drill cannot tell (exit 2).
        """
        if self.error is not None:
            kind = type(self.error).__name__
            raise Failure(
                Exit.UNDECIDED, f"a client of the drill ended early: {kind}: {self.error}"
            ) from self.error

    def stop(self) -> None:
        """Stop; returns when every operation has ended.

        Raises:
            Failure: A thread did not end within `STOP_SECONDS`; the drill cannot tell (exit 2).
        """
        self._stop.set()
        end(self._threads, STOP_SECONDS)

    # ── writing ─────────────────────────────────────────────────────────────────────────────────

    def _write(self, name: str, queue: int) -> None:
        period = self._load.writers / self._load.rate
        number, due = 0, time.monotonic()
        with self._open_client(SEND_SECONDS) as client:
            while not self._stop.wait(max(0.0, due - time.monotonic())):
                due = max(due + period, time.monotonic() - 5 * period)
                self._history.append(self._one(client, name, queue, number))
                number += 1

    def _one(self, client: Client, name: str, queue: int, number: int) -> Operation:
        value = f"{name}:{number}"
        begin = self._clock.now()
        outcome, offset, epoch = "ok", -1, 0
        try:
            receipt = client.send(
                self._topic,
                value.encode().ljust(self._load.size),
                queue=queue,
                acknowledge=self._load.acknowledge,
            )
            offset, epoch = receipt.queue_offset, receipt.epoch
        except OutcomeUnknown as error:
            outcome = "unknown"
            self.errors[error.code] += 1
        except TwinlogError as error:
            outcome = "fail"
            self.errors[error.code] += 1
        if outcome == "ok":
            self.acknowledged += 1
            self.acknowledged_at = max(self.acknowledged_at, begin)
        return Operation(
            value,
            name,
            "send",
            self._topic,
            queue,
            begin,
            self._clock.now(),
            outcome,
            (value,),
            offset if offset >= 0 else None,
            self._load.acknowledge,
            producer=name,
            sequence=number,
            epoch=epoch,
        )

    # ── reading ─────────────────────────────────────────────────────────────────────────────────

    def _read(self, name: str, number: int) -> None:
        following = [0] * self._load.writers
        with self._open_client(READ_SECONDS) as client:
            while not self._stop.wait(READ_PAUSE):
                for queue in range(self._load.writers):
                    if not self._stop.is_set():
                        following[queue] += self._more(client, name, queue, following[queue])

    def _read_again(self, name: str, number: int) -> None:
        """Read the oldest messages of every queue, whole passes; each pass is a reader."""
        passes = 0
        while not self._stop.wait(READ_PAUSE):
            passes += 1
            with self._open_client(READ_SECONDS) as client:
                for queue in range(self._load.writers):
                    if not self._stop.is_set():
                        self._more(client, f"{name}.{passes}", queue, 0, most=AGAIN_MAX)

    def _more(
        self, client: Client, name: str, queue: int, first: int, *, most: int = READ_MAX
    ) -> int:
        """Read on in one queue; return how many messages there were."""
        start = self._clock.now()
        found: list[Message] = []
        try:
            messages = client.read(self._topic, f"{first}:", queue=queue, limit=most)
            for message in messages:
                found.append(message)
                if most == AGAIN_MAX:
                    self.sources[messages.source.role] += 1
        except TwinlogError:
            pass  # the next turn tries again
        if found:
            self._history.append(
                Operation(
                    f"{name}:{start:.6f}:{queue}",
                    name,
                    "read",
                    self._topic,
                    queue,
                    start,
                    self._clock.now(),
                    "ok",
                    tuple(value_of(message.body) for message in found),
                    start=found[0].queue_offset,
                )
            )
        return len(found)


def value_of(body: bytes) -> str:
    """The value in a message.

    >>> value_of(b"w1:17      ")
    'w1:17'
    """
    return body.decode("utf-8", "replace").rstrip()


def drain(
    client: Client,
    topic: str,
    queues: int,
    *,
    nodes: Sequence[str],
    history: list[Operation],
    clock: Clock,
) -> list[str]:
    """Read every queue from its start, from each node; return what could not be read, and why."""
    trouble: list[str] = []
    for node in nodes:
        for queue in range(queues):
            start = clock.now()
            try:
                found = _whole(client, topic, queue, node)
            except TwinlogError as error:
                trouble.append(f"{topic}/{queue} of {node}: {error.text}")
                continue
            offsets = [message.queue_offset for message in found]
            first = offsets[0] if offsets else 0
            if offsets != list(range(first, first + len(offsets))):
                trouble.append(f"{topic}/{queue} of {node} has gaps in its offsets")
            history.append(
                Operation(
                    f"end:{node}:{queue}",
                    f"end:{node}",
                    "read",
                    topic,
                    queue,
                    start,
                    clock.now(),
                    "ok",
                    tuple(value_of(message.body) for message in found),
                    start=first,
                    settled=True,
                )
            )
    return trouble


def _whole(client: Client, topic: str, queue: int, node: str) -> list[Message]:
    """A queue from the first message on that this node still has.

    Where the queue starts is the master's word; retention of this node may be further.
    """
    first = ""
    for _ in range(DELETED_MAX):
        try:
            found = client.read(topic, f"{first or 'start'}:", queue=queue, read_from=node)
            return list(found)
        except OffsetGone as gone:
            first = str(gone.start)
    return list(client.read(topic, f"{first}:", queue=queue, read_from=node))
