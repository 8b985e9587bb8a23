"""Commands to a node over its client port: topics, producer ids, stop, transfer.

Each command is answered exactly once, immediately or when the log has confirmed it. A command that
may have been written but is not confirmed in time is answered as `OutcomeUnknown`, never as
refused.

Not here: who may ask for what (``node.access``).
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol, cast

from node.clients.refusals import no_topic
from node.topics.altering import parse_alter, terms_of
from storage.marks.archive_mark import PARTS_MAX, ArchivedPart, Claim
from storage.state.controls import CreateTopic, DeleteTopic
from storage.state.sections import Outcome, SectionResult
from twinlog.errors import OutcomeUnknown, TopicDeleted, TwinlogError, UsageError
from twinlog.wire.schema import QUEUES_DEFAULT

if TYPE_CHECKING:
    from replication.driver.driver import Driver
    from storage.reads import StoreReads

Answered = Callable[[Mapping[str, object] | TwinlogError], None]
Refusal = Callable[[str, str], TwinlogError]

TOPIC_NAME = re.compile(r"%RETRY%[%|a-zA-Z0-9_-]{1,248}|[%|a-zA-Z0-9_-]{1,127}")
"""RocketMQ's legal characters and length; retry topics have up to 255, in records of version 2."""

RESERVED = "rmq_sys_"
"""Prefix of system topics, which clients may not create."""

SHA256 = re.compile(r"[0-9a-fA-F]{64}")

QUEUES_MAX = 1024
ARCHIVE_ID_MAX = 64
"""Characters of an archive's id; twinlog makes ids of 32."""
GROUPS_SHOWN = 10
"""Groups that the refusal to delete a topic names."""
CONTROL_SECONDS = 10.0
"""How long a command waits for its confirmation by default."""


class Consumers(Protocol):
    """The groups of a node."""

    def consumers(self, topic: str) -> list[str]:
        """Return the names of the groups that consume a topic, sorted."""
        ...

    def dismiss(self, topic: str) -> None:
        """End the sessions of members who consume a topic if it is not there any more."""
        ...


