"""One client's connection: what each request type does, without its socket's waits.

A connection is fed whole frames by the client server and queues its answers on its stream; it never
waits. The handlers of requests are shared by all connections of a node (`RequestHandlers`).

The first frame must be HELLO with a version this node speaks and, where the client knows it, the
name of this cluster. Invalid *fields* are answered with an error; an invalid *frame* ends the
connection.

Answers may be sent in another order than the requests arrived: an append waits for its
acknowledgement, a read may be parked, a topic is created when the log has confirmed it.

Limits per connection: `Limits.requests_in_flight_max`, `Limits.bytes_in_flight_max`; beyond them
the answer is ``busy``. Rule: docs/protocol.md R54.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from node.access.visitor import Visitor
from node.clients.append_path import AppendRequest, parse_sections, parse_terms
from node.clients.lookups import Answer, Asked
from node.clients.metadata import everything
from node.clients.raw_log import parse_log
from node.clients.reads import ReadAnswer, age_max, parse_read
from node.clients.searches import parse_find
from replication.driver.outcomes import BUFFERED
from storage.state.sections import SectionResult
from twinlog.errors import Busy, ProtocolError, TwinlogError, UsageError
from twinlog.wire import frames, schema

if TYPE_CHECKING:
    from node.access.gate import Gate
    from node.access.orders import AccessOrders
    from node.clients.admin import Admin
    from node.clients.append_path import AppendPath
    from node.clients.counts import ClientCounts
    from node.clients.limits import Limits
    from node.clients.lookups import Lookups
    from node.clients.metadata import Identity, Metadata
    from node.clients.off_loop import ColdWork, Later
    from node.clients.reads import Reads
    from node.clients.refusals import Refusals
    from node.topics.quotas import Quotas
    from replication.net.streams import Stream
    from replication.replica_service import ReplicaService
    from storage.disk.mapping import Loan

T = TypeVar("T")
_APPEND, _HELLO = int(frames.Type.APPEND), int(frames.Type.HELLO)
_SETTLE = int(frames.Type.SETTLE)
KINDS: Mapping[int, str] = {int(kind): kind.name.lower() for kind in frames.CLIENT_TYPES}
"""Request types by their name in metrics."""

TEXT_MAX = 4000
"""Characters of an error's text: some repeat what the client sent, which may be a megabyte."""

TEXTS_MAX = 128 * 1024
"""Characters of the texts of all sections of an append; each section has `SECTION_TEXT_MIN`."""

SECTION_TEXT_MIN = 48
"""With `TEXTS_MAX`, small enough that the answer to the largest append fits a frame in any
script."""


class GroupRequests(Protocol):
    """Work queues as the client port knows them; see `node.groups.service.WorkQueues`."""

    @property
    def pending(self) -> bool:
        """Whether `run` has something to do."""
        ...

    @property
    def parked(self) -> int:
        """Requests that wait for messages."""
        ...

    def handle(
        self,
        kind: int,
        fields: Mapping[str, object],
        payload: memoryview,
        asker: ClientConnection,
        address: str,
        done: Later,
    ) -> None:
        """Take a request for the next `run`; raises why not."""
        ...

    def run(self, now: float) -> None:
        """Decide what was asked."""
        ...

    moved: bool
    """Whether `next_deadline` may have changed; who asks it clears this."""

    def wants(self, now: float) -> bool:
        """Whether `look` has something to do."""
        ...

    def look(self, now: float) -> None:
        """See what moved, at the end of a turn."""
        ...

    def tick(self, now: float) -> None:
        """Do what is due."""
        ...

    def next_deadline(self, now: float) -> float:
        """Return when `tick` has something to do."""
        ...

    def forget(self, asker: ClientConnection) -> None:
        """Drop what waits for a connection that is gone."""
        ...


