"""Members of a group over sockets: a loop acknowledges, an error gives back, a failover is nothing.

What the member asks and when is tested without sockets (``tests/properties/test_group_member.py``).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest

from tests.fakes.clock import Clock
from tests.fakes.group_master import GroupMaster
from tests.fakes.group_node import ServedGroup
from tests.fakes.node import Arrived, Drop, FakeCluster
from twinlog import AsyncClient, Client, Delivery
from twinlog.errors import CorruptionError, GroupDiffers, LeaseLost, Unavailable, UsageError
from twinlog.wire.frames import Type


@pytest.fixture
def group(cluster: FakeCluster) -> Iterator[ServedGroup]:
    """Six messages in two queues, served by whichever node is master."""
    served = ServedGroup(cluster, GroupMaster())
    for number in range(6):
        served.send(number % 2, b"%d" % number)
    yield served
    served.close()


def until_settled(messages: Iterator[Delivery], count: int) -> list[bytes]:
    """Bodies of the next messages; the loop is left by `break` at the last."""
    found: list[bytes] = []
    for message in messages:
        found.append(message.body)
        if len(found) == count:
            break
    return found


def test_a_loop_acknowledges(client: Client, group: ServedGroup) -> None:
    """All but the last, whose body never said that it is done."""
    found = until_settled(iter(client.consume("orders", "billing")), 6)
    assert sorted(found) == [b"%d" % number for number in range(6)]
    assert group.states() == ["settled"] * 5 + ["waiting"]
    assert not group.master.members, "it has left"


def test_an_error_gives_back(client: Client, group: ServedGroup) -> None:
    """The message at hand counts as failed, what was fetched ahead does not."""

    def fail_at_the_fourth() -> None:
        for number, _message in enumerate(client.consume("orders", "billing", batch=4)):
            _ = 1 // (3 - number)

    with pytest.raises(ZeroDivisionError):
        fail_at_the_fourth()
    attempts = [kept.attempt for share in group.master.shares.values() for kept in share]
    assert group.states() == ["settled"] * 3 + ["waiting"] * 3
    assert sum(attempts) == 4


def test_each_word_is_said_once(client: Client, group: ServedGroup) -> None:
    """Acknowledged, failed, given back, dead: the master knows when `settle` returns."""
    with client.consumer("billing", ["orders"], batch=6) as consumer:
        first, second, third, fourth = (next(consumer) for _ in range(4))
        first.ack()
        second.retry(after="1 m")
        third.release()
        fourth.reject("cannot be parsed")
        consumer.settle()
        assert group.master.dead[0][2] == "cannot be parsed"
        assert (first.attempt, first.settled) == (1, True)
        with pytest.raises(UsageError, match="settled before"):
            first.retry()
        with pytest.raises(UsageError):
            consumer.pop(max=7)
    assert consumer.statistics().settled >= 3
    with pytest.raises(StopIteration):
        next(consumer)


def test_pop_waits_for_a_while(client: Client, group: ServedGroup) -> None:
    """It returns what is there, and nothing when the time has passed."""
    with client.consumer("billing", "orders", batch=64) as consumer:
        found = consumer.pop(max=4, wait=60.0)
        assert len(found) == 4
        for message in found:
            message.ack()
        assert len(consumer.pop(max=64, wait=60.0)) == 2
        assert consumer.pop(max=1, wait=0.01) == []


def test_the_first_pop_returns_what_is_there(client: Client, group: ServedGroup) -> None:
    """Without a wait it returned nothing: the member had joined, and was not asked again."""
    with client.consumer("billing", "orders", batch=6) as consumer:
        assert len(consumer.pop(max=4)) == 4
        assert len(consumer.pop(max=4)) == 2
        assert consumer.pop(max=4) == [], "all are in hand, so there is nothing to ask for"


def test_a_lease_that_is_not_prolonged_is_not_lost(client: Client, group: ServedGroup) -> None:
    """The message's log file is about to leave; until its end the lease is as good as before."""
    group.master.leaving = True
    with client.consumer("billing", "orders", batch=1) as consumer:
        message = next(consumer)
        ends = message.held.ends
        message.extend("5 m")
        message.ack()
        consumer.settle()
        assert message.held.ends == ends
        assert consumer.statistics().lost == 0


def test_a_consumer_in_use_refuses_a_second_thread(client: Client, group: ServedGroup) -> None:
    """The first may wait for a message for hours; the other learns at once what to do."""
    with client.consumer("billing", "orders", batch=6) as consumer:
        held = next(consumer)
        for message in consumer.pop(max=5, wait=60.0):
            message.ack()
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(next, consumer)
            end = time.monotonic() + 60
            while not consumer._lock.locked() and time.monotonic() < end:  # pyright: ignore[reportPrivateUsage]
                pass
            uses = (lambda: next(consumer), consumer.pop, consumer.settle, consumer.close, held.ack)
            for use in uses:
                with pytest.raises(UsageError, match="two threads use one consumer"):
                    use()
            assert not held.settled
            group.send(0, b"wakes it")
            first.result(60).ack()
        held.ack()
        consumer.settle()
    assert group.states() == ["settled"] * 7


