"""More topics than fit a frame: everything that lists or counts them still works."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.reads import StoreReads
from tests.fixtures.cluster import running_cluster
from twinlog import AsyncClient
from twinlog.wire import frames

pytestmark = pytest.mark.processes

MANY = {f"topic-{number:06d}-".ljust(127, "x"): 1 for number in range(9000)}
"""Their names alone are larger than the fields of a frame may be."""


async def test_nine_thousand_topics_of_127_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """STATUS counts them; METADATA and the list of topics come in pages; clients see them all."""
    real, real_range = StoreReads.topics, StoreReads.queue_range

    def topics(self: StoreReads) -> dict[str, int]:
        return {**real(self), **MANY}

    def queue_range(self: StoreReads, topic: str, queue: int) -> tuple[int, int]:
        return (0, 0) if topic in MANY else real_range(self, topic, queue)

    monkeypatch.setattr(StoreReads, "topics", topics)
    monkeypatch.setattr(StoreReads, "queue_range", queue_range)
    async with running_cluster(tmp_path, nodes=1) as cluster:
        host, port = cluster.address("n1")
        async with AsyncClient(f"{host}:{port}") as client:
            found = await client.topics()
            assert MANY.items() <= found.items()
            assert (await client.metadata()).topics == found
            status = await client.call("n1", frames.Type.STATUS)
            assert status.fields["topics"] == len(found)
            listed: dict[str, object] = {}
            after: object = ""
            while isinstance(after, str):
                fields = {"op": "list", "after": after}
                page = (await client.call("master", frames.Type.TOPIC, fields)).fields
                assert isinstance(page["messages"], dict)
                listed |= page["messages"]
                after = page.get("more")
            assert listed == dict.fromkeys(found, 0)
