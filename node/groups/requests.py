"""What requests of work queues ask for, from their fields; limits with names. Pure.

Kinds and shapes of fields are proven before (``twinlog.wire.schema``); here it is said what values
make sense.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from node.leases.filters import wanted
from node.leases.leasing import Wish
from node.leases.limits import (
    INVISIBLE_MS_MAX,
    INVISIBLE_MS_MIN,
    MEMBER_NAME_MAX,
    SESSION_MS_MAX,
    SESSION_MS_MIN,
    GroupLimits,
)
from node.leases.settles import Settle
from storage.messaging.groups import (
    START_BEGIN,
    START_END,
    Group,
    Retry,
    group_refusal,
)
from twinlog.errors import GroupDiffers, UsageError
from twinlog.format.system_topics import SYSTEM_TOPIC_PREFIX
from twinlog.wire.groups import LEASES, MODES, ROWS_MAX, TOPICS_MAX, What

_WHATS = frozenset(int(what) for what in What)


def _fields(text: str) -> UsageError:
    return UsageError(text, code="fields")


def group_name(fields: Mapping[str, object], key: str = "group") -> str:
    """Return the name of a group.

    Raises:
        UsageError: No group can have it.
    """
    name = fields.get(key)
    if not isinstance(name, str):
        raise _fields(f"{key} names a group")
    reason = group_refusal(name)
    if reason is not None:
        hint = "use letters, digits, %, |, - and _"
        raise UsageError(f"{name[:200]!r} names no group: {reason}", code="group-name", hint=hint)
    return name


def topics(fields: Mapping[str, object]) -> tuple[str, ...]:
    """Return the topics of a JOIN or POP, each once.

    Raises:
        UsageError: None, more than `TOPICS_MAX`, or one that no group consumes.
    """
    found = tuple(dict.fromkeys(cast("list[str]", fields["topics"])))
    if not 0 < len(found) <= TOPICS_MAX:
        raise _fields(f"a request names 1 to {TOPICS_MAX} topics, not {len(found)}")
    for topic in found:
        check_consumed(topic)
    return found


def check_consumed(topic: str) -> None:
    """Refuse a topic of the store's own: consuming the rows of groups would write further ones.

    Raises:
        UsageError: No group consumes it.
    """
    if topic.startswith(SYSTEM_TOPIC_PREFIX):
        text = f"topic {topic} is the store's own: no group consumes it"
        raise UsageError(text, code="topic")


@dataclass(slots=True)
class PopFields:
    """What a POP says besides its wish. Treat as immutable.

    Attributes:
        wait: How long it may be parked, seconds.
        fast: See `twinlog.wire.groups.LEASES`.
        places: No records with the answer.
    """

    group: str
    wish: Wish
    wait: float
    fast: bool
    places: bool


def parse_pop(fields: Mapping[str, Any], limits: GroupLimits, invisible_ms: int) -> PopFields:
    """Return what a POP asks for, cut to the node's limits; ``invisible_ms`` is the group's.

    Raises:
        UsageError: A value that makes no sense.
    """
    number, asked = fields["pop"], fields["invisible_ms"]
    records, size = fields["max_records"], fields["max_bytes"]
    lease = fields.get("lease") or limits.lease
    if number <= 0 or records <= 0 or size <= 0:
        raise _fields("pop, max_records and max_bytes of a POP are above 0")
    if asked and not INVISIBLE_MS_MIN <= asked <= INVISIBLE_MS_MAX:
        raise _fields("invisible_ms is 1 s to 12 h in ms; 0: what the group has")
    if lease not in LEASES:
        raise _fields(f"a lease is {' or '.join(LEASES)}, not {lease!r}")
    wish = Wish(
        fields["member"],
        number,
        topics(fields),
        min(records, limits.records_max),
        min(size, limits.bytes_max),
        asked or invisible_ms,
    )
    wait = min(max(fields["wait_ms"], 0) / 1000, limits.long_poll_seconds_max)
    places = fields.get("places") is True
    return PopFields(str(fields["group"]), wish, wait, lease == "fast", places)


def parse_settles(rows: object) -> list[Settle]:
    """Return the rows of a SETTLE or TOGETHER.

    Raises:
        UsageError: Too many, or one that says what is unknown.
    """
    found: list[Settle] = []
    for row in _limited(rows):
        share, number, what, first, last, argument = row[:6]
        if what not in _WHATS:
            raise _fields(f"a row of SETTLE does one of {sorted(_WHATS)}, not {what}")
        why = row[6] if len(row) > 6 else ""
        text = why[:1000] if isinstance(why, str) else ""
        found.append(Settle(share, number, what, first, last, argument, text))
    return found


def parse_commits(rows: object) -> list[tuple[int, int]]:
    """Return (share, next) of the rows of a COMMIT or TOGETHER.

    Raises:
        UsageError: Too many.
    """
    return [(row[0], row[1]) for row in _limited(rows)]


def _limited(rows: object) -> list[list[Any]]:
    found = cast("list[list[Any]]", rows)
    if len(found) > ROWS_MAX:
        raise _fields(f"a request has at most {ROWS_MAX} rows, not {len(found)}")
    return found


@dataclass(frozen=True, slots=True)
class JoinFields:
    """What a JOIN says."""

    group: str
    name: str
    member: int
    topics: tuple[str, ...]
    mode: str
    seconds: float
    start: int | None
    filters: Mapping[str, str] | None


def parse_join(fields: Mapping[str, object], limits: GroupLimits) -> JoinFields:
    """Return what a JOIN asks for.

    Raises:
        UsageError: A value that makes no sense.
        GroupDiffers: No mode has this name.
    """
    name, session = cast("str", fields["name"]), cast("int", fields["session_ms"])
    if not 0 < len(name) <= MEMBER_NAME_MAX or not name.isprintable():
        raise _fields(f"the name of a member has 1 to {MEMBER_NAME_MAX} printable characters")
    if session and not SESSION_MS_MIN <= session <= SESSION_MS_MAX:
        raise _fields("session_ms is 1 s to 1 h in ms; 0: what the node has")
    given = fields.get("filters")
    return JoinFields(
        group_name(fields),
        name,
        cast("int", fields["member"]),
        topics(fields),
        mode_of(cast("str", fields["mode"])),
        session / 1000 if session else limits.session_seconds,
        None if fields.get("start") is None else start_of(fields["start"]),
        None if given is None else filters_of(given),
    )


def mode_of(mode: object) -> str:
    """Return a mode.

    Raises:
        GroupDiffers: No mode has this name.
    """
    if mode not in MODES:
        text = f"no mode is named {str(mode)[:100]!r}; there are {', '.join(MODES)}"
        raise GroupDiffers(text, code="group-mode")
    return str(mode)


def start_of(value: object) -> int:
    """Return where a group begins: ``end``, ``start`` or ms since 1970, as a number or text.

    >>> start_of("end"), start_of("start"), start_of("1700000000000")
    (-1, -2, 1700000000000)

    Raises:
        UsageError: None of these.
    """
    match value:
        case "end":
            return START_END
        case "start":
            return START_BEGIN
        case int() if not isinstance(value, bool) and value >= 0:
            return value
        case str() if value.isdecimal() and len(value) < 16:
            return int(value)
        case _:
            raise _fields(f"start is end, start or a time in ms, not {str(value)[:100]!r}")


def filters_of(value: object) -> dict[str, str]:
    """Return the filters in a map of topic to text (`node.leases.filters`).

    Raises:
        UsageError: Another shape, or a text that is no filter.
    """
    if not isinstance(value, dict):
        raise _fields("filters is a map of topic to filter")
    found: dict[str, str] = {}
    for topic, text in cast("dict[object, object]", value).items():
        if not isinstance(topic, str) or not isinstance(text, str):
            raise _fields("filters is a map of topic to filter, both texts")
        wanted(text)
        if text:
            found[topic] = text
    return dict(sorted(found.items()))


def settings_of(base: Group, settings: Mapping[str, object], *, new: bool) -> Group:
    """Return a definition with other settings; what is absent stays as it is.

    Raises:
        UsageError: A setting that is unknown, of another kind, or one that a group keeps.
        GroupDiffers: A mode that there is not.
    """
    changes: dict[str, Any] = {}
    for key, value in settings.items():
        match key, value:
            case "start", _ if not new:
                raise UsageError("a group keeps its start", code="group-mode")
            case "mode", _:
                changes["mode"] = mode_of(value)
            case "start", _:
                changes["start"] = start_of(value)
            case (("attempts" | "invisible_ms"), int()) if not isinstance(value, bool):
                changes[key] = value
            case "dead_letter", bool():
                changes["dead_letter"] = value
            case "retry", list():
                changes["retry"] = _retry(cast("list[object]", value), 0)
            case "growing", list():
                delays = cast("list[object]", value)
                factor = delays[-1] if delays and isinstance(delays[-1], int) else 0
                changes["retry"] = _retry(delays[:-1], factor)
            case "filters", _:
                changes["filters"] = filters_of(value)
            case _:
                raise _fields(f"a group has no setting {key[:100]!r} of this kind")
    group = replace(base, **changes)
    wrong = group.refusal()
    if wrong is not None:
        raise UsageError(wrong[1], code=wrong[0])
    if not new and not base.keeps_mode(group):
        raise UsageError(f"a group with mode {base.mode} keeps it", code="group-mode")
    return group


def _retry(delays: Sequence[object], factor: int) -> Retry:
    found: list[int] = []
    for delay in delays:
        if not isinstance(delay, int) or isinstance(delay, bool):
            raise _fields("the pauses of retry are whole numbers of ms")
        found.append(delay)
    return Retry(tuple(found), factor)
