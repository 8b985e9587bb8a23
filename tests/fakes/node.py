"""A cluster small enough to hold in the head: nodes in threads, one shared log, faults on order.

A `FakeNode` speaks frames on loopback and answers from the `FakeCluster`'s one log (all nodes see
the same; nothing is replicated). Producers are deduplicated by the rule of the real store. A test
puts faults in front with ``node.faults``: each is offered every request first and may answer it
otherwise, drop the connection, keep it for later, or let it pass.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from twinlog import kernels
from twinlog.consumer.core import FOLLOW_WAIT_MS
from twinlog.format import record
from twinlog.wire import frames
from twinlog.wire.frames import Frame, FrameReader, Type

Fields = dict[str, object]
STORED, DUPLICATE, REFUSED, UNKNOWN = range(4)


class Drop(Exception):
    """Raised by a fault: close the connection without an answer."""


class Keep(Exception):
    """Raised by a fault: no answer now; the test answers later with `Arrived.answer`."""


@dataclass
class Line:
    """What the cluster remembers of one producer in one queue."""

    epoch: int = 0
    next: int = 0
    known: dict[int, tuple[int, int]] = field(default_factory=dict)


@dataclass
class FakeCluster:
    """Topics, records and who is master, shared by all nodes."""

    name: str = "demo"
    topics: dict[str, int] = field(default_factory=lambda: {"orders": 4})
    epoch: int = 7
    epochs: list[list[int]] = field(default_factory=lambda: [[7, 0]])
    leader: str | None = "n1"
    nodes: dict[str, FakeNode] = field(default_factory=dict)
    queues: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    lines: dict[tuple[int, str, int], Line] = field(default_factory=dict)
    log: list[bytes] = field(default_factory=list)
    end: int = 0
    now_ms: int = 1_700_000_000_000
    lock: threading.RLock = field(default_factory=threading.RLock)
    message_size_max: int = 4 << 20
    producers: int = 0
    parked: list[Arrived] = field(default_factory=list)
    starts: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])
    """What retention has left of a queue: its first queue offset."""

    def __post_init__(self) -> None:
        """Make the condition that goes with the lock; told when a read is parked."""
        self.changed = threading.Condition(self.lock)

    @property
    def servers(self) -> str:
        """The addresses of all nodes, with commas between, as options name them."""
        return ",".join(node.address for node in self.nodes.values())

    def wait_parked(self, node: str, count: int) -> None:
        """Wait until so many reads are parked at a node; a minute at most."""
        with self.changed:
            assert self.changed.wait_for(
                lambda: sum(each.node.name == node for each in self.parked) == count, 60
            ), f"{count} reads at {node}"

    def add_node(self, name: str) -> FakeNode:
        """Start a node."""
        self.nodes[name] = FakeNode(self, name)
        return self.nodes[name]

    def fail_over(self, to: str, start: int | None = None) -> None:
        """Make a node master of the next epoch, which begins at the log's end unless told."""
        with self.lock:
            self.leader, self.epoch = to, self.epoch + 1
            self.epochs = [*self.epochs, [self.epoch, self.end if start is None else start]]

    def close(self) -> None:
        """Stop all nodes and wait for their threads."""
        for node in self.nodes.values():
            node.close()

    def bodies(self, topic: str = "orders") -> list[list[bytes]]:
        """Return the bodies by queue."""
        with self.lock:
            return [
                [record.decode(data).body for data in self.queues.get((topic, queue), [])]
                for queue in range(self.topics[topic])
            ]

    def append(self, row: list[object], data: bytes) -> list[object]:
        """Store one section, or say why not."""
        topic, queue, count, _, producer, epoch, sequence = row
        assert isinstance(topic, str)
        assert isinstance(queue, int)
        assert isinstance(count, int)
        assert isinstance(producer, int)
        assert isinstance(epoch, int)
        assert isinstance(sequence, int)
        if topic not in self.topics:
            return [REFUSED, -1, -1, 0, "unknown-topic", f"there is no topic {topic}", -1]
        bad = kernels.check_section(
            data, 0, len(data), count, topic.encode(), queue, body_max=1 << 22, family=4
        )
        if bad is not None:
            return [REFUSED, -1, -1, 0, "record-refused", kernels.REFUSALS[bad[1]], bad[0]]
        line = self.lines.setdefault((producer, topic, queue), Line())
        first = record.decode(data)
        assert first.properties["TL_SEQ"] == f"{producer:016x}.{epoch}.{sequence}.{count}"
        if epoch > line.epoch:
            line.epoch, line.next, line.known = epoch, 0, {}
        if sequence in line.known:
            queue_offset, log_offset = line.known[sequence]
            return [DUPLICATE, queue_offset, log_offset, self.end, "", "", -1]
        if epoch < line.epoch or sequence != line.next:
            return [REFUSED, -1, -1, 0, "out-of-sequence", f"expected {line.next}", -1]
        stored = self.queues.setdefault((topic, queue), [])
        found = [STORED, len(stored), self.end, self.end + len(data), "", "", -1]
        line.known[sequence] = (len(stored), self.end)
        line.next += count
        self._store(stored, bytearray(data))
        return found

    def _store(self, stored: list[bytes], data: bytearray) -> None:
        kernels.patch_section(
            data,
            0,
            len(data),
            log_offset=self.end,
            queue_offset=len(stored),
            store_timestamp=self.now_ms,
            store_host=record.pack_host(("127.0.0.1", 7410)),
        )
        at = 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 4], "big")
            stored.append(bytes(data[at : at + size]))
            self.log.append(stored[-1])
            at += size
        self.end += len(data)


