"""Reading while the master is gone: what is said, what a reader may accept, which copy is taken."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import pytest

from tests.fakes.node import Arrived, FakeCluster
from twinlog import AsyncClient, Client
from twinlog.errors import Corrupt, Unavailable, UsageError
from twinlog.units import UnitError
from twinlog.wire.frames import Type
from twinlog.wire.schema import AGE_UNKNOWN_MS


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A master that is gone is looked for in no time."""
    for module in ("consumer.start_offsets", "session.reading"):
        monkeypatch.setattr(f"twinlog.{module}.NO_MASTER_SECONDS", 0.02)


@pytest.fixture
def orphans(cluster: FakeCluster, client: Client) -> FakeCluster:
    """Three messages; the master is gone, n2 heard from it 12 s ago, n3 never."""
    for number in range(3):
        client.send("orders", b"%d" % number, key="k", queue=0)
    cluster.leader = None
    cluster.nodes["n1"].age_ms = AGE_UNKNOWN_MS
    cluster.nodes["n2"].age_ms = 12_000
    cluster.nodes["n3"].age_ms = AGE_UNKNOWN_MS
    return cluster


Reading = Callable[[Client], object]
READS: dict[str, Reading] = {
    "read": lambda client: list(client.read("orders", timeout=1.5)),
    "find": lambda client: client.find("orders", "k", read_from="any", timeout=1.5),
}


@pytest.mark.parametrize("kind", READS)
def test_the_error_tells_the_age_and_the_way(
    orphans: FakeCluster, client: Client, kind: str
) -> None:
    """There is no master, how old the newest data is, and which argument reads it."""
    with pytest.raises(Unavailable) as caught:
        READS[kind](client)
    assert caught.value.text == "no master answers, and the newest data is 12 s old (node n2)"
    assert "max_staleness" in str(caught.value.hint)
    assert "--stale-ok" in str(caught.value.hint)
    assert (caught.value.code, caught.value.facts["age_ms"]) == ("stale", 12_000)


@pytest.mark.parametrize("read_from", ["any", "slave", "master", "n2"])
@pytest.mark.parametrize("accepted", ["1 m", 12, "any"])
def test_a_reader_may_say_how_old_the_data_may_be(
    orphans: FakeCluster, client: Client, read_from: str, accepted: float | str
) -> None:
    """The copy is read as it is, and says how old it is."""
    found = client.read("orders", read_from=read_from, max_staleness=accepted)
    assert [message.body for message in found] == [b"0", b"1", b"2"]
    if accepted != "any":
        assert (found.source.node, found.source.age_ms) == ("n2", 12_000)
    found = client.read("orders", read_from=read_from, max_staleness=accepted)
    assert next(found).body == b"0"
    found.close()


def test_a_search_and_a_get_take_a_copy_too(orphans: FakeCluster, client: Client) -> None:
    """Both ask the master while there is one, then whoever is not too old."""
    found = client.find("orders", "k", max_staleness=12)
    assert ([m.body for m in found], found.node) == ([b"2", b"1", b"0"], "n2")
    assert (found.age_ms, found.settled) == (12_000, False)
    at = f"log@{found.messages[0].log_offset}"
    assert client.get(at, max_staleness="any").body == b"2"
    assert client.get("orders/0@1", max_staleness=12).body == b"1"
    with pytest.raises(Unavailable, match="newest data is 12 s old"):
        client.find("orders", "k", max_staleness=11, timeout=1.5)
    with pytest.raises(Unavailable) as caught:
        client.get(at, timeout=1.5)
    assert "--stale-ok" in str(caught.value.hint)


def test_less_than_a_node_would_serve_is_a_limit_too(client: Client, cluster: FakeCluster) -> None:
    """A reader may be stricter than the nodes are set."""
    client.send("orders", b"x", queue=0)
    cluster.nodes["n2"].age_ms = 800
    fresh = client.read("orders", read_from="n2", max_staleness=1)
    assert [m.body for m in fresh] == [b"x"]
    with pytest.raises(Unavailable, match=r"^the newest data is 800 ms old \(node n2\)$"):
        list(client.read("orders", read_from="n2", max_staleness=0.5, timeout=1.5))


@pytest.mark.parametrize("wrong", [-1, "soon", float("nan")])
def test_an_age_must_be_an_age(client: Client, wrong: float | str) -> None:
    """It is refused before anybody is asked."""
    with pytest.raises((UsageError, UnitError)):
        client.read("orders", max_staleness=wrong)


def damaged(*kinds: Type) -> Callable[[Arrived], bool]:
    """A node whose copy is damaged."""

    def fault(arrived: Arrived) -> bool:
        if arrived.frame.type in kinds:
            arrived.refuse("corrupt", "a batch at log offset 0 is damaged")
            return True
        return False

    return fault


def test_a_damaged_copy_is_passed_over(client: Client, cluster: FakeCluster) -> None:
    """Another node has the same record; a reader that named the node is told."""
    receipt = client.send("orders", b"x", key="k", queue=0)
    cluster.nodes["n1"].faults.append(damaged(Type.READ, Type.FIND, Type.GET))
    assert [m.body for m in client.read("orders")] == [b"x"]
    assert [m.body for m in client.find("orders", "k")] == [b"x"]
    assert client.get(f"log@{receipt.log_offset}").body == b"x"
    with pytest.raises(Corrupt):
        list(client.read("orders", read_from="n1"))


def test_damage_of_every_copy_is_reported(client: Client, cluster: FakeCluster) -> None:
    """It is damage, not absence; nobody waits for it to go away."""
    client.send("orders", b"x", key="k", queue=0)
    for node in cluster.nodes.values():
        node.faults.append(damaged(Type.READ, Type.FIND))
    with pytest.raises(Corrupt, match="log offset 0"):
        list(client.read("orders"))
    with pytest.raises(Corrupt, match="log offset 0"):
        client.find("orders", "k", timeout=1.5)


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_the_awaiting_client_does_the_same(orphans: FakeCluster, backend: str) -> None:
    """One core decides for both."""

    async def main() -> None:
        with anyio.fail_after(60):
            async with AsyncClient(orphans.nodes["n1"].address, timeout=30.0) as client:
                found = client.read("orders", max_staleness="1 m")
                assert [message.body async for message in found] == [b"0", b"1", b"2"]
                assert (found.source.node, found.source.age_ms) == ("n2", 12_000)
                assert (await client.get("orders/0@0", max_staleness=60)).body == b"0"
                assert len(await client.find("orders", "k", max_staleness=60)) == 3
                with pytest.raises(Unavailable, match="12 s old"):
                    await anext(client.read("orders", timeout=1.5))

    run: Callable[..., Any] = anyio.run
    body: Callable[[], Coroutine[Any, Any, None]] = main
    run(body, backend=backend)
