"""Work queues over the wire: what members of a group are given, and what outlives a failover.

Real nodes, real sockets, real files; what a client sends is written out here frame by frame, so
that repetitions and late words can be made.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from storage.read.result import ReadResult
from tests.fixtures.cluster import Cluster, running_cluster
from tests.fixtures.group_worker import Worker, again, code, rows_of, settles, show
from tests.fixtures.processes import MiB, Processes
from tests.fixtures.wire_client import bodies, connected, outcomes, records
from twinlog.errors import CorruptionError
from twinlog.wire.frames import Type
from twinlog.wire.groups import BACK_OFF, What

pytestmark = pytest.mark.processes


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


async def test_a_message_is_popped_and_acknowledged(one: Cluster) -> None:
    """Each message goes to one member, once; what is acknowledged is never handed out again."""
    await send(one, b"a", b"b", b"c")
    async with one.client() as first, one.client() as second:
        here, there = Worker(first, "g"), Worker(second, "g")
        await here.join()
        await there.join(name="v")
        got = await here.pop(2)
        assert bodies(got) == [b"a", b"b"]
        assert bodies(await there.pop(2)) == [b"c"]
        assert bodies(await here.pop(2)) == []
        assert await here.ack(got) == [""]
        assert await here.ack(got) == [""], "a repetition is no error"
        shown = await show(first, "g")
        assert (shown["lag"], shown["leased"], shown["members"]) == (1, 1, 2)
        running = one.nodes["n1"].services
        assert running is not None
        found = running.observation.metrics()
        assert found["twinlog_group_lag_messages"] == {("g", "t"): 1.0}
        assert found["twinlog_messages_settled"] == {("g", "ack"): 2.0}
        assert found["twinlog_messages_leased"] == {("g",): 3.0}


async def test_a_parked_pop_wakes_for_a_new_message(one: Cluster) -> None:
    """It is answered when the message is there, and not before."""
    async with one.client() as client:
        worker = Worker(client, "g")
        await worker.join()
        number = await client.send(Type.POP, worker.wish(1, 30_000))
        await one.until(lambda: one.nodes["n1"].services.clients.handlers.groups.parked == 1)  # type: ignore[union-attr]
        await send(one, b"x")
        answer = await client.receive()
        assert answer.request == number
        assert bodies(answer) == [b"x"]


async def test_a_repeated_pop_gives_the_same_lease(one: Cluster) -> None:
    """A lost answer blocks nothing."""
    await send(one, b"a", b"b")
    async with one.client() as client:
        worker = Worker(client, "g")
        await worker.join()
        wish = worker.wish(1)
        first = await client.ask(Type.POP, wish)
        again = await client.ask(Type.POP, wish)
        assert rows_of(first)[0][:7] == rows_of(again)[0][:7]
        assert bodies(first) == bodies(again) == [b"a"]


async def test_what_is_given_back_comes_again(one: Cluster) -> None:
    """A release counts an attempt, one unused does not; a late word changes nothing."""
    await send(one, b"a")
    async with one.client() as client:
        worker = Worker(client, "g")
        await worker.join()
        first = await worker.pop()
        assert await worker.settle(*settles(first, What.RELEASE, 0)) == [""]
        second = await worker.pop()
        assert rows_of(second)[0][6] == 2
        assert await worker.ack(first) == ["receipt-expired"]
        assert await worker.settle(*settles(second, What.UNUSED, 0)) == [""]
        third = await worker.pop()
        assert rows_of(third)[0][6] == 2
        assert await worker.settle(*settles(third, What.RELEASE, BACK_OFF)) == [""]
        assert bodies(await worker.pop()) == [], "it waits for its pause"
        shown = await show(client, "g")
        assert (shown["lag"], shown["leased"], shown["waiting"]) == (1, 0, 1)


async def test_what_is_rejected_becomes_a_dead_letter(one: Cluster) -> None:
    """Copy and settling are one batch; the copy names where it came from and why."""
    await send(one, b"bad", b"good")
    async with one.client() as client:
        worker = Worker(client, "g")
        await worker.join()
        got = await worker.pop(1)
        (row,) = settles(got, What.REJECT)
        assert await worker.settle([*row, "cannot parse"]) == [""]
        assert bodies(await worker.pop()) == [b"good"]
        dead = await client.read("%DLQ%g")
        assert bodies(dead) == [b"bad"]
        assert b"TL_WHY\x01rejected: cannot parse\x02" in bytes(dead.payload)
        assert b"DLQ_ORIGIN_TOPIC\x01t\x02" in bytes(dead.payload)
        assert (await show(client, "g"))["lag"] == 1


async def test_a_lease_that_ends_counts_as_an_attempt(one: Cluster) -> None:
    """After the group's last attempt the message is a dead letter, by itself."""
    await send(one, b"a")
    async with one.client() as client:
        made = {"attempts": 2, "start": "start"}
        fields: dict[str, object] = {"op": "create", "name": "g", "settings": made}
        assert not (await client.ask(Type.GROUP, fields)).is_error
        await client.create("%DLQ%g", 1)
        running = one.nodes["n1"].services
        assert running is not None
        running.groups._grace_until = 0.0  # pyright: ignore[reportPrivateUsage]
        worker = Worker(client, "g")
        await worker.join()
        assert bodies(await worker.pop(invisible_ms=1_000)) == [b"a"]
        again = await worker.pop(wait_ms=20_000, invisible_ms=1_000)
        assert rows_of(again)[0][6] == 2
        assert bodies(await client.read("%DLQ%g", wait_ms=30_000)) == [b"a"]


