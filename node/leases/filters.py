"""What a group wants of a topic, as one text: tags, or a filter over properties. Pure.

``tags: paid || refunded`` wants records with one of these tags, which queue entries tell without
the records; anything else is a filter as READ's ``where`` takes it (``twinlog.filters.sql92``).
"""

from __future__ import annotations

from functools import lru_cache

from storage.read.filters import PropertyFilter, property_filter
from twinlog.errors import UsageError
from twinlog.format.record import java_hash

TAGS = "tags:"
FILTERS_KEPT = 256

Wanted = tuple[frozenset[int] | None, PropertyFilter | None]


@lru_cache(FILTERS_KEPT)
def wanted(text: str) -> Wanted:
    """Return (tag hashes, filter over properties), at most one of them not None.

    >>> wanted("tags: paid || refunded")[0] == {java_hash("paid"), java_hash("refunded")}
    True

    Raises:
        UsageError: No tag is named. FilterError: The text is no filter.
    """
    if not text:
        return None, None
    if not text.startswith(TAGS):
        return None, property_filter(text)
    names = [name.strip() for name in text.removeprefix(TAGS).split("||")]
    if not all(names):
        hint = 'write tags as "tags: paid || refunded"'
        raise UsageError(f"{text[:200]!r} names no tags", code="filter", hint=hint)
    return frozenset(map(java_hash, names)), None
