"""Reading with filters: what the node left out, what the client still compares."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.fakes.node import Arrived, FakeCluster
from twinlog import Client
from twinlog.filters.sql92 import FilterError
from twinlog.format.messages import Message
from twinlog.format.record import java_hash
from twinlog.wire.frames import Type


def bodies(messages: Iterator[Message]) -> list[bytes]:
    """Bodies in order."""
    return [message.body for message in messages]


def put(cluster: FakeCluster, fault: Callable[[Arrived], bool]) -> None:
    """Put a fault in front of every node."""
    for node in cluster.nodes.values():
        node.faults.append(fault)


def asked(cluster: FakeCluster) -> list[dict[str, object]]:
    """Remember the fields of every READ; nothing is answered differently."""
    seen: list[dict[str, object]] = []

    def look(arrived: Arrived) -> bool:
        if arrived.frame.type == Type.READ:
            seen.append(dict(arrived.frame.fields))
        return False

    put(cluster, look)
    return seen


def test_a_collision_of_hashes_is_noticed(client: Client, cluster: FakeCluster) -> None:
    """Aa and BB have the same Java hash: the node lets both pass, the client does not."""
    assert java_hash("Aa") == java_hash("BB")
    for number, tag in enumerate(["Aa", "BB", "C", "Aa", "BBAa", "AaBB"]):
        client.send("orders", str(number).encode(), queue=0, tag=tag)
    seen = asked(cluster)
    assert bodies(client.read("orders", tag="Aa")) == [b"0", b"3"]
    assert bodies(client.read("orders", tag="BB || C")) == [b"1", b"2"]
    assert bodies(client.read("orders", tag="AaBB")) == [b"5"]
    assert bodies(client.read("orders", tag="*")) == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert bodies(client.read("orders", tag="Aa", limit=1)) == [b"0"]
    assert seen[0]["tags"] == [java_hash("Aa")]


def test_a_node_that_does_not_filter_is_filtered_after(
    client: Client, cluster: FakeCluster
) -> None:
    """An older node ignores ``where`` and says nothing of skipped records."""
    for price in range(12):
        client.send("orders", b"%02d" % price, queue=0, properties={"price": str(price)})
    seen = asked(cluster)
    assert bodies(client.read("orders", where="price >= 10")) == [b"10", b"11"]
    assert bodies(client.read("orders", where="price >= 3", limit=2)) == [b"03", b"04"]
    assert bodies(client.read("orders", where="  ")) == [b"%02d" % price for price in range(12)]
    assert seen[0]["where"] == "price >= 10"
    assert seen[-1]["where"] is None


def test_a_node_that_filters_is_believed(client: Client, cluster: FakeCluster) -> None:
    """``skipped`` says that it did; ``next`` moves the reader over what was left out."""
    client.send("orders", b"a", queue=0)
    client.send("orders", b"b", queue=0)
    offsets: list[object] = []

    def skip(arrived: Arrived) -> bool:
        if arrived.frame.type != Type.READ:
            return False
        at = arrived.frame.fields["offset"]
        offsets.append(at)
        assert isinstance(at, int)
        arrived.answer(
            {
                "status": "found", "next": at + 1, "start": 0, "end": 2, "count": 0, "skipped": 1,
                "confirm": 0, "age_ms": 0, "node": arrived.node.name, "role": "master",
                "redirect": None,
            }
        )  # fmt: skip
        return True

    put(cluster, skip)
    assert bodies(client.read("orders", where="price = 1", queue=0)) == []
    assert offsets == [0, 1]


def test_a_filter_that_is_none_is_an_error_before_anything_is_asked(
    client: Client, cluster: FakeCluster
) -> None:
    """At once, with the place."""
    seen = asked(cluster)
    with pytest.raises(FilterError, match="character 9"):
        client.read("orders", where="price > 'x'")
    assert not seen
