"""The options of the source: one table that the code, the errors and the documentation read.

Spark hands options over as text under lower-case names, so names are looked up that way; the table
has them as people write them. A name that is none is an error that tells the nearest one.

Not here: what an option does; `Options` holds the values only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast

from twinlog.errors import UsageError
from twinlog.ranges import Point, Range, parse_range
from twinlog.routing import parse_endpoints
from twinlog.spark import contradictions
from twinlog.spark.errors import SourceError, listed, nearest
from twinlog.units import MiB, UnitError, parse_duration, parse_size, parse_whole

EARLIEST, LATEST = -2, -1
"""Offsets that stand for a queue's start and end in JSON, as in Kafka's source."""

SPLIT_BYTES: Final = 256 * MiB
SPLIT_BYTES_MIN: Final = 32 * MiB
"""Least size that ``minPartitions`` divides splits into: each task costs 40 to 90 ms of CPU."""


@dataclass(frozen=True, slots=True)
class Positions:
    """Where each queue begins or ends: one word for all, or a number for each.

    Attributes:
        word: EARLIEST or LATEST, for queues that ``queues`` does not name.
        queues: topic -> queue -> offset, or EARLIEST or LATEST.
    """

    word: int
    queues: Mapping[str, Mapping[int, int]]

    def of(self, topic: str, queue: int) -> int:
        """Return what is said about a queue."""
        return self.queues.get(topic, {}).get(queue, self.word)


class _Bad(Exception):
    """The value is none; the text says what it must be."""


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise _Bad("true or false")
    return text.lower() == "true"


def _size(text: str) -> int:
    try:
        size = parse_size(text)
    except UnitError as error:
        raise _Bad(f"a size: {error.hint}") from None
    if size < 1:
        raise _Bad("a size of at least one byte")
    return size


def _count(text: str) -> int:
    found = parse_whole(text)
    if not found:
        raise _Bad("a whole number from 1 on")
    return found


def _seconds(text: str) -> float:
    try:
        return parse_duration(text)
    except UnitError as error:
        raise _Bad(f"a duration: {error.hint}") from None


def _names(text: str) -> tuple[str, ...]:
    found = tuple(name.strip() for name in text.split(",") if name.strip())
    if not found:
        raise _Bad("at least one name")
    return found


def _servers(text: str) -> tuple[str, ...]:
    try:
        return tuple(str(address) for address in parse_endpoints(text))
    except UsageError as error:
        raise _Bad(f"addresses such as n1:7410,n2:7410: {error.text}") from None


def _tags(text: str) -> tuple[str, ...]:
    found = tuple(name.strip() for name in text.split("||") if name.strip())
    if not found:
        raise _Bad('tags with "||" between them')
    return found


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise _Bad(f"a regular expression: {error}") from None
    return text


def _range(text: str) -> Range:
    try:
        return parse_range(text)
    except UsageError as error:
        raise _Bad(f"a range: {error.hint}") from None


def _moment(text: str) -> Point:
    """Return the point of a time: ms since 1970, an ISO time, or so long ago."""
    if (ms := parse_whole(text)) is not None:
        return parse_range(f"@{_iso(ms)}:").first
    try:
        return parse_range(f"@{text}:").first
    except UsageError:
        raise _Bad("milliseconds since 1970, a time such as 2026-11-21T10:00Z, or -2h") from None


def _iso(ms: int) -> str:
    try:
        moment = datetime.fromtimestamp(ms / 1000, tz=_UTC)
    except (OverflowError, ValueError, OSError):
        raise _Bad("a time that exists") from None
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%f") + "Z"


_UTC: Final = datetime.fromisoformat("1970-01-01T00:00:00+00:00").tzinfo


def _table(text: str) -> dict[str, dict[int, int]]:
    """Return topic -> queue -> number from JSON; a level of groups between them is looked through.

    ``{"orders":{"0":23}}`` and, as RocketMQ's connector writes it, ``{"orders":{"g1":{"0":23}}}``.
    """
    try:
        loaded: object = json.loads(text)
    except ValueError:
        raise _Bad(_JSON) from None
    found: dict[str, dict[int, int]] = {}
    for topic, queues in _map(loaded).items():
        inner = _map(queues)
        if len(inner) == 1 and isinstance(only := next(iter(inner.values())), dict):
            inner = _map(cast("object", only))
        found[topic] = {}
        for name, number in inner.items():
            queue = parse_whole(name)
            if queue is None or type(number) is not int:
                raise _Bad(_JSON)
            found[topic][queue] = number
    return found


_JSON: Final = 'JSON such as {"orders":{"0":23,"1":-2}}'


def _map(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise _Bad(_JSON)
    return cast("dict[str, object]", value)


def _positions(word: int) -> Callable[[str], Positions]:
    def parse(text: str) -> Positions:
        if text.lower() in ("earliest", "latest"):
            return Positions(EARLIEST if text.lower() == "earliest" else LATEST, {})
        if not text.lstrip().startswith("{"):
            raise _Bad(f"earliest, latest or {_JSON}")
        found = _table(text)
        if any(n < EARLIEST for queues in found.values() for n in queues.values()):
            raise _Bad("offsets from 0 on, -1 for the end or -2 for the start")
        return Positions(word, found)

    return parse


def _assign(text: str) -> Mapping[str, tuple[int, ...]]:
    wanted = 'JSON such as {"orders":[0,1]}'
    try:
        loaded: object = json.loads(text)
    except ValueError:
        raise _Bad(wanted) from None
    found: dict[str, tuple[int, ...]] = {}
    for topic, queues in _map(loaded).items():
        if not isinstance(queues, list):
            raise _Bad(wanted)
        items = cast("list[object]", queues)
        numbers = tuple(item for item in items if type(item) is int)
        if len(numbers) != len(items) or any(number < 0 for number in numbers):
            raise _Bad(wanted)
        found[topic] = numbers
    if not found:
        raise _Bad(wanted)
    return found


def _word(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in words:
            raise _Bad(listed(words))
        return text.lower()

    return parse


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Attributes:
        name: As people write it; upper and lower case are the same.
        field: Attribute of `Options`.
        default: What counts when it is not given, as text; None: nothing does.
        parse: Makes the value.
        use: ``batch``, ``stream`` or ``both``: reading which it belongs to.
        text: What it does, for the reference page.
        aliases: Other names.
    """

    name: str
    field: str
    default: str | None
    parse: Callable[[str], object]
    use: str
    text: str
    aliases: tuple[str, ...] = ()