@dataclass
class Arrived:
    """One request as a fault sees it."""

    node: FakeNode
    frame: Frame
    send: Callable[[Frame], None]
    raw: Callable[[bytes], None]

    def answer(self, fields: Fields, payload: bytes = b"") -> None:
        """Answer it, now or later."""
        self.send(frames.answer(self.frame, fields, payload, names=self.node.names))

    def refuse(
        self, code: str, text: str = "no", *, retryable: bool = False, **facts: object
    ) -> None:
        """Answer it with an error."""
        error: Fields = {"code": code, "text": text, "hint": None, "retryable": retryable, **facts}
        self.send(frames.refusal(self.frame, error, names=self.node.names))

    def cut(self, count: int) -> None:
        """Carry it out, send only the first bytes of the answer."""
        self.send = lambda frame: self.raw(frames.encode_whole(frame)[:count])
        self.serve()

    def serve(self) -> None:
        """Answer it as a node without faults does."""
        self.node.serve(self)


Fault = Callable[[Arrived], bool]
"""Returns True when it dealt with the request."""


def dropping(kind: Type, number: int) -> Fault:
    """Return a fault: the connection ends at the request of that number and kind, from 1."""
    met: list[int] = []

    def fault(arrived: Arrived) -> bool:
        if arrived.frame.type == kind:
            met.append(1)
            if len(met) == number:
                raise Drop
        return False

    return fault


