"""What goes wrong between Spark and a store.

Spark shows the last line of a Python traceback, so each of these is one line: ``twinlog:``, what
happened, what to do. Raise them ``from None``.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

from twinlog.errors import (
    CorruptionError,
    TwinlogError,
    UnavailableError,
    UnknownTopic,
    UsageError,
)


class _OneLine(TwinlogError):
    def __str__(self) -> str:
        """Return the line that Spark shows."""
        return f"twinlog: {self.text}" + (f"; {self.hint}" if self.hint else "")


class SourceError(_OneLine, UsageError):
    """The query cannot be answered as it stands: options, columns, topics."""

    default_code = "spark"


class NoTopic(SourceError, UnknownTopic):
    """A topic that is named does not exist."""

    default_code = "topic"


class DataLossError(_OneLine, CorruptionError):
    """Rows that were asked for are not there any more, or are not what was written."""

    default_code = "data-loss"


class SourceUnavailable(_OneLine, UnavailableError):
    """No node could serve the rows in time."""

    default_code = "spark-unavailable"


def listed(words: Iterable[str], last: str = "or") -> str:
    """Join words as a sentence does.

    >>> listed(["a", "b", "c"])
    'a, b or c'
    """
    found = list(words)
    return found[0] if len(found) == 1 else f"{', '.join(found[:-1])} {last} {found[-1]}"


def nearest(word: str, known: Collection[str]) -> str | None:
    """Return the hint that names the known word closest to ``word``, or None.

    >>> nearest("subscribes", ["subscribe", "path"])
    'the nearest is subscribe'
    """
    lower = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.lower(), sorted(lower), n=1, cutoff=0.6)
    return f"the nearest is {lower[found[0]]}" if found else None
