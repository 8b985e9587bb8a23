"""What the answer to an APPEND says of each section in it.

Pure. Not here: what follows from it (``twinlog.producer.core``).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from twinlog.errors import TwinlogError, from_code
from twinlog.wire.frames import Frame, FrameError
from twinlog.wire.schema import check

RETRY_CODES: Final = frozenset(
    {"not-master", "not-enough-in-sync", "busy", "quota", "disk-full", "disk", "unavailable"}
    | {"stopping"}
)
"""Refusals after which the same section may be stored later."""


class Said(IntEnum):
    """The outcome of one attempt; the number is on the wire."""

    STORED = 0
    DUPLICATE = 1
    REFUSED = 2
    UNKNOWN = 3


class Outcome(NamedTuple):
    """One row of an answer.

    Attributes:
        said: See `Said`; a number of a later version counts as unknown.
        queue_offset: Of the first record, -1 when the node no longer knows.
        log_offset: Likewise, bytes.
        error: What it was refused with.
    """

    said: Said
    queue_offset: int = -1
    log_offset: int = -1
    error: TwinlogError | None = None


class Outcomes(NamedTuple):
    """A good answer.

    Attributes:
        rows: One for each section, in the order of the request.
        confirmed_by: The nodes that have the records.
        buffered: They are acknowledged, but not known to be flushed.
        epoch: Of the master that answered.
    """

    rows: list[Outcome]
    confirmed_by: tuple[str, ...]
    buffered: bool
    epoch: int


def outcomes_of(frame: Frame, count: int) -> Outcomes:
    """Return what a good answer says of ``count`` sections.

    Raises:
        FrameError: It is not the answer to a request of ``count`` sections.
    """
    check(frame)
    rows = frame.fields["results"]
    assert isinstance(rows, list), "schema.check"
    results: list[list[object]] = rows  # pyright: ignore[reportUnknownVariableType]
    if len(results) != count:
        raise FrameError("fields", f"{len(results)} results for {count} sections")
    by = frame.fields.get("confirmed_by")
    names: list[object] = by if isinstance(by, list) else []  # pyright: ignore[reportUnknownVariableType]
    return Outcomes(
        [_outcome(row) for row in results],
        tuple([str(name) for name in names]),
        frame.fields.get("buffered") is True,
        _whole(frame.fields.get("epoch")),
    )


def _outcome(row: list[object]) -> Outcome:
    said = _whole(row[0])
    if said in (Said.STORED, Said.DUPLICATE):
        return Outcome(Said(said), _whole(row[1]), _whole(row[2]))
    if said != Said.REFUSED:
        return Outcome(Said.UNKNOWN)
    code, record = str(row[4]), _whole(row[6])
    facts = {"record": record, "reason": code} if record >= 0 else {}
    error = from_code(code, str(row[5]), retryable=code in RETRY_CODES, facts=facts)
    return Outcome(Said.REFUSED, error=error)


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0
