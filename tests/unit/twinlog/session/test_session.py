"""A call's decisions, step by step: whom it asks, when it waits, and how it ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.twinlog.session.stage import (
    DOWN,
    LOST,
    A,
    B,
    C,
    Reply,
    Stage,
    created,
    error,
    metadata,
    offsets,
)
from twinlog.client.search import Finding, Search, find
from twinlog.errors import (
    NotMaster,
    NotYetConfirmed,
    OutcomeUnknown,
    ProtocolError,
    TwinlogError,
    Unavailable,
    UnknownTopic,
    UsageError,
)
from twinlog.session.link import Link, error_of
from twinlog.session.routing import Address, RoutingTable, parse_route
from twinlog.session.session import (
    ANY,
    MASTER,
    REDIRECTS_MAX,
    Ask,
    Steps,
)
from twinlog.wire import frames
from twinlog.wire.frames import Frame, FrameError, Type


@pytest.fixture(autouse=True)
def short_pauses() -> None:
    """Here time is only told, so pauses keep their length."""


@pytest.fixture(autouse=True)
def clock() -> None:
    """And so does everybody's patience."""


def test_a_question_goes_to_the_first_that_answers() -> None:
    """Nodes that cannot be reached are passed over at once and asked last afterwards."""
    stage = Stage(A, B)
    route = stage.play(
        stage.session.route(10.0), lambda name, _: DOWN if name == "a" else metadata("c", 7)
    )
    assert route.master == C
    assert stage.asked == [("a", "METADATA"), ("b", "METADATA")]
    assert stage.session.table.candidates() == [C, B, A]


def test_smaller_epochs_are_not_believed() -> None:
    """A node that has not heard of epoch 8 is asked again, not followed back."""
    stage = Stage(A)
    stage.session.table.epoch = 8
    answers = [metadata("a", 7), metadata("b", 8)]
    route = stage.play(stage.session.route(10.0), lambda *_: answers.pop(0))
    assert (route.leader, route.epoch) == ("b", 8)
    assert stage.asked == [("a", "METADATA"), ("pause", "0.050"), ("a", "METADATA")]
    with pytest.raises(Unavailable, match="older epoch than 8"):
        stage.play(stage.session.route(stage.now + 0.2), lambda *_: metadata("a", 7))
    with pytest.raises(Unavailable):
        stage.play(stage.session.route(stage.now + 0.2), lambda *_: metadata("a", 9, cluster="x"))


def test_a_thorough_search_asks_everybody_but_suspects() -> None:
    """The first may not have heard; a newer epoch ends the search."""
    stage = Stage(A, B, C)
    stage.play(stage.session.route(10.0), lambda *_: metadata("a", 7))
    stage.session.table.suspect(A)
    stage.asked.clear()
    stage.play(stage.session.route(10.0, thorough=True), lambda *_: metadata("a", 7))
    assert [name for name, _ in stage.asked] == ["b", "c"]
    stage.asked.clear()
    stage.play(stage.session.route(10.0, thorough=True), lambda *_: metadata("b", 8))
    assert [name for name, _ in stage.asked] == ["b"]


def test_refusals_of_a_question() -> None:
    """A busy node is passed over; another version or cluster is told to the caller."""
    stage = Stage(A, B)
    route = stage.play(
        stage.session.route(10.0),
        lambda name, _: (
            error(Type.METADATA, "busy", retryable=True) if name == "a" else metadata("b", 1)
        ),
    )
    assert route.epoch == 1
    with pytest.raises(UsageError):
        stage.play(
            stage.session.route(10.0),
            lambda *_: error(Type.METADATA, "other-cluster", retryable=False),
        )


def test_waiting_for_a_master() -> None:
    """No master: asked again with growing pauses; at the deadline the command is named."""
    stage = Stage(A)
    with pytest.raises(Unavailable, match="no master at epoch 7") as caught:
        stage.play(stage.session.master(1.0), lambda *_: metadata(None, 7))
    assert "failover" in str(caught.value.hint)
    pauses = [text for name, text in stage.asked if name == "pause"]
    assert pauses == ["0.050", "0.100", "0.200", "0.200", "0.200"]


