"""One client's connection: what each request type does, without its socket's waits.

A connection is fed whole frames by the client server and queues its answers on its stream; it never
waits. The first frame must be HELLO with a version this node speaks and, where the client knows
them, the names of this cluster. Whatever else is wrong with a frame's *fields* is answered with an
error; whatever is wrong with a *frame* ends the connection.

Answers may leave in another order than the requests came: an append waits for its acknowledgement,
a read may be parked, a topic is created when the log has confirmed it.

Limits per connection: `Limits.requests_in_flight_max`, `Limits.bytes_in_flight_max`; beyond them
the answer is ``busy``. Rule: docs/protocol.md R54.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from node.clients.append_path import AppendRequest, parse_sections, parse_terms
from node.clients.lookups import Answer, Asked
from node.clients.raw_log import parse_log
from node.clients.reads import ReadAnswer, age_max, parse_read
from node.clients.searches import parse_find
from replication.driver.outcomes import BUFFERED
from storage.state.sections import SectionResult
from twinlog.errors import Busy, ProtocolError, TwinlogError, UsageError
from twinlog.wire import frames

if TYPE_CHECKING:
    from node.clients.metadata import Identity
    from node.clients.off_loop import Later
    from node.clients.server import ClientServer
    from replication.net.streams import Stream
    from storage.disk.mapping import Loan

T = TypeVar("T")
_APPEND, _HELLO = int(frames.Type.APPEND), int(frames.Type.HELLO)
KINDS: Mapping[int, str] = {int(kind): kind.name.lower() for kind in frames.CLIENT_TYPES}
"""Request types by their name in metrics."""

TEXT_MAX = 4000
"""Characters of an error's text: some repeat what the client sent, which may be a megabyte."""

TEXTS_MAX = 128 * 1024
"""Characters of the texts of all sections of an append; each section has `SECTION_TEXT_MIN`."""

SECTION_TEXT_MIN = 48
"""With `TEXTS_MAX` so few that the answer to the largest append fits a frame in any script."""


