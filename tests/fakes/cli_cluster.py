"""A cluster made of answers: what the CLI's tests ask instead of processes.

`FakeCluster.run` calls the command line as a user would and returns exit code, stdout and stderr.
Time stands still, so output can be compared byte by byte.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from cli.app import report, run
from cli.context import Context
from cli.fields import Fields
from cli.options import split
from cli.render import Printer
from tests.fakes.cli_timers import timed_message, waiting_answer
from twinlog.client.search import Finding
from twinlog.consumer.core import Source
from twinlog.errors import TwinlogError, Unavailable, UnknownGroup, UnknownTopic
from twinlog.format.group_rows import (
    DEAD_LETTER,
    AckRow,
    GivenUpRow,
    LeaseRow,
    MemberRow,
    ReleaseRow,
    ResetRow,
    encode_rows,
)
from twinlog.format.messages import Message, Receipt
from twinlog.format.record import encode_properties, pack_host
from twinlog.format.system_topics import DEAD_PREFIX, SYSTEM_TOPIC_GROUP
from twinlog.groups.telling import GroupSteps, Telling
from twinlog.producer.section import Section, State
from twinlog.session.routing import Address
from twinlog.wire.frames import Frame, Type

NOW_MS = 1_795_000_000_123

CONFIG = """
[cluster]
name = "demo"
[[node]]
name = "n1"
address = "127.0.0.1"
role = "master"
[[node]]
name = "n2"
address = "127.0.0.1"
[node.listen]
clients = 7420
slaves = 7421
http = 7422
[[node]]
name = "n3"
address = "127.0.0.1"
[node.listen]
clients = 7430
slaves = 7431
http = 7432
"""

HALVES: list[list[object]] = [
    [12, 4096, 300, NOW_MS - 754_000, "shop", "7f3a", 9, NOW_MS + 31_000],
    [14, 8192, 280, NOW_MS - 4_000, "bank", "0C0A", 0, NOW_MS + 2_000],
    [15, 9000, 310, NOW_MS - 753_000, "shop", "7f3a", 9, NOW_MS + 31_000],
]
"""Open messages of two transactions."""

ADDRESSES = {"127.0.0.1:7410": "n1", "127.0.0.1:7420": "n2", "127.0.0.1:7430": "n3"}
COORDINATOR = "127.0.0.1:7400"


def status(name: str, *, role: str, end: int, epoch: int = 7, leader: str = "n1") -> Fields:
    """A status document as ``node/observe/status.py`` makes it, with what the CLI reads."""
    offsets = {
        "start": 0, "checkpointed": end, "flushed": end, "dispatched": end,
        "confirm": min(end, 10485760), "committed": end, "end": end,
    }  # fmt: skip
    last = {
        "file": "commitlog/00000000000000000000", "offset": 4096, "length": 1480,
        "what": "bytes do not match the batch's CRC", "at_ms": 1_790_000_000_000, "repaired": True,
    }  # fmt: skip
    scrub: dict[str, object] = {
        "enabled": True, "running": True, "at": 500, "start": 0, "end": 1000, "passes": 3,
        "compared_bytes": 3500, "ended_ms": None, "found": 1, "repaired": 1, "waiting": 0,
        "last": last,
    }  # fmt: skip
    return {
        "kind": "NodeStatus", "version": 1, "node": name, "cluster": "demo", "group": "g1",
        "twinlog": "0.1.0", "uptime_seconds": 75.0, "role": role,
        "state": "active" if role == "master" else "streaming",
        "epoch": epoch, "leader": leader, "session": 3, "ready": True, "reasons": [],
        "writable": role == "master", "admission": None, "why": None, "in_sync": None,
        "in_sync_min": 2,
        "quarantined": None, "offsets": offsets, "peers": [], "scrub": scrub,
    }  # fmt: skip


def peer(name: str, *, lag: int, seconds: float, contact: float, in_sync: bool) -> Fields:
    """What the master knows of a slave."""
    return {
        "name": name, "role": "slave", "state": "streaming" if in_sync else "catching up",
        "why": None if in_sync else "1 MiB behind", "in_sync": in_sync, "acked": 10485760 - lag,
        "flushed": 10485760 - lag, "lag_bytes": lag, "lag_seconds": seconds,
        "contact_seconds": contact, "round_trip_seconds": 0.0006 if in_sync else None,
        "unacknowledged_bytes": 0 if in_sync else None, "slow": False,
    }  # fmt: skip


def healthy() -> dict[str, Fields]:
    """n1 is master, n2 in sync, n3 behind."""
    master = status("n1", role="master", end=10485760)
    master["in_sync"] = ["n1", "n2"]
    master["peers"] = [
        peer("n2", lag=0, seconds=0.0, contact=0.21, in_sync=True),
        peer("n3", lag=1 << 20, seconds=3.1, contact=0.42, in_sync=False),
    ]
    late = status("n3", role="slave", end=9437184)
    late["state"] = "catching up"
    return {"n1": master, "n2": status("n2", role="slave", end=10485760), "n3": late}


def register() -> Fields:
    """The coordinator's state that goes with `healthy`."""
    return {
        "register_id": "r", "revision": 12, "tag": 5, "epoch": 7, "leader": "n1",
        "leader_session": 3, "isr": {"n1": 3, "n2": 4}, "elr": {}, "reg": {"n1": [], "n2": []},
        "replicas": ["n1", "n2", "n3"], "priorities": {"n1": 100, "n2": 90, "n3": 80},
        "min_isr": 2, "ack": "received",
    }  # fmt: skip