def test_a_change_follows_the_master() -> None:
    """Not master with a hint: the next is asked at once, without a pause or a search."""
    stage = Stage(A)

    def answer(name: str, frame: Frame) -> Reply:
        if frame.type == Type.METADATA:
            return metadata("a", 7)
        if name == "a":
            return error(
                Type.TOPIC, "not-master", retryable=True, epoch=8, host=B.host, port=B.port
            )
        return created()

    found = stage.play(stage.session.call(Type.TOPIC, {}, deadline=10.0, to=MASTER), answer)
    assert found.fields["created"] is True
    assert stage.asked == [("a", "METADATA"), ("a", "TOPIC"), ("b", "TOPIC")]
    assert stage.session.table.epoch == 8


def test_nodes_that_name_each_other_are_not_asked_without_end() -> None:
    """A few redirects are followed at once, then there is a pause, as after any refusal."""
    stage = Stage(A)
    others = {"a": B, "b": A}

    def answer(name: str, frame: Frame) -> Reply:
        if frame.type == Type.METADATA:
            return metadata("a", 7)
        at = others[name]
        return error(frame.type, "not-master", retryable=True, epoch=7, host=at.host, port=at.port)

    for to in (MASTER, ANY):
        stage.asked.clear()
        with pytest.raises(NotMaster):
            stage.play(stage.session.call(Type.TOPIC, {}, deadline=stage.now + 9.0, to=to), answer)
        pauses = [at for at, (name, _) in enumerate(stage.asked) if name == "pause"]
        assert pauses
        asked = [sum(kind == "TOPIC" for _, kind in stage.asked[: pauses[0]]), len(stage.asked)]
        assert asked[0] == 1 + REDIRECTS_MAX
        assert asked[1] < 150


def test_a_node_that_moves_on_and_on_is_given_up() -> None:
    """A node by name is looked for at its new address, a few times."""
    stage = Stage(A)
    ports = iter(range(9000, 9999))

    def answer(name: str, frame: Frame) -> Reply:
        if frame.type == Type.METADATA:
            return metadata("a", 7, moved={"b": Address("127.0.0.1", next(ports))})
        return DOWN

    with pytest.raises(Unavailable):
        stage.play(stage.session.call(Type.STATUS, {}, deadline=9.0, to="b"), answer)
    assert sum(kind == "STATUS" for _, kind in stage.asked) == 1 + REDIRECTS_MAX


@pytest.mark.parametrize("facts", [{}, {"epoch": 6, "host": B.host, "port": B.port}])
def test_hints_of_the_past_are_not_followed(facts: dict[str, object]) -> None:
    """Without a name, or with a smaller epoch, the others are asked who is master."""
    stage, first = Stage(A, B), [True]

    def answer(name: str, frame: Frame) -> Reply:
        if frame.type == Type.METADATA:
            return metadata("a", 7) if first[0] else metadata("c", 8)
        if name == "c":
            return created()
        first[0] = False
        return error(Type.TOPIC, "not-master", retryable=True, **facts)

    stage.play(stage.session.call(Type.TOPIC, {}, deadline=10.0, to=MASTER), answer)
    assert stage.asked[-1] == ("c", "TOPIC")


def test_a_lost_change_is_repeated_or_unknown() -> None:
    """Repeated while it may be; unknown when it may not, or when the deadline comes first."""

    def answer(_: str, frame: Frame) -> Reply:
        return metadata("a", 7) if frame.type == Type.METADATA else LOST

    stage = Stage(A)
    with pytest.raises(OutcomeUnknown, match="broke off"):
        stage.play(stage.session.call(Type.TOPIC, {}, deadline=20.0, to=MASTER), answer)
    assert sum(kind == "TOPIC" for _, kind in stage.asked) > 2
    stage = Stage(A)
    call = stage.session.call(Type.ADMIN, {}, deadline=20.0, to=MASTER, repeat=False)
    with pytest.raises(OutcomeUnknown):
        stage.play(call, answer)
    assert sum(kind == "ADMIN" for _, kind in stage.asked) == 1
    stage = Stage(A)
    with pytest.raises(Unavailable):
        stage.play(stage.session.call(Type.STATUS, {}, deadline=20.0), answer)


def test_a_change_that_nobody_takes_is_not_done() -> None:
    """Never sent: not done, whatever the deadline."""
    stage = Stage(A)

    def answer(_: str, frame: Frame) -> Reply:
        return metadata("a", 7) if frame.type == Type.METADATA else DOWN

    with pytest.raises(Unavailable):
        stage.play(stage.session.call(Type.TOPIC, {}, deadline=3.0, to=MASTER), answer)
    with pytest.raises(Unavailable):
        stage.play(stage.session.call(Type.TOPIC, {}, deadline=0.0, to=MASTER), lambda *_: DOWN)
    stage.play(stage.session.call(Type.METADATA, {}, deadline=99.0), lambda *_: metadata("a", 7))
    late = stage.session.call(Type.TOPIC, {}, deadline=0.0, to=ANY)
    with pytest.raises(Unavailable, match="deadline had passed"):
        stage.play(late, answer)


