"""The options of the source: one table that the code, the errors and the documentation read.

Names are given as people write them; upper and lower case are the same.

Not here: what an option does; `Options` holds the values only. Parsing all of them
(`twinlog.spark.plan.option_parser`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from twinlog.ranges import Point, Range
from twinlog.spark.plan.credentials import MEANINGS, Credentials
from twinlog.spark.plan.option_values import (
    EARLIEST,
    LATEST,
    Positions,
    a_range,
    assigned,
    count,
    flag,
    moment,
    names,
    offsets,
    pattern,
    positions,
    seconds,
    servers,
    size,
    tags,
    word,
)
from twinlog.units import MiB

SPLIT_BYTES: Final = 256 * MiB
SPLIT_BYTES_MIN: Final = 32 * MiB
"""Least size that ``minPartitions`` divides splits into: each task costs 40 to 90 ms of CPU."""


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
    Option("path", "path", None, names, "both", "Store directories; the argument of load()."),
    Option(
        "servers",
        "servers",
        None,
        servers,
        "both",
        "Addresses of any nodes, host:port, separated by commas. Either servers or path.",
        ("endpoints",),
    ),
    *(
        Option(name, field, "", str, "both", MEANINGS[name])
        for name, field in zip(
            MEANINGS, ("tls_ca", "tls_certificate", "tls_key", "user", "password_file"), strict=True
        )
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
        word("auto", "live", "archive"),
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
        seconds,
        "both",
        "How long to wait for a node that has what the plan pinned; 0: each node is asked once.",
    ),
    Option(
        "subscribe",
        "subscribe",
        None,
        names,
        "both",
        "Topics, separated by commas.",
        ("topic",),
    ),
    Option("subscribePattern", "pattern", None, pattern, "both", "Topics whose whole name fits."),
    Option("assign", "assign", None, assigned, "both", 'Queues, as JSON: {"orders":[0,1]}.'),
    Option(
        "includeSystem",
        "include_system",
        "false",
        flag,
        "both",
        "Also retry, dead-letter, delay and control topics; of directories light ones.",
    ),
    Option(
        "startingOffsets",
        "starting_offsets",
        None,
        positions(EARLIEST),
        "both",
        "earliest (batch), latest (stream), or JSON; queues it does not name: earliest.",
    ),
    Option(
        "endingOffsets",
        "ending_offsets",
        "latest",
        positions(LATEST),
        "batch",
        "latest, or JSON with exclusive ends.",
    ),
    Option(
        "startingTimestamp",
        "starting_timestamp",
        None,
        moment,
        "both",
        "First store time: ms since 1970, an ISO time (UTC without a zone), or -2h. Goes before "
        "the offsets.",
    ),
    Option(
        "endingTimestamp",
        "ending_timestamp",
        None,
        moment,
        "batch",
        "Store time before which it ends.",
    ),
    Option(
        "startingOffsetsByTimestamp",
        "starting_by_time",
        None,
        offsets,
        "both",
        "The same for each queue, as JSON with ms since 1970.",
    ),
    Option(
        "endingOffsetsByTimestamp",
        "ending_by_time",
        None,
        offsets,
        "batch",
        "Ends by time for each queue, as JSON.",
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        "by_time_strategy",
        "error",
        word("error", "latest"),
        "both",
        "When nothing is that new: an error, or the queue's end.",
    ),
    Option("range", "range", None, a_range, "batch", "The tools' ranges: -100:, @-1h:, 100:200."),
    Option(
        "splitMode",
        "split_mode",
        "auto",
        word("auto", "queue", "log"),
        "batch",
        "queue: by queue entries; log: every record of the log, also those no queue names; auto: "
        "queue.",
    ),
    Option("splitBytes", "split_bytes", "256 MiB", size, "both", "Log bytes for each task."),
    Option(
        "minPartitions",
        "min_partitions",
        None,
        count,
        "both",
        "About the least number of partitions.",
    ),
    Option("batchRows", "batch_rows", "8192", count, "both", "Rows of one Arrow batch."),
    Option("batchBytes", "batch_bytes", "4 MiB", size, "both", "Log bytes of one Arrow batch."),
    Option(
        "isolation",
        "isolation",
        "confirmed",
        word("confirmed", "written"),
        "both",
        "written: also what a directory holds above the confirm offset, for batch queries.",
    ),
    Option(
        "failOnDataLoss",
        "fail_on_data_loss",
        "true",
        flag,
        "both",
        "Whether missing or damaged rows end the query; otherwise they are counted.",
    ),
    Option(
        "maxOffsetsPerTrigger",
        "max_offsets_per_trigger",
        None,
        count,
        "stream",
        "Rows of one batch at most; all queues are cut at one place of the log.",
    ),
    Option(
        "maxBytesPerTrigger",
        "max_bytes_per_trigger",
        None,
        size,
        "stream",
        "Log bytes that one batch reaches over at most.",
    ),
    Option(
        "minOffsetsPerTrigger",
        "min_offsets_per_trigger",
        None,
        count,
        "stream",
        "Wait for this many rows, at most for maxTriggerDelay.",
    ),
    Option("maxTriggerDelay", "max_trigger_delay", "15m", seconds, "stream", "See above."),
    Option("tags", "tags", None, tags, "both", 'Only these tags: "a || b".'),
    Option("keys", "keys", None, names, "both", "Only records with one of these index keys."),
    Option(
        "keyIndex",
        "key_index",
        "auto",
        word("auto", "off"),
        "batch",
        "auto: where a key index covers them, only records that it names are read; off: all are.",
    ),
    Option(
        "pushFilters",
        "push_filters",
        "false",
        flag,
        "batch",
        "Whether filters that Spark pushes narrow the plan: for a frame that one query reads once.",
    ),
    Option("columns", "columns", "default", str, "both", "default, full, or names of columns."),
    Option("kafkaColumns", "kafka_columns", "false", flag, "both", "Kafka's columns instead."),
    Option("includeHeaders", "include_headers", "false", flag, "both", "Kafka's headers too."),
    Option("decompress", "decompress", "true", flag, "both", "Decompress bodies."),
    Option(
        "checkCrc",
        "check_crc",
        "chunk",
        word("chunk", "record", "off"),
        "both",
        "chunk: what the wire brings by its CRC-32C, what a directory holds by each body's CRC; "
        "record: each body everywhere; off: neither.",
    ),
)
"""Every option, in the order of the reference page."""


@dataclass(frozen=True, slots=True)
class Options:
    """The values of a query; fields are named and described in `TABLE`."""

    path: tuple[str, ...] | None
    servers: tuple[str, ...] | None
    tls_ca: str
    tls_certificate: str
    tls_key: str
    user: str
    password_file: str
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

    @property
    def credentials(self) -> Credentials:
        """What is shown to nodes."""
        return Credentials(
            self.tls_ca, self.tls_certificate, self.tls_key, self.user, self.password_file
        )


def reference() -> str:
    """Render ``docs/spark/options.md``."""
    lines = [
        "# Options of the Spark source",
        "",
        'For `spark.read.format("twinlog")` and `spark.readStream.format("twinlog")`. Upper and',
        "lower case are the same; unknown names are rejected",
        "with the closest match. Sizes are written `64 MiB`, durations `30 s`.",
        "",
        "| option | default | for | meaning |",
        "|---|---|---|---|",
    ]
    for row in TABLE:
        names = " or ".join(f"`{name}`" for name in (row.name, *row.aliases))
        default = "" if not row.default else f"`{row.default}`"
        text = row.text.replace("|", "\\|")
        lines.append(f"| {names} | {default} | {row.use} | {text} |")
    return "\n".join([*lines, ""])