def test_a_lease_that_is_over_is_reported(client: Client, group: ServedGroup, clock: Clock) -> None:
    """Another member has the message by then; the loop says so, and so does `settle`."""
    with client.consumer("billing", "orders", batch=1, invisible="1 m") as consumer:
        message = next(consumer)
        with_another(group)
        clock.jump(61.0)
        message.ack()
        with pytest.raises(LeaseLost, match="the lease was over") as caught:
            consumer.settle()
        assert caught.value.hint is not None
        assert "invisible" in caught.value.hint
        message = next(consumer)
        with_another(group)
        clock.jump(61.0)
        message.ack()
        with pytest.raises(LeaseLost):
            go_on(consumer)
    assert consumer.statistics().lost == 2


def go_on(messages: Iterator[Delivery]) -> None:
    for message in messages:
        message.ack()


def with_another(group: ServedGroup) -> None:
    """Every lease has ended and was given to another member."""
    for share in group.master.shares.values():
        for kept in share:
            if kept.state == "leased":
                kept.n += 1


def test_a_failover_is_nothing_to_the_body(
    client: Client, cluster: FakeCluster, group: ServedGroup
) -> None:
    """The member goes on with the next master under its number; an answer got lost on the way."""
    found: list[bytes] = []
    for message in client.consume("orders", "billing", batch=2):
        found.append(message.body)
        if len(found) == 2:
            met: list[Arrived] = []

            def drop(arrived: Arrived, met: list[Arrived] = met) -> bool:
                if arrived.frame.type == Type.SETTLE and not met:
                    met.append(arrived)
                    group.serve(arrived)
                    cluster.fail_over("n2")
                    raise Drop
                return False

            cluster.nodes["n1"].faults.insert(0, drop)
        if len(found) == 6:
            message.ack()
            break
    assert len(set(found)) == 6
    assert group.states() == ["settled"] * 6
    assert group.master.numbers == 1


def test_a_dead_master_is_left_once_the_others_know_another(
    client: Client, cluster: FakeCluster, group: ServedGroup
) -> None:
    """As long as they name the dead one they are asked again, not only it."""
    asked: list[Arrived] = []

    def elect(arrived: Arrived) -> bool:
        if arrived.frame.type == Type.METADATA:
            asked.append(arrived)
            if len(asked) == 4:
                cluster.fail_over("n2")
        return False

    found: list[bytes] = []
    with client.consumer("billing", "orders", batch=1) as consumer:
        for message in consumer:
            found.append(message.body)
            message.ack()
            if len(found) == 2:
                cluster.nodes["n2"].faults.append(elect)
                cluster.nodes["n1"].close()
            if len(found) == 6:
                break
    assert len(asked) >= 4


def test_what_a_group_refuses_ends_the_loop(
    client: Client, cluster: FakeCluster, group: ServedGroup, clock: Clock
) -> None:
    """A group of another mode; and a cluster without a master, after the limit."""
    node = cluster.nodes["n1"]

    def refuse(arrived: Arrived) -> bool:
        if arrived.frame.type == Type.JOIN:
            arrived.refuse("group-mode", "billing is broadcast")
            return True
        return False

    node.faults.insert(0, refuse)
    with pytest.raises(GroupDiffers, match="billing is broadcast"):
        next(iter(client.consume("orders", "billing")))
    node.faults.remove(refuse)
    node.faults.insert(0, clock.passing(Type.POP, busy))
    with pytest.raises(Unavailable, match="group billing is not served"):
        next(iter(client.consume("orders", "billing", timeout="30 s")))


def test_damage_is_waited_for_while_a_copy_may_replace_it(
    client: Client, cluster: FakeCluster, group: ServedGroup, clock: Clock
) -> None:
    """Two refused pops are nothing to the body; damage that stays ends the loop with its error."""
    node, met = cluster.nodes["n1"], list[Arrived]()

    def damaged(arrived: Arrived) -> bool:
        if arrived.frame.type != Type.POP or len(met) == 2:
            return False
        met.append(arrived)
        arrived.refuse("corrupt", "a batch is damaged")
        return True

    node.faults.insert(0, damaged)
    assert len(until_settled(iter(client.consume("orders", "billing")), 1)) == 1
    assert len(met) == 2
    node.faults.remove(damaged)

    def stays(arrived: Arrived) -> bool:
        if arrived.frame.type == Type.POP:
            arrived.refuse("corrupt", "a batch is damaged")
        return arrived.frame.type == Type.POP

    node.faults.insert(0, clock.passing(Type.POP, stays))
    with pytest.raises(CorruptionError, match="a batch is damaged"):
        next(iter(client.consume("orders", "billing")))