class ClientConnection:
    """What the node knows of one client; implements the askers of appends and reads."""

    def __init__(
        self, server: ClientServer, stream: Stream, peer: str, *, crowded: bool = False
    ) -> None:
        self._server = server
        self._crowded = crowded
        self.stream = stream
        self.peer = peer
        self.greeted = False
        self.in_flight = 0
        """Requests that are not answered yet."""
        self.bytes_in_flight = 0
        """Bytes of the appends among them."""

    # ── requests ────────────────────────────────────────────────────────────────────────────────

    def on_frame(self, frame: frames.Frame) -> None:
        """Carry out one request, or close the connection where the frame has no place."""
        server = self._server
        if frame.type not in KINDS or frame.flags:
            server.close(self, "type")
            return
        if self.greeted is (frame.type == _HELLO):
            server.close(self, "hello")
            return
        self.in_flight += 1
        if self.in_flight > server.limits.requests_in_flight_max:
            self._limit(frame, "requests_in_flight_max")
            return
        try:
            self._carry_out(frame)
        except TwinlogError as error:
            self.error(frame.type, frame.request, error)

    def _carry_out(self, frame: frames.Frame) -> None:
        if frame.type == _APPEND:
            self._append(frame)
            return
        self._server.enter()
        match frame.type:
            case frames.Type.READ:
                self._read(frame)
            case frames.Type.HELLO:
                self._hello(frame)
            case frames.Type.METADATA:
                self._metadata(frame)
            case frames.Type.OFFSETS:
                self._offsets(frame)
            case frames.Type.TOPIC if frame.fields.get("op") == "list":
                listed = self._server.lookups.topics(frame.fields)
                self.answer(frame.type, frame.request, listed)
            case frames.Type.TOPIC:
                with self._server.driving():
                    self._server.admin.topic(frame.fields, self.stream.moved_at, self._later(frame))
            case frames.Type.GET:
                self._get(frame)
            case frames.Type.FIND:
                self._find(frame)
            case frames.Type.LOG:
                query = parse_log(frame.fields, self._server.limits)
                self._server.cold.log(query, self, self._later(frame))
            case frames.Type.STATUS:
                self.answer(frame.type, frame.request, self._server.status())
            case frames.Type.ADMIN:
                with self._server.driving():
                    self._server.admin.order(frame.fields, self.stream.moved_at, self._later(frame))
            case frames.Type.PRODUCER:
                self.answer(frame.type, frame.request, self._server.admin.producer())
            case _:
                raise UsageError(f"{frames.type_name(frame.type)} has no handler", code="type")

    def _hello(self, frame: frames.Frame) -> None:
        server = self._server
        low, high = frame.fields.get("min", frames.VERSION), frame.fields.get("max", frames.VERSION)
        if not isinstance(low, int) or not isinstance(high, int):
            raise UsageError("min and max are whole numbers", code="fields")
        if not low <= frames.VERSION <= high:
            self._dismiss(frame.request, "version", _other_version(low, high))
            return
        if frame.names_crc not in (0, server.names_crc):
            self._dismiss(frame.request, "names", _other_cluster(server.metadata.identity))
            return
        if self._crowded:
            self._dismiss(frame.request, "connections_max", _full(server.limits.connections_max))
            return
        self.greeted = True
        self.answer(frame.type, frame.request, server.metadata.hello())

    def wrong_version(self, error: frames.FrameError) -> None:
        """Tell a peer of another wire version what is spoken here, then close."""
        version = error.facts.get("version")
        number = version if isinstance(version, int) else 0
        self.in_flight += 1
        self.error(frames.Type.HELLO, 0, _other_version(number, number))
        self.stream.finish("version")

    def _dismiss(self, request: int, kind: str, error: TwinlogError) -> None:
        self._server.counts.closed(kind)
        self.error(frames.Type.HELLO, request, error)
        self.stream.finish(kind)

    def _metadata(self, frame: frames.Frame) -> None:
        names: set[str] | None = None
        wanted = frame.fields.get("topics")
        if isinstance(wanted, list):
            names = {name for name in wanted if isinstance(name, str)}  # pyright: ignore
        after = frame.fields.get("after")
        page = self._server.metadata.metadata(names, after if isinstance(after, str) else "")
        self.answer(frame.type, frame.request, page)

    def _append(self, frame: frames.Frame) -> None:
        server, payload = self._server, frame.payload
        size = len(payload)
        if self.bytes_in_flight + size > server.limits.bytes_in_flight_max:
            self._limit(frame, "bytes_in_flight_max")
            return
        ack, timeout_ms = parse_terms(frame.fields, server.metadata.identity.acknowledge)
        sections = parse_sections(frame.fields, memoryview(payload))
        self.bytes_in_flight += size
        arrived = self.stream.moved_at
        request = AppendRequest(self, frame.request, sections, size, ack, timeout_ms, arrived)
        server.appends.add(request)

    def _read(self, frame: frames.Frame) -> None:
        now = self.stream.moved_at
        request = parse_read(self, frame.request, frame.fields, self._server.limits, now=now)
        self._server.read(request, now)

    def _offsets(self, frame: frames.Frame) -> None:
        self._give(frame, self._server.lookups.offsets(frame.fields))

    def _get(self, frame: frames.Frame) -> None:
        self._give(frame, self._server.lookups.get(frame.fields))

    def _give(self, frame: frames.Frame, found: Answer | Asked[T]) -> None:
        """Answer at once, or when a thread has looked."""
        if isinstance(found, Asked):
            self._server.cold.look(found, self, self._later(frame))
        else:
            self.answer(frame.type, frame.request, *found)

    def _find(self, frame: frames.Frame) -> None:
        query, seconds = parse_find(frame.fields, self._server.limits)
        limit = age_max(frame.fields)
        self._server.cold.find(query, seconds, self, self._later(frame), age_max=limit)

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
        self._server.counts.limit_reached(limit)
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
            "epoch": self._server.epoch,
        }
        if by == BUFFERED:
            fields["buffered"] = True
        self.answer(_APPEND, request, fields)

    def refused(self, request: int, size: int, code: str, text: str) -> None:
        """Answer an append of which nothing was written."""
        self.bytes_in_flight -= size
        self.error(frames.Type.APPEND, request, self._server.refusals.error(code, text))

    def read_answered(self, request: int, answer: ReadAnswer) -> None:
        """Answer a read with views of the log."""
        kind, found = frames.Type.READ, answer.found
        crc, lent = (None, ()) if found is None else (found.crc, found.lent)
        self.answer(kind, request, answer.fields, answer.slices, crc=crc, lent=lent)

    @property
    def gone(self) -> bool:
        """Whether the connection is closed: answers are dropped."""
        return self.stream.closed is not None

    def broke(self, error: Exception) -> None:
        """An answer's making met a defect: see `ClientServer.broke`."""
        self._server.broke(self, error)

    async def taken(self) -> None:
        """Wait until the client has taken every answer so far, or is gone.

        One that takes less than ``cold_drain_bytes_min`` a second is closed: it holds memory that
        others wait for.
        """
        limits = self._server.limits
        seconds = limits.cold_drain_seconds + self.stream.unsent / limits.cold_drain_bytes_min
        if not await self.stream.emptied(seconds) and not self.gone:
            self._server.counts.limit_reached("cold_drain_bytes_min")
            self._server.close(self, "slow")

    def read_failed(self, request: int, error: TwinlogError) -> None:
        """Say why nothing is served."""
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
        """Queue an answer; a connection that is gone swallows it.

        One that no frame can carry becomes an error, so every request is answered exactly once.
        ``crc`` is the payload's, where it is known; ``lent`` is what is sent in its place.
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
        self._server.counts.answered(KINDS[kind], outcome)

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
        server = self._server
        frame = frames.Frame(kind, flags, server.epoch, request, server.names_crc, fields)
        return frames.encode_gather(frame, payload, crc)


def _other_version(low: int, high: int) -> ProtocolError:
    text = f"the client speaks wire versions {low} to {high}, this node speaks {frames.VERSION}"
    return ProtocolError(text, code="version", min=frames.VERSION, max=frames.VERSION)


def _full(most: int) -> Busy:
    text = f"the node serves {most} connections already (connections_max)"
    return Busy(text, hint="close idle clients, or raise connections_max", limit="connections_max")


def _other_cluster(identity: Identity) -> UsageError:
    text = f"this is node {identity.name} of cluster {identity.cluster}, group {identity.group}"
    return UsageError(text, code="other-cluster", cluster=identity.cluster, group=identity.group)
