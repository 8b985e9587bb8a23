"""Queues of messages in memory, for decisions about groups without a store."""

from __future__ import annotations

from storage.messaging.groups import START_BEGIN, Group
from storage.read.filters import PropertyFilter
from storage.read.result import ReadResult, ReadStatus
from twinlog.errors import CorruptionError, UnknownTopic
from twinlog.format.record import encode, java_hash


class Queues:
    """A topic's queues; implements what `node.leases.leasing` needs of a store."""

    def __init__(self, topic: str = "t", queues: int = 1) -> None:
        self.topic = topic
        self.records: list[list[bytes]] = [[] for _ in range(queues)]
        self.tags: list[list[str]] = [[] for _ in range(queues)]
        self.starts = [0] * queues
        self.damaged: set[tuple[int, int]] = set()
        """(queue, queue offset) of records that cannot be read."""

    def send(self, count: int, queue: int = 0, tag: str = "") -> None:
        """Store messages."""
        for _ in range(count):
            offset = len(self.records[queue])
            properties = {"TAGS": tag} if tag else {}
            data = encode(
                self.topic, queue, b"%d" % offset, queue_offset=offset, properties=properties
            )
            self.records[queue].append(data)
            self.tags[queue].append(tag)

    def queues(self, topic: str) -> int | None:
        """See `node.leases.leasing.Records`."""
        return len(self.records) if topic == self.topic else None

    def queue_range(self, topic: str, queue: int) -> tuple[int, int]:
        """See `node.leases.leasing.Records`."""
        if topic != self.topic:
            raise UnknownTopic.named(topic)
        return self.starts[queue], len(self.records[queue])

    def offset_at(self, topic: str, queue: int, ms: int) -> int:
        """See `node.leases.leasing.Records`."""
        return self.starts[queue]

    def first_offset(self, group: Group, topic: str, queue: int) -> int | None:
        """See `node.leases.leasing.Starts`."""
        return self.starts[queue] if group.start == START_BEGIN else len(self.records[queue])

    def read(
        self,
        topic: str,
        queue: int,
        queue_offset: int,
        *,
        max_bytes: int,
        max_records: int,
        tag_hashes: frozenset[int] | None = None,
        where: PropertyFilter | None = None,
    ) -> ReadResult:
        """See `node.leases.leasing.Records`."""
        start, end = self.queue_range(topic, queue)
        if queue_offset < start:
            return ReadResult(ReadStatus.BEFORE_START, next=start, start=start, end=end)
        if queue_offset >= end:
            return ReadResult(ReadStatus.NONE, next=queue_offset, start=start, end=end)
        slices: list[memoryview] = []
        size, at = 0, queue_offset
        while at < end and len(slices) < max_records:
            if (queue, at) in self.damaged:
                if slices:
                    break
                raise CorruptionError(f"record {at} of queue {queue} is damaged")
            data = self.records[queue][at]
            if tag_hashes is None or java_hash(self.tags[queue][at]) in tag_hashes:
                if slices and size + len(data) > max_bytes:
                    break
                size += len(data)
                slices.append(memoryview(data))
            at += 1
        return ReadResult(ReadStatus.FOUND, slices, len(slices), at, start, end)
