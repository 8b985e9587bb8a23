"""Reading the fields of a document that another process sent.

What is missing or of another kind reads as None (or empty), never as an exception: an older node
may say less, and a newer one more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

Fields = dict[str, object]
"""The fields of a frame."""


def text(fields: Mapping[str, object], name: str) -> str | None:
    """A text, or None."""
    value = fields.get(name)
    return value if isinstance(value, str) else None


def whole(fields: Mapping[str, object], name: str) -> int | None:
    """A whole number, or None."""
    value = fields.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def number(fields: Mapping[str, object], name: str) -> float | None:
    """A number, or None."""
    value = fields.get(name)
    return float(value) if isinstance(value, (int, float)) and value is not True else None


def flag(fields: Mapping[str, object], name: str) -> bool | None:
    """A yes or no, or None."""
    value = fields.get(name)
    return value if isinstance(value, bool) else None


def table(value: object) -> dict[str, object]:
    """A map with text keys; empty when it is something else."""
    if not isinstance(value, dict):
        return {}
    return {str(key): item for key, item in cast("Mapping[object, object]", value).items()}


def tables(value: object) -> list[dict[str, object]]:
    """A list of maps; empty when it is something else."""
    if not isinstance(value, (list, tuple)):
        return []
    items = cast("list[object]", value)
    return [table(cast("object", item)) for item in items if isinstance(item, dict)]


def rows(value: object) -> list[list[object]]:
    """A list of lists; empty when it is something else."""
    if not isinstance(value, (list, tuple)):
        return []
    return [list(cast("list[object]", item)) for item in cast("list[object]", value)
            if isinstance(item, (list, tuple))]  # fmt: skip


def texts(value: object) -> list[str]:
    """A list of texts; empty when it is something else."""
    if not isinstance(value, (list, tuple, set, frozenset)):
        return []
    return [item for item in cast("list[object]", value) if isinstance(item, str)]