@dataclass(slots=True)
class RequestHandlers:
    """The request handlers of all connections of a node."""

    world: ReplicaService
    limits: Limits
    counts: ClientCounts
    quotas: Quotas
    appends: AppendPath
    reads: Reads
    cold: ColdWork
    metadata: Metadata
    lookups: Lookups
    refusals: Refusals
    admin: Admin
    groups: GroupRequests
    access: AccessOrders
    gate: Gate | None
    """Asks who sends a request, and whether it may; None: everybody may do everything."""
    status: Callable[[], Mapping[str, object]]
    """The status document of the node."""
    tell: Callable[..., None]
    """Reports an event: its name, its level, its facts."""
    names_crc: int
    """CRC of the names of cluster and group: sent and expected in every header."""
    epoch: int = 0
    """Sent in every header; the node keeps it."""

    def driving(self) -> AbstractContextManager[None]:
        """Call the driver in the body; see `ReplicaService.driving`."""
        return self.world.driving()

    def enter(self) -> None:
        """Dispatch, so that the next answer shows every confirmed record."""
        if self.world.crashed is None:
            self.world.enter()


class ClientConnection:
    """The node's side of one client; receives the answers to its appends and reads."""

    def __init__(
        self,
        handlers: RequestHandlers,
        stream: Stream,
        peer: str,
        *,
        crowded: bool = False,
        certificate: str | None = None,
    ) -> None:
        self._handlers = handlers
        gate = handlers.gate
        self.visitor = None if gate is None else Visitor(gate, peer, certificate)
        self._crowded = crowded
        self.stream = stream
        self.peer = peer
        self.greeted = False
        self.in_flight = 0
        """Requests that are not answered yet."""
        self.bytes_in_flight = 0
        """Bytes of the appends among them."""

    @property
    def _sight(self) -> Callable[[str, str], bool]:
        return everything if self.visitor is None else self.visitor.sees

    def sees(self, thing: str, name: str) -> bool:
        """Whether who asks may know of a topic or group."""
        return self._sight(thing, name)

    # ── requests ────────────────────────────────────────────────────────────────────────────────

    def on_frame(self, frame: frames.Frame) -> None:
        """Execute one request, or close the connection if the frame is not allowed."""
        if frame.type not in KINDS or frame.flags:
            self.close("type")
            return
        if self.greeted is (frame.type == _HELLO):
            self.close("hello")
            return
        self.in_flight += 1
        if self.in_flight > self._handlers.limits.requests_in_flight_max:
            self._limit(frame, "requests_in_flight_max")
            return
        try:
            if self.visitor is not None:
                self.visitor.admit(frame, self._handlers.lookups.topic_at)
            self._carry_out(frame)
        except TwinlogError as error:
            self.error(frame.type, frame.request, error)

    def _carry_out(self, frame: frames.Frame) -> None:
        if frame.type == _APPEND:
            self._append(frame)
            return
        if frame.type == _SETTLE:  # it looks at no record
            self._work_queue(frame)
            return
        self._handlers.enter()
        match frame.type:
            case frames.Type.READ:
                self._read(frame)
            case frames.Type.HELLO:
                self._hello(frame)
            case frames.Type.LOGIN:
                self._log_in(frame)
            case frames.Type.ACCESS:
                self._access(frame)
            case frames.Type.METADATA:
                self._metadata(frame)
            case frames.Type.OFFSETS:
                self._offsets(frame)
            case frames.Type.TOPIC if frame.fields.get("op") == "list":
                listed = self._handlers.lookups.topics(frame.fields, self._sight)
                self.answer(frame.type, frame.request, listed)
            case frames.Type.TOPIC:
                with self._handlers.driving():
                    self._handlers.admin.topic(
                        frame.fields, self.stream.moved_at, self._later(frame)
                    )
            case frames.Type.GET:
                self._get(frame)
            case frames.Type.FIND:
                self._find(frame)
            case frames.Type.LOG:
                query = parse_log(frame.fields, self._handlers.limits)
                self._handlers.cold.log(query, self, self._later(frame))
            case frames.Type.STATUS:
                self.answer(frame.type, frame.request, self._handlers.status())
            case frames.Type.ADMIN:
                with self._handlers.driving():
                    self._handlers.admin.order(
                        frame.fields, self.stream.moved_at, self._later(frame)
                    )
            case frames.Type.PRODUCER:
                self.answer(frame.type, frame.request, self._handlers.admin.producer())
            case frames.Type.GROUP | frames.Type.JOIN | frames.Type.BEAT | frames.Type.POP:
                self._work_queue(frame)
            case (
                frames.Type.COMMIT | frames.Type.TOGETHER | frames.Type.SETTLE | frames.Type.CANCEL
            ):
                self._work_queue(frame)
            case frames.Type.END | frames.Type.CHECKS | frames.Type.WAITING:
                self._work_queue(frame)
            case _:
                raise UsageError(f"{frames.type_name(frame.type)} has no handler", code="type")

    def _work_queue(self, frame: frames.Frame) -> None:
        """Have a request of work queues decided with its neighbours."""
        try:
            schema.check(frame)
        except frames.FrameError as error:
            raise UsageError(error.text, code="fields") from None
        done, size = self._later(frame), len(frame.payload)
        if size:
            if self.bytes_in_flight + size > self._handlers.limits.bytes_in_flight_max:
                self._limit(frame, "bytes_in_flight_max")
                return
            done = self._counted(done, size)
        groups, payload = self._handlers.groups, memoryview(frame.payload)
        groups.handle(frame.type, frame.fields, payload, self, self.peer, done)

    def _counted(self, done: Later, size: int) -> Later:
        """Count bytes for as long as their request is not answered."""
        self.bytes_in_flight += size

        def counted(
            outcome: Mapping[str, object] | TwinlogError, payload: Sequence[memoryview] = ()
        ) -> None:
            self.bytes_in_flight -= size
            done(outcome, payload)

        return counted

    def _hello(self, frame: frames.Frame) -> None:
        handlers = self._handlers
        low, high = frame.fields.get("min", frames.VERSION), frame.fields.get("max", frames.VERSION)
        if not isinstance(low, int) or not isinstance(high, int):
            raise UsageError("min and max are whole numbers", code="fields")
        if not low <= frames.VERSION <= high:
            self._dismiss(frame.request, "version", _other_version(low, high))
            return
        identity = handlers.metadata.identity
        named = frame.fields.get("cluster") not in (None, identity.cluster)
        if named or frame.names_crc not in (0, handlers.names_crc):
            self._dismiss(frame.request, "names", _other_cluster(identity))
            return
        if self._crowded:
            self._dismiss(frame.request, "connections_max", _full(handlers.limits.connections_max))
            return
        self.greeted = True
        self.answer(frame.type, frame.request, handlers.metadata.hello())

    def _log_in(self, frame: frames.Frame) -> None:
        if self.visitor is None:
            text = "this node does not ask who you are"
            raise UsageError(text, code="unsupported", hint="leave out the user")
        try:
            self.answer(frame.type, frame.request, self.visitor.log_in(frame.fields))
        except TwinlogError as error:
            self.error(frame.type, frame.request, error)
            self.stream.finish("login")

    def _access(self, frame: frames.Frame) -> None:
        user, now = None if self.visitor is None else self.visitor.user, self.stream.moved_at
        with self._handlers.driving():
            self._handlers.access.order(frame.fields, user, now, self._later(frame))

    def wrong_version(self, error: frames.FrameError) -> None:
        """Send a peer of another wire version the supported one, then close."""
        version = error.facts.get("version")
        number = version if isinstance(version, int) else 0
        self.in_flight += 1
        self.error(frames.Type.HELLO, 0, _other_version(number, number))
        self.stream.finish("version")

    def _dismiss(self, request: int, kind: str, error: TwinlogError) -> None:
        self._handlers.counts.closed(kind)
        self.error(frames.Type.HELLO, request, error)
        self.stream.finish(kind)

    def _metadata(self, frame: frames.Frame) -> None:
        names: set[str] | None = None
        wanted = frame.fields.get("topics")
        if isinstance(wanted, list):
            names = {name for name in wanted if isinstance(name, str)}  # pyright: ignore
        after = frame.fields.get("after")
        first = after if isinstance(after, str) else ""
        page = self._handlers.metadata.metadata(names, first, self._sight)
        self.answer(frame.type, frame.request, page)

    def _append(self, frame: frames.Frame) -> None:
        handlers, payload = self._handlers, frame.payload
        size = len(payload)
        if self.bytes_in_flight + size > handlers.limits.bytes_in_flight_max:
            self._limit(frame, "bytes_in_flight_max")
            return
        ack, timeout_ms = parse_terms(frame.fields, handlers.metadata.identity.acknowledge)
        sections = parse_sections(frame.fields, memoryview(payload))
        self.bytes_in_flight += size
        arrived = self.stream.moved_at
        request = AppendRequest(self, frame.request, sections, size, ack, timeout_ms, arrived)
        handlers.appends.add(request)

    def _read(self, frame: frames.Frame) -> None:
        now = self.stream.moved_at
        request = parse_read(self, frame.request, frame.fields, self._handlers.limits, now=now)
        cold = self._handlers.reads.serve(request, now)
        if cold is not None:
            self._handlers.cold.read(cold)

    def _offsets(self, frame: frames.Frame) -> None:
        self._give(frame, self._handlers.lookups.offsets(frame.fields))

    def _get(self, frame: frames.Frame) -> None:
        reads = None if self.visitor is None else self.visitor.reads
        self._give(frame, self._handlers.lookups.get(frame.fields, reads))

    def _give(self, frame: frames.Frame, found: Answer | Asked[T]) -> None:
        """Answer at once, or after a lookup in a thread."""
        if isinstance(found, Asked):
            self._handlers.cold.look(found, self, self._later(frame))
        else:
            self.answer(frame.type, frame.request, *found)

    def _find(self, frame: frames.Frame) -> None:
        query, seconds = parse_find(frame.fields, self._handlers.limits)
        limit = age_max(frame.fields)
        self._handlers.cold.find(query, seconds, self, self._later(frame), age_max=limit)

    def _later(self, frame: frames.Frame) -> Later:
        kind, request = frame.type, frame.request

        def done(
            outcome: Mapping[str, object] | TwinlogError, payload: Sequence[memoryview] = ()
        ) -> None:
            if isinstance(outcome, TwinlogError):
                self.error(kind, request, outcome)
            else:
                self.answer(kind, request, outcome, payload)

        return done

    def _limit(self, frame: frames.Frame, limit: str) -> None:
        self._handlers.counts.limit_reached(limit)
        error = Busy(f"this connection has reached {limit}", limit=limit)
        self.error(frame.type, frame.request, error)

    # ── answers ─────────────────────────────────────────────────────────────────────────────────

    def appended(self, request: int, size: int, results: Sequence[SectionResult], by: str) -> None:
        """Answer an append with the result of each section."""
        self.bytes_in_flight -= size
        most = max(TEXTS_MAX // len(results), SECTION_TEXT_MIN)
        listed = [
            [
                int(each.outcome),
                each.queue_offset,
                each.log_offset,
                each.end,
                each.code,
                each.text[:most],
                each.record,
            ]
            for each in results
        ]
        fields: dict[str, object] = {
            "results": listed,
            "confirmed_by": by.split(",") if by and by != BUFFERED else [],
            "epoch": self._handlers.epoch,
        }
        if by == BUFFERED:
            fields["buffered"] = True
        self.answer(_APPEND, request, fields)

    def refused(self, request: int, size: int, code: str, text: str, wait_ms: int = 0) -> None:
        """Answer an append of which nothing was written."""
        self.bytes_in_flight -= size
        self.error(frames.Type.APPEND, request, self._handlers.refusals.error(code, text, wait_ms))

    def read_answered(self, request: int, answer: ReadAnswer) -> None:
        """Answer a read with views of the log."""
        kind, found = frames.Type.READ, answer.found
        crc, lent = (None, ()) if found is None else (found.crc, found.lent)
        self.answer(kind, request, answer.fields, answer.slices, crc=crc, lent=lent)

    @property
    def gone(self) -> bool:
        """Whether the connection is closed: answers are dropped."""
        return self.stream.closed is not None

    @property
    def congested(self) -> bool:
        """Whether the client leaves its answers: it is given no more messages now."""
        return self.stream.unsent > self._handlers.limits.congested_bytes

    def close(self, kind: str) -> None:
        """Close the connection, and count it under ``kind``."""
        handlers = self._handlers
        handlers.counts.closed(kind)
        handlers.tell("connection_refused", "debug", peer=self.peer, kind=kind)
        self.stream.close(kind)

    def broke(self, error: Exception) -> None:
        """Close the connection after a defect; a defect of the driver ends the node."""
        handlers = self._handlers
        if handlers.world.crashed is not None:
            raise error
        handlers.counts.closed("defect")
        trace = "".join(traceback.format_exception(error))
        handlers.tell("connection_defect", "error", peer=self.peer, trace=trace)
        self.stream.close("defect")

    async def taken(self) -> None:
        """Wait until the client has received every answer so far, or is gone.

        A client that receives less than ``cold_drain_bytes_min`` a second is closed: it holds
        memory that others wait for.
        """
        limits = self._handlers.limits
        seconds = limits.cold_drain_seconds + self.stream.unsent / limits.cold_drain_bytes_min
        if not await self.stream.emptied(seconds) and not self.gone:
            self._handlers.counts.limit_reached("cold_drain_bytes_min")
            self.close("slow")

    def read_failed(self, request: int, error: TwinlogError) -> None:
        """Answer a read with an error."""
        self.error(frames.Type.READ, request, error)

    def answer(
        self,
        kind: int,
        request: int,
        fields: Mapping[str, object],
        payload: Sequence[memoryview] = (),
        *,
        crc: int | None = None,
        lent: Sequence[memoryview | Loan] = (),
    ) -> None:
        """Queue an answer; on a closed connection it is dropped.

        An answer too large for a frame becomes an error, so every request is answered exactly once.
        ``crc`` is the payload's, if known; ``lent`` is sent in place of the payload.
        """
        try:
            head = self._encoded(kind, frames.ANSWER, request, dict(fields), payload, crc=crc)
        except frames.FrameError as error:
            text = f"the answer is too large for a frame: {error.text}"
            self.error(kind, request, UsageError(text, code="too-large", hint="ask for less"))
            return
        self._done(kind, "ok")
        self.stream.send(head, lent or payload)

    def error(self, kind: int, request: int, error: TwinlogError) -> None:
        """Queue an error with its code, hint and facts; an overlong text is cut."""
        fields: dict[str, object] = {
            "code": error.code,
            "text": error.text[:TEXT_MAX],
            "hint": error.hint and error.hint[:TEXT_MAX],
            "retryable": error.retryable,
        }
        flags = frames.ANSWER | frames.ERROR
        try:
            head = self._encoded(kind, flags, request, {**error.facts, **fields})
        except frames.FrameError:  # its facts are too large
            head = self._encoded(kind, flags, request, fields)
        self._done(kind, error.code)
        self.stream.send(head)

    def _done(self, kind: int, outcome: str) -> None:
        self.in_flight -= 1
        self._handlers.counts.answered(KINDS[kind], outcome)

    def _encoded(
        self,
        kind: int,
        flags: int,
        request: int,
        fields: dict[str, object],
        payload: Sequence[memoryview] = (),
        *,
        crc: int | None = None,
    ) -> bytes:
        handlers = self._handlers
        frame = frames.Frame(kind, flags, handlers.epoch, request, handlers.names_crc, fields)
        return frames.encode_gather(frame, payload, crc)


def _other_version(low: int, high: int) -> ProtocolError:
    text = f"the client speaks wire versions {low} to {high}, this node speaks {frames.VERSION}"
    return ProtocolError(text, code="version", min=frames.VERSION, max=frames.VERSION)


def _full(most: int) -> Busy:
    text = f"the node serves {most} connections already (connections_max)"
    return Busy(text, hint="close idle clients, or raise connections_max", limit="connections_max")


def _other_cluster(identity: Identity) -> UsageError:
    text = f"this is node {identity.name} of cluster {identity.cluster}, group {identity.group}"
    facts = {"node": identity.name, "cluster": identity.cluster, "group": identity.group}
    return UsageError(text, code="other-cluster", **facts)