TABLE: tuple[Option, ...] = (
    Option("path", "path", None, _names, "both", "Store directories; the argument of load()."),
    Option(
        "servers",
        "servers",
        None,
        _servers,
        "both",
        "Addresses of any nodes, host:port, separated by commas. Either servers or path.",
        ("endpoints",),
    ),
    Option(
        "archive",
        "archive",
        None,
        str,
        "batch",
        "Directory of an archive: rows below what the live store keeps come from there. Without "
        "servers and path, it alone is read.",
    ),
    Option(
        "tier",
        "tier",
        "auto",
        _word("auto", "live", "archive"),
        "batch",
        "With an archive: auto reads each row where it is; live and archive read one of the two.",
    ),
    Option(
        "readFrom",
        "read_from",
        "slave",
        str,
        "both",
        "Whom tasks ask: slave (then the master), any, master, or a node's name.",
    ),
    Option(
        "maxStaleness",
        "max_staleness",
        "30 s",
        _seconds,
        "both",
        "How long to wait for a node that has what the plan pinned; 0: each node is asked once.",
    ),
    Option(
        "subscribe",
        "subscribe",
        None,
        _names,
        "both",
        "Topics, separated by commas.",
        ("topic",),
    ),
    Option("subscribePattern", "pattern", None, _pattern, "both", "Topics whose whole name fits."),
    Option("assign", "assign", None, _assign, "both", 'Queues, as JSON: {"orders":[0,1]}.'),
    Option(
        "includeSystem",
        "include_system",
        "false",
        _flag,
        "both",
        "Also retry, dead-letter, delay and control topics; of directories light ones.",
    ),
    Option(
        "startingOffsets",
        "starting_offsets",
        None,
        _positions(EARLIEST),
        "both",
        "earliest (batch), latest (stream), or JSON; queues it does not name: earliest.",
    ),
    Option(
        "endingOffsets",
        "ending_offsets",
        "latest",
        _positions(LATEST),
        "batch",
        "latest, or JSON with exclusive ends.",
    ),
    Option(
        "startingTimestamp",
        "starting_timestamp",
        None,
        _moment,
        "both",
        "First store time: ms since 1970, an ISO time (UTC without a zone), or -2h. Goes before "
        "the offsets.",
    ),
    Option(
        "endingTimestamp",
        "ending_timestamp",
        None,
        _moment,
        "batch",
        "Store time before which it ends.",
    ),
    Option(
        "startingOffsetsByTimestamp",
        "starting_by_time",
        None,
        _table,
        "both",
        "The same for each queue, as JSON with ms since 1970.",
    ),
    Option(
        "endingOffsetsByTimestamp",
        "ending_by_time",
        None,
        _table,
        "batch",
        "Ends by time for each queue, as JSON.",
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        "by_time_strategy",
        "error",
        _word("error", "latest"),
        "both",
        "When nothing is that new: an error, or the queue's end.",
    ),
    Option("range", "range", None, _range, "batch", "The tools' ranges: -100:, @-1h:, 100:200."),
    Option(
        "splitMode",
        "split_mode",
        "auto",
        _word("auto", "queue", "log"),
        "batch",
        "queue: by queue entries; log: every record of the log, also those no queue names; auto: "
        "queue.",
    ),
    Option("splitBytes", "split_bytes", "256 MiB", _size, "both", "Log bytes for each task."),
    Option("minPartitions", "min_partitions", None, _count, "both", "At least about so many."),
    Option("batchRows", "batch_rows", "8192", _count, "both", "Rows of one Arrow batch."),
    Option("batchBytes", "batch_bytes", "4 MiB", _size, "both", "Log bytes of one Arrow batch."),
    Option(
        "isolation",
        "isolation",
        "confirmed",
        _word("confirmed", "written"),
        "both",
        "written: also what a directory holds above the confirm offset, for batch queries.",
    ),
    Option(
        "failOnDataLoss",
        "fail_on_data_loss",
        "true",
        _flag,
        "both",
        "Whether rows that are gone or damaged end the query; else they are counted.",
    ),
    Option(
        "maxOffsetsPerTrigger",
        "max_offsets_per_trigger",
        None,
        _count,
        "stream",
        "Rows of one batch at most; all queues are cut at one place of the log.",
    ),
    Option(
        "maxBytesPerTrigger",
        "max_bytes_per_trigger",
        None,
        _size,
        "stream",
        "Log bytes that one batch reaches over at most.",
    ),
    Option(
        "minOffsetsPerTrigger",
        "min_offsets_per_trigger",
        None,
        _count,
        "stream",
        "Wait for so many rows, but not longer than maxTriggerDelay.",
    ),
    Option("maxTriggerDelay", "max_trigger_delay", "15m", _seconds, "stream", "See above."),
    Option("tags", "tags", None, _tags, "both", 'Only these tags: "a || b".'),
    Option("keys", "keys", None, _names, "both", "Only records with one of these index keys."),
    Option(
        "keyIndex",
        "key_index",
        "auto",
        _word("auto", "off"),
        "batch",
        "auto: where a key index covers them, only records that it names are read; off: all are.",
    ),
    Option(
        "pushFilters",
        "push_filters",
        "false",
        _flag,
        "batch",
        "Whether filters that Spark pushes narrow the plan: for a frame that one query reads once.",
    ),
    Option("columns", "columns", "default", str, "both", "default, full, or names of columns."),
    Option("kafkaColumns", "kafka_columns", "false", _flag, "both", "Kafka's columns instead."),
    Option("includeHeaders", "include_headers", "false", _flag, "both", "Kafka's headers too."),
    Option("decompress", "decompress", "true", _flag, "both", "Decompress bodies."),
    Option(
        "checkCrc",
        "check_crc",
        "chunk",
        _word("chunk", "record", "off"),
        "both",
        "chunk: what the wire brings by its CRC-32C, what a directory holds by each body's CRC; "
        "record: each body everywhere; off: neither.",
    ),
)
"""Every option, in the order of the reference page."""