def test_only_the_master_answers_for_the_master() -> None:
    """A slave's offsets, or the topics of a node that is no longer master, are not taken."""
    stage, turns = Stage(A), [0]

    def answer(name: str, frame: Frame) -> Reply:
        if frame.type == Type.METADATA:
            return metadata("b" if turns[0] else "a", 7 + turns[0])
        turns[0] = 1
        return offsets("master" if name == "b" else "slave")

    found = stage.play(stage.session.call(Type.OFFSETS, {}, deadline=9.0, to=MASTER), answer)
    assert found.fields["role"] == "master"
    assert stage.asked[-1] == ("b", "OFFSETS")
    stage = Stage(A)
    stage.play(stage.session.route(9.0), lambda *_: metadata("a", 7))
    found = stage.play(
        stage.session.call(Type.METADATA, {}, deadline=9.0, to=MASTER), lambda *_: metadata("b", 8)
    )
    assert stage.asked[-1] == ("b", "METADATA")


def test_a_new_master_is_asked_again_until_it_knows_what_is_confirmed() -> None:
    """Its end may lie below what its forerunner acknowledged; who insists is told so in time."""
    stage = Stage(A)
    told: list[bool] = []

    def answer(name: str, frame: Frame) -> Reply:
        if frame.type == Type.METADATA:
            return metadata("b", 2)
        told.append(len(told) > 1)
        found = offsets("master")
        found.fields["settled"] = told[-1]
        return found

    asking = stage.session.call(Type.OFFSETS, {"topic": "t"}, deadline=9.0, to=MASTER)
    assert stage.play(asking, answer).fields["settled"] is True
    assert told == [False, False, True]

    def never(name: str, frame: Frame) -> Reply:
        found = metadata("b", 2) if frame.type == Type.METADATA else offsets("master")
        found.fields["settled"] = False
        return found

    asking = stage.session.call(Type.OFFSETS, {}, deadline=stage.now + 2.0, to=MASTER)
    with pytest.raises(NotYetConfirmed):
        stage.play(asking, never)
    anybody = stage.session.call(Type.OFFSETS, {}, deadline=stage.now + 2.0, to=ANY)
    assert stage.play(anybody, never).fields["settled"] is False


def test_a_node_that_is_no_master_any_more_cannot_deny_a_topic() -> None:
    """It may have been created at its successor; who is asked as a slave is believed."""
    stage = Stage(A)
    turns = [0]

    def answer(name: str, frame: Frame) -> Reply:
        if frame.type == Type.METADATA:
            turns[0] += 1
            return metadata("b" if turns[0] > 1 else "a", 7 + turns[0])
        if name == "b":
            return offsets("master")
        return error(Type.OFFSETS, "unknown-topic", retryable=False, settled=False)

    found = stage.play(stage.session.call(Type.OFFSETS, {}, deadline=9.0, to=MASTER), answer)
    assert found.fields["role"] == "master"
    assert [each for each in stage.asked if each[1] == "OFFSETS"] == [
        ("a", "OFFSETS"),
        ("b", "OFFSETS"),
    ]
    stage = Stage(A)
    with pytest.raises(UnknownTopic):
        stage.play(stage.session.call(Type.OFFSETS, {}, deadline=9.0, to=ANY), answer)