HISTORY = [
    {"epoch": 6, "since_ms": NOW_MS - 90_000_000, "master": "n2", "start": 7340032,
     "reason": "failover", "by": "user alice", "lost": 40},
    {"epoch": 7, "since_ms": NOW_MS - 3_600_000, "master": "n1", "start": 9437184,
     "reason": "switchover", "by": "user alice", "lost": None},
]  # fmt: skip


class Terminal(io.StringIO):
    """A stdin or stdout that says it is a terminal."""

    def isatty(self) -> bool:
        """Say yes."""
        return True


def message(number: int) -> Message:
    """Message number ``number`` of queue 0 of ``orders``; number 2 is no text."""
    host = pack_host(("127.0.0.1", 7410))
    at, born = 4096 + 200 * number, NOW_MS - 5
    head = (100, 0, 0, 0, 0, number, at, 0, born, host, NOW_MS, host, 0, 0, 0)
    body = b"\xff\x00" if number == 2 else f'{{"id": {number}}}'.encode()
    tag = {"TAGS": "paid"} if number else {}
    text = encode_properties({"KEYS": f"k{number}", **tag, "colour": "red", "TL_SEQ": "x"})
    return Message("orders", 0, number, at, body, born, NOW_MS, (head, body, text, "orders"))


class FakeProducer:
    """A producer that stores everything at once, in queue 1."""

    def __init__(self) -> None:
        self.section = Section("orders", 1, producer=1, epoch=0, sequence=0, due=0.0)

    def __enter__(self) -> FakeProducer:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def send(self, body: bytes, **_: object) -> Section:
        """Take one record."""
        self.section.count += 1
        return self.section

    def flush(self) -> None:
        """Store everything."""
        self.section.state = State.STORED
        self.section.queue_offset = 10


class FakeMessages:
    """What a read gives: an iterator that knows who served it."""

    def __init__(self, messages: Iterator[Message]) -> None:
        self._messages = messages
        self.source = Source("n1", "master")

    def __iter__(self) -> Iterator[Message]:
        """Yield them."""
        return self._messages


GROUP: dict[str, object] = {
    "name": "billing",
    "mode": "shared",
    "members": 1,
    "topics": ["orders"],
    "lag": 5,
    "leased": 2,
    "waiting": 1,
    "settings": {
        "mode": "shared",
        "start": "end",
        "attempts": 16,
        "retry": [10_000, 60_000],
        "invisible_ms": 60_000,
        "dead_letter": True,
        "filters": {"orders": "tags: paid"},
    },
    "queues": [
        {
            "topic": "orders", "queue": queue, "name": "", "share": queue + 1, "low": 2, "next": 4,
            "start": 0, "end": 3 * queue + 3, "lag": 2, "leased": 1, "waiting": 0, "runs": 1,
        }
        for queue in range(2)
    ],
    "people": [
        {
            "member": 7_205_759_403_792, "name": "worker-1", "address": "10.0.0.9:50112",
            "since_ms": NOW_MS, "heard_ms": 1200, "leased": 2,
        }
    ],
}  # fmt: skip
"""One group, as a node tells of it."""


