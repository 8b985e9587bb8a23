"""Work queues on bad days and with bad input: what is true afterwards, and what is refused.

Real nodes in the test's loop, real sockets, real files; clocks are set where a test says so.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from node.groups.service import WorkQueues
from tests.fixtures.cluster import Cluster, running_cluster
from tests.fixtures.full_disk import fill
from tests.fixtures.group_worker import Worker, again, code, rows_of, settles, show
from tests.fixtures.wire_client import bodies, outcomes, records
from twinlog.format.system_topics import SYSTEM_TOPIC_EPOCH, SYSTEM_TOPIC_GROUP, SYSTEM_TOPIC_META
from twinlog.wire.frames import Type
from twinlog.wire.groups import ROWS_MAX, TOPICS_MAX, What

pytestmark = pytest.mark.processes

HOUR_MS = 3_600_000


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[Cluster]:
    """One node with the topic ``t`` of one queue."""
    async with running_cluster(tmp_path, nodes=1) as running:
        async with running.client() as client:
            await client.create("t", 1)
        yield running


async def send(cluster: Cluster, *texts: bytes) -> None:
    """Store messages in ``t``."""
    async with cluster.client() as client:
        assert outcomes(await client.append(records("t", *texts))) == [0]


def queues(cluster: Cluster) -> WorkQueues:
    """The work queues of the only node."""
    services = cluster.nodes["n1"].services
    assert services is not None
    return services.groups


def rows(cluster: Cluster) -> float:
    """How many rows the node has appended."""
    return float(sum(queues(cluster).context.counts.rows.values()))


# ── bad input ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("topic", [SYSTEM_TOPIC_GROUP, SYSTEM_TOPIC_META, SYSTEM_TOPIC_EPOCH])
async def test_nobody_consumes_the_stores_own_topics(one: Cluster, topic: str) -> None:
    """Consuming the rows of groups would write further ones, for ever."""
    await send(one, b"a")
    async with one.client() as client:
        worker = Worker(client, "g")
        assert code(await Worker(client, "g", (topic,)).join()) == "topic"
        await worker.join()
        before = rows(one)
        assert code(await worker.pop(topics=["t", topic])) == "topic"
        order: dict[str, object] = {"op": "reset", "name": "g", "positions": [[topic, 0, 0]]}
        assert code(await client.ask(Type.GROUP, order)) == "topic"
        assert rows(one) == before
        shares = [one["share"] for one in (await show(client, "g"))["queues"]]
        assert shares == [0], "not begun with"


@pytest.mark.parametrize(
    ("name", "topic"), [("a@b", "t"), ("", "t"), ("ä", "t"), ("x" * 121, "t"), ("g", "%LMQ%")]
)
async def test_names_that_no_group_or_topic_has(one: Cluster, name: str, topic: str) -> None:
    """Each is refused with what a name is made of; no group is made."""
    async with one.client() as client:
        assert code(await Worker(client, name, (topic,)).join()) in ("group-name", "unknown-topic")
        order: dict[str, object] = {"op": "create", "name": name, "settings": {}}
        if name != "g":
            answer = await client.ask(Type.GROUP, order)
            assert code(answer) == "group-name"
            assert answer.fields["hint"]
        listed = await client.ask(Type.GROUP, {"op": "list"})
        assert listed.fields["groups"] == []


async def test_requests_that_make_no_sense_are_refused_whole(one: Cluster) -> None:
    """Numbers out of range, too many of anything, words of another version: no row is written."""
    await send(one, b"a")
    async with one.client() as client:
        worker = Worker(client, "g")
        await worker.join()
        before = rows(one)
        for odd in (
            {"pop": 0}, {"pop": -1}, {"max_records": 0}, {"max_bytes": 0}, {"invisible_ms": 1},
            {"invisible_ms": 12 * HOUR_MS + 1}, {"invisible_ms": -1}, {"lease": "later"},
            {"topics": []}, {"topics": [f"t{n}" for n in range(TOPICS_MAX + 1)]},
        ):  # fmt: skip
            assert code(await worker.pop(**cast("dict[str, Any]", odd))) == "fields", odd
        for row in ([1, 1, 9, 0, 0, 0], [1, 1, 0, 0, 0, 0]):
            fields: dict[str, object] = {"group": "g", "member": worker.member, "rows": [row]}
            assert code(await client.ask(Type.SETTLE, fields)) == "fields"
        fields = {"group": "g", "member": worker.member, "rows": [[1, 1, 1, 0, 0, 0]] * 4097}
        assert ROWS_MAX == 4096
        assert code(await client.ask(Type.SETTLE, fields)) == "fields"
        assert code(await worker.join(name="")) == "fields"
        assert code(await worker.join(name="a\nb")) == "fields"
        assert code(await worker.join(session_ms=1)) == "fields"
        assert code(await worker.join(start=-5)) == "fields"
        assert code(await Worker(client, "new").join("fastest")) == "group-mode"
        order: dict[str, object] = {"op": "explode", "name": "g"}
        assert code(await client.ask(Type.GROUP, order)) == "fields"
        order = {"op": "reset", "name": "g", "positions": [["t", 0, 2]]}
        answer = await client.ask(Type.GROUP, order)
        assert (code(answer), answer.fields["end"]) == ("offset", 1)
        order = {"op": "reset", "name": "g", "positions": [["t", 7, 0]]}
        assert code(await client.ask(Type.GROUP, order)) == "unknown-queue"
        assert rows(one) == before


async def test_a_reset_is_carried_out_whole_or_not(one: Cluster) -> None:
    """One position that cannot be keeps the others where they were."""
    await send(one, b"a", b"b")
    async with one.client() as client:
        worker = Worker(client, "g")
        await worker.join()
        held = await worker.pop()
        order: dict[str, object] = {"op": "reset", "name": "g"}
        order["positions"] = [["t", 0, 1], ["t", 0, 9]]
        assert code(await client.ask(Type.GROUP, order)) == "offset"
        assert (await show(client, "g"))["leased"] == 2
        assert await worker.ack(held) == [""]


async def test_rows_about_what_was_never_leased_spare_the_others(one: Cluster) -> None:
    """Another group's share, a lease of the future, a range backwards: each has its own code."""
    await send(one, b"a", b"b")
    async with one.client() as client:
        worker, stranger = Worker(client, "g"), Worker(client, "h")
        await worker.join()
        await stranger.join()
        (mine,), (other,) = rows_of(await worker.pop()), rows_of(await stranger.pop(1))
        assert other[2] != mine[2]
        share, n = mine[2], mine[3]
        assert await worker.settle(
            [other[2], other[3], What.ACK, 0, 0, 0],
            [share, n + 5, What.ACK, 0, 0, 0],
            [share, 0, What.ACK, 0, 0, 0],
            [share, n, What.ACK, 1, 0, 0],
            [share, n, What.ACK, -1, 0, 0],
            [share, n, What.ACK, 0, 9, 0],
            [1 << 40, n, What.REJECT, 0, 0, 0],
            [share, n, What.ACK, 1, 1, 0],
        ) == ["receipt-unknown"] * 7 + [""]
        found = await show(client, "g")
        assert (found["lag"], found["leased"]) == (1, 1)
        assert (await show(client, "h"))["leased"] == 1


