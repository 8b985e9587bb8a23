"""Sends and acknowledgements of one group in one batch: all of it or nothing.

A step notes what is to be sent and what is handled; the end of its block hands both to the master
as one request. Every step has a producer epoch of its own, so repeated after a failover it is
recognised, and nothing of it can be stored twice.

Pure. Not here: sections (``twinlog.producer.section``), when the request leaves
(``twinlog.groups.core``).

Source: KIP-98 (transactions), of which this is the part that needs no coordinator of transactions:
one group of nodes, one batch.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Unpack, cast

from twinlog.errors import LeaseLost, TwinlogError, UsageError, from_code
from twinlog.format.messages import Receipt
from twinlog.groups.core import GroupCore, Request
from twinlog.groups.delivery import Delivery
from twinlog.groups.leases import Held
from twinlog.groups.outcomes import joined_runs
from twinlog.producer.core import ProducerCore
from twinlog.producer.new_message import PLAIN, MessageFields, NewMessage, check_body
from twinlog.producer.section import Section, State
from twinlog.producer.settings import SECTION_MAX, ProducerSettings, Target
from twinlog.session.routing import Route, parse_route
from twinlog.session.session import MASTER, Session, Steps
from twinlog.wire.frames import Frame, Type
from twinlog.wire.groups import DONE, What

BYTES_MAX: Final = SECTION_MAX
"""Records of one step, bytes; a batch of the log holds a little more."""

SECTIONS_MAX: Final = 64
"""Queues that the messages of one step go to."""


class Sent(NamedTuple):
    """One message of a step."""

    topic: str
    body: bytes
    said: NewMessage


class Step:
    """What is to be done together; made by `Consumer.together`, used by ``with``.

    Nothing happens before the end of the block. A block that is left by an error does nothing: its
    messages stay as they were, to be settled otherwise.

    Attributes:
        receipts: After the block: where each message was stored, in the order of `send`.
    """

    def __init__(self, core: GroupCore) -> None:
        self.receipts: list[Receipt] = []
        self._core = core
        self._sent: list[Sent] = []
        self._handled: list[Held] = []
        self._sections: list[tuple[Section, int]] = []
        self._found: list[Section] = []

    def send(self, topic: str, body: bytes, **message: Unpack[MessageFields]) -> None:
        """Send a message with the step; arguments as of `Client.send`.

        Raises:
            RecordRefused, UsageError: It cannot be stored.
        """
        check_body(body)
        said = NewMessage(**message) if message else PLAIN
        said.text()  # what is wrong with it is said here, not at the end of the block
        self._sent.append(Sent(topic, body, said))

    def ack(self, message: Delivery) -> None:
        """Acknowledge a message with the step.

        Raises:
            UsageError: It was settled before.
        """
        held = message.held
        if message.settled or held in self._handled:
            raise UsageError(f"{message.address} was settled before", code="settled")
        self._handled.append(held)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self._sent and not self._handled

    def prepare(self, session: Session, deadline: float, now_ms: int) -> Steps[Request]:
        """Ask what must be known about the topics and return the request.

        Raises:
            UnknownTopic: One of them does not exist.
            UsageError: It is too much for one batch, or nothing is acknowledged.
            Unavailable: No master could be asked before ``deadline``.
        """
        core = self._core
        if not self._handled:
            hint = "send without a consumer: client.producer(topic)"
            raise UsageError("a step acknowledges at least one message", code="fields", hint=hint)
        if self._sent and not core.producer:
            given = yield from session.call(Type.PRODUCER, {}, deadline=deadline, to=MASTER)
            core.producer = cast("int", given.fields["producer"])
        route: Route | None = None
        if self._sent:
            names: dict[str, object] = {"topics": sorted({one.topic for one in self._sent})}
            answer = yield from session.call(Type.METADATA, names, deadline=deadline, to=MASTER)
            route = parse_route(answer.fields)
        sections = self._encoded(route, session.now, now_ms) if route is not None else []
        size = sum(len(section.data) for section in sections)
        if size > BYTES_MAX or len(sections) > SECTIONS_MAX:
            text = f"a step of {size} bytes for {len(sections)} queues is more than one batch holds"
            hint = f"at most {BYTES_MAX} bytes and {SECTIONS_MAX} queues: do it in several steps"
            raise UsageError(text, code="too-large", hint=hint)
        fields: dict[str, object] = {
            "ack": "confirmed",
            "timeout_ms": max(1, round(1000 * (deadline - session.now))),
            "sections": [section.row() for section in sections],
            "settles": self._rows(),
            "commits": [],
        }
        return Request(Type.TOGETHER, fields, payload=b"".join(s.data for s in sections))

    def _encoded(self, route: Route, now: float, now_ms: int) -> list[Section]:
        core = self._core
        core.producer_epoch += 1
        producers: dict[str, ProducerCore] = {}
        settings = ProducerSettings(batch=SECTION_MAX // 2, linger=3600.0, timeout=3600.0)
        for one in self._sent:
            if one.topic not in producers:
                queues = route.takes(one.topic)
                target = Target(
                    topic=one.topic,
                    queues=queues,
                    family=route.family,
                    producer=core.producer,
                    message_size_max=route.message_size_max,
                    segment_size=core.segment_size,
                    born_host=core.local,
                    batch=one.topic in route.batched,
                    epoch=core.producer_epoch,
                )
                producers[one.topic] = ProducerCore(target, settings, random=lambda: 0.5)
            section = producers[one.topic].add(one.body, one.said, now, now_ms)
            self._sections.append((section, section.count - 1))
        found: list[Section] = []
        for producer in producers.values():
            producer.close_all(now)
            found += [section for lane in producer.lanes for section in lane.waiting]
        self._found = found
        return found

    def _rows(self) -> list[list[int]]:
        runs: dict[tuple[int, int], list[list[int]]] = {}
        for held in self._handled:
            runs.setdefault((held.share, held.n), []).append([held.offset, held.offset])
        return [
            [share, n, int(What.ACK), first, last, 0]
            for (share, n), each in runs.items()
            for first, last in joined_runs(each)
        ]

    def finish(self, answer: Frame) -> None:
        """Take the answer: the messages are settled and the receipts known.

        Raises:
            LeaseLost: Nothing was done: a message was no longer this member's.
            TwinlogError: Nothing was done: a topic, or a record, was refused.
        """
        fields = answer.fields
        results = cast("list[list[object]]", fields["results"])
        if not fields["stored"]:
            raise self._refusal(results, cast("list[list[object]]", fields["settles"]))
        for held in self._handled:
            self._core.settled_elsewhere(held)
        places = {
            id(section): (cast("int", result[1]), cast("int", result[2]))
            for section, result in zip(self._found, results, strict=False)
        }
        for section, number in self._sections:
            section.queue_offset, section.log_offset = places.get(id(section), (-1, -1))
            section.master_epoch = cast("int", fields["epoch"])
            by = fields.get("confirmed_by")
            section.confirmed_by = tuple(map(str, by)) if isinstance(by, list) else ()  # pyright: ignore
            section.state, section.error = State.STORED, None
            self.receipts.append(section.receipt(number))

    def _refusal(self, results: list[list[object]], settles: list[list[object]]) -> TwinlogError:
        for code in settles:
            if code[0] != DONE:
                text = "nothing of the step was done: the lease of one of its messages was over"
                hint = "ask for longer leases (invisible=), or extend them while the body runs"
                return LeaseLost(text, code=str(code[0]), hint=hint)
        for result in results:
            if result[4]:
                return from_code(str(result[4]), f"nothing of the step was done: {result[5]}")
        return UsageError("nothing of the step was done", code="refused")
