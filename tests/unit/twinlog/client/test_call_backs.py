"""Call-backs of producers: each once, with the final outcome, free to send."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import anyio
import pytest

from tests.fakes.node import Arrived, FakeCluster, Keep
from twinlog import AsyncClient, Client, OutcomeUnknown, Receipt, TwinlogError
from twinlog.wire.frames import Type

Result = Receipt | TwinlogError


def test_each_record_is_told_its_place(client: Client, cluster: FakeCluster) -> None:
    """Two records of one section have receipts of their own."""
    told: list[Result] = []
    with client.producer("orders") as producer:
        for body in (b"a", b"b"):
            producer.send(body, queue=1, on_result=told.append)
        producer.send(b"c", queue=1)
    addresses = [one.address for one in told if isinstance(one, Receipt)]
    assert addresses == ["orders/1@0", "orders/1@1"]


def test_an_error_is_told_and_raised(client: Client, cluster: FakeCluster) -> None:
    """A refused section: every record of it is told, and `flush` raises."""

    def refuse(arrived: Arrived) -> bool:
        if arrived.frame.type != Type.APPEND:
            return False
        arrived.refuse("record", "no such record is taken")
        return True

    cluster.nodes["n1"].faults.append(refuse)
    told: list[Result] = []
    with client.producer("orders") as producer:
        for body in (b"a", b"b"):
            producer.send(body, queue=1, on_result=told.append)
        with pytest.raises(TwinlogError, match="no such record"):
            producer.flush()
    assert [str(one) for one in told] == ["no such record is taken"] * 2


def test_a_call_back_may_send(client: Client, cluster: FakeCluster) -> None:
    """It is called while the producer is not locked; `flush` waits for what it sent, too."""
    with client.producer("orders", linger=0) as producer:

        def again(result: Result) -> None:
            assert isinstance(result, Receipt)
            if result.queue_offset < 5:
                producer.send(b"again", queue=0, on_result=again)

        producer.send(b"first", queue=0, on_result=again)
    assert cluster.bodies()[0] == [b"first", *[b"again"] * 5]


def test_what_it_raises_is_logged(
    client: Client, cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """And changes nothing for the others."""
    told: list[Result] = []

    def bad(_: Result) -> None:
        raise ZeroDivisionError

    caplog.set_level(logging.ERROR, "twinlog.producer")
    with client.producer("orders") as producer:
        producer.send(b"a", on_result=bad)
        producer.send(b"b", on_result=told.append)
    assert len(told) == 1 and "call-back" in caplog.text


def test_closing_tells_the_rest(client: Client, cluster: FakeCluster) -> None:
    """What was sent may be stored, what was not sent is not."""

    def keep(arrived: Arrived) -> bool:
        if arrived.frame.type == Type.APPEND:
            raise Keep
        return False

    cluster.nodes["n1"].faults.append(keep)
    told: list[Result] = []
    producer = client.producer("orders", linger=0, window=1)
    producer.send(b"a", queue=0, on_result=told.append)
    producer.send(b"b", queue=0, on_result=told.append)
    producer.close()
    first, second = told
    assert isinstance(first, OutcomeUnknown)
    assert isinstance(second, TwinlogError) and not isinstance(second, OutcomeUnknown)


Body = Callable[[AsyncClient], Awaitable[None]]


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_awaiting_producers_call_back(cluster: FakeCluster, backend: str) -> None:
    """By themselves, without another call."""
    told: list[Result] = []

    async def main() -> None:
        with anyio.fail_after(60):
            async with AsyncClient(cluster.nodes["n1"].address, timeout=60.0) as client:
                came = anyio.Event()

                def tell(result: Result) -> None:
                    told.append(result)
                    came.set()

                async with client.producer("orders") as producer:
                    await producer.send(b"a", queue=2, on_result=tell)
                    await came.wait()

    anyio.run(main, backend=backend)
    assert [one.address for one in told if isinstance(one, Receipt)] == ["orders/2@0"]
