"""Three messages that wait for a time, as a node tells of them: what the CLI's tests ask."""

from __future__ import annotations

from collections.abc import Mapping

from twinlog.format.messages import Message
from twinlog.format.record import encode_properties, pack_host
from twinlog.format.system_topics import TIMER_TOPIC
from twinlog.format.waiting.timers import due_text, real_text

NOW_MS = 1_795_000_000_123
PLACES = {9_000: 40_000, 9_300: 100_250, 9_600: 100_750}
"""By log offset, how much later than now each is due, ms."""


def timed_message(offset: int) -> Message:
    """The record of one of them; another offset: one that was delivered."""
    host = pack_host(("127.0.0.1", 7410))
    head = (100, 0, 0, 0, 0, 7, offset, 0, NOW_MS, host, NOW_MS, host, 0, 0, 0)
    text = encode_properties({"KEYS": f"k{offset}"}) + real_text("orders", 2)
    text += due_text(NOW_MS, delay_ms=PLACES.get(offset, 1), at_ms=None)
    return Message(
        TIMER_TOPIC, 0, 7, offset, b"later", NOW_MS, NOW_MS, (head, b"later", text, TIMER_TOPIC)
    )


def waiting_answer(fields: Mapping[str, object]) -> dict[str, object]:
    """What a node answers to a WAITING."""
    told: dict[str, object] = {
        "rows": [], "next": -1, "now_ms": NOW_MS, "epoch": 7, "waiting": len(PLACES), "node": "n1",
        "role": "master", "age_ms": 0,
    }  # fmt: skip
    dues = {offset: NOW_MS + later for offset, later in PLACES.items()}
    first = fields["first"]
    assert isinstance(first, int)
    if fields["what"] == "times":
        width = {"second": 1_000, "minute": 60_000, "hour": 3_600_000}[str(fields["by"])]
        found: dict[int, int] = {}
        for due in dues.values():
            if due >= first // width * width:
                found[due // width * width] = found.get(due // width * width, 0) + 1
        return {**told, "counts": [[at, count] for at, count in found.items()]}
    after, limit = fields["offset"], fields["limit"]
    assert isinstance(after, int) and isinstance(limit, int)
    messages: list[dict[str, object]] = [
        {
            "due_ms": due, "log_offset": offset, "at": offset, "size": 300, "queue": 2,
            "topic": "orders" if offset != 9_300 else "refunds", "key": f"k{offset}", "tag": None,
            "stored_ms": NOW_MS, "born_ms": NOW_MS - 5, "bytes": 5,
        }
        for offset, due in dues.items()
        if (due, offset) > (first, after)
    ]  # fmt: skip
    page, topic = messages[: min(limit, 2)], fields.get("topic")
    if len(messages) > len(page):
        told |= {"next": page[-1]["due_ms"], "next_offset": page[-1]["log_offset"]}
    shown = [one for one in page if topic in (None, one["topic"])]
    return {**told, "messages": shown}
