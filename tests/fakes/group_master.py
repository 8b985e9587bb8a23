"""What a master does for one group, small enough to hold in the head: a dictionary of messages.

Every message is free, leased, waiting or settled. It answers the requests of `twinlog.wire.groups`
that a member sends. Time is handed in, ms. Used by property tests of the member's core, and behind
fake nodes by tests of the shells.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from twinlog import kernels
from twinlog.format import record
from twinlog.wire.frames import Frame
from twinlog.wire.groups import BACK_OFF, DONE, LEAVING, RECEIPT_EXPIRED, RECEIPT_UNKNOWN, What
from twinlog.wire.types import Type

Fields = dict[str, Any]
BACK_OFF_MS = 2000


class Refused(Exception):
    """The answer is an error."""

    def __init__(self, code: str, *, retryable: bool = False) -> None:
        super().__init__(code)
        self.fields: Fields = {"code": code, "text": code, "hint": None, "retryable": retryable}


def stored_record(topic: str, queue: int, offset: int, body: bytes) -> bytes:
    """A record as a node keeps it."""
    encoder = record.RecordEncoder(topic, queue, family=4, born_host=("127.0.0.1", 1))
    encoder.add(body, properties=b"", sys_flag=0, born_timestamp=1)
    data = bytearray(encoder.take())
    host = record.pack_host(("127.0.0.1", 7410))
    kernels.patch_section(
        data, 0, len(data), log_offset=4096 + 1024 * offset, queue_offset=offset,
        store_timestamp=2, store_host=host,
    )  # fmt: skip
    return bytes(data)


@dataclass
class Kept:
    """One message in a share: its state, and under which lease."""

    data: bytes
    state: str = "free"
    n: int = 0
    until: int = 0
    attempt: int = 0
    member: int = 0
    ns: set[int] = field(default_factory=set)


@dataclass
class GroupMaster:
    """One group with one share for each queue of one topic."""

    topic: str = "orders"
    ordered: bool = False
    attempts: int = 16
    invisible_ms: int = 60_000
    session_ms: int = 10_000
    shares: dict[int, list[Kept]] = field(default_factory=dict)
    n: dict[int, int] = field(default_factory=dict)
    members: dict[int, int] = field(default_factory=dict)
    pops: dict[tuple[int, int], list[list[Any]]] = field(default_factory=dict)
    parked: list[tuple[Frame, int]] = field(default_factory=list)
    dead: list[tuple[int, int, str]] = field(default_factory=list)
    leases: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    """Every lease: share, offset, n, from, until of the lease before it (0: none)."""
    refuse: list[str] = field(default_factory=list)
    """Codes that the next requests are refused with, for now."""
    leaving: bool = False
    """The log files of all messages are about to leave."""
    numbers: int = 0

    def send(self, queue: int, body: bytes) -> None:
        """Store a message."""
        kept = self.shares.setdefault(queue, [])
        kept.append(Kept(stored_record(self.topic, queue, len(kept), body)))

    def ask(self, frame: Frame, now: int) -> tuple[Fields, bytes] | None:
        """Carry out a request; None: it is parked until `wake`."""
        if self.refuse:
            raise Refused(self.refuse.pop(0), retryable=True)
        fields: Fields = dict(frame.fields)
        match frame.type:
            case Type.JOIN:
                return self._join(fields, now), b""
            case Type.POP:
                self._beat(fields, now)
                found = self._pop(fields, now, 0)
                if found is None:
                    self.parked.append((frame, now))
                return found
            case Type.SETTLE:
                self._beat(fields, now)
                rows = [self._settle(row, now) for row in fields["rows"]]
                return {"rows": rows, "now_ms": now}, b""
            case Type.BEAT:
                self._beat(fields, now)
                if fields.get("leave"):
                    del self.members[fields["member"]]
                return {"generation": 1, "rows": [], "revoked": []}, b""
            case _:
                raise Refused("type")

    def wake(self, now: int) -> list[tuple[Frame, Fields, bytes]]:
        """Answers to parked pops that can be given now."""
        found: list[tuple[Frame, Fields, bytes]] = []
        for frame, since in list(self.parked):
            fields: Fields = dict(frame.fields)
            answer = self._pop(fields, now, now - since)
            if answer is None and fields["member"] not in self.members:
                answer = self._empty(now, now - since)
            if answer is None and now >= since + fields["wait_ms"]:
                answer = self._empty(now, now - since)
            if answer is not None:
                self.parked.remove((frame, since))
                found.append((frame, *answer))
        return found

    def expire(self, now: int) -> None:
        """End leases and pauses whose time has come."""
        for share in self.shares.values():
            for kept in share:
                if kept.state in ("leased", "waiting") and now >= kept.until:
                    kept.state = "free"

    # ── inside ──────────────────────────────────────────────────────────────────────────────────

    def _join(self, fields: Fields, now: int) -> Fields:
        member = fields["member"]
        if now >= self.members.get(member, 0):
            self.numbers += 1
            member = self.numbers
        self.members[member] = now + self.session_ms
        return {
            "member": member,
            "generation": 1,
            "session_ms": self.session_ms,
            "invisible_ms": self.invisible_ms,
            "rows": [[self.topic, queue, queue, 0] for queue in sorted(self.shares)],
        }

    def _beat(self, fields: Fields, now: int) -> None:
        if now >= self.members.get(fields["member"], 0):
            raise Refused("not-member")
        self.members[fields["member"]] = now + self.session_ms

    def _empty(self, now: int, waited: int) -> tuple[Fields, bytes]:
        return {"rows": [], "now_ms": now, "waited_ms": waited, "epoch": 1}, b""

    def _pop(self, fields: Fields, now: int, waited: int) -> tuple[Fields, bytes] | None:
        self.expire(now)
        key = fields["member"], fields["pop"]
        if key not in self.pops:
            rows = self._lease(fields, now)
            if not rows:
                return None
            self.pops[key] = rows
        rows = self.pops[key]
        data = b"".join(
            self.shares[row[2]][at].data for row in rows for at in range(row[4], row[4] + row[5])
        )
        return {"rows": rows, "now_ms": now, "waited_ms": waited, "epoch": 1}, data

    def _lease(self, fields: Fields, now: int) -> list[list[Any]]:
        rows: list[list[Any]] = []
        room = fields["max_records"]
        for queue, share in self.shares.items():
            for offset, kept in enumerate(share):
                if self.ordered and self._held_back(share, offset, fields["member"], now):
                    break
                if kept.state != "free" or room <= 0:
                    continue
                self.n[queue] = n = self.n.get(queue, 0) + 1
                before = kept.until
                kept.state, kept.n, kept.attempt = "leased", n, kept.attempt + 1
                kept.until, kept.member = now + fields["invisible_ms"], fields["member"]
                kept.ns.add(n)
                self.leases.append((queue, offset, n, now, before))
                rows.append(
                    [self.topic, queue, queue, n, offset, 1, kept.attempt, kept.until, 1,
                     len(kept.data)]
                )  # fmt: skip
                room -= 1
        return rows

    def _held_back(self, share: list[Kept], offset: int, member: int, now: int) -> bool:
        """Whether order forbids this message: another member has one of the queue, or one before it
        waits."""
        held = [kept for kept in share if kept.state == "leased" and kept.until > now]
        mine = all(kept.member == member for kept in held)
        return not mine or any(kept.state in ("waiting", "free") for kept in share[:offset])

    def _settle(self, row: list[Any], now: int) -> list[Any]:
        share, n, what, first, last, number = row[:6]
        codes = {self._settle_one(share, n, What(what), at, number, row[6:], now)
                 for at in range(first, last + 1)}  # fmt: skip
        return [min(codes, key=lambda code: code == DONE), 0]

    def _settle_one(
        self, share: int, n: int, what: What, at: int, number: int, why: list[str], now: int
    ) -> str:
        kept = self.shares[share][at]
        if n not in kept.ns:
            return RECEIPT_UNKNOWN
        if kept.n != n:
            return RECEIPT_EXPIRED
        if kept.state == "settled" or kept.state == "waiting":
            return DONE
        match what:
            case What.ACK:
                kept.state = "settled"
            case What.REJECT:
                kept.state = "settled"
                self.dead.append((share, at, why[0] if why else ""))
            case What.EXTEND if self.leaving:
                return LEAVING
            case What.EXTEND:
                kept.state, kept.until = "leased", now + number
            case What.UNUSED | What.RELEASE:
                kept.attempt -= what == What.UNUSED
                pause = BACK_OFF_MS if number == BACK_OFF else number
                kept.state, kept.until = "waiting", now + pause
                if kept.attempt >= self.attempts:
                    kept.state = "settled"
                    self.dead.append((share, at, "attempts"))
        return DONE
