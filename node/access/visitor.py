"""Who is at the other end of a client's connection: the login, and what it may ask. Pure.

A login is two steps of SCRAM-SHA-256 on the connection. Sources: RFC 5802; the client's side is
``twinlog.session.link``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import cast

from node.access.gate import Gate
from node.access.grants import Grants
from twinlog.errors import CorruptionError, Denied, TwinlogError, UsageError
from twinlog.format import record
from twinlog.format.waiting.delay_levels import REAL_TOPIC
from twinlog.wire import frames, schema, scram
from twinlog.wire.rights import LATER_TOPICS

NONCE_MAX = 128
"""Characters of a client's random number."""


class Visitor:
    """One connection's user.

    Args:
        gate: Of the node.
        peer: Its address, for events.
        certificate: The name in the client's verified certificate; None: it shows no certificate.

    Attributes:
        user: Who it is; None: not known.
    """

    def __init__(self, gate: Gate, peer: str, certificate: str | None = None) -> None:
        self._gate = gate
        self._peer = peer
        self._asked: tuple[str, str, str, scram.Verifier] | None = None
        self._logged_in = False
        self._had: Grants | None = None
        self.user = gate.by_certificate(certificate)

    def admit(self, frame: frames.Frame, topic_at: Callable[[int], str]) -> None:
        """Let a request pass, or refuse it before anything is looked up.

        ``topic_at`` returns for which topic the record at a log offset waits.

        Raises:
            Denied: The user may not; it is an event.
            UsageError: A field has another shape.
        """
        try:
            schema.check(frame)
        except frames.FrameError as error:
            raise UsageError(error.text, code="fields") from None
        self._gate.admit(self.user, frame.type, frame.fields, self._peer)
        grants = self._gate.of(self.user)
        if self._had is None:
            self._had = grants
        if grants is not None and frame.type in (frames.Type.APPEND, frames.Type.TOGETHER):
            for topic in _later(frame):
                self._gate.check(grants, ("write", "topic", topic), frame.type, self._peer)
        offset = frame.fields.get("log_offset")
        if frame.type == frames.Type.CANCEL and grants is not None and isinstance(offset, int):
            # Of an offset that holds nothing it is refused, too: what lies where is not said.
            self._gate.check(grants, ("write", "topic", topic_at(offset)), frame.type, self._peer)

    def sees(self, thing: str, name: str) -> bool:
        """Whether the user may know of a topic or group."""
        grants = self._gate.of(self.user)
        return grants is not None and grants.sees(thing, name)

    def reads(self, topic: str) -> bool:
        """Whether the user may read a topic."""
        grants = self._gate.of(self.user)
        return grants is not None and grants.may(("read", "topic", topic))

    def robbed(self) -> bool:
        """Whether the user has lost a right since the last call: what waits may rest on it."""
        now, had = self._gate.of(self.user), self._had
        self._had = now
        return had is not None and (now is None or now.lost(had))

    # ── the login ───────────────────────────────────────────────────────────────────────────────

    def log_in(self, fields: Mapping[str, object]) -> Mapping[str, object]:
        """Return the answer to a LOGIN of the right shape; after an error, close the connection.

        Raises:
            Denied: User or password is wrong; which of them is not said.
            UsageError: The steps come in another order.
        """
        try:
            return self._step(fields)
        except TwinlogError:
            self._gate.stranger(str(fields.get("user"))[:64], self._peer)
            raise

    def _step(self, fields: Mapping[str, object]) -> Mapping[str, object]:
        user, said, proof = (fields.get(name) for name in ("user", "nonce", "proof"))
        assert isinstance(user, str) and isinstance(said, str), "the schema says so"
        if not isinstance(proof, bytes):
            return self._first(user, said)
        asked, self._asked = self._asked, None
        if asked is None or asked[0] != user:
            raise UsageError("a proof without a question", code="fields")
        _, own, whole, kept = asked
        spoken = scram.said(user, own, whole, kept.salt, kept.iterations)
        grants = self._gate.of(user)
        known = grants is not None and grants.user.verifier == kept
        if said != whole or not scram.proven(kept, spoken, proof) or not known:
            raise Denied("user or password is wrong", code="login")
        self.user, self._had, self._logged_in = user, grants, True
        return {"signature": scram.signature(kept, spoken)}

    def _first(self, user: str, own: str) -> Mapping[str, object]:
        if not 0 < len(own) <= NONCE_MAX or not own.isascii() or "," in own:
            raise UsageError(f"a nonce has 1 to {NONCE_MAX} ASCII characters", code="fields")
        if self._logged_in or self._asked is not None or len(user) > NONCE_MAX:
            raise UsageError("a connection logs in once", code="fields")
        kept, whole = self._gate.verifier(user), own + self._gate.draw()
        self._asked = user, own, whole, kept
        return {"nonce": whole, "salt": kept.salt, "iterations": kept.iterations}


def _later(frame: frames.Frame) -> Iterator[str]:
    """Yield the topics to which its sections of waiting records go: one topic for each section.

    One whose first record says none is named as it is: the operator alone may write there.
    """
    at, payload = 0, memoryview(frame.payload)
    for row in cast("list[list[object]]", frame.fields.get("sections") or ()):
        size = row[3] if isinstance(row[3], int) else 0
        if row[0] in LATER_TOPICS:
            named: Mapping[str, str] = {}
            with suppress(CorruptionError):
                named = record.decode(payload[at : at + size], check_crc=False).properties
            yield named.get(REAL_TOPIC, str(row[0]))
        at += size