def test_a_node_by_name() -> None:
    """Asked once, at the address it has now; a name nobody knows is the caller's mistake."""
    stage = Stage(A)
    elsewhere = Address("127.0.0.1", 9999)
    moved: dict[str, Address] = {}

    def answer(name: str, frame: Frame) -> Reply:
        if frame.type == Type.METADATA:
            return metadata("a", 7, moved=moved)
        moved["b"] = elsewhere
        return DOWN if name == "b" else Frame(Type.STATUS, frames.ANSWER)

    stage.play(stage.session.call(Type.STATUS, {}, deadline=9.0, to="b"), answer)
    assert stage.asked[-1] == (str(elsewhere), "STATUS")

    def refuse(code: str, *then: Reply) -> Callable[[str, Frame], Reply]:
        left = [error(Type.STATUS, code, retryable=True), *then]
        return lambda _, frame: metadata("a", 7) if frame.type == Type.METADATA else left.pop(0)

    call = stage.session.call
    with pytest.raises(NotMaster):
        stage.play(call(Type.STATUS, {}, deadline=stage.now + 9, to="c"), refuse("not-master"))
    busy = refuse("busy", Frame(Type.STATUS, frames.ANSWER))
    stage.play(call(Type.STATUS, {}, deadline=stage.now + 9, to="c"), busy)
    with pytest.raises(UsageError, match="no node x") as caught:
        stage.play(call(Type.STATUS, {}, deadline=stage.now + 9, to="x"), refuse("busy"))
    assert "a, b, c" in str(caught.value.hint)
    with pytest.raises(Unavailable, match="starting"):
        stage.play(call(Type.STATUS, {}, deadline=stage.now + 9, to="silent"), refuse("busy"))
    with pytest.raises(Unavailable):
        stage.play(call(Type.STATUS, {}, deadline=stage.now + 1, to="c"), lambda *_: DOWN)


def test_the_successor_of_a_master() -> None:
    """First search, hint, silence: each ends at a master or in time."""
    stage = Stage(A, B)
    find = stage.session.successor
    assert stage.play(find(None, None, 9.0), lambda *_: metadata("a", 7)) == A
    hint = NotMaster("no", host=B.host, port=B.port, epoch=8)
    assert stage.play(find(A, hint, 9.0), lambda *_: DOWN) == B
    stage.session.table.suspect(B)
    assert stage.play(find(B, None, 99.0), lambda *_: metadata("c", 9)) == C
    assert stage.play(find(C, Unavailable("x"), 99.0), lambda *_: DOWN) == C
    assert stage.session.redirect(NotMaster("no", host=C.host, port=C.port), C) is False


@pytest.mark.parametrize(
    "change",
    [
        {"nodes": [7]},
        {"nodes": [{"name": 7}]},
        {"nodes": [{"name": "a", "client_port": "7410"}]},
        {"topics": {"orders": "4"}},
        {"topics": {"orders": 0}},
        {"topics": {7: 4}},
    ],
)
def test_routes_of_another_shape(change: dict[str, object]) -> None:
    """What a node tells is checked before it is believed."""
    with pytest.raises(FrameError):
        parse_route({**metadata("a", 7).fields, **change})


def test_the_table_of_routes() -> None:
    """Hints count while their epoch does; a suspect's hint is dropped; trust is restored."""
    table = RoutingTable((A,))
    assert table.master is None
    assert table.candidates() == [A]
    assert table.hint(B, 3)
    assert table.candidates() == [B, A]
    table.suspect(B)
    assert table.master is None
    assert table.suspected(B)
    assert table.hint(B, 3) is False
    table.trust(B)
    assert table.hint(None, 9) is False
    assert table.learn(parse_route(metadata("silent", 3).fields))
    assert table.master is None
    assert table.learn(parse_route(metadata("b", 2).fields)) is False


# ── one connection ──────────────────────────────────────────────────────────────────────────────


def hello(family: int = 4) -> Frame:
    fields: dict[str, object] = {
        "version": 1,
        "features": 0,
        "node": "a",
        "cluster": "demo",
        "group": "g1",
        "family": family,
        "segment_size": 1 << 20,
    }
    return Frame(Type.HELLO, frames.ANSWER, fields=fields)


def greeted() -> Link:
    link = Link("test")
    link.hello()
    link.feed(frames.encode_whole(hello()))
    assert list(link.answers()) == []
    assert link.peer is not None
    return link


def test_requests_carry_the_names_after_the_greeting() -> None:
    """Ids count up, the names' CRC is known from HELLO on, payloads are not copied."""
    link = greeted()
    payload = memoryview(b"payload")
    assert link.next_number == 1
    number, parts = link.request(Frame(Type.APPEND), [payload])
    assert (number, parts[1] is payload, link.waiting) == (1, True, 1)
    reader = frames.FrameReader()
    for part in parts:
        reader.feed(part)
    frame = reader.next()
    assert frame is not None
    assert frame.names_crc == frames.names_crc("demo", "g1")
    link.finish()