class FakeNode:
    """One node; `seen` are the requests it got, `faults` stand before its answers."""

    def __init__(self, cluster: FakeCluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.names = frames.names_crc("demo", "g1")
        self.faults: list[Fault] = []
        self.seen: list[Frame] = []
        self.kept: list[Arrived] = []
        self.role = "slave"
        self.behind: set[int] = set()
        self.own_starts: dict[tuple[str, int], int] = {}
        """Where it lost more of a queue's front than the cluster."""
        self.late = 0
        self.age_ms = 20
        """How old its data is, while it is not the master."""
        self.settled = True
        """As master: whether it knows of all that was acknowledged that it is confirmed."""
        self.open = 0
        """Connections that neither end has closed."""
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self.greeting = b""
        self._start(self._accept, self._listener)

    def close(self) -> None:
        """Stop listening and break every connection."""
        for each in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), thread.name
        for each in (self._listener, *self._sockets):
            each.close()

    def wait_open(self, most: int) -> None:
        """Wait until at most so many connections are open; a minute at most."""
        with self.cluster.changed:
            assert self.cluster.changed.wait_for(lambda: self.open <= most, 60), self.open

    def _opened(self, change: int) -> None:
        with self.cluster.changed:
            self.open += change
            self.cluster.changed.notify_all()

    def count(self, kind: Type) -> int:
        """Return how many requests of a kind came."""
        return sum(frame.type == kind for frame in self.seen)

    def _start(self, action: Callable[[socket.socket], None], sock: socket.socket) -> None:
        thread = threading.Thread(target=action, args=(sock,), name=f"{self.name} {action}")
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            self._sockets.append(sock)
            self._opened(1)
            self._start(self._converse, sock)

    def _converse(self, sock: socket.socket) -> None:
        reader = FrameReader()
        sending = threading.Lock()

        def raw(data: bytes) -> None:
            with sending, contextlib.suppress(OSError):
                sock.sendall(data)

        def send(frame: Frame) -> None:
            raw(frames.encode_whole(frame))

        try:
            if self.greeting:
                raw(self.greeting)
                raise Drop
            while data := sock.recv(1 << 18):
                reader.feed(data)
                while (frame := reader.next()) is not None:
                    self._one(Arrived(self, frame, send, raw))
        except (OSError, Drop, frames.FrameError):
            pass
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        self._opened(-1)

    def _one(self, arrived: Arrived) -> None:
        self.seen.append(arrived.frame)
        for fault in list(self.faults):
            try:
                if fault(arrived):
                    return
            except Keep:
                self.kept.append(arrived)
                return
        self.serve(arrived)

    def serve(self, arrived: Arrived) -> None:
        """Answer as a healthy node."""
        with self.cluster.lock:
            handlers: Mapping[int, Callable[[Arrived], None]] = {
                Type.HELLO: self._hello,
                Type.METADATA: self._metadata,
                Type.APPEND: self._append,
                Type.READ: self._read,
                Type.OFFSETS: self._offsets,
                Type.TOPIC: self._topic,
                Type.GET: self._get,
                Type.FIND: self._find,
                Type.PRODUCER: self._producer,
            }
            handlers[arrived.frame.type](arrived)

    @property
    def confirm(self) -> int:
        """What it knows to be confirmed: all but the last `late` records."""
        log = self.cluster.log
        return record.decode(log[-self.late]).log_offset if self.late else self.cluster.end

    @property
    def master(self) -> bool:
        """Whether it is."""
        return self.cluster.leader == self.name

    def is_too_old(self, fields: Fields) -> bool:
        """Whether it is a slave whose data is older than the reader accepts, or than 5 s."""
        limit = fields.get("max_age_ms")
        return not self.master and self.age_ms > (limit if isinstance(limit, int) else 5000)

    def _hello(self, arrived: Arrived) -> None:
        arrived.answer(
            {
                "version": 1,
                "features": 0,
                "node": self.name,
                "cluster": self.cluster.name,
                "group": "g1",
                "family": 4,
                "segment_size": 16 << 20,
            }
        )

    def _metadata(self, arrived: Arrived) -> None:
        cluster = self.cluster
        nodes = [
            {
                "name": node.name,
                "group": "g1",
                "host": "127.0.0.1",
                "client_port": node.port,
                "role": "master" if node.master else "slave",
                "state": "serving",
                "age": 0.5,
            }
            for node in cluster.nodes.values()
        ]
        arrived.answer(
            {
                "cluster": cluster.name,
                "group": "g1",
                "epoch": cluster.epoch,
                "leader": cluster.leader,
                "nodes": nodes,
                "topics": dict(cluster.topics),
                "family": 4,
                "message_size_max": cluster.message_size_max,
                "epochs": [[e, s] for e, s in cluster.epochs if not self.late or s < self.confirm],
                "confirm": self.confirm,
            }
        )

    def _append(self, arrived: Arrived) -> None:
        cluster = self.cluster
        if not self.master:
            leader = cluster.nodes.get(cluster.leader or "")
            facts = {"host": "127.0.0.1", "port": leader.port} if leader else {}
            arrived.refuse(
                "not-master", "not the master", retryable=True, epoch=cluster.epoch, **facts
            )
            return
        results, at = [], 0
        sections = arrived.frame.fields["sections"]
        assert isinstance(sections, list)
        for row in sections:
            results.append(cluster.append(row, bytes(arrived.frame.payload[at : at + row[3]])))
            at += row[3]
        arrived.answer(
            {"results": results, "confirmed_by": [self.name, "n9"], "epoch": cluster.epoch}
        )
        parked, cluster.parked = cluster.parked, []
        for each in parked:
            each.serve()

    def _read(self, arrived: Arrived) -> None:
        fields = arrived.frame.fields
        topic, queue, offset = fields["topic"], fields["queue"], fields["offset"]
        assert isinstance(topic, str)
        assert isinstance(queue, int)
        assert isinstance(offset, int)
        stored = self.cluster.queues.get((topic, queue), [])
        if queue in self.behind:
            stored = stored[: len(stored) // 2]
        count, limit = fields["max_records"], fields["max_bytes"]
        assert isinstance(count, int)
        assert isinstance(limit, int)
        end, taken, size = len(stored), list[bytes](), 0
        for data in stored[offset : offset + count]:
            if taken and size + len(data) > limit:
                break
            taken.append(data)
            size += len(data)
        status = "found" if taken else "none" if offset == end else "past-end"
        if status == "none" and fields["wait_ms"] == FOLLOW_WAIT_MS:
            self.cluster.parked.append(arrived)
            self.cluster.changed.notify_all()
            return
        if topic not in self.cluster.topics:
            status = "unknown-topic"
        if self.is_too_old(fields):
            status, taken = "stale", []
        start = max(each.get((topic, queue), 0) for each in (self.cluster.starts, self.own_starts))
        if offset < start and status != "stale":
            status, taken = "before-start", []
        answer: Fields = {
            "status": status,
            "next": offset + len(taken),
            "start": start,
            "end": end,
            "count": len(taken),
            "confirm": self.cluster.end,
            "age_ms": self.age_ms,
            "node": self.name,
            "role": "master" if self.master else "slave",
            "redirect": None,
        }
        tags = fields["tags"]
        if isinstance(tags, list):
            taken = [data for data in taken if record.decode(data).tags_code in tags]
        arrived.answer(answer, b"".join(taken))

    def _offsets(self, arrived: Arrived) -> None:
        topic = arrived.frame.fields["topic"]
        assert isinstance(topic, str)
        if topic not in self.cluster.topics:
            doubt = {} if self.master else {"settled": False}
            arrived.refuse("unknown-topic", f"there is no topic {topic}", **doubt)
            return
        wanted = arrived.frame.fields["queues"]
        numbers = wanted if isinstance(wanted, list) else range(self.cluster.topics[topic])
        at_ms = arrived.frame.fields["at_ms"]
        queues: dict[int, list[object]] = {}
        for queue in numbers:
            stored = self.cluster.queues.get((topic, queue), [])
            if self.late:
                known = self.confirm
                stored = [data for data in stored if record.decode(data).log_offset < known]
            at = None
            if isinstance(at_ms, int):
                at = sum(record.decode(data).store_timestamp < at_ms for data in stored)
            start = self.cluster.starts.get((topic, queue), 0)
            queues[queue] = [start, len(stored), None if at is None else max(at, start)]
        role = "master" if self.master else "slave"
        answer: dict[str, object] = {"queues": queues, "confirm": self.confirm, "age_ms": 0}
        arrived.answer({**answer, "role": role, "settled": self.master and self.settled})

    def _topic(self, arrived: Arrived) -> None:
        name, queues = arrived.frame.fields["name"], arrived.frame.fields["queues"]
        assert isinstance(name, str)
        assert isinstance(queues, int)
        created = name not in self.cluster.topics
        self.cluster.topics.setdefault(name, queues)
        arrived.answer({"created": created, "queues": self.cluster.topics[name]})

    def _get(self, arrived: Arrived) -> None:
        wanted, at = arrived.frame.fields["log_offset"], 0
        for data in self.cluster.log:
            if at == wanted:
                host = arrived.frame.fields.get("host")
                stored_by = record.decode(data).store_host
                if host not in (None, record.pack_host(("127.0.0.1", 7410))):
                    arrived.answer({"status": "other-host", "stored_by": stored_by})
                    return
                arrived.answer({"status": "found"}, data)
                return
            at += len(data)
        arrived.answer({"status": "none"})

    def _find(self, arrived: Arrived) -> None:
        """Two records at most, by key alone: the client has to ask again for more."""
        fields = arrived.frame.fields
        if fields["topic"] not in self.cluster.topics:
            arrived.refuse("unknown-topic", f"there is no topic {fields['topic']}")
            return
        if self.is_too_old(fields):
            age = {"age_ms": self.age_ms, "node": self.name}
            arrived.refuse("stale", "too old", retryable=True, **age)
            return
        found: list[bytes] = []
        for data in reversed(self.cluster.log):
            one = record.decode(data)
            fits = fields["begin"] <= one.store_timestamp <= (fields["end"] or 1 << 62)
            below = fields["before"] is None or one.log_offset < fields["before"]
            if one.topic == fields["topic"] and fits and below and fields["key"] in one.keys:
                found.append(data)
        most = min(fields["max"], 2)
        arrived.answer(
            {"count": len(found[:most]), "more": len(found) > most, "complete": True,
             "confirm": self.cluster.end, "age_ms": self.age_ms, "node": self.name,
             "settled": self.master, "role": "master" if self.master else "slave"},
            b"".join(found[:most]),
        )  # fmt: skip

    def _producer(self, arrived: Arrived) -> None:
        self.cluster.producers += 1
        arrived.answer({"producer": 0x1000 + self.cluster.producers, "epoch": 0})
