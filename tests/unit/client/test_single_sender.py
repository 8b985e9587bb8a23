"""The single send of its own: what the general way would send, and leave to it what is rare."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.unit.client.test_producer import Bench, stored
from twinlog import wire
from twinlog.errors import RecordRefused
from twinlog.outgoing import Section, State
from twinlog.producer import ProducerCore, Request
from twinlog.producer_settings import ProducerSettings, Target
from twinlog.record import decode
from twinlog.single_sender import SingleSender
from twinlog.wire import Frame, FrameError, Type

KiB = 1024


class Desk(Bench):
    """A sender of single records to two queues; ``short`` says which way they go."""

    def __init__(self, *, short: bool = True, batch: bool = False) -> None:
        super().__init__(window=1)
        self.short = short
        target = Target("t", 2, 4, 77, 4 * KiB * KiB, 64 * KiB * KiB, batch=batch)
        self.single = SingleSender(
            target,
            ProducerSettings(window=1),
            wall_ms=lambda: int(self.now * 1000),
            now=lambda: self.now,
            random=lambda: 1.0,
        )
        self.single.unrouted = False
        self.core: ProducerCore = self.single

    def send(self, body: bytes = b"x", **more: str | int) -> tuple[Section, Request]:
        """Have a record under way, as `Client.send` does."""
        if self.short:
            made = self.single.alone(body, timeout=30.0, **more)  # type: ignore[arg-type]
            if made is not None:
                return made
        section = self.single.add(body, **more)  # type: ignore[arg-type]
        self.single.close(section)
        self.single.limit(section, self.now + 30.0)
        return section, self.requests()[0]


def plain(at: int) -> list[object]:
    """The row of a section that is stored, as a node writes it."""
    return [0, at, at * 100, at * 100 + 90, "", "", -1]


def shown(section: Section) -> tuple[object, ...]:
    """What became of a section."""
    return (
        section.state, section.queue, section.sequence, section.epoch, section.queue_offset,
        section.log_offset, section.master_epoch, section.confirmed_by, section.answered,
        section.records, section.size, section.deadline, section.attempts,
    )  # fmt: skip


def sent(request: Request) -> tuple[object, ...]:
    """What goes over the wire for it."""
    return request.number, request.fields, [bytes(one) for one in request.pieces], request.deadline


def test_both_ways_send_and_leave_the_same() -> None:
    """Bytes, fields, receipts, statistics, whose turn it is, and what a later one does."""
    desks = Desk(short=True), Desk(short=False)
    rng = random.Random(5)
    for at in range(60):
        named = (("key", "k"), ("tag", "a"), ("order_key", f"o{at % 3}"))
        more: dict[str, str | int] = {name: text for name, text in named if rng.random() < 0.3}
        if rng.random() < 0.2:
            more = {"queue": at % 2}
        row = rng.choice([plain(at), stored(at), [1, at, -1, 0, "", "", -1]])
        refused = rng.random() < 0.1
        results: list[tuple[object, ...]] = []
        for desk in desks:
            section, request = desk.send(b"b" * at, **more)
            under_way = sent(request)
            if refused:
                desk.refuse(request, "bad")
                desk.core.collect()
            else:
                desk.answer(request, row)
            desk.now += 0.0625
            single, statistics = desk.single, desk.single.statistics
            results.append(
                (under_way, shown(section), repr(statistics), single.idle, single.in_flight,
                 single.deadline, single.failures, single.refusal)
            )  # fmt: skip
        assert results[0] == results[1]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda desk, request: desk.answer(request, [3, -1, -1, 0, "", "", -1]),
        lambda desk, request: desk.refuse(request, "busy", retryable=True),
        lambda desk, request: desk.single.on_lost(desk.now),
    ],
    ids=["unknown", "busy", "lost"],
)
def test_without_success_it_is_the_lanes_matter(spoil: Callable[[Desk, Request], None]) -> None:
    """The same bytes under the same number go again; the next record waits for it."""
    desk = Desk()
    section, request = desk.send(b"one", queue=1)
    spoil(desk, request)
    assert section.state is State.WAITING
    assert desk.single.alone(b"two", queue=1, timeout=30.0) is None
    desk.now += 5.0
    desk.single.unrouted = False
    (again,) = desk.requests()
    assert [bytes(one) for one in again.pieces] == [bytes(one) for one in request.pieces]
    assert again.fields["sections"] == request.fields["sections"]
    desk.answer(again, plain(4))
    assert (section.state, section.queue_offset) == (State.STORED, 4)
    assert desk.single.alone(b"two", queue=1, timeout=30.0) is not None


@pytest.mark.parametrize(
    "change",
    [
        {"results": [[0, -1, 5, 9, "", "", -1]]},
        {"results": [[0, 1, 5, 9, "", "", 0]]},
        {"results": [[0, 1, 5, 9, "", "", -1, "later"]]},
        {"confirmed_by": None},
        {"buffered": True},
    ],
)
def test_an_answer_that_is_not_plain_is_read_the_general_way(change: dict[str, object]) -> None:
    """It says "stored" all the same."""
    desk = Desk()
    section, request = desk.send()
    fields = {"results": [plain(0)], "confirmed_by": ["n1"], "epoch": 3, **change}
    fields = {name: value for name, value in fields.items() if value is not None}
    desk.core.on_answer(request.number, Frame(Type.APPEND, wire.ANSWER, fields=fields), desk.now)
    assert section.stored
    assert section.buffered is ("buffered" in change)


@pytest.mark.parametrize(
    "change",
    [
        {"results": [["0", 1, 5, 9, "", "", -1]]},
        {"results": [[0, 1, 5, None, "", "", -1]]},
        {"results": [[0, 1, 5, 9, "", "", -1]] * 2},
        {"results": ["x"]},
        {"results": None},
        {"confirmed_by": [1]},
        {"epoch": "3"},
    ],
)
def test_an_answer_of_another_shape_is_no_answer(change: dict[str, object]) -> None:
    """The connection is to be closed; the section is still under way."""
    desk = Desk()
    section, request = desk.send()
    fields = {"results": [plain(0)], "confirmed_by": ["n1"], "epoch": 3, **change}
    frame = Frame(Type.APPEND, wire.ANSWER, fields=fields)
    with pytest.raises(FrameError):
        desk.core.on_answer(request.number, frame, desk.now)
    assert not section.done
    desk.single.on_lost(desk.now)
    desk.core.on_answer(request.number, frame, desk.now)
    assert section.state is State.WAITING


def test_large_bodies_go_alone_as_well() -> None:
    """Up to what a message may have; and an answer to nothing changes nothing."""
    desk = Desk()
    section, request = desk.send(b"x" * 200 * KiB)
    desk.answer(request, plain(0))
    desk.answer(request, plain(1))
    assert (section.stored, section.queue_offset) == (True, 0)
    desk.send(b"x", queue=section.queue)
    desk.single.on_lost(desk.now)
    desk.now += 60.0
    desk.single.expire(desk.now)
    desk.single.collect()


def test_what_cannot_go_at_once_is_not_begun() -> None:
    """No master is known, a pause runs, another one is under way, the topic has batch queues."""
    desk = Desk()
    desk.single.unrouted = True
    assert desk.single.alone(b"x", timeout=1.0) is None
    desk.single.unrouted, desk.single.retry_at = False, desk.now + 1
    assert desk.single.alone(b"x", timeout=1.0) is None
    desk.single.retry_at = 0.0
    desk.single.add(b"open", queue=1)
    assert desk.single.alone(b"x", queue=1, timeout=1.0) is None
    desk.send(queue=0)
    assert desk.single.alone(b"x", timeout=1.0) is None
    assert Desk(batch=True).single.alone(b"x", timeout=1.0) is None


def test_a_record_that_is_refused_leaves_nothing_behind() -> None:
    """Too large a body, a queue that is none, properties that do not fit."""
    desk = Desk()
    for body, more in ((b"x" * (5 * KiB * KiB), {}), (b"x", {"queue": 2}), (b"x", {"tag": ""})):
        with pytest.raises(RecordRefused):
            desk.single.alone(body, timeout=1.0, **more)  # type: ignore[arg-type]
    with pytest.raises(RecordRefused, match="properties have"):
        desk.single.alone(b"x", timeout=1.0, properties={"p": "v" * 32_700})
    assert desk.single.idle
    section, request = desk.send(b"x", tag="a")
    assert (section.sequence, request.number) == (0, 1)
    assert decode(request.pieces[0]).tag == "a"


def test_one_that_was_refused_gives_its_number_to_the_next() -> None:
    """Its place in the line of its queue is free again."""
    desk = Desk()
    _, request = desk.send(b"bad", queue=0)
    desk.refuse(request, "bad")
    desk.core.collect()
    section, request = desk.send(b"good", queue=0)
    assert section.sequence == 0
    desk.answer(request, plain(0))
    assert section.stored
