"""The rows of groups, read for reports from a store directory or a cluster; and its groups now.

They are one queue, which this process reads while Spark reads the messages. A store that has no
rows, as RocketMQ's, has nothing to say; of an archive they are not read.

Not here: what they say (`twinlog.spark.jobs.reports.groups`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

from twinlog.client.blocking import Client
from twinlog.errors import UnknownGroup
from twinlog.format.group_history import History
from twinlog.format.system_topics import SYSTEM_TOPIC_GROUP
from twinlog.spark.jobs.reports.groups import Told
from twinlog.store.reader import StoreReader
from twinlog.wire.types import Type

NAME = "twinlog-spark"


def rows_told(path: Path | None, servers: str, history: History) -> Iterator[Told]:
    """Yield the records of rows, oldest first; an archive alone has nothing to yield.

    ``history`` takes what a cluster says of its groups now first: rows that retention has deleted
    named their queues and members.

    Raises:
        Unavailable: No node answered.
    """
    if path is not None:
        with StoreReader(path) as store:
            for queue in store.queues():
                for entry in queue.entries() if queue.topic == SYSTEM_TOPIC_GROUP else ():
                    record = store.record_at(entry.log_offset)
                    if record is not None:
                        yield record.body, record.store_timestamp
    elif servers:
        with Client(servers, name=NAME) as client:
            for document in documents(client):
                history.know(document)
            for message in client.read(SYSTEM_TOPIC_GROUP, "start:"):
                yield message.body, message.store_timestamp


def documents(client: Client) -> Iterator[Mapping[str, object]]:
    """Yield what a cluster says of each of its groups now.

    Raises:
        Unavailable: No node answered.
    """
    after: object = ""
    while isinstance(after, str):
        page = client.call("any", Type.GROUP, {"op": "list", "after": after}).fields
        after = page.get("more")
        for group in maps(page.get("groups")):
            try:
                fields = {"op": "show", "name": str(group.get("name"))}
                answer = client.call("any", Type.GROUP, fields)
            except UnknownGroup:  # deleted meanwhile
                continue
            yield cast("dict[str, object]", answer.fields.get("group") or {})


def maps(value: object) -> list[dict[str, object]]:
    """Return a field that is a list of maps; empty if it is not there."""
    return cast("list[dict[str, object]]", value) if isinstance(value, list) else []