async def test_a_number_that_was_guessed_is_of_no_use(one: Cluster) -> None:
    """A member speaks from the connection it joined on; its leases stay its own."""
    await send(one, b"a")
    async with one.client() as client, one.client() as stranger:
        worker = Worker(client, "g")
        await worker.join()
        held = await worker.pop()
        thief = Worker(stranger, "g", member=worker.member)
        assert code(await thief.pop()) == "not-member"
        fields: dict[str, object] = {
            "group": "g", "member": worker.member, "generation": 0, "finished": [], "wait_ms": 0,
            "leave": True,
        }  # fmt: skip
        assert code(await stranger.ask(Type.BEAT, fields)) == "not-member"
        await thief.join(name="another")
        assert thief.member != worker.member, "the name tells them apart"
        assert bodies(await thief.pop()) == []
        assert await worker.ack(held) == [""]


async def test_two_members_of_one_name_are_two(one: Cluster) -> None:
    """In a shared group; each has messages of its own."""
    await send(one, b"a", b"b")
    async with one.client() as first, one.client() as second:
        here, there = Worker(first, "g"), Worker(second, "g")
        await here.join(name="same")
        await there.join(name="same")
        assert here.member != there.member
        assert bodies(await here.pop(1)) == [b"a"]
        assert bodies(await there.pop(1)) == [b"b"]


