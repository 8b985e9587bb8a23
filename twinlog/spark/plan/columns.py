"""The columns of the source: one table that the reader, the errors and the documentation read.

A query's columns are its schema: the default set, the full one, a list, or what ``.schema()``
names, in that order. Spark compares the Arrow types it is handed with the schema exactly, so each
column has one SQL type and no other.

Not here: making the values (`twinlog.spark.plan.decoding`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from twinlog.format.record import SHARDING_KEY
from twinlog.spark.errors import SourceError, nearest

TIMESTAMP, MAP = "TIMESTAMP", "MAP<STRING,STRING>"
HEADERS = "ARRAY<STRUCT<key: STRING, value: BINARY>>"


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Attributes:
        name: As Spark sees it.
        sql: Its type.
        kernel: The columns of `twinlog.kernels.columns` it is made of.
        text: What it holds, one sentence for the reference page.
        default: Whether it is there when no columns are named.
        of: The property that it shows, where the kernel has no column for it.
    """

    name: str
    sql: str
    kernel: tuple[str, ...]
    text: str
    default: bool = False
    of: str = ""


TABLE: tuple[Column, ...] = (
    Column("topic", "STRING", ("topic",), "Topic of the record.", True),
    Column("queue_id", "INT", ("queue",), "Queue of the topic.", True),
    Column("queue_offset", "BIGINT", ("queue_offset",), "Number in the queue, from 0.", True),
    Column("physical_offset", "BIGINT", ("log_offset",), "Log offset in bytes.", True),
    Column("epoch", "INT", ("log_offset",), "Mastership that wrote it; NULL without epochs.", True),
    Column("broker", "STRING", (), "Group it belongs to; NULL where a directory has none.", True),
    Column("store_timestamp", TIMESTAMP, ("store_time",), "When the master stored it.", True),
    Column("born_timestamp", TIMESTAMP, ("born_time",), "When the producer made it.", True),
    Column("key", "STRING", ("key",), "Index keys, separated by spaces (KEYS).", True),
    Column("tags", "STRING", ("tags",), "The tag readers filter by (TAGS).", True),
    Column("properties", MAP, ("properties",), "All properties, by RocketMQ's rules.", True),
    Column("body", "BINARY", ("body",), "The body, decompressed.", True),
    Column("size", "INT", ("size",), "Bytes of the whole record."),
    Column("body_crc", "BIGINT", ("body_crc",), "CRC-32 of the body as stored."),
    Column("crc_ok", "BOOLEAN", ("crc_ok",), "Whether the stored body has that CRC."),
    Column("flag", "INT", ("flag",), "The producer's flag."),
    Column("sys_flag", "INT", ("sys_flag",), "RocketMQ's system flag, a bit set."),
    Column("reconsume_times", "INT", ("reconsume_times",), "Deliveries before this one."),
    Column(
        "prepared_transaction_offset",
        "BIGINT",
        ("prepared",),
        "Log offset of the prepared record of a transaction.",
    ),
    Column("born_host", "STRING", ("born_host",), "The producer, address:port."),
    Column("store_host", "STRING", ("store_host",), "The master that stored it, address:port."),
    Column("message_id", "STRING", ("unique_id",), "The producer's id of the message (UNIQ_KEY)."),
    Column(
        "order_key",
        "STRING",
        ("properties",),
        "Records of the same order key are in the same queue, in order (__SHARDINGKEY).",
        of=SHARDING_KEY,
    ),
    Column("properties_raw", "BINARY", ("properties_raw",), "The properties as stored."),
    Column("tags_code", "BIGINT", (), "What the queue entry says: the tag's hash, or a time."),
    Column("tier", "STRING", (), "live, or archive."),
)
"""All twinlog columns, in the order of the full set."""

