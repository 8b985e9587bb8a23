"""Control records, and the layers in which they take effect."""

from __future__ import annotations

import pytest

from storage.disk.packing import pack
from storage.state.control import Control
from storage.state.controls import (
    KINDS,
    CreateTopic,
    ForgetProducers,
    UnknownControl,
    decode_control,
    encode_control,
)
from storage.state.layers import Layers
from storage.state.topics import State, Topic


def test_every_kind_of_control_record_can_be_read() -> None:
    """A class that is not entered in the table would be unknown on every node."""
    kinds = {one.KIND for one in Control.__subclasses__()} - {UnknownControl.KIND}
    assert set(KINDS) == kinds
    assert list(KINDS) == [one.KIND for one in KINDS.values()]


@pytest.mark.parametrize(
    "body", [b"", b"\xc1", pack({"kind": "later"}), pack({"kind": "create-topic"}), b"\x93\1\2\3"]
)
def test_a_control_record_of_another_kind_changes_nothing(body: bytes) -> None:
    """Applying is total: what cannot be read is kept in the log and passed over."""
    state = State()
    change = decode_control(body)
    assert isinstance(change, UnknownControl)
    assert not change.apply(state, 0)
    assert decode_control(encode_control(change)) == change


def test_state_is_a_function_of_its_records() -> None:
    """Illegal and repeated creations change nothing anywhere."""
    state = State()
    for change, changed in [
        (CreateTopic("a", 2, 1), True),
        (CreateTopic("a", 9, 1), False),
        (CreateTopic("rmq_sys_TWINLOG_META", 1, 1), False),
        (CreateTopic("b", 0, 1), False),
        (CreateTopic("c/d", 1, 1), False),
    ]:
        assert change.apply(state, 0) is changed
    assert state.queues("a") == 2
    assert state.queues("rmq_sys_TWINLOG_META") == 1
    assert state.queues("b") is None


def test_what_a_master_forgets_is_always_allowed() -> None:
    """And a kind of queues is as fixed as their number."""
    assert ForgetProducers(7).refusal(Layers()) is None
    for change in (ForgetProducers(7), UnknownControl("odd"), CreateTopic("t", 1, 2, batch=True)):
        assert decode_control(encode_control(change)) == change
    layers = Layers()
    layers.append(10, CreateTopic("b", 2, 1, batch=True))
    layers.append(20, CreateTopic("s", 2, 1))
    assert layers.batched() == {b"b"}
    for confirm in (0, 100):
        layers.confirm(confirm)
        told = ("topic-exists", "topic b exists with batch queues")
        assert CreateTopic("b", 2, 1).refusal(layers) == told
        told = ("topic-exists", "topic s exists with simple queues")
        assert CreateTopic("s", 2, 1, batch=True).refusal(layers) == told
        assert CreateTopic("b", 2, 1, batch=True).refusal(layers) is None


def test_layers_apply_in_order_and_forget_from_the_end() -> None:
    """A cut drops what lay beyond it, a confirm applies what lies below."""
    layers = Layers()
    layers.append(100, CreateTopic("a", 1, 1))
    layers.append(200, CreateTopic("b", 2, 1))
    layers.append(300, CreateTopic("c", 3, 1))
    assert layers.existing("b") == (Topic("b", 2, 1), 200)
    assert layers.existing("z") is None
    layers.cut(200)
    assert layers.topics_waiting()
    assert set(layers.whole().topics) == {"a", "b"}
    assert not layers.confirmed.topics
    assert layers.confirm(150)
    assert not layers.confirm(150)
    assert set(layers.confirmed.topics) == {"a"}
    assert layers.existing("a") == (Topic("a", 1, 1), 0)
    assert layers.confirm(1000)
    assert set(layers.confirmed.topics) == {"a", "b"}
    assert not layers.topics_waiting()
    assert layers.whole() is layers.confirmed
    assert CreateTopic("d", 1 << 20, 1).refusal(layers) is not None
    assert CreateTopic("b", 3, 1).refusal(layers) == (
        "topic-exists",
        "topic b exists with 2 queues",
    )
    assert CreateTopic("b", 2, 1).refusal(layers) is None
    assert UnknownControl("x").refusal(layers) is not None