class FakeClient:
    """The part of a client that commands use, over two topics and three messages."""

    def __init__(self) -> None:
        self.known = {"orders": 4, "rmq_sys_TWINLOG_META": 1}

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def topics(self, *, timeout: float | None = None) -> dict[str, int]:
        """Queues by topic."""
        return self.known

    def call(
        self, node: str, kind: Type, fields: Mapping[str, object], *, timeout: float | None = None
    ) -> Frame:
        """METADATA of one topic, or a page of topics with one topic on it."""
        assert node in ("master", "any")
        if kind is Type.METADATA:
            epochs = [[6, 0], [7, 4200]]
            return Frame(kind, fields={"topics": dict(self.known), "nodes": [], "epochs": epochs})
        if kind is Type.OFFSETS:
            places = self.offsets(str(fields["topic"])).items()
            return Frame(kind, fields={"queues": {q: [a, b, None] for q, (a, b) in places}})
        if kind is Type.GROUP:
            return Frame(kind, fields=self._group(fields))
        if kind is Type.WAITING:
            if fields["what"] != "halves":
                return Frame(kind, fields=waiting_answer(fields))
            rows, more = HALVES[:2], HALVES[2][0]
            if fields["first"]:
                rows, more = HALVES[2:], -1
            return Frame(kind, fields={"rows": rows, "next": more, "now_ms": NOW_MS, "epoch": 7})
        if kind is Type.END:
            assert (fields["group"], fields["halves"]) == ("shop", [12, 15])
            return Frame(kind, fields={"outcome": fields["outcome"], "epoch": 7})
        if fields["op"] == "show":
            return Frame(kind, fields={"terms": self.terms(str(fields["name"]))})
        if fields["op"] == "alter":
            assert fields["plan"] is True
            before = self.terms("orders")
            grown = {"write_queues": fields["queues"]} if "queues" in fields else {}
            terms = before | grown | {key: fields[key] for key in before if key in fields}
            found = {"before": before, "terms": terms, "groups": ["billing"], "altered": False}
            return Frame(kind, fields=found)
        if fields["op"] == "delete":
            assert fields["plan"] is True
            groups = ["billing"] if fields["name"] == "orders" else []
            return Frame(kind, fields={"deleted": False, "groups": groups})
        assert (kind, fields["op"]) == (Type.TOPIC, "list")
        names = [name for name in sorted(self.known) if name > str(fields["after"])]
        answer: dict[str, object] = {
            "topics": {name: self.known[name] for name in names[:1]},
            "messages": {
                name: sum(end - start for start, end in self.offsets(name).values())
                for name in names[:1]
            },
        }
        if names[1:]:
            answer["more"] = names[0]
        return Frame(kind, fields=answer)

    def _group(self, fields: Mapping[str, object]) -> dict[str, object]:
        """What a node says of one group, ``billing``, or of its change."""
        if fields["op"] == "list":
            return {"groups": [GROUP]}
        if fields["op"] == "show":
            if fields["name"] != "billing":
                raise UnknownGroup(f"there is no group {fields['name']}")
            return {"group": GROUP}
        given = cast("list[list[object]]", fields.get("positions") or [])
        return {"changed": True, "positions": [[row[0], row[1], 2, row[2]] for row in given]}

    def create_topic(self, name: str, queues: int, *, batch: bool = False) -> bool:
        """Make a topic."""
        assert not batch or name not in self.known
        new = name not in self.known
        self.known[name] = queues
        return new

    def offsets(self, name: str) -> dict[int, tuple[int, int]]:
        """Start and end of each queue."""
        if name not in self.known:
            raise UnknownTopic.named(name)
        return {queue: (queue, 3 * queue + 3) for queue in range(self.known[name])}

    def terms(self, name: str) -> dict[str, object]:
        """What can be altered of a topic."""
        queues = self.known[name]
        rates = {"records_per_second": 1000, "bytes_per_second": 0}
        return {"queues": queues, "write_queues": queues, "permission": 6, **rates}

    def alter_topic(self, name: str, **changes: object) -> bool:
        """Alter a topic."""
        return bool(changes)

    def delete_topic(self, name: str, *, consumed: bool = False) -> bool:
        """Delete a topic."""
        return self.known.pop(name, None) is not None

    def send(self, topic: str, body: bytes, **_: object) -> Receipt:
        """Store a message."""
        return Receipt(topic, 3, 1187, 4096, 7, ("n1", "n2"))

    def producer(self, topic: str, **_: object) -> FakeProducer:
        """A producer."""
        return FakeProducer()

    def read(self, topic: str, range: str, **_: object) -> FakeMessages:
        """Three messages, whatever was asked; of a group that it was given one and gave it up."""
        if topic == SYSTEM_TOPIC_GROUP:
            return FakeMessages(iter([rows_record()]))
        if topic.startswith(DEAD_PREFIX):
            return FakeMessages(iter([dead_letter(message(1))]))
        return FakeMessages(message(number) for number in range_of(3))

    def get(self, address: str, **_: object) -> Message:
        """One message."""
        at = int(address[4:]) if address.startswith("log@") else 0
        return timed_message(at) if 9_000 <= at < 10_000 else message(1)

    def find(self, topic: str, key: str, *, unique: bool, **_: object) -> Finding:
        """The messages of key k1: two."""
        found = (message(2), message(1)) if key == "k1" and not unique else ()
        return Finding(found, key != "many", "n1", 0)

    def history(self, group: str, *, since: str, **_: object) -> GroupSteps:
        """What `rows_record` tells."""
        told = Telling(group, since)
        if group == "billing":
            told.know({"group": GROUP})
        else:
            told.missing = UnknownGroup(f"there is no group {group}")
        return GroupSteps(told, FakeMessages(iter([rows_record()])))


