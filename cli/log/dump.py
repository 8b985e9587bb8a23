"""``twinlog log dump``: every record of a store, in log order, with blanks and damage.

``--raw`` shows everything that parses, also what recovery would drop. Nothing is written.

Not here: the objects that are printed (``cli.log.pieces``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated

from cli.answer import Answer, Table
from cli.context import Context
from cli.failures import Exit, Failure
from cli.fields import Fields, table, text, whole
from cli.log.directory import open_store
from cli.log.pieces import Item, Window, hex_lines, items
from cli.options import Output
from cli.parsing import PRIVATE
from twinlog.store.log import Run
from twinlog.store.reader import StoreReader

LINES = 500
"""Lines that go out in one write."""
COLUMNS = "OFFSET> SIZE> TOPIC QUEUE> QUEUE_OFFSET> STORED:time KEYS TAG WHAT"


def dump(
    directory: Path,
    /,
    *,
    range_: str = "start:",
    raw: bool = False,
    bodies: bool = False,
    hex_: bool = False,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Show every record of a store, in log order, with blanks and damage.

    Args:
        directory: The data directory of a node, or a RocketMQ store.
        range_: Which records: 4096:8192 (log offsets), -100: (the last hundred), +100, @-1h: .
        raw: Everything that parses, including what recovery would drop.
        bodies: Also the bodies, as base64.
        hex_: Also every byte of each record.
    """
    window = Window.parse(range_, context.wall_ms())
    with open_store(directory, raw=raw) as store:
        found = items(store, window, bodies=bodies, raw_bytes=hex_)
        if context.options.output is Output.JSONL:
            some = _stream(found, context)
        else:
            some = show(list(found), directory, context)
        if not some and _ruined(store):
            what = f"no record of {directory} can be read"
            raise Failure(Exit.DATA, what, hints=(f"see: twinlog log verify {directory}",))
    return Exit.OK


def _ruined(store: StoreReader) -> bool:
    """Whether there are bytes but no records."""
    bad = any(damage.harm.in_log for damage in store.damage)
    return bad and not any(isinstance(piece, Run) for piece in store.pieces())


def _stream(found: Iterator[Item], context: Context) -> bool:
    """Print one object per line, many lines at a time; return whether there was a record."""
    some = False
    while block := list(islice(found, LINES)):
        some = some or any(item["kind"] == "Record" for item in block)
        context.printer.text("".join([json.dumps(i, ensure_ascii=False) + "\n" for i in block]))
    return some


def show(found: list[Item], directory: Path, context: Context, *, kind: str = "LogDump") -> bool:
    """Print records, blanks and damage as one answer; return whether there was a record.

    As JSON lines, nothing found is no line.
    """
    if not found and context.options.output is Output.JSONL:
        return False
    records = [item for item in found if item["kind"] == "Record"]
    dumped = [(item, text(item, "hex")) for item in found]
    context.printer.answer(
        Answer(
            kind=kind,
            fields={"directory": str(directory), "items": found},
            tables=[Table.of(COLUMNS, [_row(item) for item in found])],
            items=found,
            names=[f"log@{item['physical_offset']}" for item in records],
            tail="\n\n".join(
                "\n".join(hex_lines(held, whole(item, "physical_offset") or 0))
                for item, held in dumped
                if held
            ),
        )
    )
    return bool(records)


_EMPTY = dict.fromkeys(("topic", "queue", "queue_offset", "stored", "keys", "tag"))


def _row(item: Item) -> Fields:
    """One object under the names of the columns."""
    if item["kind"] == "Blank":
        return {**_EMPTY, "offset": item["offset"], "size": item["size"], "what": "blank"}
    if item["kind"] == "Damage":
        return {**_EMPTY, "offset": item["offset"], "size": item["length"], "what": item["what"]}
    named = table(item["properties"])
    return {
        "offset": item["physical_offset"],
        "size": item["size"],
        "topic": item["topic"],
        "queue": item["queue_id"],
        "queue_offset": item["queue_offset"],
        "stored": item["store_timestamp"],
        "keys": text(named, "KEYS"),
        "tag": text(named, "TAGS"),
        "what": "record",
    }
