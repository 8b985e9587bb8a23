"""Sessions: every state with every message, and every check alone."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from replication.core import following, messages, peer_checks
from replication.core.context import Log
from replication.core.master.session import MasterSession
from replication.core.peer_checks import (
    Agreed,
    Divergence,
    Drop,
    Own,
    judge_append,
    judge_hello_ok,
)
from replication.core.roles import SendingState
from replication.register.group_state import GroupState, Unclean
from replication.register.operations import Failover
from replication.settings import NACKS_MAX, ReplicationSettings
from tests.dialogues.stories import NAMES, link_of
from tests.dialogues.world import Node, World
from twinlog.format.epoch_history import Epoch
from twinlog.wire import frames

HELLO = messages.Hello(
    epoch=3, session=5, node="n2", store="s", start=0, end=100, confirm=80, border=0,
    epochs=(Epoch(3, 0),), register_id="r", revision=1, tag=1, family=4, segment_size=1 << 20,
    least_version=1, version=1, features=0, quality="received",
)  # fmt: skip
OK = messages.HelloOk(
    epoch=3, session=5, leader="n1", point=100, chain_start=0, chain=77, start=0, end=200,
    confirm=90, epochs=(Epoch(3, 0),), version=1, features=0,
)  # fmt: skip
OWN = Own(3, 5, 100, "n1", 0, 80, (Epoch(3, 0),))


# -- the slave's judgement


def test_an_equal_beginning_is_agreed() -> None:
    """The point is our end: nothing to cut."""
    assert judge_hello_ok(OK, OWN, GroupState(), 77) == Agreed(100)


@pytest.mark.parametrize("change", [{"epoch": 2}, {"leader": "n3"}, {"session": 4}])
def test_an_answer_that_is_not_for_us_is_dropped(change: dict[str, Any]) -> None:
    """Of another epoch, sender or session."""
    assert isinstance(judge_hello_ok(replace(OK, **change), OWN, GroupState(), 77), Drop)


@pytest.mark.parametrize(
    ("ok", "own", "chain"),
    [
        (replace(OK, point=90), OWN, 77),
        (replace(OK, epochs=(Epoch(2, 0),)), OWN, 77),
        (replace(OK, epochs=(Epoch(3, 7),)), OWN, 77),
        (OK, OWN, 78),
        (OK, OWN, None),
        (replace(OK, point=60, end=60), OWN, 77),
    ],
    ids=["other point", "no shared epoch", "other start", "other chain", "no border", "confirmed"],
)
def test_a_difference_is_a_quarantine(ok: messages.HelloOk, own: Own, chain: int | None) -> None:
    """Nothing is cut when the two sides do not agree."""
    assert isinstance(judge_hello_ok(ok, own, GroupState(), chain), Divergence)


def test_files_that_left_after_hello_are_no_difference() -> None:
    """What the chain was taken over is not all here any more: greeted again, not quarantined."""
    ok = replace(OK, chain_start=0)
    own = replace(OWN, start=40, epochs=(Epoch(3, 0),))
    verdict = judge_hello_ok(ok, own, GroupState(), None)
    assert verdict == Drop("the chain begins at 0, our log now at 40")
    assert judge_hello_ok(replace(ok, chain_start=40), own, GroupState(), 77) == Agreed(100)


def test_only_a_recorded_unclean_election_cuts_below_confirm() -> None:
    """And only one that is newer than our log."""
    ok = replace(OK, epoch=5, point=60, epochs=(Epoch(3, 0), Epoch(5, 60)))
    own = replace(OWN, epoch=5)
    newer, older = Unclean(5, "alice", "", 0), Unclean(3, "alice", "", 0)
    assert judge_hello_ok(ok, own, GroupState(unclean=(newer,)), 77) == Agreed(60)
    assert isinstance(judge_hello_ok(ok, own, GroupState(unclean=(older,)), 77), Divergence)


APPEND = messages.Append(3, 5, 100, 3, 80, 150, 0, 1, 1, b"x" * 36, b"y")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, None),
        ({"epoch": 2}, "epoch 2"),
        ({"epoch": 4}, "epoch 4"),
        ({"session": 4}, "session 4"),
        ({"offset": 90}, "at 90"),
        ({"offset": 110}, "at 110"),
        ({"prev_epoch": 2}, "after epoch 2"),
    ],
)
def test_an_append_continues_exactly_our_log(change: dict[str, Any], why: str | None) -> None:
    """Of our epoch, our session, at our end, after our last epoch."""
    found = judge_append(replace(APPEND, **change), OWN, 3)
    assert found is None if why is None else why in (found or "")


# -- the master's session


def streaming() -> MasterSession:
    """A session that streams from 100 and has sent 150."""
    session = MasterSession(1, ReplicationSettings(), 0.0)
    session.greet(HELLO, 100)
    assert session.on_ready(messages.Ready(3, 5, 100), 1.0) is None
    session.shipped(150, 90, 1, 1.0)
    return session


ACK = messages.Ack(3, 5, 150, 120, 90, 1)


def test_an_acknowledgement_frees_the_window() -> None:
    """And says how far the slave is."""
    session = streaming()
    assert session.window.frames == 1
    assert session.on_ack(ACK, 3) is None
    assert (session.acked, session.window.frames) == (150, 0)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"epoch": 2}, "epoch 2"),
        ({"session": 4}, "session 4"),
        ({"end": 151}, "beyond"),
        ({"end": 99}, "beyond"),
    ],
)
def test_an_acknowledgement_that_breaks_a_rule_closes(change: dict[str, Any], why: str) -> None:
    """An older session or epoch, more than was sent, less than before: it moves nothing."""
    session = streaming()
    assert why in (session.on_ack(replace(ACK, **change), 3) or "")
    assert session.acked == 100


def test_an_acknowledgement_before_ready_closes() -> None:
    """Nothing was sent."""
    session = MasterSession(1, ReplicationSettings(), 0.0)
    assert "greeting" in (session.on_ack(ACK, 3) or "")


def test_ready_is_given_once_at_the_point() -> None:
    """Elsewhere or twice is a broken rule."""
    session = MasterSession(1, ReplicationSettings(), 0.0)
    assert session.on_ready(messages.Ready(3, 5, 100), 0.0) is not None
    session.greet(HELLO, 100)
    assert session.next_ship(200) is None
    assert "90" in (session.on_ready(messages.Ready(3, 5, 90), 0.0) or "")
    assert session.on_ready(messages.Ready(3, 5, 100), 0.0) is None
    assert session.on_ready(messages.Ready(3, 5, 100), 0.0) is not None
    assert session.next_ship(200) == 100


def test_a_batch_is_asked_for_again_a_few_times() -> None:
    """Then the link is to blame; progress forgives."""
    session = streaming()
    nack = messages.Nack(3, 5, 100, 50, "crc")
    for _ in range(NACKS_MAX):
        assert session.on_nack(nack) is None
        session.rewind(100, 1.0)
        assert session.next_ship(150) == 100
        session.shipped(150, 90, 1, 1.0)
    assert "times" in (session.on_nack(nack) or "")
    session.on_ack(ACK, 3)
    assert session.nacks == {}
    assert "outside" in (session.on_nack(nack) or "")


def test_a_session_with_a_damaged_own_copy_sends_nothing_more() -> None:
    """Acknowledgements of what was sent still come."""
    session = streaming()
    session.own_copy_bad()
    assert session.next_ship(500) is None
    assert session.on_ack(ACK, 3) is None
    session.end()
    session.end()
    assert session.state is SendingState.CLOSED


def test_times_of_a_link() -> None:
    """A word each half second, silence after three."""
    session = streaming()
    assert not session.owes_word(1.4)
    assert session.owes_word(1.5)
    assert not session.is_silent(2.9)
    assert session.is_silent(3.0)


# -- odd messages on a real link


ODD: dict[str, messages.Message] = {
    "hello": replace(HELLO, epoch=1, session=1),
    "hello-ok": replace(OK, epoch=1, session=1),
    "ack": messages.Ack(1, 1, 0, 0, 0, 0),
    "ready": messages.Ready(1, 1, 0),
    "nack": messages.Nack(1, 1, 0, 1, ""),
    "append of another epoch": messages.Append(2, 1, 100, 1, 0, 0, 0, 1, 1),
    "append of another session": messages.Append(1, 9, 100, 1, 0, 0, 0, 1, 1),
    "append with a gap": messages.Append(1, 1, 500, 1, 0, 0, 0, 1, 1, b"x" * 36, b"y"),
    "notice with a gap": messages.Append(1, 1, 500, 1, 0, 0, 0, 1, 1),
    "busy": messages.HelloErr(1, 1, "BUSY", "wait"),
    "layout": messages.HelloErr(1, 1, "OTHER_LAYOUT", "no"),
    "diverged, out of the blue": messages.HelloErr(1, 1, "DIVERGED", "no"),
    "bye": messages.Bye(1, 1, "role-changed", ""),
}


@pytest.mark.parametrize("name", ODD)
def test_a_slave_leaves_after_an_odd_message_and_comes_back(world: World, name: str) -> None:
    """Nothing of it changes the log."""
    node = world.nodes["n2"]
    before = bytes(node.store.log)
    conn = link_of(node, "n1")
    node.tell(node.driver.on_frame, conn, messages.encode(ODD[name], NAMES))
    assert conn not in node.links
    assert bytes(node.store.log) == before
    world.run(8.0)
    assert node.driver.view().state == "streaming"


def test_a_slave_answers_a_ping_and_takes_a_pong(world: World) -> None:
    """Both keep the link."""
    node = world.nodes["n2"]
    conn = link_of(node, "n1")
    for message in (messages.Ping(1, 1, 7), messages.Pong(1, 1, 7)):
        node.tell(node.driver.on_frame, conn, messages.encode(message, NAMES))
    assert conn in node.links
    assert node.driver.view().age_seconds == 0.0


MASTER_ODD: dict[str, messages.Message] = {
    "append": messages.Append(1, 1, 100, 1, 0, 0, 0, 1, 1),
    "hello-ok": replace(OK, epoch=1, session=1),
    "ack beyond the end": messages.Ack(1, 1, 10**9, 0, 0, 9),
    "ack of an older session": messages.Ack(1, 0, 0, 0, 0, 9),
    "ready again": messages.Ready(1, 1, 0),
    "nack of nothing": messages.Nack(1, 1, 10**9, 1, ""),
    "bye": messages.Bye(1, 1, "role-changed", ""),
}


@pytest.mark.parametrize("name", MASTER_ODD)
def test_a_master_closes_after_an_odd_message(world: World, name: str) -> None:
    """Nothing is confirmed by it; the slave comes back by itself."""
    node = world.nodes["n1"]
    before = node.driver.view().confirm
    conn = link_of(node, "n2")
    node.tell(node.driver.on_frame, conn, messages.encode(MASTER_ODD[name], NAMES))
    assert conn not in node.links
    assert node.driver.view().confirm == before
    world.run(8.0)
    assert "n2" in world.register.state.isr


def test_a_second_hello_on_a_streaming_link_closes_it(world: World) -> None:
    """Right in every field, and in the wrong place: the master leads on."""
    node = world.nodes["n1"]
    store = world.nodes["n2"].store
    conn = link_of(node, "n2")
    hello = replace(
        HELLO, epoch=1, session=1, store=store.boot.store_id, end=0, epochs=(), confirm=0,
        register_id="register-1",
    )  # fmt: skip
    node.tell(node.driver.on_frame, conn, messages.encode(hello, NAMES))
    assert conn not in node.links
    assert node.driver.view().role == "master"


def test_a_master_is_not_to_blame_for_a_nack_between_borders(world: World) -> None:
    """The link closes; the master leads on."""
    node = world.nodes["n1"]
    conn = link_of(node, "n2")
    leading = node.driver.core.leading
    assert leading is not None
    leading.slaves.sessions[conn].acked = 0  # so that the number lies in the window
    node.tell(node.driver.on_frame, conn, messages.encode(messages.Nack(1, 1, 7, 1, ""), NAMES))
    assert conn not in node.links
    assert node.driver.view().role == "master"


def test_a_damaged_batch_behind_good_ones_comes_again(world: World) -> None:
    """The slave stored nothing of the frame: the master sends from its end, not from the batch."""
    seen: list[int] = []

    def bend(one: Node, other: Node, frame: frames.Frame) -> frames.Frame | None:
        if (one.name, other.name) != ("n1", "n2") or not len(frame.payload):
            return frame
        message = messages.decode(frame)
        assert isinstance(message, messages.Append)
        seen.append(len(message.entries) // messages.ENTRY.size)
        if len(seen) == 1:
            return None  # the next one leaves a gap, and then both come in one frame
        if seen[-1] == 1 or len(seen) > 3:
            return frame
        return replace(frame, payload=bytes(frame.payload)[:-1] + b"?")

    world.bender = bend
    keys = [world.send("n1"), world.send("n1")]
    world.run(8.0)
    assert 2 in seen
    assert "n2" in world.register.state.isr
    assert all(world.stored(key) for key in keys)
    assert bytes(world.nodes["n2"].store.log) == bytes(world.nodes["n1"].store.log)


def test_a_master_answers_a_ping(world: World) -> None:
    """Either side may ask whether the other is there."""
    node = world.nodes["n1"]
    conn = link_of(node, "n2")
    for message in (messages.Ping(1, 1, 3), messages.Pong(1, 1, 3)):
        node.tell(node.driver.on_frame, conn, messages.encode(message, NAMES))
    assert conn in node.links


def test_a_second_link_of_a_slave_replaces_the_first(world: World) -> None:
    """The slave knows best which one it uses."""
    node = world.nodes["n1"]
    store = world.nodes["n2"].store
    first = link_of(node, "n2")
    hello = replace(
        HELLO, epoch=1, session=1, store=store.boot.store_id, end=0, epochs=(), confirm=0,
        register_id="register-1",
    )  # fmt: skip
    conn = node.next_accepted = node.next_accepted + 1
    assert node.driver.core.leading is not None
    node.driver.core.leading.insync.members["n2"].held = 0
    node.links[conn] = (world.nodes["n2"], 9_999_999)
    node.tell(node.driver.on_frame, conn, messages.encode(hello, NAMES))
    assert first not in node.links
    assert conn in node.links


def test_a_revision_under_another_tag_closes_the_link(world: World) -> None:
    """Two registers with the same number: one of them went back."""
    node = world.nodes["n2"]
    promise = node.driver.core.context.promise
    append = messages.Append(1, 1, 100, 1, 0, 0, 0, promise.revision, promise.tag ^ 1)
    conn = link_of(node, "n1")
    node.tell(node.driver.on_frame, conn, messages.encode(append, NAMES))
    assert conn not in node.links


def test_an_answer_waits_until_the_shown_revision_is_on_the_disk(world: World) -> None:
    """The master counts only answers that show the revision of its set."""
    node = world.nodes["n2"]
    revision = node.driver.core.context.promise.revision + 5
    append = messages.Append(1, 1, 100, 1, 100, 100, 0, revision, 77)
    before = len(world.trace)
    following = node.driver.core.following
    assert following is not None
    following._said = None
    node.tell(node.driver.on_frame, link_of(node, "n1"), messages.encode(append, NAMES))
    assert not [line for line in world.trace[before:] if line.startswith("n2 > n1  ack")]
    world.run(0.003)
    assert [line for line in world.trace[before:] if line.startswith("n2 > n1  ack")]
    assert node.store.durable_promise.revision == revision


def test_a_handshake_compares_from_the_head_of_the_file_that_holds_the_point(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restarted slave flushed all it has, and a deposed master's point is far below its end."""
    monkeypatch.setattr(following, "CHAIN_CHECK_BYTES", 1)
    monkeypatch.setattr(peer_checks, "CHAIN_CHECK_BYTES", 1)
    offers: list[messages.HelloOk] = []

    def look(one: Node, other: Node, frame: frames.Frame) -> frames.Frame:
        message = messages.decode(frame)
        if isinstance(message, messages.HelloOk):
            offers.append(message)
        return frame

    world.bender = look
    for _ in range(5):
        world.send("n1")
    world.run(1.0)
    world.kill("n2")
    world.restart("n2")
    world.run(1.0)
    assert [(offer.chain_start, offer.point) for offer in offers] == [
        (0, world.nodes["n1"].store.end)
    ]
    world.partition("n1", "n2")
    world.partition("n1", "n3")
    world.send("n1", 300, ack="written")
    world.kill("n1")
    world.heal()
    world.apply(Failover("n2", world.register.state.epoch, "alice", ""))
    world.run(1.0)
    world.restart("n1")
    world.run(2.0)
    deposed = [offer for offer in offers if offer.leader == "n2" and offer.session > 1]
    assert deposed
    assert all(offer.chain_start == 0 < offer.point for offer in deposed)


@pytest.mark.parametrize(
    ("point", "starts", "begins"),
    [
        (1000, (0, 0), 0),
        (2500, (0, 0), 2000),
        (2000, (0, 0), 1000),
        (2005, (0, 0), 1990),
        (2500, (0, 2000), 2000),
        (2005, (2000, 0), 2000),
        (0, (0, 0), 0),
    ],
)
def test_the_chain_begins_at_a_file_and_some_way_before_the_point(
    point: int, starts: tuple[int, int], begins: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of 1000 bytes, batches of 10, at least 20 bytes before the point if both keep them."""
    monkeypatch.setattr(peer_checks, "CHAIN_CHECK_BYTES", 12)
    log = SimpleNamespace(start=starts[0], border_at_or_below=lambda at: at // 10 * 10)
    hello = replace(HELLO, border=1 << 40, start=starts[1])
    assert peer_checks.chain_start(hello, point, cast("Log", log), 1000) == begins
