"""The register's store in etcd: the content of ``coordinator.sqlite``, under one prefix.

    /twinlog/CLUSTER/GROUP/seat              who keeps the register (``coordinator.seat``)
    /twinlog/CLUSTER/GROUP/facts             JSON: schema, register_id
    /twinlog/CLUSTER/GROUP/register          JSON: revision, document
    /twinlog/CLUSTER/GROUP/pairs/REVISION    the random tag of a change, 20 digits
    /twinlog/CLUSTER/GROUP/history/NUMBER    JSON: one entry

One change is one transaction that compares the seat; it has happened when etcd confirms it. Any
outcome other than success or refusal ends the seat (`SeatLost`): the next holder, mostly the same
process, loads the actual state. So no change of unknown outcome is ever shown, and nothing is sent
twice.

If etcd is restored from a backup, the register is an older one: the nodes' reports show it, as with
a restored file (docs/protocol.md R18).

Not here: SQLite (``replication.coordinator.store``), HTTP
(``replication.coordinator.etcd_gateway``).
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from typing import cast

from replication.coordinator.etcd_gateway import (
    EtcdGateway,
    Fields,
    GatewayAway,
    GatewayRefused,
    GatewayUnknown,
    bytes_of,
    rows_of,
    text_of,
)
from replication.coordinator.seat import Seat, SeatLost
from replication.coordinator.store import SCHEMA, Recorded
from twinlog.errors import CorruptionError, UsageError

PAGE = 1000
"""Keys of one query while the register is loaded."""

OPERATIONS_MAX = 100
"""Entries of history that one transaction writes at most; etcd takes 128 operations."""


def prefix_of(cluster: str, group: str) -> str:
    """Return the prefix of a group's keys."""
    return f"/twinlog/{cluster}/{group}/"


