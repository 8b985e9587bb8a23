"""What a client is called with and cannot mean is refused in words, before anything is asked."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from twinlog import AsyncClient, Client, errors
from twinlog.producer.later import at_ms, delay_ms

NOBODY = "127.0.0.1:1"


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize("method", ["consume", "consumer"])
@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ({"invisable": "5m"}, "batch, invisible, tag"),
        ({"start": "start"}, "twinlog group create billing --start start"),
    ],
)
async def test_what_is_no_option_is_refused(
    kind: Any, method: str, option: dict[str, str], hint: str
) -> None:
    """It was passed over: a lease kept the group's time, a new group began at the end."""
    call = getattr(kind(NOBODY), method)
    words = {"group": "billing", "topics": "orders"}
    with pytest.raises(errors.UsageError, match=f'no option "{min(option)}"') as told:
        call(**words, **option)
    assert told.value.hint is not None
    assert hint in told.value.hint


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"endpoints": None}, "endpoints must be text"),
        ({"endpoints": 5}, "endpoints must be text"),
        ({"timeout": None}, "a duration must be seconds or text"),
        ({"timeout": -1}, "a duration is -1"),
        ({"timeout": float("nan")}, "a duration is nan"),
    ],
)
def test_a_client_that_cannot_be(arguments: dict[str, Any], text: str) -> None:
    """A negative time was "no node answered", and None a TypeError of Python's."""
    with pytest.raises(errors.UsageError, match=text):
        Client(**arguments)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda client: client.read("t", 5), "a range must be text"),
        (lambda client: client.read("t", read_from=3), "read_from must be text"),
        (lambda client: client.read(None), "topic must be text"),
        (lambda client: client.read("t", tag=5), "tag must be text"),
        (lambda client: client.read("t", where=5), "where must be text"),
        (lambda client: client.consume("t", "g", tag=5), "tag must be text"),
    ],
)
def test_a_read_that_cannot_be(call: Any, text: str) -> None:
    """Each names the argument."""
    with pytest.raises(errors.UsageError, match=text):
        call(Client(NOBODY))


def test_no_topic_is_no_name() -> None:
    """There is nothing to create."""
    found = errors.UnknownTopic.named("")
    assert "none is given" in found.text
    assert found.hint is None


def test_a_date_without_a_time_zone_is_refused() -> None:
    """``datetime.now()`` is local time, and was taken for UTC."""
    later = datetime(2026, 12, 24, 18)
    with pytest.raises(errors.UsageError, match="has no time zone"):
        at_ms(later)
    assert at_ms(later.replace(tzinfo=UTC)) == at_ms("2026-12-24T18:00Z") == 1_798_135_200_000


@pytest.mark.parametrize(("delay", "ms"), [(0.0001, 1), (11.52501, 11_526), (0.1, 100), (0, 0)])
def test_a_delay_is_never_cut_short(delay: float, ms: int) -> None:
    """Rounded to the nearest ms, a message was delivered before its time."""
    assert delay_ms(delay) == ms