def rows_record() -> Message:
    """One record of rows: a worker of billing joins, takes three messages, gives one up."""
    worker = 7_205_759_403_792
    return record_of(SYSTEM_TOPIC_GROUP, encode_rows([
        MemberRow("billing", worker, "worker-1", 1),
        LeaseRow(1, 3, 0, 3, worker, 1, NOW_MS + 60_000, 2),
        AckRow(1, 3, 0, 0),
        GivenUpRow(1, 3, 1, 1, DEAD_LETTER),
        ReleaseRow(1, 3, 2, 2, NOW_MS + 10_000, 0),
        ResetRow(2, 40, "a bad batch"),
    ]))  # fmt: skip


def dead_letter(of: Message) -> Message:
    """The copy of a message that its group gave up."""
    origin = {"DLQ_ORIGIN_MESSAGE_ID": of.record.message_id}
    return record_of("%DLQ%billing", of.body, **origin)


def record_of(topic: str, body: bytes, **properties: str) -> Message:
    """The first record of queue 0 of a topic."""
    host = pack_host(("127.0.0.1", 7410))
    head = (100, 0, 0, 0, 0, 0, 9000, 0, NOW_MS, host, NOW_MS, host, 0, 0, 0)
    text = encode_properties(properties)
    return Message(topic, 0, 0, 9000, body, NOW_MS, NOW_MS, (head, body, text, topic))


def range_of(count: int) -> list[int]:
    """Numbers from 0."""
    return list(range(count))


