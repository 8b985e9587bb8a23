"""Records that wait for a time: what is refused whole, and why."""

from __future__ import annotations

import pytest

import storage.append.waiting_timers as checks
from storage import CreateTopic, Outcome, Section
from tests.fakes.disk import FakeDisk
from tests.stores.records.timed import timed
from tests.stores.workbench import TOPIC, append, master, settle, token
from tests.stores.workbench import section as plain
from twinlog.format.record import RecordEncoder, encode_properties
from twinlog.format.system_topics import TIMER_TOPIC
from twinlog.format.waiting.timers import DELAY_MAX_MS


def section(*texts: bytes) -> Section:
    """A section of records with these properties."""
    encoder = RecordEncoder(TIMER_TOPIC, 0)
    for text in texts:
        encoder.add(b"x", properties=text, born_timestamp=1)
    return Section(TIMER_TOPIC, 0, len(texts), encoder.take())


def said(**properties: str) -> bytes:
    """Properties of a record that is due at 5,000 ms, with changes; empty leaves one out."""
    whole = {
        "REAL_TOPIC": TOPIC, "REAL_QID": "0", "TIMER_DELIVER_MS": "5000", "TIMER_OUT_MS": "4000",
    }  # fmt: skip
    return encode_properties({n: v for n, v in (whole | properties).items() if v})


CASES = {
    "no topic": (said(REAL_TOPIC=""), "timer", "has REAL_TOPIC, REAL_QID"),
    "no time": (said(TIMER_OUT_MS=""), "timer", "has REAL_TOPIC, REAL_QID"),
    "another topic": (said(REAL_TOPIC="nowhere"), "unknown-topic", "nowhere"),
    "another queue": (said(REAL_QID="9"), "unknown-queue", "queues 0 to"),
    "a word": (said(REAL_QID="one"), "timer", "is no number"),
    "another second": (said(TIMER_OUT_MS="5000"), "timer", "not the second before"),
    "too far": (
        said(TIMER_DELAY_MS=str(DELAY_MAX_MS + 1)), "delay-too-long", "at most 365 days",
    ),
    "a time too far": (
        said(TIMER_DELIVER_MS=str(DELAY_MAX_MS + 9_000), TIMER_OUT_MS=str(DELAY_MAX_MS + 8_000)),
        "delay-too-long", "at most 365 days",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_could_not_be_delivered_is_refused(case: str) -> None:
    """With the number of the record; nothing of the section is stored."""
    text, code, words = CASES[case]
    store = master(FakeDisk())
    end = store.end
    number = 0 if code == "unknown-topic" else 1
    [found] = append(store, section(text) if number == 0 else section(said(), text))
    assert (found.outcome, found.code) == (Outcome.REFUSED, code)
    assert words in found.text
    assert store.end == end


def test_records_of_one_section_go_to_one_topic() -> None:
    """So a producer's line is of one topic."""
    store = master(FakeDisk())
    store.append_control(token(1), CreateTopic("other", 1, 1), wall_ms=1)
    settle(store)
    [found] = append(store, section(said(), said(REAL_TOPIC="other")))
    assert (found.code, found.record) == ("timer", 1)


def test_a_store_has_room_for_a_number_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is room again when some were delivered."""
    monkeypatch.setattr(checks, "WAITING_MAX", 3)
    store = master(FakeDisk())
    assert append(store, timed(9_000, 3))[0].outcome is Outcome.STORED
    settle(store)
    [found] = append(store, timed(9_000, 1))
    assert found.code == "too-many-waiting"


def test_a_group_of_an_older_level_takes_none() -> None:
    """R74: an older node would not deliver them; the master appends again what its group may."""
    store = master(FakeDisk())
    store.note_facts("received", 1)
    end = store.end
    [found] = append(store, timed(9_000, 1))
    assert (found.outcome, found.code, store.end) == (Outcome.REFUSED, "level", end)
    assert "twinlog cluster set level 2" in found.text
    assert append(store, plain())[0].outcome is Outcome.STORED
    store.note_facts("received", 2)
    assert append(store, timed(9_000, 1))[0].outcome is Outcome.STORED
