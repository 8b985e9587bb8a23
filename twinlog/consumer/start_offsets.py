"""Where the queues of a topic begin and end, before any of them is read.

The answer is a cursor for each queue; reading them is `twinlog.consumer.core`'s.

Pure: no clock, socket or thread; `survey` is a dialogue that a `session` carries out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from twinlog.consumer.core import Cursor, ReadSettings
from twinlog.errors import OffsetBeyond, UnavailableError, UnknownTopic
from twinlog.ranges import Mark, Range
from twinlog.session.reading import NO_MASTER_SECONDS, told_of_copies
from twinlog.session.session import ANY, MASTER, SLAVE, Session, Steps
from twinlog.wire.frames import FrameError, Type


@dataclass(frozen=True, slots=True)
class Extent:
    """What a node says of one queue: first and next offset, and the offsets of two times."""

    start: int
    end: int
    first_at: int | None = None
    last_at: int | None = None


Offsets = dict[int, tuple[int, int, int | None]]


def parse_offsets(fields: Mapping[str, object]) -> Offsets:
    """Return (start, end, offset at the time asked for) by queue from an OFFSETS answer.

    Raises:
        FrameError: ``fields``: a queue or its offsets are not what they must be.
    """
    queues = fields.get("queues")
    found: Offsets = {}
    if isinstance(queues, dict):
        entries: dict[object, object] = queues  # pyright: ignore[reportUnknownVariableType]
        for queue, row in entries.items():
            match row:
                case [int() as start, int() as end, (int() | None) as at] if type(queue) is int:
                    found[queue] = (start, end, at)
                case _:
                    raise FrameError("fields", f"OFFSETS answer: queue {queue!r} has odd offsets")
    return dict(sorted(found.items()))


def plan(wanted: Range, extents: Mapping[int, Extent], *, follow: bool) -> list[Cursor]:
    """Return the cursors for ``wanted`` in queues of these extents.

    Raises:
        OffsetBeyond: It begins at an offset that was written out and lies past a queue's end.
    """
    cursors: list[Cursor] = []
    for queue, extent in extents.items():
        begin, stop = wanted.bounds(
            extent.start, extent.end, first_at=extent.first_at, last_at=extent.last_at
        )
        if wanted.first.mark is Mark.OFFSET and begin > extent.end:
            text = f"queue {queue} ends at {extent.end}; {begin} lies past its end"
            raise OffsetBeyond(text, end=extent.end, queue=queue)
        if not follow:
            stop = extent.end if stop is None else min(stop, extent.end)
        cursors.append(Cursor(queue, begin, stop))
    return cursors


def survey(
    session: Session,
    settings: ReadSettings,
    wanted: Range,
    *,
    queue: int | None,
    deadline: float,
    wall_ms: int,
) -> Steps[list[Cursor]]:
    """Ask where the topic's queues begin and end, and return the cursors for ``wanted``.

    The master is asked, for only it knows everything that was acknowledged. While no master
    serves, a reader that is content with another node takes its word for where queues begin and
    end; that there is no topic, or nothing at an offset, a node that may lag behind can say only to
    a reader that said how old the data may be.

    Raises:
        UnknownTopic: The topic, or ``queue`` of it, does not exist.
        OffsetBeyond: See `plan`.
        Unavailable: No node that knows answered before ``deadline``.
    """
    first = wanted.first.at_ms(wall_ms)
    last = None if wanted.last is None else wanted.last.at_ms(wall_ms)

    def ask(at_ms: int | None, to: str, until: float) -> Steps[Offsets]:
        one = None if queue is None else [queue]
        fields = {"topic": settings.topic, "queues": one, "at_ms": at_ms}
        answer = yield from session.call(Type.OFFSETS, fields, deadline=until, to=to)
        return parse_offsets(answer.fields)

    def cursors(to: str, until: float) -> Steps[list[Cursor]]:
        begin = yield from ask(first, to, until)
        end = begin if last is None else (yield from ask(last, to, until))
        extents = {
            number: Extent(start, upper, first_at, end[number][2] if number in end else None)
            for number, (start, upper, first_at) in begin.items()
        }
        return plan(wanted, extents, follow=settings.follow)

    content = settings.staleness.given
    if settings.read_from == MASTER and not content:
        try:
            return (yield from cursors(MASTER, deadline))
        except UnavailableError as error:
            raise told_of_copies(error) from None
    try:
        return (yield from cursors(MASTER, min(deadline, session.now + NO_MASTER_SECONDS)))
    except UnavailableError:
        other = ANY if settings.read_from in (SLAVE, MASTER) else settings.read_from
    try:
        return (yield from cursors(other, deadline))
    except (UnknownTopic, OffsetBeyond) as error:
        if content:  # the reader takes the word of a copy that may lag
            raise
        lacking = error
    try:
        return (yield from cursors(MASTER, deadline))
    except UnavailableError as error:
        error.args = (f"{error.text}; a node that may lag behind says: {lacking.text}",)
        raise told_of_copies(error) from None