@dataclass
class FakeCluster:
    """Answers by node; nothing listens at those that are `down`, `silent` ones do not answer.

    `asked` is every question in order; `owner` is the cluster that the coordinator belongs to.
    """

    directory: Path
    nodes: dict[str, Fields] = field(default_factory=healthy)
    state: Fields | None = field(default_factory=register)
    owner: str = "demo"
    down: set[str] = field(default_factory=set[str])
    silent: set[str] = field(default_factory=set[str])
    asked: list[tuple[str, Type, Mapping[str, object]]] = field(default_factory=list)
    errors: dict[Type, TwinlogError] = field(default_factory=dict[Type, TwinlogError])
    client: object = None
    alarm: str | None = None
    waiting: list[str] = field(default_factory=list[str])
    host: str = "127.0.0.1"

    def ask(
        self, address: str, kind: int, fields: Mapping[str, object], timeout: float | None
    ) -> Fields:
        """Answer as the process at ``address`` would."""
        address = address.replace(str(Address(self.host, 0))[:-2], "127.0.0.1")
        name = "coordinator" if address == COORDINATOR else ADDRESSES[address]
        self.asked.append((name, Type(kind), fields))
        if name in self.down:
            raise Unavailable(f"{name} refused the connection") from ConnectionRefusedError()
        if name in self.silent:
            raise Unavailable(f"{name} did not answer within 2 s")
        if Type(kind) in self.errors:
            raise self.errors[Type(kind)]
        match Type(kind):
            case Type.STATUS:
                return self.nodes[name]
            case Type.CO_READ:
                return {"state": self.state}
            case Type.CO_HISTORY:
                return {"history": HISTORY}
            case Type.CO_STATUS:
                own = {"read_only": self.alarm, "waiting_for": self.waiting}
                return {"cluster": self.owner, "twinlog": "0.1.0", "level": 2, **own}
            case Type.CO_CALL:
                return self.on_call(fields["op"])
            case Type.ADMIN:
                return self.on_order(fields)
            case Type.WAITING:
                return {**waiting_answer(fields), "node": name, "age_ms": 4_000}
            case other:
                raise AssertionError(f"unexpected {other}")

    def on_call(self, operation: object) -> Fields:
        """Carry out a change of the register: the target becomes master of the next epoch."""
        assert isinstance(operation, dict)
        if operation["op"] in ("failover", "unclean-elect", "adopt"):
            self.become_master(str(operation.get("to") or operation.get("node")))
        elif self.state is not None:
            self.state = {**self.state, "revision": 13}
        return {"ok": True, "state": self.state}

    def on_order(self, fields: Mapping[str, object]) -> Fields:
        """Carry out an order to a node."""
        if fields["op"] == "transfer":
            self.become_master(str(fields["to"]))
            return {"transferred": True}
        return {"stopping": True}

    def become_master(self, name: str) -> None:
        """Move the role."""
        self.nodes = {
            other: status(other, role="master" if other == name else "slave", end=10485760,
                          epoch=8, leader=name)
            for other in self.nodes
        }  # fmt: skip
        self.nodes[name]["in_sync"] = sorted(self.nodes)
        self.nodes[name]["peers"] = [
            peer(other, lag=0, seconds=0.0, contact=0.1, in_sync=True)
            for other in sorted(self.nodes)
            if other != name
        ]
        if self.state is not None:
            self.state = {**self.state, "epoch": 8, "leader": name}

    def run(
        self,
        *words: str,
        stdin: str = "",
        terminal: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> tuple[int, str, str]:
        """Call the command line; returns exit code, stdout, stderr."""
        path = self.directory / "cluster.toml"
        if not path.exists():
            text = CONFIG.replace("127.0.0.1", self.host)
            if self.host != "127.0.0.1":
                text += f'[coordinator]\nendpoints = ["{Address(self.host, 7400)}"]\n'
            path.write_text(text, encoding="utf-8")
        out, err = (Terminal(), io.StringIO()) if terminal else (io.StringIO(), io.StringIO())
        variables = {
            "TWINLOG_CONFIG": str(path),
            "TWINLOG_TIMEOUT": "10m",  # a machine that stands still is no outcome
            **(environment or {}),
        }
        printer = None
        try:
            options, rest = split(words, variables)
            printer = Printer(options, out, err)
            context = Context(
                options=options,
                printer=printer,
                environment=variables,
                stdin=Terminal(stdin) if terminal else io.StringIO(stdin),
                question=lambda *asked: self.ask(*asked[:4]),
                open_client=lambda endpoints, timeout, named, tls: self.client,  # type: ignore[arg-type, return-value]
                wall_ms=lambda: NOW_MS,
            )
            code = run(rest, context)
        except BaseException as error:
            code = report(error, printer or Printer(split([], {})[0], out, err))
        return code, out.getvalue(), err.getvalue()