class EtcdStore:
    """The register of one group in etcd, while a seat is held. One call at a time.

    Args:
        gateway: To etcd.
        seat: The seat that this process holds.
        prefix: See `prefix_of`.

    Attributes:
        register_id: Random id of the register, made with it.

    Raises:
        UsageError: ``newer-version``; nothing was changed.
        CorruptionError: The keys do not have the format of this module.
        SeatLost: etcd did not answer, or the seat is lost.

    After an exception the seat has been given up.
    """

    def __init__(self, gateway: EtcdGateway, seat: Seat, prefix: str) -> None:
        self._gateway = gateway
        self._seat = seat
        self._prefix = prefix
        self._written: list[str] = []
        self._dead: str | None = None
        try:
            self.register_id = self._identify()
        except BaseException:
            self.close()
            raise

    def _identify(self) -> str:
        value = self._value("facts")
        if value is None:
            fresh = secrets.token_hex(16)
            text = _json({"schema": SCHEMA, "register_id": fresh})
            self._write([_put(self._prefix + "facts", text)], "make the register")
            return fresh
        facts = self._document("facts", value)
        schema = self._whole(str(facts.get("schema")))
        if schema > SCHEMA:
            text = f"the register in etcd has schema {schema}; this version knows {SCHEMA}"
            raise UsageError(text, code="newer-version", hint="start the version that wrote it")
        return str(facts.get("register_id"))

    def load(self) -> Recorded:
        """Return everything that was recorded.

        Raises:
            CorruptionError: The documents do not fit together; nothing can be trusted.
            SeatLost: etcd did not answer.
        """
        pairs: dict[int, int] = {}
        for key, value in self._under("pairs/"):
            revision = self._whole(key)
            pairs[revision] = self._whole(value.decode(errors="replace"))
        entries = [(self._whole(key), value) for key, value in self._under("history/")]
        texts = [value.decode(errors="replace") for _, value in sorted(entries)]
        history = tuple(self._document("history", text.encode()) for text in texts)
        kept = self._value("register")
        found = None if kept is None else self._document("register", kept)
        self._seat.prove()
        self._written = texts
        if found is None:
            return Recorded(None, pairs, history)
        document, newest = found.get("document"), found.get("revision")
        if not isinstance(document, dict) or max(pairs, default=0) != newest:
            text = f"etcd holds revision {newest} but pairs up to {max(pairs, default=0)}"
            raise CorruptionError(text, file=self._prefix + "register")
        return Recorded(cast("Fields", document), pairs, history)

    def record(
        self,
        revision: int,
        tag: int,
        document: Mapping[str, object],
        history: Iterable[Mapping[str, object]],
        *,
        afresh: bool = False,
    ) -> None:
        """Make one change durable; it has happened when this returns.

        Args:
            As `replication.coordinator.store.CoordinatorStore.record`.

        Raises:
            SeatLost: It did not happen, or that is unknown. The store is dead; the next holder of
                the seat finds out.
        """
        texts = [_json(entry) for entry in history]
        news = [
            _put(f"{self._prefix}history/{number:010d}", text)
            for number, text in enumerate(texts)
            if number >= len(self._written) or self._written[number] != text
        ]
        # Only a recovered or imported history is that long; its oldest entries are written first,
        # and do not count without the register's own key, which is written with the last ones.
        while len(news) > OPERATIONS_MAX:
            self._write(news[:OPERATIONS_MAX], "record history")
            del news[:OPERATIONS_MAX]
        pairs = f"{self._prefix}pairs/"
        pair = f"{pairs}{revision:020d}"
        if afresh:
            # etcd refuses one transaction that deletes a range and writes into it.
            news += [_delete(pairs, pair), _delete(pair + "\0", _after(pairs))]
        news.append(_put(pair, str(tag)))
        kept = _json({"revision": revision, "document": document})
        news.append(_put(self._prefix + "register", kept))
        self._write(news, f"record revision {revision}")
        self._written = texts

    def keep(self, document: Mapping[str, object]) -> None:
        """Make the register's document durable although its revision is the old one: an alarm.

        Raises:
            SeatLost: As `record`.
        """
        value = self._value("register")
        if value is None:
            return
        found = self._document("register", value)
        kept = _json({"revision": found.get("revision"), "document": document})
        self._write([_put(self._prefix + "register", kept)], "keep the register's alarm")

    def prove(self) -> None:
        """Prove that no other process can have changed the register yet.

        Raises:
            SeatLost: One may have.
        """
        if self._dead is not None:
            raise SeatLost(self._dead)
        self._seat.prove()

    def close(self) -> None:
        """Give up the seat and close the connection; may be called twice."""
        self._seat.leave(self._gateway)
        self._gateway.close()

    # -- etcd

    def _write(self, operations: list[Fields], what: str) -> None:
        self.prove()
        body: Fields = {"compare": [self._seat.held()], "success": operations, "failure": []}
        try:
            answer = self._gateway.change("kv/txn", body)
        except (GatewayUnknown, GatewayAway, GatewayRefused) as error:
            raise self._lost(f"cannot {what}: {error}") from error
        if answer.get("succeeded") is not True:
            raise self._lost(f"cannot {what}: another process has the seat")

    def _lost(self, why: str) -> SeatLost:
        self._dead = why
        return SeatLost(why)

    def _range(self, body: Fields) -> list[Fields]:
        try:
            return rows_of(self._gateway.ask("kv/range", body))
        except (GatewayUnknown, GatewayAway, GatewayRefused) as error:
            raise self._lost(f"cannot read the register: {error}") from error

    def _value(self, name: str) -> bytes | None:
        rows = self._range({"key": text_of(self._prefix + name)})
        return bytes_of(rows[0].get("value")) if rows else None

    def _under(self, name: str) -> list[tuple[str, bytes]]:
        """Return the rest of each key under ``name``, with its value, in order."""
        base = self._prefix + name
        start, found = base, list[tuple[str, bytes]]()
        while True:
            rows = self._range({
                "key": text_of(start),
                "range_end": text_of(_after(base)),
                "limit": str(PAGE),
            })  # fmt: skip
            for row in rows:
                key = bytes_of(row.get("key")).decode(errors="replace")
                found.append((key[len(base) :], bytes_of(row.get("value"))))
                start = key + "\0"
            if len(rows) < PAGE:
                return found

    def _document(self, name: str, value: bytes) -> Fields:
        try:
            found = json.loads(value)
        except ValueError as error:
            text = f"{self._prefix}{name} in etcd holds no JSON: {error}"
            raise CorruptionError(text, file=self._prefix + name) from error
        if not isinstance(found, dict):
            raise CorruptionError(f"{self._prefix}{name} in etcd is not a document")
        return cast("Fields", found)

    def _whole(self, text: str) -> int:
        if not text.isdecimal():
            raise CorruptionError(f"{self._prefix} holds {text[:40]!r} where a number belongs")
        return int(text)


def _put(key: str, value: str) -> Fields:
    return {"request_put": {"key": text_of(key), "value": text_of(value)}}


def _delete(start: str, end: str) -> Fields:
    return {"request_delete_range": {"key": text_of(start), "range_end": text_of(end)}}


def _after(prefix: str) -> str:
    """Return the end of a prefix: its last character, plus one.

    >>> _after("pairs/")
    'pairs0'
    """
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def _json(value: Mapping[str, object]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
