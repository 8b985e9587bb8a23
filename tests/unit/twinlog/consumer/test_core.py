"""What a reader makes of addresses, offsets, late answers and advice, without a node."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from twinlog.consumer.core import Cursor, ReaderCore, ReadSettings
from twinlog.consumer.start_offsets import parse_offsets
from twinlog.errors import Unavailable, UsageError
from twinlog.format.address import parse_address
from twinlog.session.reading import AS_CONFIGURED, ask_reader
from twinlog.session.routing import Address, Route, RoutingTable, parse_endpoints, parse_route
from twinlog.wire.frames import ANSWER, Frame, FrameError, Type


def test_addresses_without_a_port_have_the_first_nodes() -> None:
    """IPv6 without brackets has none either."""
    assert [str(one) for one in parse_endpoints("host, ::1, [::2]:7, h:8")] == [
        "host:7410",
        "[::1]:7410",
        "[::2]:7",
        "h:8",
    ]


@pytest.mark.parametrize(
    "text",
    [
        *("orders@7", "orders/x@7", "/3@7", "orders/3@x", "orders/3", "zz" * 16),
        *("log@" + "9" * 19, "log@" + "9" * 5000, "orders/\u0663@7", "orders/3@\u0663"),
    ],
)
def test_messages_are_named_by_their_place_or_id(text: str) -> None:
    """Anything else is not an address."""
    with pytest.raises(UsageError, match="is not a valid message address"):
        parse_address(text)


def test_offsets_of_no_queue() -> None:
    """An answer without a map of queues names none."""
    assert parse_offsets({}) == {}
    with pytest.raises(FrameError):
        parse_offsets({"queues": {0: [1, "2", None]}})


def core_of(table: RoutingTable, **settings: Any) -> ReaderCore:
    """A reader of queue 0 that has not asked yet."""
    return ReaderCore(ReadSettings(topic="orders", **settings), [Cursor(0, 0, None)], table, 0.0)


def route_to(*names: str) -> RoutingTable:
    """A table that knows these nodes, each on a port of its own; the first is the master."""
    table = RoutingTable((Address("h", 1),))
    nodes = [
        {
            "name": name,
            "host": "h",
            "client_port": 10 + number,
            "role": "slave" if number else "master",
        }
        for number, name in enumerate(names)
    ]
    fields = {"epoch": 1, "leader": names[0], "nodes": nodes, "topics": None}
    assert table.learn(parse_route(fields))
    return table


def test_an_answer_that_nobody_waits_for_changes_nothing() -> None:
    """Its request was given up when the reader went elsewhere."""
    core = core_of(route_to("n1"))
    core.on_answer(99, Frame(Type.READ, fields={"code": "busy"}), 0.0, 0.1)
    assert core.retry_at <= 0.0


def test_advice_that_leads_nowhere_is_not_followed() -> None:
    """A node nobody knows, one that does not answer, or a word that is no name."""
    table = route_to("n1", "n2")
    core = core_of(table)
    for advice in ({"node": 7}, "n2", {"node": "n9", "valid_ms": 1000}):
        core._redirect(advice, 0.0)
        assert core.choose(0.0) == Address("h", 10)
    core._redirect({"node": "n2", "valid_ms": 1000}, 0.0)
    assert core.choose(0.5) == Address("h", 11)
    table.suspect(Address("h", 11))
    assert core.choose(0.5) == Address("h", 10)


@pytest.mark.parametrize("read_from", ["any", "slave"])
def test_a_silent_node_has_its_turn_while_the_others_cannot_serve(read_from: str) -> None:
    """The only node that answers has old data: it is not asked for ever in place of the silent."""
    table = route_to("n1", "n2", "n3")
    core = core_of(table, read_from=read_from, timeout=60.0)
    for silent in (10, 11, 1):
        table.suspect(Address("h", silent))
    asked: list[int] = []
    for now in range(8):
        address = core.choose(float(now))
        if address is None:  # the moment to ask for a newer route
            assert now % 4 == 0
            address = core.choose(float(now))
        assert address is not None
        asked.append(address.port)
        if address.port == 12:
            core.routed(fresh=True)
            ((cursor, _),) = core.wanted(float(now))
            core.on_asked(now, cursor)
            core.on_answer(now, answer(1, "stale"), float(now), 0.0)
        else:
            core.on_lost(float(now), Unavailable("silent"), 0.0)
    assert asked[0] == asked[4] == 12
    assert sorted(asked[:4]) == sorted(asked[4:]) == [1, 10, 11, 12]


def test_a_cluster_without_a_slave_finds_nothing_there() -> None:
    """Whoever insists on a slave is told so; the master is not asked behind their back."""
    table = route_to("n1")

    class Alone:
        """A session that knows one node."""

        def route(self, deadline: float) -> Generator[Any, Any, Route]:
            """Its route, without asking."""
            yield from ()
            assert table.route is not None
            return table.route

    with pytest.raises(Unavailable, match="has no slave"):
        list(
            ask_reader(
                Alone(), Type.FIND, {}, read_from="slave", deadline=1.0, staleness=AS_CONFIGURED
            )
        )  # type: ignore[arg-type]


def test_what_was_asked_stays_asked_on_the_same_connection() -> None:
    """Only another connection's requests will not be answered any more."""
    core = core_of(route_to("n1"))
    core.routed(fresh=True)
    ((cursor, _),) = core.wanted(0.0)
    core.on_asked(1, cursor)
    core.routed(fresh=False)
    assert core.wanted(0.0) == []
    core.routed(fresh=True)
    assert [cursor for cursor, _ in core.wanted(0.0)] == [cursor]


def answer(queues: int, status: str = "none", following: int = 0, start: int = 0) -> Frame:
    """An answer without records from a topic that has so many queues."""
    fields: dict[str, object] = {
        "status": status, "next": following, "start": start, "end": start, "count": 0,
        "confirm": 0, "age_ms": 0, "node": "n1", "role": "master", "queues": queues,
    }  # fmt: skip
    return Frame(Type.READ, ANSWER, fields=fields)


@pytest.mark.parametrize(
    ("terms", "queues"),
    [
        ({"follow": True, "every": True}, [0, 1, 2]),
        ({"follow": True}, [0]),
        ({"every": True}, [0]),
    ],
)
def test_who_follows_all_queues_begins_with_new_ones(
    terms: dict[str, bool], queues: list[int]
) -> None:
    """From their start, wherever that is; who reads one queue, or up to the end, does not."""
    core = core_of(route_to("n1"), **terms)
    core.routed(fresh=True)
    ((cursor, _),) = core.wanted(0.0)
    core.on_asked(1, cursor)
    core.on_answer(1, answer(3), 0.0, 0.1)
    assert [one.queue for one in core.cursors] == queues
    if len(queues) == 3:
        new = core.cursors[2]
        core.on_asked(2, new)
        core.on_answer(2, answer(3, "before-start", start=40), 0.0, 0.1)
        assert (new.next, new.new) == (40, False)
