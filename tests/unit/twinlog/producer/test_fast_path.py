"""The single send of its own: what the general way would send, and leave to it what is rare."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Unpack

import pytest

from tests.fakes.producer_bench import Bench, stored
from twinlog.errors import RecordRefused
from twinlog.format.record import decode
from twinlog.producer.core import Request
from twinlog.producer.fast_path import SingleSender
from twinlog.producer.new_message import MessageFields, NewMessage
from twinlog.producer.section import Section, State
from twinlog.wire import frames
from twinlog.wire.frames import Frame, FrameError, Type

KiB = 1024


class Desk(Bench):
    """A sender of single records to two queues; ``short`` says which way they go."""

    def __init__(self, *, short: bool = True, batch: bool = False) -> None:
        super().__init__(window=1, batch_topic=batch)
        self.short = short
        self.single = SingleSender(self.core)

    def alone(
        self, body: bytes, timeout: float = 30.0, **message: Unpack[MessageFields]
    ) -> tuple[Section, Request | None]:
        """Send a record as `Client.send` does; None: it could not be sent at once."""
        now_ms = int(self.now * 1000)
        return self.single.send(body, NewMessage(**message), self.now, now_ms, timeout=timeout)

    def send(self, body: bytes = b"x", **message: Unpack[MessageFields]) -> tuple[Section, Request]:
        """Have a record under way."""
        if self.short:
            section, request = self.alone(body, **message)
            return section, request or self.request()
        section = self.add(body, **message)
        self.core.close(section, self.now)
        self.core.limit(section, self.now + 30.0)
        return section, self.request()

    def answer(self, request: Request, *rows: list[object]) -> None:
        """Answer a request, as a producer that sends singly takes it."""
        fields: dict[str, object] = {"results": list(rows), "confirmed_by": ["n1"], "epoch": 3}
        self.take(request, Frame(Type.APPEND, frames.ANSWER, fields=fields))

    def take(self, request: Request, frame: Frame) -> None:
        """Take any answer."""
        (self.single if self.short else self.core).on_answer(request.number, frame, self.now)


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
            single, statistics = desk.core, desk.core.statistics
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
        lambda desk, request: desk.core.on_lost(desk.now),
    ],
    ids=["unknown", "busy", "lost"],
)
def test_without_success_it_is_the_lanes_matter(spoil: Callable[[Desk, Request], None]) -> None:
    """The same bytes under the same number go again; the next record waits for it."""
    desk = Desk()
    section, request = desk.send(b"one", queue=1)
    spoil(desk, request)
    assert section.state is State.WAITING
    two, none = desk.alone(b"two", queue=1)
    assert none is None
    desk.now += 5.0
    desk.core.unrouted = False
    again = desk.request()
    assert [bytes(one) for one in again.pieces] == [bytes(one) for one in request.pieces]
    assert again.fields["sections"] == request.fields["sections"]
    desk.answer(again, plain(4))
    assert (section.state, section.queue_offset) == (State.STORED, 4)
    desk.answer(desk.request(), plain(5))
    assert two.stored
    assert desk.alone(b"three", queue=1)[1] is not None


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
    desk.take(request, Frame(Type.APPEND, frames.ANSWER, fields=fields))
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
    frame = Frame(Type.APPEND, frames.ANSWER, fields=fields)
    with pytest.raises(FrameError):
        desk.take(request, frame)
    assert not section.done
    desk.core.on_lost(desk.now)
    desk.take(request, frame)
    assert section.state is State.WAITING


def test_large_bodies_go_alone_as_well() -> None:
    """Up to what a message may have; and an answer to nothing changes nothing."""
    desk = Desk()
    section, request = desk.send(b"x" * 200 * KiB)
    desk.answer(request, plain(0))
    desk.answer(request, plain(1))
    assert (section.stored, section.queue_offset) == (True, 0)
    desk.send(b"x", queue=section.queue)
    desk.core.on_lost(desk.now)
    desk.now += 60.0
    desk.core.expire(desk.now)
    desk.core.collect()


def not_routed(desk: Desk) -> None:
    desk.core.unrouted = True


def pausing(desk: Desk) -> None:
    desk.core.retry_at = desk.now + 1


def open_section(desk: Desk) -> None:
    desk.add(b"open", queue=1)


def under_way(desk: Desk) -> None:
    desk.send(queue=0)


@pytest.mark.parametrize("spoil", [not_routed, pausing, open_section, under_way])
def test_what_cannot_be_sent_at_once_takes_its_turn(spoil: Callable[[Desk], None]) -> None:
    """No master is known, a pause runs, another one is under way: the lanes send it in time."""
    desk = Desk()
    spoil(desk)
    section, request = desk.alone(b"x", queue=1, timeout=1.0)
    assert request is None
    assert (section.state, section.deadline) == (State.WAITING, desk.now + 1.0)
    desk.core.unrouted = False
    desk.now = max(desk.now, desk.core.retry_at)
    sent = desk.requests()
    assert any(bytes(piece).count(b"x") for one in sent for piece in one.pieces)


def test_batch_topics_have_lanes_only() -> None:
    """Their records are wrapped when the section closes."""
    assert Desk(batch=True).alone(b"x", timeout=1.0)[1] is None


def test_a_record_that_is_refused_leaves_nothing_behind() -> None:
    """Too large a body, a queue that is none, properties that do not fit."""
    desk = Desk()
    for body, more in ((b"x" * (5 * KiB * KiB), {}), (b"x", {"queue": 2}), (b"x", {"tag": ""})):
        with pytest.raises(RecordRefused):
            desk.alone(body, timeout=1.0, **more)  # type: ignore[arg-type]
    with pytest.raises(RecordRefused, match="properties have"):
        desk.alone(b"x", timeout=1.0, properties={"p": "v" * 32_700})
    assert desk.core.idle
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