class Admin:
    """Executes the commands of clients on one node."""

    def __init__(
        self,
        driver: Driver,
        store: StoreReads,
        *,
        refusal: Refusal,
        stop: Callable[[bool], None],
        wall_ms: Callable[[], int],
        groups: Consumers,
    ) -> None:
        self._groups = groups
        self._driver = driver
        self._store = store
        self._refusal = refusal
        self._stop = stop
        self._wall_ms = wall_ms

    def producer(self) -> Mapping[str, object]:
        """Return a new producer id: random, 63 bit, so nodes need not agree on a counter."""
        return {"producer": secrets.randbits(62) + 1, "epoch": 0}

    def topic(self, fields: Mapping[str, object], now: float, done: Answered) -> None:
        """Show, create, alter or delete a topic; lists are in ``node.clients.lookups``.

        Raises:
            UsageError: The command is invalid; nothing was done.
        """
        match fields.get("op"):
            case "show":
                name = _text(fields, "name")
                found = self._store.terms(name)
                if found is None:
                    raise no_topic(self._store, name)
                queues, terms = found.queues, terms_of(found)
                done({"topics": {name: queues}, "queues": queues, "terms": terms})
            case "create":
                self._create(fields, now, done)
            case "alter":
                self._alter(fields, now, done)
            case "delete":
                self._delete(fields, now, done)
            case other:
                text = f"topic knows alter, create, delete, list and show, not {other!r}"
                raise UsageError(text, code="fields")

    def _create(self, fields: Mapping[str, object], now: float, done: Answered) -> None:
        name = _text(fields, "name")
        queues = fields.get("queues", QUEUES_DEFAULT)
        if not TOPIC_NAME.fullmatch(name) or name.startswith(RESERVED):
            hint = (
                "use letters, digits, %, |, - and _, at most 127 (255 of %RETRY%...), "
                f"not beginning with {RESERVED}"
            )
            raise UsageError(f"{name!r} is not a topic name", code="topic-name", hint=hint)
        if not isinstance(queues, int) or not 0 < queues <= QUEUES_MAX:
            raise UsageError(f"a topic has 1 to {QUEUES_MAX} queues", code="fields")
        batch = fields.get("batch") is True
        existing = self._store.topics().get(name)
        if existing is not None and self._store.queues(name) is not None:
            kind = name in self._store.batched()
            topics = {name: existing}
            done({"created": False, "queues": existing, "topics": topics, "batch": kind})
            return

        def reply(results: list[SectionResult], by: str | None) -> None:
            result = results[0]
            if result.outcome in (Outcome.STORED, Outcome.DUPLICATE):
                topics = {name: queues}
                done({"created": True, "queues": queues, "topics": topics, "batch": batch})
            elif result.outcome is Outcome.REFUSED:
                done(self._refusal(result.code, result.text))
            else:
                hint = f"look for it: twinlog topic show {name}"
                done(OutcomeUnknown(f"topic {name} may or may not be created", hint=hint))

        if self._store.remains(name):
            text = f"topic {name} was deleted, and the log still holds its messages"
            hint = "use another name, or wait until retention has taken them"
            raise TopicDeleted(text, hint=hint, topic=name)
        change = CreateTopic(name, queues, self._wall_ms(), batch)
        self._driver.control(now, change, deadline=now + _seconds(fields), reply=reply)

    def _alter(self, fields: Mapping[str, object], now: float, done: Answered) -> None:
        name = _text(fields, "name")
        if name.startswith(RESERVED):
            raise UsageError(f"topic {name} is the store's own", code="topic-name")
        change = parse_alter(fields, name, self._wall_ms())
        if (change.queues or 0) > QUEUES_MAX:
            raise UsageError(f"a topic has 1 to {QUEUES_MAX} queues", code="fields")
        topic = self._store.terms(name)
        if topic is None:
            raise no_topic(self._store, name)
        before, after = terms_of(topic), terms_of(change.of(topic))
        found = {"before": before, "terms": after, "groups": self._groups.consumers(name)}
        if fields.get("plan") is True:
            refusal = self._store.refusal(change)
            if refusal is not None:
                raise self._refusal(*refusal)
            done({"altered": False, **found})
            return

        def reply(results: list[SectionResult], by: str | None) -> None:
            result = results[0]
            if result.outcome in (Outcome.STORED, Outcome.DUPLICATE):
                done({"altered": result.outcome is Outcome.STORED, **found})
            elif result.outcome is Outcome.REFUSED:
                done(self._refusal(result.code, result.text))
            else:
                hint = f"look at it: twinlog topic show {name}"
                done(OutcomeUnknown(f"topic {name} may or may not be altered", hint=hint))

        self._driver.control(now, change, deadline=now + _seconds(fields), reply=reply)

    def _delete(self, fields: Mapping[str, object], now: float, done: Answered) -> None:
        name = _text(fields, "name")
        if name.startswith(RESERVED):
            raise UsageError(f"topic {name} is the store's own", code="topic-name")
        groups = self._groups.consumers(name)
        if fields.get("plan") is True:
            if self._store.queues(name) is None:
                raise no_topic(self._store, name)
            done({"deleted": False, "groups": groups})
            return
        if groups and fields.get("consumed") is not True:
            shown = ", ".join(groups[:GROUPS_SHOWN]) + (", ..." if groups[GROUPS_SHOWN:] else "")
            text = f"topic {name} is consumed by {len(groups)} groups: {shown}"
            hint = "their positions would go with it; delete it all the same with --consumed"
            raise UsageError(text, code="topic-consumed", hint=hint)

        def reply(results: list[SectionResult], by: str | None) -> None:
            result = results[0]
            if result.outcome in (Outcome.STORED, Outcome.DUPLICATE):
                done({"deleted": result.outcome is Outcome.STORED, "groups": groups})
            elif result.outcome is Outcome.REFUSED:
                done(self._refusal(result.code, result.text))
            else:
                hint = f"look for it: twinlog topic show {name}"
                done(OutcomeUnknown(f"topic {name} may or may not be deleted", hint=hint))

        change = DeleteTopic(name, self._wall_ms())
        self._driver.control(now, change, deadline=now + _seconds(fields), reply=reply)
        self._groups.dismiss(name)

    def order(self, fields: Mapping[str, object], now: float, done: Answered) -> None:
        """Stop the node, hand over its role, report archived parts to it, or begin a scrub.

        Raises:
            UsageError: The command is invalid; nothing was done.
        """
        match fields.get("op"):
            case "stop":
                done({"stopping": True})
                self._stop(fields.get("now") is True)
            case "transfer":
                to = _text(fields, "to")

                def reply(code: str, text: str) -> None:
                    if code == "ok":
                        done({"transferred": True, "to": to})
                    elif code == "unknown":
                        done(OutcomeUnknown(text or f"{to} may or may not take over"))
                    else:
                        done(self._refusal(code, text))

                self._driver.transfer(now, to, reply, who="order")
            case "archived":
                self._archived(fields, now, done)
            case "promise":
                done(self._promise())
            case "scrub":
                self._driver.order_scrub(now)
                done({"scrub": self._driver.scrub.document()})
            case other:
                text = f"a node knows stop, transfer, archived, promise and scrub, not {other!r}"
                raise UsageError(text, code="fields")

    def _promise(self) -> Mapping[str, object]:
        """Return this node's durable promise, for `coordinator recover`."""
        context = self._driver.core.context
        promise, log = context.promise, context.log
        return {
            "register_id": promise.register_id,
            "revision": promise.revision,
            "tag": promise.tag,
            "promised": promise.epoch,
            "session": promise.session,
            "state": json.loads(promise.state) if promise.state else None,
            "last_epoch": log.last_epoch,
            "end": log.committed,
        }

    def _archived(self, fields: Mapping[str, object], now: float, done: Answered) -> None:
        """Raise the mark below which the log is archived (`storage.marks.archive_mark`)."""
        rows = fields.get("parts")
        listed = cast("list[object]", rows) if isinstance(rows, list) else []
        if not 0 < len(listed) <= PARTS_MAX:
            raise UsageError(f"archived names 1 to {PARTS_MAX} parts", code="fields")
        parts = [_part(row) for row in listed]
        archive = fields.get("archive", "")
        if not isinstance(archive, str) or len(archive) > ARCHIVE_ID_MAX:
            text = f"archive is an id of at most {ARCHIVE_ID_MAX} characters"
            raise UsageError(text, code="fields")
        claim = Claim(archive, fields.get("replace") is True)

        def reply(code: str, text: str) -> None:
            end = max(part.end for part in parts)
            done({"archived": end} if code == "ok" else self._refusal(code, text))

        self._driver.archived(now, parts, reply, claim)


def _part(row: object) -> ArchivedPart:
    match cast("list[object]", row) if isinstance(row, list) else None:
        case [int() as start, int() as end, str() as digest] if 0 <= start < end:
            if SHA256.fullmatch(digest):
                return ArchivedPart(start, end, digest)
        case _:
            pass
    raise UsageError("a part is [start, end, SHA-256 in 64 hexadecimal digits]", code="fields")


def _text(fields: Mapping[str, object], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise UsageError(f"{name} is missing", code="fields")
    return value


def _seconds(fields: Mapping[str, object]) -> float:
    value = fields.get("timeout_ms")
    return value / 1000 if isinstance(value, int) and value > 0 else CONTROL_SECONDS