_SPARKS = frozenset({"owner", "provider"})
"""What Spark adds by itself for a table made with SQL."""
_KAFKAS: Final = {"kafka.bootstrap.servers": "servers"}


@dataclass(frozen=True, slots=True)
class Options:
    """The values of a query; fields are named and described in `TABLE`."""

    path: tuple[str, ...] | None
    servers: tuple[str, ...] | None
    archive: str | None
    tier: str
    read_from: str
    max_staleness: float
    subscribe: tuple[str, ...] | None
    pattern: str | None
    assign: Mapping[str, tuple[int, ...]] | None
    include_system: bool
    starting_offsets: Positions | None
    ending_offsets: Positions
    starting_timestamp: Point | None
    ending_timestamp: Point | None
    starting_by_time: Mapping[str, Mapping[int, int]] | None
    ending_by_time: Mapping[str, Mapping[int, int]] | None
    by_time_strategy: str
    range: Range | None
    split_mode: str
    split_bytes: int
    min_partitions: int | None
    batch_rows: int
    batch_bytes: int
    isolation: str
    fail_on_data_loss: bool
    max_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay: float
    tags: tuple[str, ...] | None
    keys: tuple[str, ...] | None
    key_index: str
    push_filters: bool
    columns: str
    kafka_columns: bool
    include_headers: bool
    decompress: bool
    check_crc: str