@pytest.mark.parametrize("when", ["read", "copied"])
async def test_a_dead_letter_of_a_damaged_record_ends_nothing(
    one: Cluster, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The node serves on, and the copy is made once the record is whole again.

    The damage is found by the read, or only when the bytes are copied.
    """
    await send(one, b"a", b"b")
    async with one.client() as client:
        await client.create("%DLQ%g", 1)
        running = one.nodes["n1"].services
        assert running is not None
        worker = Worker(client, "g")
        await worker.join()
        got = await worker.pop(1)
        real, told = running.store.reads.read, list[str]()

        def damaged(topic: str, *args: object, **more: Any) -> ReadResult:
            if topic == "t":
                told.append(topic)
                if when == "read":
                    raise CorruptionError("a batch is damaged")
            found = real(topic, *args, **more)  # type: ignore[arg-type]
            if topic != "t" or not found.slices:
                return found
            data = bytearray(b"".join(found.slices))
            data[88] ^= 1  # the first byte of the body
            return replace(found, slices=[memoryview(data)])

        monkeypatch.setattr(running.store.reads, "read", damaged)
        await client.send(
            Type.SETTLE,
            {"group": "g", "member": worker.member, "rows": settles(got, What.REJECT)},
        )
        await one.until(lambda: len(told) > 1)
        if when == "read":
            assert code(await worker.pop(1)) == "corrupt"
        monkeypatch.undo()
        assert (await client.receive()).fields["rows"] == [["", 0]]
        assert bodies(await worker.pop(1)) == [b"b"]
        assert bodies(await client.read("%DLQ%g", wait_ms=30_000)) == [b"a"]


async def test_a_group_that_is_deleted_in_the_turn_of_its_first_pop_leaves_nothing(
    one: Cluster,
) -> None:
    """The next group of that name begins where it should, and is handed every message."""
    await send(one, b"a", b"b")
    async with one.client() as client:
        worker = Worker(client, "g")
        await worker.join()
        await client.send_together(
            (Type.POP, worker.wish()), (Type.GROUP, {"op": "delete", "name": "g"})
        )
        for _ in range(2):
            await client.receive()
        again = Worker(client, "g")
        await again.join()
        assert bodies(await again.pop()) == [b"a", b"b"]


async def test_together_is_all_or_nothing(one: Cluster) -> None:
    """Sends and acknowledgements share one batch; a lease that is lost keeps the sends out."""
    await send(one, b"order")
    async with one.client() as client:
        await client.create("invoices", 1)
        worker = Worker(client, "g")
        await worker.join()
        got = await worker.pop()
        invoice = records("invoices", b"invoice")
        fields: dict[str, object] = {
            "ack": "confirmed", "timeout_ms": 10_000, "sections": [invoice.row()], "group": "g",
            "member": worker.member, "generation": 0, "settles": settles(got, What.ACK),
            "commits": [],
        }  # fmt: skip
        answer = await client.ask(Type.TOGETHER, fields, invoice.data)
        assert answer.fields["stored"] is True, answer.fields
        assert bodies(await client.read("invoices")) == [b"invoice"]
        assert (await show(client, "g"))["lag"] == 0
        again = await client.ask(Type.TOGETHER, fields, invoice.data)
        assert again.fields["stored"] is False, "the message is settled, and the send is not known"
        assert bodies(await client.read("invoices")) == [b"invoice"]


async def test_broadcast_members_have_positions_of_their_own(one: Cluster) -> None:
    """Each named member goes on where it was, and no position falls."""
    await send(one, b"a", b"b", b"c")
    async with one.client() as client:
        here, there = Worker(client, "b"), Worker(client, "b")
        (row,) = rows_of(await here.join("broadcast", "left"))
        assert row[3] == 0
        await there.join("broadcast", "right")
        fields: dict[str, object] = {
            "group": "b", "member": here.member, "generation": 0, "rows": [[row[2], 2]],
        }  # fmt: skip
        assert rows_of(await client.ask(Type.COMMIT, fields)) == [["", 2]]
        back = {**fields, "rows": [[row[2], 1], [row[2], 9]]}
        assert rows_of(await client.ask(Type.COMMIT, back)) == [["offset", 2], ["offset", 2]]
        (row,) = rows_of(await Worker(client, "b").join("broadcast", "left"))
        assert row[3] == 2
        (row,) = rows_of(await Worker(client, "b").join("broadcast", "right"))
        assert row[3] == 0


async def test_a_group_is_reset_and_skipped(one: Cluster) -> None:
    """Positions move by order; leases of before are over."""
    await send(one, b"a", b"b", b"c")
    async with one.client() as client:
        worker = Worker(client, "g")
        await worker.join()
        got = await worker.pop()
        order: dict[str, object] = {"op": "reset", "name": "g", "positions": [["t", 0, 1]]}
        assert (await client.ask(Type.GROUP, order)).fields["positions"] == [["t", 0, 0, 1]]
        assert await worker.ack(got) != [""] or (await show(client, "g"))["lag"] == 2
        assert bodies(await worker.pop()) == [b"b", b"c"]
        order = {"op": "skip", "name": "g", "positions": [["t", 0, 1]]}
        assert (await client.ask(Type.GROUP, order)).fields["positions"] == [["t", 0, 1, 2]]
        assert bodies(await worker.pop()) == [b"c"]


async def test_odd_words_are_refused(one: Cluster) -> None:
    """Each with its code, and nothing is written."""
    await send(one, b"a")
    async with one.client() as client, one.client() as other:
        worker = Worker(client, "g")
        await worker.join()
        assert code(await worker.join("ordered")) == "group-mode"
        assert code(await worker.join("broadcast")) == "group-mode"
        assert code(await Worker(client, "g", ("none",)).join()) == "unknown-topic"
        assert code(await Worker(client, "a@b").join()) == "group-name"
        assert code(await Worker(other, "g", member=worker.member).pop()) == "not-member"
        assert code(await Worker(other, "unknown", member=1).pop()) == "unknown-group"
        assert code(await worker.pop(0)) == "fields"
        assert code(await worker.pop(invisible_ms=13 * 3_600_000)) == "fields"
        assert code(await client.ask(Type.POP, {"group": "g"})) == "fields"
        assert await worker.settle([99, 1, 1, 0, 0, 0]) == ["receipt-unknown"]
        got = await worker.pop()
        share, n = rows_of(got)[0][2:4]
        assert await worker.settle([share, n + 1, 1, 0, 0, 0]) == ["receipt-unknown"]
        assert await worker.settle([share, n, 1, 0, 7, 0]) == ["receipt-unknown"]
        assert await worker.settle([share, n, 1, 5, 3, 0]) == ["receipt-unknown"]
        assert await worker.ack(got) == [""]


async def test_a_member_leaves(one: Cluster) -> None:
    """At once; its parked pop is answered empty, and another word of it is refused."""
    async with one.client() as client:
        worker = Worker(client, "g")
        await worker.join()
        parked = await client.send(Type.POP, worker.wish(1, 30_000))
        fields: dict[str, object] = {
            "group": "g", "member": worker.member, "generation": 0, "finished": [], "wait_ms": 0,
            "leave": True,
        }  # fmt: skip
        await client.send(Type.BEAT, fields)
        answers = [await client.receive(), await client.receive()]
        (empty,) = [answer for answer in answers if answer.request == parked]
        assert rows_of(empty) == []
        assert code(await worker.pop()) == "not-member"
        assert (await show(client, "g"))["members"] == 0


@pytest.mark.slow
async def test_a_failover_forgets_no_lease_and_no_acknowledgement(cluster: Cluster) -> None:
    """What was popped and acknowledged before stays so; the member comes back as what it was."""
    master = cluster.master or ""
    async with cluster.client() as client:
        await client.create("t", 1)
        await client.append(records("t", *(b"%d" % number for number in range(10))))
        worker = Worker(client, "g")
        await worker.join()
        handled = await worker.pop(3)
        assert await worker.ack(handled) == [""]
        wish = worker.wish(3)
        held = await client.ask(Type.POP, wish)
        assert bodies(held) == [b"3", b"4", b"5"]
    member, heir = worker.member, cluster.slaves[0]
    await cluster.kill(master)
    await cluster.failover(heir)
    async with cluster.client() as client:
        worker.client = client
        await again(worker)
        assert worker.member == member
        repeated = await client.ask(Type.POP, wish)
        assert [row[:7] for row in rows_of(repeated)] == [row[:7] for row in rows_of(held)]
        assert bodies(repeated) == [b"3", b"4", b"5"]
        assert await worker.ack(handled) == [""]
        assert await worker.ack(held) == [""]
        assert bodies(await worker.pop()) == [b"6", b"7", b"8", b"9"]
        shown = await show(client, "g")
        assert (shown["lag"], shown["leased"]) == (4, 4)


@pytest.mark.slow
async def test_a_switchover_answers_who_waits(cluster: Cluster) -> None:
    """A parked pop is answered with the next master, which knows the member."""
    master = cluster.master or ""
    async with cluster.client() as client:
        await client.create("t", 1)
        worker = Worker(client, "g")
        await worker.join()
        parked = await client.send(Type.POP, worker.wish(1, 30_000))
        heir = cluster.slaves[0]
        order: dict[str, object] = {"op": "transfer", "to": heir, "timeout_ms": 60_000}
        await client.send(Type.ADMIN, order)
        while (answer := await client.receive()).request != parked:
            pass
        assert code(answer) == "not-master"
    await cluster.until(lambda: cluster.master not in (None, master), "another master")
    await send(cluster, b"late")
    async with cluster.client() as client:
        worker.client = client
        await again(worker)
        assert bodies(await worker.pop(wait_ms=20_000)) == [b"late"]


@pytest.mark.slow
async def test_slaves_know_what_the_master_knows(cluster: Cluster) -> None:
    """Their document of a group is the master's, with its age; changes are the master's alone."""
    async with cluster.client() as client:
        await client.create("t", 1)
        await client.append(records("t", b"a", b"b"))
        worker = Worker(client, "g")
        await worker.join()
        await worker.ack(await worker.pop(1))
        assert bodies(await worker.pop(1)) == [b"b"]
        wanted = (await show(client, "g"))["queues"]
    async with cluster.client(cluster.slaves[0]) as client:
        with trio.fail_after(60):
            while True:
                answer = await client.ask(Type.GROUP, {"op": "show", "name": "g"})
                if not answer.is_error:
                    group = cast("Mapping[str, Any]", answer.fields["group"])
                    if group["queues"] == wanted:
                        break
                await trio.sleep(0.01)
        assert answer.fields["role"] == "slave"
        fields: dict[str, object] = {"op": "delete", "name": "g"}
        assert code(await client.ask(Type.GROUP, fields)) == "not-master"


@pytest.mark.slow
async def test_what_waits_in_a_file_that_leaves_becomes_a_dead_letter(tmp_path: Path) -> None:
    """Retention takes its file once the copy is in the log; nothing goes silently."""
    node = Processes(tmp_path, nodes=1, segment_size=2 * MiB)
    kept = '[retention]\nkeep_bytes = "6 MiB"\ndelete_at = "any time"\nlook = "100 ms"\n'
    node.path.write_text(f'{node.path.read_text()}\n{kept}pause = "0 s"\nhold = "100 ms"\n')
    node = Processes(tmp_path, nodes=1)
    try:
        await trio.to_thread.run_sync(node.start_all)
        async with connected(node.address("n1")) as client:
            await client.create("t", 1)
            await client.create("%DLQ%g", 1)
            await client.append(records("t", b"old"))
            worker = Worker(client, "g")
            await worker.join()
            got = await worker.pop()
            assert await worker.settle(*settles(got, What.RELEASE, 3_600_000)) == [""]
            for _ in range(12):
                await client.append(records("t", *[bytes(1024)] * 900))
            dead = await client.read("%DLQ%g", wait_ms=30_000)
            assert bodies(dead) == [b"old"]
            assert b"TL_WHY\x01retention\x02" in bytes(dead.payload)
    finally:
        node.close()
