"""Connections of the coordinator: limits, idle time-outs, frames in and out.

A connection has one request at a time; a parked watch ends early when the peer sends something or
disconnects. A frame that violates the wire protocol closes its connection and is counted by kind;
it changes nothing.

Not here: the answers (``replication.coordinator.service``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import cast

import trio

from replication.coordinator.service import CoordinatorService, Fields
from replication.net.handshakes import NO_TLS
from replication.net.tls_stream import AnyStream, close_now
from replication.register.leases import Incarnation
from twinlog.wire import frames

CONNECTIONS_MAX = 256
"""A node has three, a command one. At the limit, the non-member connection that has been silent
longest is closed; if members have all of them, the new connection is closed at once."""

MEMBER_PLACES = 8
"""Connections of one member that are never closed for new ones."""

FIELDS_MAX = 256 << 10
"""The largest frame is a group state with its registrations, some KiB."""

HELLO_SECONDS = 10.0
IDLE_SECONDS = 60.0
SEND_SECONDS = 10.0


class Connections:
    """All connections to one service."""

    def __init__(self, service: CoordinatorService) -> None:
        self.service = service
        self._counts = service.counts
        self._peers: list[_Peer] = []
        self._members: Counter[Incarnation] = Counter()

    async def serve(self, stream: AnyStream) -> None:
        """Serve one peer until it disconnects, violates the protocol or stays silent."""
        counts = self._counts
        counts.accepted += 1
        if len(self._peers) >= CONNECTIONS_MAX and not self._make_room():
            counts.refused += 1
            close_now(stream)
            return
        peer = _Peer(stream)
        self._peers.append(peer)
        counts.open = len(self._peers)
        try:
            await self._serve(peer)
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            pass
        finally:
            if peer in self._peers:
                self._peers.remove(peer)
            counts.open = len(self._peers)
            close_now(stream)
            self._left(peer)

    def _make_room(self) -> bool:
        """Close the non-member that has been silent longest; False if there are only members."""
        members: Counter[str] = Counter()
        strangers: list[_Peer] = []
        for peer in self._peers:
            members[peer.client] += 1
            known = peer.client in self.service.members
            if not known or members[peer.client] > MEMBER_PLACES:
                strangers.append(peer)
        if not strangers:
            return False
        victim = min(strangers, key=lambda peer: peer.heard_at)
        self._peers.remove(victim)
        self._counts.close("room")
        victim.close()
        return True

    async def _serve(self, peer: _Peer) -> None:
        greeted = False
        while True:
            frame = None
            with trio.move_on_after(IDLE_SECONDS if greeted else HELLO_SECONDS) as patience:
                try:
                    frame = await peer.frame()
                except frames.FrameError as error:
                    await self._broken(peer, error)
                    return
            if patience.cancelled_caught:
                self._counts.close("idle" if greeted else "hello")
                return
            if frame is None:
                return
            if not greeted and frame.type != frames.Type.CO_HELLO:
                self._counts.close("hello")
                return
            if frame.type not in frames.COORDINATOR_TYPES or frame.is_answer:
                self._counts.close("type")
                return
            self._note(peer, frame)
            answer = await self._answer(peer, frame)
            await peer.send(answer, frame)
            if answer.is_error and not greeted:
                self._counts.close(str(answer.fields.get("code")))
                return
            if not greeted:
                peer.client = str(frame.fields.get("client"))
            greeted = True

    def _note(self, peer: _Peer, frame: frames.Frame) -> None:
        """Remember which member this connection belongs to: a member names itself in every call."""
        who = caller(frame)
        if who is not None and who != peer.who:
            if peer.who is not None:
                self._members[peer.who] -= 1
            peer.who = who
            self._members[who] += 1

    def _left(self, peer: _Peer) -> None:
        """Report a member whose last connection has ended: its process may have died (R59)."""
        if peer.who is None:
            return
        self._members[peer.who] -= 1
        if self._members[peer.who] <= 0:
            del self._members[peer.who]
            self.service.left(peer.who)

    async def _answer(self, peer: _Peer, frame: frames.Frame) -> frames.Frame:
        """Answer ``frame``; a watch also ends when the peer sends something or disconnects."""
        if frame.type != frames.Type.CO_WATCH:
            return await self.service.answer(frame)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.hear, nursery.cancel_scope)
            answer = await self.service.answer(frame)
            nursery.cancel_scope.cancel()
            return answer
        return self.service.unchanged(frame)

    async def _broken(self, peer: _Peer, error: frames.FrameError) -> None:
        """Count a protocol violation; a peer of another version gets the supported one."""
        self._counts.close(error.kind)
        if error.kind == "tls":
            await peer.say(NO_TLS)
        if error.kind == "version":
            fields: Fields = {"code": "version", "text": error.text, "hint": None}
            fields |= {"retryable": False, "min": frames.VERSION, "max": frames.VERSION}
            refused = frames.Frame(
                frames.Type.CO_HELLO,
                frames.ANSWER | frames.ERROR,
                names_crc=self.service.names,
                fields=fields,
            )
            await peer.send(refused)


def caller(frame: frames.Frame) -> Incarnation | None:
    """Return the node and session that a call names; None if it names no node.

    Whether the report is valid is judged when the call is executed.
    """
    fields = frame.fields.get("op") if frame.type == frames.Type.CO_CALL else frame.fields
    if not isinstance(fields, Mapping):
        return None
    match cast("Mapping[str, object]", fields).get("report"):
        case [str() as node, str(), int(), int(), int() as session] if session > 0:
            return node, session
        case _:
            return None


class _Peer:
    """Frames in and out of one stream."""

    def __init__(self, stream: AnyStream) -> None:
        self._stream = stream
        self._reader = frames.FrameReader(fields_max=FIELDS_MAX, payload_max=0)
        self.who: Incarnation | None = None
        self._ended = False
        self.client = ""
        """Name of the peer from its HELLO: a node's name, or ``cli``."""
        self.heard_at = trio.current_time()

    def close(self) -> None:
        """Close at once; wakes tasks that wait for the peer."""
        close_now(self._stream)

    async def frame(self) -> frames.Frame | None:
        """Return the next frame, or None at the end of the stream."""
        while (frame := self._reader.next()) is None:
            if self._ended:
                self._reader.finish()
                return None
            await self.receive()
        return frame

    async def receive(self) -> None:
        """Receive the peer's next bytes, or note its end."""
        data = await self._stream.receive_some(16384)
        self._ended = not data
        self.heard_at = trio.current_time()
        self._reader.feed(data)

    async def hear(self, scope: trio.CancelScope) -> None:
        """Cancel ``scope`` once the peer has sent something or disconnected."""
        try:
            await self.receive()
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            self._ended = True
        scope.cancel()

    async def send(self, frame: frames.Frame, asked: frames.Frame | None = None) -> None:
        """Send one frame; a peer that takes nothing for `SEND_SECONDS` is broken.

        An answer too large for a frame becomes an error answer to ``asked``: it must not end the
        service.
        """
        try:
            data = frames.encode_whole(frame)
        except frames.FrameError as error:
            if asked is None:
                raise
            fields: Fields = {"code": "too-large", "text": error.text, "hint": None}
            refused = frames.refusal(asked, {**fields, "retryable": False}, names=frame.names_crc)
            data = frames.encode_whole(refused)
        await self.say(data)

    async def say(self, data: bytes) -> None:
        """Send bytes; as `send`."""
        try:
            with trio.fail_after(SEND_SECONDS):
                await self._stream.send_all(data)
        except trio.TooSlowError:
            raise trio.BrokenResourceError("the peer takes nothing") from None