def busy(arrived: Arrived) -> bool:
    if arrived.frame.type == Type.POP:
        arrived.refuse("busy", "too many pops", retryable=True)
    return arrived.frame.type == Type.POP


@pytest.mark.parametrize(
    "wrong",
    [{"batch": 0}, {"invisible": "13 h"}, {"lease": "none"}, {"timeout": 0.0}, {"where": "a >"}],
)
def test_bad_options_are_refused_at_once(client: Client, wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        client.consumer("billing", "orders", **wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        client.consumer("billing", [])


# ── awaiting ────────────────────────────────────────────────────────────────────────────────────

Body = Callable[[AsyncClient], Awaitable[None]]


@pytest.fixture(params=["trio", "asyncio"])
def run(request: pytest.FixtureRequest, cluster: FakeCluster) -> Callable[[Body], None]:
    """Run a body with a client of the fake cluster, on both loops in turn."""

    async def main(body: Body) -> None:
        endpoints = [cluster.nodes["n1"].address, cluster.nodes["n2"].address]
        with anyio.fail_after(60):
            async with AsyncClient(endpoints, timeout=60.0) as client:
                await body(client)

    def start(body: Body) -> None:
        anyio.run(main, body, backend=request.param)

    return start


def test_awaiting_a_loop_acknowledges(run: Callable[[Body], None], group: ServedGroup) -> None:
    """As the blocking one, and over a failover."""

    async def body(client: AsyncClient) -> None:
        found: list[bytes] = []
        async with client.consume("orders", "billing", batch=2) as messages:
            async for message in messages:
                found.append(message.body)
                if len(found) == 6:
                    message.ack()
                    break
        assert len(set(found)) == 6

    run(body)
    assert group.states() == ["settled"] * 6
    assert not group.master.members


def test_the_first_awaited_pop_returns_what_is_there(
    run: Callable[[Body], None], group: ServedGroup
) -> None:
    """As the blocking one."""

    async def body(client: AsyncClient) -> None:
        async with client.consumer("billing", "orders", batch=6) as consumer:
            assert len(await consumer.pop(max=4)) == 4
            assert len(await consumer.pop(max=4)) == 2

    run(body)


def test_awaiting_leases_are_extended(run: Callable[[Body], None], group: ServedGroup) -> None:
    """While a body runs its lease goes on, without a word of the body."""

    async def body(client: AsyncClient) -> None:
        options = {"batch": 1, "invisible": 1.0}
        async with client.consumer("billing", "orders", **options) as consumer:  # type: ignore[arg-type]
            message = await anext(consumer)
            kept = group.master.shares[message.queue][message.queue_offset]
            first = kept.until
            while kept.until <= first + 1000:  # noqa: ASYNC110  # extended twice, in a thread
                await anyio.sleep(0.01)
            message.ack()
            await consumer.settle()
            assert (await consumer.pop(max=1, wait=60.0))[0].attempt == 1

    run(body)
    assert "settled" in group.states()


def test_awaiting_a_lease_that_cannot_be_extended(
    run: Callable[[Body], None], group: ServedGroup
) -> None:
    """Its end stays what it was: an extension that the master refused prolongs nothing."""

    async def body(client: AsyncClient) -> None:
        options = {"batch": 1, "invisible": 1.0}
        async with client.consumer("billing", "orders", **options) as consumer:  # type: ignore[arg-type]
            message = await anext(consumer)
            ends = message.held.ends
            with_another(group)
            while not consumer.statistics().lost:  # noqa: ASYNC110  # refused, in a thread
                await anyio.sleep(0.01)
            assert message.held.ends == ends
            message.ack()
            with pytest.raises(LeaseLost, match="extend of offset 0 changed nothing"):
                await consumer.settle()

    run(body)


def test_awaiting_an_error_gives_back(run: Callable[[Body], None], group: ServedGroup) -> None:
    """Also when the body is cancelled."""

    async def body(client: AsyncClient) -> None:
        with anyio.CancelScope() as scope:
            async with client.consume("orders", "billing", batch=4) as messages:
                async for _ in messages:
                    scope.cancel()
                    await anyio.sleep_forever()
        assert scope.cancelled_caught
        with pytest.raises(UsageError, match="async with"):
            await anext(aiter(client.consume("orders", "billing")))

    run(body)
    assert not group.master.members
    assert "leased" not in group.states()
    attempts = [kept.attempt for share in group.master.shares.values() for kept in share]
    assert sum(attempts) == 1