async def test_a_letter_that_was_written_by_hand_is_an_ordinary_message(one: Cluster) -> None:
    """As RocketMQ permits; it says of no origin, so nothing but an order sends it on."""
    async with one.client() as client:
        await client.create("%DLQ%g", 1)
        assert outcomes(await client.append(records("%DLQ%g", b"forged"))) == [0]
        found = await client.read("%DLQ%g")
        assert bodies(found) == [b"forged"]
        assert b"DLQ_ORIGIN_TOPIC" not in bytes(found.payload)
        answer = await client.append(records(SYSTEM_TOPIC_GROUP, b"forged"))
        results = cast("list[list[object]]", answer.fields["results"])
        assert results[0][4] == "topic"


# ── limits ──────────────────────────────────────────────────────────────────────────────────────


async def test_limits_are_refused_by_name(one: Cluster) -> None:
    """Groups, members, pops that wait: each is refused with the limit, and for now."""
    context = queues(one).context
    context.limits = replace(
        context.limits, groups_max=2, members_max=2, pops_parked_max=2, waiting_max=8
    )
    async with one.client() as client, one.client() as other:
        worker = Worker(client, "g1")
        await worker.join()
        await Worker(client, "g2").join()
        full = await Worker(client, "g3").join()
        assert (code(full), full.fields["limit"]) == ("busy", "groups_max")
        order: dict[str, object] = {"op": "create", "name": "g3", "settings": {}}
        full = await client.ask(Type.GROUP, order)
        assert (code(full), full.fields["limit"]) == ("busy", "groups_max")
        full = await Worker(client, "g1").join()
        assert (code(full), full.fields["limit"]) == ("busy", "members_max")
        assert full.fields["retryable"] is True
        for _ in range(2):
            await client.send(Type.POP, worker.wish(1, 30_000))
        full = await worker.pop(wait_ms=30_000)
        assert (code(full), full.fields["limit"]) == ("busy", "pops_parked_max")
        beat: dict[str, object] = {
            "group": "g1", "member": worker.member, "generation": 0, "finished": [],
            "wait_ms": 30_000,
        }  # fmt: skip
        for _ in range(6):
            await client.send(Type.BEAT, beat)
        await one.until(lambda: queues(one).joining.waiting == 6)
        full = await Worker(other, "g1").join()
        assert (code(full), full.fields["limit"]) == ("busy", "waiting_max")


@pytest.mark.parametrize("limit", ["span_max", "runs_max"])
async def test_a_share_that_is_full_says_so_once_and_goes_on(one: Cluster, limit: str) -> None:
    """Nothing new of that queue is handed out until some are settled; a parked pop wakes then."""
    context = queues(one).context
    context.limits = replace(context.limits, **cast("dict[str, Any]", {limit: 2}))
    await send(one, b"a", b"b", b"c", b"d")
    async with one.client() as client:
        worker = Worker(client, "g")
        await worker.join()
        first = await worker.pop(1)
        await worker.pop(1)
        assert bodies(await worker.pop(1)) == []
        assert bodies(await worker.pop(1)) == []
        assert one.logs["n1"].getvalue().count("share_full") == 1
        parked = await client.send(Type.POP, worker.wish(1, 30_000))
        assert await worker.ack(first) == [""]
        answer = await client.receive()
        assert (answer.request, bodies(answer)) == (parked, [b"c"])


# ── disks ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
async def test_a_full_disk_hands_nothing_out_and_forgets_nothing(small: Cluster) -> None:
    """Pops and acknowledgements are refused for now; with space all goes on where it was."""
    master = str(small.master)
    async with small.client(master) as client, small.client(master) as other:
        worker = Worker(client, "g")
        await worker.join()
        held = await worker.pop(1)
        assert bodies(held) == [b"first"]
        assert outcomes(await other.append(records("t", b"second"))) == [0]
        fill(small, master, full=True)
        refused = None
        for _ in range(40):  # until the space that is allocated already is used up
            refused = await other.append(records("t", bytes(200_000)))
            if refused.is_error:
                break
        assert refused is not None and code(refused) == "disk-full"
        before = small_rows(small, master)
        answer = await worker.pop(1)
        assert (code(answer), answer.fields["retryable"]) == ("disk-full", True)
        fields: dict[str, object] = {
            "group": "g", "member": worker.member, "rows": settles(held, What.ACK),
        }  # fmt: skip
        assert code(await client.ask(Type.SETTLE, fields)) == "disk-full"
        assert code(await Worker(other, "g").join()) == "disk-full"
        assert small_rows(small, master) == before
        fill(small, master, full=False)
        with trio.fail_after(60):
            while (answer := await client.ask(Type.SETTLE, fields)).is_error:
                assert code(answer) in ("disk-full", "not-ready", "not-enough-in-sync", "busy")
                await trio.sleep(0.01)
        assert rows_of(answer) == [["", 0]]
        await again(worker)
        assert bodies(await worker.pop(1)) == [b"second"]