KAFKA: tuple[Column, ...] = (
    Column("key", "BINARY", ("key",), "Index keys as bytes."),
    Column("value", "BINARY", ("body",), "The body, decompressed."),
    Column("topic", "STRING", ("topic",), "Topic of the record."),
    Column("partition", "INT", ("queue",), "Queue of the topic."),
    Column("offset", "BIGINT", ("queue_offset",), "Number in the queue."),
    Column("timestamp", TIMESTAMP, ("store_time",), "When the master stored it."),
    Column("timestampType", "INT", (), "Always 1: the time of the store."),
    Column("headers", HEADERS, ("properties",), "Properties, with includeHeaders."),
)
"""The columns of Spark's Kafka source, with ``kafkaColumns``."""


def chosen(text: str, *, kafka: bool, headers: bool) -> tuple[Column, ...]:
    """Return the columns that the option ``columns`` names.

    Raises:
        SourceError: A name is no column.
    """
    if kafka:
        return KAFKA if headers else KAFKA[:-1]
    word = text.strip().lower()
    if word in ("default", "full"):
        return tuple(column for column in TABLE if column.default or word == "full")
    found = tuple(named(name.strip(), TABLE) for name in text.split(",") if name.strip())
    if not found:
        text = "columns names no column"
        raise SourceError(text, code="column", hint="leave it out, or say full")
    for column in found:
        if found.count(column) > 1:
            text = f"columns names {column.name} twice"
            raise SourceError(text, code="column", hint="name it once")
    return found


def named(name: str, table: Sequence[Column]) -> Column:
    """Return the column of that name; upper and lower case are the same.

    Raises:
        SourceError: There is no such column.
    """
    for column in table:
        if column.name.lower() == name.lower():
            return column
    names = [column.name for column in table]
    hint = nearest(name, names)
    hint = f"{hint}; there are {', '.join(names)}" if hint else f"there are {', '.join(names)}"
    raise SourceError(f"there is no column {name}", code="column", hint=hint)


def of_schema(fields: Sequence[tuple[str, str]], *, kafka: bool) -> tuple[Column, ...]:
    """Return the columns of a user's schema, whose names are written as they are here.

    Spark takes rows only under the very names of the schema.

    Args:
        fields: (name, type as Spark writes it) in the schema's order.
        kafka: Kafka's columns are meant.

    Raises:
        SourceError: A column does not exist, or has another type.
    """
    found: list[Column] = []
    for name, kind in fields:
        column = named(name, KAFKA if kafka else TABLE)
        if name != column.name:
            text = f"the schema names column {name}, which is {column.name}"
            raise SourceError(text, code="column", hint="write it so, and rename it after loading")
        if _plain(kind) != _plain(column.sql):
            text = f"column {name} is {column.sql}, not {kind.upper()}"
            raise SourceError(text, code="column", hint="cast it after loading")
        found.append(column)
    return tuple(found)


def _plain(kind: str) -> str:
    return kind.lower().replace(" ", "").replace("integer", "int").replace("long", "bigint")


def ddl(columns: Sequence[Column]) -> str:
    """Return the schema as Spark's DDL text."""
    return ", ".join(f"`{column.name}` {column.sql}" for column in columns)


def reference() -> str:
    """Render ``docs/spark/columns.md``."""
    lines = [
        "# Columns of the Spark source",
        "",
        "Without the option `columns`, rows have the columns marked *default*, in this order;",
        "`columns` names others, and `columns=full` means all. Only the columns that `.schema()`",
        "names are decoded, so a query over few columns should name them there: Spark does not say",
        "to a Python source which columns a `select` needs.",
        "",
        "| column | type | default | meaning |",
        "|---|---|---|---|",
    ]
    for column in TABLE:
        default = "default" if column.default else ""
        lines.append(f"| `{column.name}` | {column.sql} | {default} | {column.text} |")
    lines += ["", "With `kafkaColumns=true`, the columns of Spark's Kafka source:", ""]
    lines += ["| column | type | meaning |", "|---|---|---|"]
    lines += [f"| `{column.name}` | {column.sql} | {column.text} |" for column in KAFKA]
    return "\n".join([*lines, ""])