def test_answers_that_answer_nothing() -> None:
    """An id that was never used, an answer of another type, a request from a node: all end it."""
    for flags, kind, number in (
        (frames.ANSWER, Type.GET, 9),
        (0, Type.GET, 1),
        (frames.ANSWER, Type.STATUS, 1),
    ):
        link = greeted()
        link.request(Frame(Type.GET))
        link.feed(frames.encode_whole(Frame(kind, flags, request=number)))
        with pytest.raises(FrameError):
            list(link.answers())


def test_answers_that_nobody_waits_for_any_more() -> None:
    """A forgotten request's answer is dropped, others come through."""
    link = greeted()
    one, _ = link.request(Frame(Type.GET))
    two, _ = link.request(Frame(Type.GET))
    link.forget(one)
    link.forget(99)
    for number in (one, two):
        link.feed(frames.encode_whole(Frame(Type.GET, frames.ANSWER, request=number)))
    assert [frame.request for frame in link.answers()] == [two]


def test_a_greeting_that_is_refused() -> None:
    """Another version, another cluster, an address family that does not exist."""
    link = Link("test")
    link.feed(frames.encode_whole(error(Type.HELLO, "version", retryable=False)))
    with pytest.raises(TwinlogError):
        list(link.answers())
    link = Link("test")
    link.feed(frames.encode_whole(hello(family=5)))
    with pytest.raises(ProtocolError, match="4 or 6"):
        list(link.answers())
    with pytest.raises(FrameError):
        error_of(Frame(Type.GET, frames.ANSWER | frames.ERROR))


def test_a_search_is_asked_once_and_may_take_as_long_as_its_caller_waits() -> None:
    """One of 2.5 s within 10 s: found by the first question, which says how long it may take."""
    stage = Stage(A)
    times: list[object] = []
    waited: list[float] = []

    def answer(_: str, frame: Frame) -> Reply:
        if frame.type == Type.METADATA:
            return metadata("a", 7)
        times.append(frame.fields["timeout_ms"])
        stage.now += 2.5
        fields: dict[str, object] = {
            "count": 0, "more": False, "complete": True, "confirm": 0, "age_ms": 0,
            "node": "a", "role": "master",
        }  # fmt: skip
        return Frame(Type.FIND, frames.ANSWER, fields=fields)

    def steps() -> Steps[Finding]:
        search = find(stage.session, Search("t", "k"), read_from="master", deadline=10.0)
        reply = None
        while True:
            try:
                step = search.send(reply)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            if isinstance(step, Ask) and step.frame.type == Type.FIND:
                waited.append(step.seconds)
            reply = yield step

    found = stage.play(steps(), answer)
    assert (found.complete, found.node) == (True, "a")
    assert times == [pytest.approx(9000, abs=5)]
    assert waited == [pytest.approx(10.0, abs=0.01)]
    assert [kind for _, kind in stage.asked] == ["METADATA", "FIND"]


def test_a_stranger_at_an_old_address_ends_no_search_for_a_newer_route() -> None:
    """Looking for a route is no question of the caller's: a refusal of it is not theirs either."""
    stage = Stage(A)
    stage.play(stage.session.route(10.0), lambda *_: metadata("a", 7))
    stranger = error(Type.METADATA, "other-cluster", retryable=False)
    stage.play(stage.session.refresh(10.0), lambda *_: stranger)
    assert stage.session.table.epoch == 7


def test_topics_come_in_pages_and_the_route_has_them_all() -> None:
    """Each page is asked for after the last name of the one before; of some nothing is returned."""
    stage = Stage(A)
    asked: list[object] = []

    def answer(_: object, frame: Frame) -> Frame:
        after = frame.fields.get("after")
        asked.append(after)
        page = metadata("a", 7)
        topics: dict[str, object] = {"b": 2} if after == "a" else {"a": 1}
        more = {} if after == "a" else {"more": "a"}
        page.fields.update({"topics": topics, "batched": list(topics), **more})
        return page

    route = stage.play(stage.session.metadata(deadline=9.0, to=MASTER), answer)
    assert (route.topics, route.batched) == ({"a": 1, "b": 2}, {"a", "b"})
    assert asked[-2:] == [None, "a"]


def test_pages_that_go_round_in_circles_are_a_violation() -> None:
    """A node that always answers with the same page keeps nobody busy for ever."""
    page = metadata("a", 7)
    page.fields["more"] = "a"
    with pytest.raises(FrameError, match="next page"):
        Stage(A).play(Stage(A).session.metadata(deadline=9.0), lambda *_: page)