def parse(given: Mapping[str, str], *, use: str) -> Options:
    """Return the values of the options that Spark hands over.

    Args:
        given: Names and values.
        use: ``batch`` or ``stream``.

    Raises:
        SourceError: A name or value is none, or two contradict each other.
    """
    rows = {name.lower(): row for row in TABLE for name in (row.name, *row.aliases)}
    values: dict[str, Any] = {
        row.field: None if row.default is None else row.parse(row.default) for row in TABLE
    }
    said: dict[str, str] = {}
    for name, text in given.items():
        lower = name.lower()
        if lower in _SPARKS or lower.startswith("option."):
            continue
        row = rows.get(lower)
        if row is None:
            raise _unknown(name)
        if said.setdefault(row.field, lower) != lower:
            what = f"{said[row.field]} and {lower} are given, which is one option"
            raise SourceError(what, code="option", hint=f"say {row.name} once")
        if use == "stream" and row.use == "batch":
            hint = "a stream has no end" if row.name.startswith("ending") else "leave it out"
            text = f"option {row.name} is for batch queries only"
            raise SourceError(text, code="option", hint=hint)
        if use == "batch" and row.use == "stream":
            text = f"option {row.name} is for streams only"
            raise SourceError(text, code="option", hint="leave it out")
        try:
            values[row.field] = row.parse(text)
        except _Bad as bad:
            what = f"option {row.name} is {text!r}, which is not {bad}"
            raise SourceError(what, code="option", hint=_value_hint(row, text)) from None
    found = Options(**values)
    contradictions.refuse(found, use)
    return found


def _value_hint(row: Option, text: str) -> str | None:
    words = ["auto", "queue", "log", "live", "archive", "true", "false", "earliest", "latest"]
    words += ["error", "chunk"]
    fits = {word for word in words if _parses(row, word)}
    return nearest(text, fits) if fits and row.field != "columns" else None


def _parses(row: Option, word: str) -> bool:
    try:
        row.parse(word)
    except _Bad:
        return False
    return row.parse not in (_names, _tags, _pattern)


def _unknown(name: str) -> SourceError:
    names = [one for row in TABLE for one in (row.name, *row.aliases)]
    hint = nearest(_KAFKAS.get(name.lower(), name), names)
    if name.lower().startswith("kafka.") and hint is None:
        hint = "options of Kafka's client mean nothing here"
    known = "the options are listed in docs/spark/options.md"
    return SourceError(f"there is no option {name}", code="option", hint=hint or known)


def schema_options(given: Mapping[str, str]) -> Options:
    """Return the options where it is not known yet whether a batch or a stream is meant.

    Raises:
        SourceError: A name or value is none.
    """
    stream = {row.name.lower() for row in TABLE if row.use == "stream"}
    return parse(given, use="stream" if stream & {name.lower() for name in given} else "batch")


def reference() -> str:
    """Render ``docs/spark/options.md``."""
    lines = [
        "# Options of the Spark source",
        "",
        'For `spark.read.format("twinlog")` and `spark.readStream.format("twinlog")`. Upper and',
        "lower case are the same; a name or value that is none is an error that tells the nearest",
        "one. Sizes are written `64 MiB`, durations `30 s`.",
        "",
        "| option | default | for | meaning |",
        "|---|---|---|---|",
    ]
    for row in TABLE:
        names = " or ".join(f"`{name}`" for name in (row.name, *row.aliases))
        default = "" if row.default is None else f"`{row.default}`"
        text = row.text.replace("|", "\\|")
        lines.append(f"| {names} | {default} | {row.use} | {text} |")
    return "\n".join([*lines, ""])
