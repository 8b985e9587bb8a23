"""Which messages of a batch a search means."""

from __future__ import annotations

import pytest

from tests.stores.records.inner import ROOM, batch, item
from twinlog.client.search import Search, with_key
from twinlog.format import record
from twinlog.format.messages import messages_of


def keyed(key: str | None) -> bytes:
    """A message of a batch, with a key and perhaps a unique id that is the same."""
    text = record.encode_properties({} if key is None else {"KEYS": key, "UNIQ_KEY": f"id-{key}"})
    return item(b"x", text)


@pytest.mark.parametrize(
    ("key", "unique", "found"),
    [
        ("b", False, [1]),
        ("c", False, [2, 1]),
        ("id-a", False, [0]),
        ("id-a", True, [0]),
        ("b", True, [2, 1, 0]),
        ("of the batch", True, [2, 1, 0]),
    ],
)
def test_messages_of_a_batch_are_found_by_their_own_keys(
    key: str, *, unique: bool, found: list[int]
) -> None:
    """Newest first; a key that none of them has is the batch's own, and all are meant."""
    messages = messages_of(batch(keyed("a") + keyed("b c") + keyed("c"), 3, ROOM))
    search = Search("t", key, unique=unique)
    assert [one.queue_offset for one in with_key(messages, search)] == found
    alone = messages_of(record.encode("t", 0, b"no key at all"))
    assert with_key(alone, search) == alone, "the node looked at its keys"