def small_rows(cluster: Cluster, name: str) -> float:
    """How many rows a node has appended."""
    services = cluster.nodes[name].services
    assert services is not None
    return float(sum(services.groups.context.counts.rows.values()))


# ── time ────────────────────────────────────────────────────────────────────────────────────────


async def test_a_clock_that_leaps_ahead_ends_no_lease_at_once(one: Cluster) -> None:
    """It counts once it has stood for 10 s; the event says how far it was."""
    await send(one, b"a")
    context, groups = queues(one).context, queues(one)
    groups._grace_until = 0.0  # pyright: ignore[reportPrivateUsage]
    real = context.wall_ms
    async with one.client() as client:
        worker = Worker(client, "g")
        await worker.join()
        held = await worker.pop()
        context.wall_ms = lambda: real() + HOUR_MS
        assert bodies(await worker.pop()) == []
        assert "clock_jumped" in one.logs["n1"].getvalue()
        assert context.clock.leapt_ms > HOUR_MS - 60_000
        context.wall_ms = real
        assert await worker.ack(held) == [""]
        assert (await show(client, "g"))["lag"] == 0


async def test_a_clock_that_is_set_back_gives_nothing_twice(one: Cluster) -> None:
    """Leases stand still until it has caught up; new ones are given meanwhile."""
    await send(one, b"a", b"b")
    context, groups = queues(one).context, queues(one)
    groups._grace_until = 0.0  # pyright: ignore[reportPrivateUsage]
    real = context.wall_ms
    async with one.client() as client:
        worker = Worker(client, "g")
        await worker.join()
        first = await worker.pop(1)
        context.wall_ms = lambda: real() - HOUR_MS
        second = await worker.pop(1)
        assert bodies(second) == [b"b"]
        assert rows_of(second)[0][7] >= rows_of(first)[0][7]
        assert "clock_jumped" in one.logs["n1"].getvalue()
        assert await worker.ack(first) == [""]
        assert await worker.ack(second) == [""]


async def test_who_comes_too_late_is_told_and_reported(one: Cluster) -> None:
    """A consumer that was paused for longer than its lease: its outcome changes nothing."""
    await send(one, b"a")
    groups = queues(one)
    groups._grace_until = 0.0  # pyright: ignore[reportPrivateUsage]
    async with one.client() as first, one.client() as second:
        paused, other = Worker(first, "g"), Worker(second, "g")
        await paused.join(name="paused")
        await other.join(name="other")
        held = await paused.pop(invisible_ms=1_000)
        given = await other.pop(wait_ms=30_000)
        assert bodies(given) == [b"a"]
        assert await paused.ack(held) == ["receipt-expired"]
        assert await paused.settle(*settles(held, What.EXTEND, 60_000)) == ["receipt-expired"]
        assert one.logs["n1"].getvalue().count("member_fenced") == 1
        assert "paused" in one.logs["n1"].getvalue().split("member_fenced")[1]
        assert await other.ack(given) == [""]
        assert (await show(second, "g"))["lag"] == 0


async def test_how_long_messages_were_held_is_a_metric(one: Cluster) -> None:
    """One observation for each outcome, from when the lease was given."""
    await send(one, b"a", b"b", b"c")
    async with one.client() as client:
        worker = Worker(client, "g")
        await worker.join()
        await worker.ack(await worker.pop(1))
        await worker.settle(*settles(await worker.pop(1), What.RELEASE, 3_600_000))
        await worker.settle(*settles(await worker.pop(1), What.UNUSED))
    services = one.nodes["n1"].services
    assert services is not None
    text = services.metrics.render("")[0].decode()
    assert "twinlog_lease_seconds_count 2.0" in text
    assert 'twinlog_messages_settled_total{group="g",how="release"} 1.0' in text
